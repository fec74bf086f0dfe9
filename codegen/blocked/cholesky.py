"""Cholesky factors of large matrices: columns by columns. Start at `cholesky`.

Each step takes the next columns, as many as a block has. Every work-group factorizes the block on the diagonal in its local memory (again:
no group waits for another), and solves its rows below for L. What is right of it becomes A22 - L21 L21^T by a product. The blocks of the
diagonal are put in place at the end, for until then groups may still read what was there. (J. Dongarra et al., "A set of level 3 basic
linear algebra subprograms", 1990.)
"""

from __future__ import annotations

from tracegrad.codegen.blocked.parts import Blocked, Held, Part, elements, update
from tracegrad.codegen.graph.large_matrices import block_of
from tracegrad.codegen.kernel.index.index import Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Array, Call, Expression, Infix, Literal, Prefix, Select, element, place
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.support.tuning import tuning


def cholesky(group: Group, context: Context, out: Held) -> list[Kernel]:
    """The kernels, in launch order: about two for each block of columns."""
    node = group.anchor
    n = node.shape[-1]
    batch = node.aval.size // (n * n)
    width = block_of(node.dtype, context.target)
    diagonal = Temp("diagonal", node, batch * n * width, node.dtype)
    entry, product = context.entry(group), context.fresh("trailing")
    kernels = [_lower_triangle(group, context, context.another(entry), batch, n, out)]
    for start in range(0, n, width):
        kernels.append(_panel(group, context, context.another(entry), batch, n, start, out, diagonal))
        rest = n - start - width
        if rest > 0:
            kernels.append(_trailing(group, context, context.another(product), batch, n, start, rest, out))
    return [*kernels, _place_diagonal(group, context, context.another(entry), batch, n, out, diagonal)]


