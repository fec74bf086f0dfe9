"""Systems with large triangular matrices: block of rows by block of rows. Start at `triangle`.

Each step solves the next rows of X with the block on the diagonal, in local memory, a column of X an item; a product takes them from what
is below. An upper triangle is a lower one whose rows and columns are counted from the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tracegrad.codegen.blocked.parts import Blocked, Held, Part, update
from tracegrad.codegen.graph.large_matrices import block_of
from tracegrad.codegen.kernel.index.index import Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Literal, Select, element, place
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.support.tuning import tuning


def triangle(group: Group, context: Context, out: Held) -> list[Kernel]:
    """The kernels, in launch order: two for each block of rows."""
    of = _System(group, context, out)
    kernels = [of.copied()]
    for start in range(0, of.n, of.width):
        kernels.append(of.solved(start))
        if start + of.width < of.n:
            kernels.append(of.updated(start))
    return kernels


class _System:
    """A X = B, of (batch, n, n) and (batch, n, columns)."""

    def __init__(self, group: Group, context: Context, out: Held) -> None:
        self.group, self.context, self.out = group, context, out
        node = group.anchor
        self.a, self.dtype, self.attrs = strip(node.operands[0]), node.dtype, node.attrs
        fn: Any = node.fn
        self.reporting = bool(fn.reporting)
        self.n, self.columns = node.shape[-2:]
        self.batch = node.aval.size // (self.n * self.columns)
        self.width = block_of(self.dtype, context.target)
        self.name, self.product = context.entry(group), context.fresh("remaining")

    def entry(self) -> str:
        """A fresh name of a kernel."""
        return self.context.another(self.name)

    def copied(self) -> Kernel:
        """The right sides, which become X."""
        o = Blocked(self.group, self.context, self.batch)
        launched, local = o.copied(self.out)
        return self.context.finish(self.group, o.writer, (launched,), (local,), False, self.entry())

    def turned(self, i: Index) -> Index:
        """Which row, or column of A, is number i of those that are solved one after the other."""
        i = bounded(i, 0, self.n)
        return self.n - 1 - i if self.attrs["upper"] else i

    def items(self) -> int:
        """Columns of X that a work-group solves."""
        target, width = self.context.target, self.width
        room = target.local_memory // self.dtype.itemsize - width * (width + 1)
        items = 1
        while 2 * items <= min(tuning().factor_rows, target.max_work_group) and 2 * items * width <= room and items < self.columns:
            items *= 2
        return items

    def solved(self, start: int) -> Kernel:
        """The next rows of X, in place."""
        o = Blocked(self.group, self.context, self.batch)
        w, width, n, dtype, items = o.writer, self.width, self.n, self.dtype, self.items()
        pitch, type_, groups = width + 1, register_type(dtype), -(-self.columns // items)
        item = o.number("item", items, 0, "local")
        block = o.number("block", groups, 0, "group").index
        matrix, first = o.matrix(), o.begin(start, n)
        memory, a = o.held(self.out, "out"), o.held(self.a, "a", "const")
        tile, rows = o.shared("tile", type_, width * pitch), o.shared("values", type_, width * items)
        with o.each("e", width * width, item, items) as e:       # beyond the matrix ones on the diagonal
            i, j = o.row("row", first + e // width), o.row("column", first + e % width)
            same = Infix("==", w.at(e // width), w.at(e % width))
            value = w.let("value", Select(same, Literal(1.0, dtype), Literal(0.0, dtype)), changes=True)
            below = "<" if self.attrs["unit"] else "<="
            with o.where((i, n), (j, n)), o.only(Infix(below, j, i)):
                w.assign(value, element(a, (matrix * n + self.turned(i)) * n + self.turned(j)))
            w.store(place(tile, e // width * pitch + e % width), value)
        column = o.row("x", block * items + item.index)
        with self.rows(o, first, column) as (own, row, inside):
            value = w.let("value", Literal(0.0, dtype), changes=True)
            with inside:
                w.assign(value, element(memory, w.at(self.at(matrix, row, column))))
            w.store(place(rows, own * items + item.index), value)
        o.barrier()
        if not self.attrs["unit"] and self.reporting:
            with o.each("e", width, item, items) as e, o.only(Infix("==", element(tile, e * (pitch + 1)), Literal(0.0, dtype))):
                o.report(matrix, w.at(self.turned(first + e) + 1))
        c, k = Var("c", width), Var("k", width)
        with w.loop(c, 0, width):
            total = w.let("total", element(rows, c.index * items + item.index), changes=True)
            with w.loop(k, 0, c, unrolled=4):
                w.update(total, "-", Infix("*", element(tile, c.index * pitch + k.index), element(rows, k.index * items + item.index)))
            w.store(place(rows, c.index * items + item.index), Infix("/", total, element(tile, c.index * (pitch + 1))))
        with self.rows(o, first, column) as (own, row, inside), inside:
            o.put(memory, self.at(matrix, row, column), element(rows, own * items + item.index))
        made = self.context.finish(self.group, w, (groups * items, self.batch), (items, 1), True, self.entry())
        made.flops, made.bytes = self.batch * self.columns * width * width, 2 * self.batch * self.columns * width * dtype.itemsize
        made.note = f"{width} rows, {items} columns a work-group"
        return made

    @contextmanager
    def rows(self, o: Blocked, first: Index, column: Index) -> Iterator[tuple[Index, Index, AbstractContextManager[None]]]:
        """The block's rows, one after the other: the number of each in it, in the matrix, and where it, and the column, are there."""
        c = Var("c", self.width)
        with o.writer.loop(c, 0, self.width):
            row = o.row("row", first + c.index)
            yield c.index, row, o.where((row, self.n), (column, self.columns))

    def at(self, matrix: Index, i: Index, column: Index) -> Index:
        """Where X has a column of row number i."""
        return (matrix * self.n + self.turned(i)) * self.columns + bounded(column, 0, self.columns)

    def updated(self, start: int) -> Kernel:
        """What is below, less A times these rows."""
        n, width, columns = self.n, self.width, self.columns

        def a(first: Index, i: Index, k: Index) -> tuple[Index, Index, list[Expression]]:
            return self.turned(first + width + i), self.turned(first + k), [Infix("<", first + width + i, n), Infix("<", first + k, n)]

        def x(first: Index, k: Index, j: Index) -> tuple[Index, Index, list[Expression]]:
            return self.turned(first + k), j, [Infix("<", first + k, n), Infix("<", j, columns)]

        def c(first: Index, i: Index, j: Index) -> tuple[Index, Index, list[Expression]]:
            return self.turned(first + width + i), j, [Infix("<", first + width + i, n), Infix("<", j, columns)]

        rest = n - start - width
        entry = self.context.another(self.product)
        return update(self.group, self.context, entry, self.batch, start, n, (rest, columns, width), self.dtype,
                      Part(self.a, n, n, a), Part(self.out, n, columns, x), Part(self.out, n, columns, c))
