"""argmax and argmin on GPUs: work-items stride along a row, then a tree in local memory. Start at `searches`.

The first of equals wins, and NaN over all, so the better of two candidates does not depend on the order of comparisons. A row that would
leave cores idle is cut in chunks; a second launch then searches the winners of the chunks.
"""

from __future__ import annotations

from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Prefix, Zeros, element, place, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Bound, BoundLike
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import view
from tracegrad.codegen.lower.workgroup import WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.support.dtypes import dtype_kind, int64
from tracegrad.support.tuning import tuning

_ASKED = 4           # elements that an item asks for together


@lowering("arg_reduction", on="gpu")
def searches(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a search; None where work-items cannot work together."""
    node = group.anchor
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])
    size = room(context, 8 + max(4, register_dtype(x.dtype).itemsize))
    if size < 2:
        return None
    groups = outer * -(-inner // min(32, size)) if inner > 1 else outer
    least = tuning().arg_chunk if inner == 1 else max(2, tuning().arg_chunk // 16)
    chunks = max(1, min(-(-context.target.groups(size) // groups), n // least, 1024))
    length = -(-n // chunks)
    chunks = -(-n // length)
    if chunks == 1:
        return [_search(group, context, size, n, None, None)]
    winners = Temp("winners", node, outer * chunks * inner, int64)
    return [_search(group, context, size, length, None, winners), _search(group, context, size, n, winners, None)]


def better(node: Any, a: Expression, b: Expression) -> Expression:
    """Whether value a beats value b."""
    plain = Infix(node.fn.better, a, b)
    nan = Infix("&&", Infix("!=", a, a), Infix("==", b, b))
    return Infix("||", plain, nan) if dtype_kind(node.operands[0].dtype) == "f" else plain


def _search(group: Group, context: Context, size: int, length: int, source: Temp | None, winners: Temp | None) -> Kernel:
    """The winners of chunks of `length` elements of each row, among all of them, or among those in `source`."""
    o = WorkGroup(group, context)
    w, node = o.writer, o.node
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])
    count = n if source is None else source.size // (outer * inner)            # candidates of a row
    chunks = -(-n // length)
    type_, index = register_type(x.dtype), w.index
    if inner > 1:
        lanes = min(32, size, 1 << (inner - 1).bit_length())                   # columns side by side
        steps = max(1, min(size // lanes, 1 << (min(length, count) - 1).bit_length()))
        lines = 1
    else:
        lanes = 1
        most = min(length, count)
        steps = min(size, 1 << (most - 1).bit_length(), 32)
        while 2 * steps <= min(size, most) and (most > 32 * steps or outer * steps < context.target.items):
            steps *= 2
        lines = max(1, min(size // steps, 1 << (outer - 1).bit_length())) if chunks == 1 else 1
    values, places = o.shared("values", type_, lanes * steps * lines), o.shared("numbers", index, lanes * steps * lines)
    item = o.number("item", steps, 0 if inner == 1 else 1, "local")
    lane = o.number("lane", lanes, 0, "local") if inner > 1 else None
    column = o.number("column", inner, 0, "global") if inner > 1 else None
    line = o.number("line", lines, 1, "local") if lines > 1 else None
    chunk = o.number("chunk", chunks, 0 if inner == 1 else 1, "group") if chunks > 1 else None
    row = o.number("row", outer, 1 if inner == 1 else 2, "global") if outer > 1 else None
    row_at = row.index if row is not None else ZERO
    column_at = column.index if column is not None else ZERO
    guards = ([(column_at, inner)] if inner % lanes else []) + ([(row_at, outer)] if outer % lines else [])
    first, stop = o.ends(chunk, length, count)
    best, at = w.let("best", Zeros(x.dtype), changes=True), w.let("at", whole(-1, w.index_dtype), changes=True)

    def compare(candidates: list[Index]) -> None:
        """These candidates, in order; all are asked for before the first is compared."""
        wheres = candidates
        if source is not None:
            found = o.temp(source, "winners", "const")
            wheres = [w.known(f"number_{k}", n, element(found, (row_at * count + i) * inner + column_at)).index
                      for k, i in enumerate(candidates)]
        values = [o.value(x, (row_at * n + where) * inner + column_at) for where in wheres]
        for where, value in zip(wheres, values, strict=True):
            with w.branch(Infix("||", Infix("<", at, 0), better(node, value, best))):
                w.assign(best, value, node)
                w.assign(at, where, node)

    with o.where(*guards):
        begin: BoundLike = first + item.index
        if min(length, count) >= _ASKED * steps:
            blocks = Infix("/", Infix("-", w.at(stop), w.at(first)), _ASKED * steps)
            block = Var("block", -(-min(length, count) // (_ASKED * steps)))
            with w.loop(block, 0, Bound(blocks, None, None)):
                before = first + block.index * (_ASKED * steps) + item.index
                compare([w.known(f"at_{k}", count, w.at(before + k * steps)).index for k in range(_ASKED)])
            begin = Bound(Infix("+", w.at(first + item.index), Infix("*", blocks, _ASKED * steps)), None, None)
        i = Var("i", count)
        with w.loop(i, begin, stop, steps):
            compare([i.index])
    to = item.index * lanes + (lane.index if lane is not None else 0) + (line.index * steps if line is not None else 0)
    w.store(place(values, to), best)
    w.store(place(places, to), at)
    o.barrier()
    with w.halving(item, steps) as half_size:
        (a, mine), (b, others) = ((element(values, j), element(places, j)) for j in (to, to + half_size * lanes))
        earlier = Infix("&&", Prefix("!", better(node, a, b)), Infix("<", others, mine))
        with w.branch(Infix("&&", Infix(">=", others, 0), Infix("||", better(node, b, a), earlier))):
            w.store(place(values, to), b)
            w.store(place(places, to), others)
    result = (row_at * chunks + (chunk.index if chunk is not None else 0)) * inner + column_at
    out = o.temp(winners, "winners", "out") if winners is not None else o.output()
    with w.branch(Infix("==", item, 0), (("range", item.index, 0, 1),)), o.where(*guards):
        w.store(place(out, result), element(places, to), node)
    sizes = (-(-inner // lanes) * lanes, chunks * steps, outer) if inner > 1 else (chunks * steps, -(-outer // lines) * lines)
    local = (lanes, steps, 1) if inner > 1 else (steps, lines)
    return o.done(sizes, local, 0 if source is None else source.size)
