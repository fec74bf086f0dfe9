"""Systems with large triangular matrices: block of rows by block of rows. Start at `triangle`.

Each step solves the next rows of X with the block on the diagonal, in local memory, a column of X an item; a product takes them from what
is below. An upper triangle is a lower one whose rows and columns are counted from the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tracegrad.codegen.blocked.parts import Blocked, Factorization, Held, Part
from tracegrad.codegen.kernel.index.index import Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Infix, Literal, element, place
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group, strip


def triangle(group: Group, context: Context, out: Held) -> list[Kernel]:
    """The kernels, in launch order: two for each block of rows."""
    of = _System(group, context, out)
    n, width, columns = of.n, of.width, of.columns
    kernels = [of.copied()]
    for start in range(0, n, width):
        kernels.append(of.solved(start))
        if start + width < n:                                # what is below, less A times these rows
            a, x, b = (Part(at, n, size, down, right, turned=of.turned) for at, size, down, right in
                       ((of.a, n, width, 0), (out, columns, 0, None), (out, columns, width, None)))
            kernels.append(of.updated(start, n, n - start - width, columns, a, x, b))
    return kernels


class _System(Factorization):
    """A X = B, of (batch, n, n) and (batch, n, columns)."""

    def __init__(self, group: Group, context: Context, out: Held) -> None:
        self.n, self.columns = group.anchor.shape[-2:]
        super().__init__(group, context, out, group.anchor.aval.size // (self.n * self.columns), "remaining")
        fn: Any = self.node.fn
        self.a, self.attrs, self.reporting = strip(self.node.operands[0]), self.node.attrs, bool(fn.reporting)

    def turned(self, i: Index) -> Index:
        """Which row, or column of A, is number i of those that are solved one after the other."""
        i = bounded(i, 0, self.n)
        return self.n - 1 - i if self.attrs["upper"] else i

    def solved(self, start: int) -> Kernel:
        """The next rows of X, in place."""
        o, width, n, dtype, pitch = self.builder(), self.width, self.n, self.dtype, self.width + 1
        w, items = o.writer, self.items(self.target.local_memory // dtype.itemsize - width * pitch, width, self.columns)
        item, block, matrix = o.places(items, -(-self.columns // items))
        first, memory, a = o.begin(start, n), o.held(self.out, "out"), o.held(self.a, "a", "const")
        tile, rows = (o.shared(name, register_type(dtype), size) for name, size in (("tile", width * pitch), ("values", width * items)))
        o.triangle(tile, item, first, n, lambda i, j: element(a, (matrix * n + self.turned(i)) * n + self.turned(j)),
                   "<" if self.attrs["unit"] else "<=")
        column = o.row("x", block * items + item)
        with self.rows(o, first, column) as (own, row, inside):
            value = w.let("value", Literal(0.0, dtype), changes=True)
            with inside:
                w.assign(value, element(memory, w.at(self.at(matrix, row, column))))
            w.store(place(rows, own * items + item), value)
        o.barrier()
        if not self.attrs["unit"] and self.reporting:
            with o.each("e", width, item) as e, o.only(Infix("==", element(tile, e * (pitch + 1)), Literal(0.0, dtype))):
                o.report(matrix, w.at(self.turned(first + e) + 1))
        o.substituted(tile, rows, lambda c: c * items + item, lambda total, c: Infix("/", total, element(tile, c * (pitch + 1))))
        with self.rows(o, first, column) as (own, row, inside), inside:
            o.put(memory, self.at(matrix, row, column), element(rows, own * items + item))
        return self.step(o, self.columns, 2, f"{width} rows, {items} columns a work-group")

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
