"""argmax and argmin: a serial search of each row, the first of equals wins, NaN wins over all. Start at `lower_arg_reduction`.

A long row that would leave cores idle is cut in chunks; a second kernel then looks at the winners of the chunks only, in order.
"""

from __future__ import annotations

from typing import Any

from tracegrad.codegen.kernel.expressions import Value
from tracegrad.codegen.kernel.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.writer import register_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import Owner, parts, view
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.dtypes import int64
from tracegrad.ir import Node


@lowering("arg_reduction")
def lower_arg_reduction(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    assert node is not None
    outer, n, inner = view(node.operands[0], node.attrs["dim"])
    chunks = max(1, min(-(-parts(context) // (outer * inner)), n // tuning().arg_chunk, 256))
    length = -(-n // chunks)
    chunks = -(-n // length)
    if chunks == 1:
        return [_search(group, context, length, None)]
    winners = Temp("winners", node, outer * chunks * inner, int64)
    return [_search(group, context, length, winners), _best_of(group, context, chunks, winners)]


def _better(node: Node, value: str, best: str, is_float: bool) -> str:
    fn: Any = node.fn
    plain = f"{value} {fn.better} {best}"
    return f"{plain} || ({value} != {value} && {best} == {best})" if is_float else plain


def _search(group: Group, context: Context, length: int, winners: Temp | None) -> Kernel:
    """The winner of each chunk of each row."""
    o = Owner(group, context)
    node, w, ev = o.node, o.writer, o.ev
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])
    chunks = -(-n // length)
    chunk = o.item("chunk", chunks)
    share = -(-outer * inner // parts(context)) if context.target.kind == "cpu" else 1
    first, last = o.part("result", outer * inner, share)
    with o.loop("result", outer * inner, first, last) as result:
        row, column = result // inner, result % inner

        def value(i: Index) -> Value:
            return ev.value(x, (row * n + i) * inner + column)

        start = chunk * length
        type_ = register_type(x.dtype)
        found = value(start)
        best = w.declare(type_, "best", found.text, node)
        at = w.declare(w.index, "at", start.c(), node)
        end = (start + length).c()
        stop = end if n % length == 0 else f"({end} < {n} ? {end} : {n})"
        with o.loop("i", n, f"{start.c()} + 1" if start.terms else "1", stop if chunks > 1 else str(n)) as i:
            v = value(i)
            w.line(f"if ({_better(node, v.text, best, x.dtype.kind == 'f')}) {{ {best} = {v.text}; {at} = {i.c()}; }}", node)
        if winners is None:
            ev.store(context.output(group, node), node, result, Value(at, node.dtype))
        else:
            where = (row * chunks + chunk) * inner + column
            w.line(f"{w.buffer(winners, 'winners', int64, 'out')}[{where.c()}] = {at};", node)
    return o.finish()


def _best_of(group: Group, context: Context, chunks: int, winners: Temp) -> Kernel:
    """The best of the winners of a row's chunks."""
    o = Owner(group, context)
    node, w, ev = o.node, o.writer, o.ev
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])
    pointer = w.buffer(winners, "winners", int64, "const")
    result = o.item("result", outer * inner)
    row, column = result // inner, result % inner

    def winner(chunk: Index) -> tuple[str, Value]:
        name = w.declare(w.index, "winner", f"{pointer}[{((row * chunks + chunk) * inner + column).c()}]", node)
        var = Var(name, n)
        w.blocks[-1].vars |= {var}
        return name, ev.value(x, (row * n + var.index) * inner + column)

    at, value = winner(ZERO)
    best = w.declare(register_type(x.dtype), "best", value.text, node)
    index = w.declare(w.index, "found", at, node)
    with o.loop("chunk", chunks, "1") as chunk:
        at, value = winner(chunk)
        w.line(f"if ({_better(node, value.text, best, x.dtype.kind == 'f')}) {{ {best} = {value.text}; {index} = {at}; }}", node)
    ev.store(context.output(group, node), node, result, Value(index, node.dtype))
    return o.finish()
