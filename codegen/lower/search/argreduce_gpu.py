"""argmax and argmin on GPUs: work-items stride along a row, then a tree in local memory. Start at `searches`.

The first of equals wins, and NaN over all, so the better of two candidates does not depend on the order of comparisons. A row that would
leave cores idle is cut in chunks; a second launch then searches the winners of the chunks.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.expressions import Infix, Prefix, Zeros, element, place, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Bound, BoundLike
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.search.argreduce import better
from tracegrad.codegen.lower.serial import cut, view
from tracegrad.codegen.lower.workgroup import WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.support.dtypes import int64
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
    chunks, length = cut(n, -(-context.target.groups(size) // groups), n // least, 1024)
    if chunks == 1:
        return [_search(group, context, size, n, None, None)]
    winners = Temp("winners", node, outer * chunks * inner, int64)
    return [_search(group, context, size, length, None, winners), _search(group, context, size, n, winners, None)]


def _search(group: Group, context: Context, size: int, length: int, source: Temp | None, winners: Temp | None) -> Kernel:
    """The winners of chunks of `length` elements of each row, among all of them, or among those in `source`."""
    o = WorkGroup(group, context)
    w, node = o.writer, o.node
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])
    count = n if source is None else source.size // (outer * inner)            # candidates of a row
    chunks = -(-n // length)
    type_, index = register_type(x.dtype), w.index
    most = min(length, count)
    if inner > 1:
        beside = min(32, size, 1 << (inner - 1).bit_length())                  # columns
        steps = max(1, min(size // beside, 1 << (most - 1).bit_length()))
    else:
        steps = min(size, 1 << (most - 1).bit_length(), 32)
        while 2 * steps <= min(size, most) and (most > 32 * steps or outer * steps < context.target.items):
            steps *= 2
        beside = max(1, min(size // steps, 1 << (outer - 1).bit_length())) if chunks == 1 else 1
    values, places = o.shared("values", type_, beside * steps), o.shared("numbers", index, beside * steps)
    spot = o.spot(outer, inner, steps, beside, chunks)
    item, to = spot.item, spot.here
    first, stop = o.ends(spot.chunk, length, count)
    best, at = w.let("best", Zeros(x.dtype), changes=True), w.let("at", whole(-1, w.index_dtype), changes=True)

    def compare(candidates: list[Index]) -> None:
        """These candidates, in order; all are asked for before the first is compared."""
        wheres = candidates
        if source is not None:
            found = o.temp(source, "winners", "const")
            wheres = [w.known(f"number_{k}", n, element(found, (spot.row * count + i) * inner + spot.column)).index
                      for k, i in enumerate(candidates)]
        values = [o.value(x, (spot.row * n + where) * inner + spot.column) for where in wheres]
        for where, value in zip(wheres, values, strict=True):
            with w.branch(Infix("||", Infix("<", at, 0), better(node, value, best))):
                w.assign(best, value, node)
                w.assign(at, where, node)

    with o.where(*spot.there):
        begin: BoundLike = first + item
        if most >= _ASKED * steps:
            blocks = Infix("/", Infix("-", w.at(stop), w.at(first)), _ASKED * steps)
            block = Var("block", -(-most // (_ASKED * steps)))
            with w.loop(block, 0, Bound(blocks, None, None)):
                before = first + block.index * (_ASKED * steps) + item
                compare([w.known(f"at_{k}", count, w.at(before + k * steps)).index for k in range(_ASKED)])
            begin = Bound(Infix("+", w.at(first + item), Infix("*", blocks, _ASKED * steps)), None, None)
        i = Var("i", count)
        with w.loop(i, begin, stop, steps):
            compare([i.index])
    w.store(place(values, to), best)
    w.store(place(places, to), at)

    def put(to: Index, of: Index) -> None:
        (a, mine), (b, others) = ((element(values, j), element(places, j)) for j in (to, of))
        earlier = Infix("&&", Prefix("!", better(node, a, b)), Infix("<", others, mine))
        with w.branch(Infix("&&", Infix(">=", others, 0), Infix("||", better(node, b, a), earlier))):
            w.store(place(values, to), b)
            w.store(place(places, to), others)

    o.tree(spot, put)
    out = o.temp(winners, "winners", "out") if winners is not None else o.output()
    with o.first_of(spot):
        w.store(place(out, (spot.row * chunks + spot.chunk) * inner + spot.column), element(places, to), node)
    return o.done(0 if source is None else source.size)
