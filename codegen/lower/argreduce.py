"""argmax and argmin: a serial search of each row, the first of equals wins, NaN wins over all. Start at `lower_arg_reduction`.

A long row that would leave cores idle is cut in chunks; a second kernel then looks at the winners of the chunks only, in order.
On a GPU work-groups do it (argreduce_gpu.py).
"""

from __future__ import annotations

from typing import Any

from tracegrad.codegen.kernel.expressions import Expression, Infix, Load, Local
from tracegrad.codegen.kernel.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.statements import Access, clipped
from tracegrad.codegen.lower.argreduce_gpu import searches
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import KernelBuilder, parts, view
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.dtypes import int64


@lowering("arg_reduction")
def lower_arg_reduction(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    if context.target.kind == "gpu":
        kernels = searches(group, context)
        if kernels is not None:
            return kernels
    outer, n, inner = view(node.operands[0], node.attrs["dim"])
    chunks = max(1, min(-(-parts(context) // (outer * inner)), n // tuning().arg_chunk, 256))
    length = -(-n // chunks)
    chunks = -(-n // length)
    if chunks == 1:
        return [_search(group, context, length, None)]
    winners = Temp("winners", node, outer * chunks * inner, int64)
    return [_search(group, context, length, winners), _best_of(group, context, chunks, winners)]


def _keep_better(o: KernelBuilder, value: Expression, best: Local, at: Local, number: Expression) -> None:
    """What is better than the best so far takes its place."""
    fn: Any = o.node.fn
    better: Expression = Infix(fn.better, value, best)
    if value.dtype.kind == "f":
        better = Infix("||", better, Infix("&&", Infix("!=", value, value), Infix("==", best, best)))
    with o.writer.branch(better):
        o.writer.assign(best, value, o.node)
        o.writer.assign(at, number, o.node)


def _search(group: Group, context: Context, length: int, winners: Temp | None) -> Kernel:
    """The winner of each chunk of each row."""
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])
    chunks = -(-n // length)
    chunk = o.item("chunk", chunks)
    share = -(-outer * inner // parts(context)) if context.target.kind == "cpu" else 1
    first, last = o.part("result", outer * inner, share)
    with o.loop("result", outer * inner, first, last) as result:
        row, column = result // inner, result % inner

        def value(i: Index) -> Expression:
            return ev.value(x, (row * n + i) * inner + column)

        start = chunk * length
        best = w.declare("best", value(start), node)
        at = w.declare("at", w.at(start), node)
        stop = clipped(start + length, n, length)
        with o.loop("i", n, start + 1 if start.terms else 1, stop if chunks > 1 else n) as i:
            _keep_better(o, value(i), best, at, w.at(i))
        if winners is None:
            ev.store(context.output(group, node), node, result, at)
        else:
            where = (row * chunks + chunk) * inner + column
            pointer = w.buffer(winners, "winners", int64, "out")
            w.store(Access(pointer, where), at, node)
    return o.finish()


def _best_of(group: Group, context: Context, chunks: int, winners: Temp) -> Kernel:
    """The best of the winners of a row's chunks."""
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])
    pointer = w.buffer(winners, "winners", int64, "const")
    result = o.item("result", outer * inner)
    row, column = result // inner, result % inner

    def winner(chunk: Index) -> tuple[Var, Expression]:
        where = (row * chunks + chunk) * inner + column
        var = w.computed("winner", n, Load(Access(pointer, where), int64), node)
        return var, ev.value(x, (row * n + var.index) * inner + column)

    at, value = winner(ZERO)
    best = w.declare("best", value, node)
    index = w.declare("found", w.at(at), node)
    with o.loop("chunk", chunks, 1) as chunk:
        at, value = winner(chunk)
        _keep_better(o, value, best, index, w.at(at))
    ev.store(context.output(group, node), node, result, index)
    return o.finish()