def _lower_triangle(group: Group, context: Context, entry: str, batch: int, n: int, out: Held) -> Kernel:
    """The lower triangle of the operand, and zeros above."""
    o = Blocked(group, context, batch)
    at, launched, local = elements(o, batch * n * n)
    with o.where(*[(at, batch * n * n)] * (launched > batch * n * n)):
        a = o.ev.value(o.node.operands[0], at)
        row, column = o.writer.at(at // n % n), o.writer.at(at % n)
        o.put(o.held(out, "out"), at, Select(Infix("<=", column, row), a, Literal(0.0, a.dtype)))
    return context.finish(group, o.writer, (launched,), (local,), False, entry)


def rows_of_group(width: int, itemsize: int, context: Context) -> int:
    """Rows that a work-group solves beside a block of `width` columns in its local memory: a power of two."""
    target = context.target
    room = target.local_memory // itemsize - width * (width + 1) - width
    rows = 1
    while 2 * rows <= min(tuning().factor_rows, target.max_work_group) and 2 * rows * (width + 1) <= room:
        rows *= 2
    return rows


def _panel(group: Group, context: Context, entry: str, batch: int, n: int, start: int, out: Held, diagonal: Temp) -> Kernel:
    """The block on the diagonal, to `diagonal`; the rows below, in place."""
    o = Blocked(group, context, batch)
    w, width, dtype = o.writer, block_of(o.node.dtype, context.target), o.node.dtype
    items, pitch, type_ = rows_of_group(width, dtype.itemsize, context), width + 1, register_type(dtype)
    groups = max(1, -(-(n - start - width) // items))
    item, block = o.number("item", items, 0, "local"), o.number("block", max(2, -(-n // items)), 0, "group")
    matrix, first = o.matrix(), o.begin(start, n)
    memory, kept = o.held(out, "out"), o.held(diagonal, "diagonal", "out")
    tile, rows, inverse = (o.shared(name, type_, size) for name, size in
                           (("tile", width * pitch), ("values", items * pitch), ("scratch", width)))
    with o.each("e", width * width, item, items) as e:       # the block; beyond the matrix ones on the diagonal
        i, j = o.row("row", first + e // width), o.row("column", first + e % width)
        same = Infix("==", w.at(e // width), w.at(e % width))
        value = w.let("value", Select(same, Literal(1.0, dtype), Literal(0.0, dtype)), changes=True)
        with o.where((i, n), (j, n)), o.only(Infix("<=", j, i)):
            w.assign(value, element(memory, (matrix * n + bounded(i, 0, n)) * n + bounded(j, 0, n)))
        w.store(place(tile, e // width * pitch + e % width), value)
    with o.each("e", items * width, item, items) as e:       # and the rows
        i, j = o.row("row", first + width + block.index * items + e // width), o.row("column", first + e % width)
        value = w.let("value", Literal(0.0, dtype), changes=True)
        with o.where((i, n), (j, n)):
            w.assign(value, element(memory, (matrix * n + bounded(i, 0, n)) * n + bounded(j, 0, n)))
        w.store(place(rows, e // width * pitch + e % width), value)
    o.barrier()
    _factorize(o, tile, inverse, item, items, width, matrix, first, block)
    with o.each("e", width * width, item, items) as e:       # as it will stand, zeros above included
        i = o.row("row", first + e // width)
        with o.only(Infix("==", block, 0)), o.where((i, n)):
            here = element(tile, e // width * pitch + e % width)
            o.put(kept, (matrix * n + bounded(i, 0, n)) * width + e % width, here)
    c, k = Var("c", width), Var("k", width)
    with w.loop(c, 0, width):
        total = w.let("total", element(rows, item.index * pitch + c.index), changes=True)
        with w.loop(k, 0, c, unrolled=4):
            w.update(total, "-", Infix("*", element(rows, item.index * pitch + k.index), element(tile, c.index * pitch + k.index)))
        w.store(place(rows, item.index * pitch + c.index), Infix("*", total, element(inverse, c)))
    o.barrier()
    with o.each("e", items * width, item, items) as e:
        i, j = o.row("row", first + width + block.index * items + e // width), o.row("column", first + e % width)
        with o.where((i, n), (j, n)):
            to = (matrix * n + bounded(i, 0, n)) * n + bounded(j, 0, n)
            o.put(memory, to, element(rows, e // width * pitch + e % width))
    made = context.finish(group, w, (groups * items, batch), (items, 1), True, entry)
    made.flops, made.bytes = batch * max(0, n - start) * width * width, 2 * batch * max(0, n - start) * width * dtype.itemsize
    made.note = f"{width} columns, and {items} rows below a work-group"
    return made


def _factorize(o: Blocked, tile: Array, inverse: Array, item: Var, items: int, width: int, matrix: Index, first: Index, block: Var) -> None:
    """tile = L L^T, of its lower triangle, as L D L^T until the end: one barrier a column; inverse: one over L's diagonal."""
    w, pitch = o.writer, width + 1
    zero, one = Literal(0.0, o.node.dtype), Literal(1.0, o.node.dtype)
    j = Var("j", width)
    with w.loop(j, 0, width):
        pivot = w.let("pivot", element(tile, j.index * (pitch + 1)))
        with o.only(Infix("&&", Infix("&&", Infix("==", item, 0), Infix("==", block, 0)), Prefix("!", Infix(">", pivot, zero)))):
            o.report(matrix, w.at(first + j.index + 1))
        scale = w.let("scale", Infix("/", one, pivot))
        with o.each("e", width * width, item, items) as e:
            i, c = w.indexed("row", e // width), w.indexed("column", e % width)
            with o.only(Infix("&&", Infix(">", w.at(c), w.at(j)), Infix(">=", w.at(i), w.at(c)))):
                product = Infix("*", element(tile, i * pitch + j.index), Infix("*", element(tile, c * pitch + j.index), scale))
                w.update(place(tile, i * pitch + c), "-", product)
        o.barrier()
    with o.each("e", width, item, items) as e:
        w.store(place(inverse, e), Infix("/", one, Call("sqrt", element(tile, e * (pitch + 1)))))
    o.barrier()
    with o.each("e", width * width, item, items) as e:
        w.update(place(tile, e // width * pitch + e % width), "*", element(inverse, e % width))
    o.barrier()


def _trailing(group: Group, context: Context, entry: str, batch: int, n: int, start: int, rest: int, out: Held) -> Kernel:
    """A22 - L21 L21^T, of its lower triangle."""
    width = block_of(group.anchor.dtype, context.target)

    def left(first: Index, i: Index, k: Index) -> tuple[Index, Index, list[Expression]]:
        row = first + width + i
        return row, first + k, [Infix("<", row, n), Infix("<", first + k, n)]

    def right(first: Index, k: Index, j: Index) -> tuple[Index, Index, list[Expression]]:
        return left(first, j, k)

    def at(first: Index, i: Index, j: Index) -> tuple[Index, Index, list[Expression]]:
        row, column = first + width + i, first + width + j
        return row, column, [Infix("<", row, n), Infix("<", column, n), Infix("<=", column, row)]

    parts = Part(out, n, n, left), Part(out, n, n, right), Part(out, n, n, at)
    return update(group, context, entry, batch, start, n, (rest, rest, width), group.anchor.dtype, *parts)


def _place_diagonal(group: Group, context: Context, entry: str, batch: int, n: int, out: Held, diagonal: Temp) -> Kernel:
    o, width = Blocked(group, context, batch), block_of(group.anchor.dtype, context.target)
    w, count = o.writer, batch * n * width
    at, launched, local = elements(o, count)
    memory, kept = o.held(out, "out"), o.held(diagonal, "diagonal", "const")
    with o.where(*[(at, count)] * (launched > count)):
        row = at // width % n
        column = o.row("column", row // width * width + at % width)
        with o.where((column, n)):
            o.put(memory, at // width * n + bounded(column, 0, n), element(kept, at))
    return context.finish(group, w, (launched,), (local,), False, entry)
