"""Scatters (add, set, max, min): the owner of a part of the result goes through all indices, in order. Start at `lower_scatter`.

A work-item owns either a range of columns of every row (rows are long) or a range of rows: then it skips the indices of others'
rows. Where very many indices go to few short rows, it owns a chunk of the indices and a copy of the result, and a second kernel puts the
copies together. The order of the indices defines the result in any case, and there are no atomics. On a GPU indices are sorted
(scatter_gpu.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Literal, Load, Local
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, BoundLike, bound, clipped
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import KernelBuilder, column_part, cut, parts
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.tuning import tuning


@lowering("scatter")
def lower_scatter(group: Group, context: Context) -> list[Kernel]:
    chunks, length = _cut(group.anchor, context)
    if chunks > 1:
        copies = Temp("copies", group.anchor, chunks * group.anchor.aval.size, group.anchor.dtype)
        return [_of_chunks(group, context, length, copies), _together(group, context, chunks, copies)]
    o = KernelBuilder(group, context)
    ev, w, node = o.ev, o.writer, o.node
    fn: Any = node.fn
    base, index, source = node.operands
    rows, count = base.shape[0], index.aval.size
    rest = base.aval.size // rows
    out = context.output(group, node)
    long = context.target.traits.long_items
    in_place = context.ref(node) is context.ref(strip(base))        # the old rows are there already
    first: BoundLike
    last: BoundLike
    low: BoundLike
    high: BoundLike
    if rest >= tuning().scatter_columns * context.target.cores or (not long and rest >= context.target.cores):
        length, whole = -(-rest // parts(context)), tuning().scatter_columns if context.target.traits.vectors else 1
        low, high = o.part("column", rest, -(-length // whole) * whole)
        first, last = 0, rows
    else:
        low, high = 0, rest
        few = tuning().scatter_alone
        alone = rest < tuning().scatter_skip or (count * rest < few and (in_place or base.aval.size < 8 * few))
        first, last = o.part("row", rows, rows if alone and long else -(-rows // (context.target.cores if long else parts(context))))

    def copy(row: Index, column: Index) -> None:
        at = row * rest + column
        ev.store(out, node, at, ev.value(base, at))

    if not in_place:
        with o.loop("row", rows, first, last) as row:
            o.columns("column", rest, low, high, partial(copy, row))
    with o.loop("k", count) as k:
        to = o.clamped(ev.value(index, k), rows)
        mine: AbstractContextManager[Any] = nullcontext()
        if last != rows and to.terms:
            begin, end = bound(first), bound(last)
            test = Infix("&&", Infix(">=", w.at(to), begin.value), Infix("<", w.at(to), end.value))
            mine = w.branch(test, (("between", to, begin, end),))

        def write(k: Index, to: Index, column: Index) -> None:
            value, at = ev.value(source, k * rest + column), to * rest + column
            if fn.joins:
                value = _joined(o, ev.load(node, out, at, (), written=True), value)
            ev.store(out, node, at, value)

        with mine:
            o.columns("column", rest, low, high, partial(write, k, to))
    w.scattered(out.ref)
    kernel = o.finish()
    if in_place:
        others = sum(n.aval.nbytes for n in group.reads if context.ref(n) is not context.ref(node))
        kernel = replace(kernel, flops=source.aval.size, bytes=others + 2 * source.aval.nbytes)
    return [kernel]


def _joined(o: KernelBuilder, a: Expression, b: Expression) -> Local:
    """What a row has, and what is brought to it, put together."""
    fn: Any = o.node.fn
    if fn.name == "scatter_add":
        return o.add(a, b, o.writer.base(o.node))
    if max(a.lanes, b.lanes) > 1:
        a, b = o.ev.vector(a), o.ev.vector(b)
    return o.writer.declare(o.writer.base(o.node), o.ev.joined(o.node, a, b), o.node)


def _cut(node: Node, context: Context) -> tuple[int, int]:
    """Into how many chunks the indices are cut, each with a copy of the result; and the length of all but the last."""
    fn: Any = node.fn
    base, index, source = node.operands
    terms, few = source.aval.size, base.aval.size < base.shape[0] * tuning().scatter_skip
    plain = fn.joins and node.dtype.name in ("float32", "float64", "int32", "int64")
    if not few or not plain or not context.target.traits.long_items or terms < 2 * tuning().scatter_chunk:
        return 1, index.aval.size
    return cut(index.aval.size, min(context.target.cores, 16), terms // tuning().scatter_chunk, terms // (4 * base.aval.size))


def _of_chunks(group: Group, context: Context, length: int, copies: Temp) -> Kernel:
    """What each chunk of `length` indices makes of a copy of the result in which there is nothing yet."""
    o = KernelBuilder(group, context)
    ev, w, node = o.ev, o.writer, o.node
    base, index, source = node.operands
    rows, size, count = base.shape[0], base.aval.size, index.aval.size
    rest, fn = size // rows, _function(node)
    zero = -0.0 if dtype_kind(node.dtype) == "f" else 0          # what changes nothing, not even -0.0
    nothing = Literal(zero if fn.name == "scatter_add" else fn.identity(node.dtype), node.dtype)
    out = o.temp(copies, "copies", "inout")
    chunk = o.item("chunk", -(-count // length))

    def place(i: Index) -> Access:
        return Access(out, chunk * size + i, ev.width, ev.lane)

    o.columns("element", size, 0, size, lambda i: w.store(place(i), ev.vector(nothing) if ev.width > 1 else nothing, node))
    with o.loop("k", count, chunk * length, clipped(chunk * length + length, count, length)) as k:
        to = o.clamped(ev.value(index, k), rows)

        def join(k: Index, to: Index, column: Index) -> None:
            at = place(to * rest + column)
            before = w.declare("before", Load(at, node.dtype, ev.width), node)
            w.store(at, _joined(o, before, ev.value(source, k * rest + column)), node)

        o.columns("column", rest, 0, rest, partial(join, k, to))
    w.scattered(copies)
    return replace(o.finish(), slow=source.aval.size)


def _together(group: Group, context: Context, chunks: int, copies: Temp) -> Kernel:
    """The copies of all chunks, put together with what was there before, in order."""
    o = KernelBuilder(group, context)
    ev, w, node = o.ev, o.writer, o.node
    base, size = node.operands[0], node.aval.size
    out, given = context.output(group, node), o.temp(copies, "copies", "const")
    in_place = context.ref(node) is context.ref(strip(base))

    def join(i: Index) -> None:
        total = ev.load(node, out, i, (), written=True) if in_place else ev.value(base, i)
        for chunk in range(chunks):
            part = w.declare("part", Load(Access(given, i + chunk * size, ev.width, ev.lane), node.dtype, ev.width), node)
            total = _joined(o, total, part)
        ev.store(out, node, i, total)

    o.columns("element", size, *column_part(o, size, 1, tuning().scatter_columns), join)
    return replace(o.finish(), flops=chunks * size, bytes=(chunks + 2) * node.aval.nbytes)


def _function(node: Node) -> Any:
    return node.fn
