"""Cholesky factors of large matrices: columns by columns. Start at `cholesky`.

Each step takes the next columns, as many as a block has. Every work-group factorizes the block on the diagonal in its local memory (again:
no group waits for another), and solves its rows below for L. What is right of it becomes A22 - L21 L21^T by a product. The blocks of the
diagonal are put in place at the end, for until then groups may still read what was there. (J. Dongarra et al., "A set of level 3 basic
linear algebra subprograms", 1990.)
"""

from __future__ import annotations

from tracegrad.codegen.blocked.parts import Blocked, Factorization, Held, Part
from tracegrad.codegen.kernel.index.index import Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Array, Call, Infix, Literal, Prefix, Select, element, place
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group


def cholesky(group: Group, context: Context, out: Held) -> list[Kernel]:
    """The kernels, in launch order: about two for each block of columns."""
    n = group.anchor.shape[-1]
    of = _Cholesky(group, context, out, group.anchor.aval.size // (n * n), "trailing")
    kernels = [of.copied()]
    for start in range(0, n, of.width):
        kernels.append(of.panel(start))
        rest = n - start - of.width
        if rest > 0:                                         # A22 - L21 L21^T, of its lower triangle
            left, right = (Part(out, n, n, of.width, 0, swapped) for swapped in (False, True))
            kernels.append(of.updated(start, n, rest, rest, left, right, Part(out, n, n, of.width, of.width, lower=True)))
    return [*kernels, of.placed()]


class _Cholesky(Factorization):
    """Of (batch, n, n). diagonal: its blocks, until the end."""

    def __init__(self, group: Group, context: Context, out: Held, batch: int, product: str) -> None:
        super().__init__(group, context, out, batch, product)
        self.n = self.node.shape[-1]
        self.diagonal = Temp("diagonal", self.node, batch * self.n * self.width, self.dtype)

    def copied(self) -> Kernel:
        """The lower triangle of the operand, and zeros above."""
        def body(o: Blocked, at: Index) -> None:
            a = o.ev.value(o.node.operands[0], at)
            row, column = o.writer.at(at // self.n % self.n), o.writer.at(at % self.n)
            o.put(o.held(self.out, "out"), at, Select(Infix("<=", column, row), a, Literal(0.0, a.dtype)))

        return self.elements(self.node.aval.size, body)

    def panel(self, start: int) -> Kernel:
        """The block on the diagonal, to `diagonal`; the rows below, in place."""
        o, n, width, dtype, pitch = self.builder(), self.n, self.width, self.dtype, self.width + 1
        w, items = o.writer, self.items(self.target.local_memory // dtype.itemsize - width * pitch - width, pitch)
        item, block, matrix = o.places(items, max(1, -(-(n - start - width) // items)), max(2, -(-n // items)))
        first = o.begin(start, n)
        memory, kept = o.held(self.out, "out"), o.held(self.diagonal, "diagonal", "out")
        tile, rows, inverse = (o.shared(name, register_type(dtype), size) for name, size in
                               (("tile", width * pitch), ("values", items * pitch), ("scratch", width)))

        def at(i: Index, j: Index) -> Index:
            return (matrix * n + bounded(i, 0, n)) * n + bounded(j, 0, n)

        o.triangle(tile, item, first, n, lambda i, j: element(memory, at(i, j)))
        with o.each("e", items * width, item) as e:          # and the rows
            i, j = o.row("row", first + width + block * items + e // width), o.row("column", first + e % width)
            value = w.let("value", Literal(0.0, dtype), changes=True)
            with o.where((i, n), (j, n)):
                w.assign(value, element(memory, at(i, j)))
            w.store(place(rows, e // width * pitch + e % width), value)
        o.barrier()
        _factorize(o, tile, inverse, item, matrix, first, block)
        with o.each("e", width * width, item) as e:          # as it will stand, zeros above included
            i = o.row("row", first + e // width)
            with o.only(Infix("==", block, 0)), o.where((i, n)):
                here = element(tile, e // width * pitch + e % width)
                o.put(kept, (matrix * n + bounded(i, 0, n)) * width + e % width, here)
        o.substituted(tile, rows, lambda c: item * pitch + c, lambda total, c: Infix("*", total, element(inverse, c)))
        o.barrier()
        with o.each("e", items * width, item) as e:
            i, j = o.row("row", first + width + block * items + e // width), o.row("column", first + e % width)
            with o.where((i, n), (j, n)):
                o.put(memory, at(i, j), element(rows, e // width * pitch + e % width))
        return self.step(o, max(0, n - start), 2, f"{width} columns, and {items} rows below a work-group")

    def placed(self) -> Kernel:
        """The blocks of the diagonal, to their place."""
        def body(o: Blocked, at: Index) -> None:
            memory, kept = o.held(self.out, "out"), o.held(self.diagonal, "diagonal", "const")
            row = at // self.width % self.n
            column = o.row("column", row // self.width * self.width + at % self.width)
            with o.where((column, self.n)):
                o.put(memory, at // self.width * self.n + bounded(column, 0, self.n), element(kept, at))

        return self.elements(self.batch * self.n * self.width, body)


def _factorize(o: Blocked, tile: Array, inverse: Array, item: Index, matrix: Index, first: Index, block: Index) -> None:
    """tile = L L^T, of its lower triangle, as L D L^T until the end: one barrier a column; inverse: one over L's diagonal."""
    w, width, pitch = o.writer, o.width, o.pitch
    zero, one = Literal(0.0, o.node.dtype), Literal(1.0, o.node.dtype)
    j = Var("j", width)
    with w.loop(j, 0, width):
        pivot = w.let("pivot", element(tile, j.index * (pitch + 1)))
        with o.only(Infix("&&", Infix("&&", Infix("==", item, 0), Infix("==", block, 0)), Prefix("!", Infix(">", pivot, zero)))):
            o.report(matrix, w.at(first + j.index + 1))
        scale = w.let("scale", Infix("/", one, pivot))
        with o.each("e", width * width, item) as e:
            i, c = w.indexed("row", e // width), w.indexed("column", e % width)
            with o.only(Infix("&&", Infix(">", w.at(c), w.at(j)), Infix(">=", w.at(i), w.at(c)))):
                product = Infix("*", element(tile, i * pitch + j.index), Infix("*", element(tile, c * pitch + j.index), scale))
                w.update(place(tile, i * pitch + c), "-", product)
        o.barrier()
    with o.each("e", width, item) as e:
        w.store(place(inverse, e), Infix("/", one, Call("sqrt", element(tile, e * (pitch + 1)))))
    o.barrier()
    with o.each("e", width * width, item) as e:
        w.update(place(tile, e // width * pitch + e % width), "*", element(inverse, e % width))
    o.barrier()
