"""Scatters (add, set, max, min): the owner of a part of the result goes through all indices, in order. Start at `lower_scatter`.

A work-item owns either a range of columns of every row (rows are long) or a range of rows: then it skips the indices of others'
rows. Either way the order of the indices defines the result, and there are no atomics. On a GPU indices are sorted (scatter_gpu.py).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.kernel.ir.expressions import Cast, Expression, Infix, Local, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import BoundLike, bound
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import KernelBuilder, parts
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.graph.ir import Node
from tracegrad.support.tuning import tuning


@lowering("scatter")
def lower_scatter(group: Group, context: Context) -> list[Kernel]:
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
        alone = rest <= tuning().scatter_skip or (count * rest < few and (in_place or base.aval.size < 8 * few))
        first, last = o.part("row", rows, rows if alone and long else -(-rows // (context.target.cores if long else parts(context))))

    def copy(row: Index, column: Index) -> None:
        at = row * rest + column
        ev.store(out, node, at, ev.value(base, at))

    if not in_place:
        with o.loop("row", rows, first, last) as row:
            o.columns("column", rest, low, high, partial(copy, row))
    with o.loop("k", count) as k:
        to = _row(o, index, ev.value(index, k), rows)
        mine: AbstractContextManager[Any] = nullcontext()
        parted = bool(last != rows and to.terms)
        if parted:
            begin, end = bound(first), bound(last)
            test = Infix("&&", Infix(">=", w.at(to), begin.value), Infix("<", w.at(to), end.value))
            mine = w.branch(test, (("between", to, begin, end),))

        def write(k: Index, to: Index, column: Index) -> None:
            value, at = ev.value(source, k * rest + column), to * rest + column
            if fn.joins:
                value = _joined(o, ev.load(node, out, at, (), written=True), value)
            ev.store(out, node, at, value)

        with mine:
            if parted and k.alone is not None:               # what others add, they compute
                w.bind(k.alone)
            o.columns("column", rest, low, high, partial(write, k, to))
    w.scattered(out.ref)
    kernel = o.finish()
    if in_place:
        others = sum(n.aval.nbytes for n in group.reads if context.ref(n) is not context.ref(node))
        kernel = replace(kernel, flops=source.aval.size, bytes=others + 2 * source.aval.nbytes)
    return [kernel]


def _row(o: KernelBuilder, node: Node, index: Expression, rows: int) -> Index:
    """A row number that was read, brought into range. index: what `node` is.

    What this kernel reports where it is out of range is brought there by a branch of the same test. (Sums of 1,000 groups take 0.8 of
    the time that clamping each takes.)
    """
    w, checked = o.writer, strip(node)
    reported = checked.fn.name == "in_range" and checked not in o.group.reads and not checked.attrs["wrap"]
    if rows == 1 or not reported or not o.context.target.traits.long_items:
        return o.clamped(index, rows)
    at = w.variable("at", rows, Cast(index, w.index_dtype), node=o.node)
    with w.branch(Infix("|", Infix("<", index, whole(0, index.dtype)), Infix(">", index, whole(rows - 1, index.dtype)))):
        w.assign(at, o.ev.clamped(index, rows - 1), o.node)
    return at.index


def _joined(o: KernelBuilder, a: Expression, b: Expression) -> Local:
    """What a row has, and what is brought to it, put together."""
    fn: Any = o.node.fn
    if fn.name == "scatter_add":
        return o.add(a, b, o.writer.base(o.node))
    if max(a.lanes, b.lanes) > 1:
        a, b = o.ev.vector(a), o.ev.vector(b)
    return o.writer.declare(o.writer.base(o.node), o.ev.joined(o.node, a, b), o.node)
