"""Systems with large triangular matrices: block of rows by block of rows. Start at `triangle`.

Each step solves the next rows of X with the block on the diagonal, in local memory, a column of X an item; a product takes them from what
is below. An upper triangle is a lower one whose rows and columns are counted from the end.
"""

from __future__ import annotations

from tracegrad.codegen.blocked.parts import Blocked, Held, Part, update
from tracegrad.codegen.kernel.expressions import Expression, Infix, Literal, Select, element, place
from tracegrad.codegen.kernel.index import Index, Var, bounded
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.types import register_type
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
        self.n, self.columns = node.shape[-2:]
        self.batch = node.aval.size // (self.n * self.columns)
        self.width = tuning().factor_block
        entry = context.entry(group)
        self.entry, self.product = lambda: context.another(entry), context.fresh("remaining")

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
        i, k = Var("i", width), Var("k", width)
        with w.loop(i, 0, width):
            row = o.row("row", first + i.index)
            value = w.let("value", Literal(0.0, dtype), changes=True)
            with o.where((row, n), (column, self.columns)):
                value_at = self.at(matrix, row, column)
                w.assign(value, element(memory, w.at(value_at)))
            w.store(place(rows, i.index * items + item.index), value)
        o.barrier()
        if not self.attrs["unit"]:
            with o.each("e", width, item, items) as e:
                with o.only(Infix("==", element(tile, e * (pitch + 1)), Literal(0.0, dtype))):
                    o.report(matrix, w.at(self.turned(first + e) + 1))
        with w.loop(i, 0, width):
            total = w.let("total", element(rows, i.index * items + item.index), changes=True)
            with w.loop(k, 0, i, unrolled=4):
                w.update(total, "-", Infix("*", element(tile, i.index * pitch + k.index), element(rows, k.index * items + item.index)))
            w.store(place(rows, i.index * items + item.index), Infix("/", total, element(tile, i.index * (pitch + 1))))
        with w.loop(i, 0, width):
            row = o.row("row", first + i.index)
            with o.where((row, n), (column, self.columns)):
                o.put(memory, self.at(matrix, row, column), element(rows, i.index * items + item.index))
        made = self.context.finish(self.group, w, (groups * items, self.batch), (items, 1), True, self.entry())
        made.flops, made.bytes = self.batch * self.columns * width * width, 2 * self.batch * self.columns * width * dtype.itemsize
        made.note = f"{width} rows, {items} columns a work-group"
        return made

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
        return update(self.group, self.context, self.context.another(self.product), self.batch, start, n, (rest, columns, width), self.dtype,
                      Part(self.a, n, n, a), Part(self.out, n, columns, x), Part(self.out, n, columns, c))
