"""argmax and argmin: a serial search of each row, the first of equals wins, NaN wins over all. Start at `lower_arg_reduction`.

Rows of a CPU that lie in memory are searched in vectors: each lane has a best of its own, then halves are compared (`_search_lanes`).
Of dimensions that are not the last, and of short rows, each lane searches a row of its own (`_search_side_by_side`). Rows that are a few
vectors, the last of which overlaps the one before, are searched one by one (`_search_rows`). All compare floats as integers (`keys`).
A long row that would leave cores idle is cut in chunks; a second kernel then looks at the winners of the chunks only, in order.
On a GPU work-groups do it (argreduce_gpu.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions import (
    Cast,
    Convert,
    Expression,
    Infix,
    Lanes,
    Literal,
    Load,
    Local,
    Select,
    Splat,
)
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, BoundLike, clipped, rest
from tracegrad.codegen.kernel.ir.vectors import bit_floor, turns
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.rows.shape import vector_width
from tracegrad.codegen.lower.search.keys import key, key_dtype, number_of, plain, same
from tracegrad.codegen.lower.serial import KernelBuilder, column_part, cut, parts, view
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind, int64
from tracegrad.support.tuning import tuning


@lowering("arg_reduction")
def lower_arg_reduction(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    outer, n, inner = view(node.operands[0], node.attrs["dim"])
    chunks, length = cut(n, -(-parts(context) // (outer * inner)), n // tuning().arg_chunk, 256)
    if chunks == 1:
        many = inner >= 4 or (inner == 1 and outer >= 4 and n <= tuning().arg_short)
        width = vector_width(group, context)
        if inner == 1 and width > 1 and tuning().arg_rows <= n < 4 * width and plain(group.anchor.operands[0], context):
            return [_search_rows(group, context)]
        side_by_side = many and plain(group.anchor.operands[0], context)
        return [_search_side_by_side(group, context) if side_by_side else _search(group, context, n, length, None, None)]
    winners = Temp("winners", node, outer * chunks * inner, int64)
    return [_search(group, context, n, length, None, winners), _search(group, context, chunks, chunks, winners, None)]


def _keep_better(o: KernelBuilder, wins: Expression, value: Expression, best: Local, at: Local, number: Expression) -> None:
    """A value that wins is the best so far, and its number the place."""
    with o.writer.branch(wins):
        o.writer.assign(best, value, o.node)
        o.writer.assign(at, number, o.node)


def _search(group: Group, context: Context, count: int, length: int, source: Temp | None, winners: Temp | None) -> Kernel:
    """The winner of each chunk of `length` of a row's `count` elements, or of those whose numbers are in `source`."""
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])
    chunks = -(-count // length)
    chunk = o.item("chunk", chunks)
    share = -(-outer * inner // parts(context)) if context.target.traits.long_items else 1
    first, last = o.part("result", outer * inner, share)
    with o.loop("result", outer * inner, first, last) as result:
        row, column = result // inner, result % inner

        def number(i: Index) -> Index:
            """Of a candidate."""
            if source is None:
                return i
            pointer = w.buffer(source, "winners", int64, "const")
            return w.computed("winner", n, Load(Access(pointer, (row * count + i) * inner + column), int64), node).index

        def value(i: Index) -> Expression:
            return ev.value(x, (row * n + i) * inner + column)

        start = chunk * length
        at_first = number(start)
        width = _lanes(group, context) if source is None else 1
        stop: BoundLike = clipped(start + length, n, length) if chunks > 1 else count
        if width > 1:
            best, place = _search_lanes(o, value, start, stop, width)
            at = w.declare("at", Cast(place, w.index_dtype) if place.dtype != w.index_dtype else place, node)
            left = (length if chunks == 1 else 1) % width
            first = n - left if chunks == 1 else rest(start, stop, width)
            stop = stop if left else 0
        else:
            best = w.declare("best", value(at_first), node)
            at = w.declare("at", w.at(at_first), node)
            first = start + 1 if start.terms else 1
        if stop != 0:
            with o.loop("i", count, first, stop) as i:
                here = number(i)
                mine = value(here) if width == 1 else w.declare("key", _preferred(o, value(here)), node)
                _keep_better(o, better(node, mine, best) if width == 1 else Infix(">", mine, best), mine, best, at, w.at(here))
        if winners is None:
            ev.store(context.output(group, node), node, result, at)
        else:
            where = (row * chunks + chunk) * inner + column
            pointer = w.buffer(winners, "winners", int64, "out")
            w.store(Access(pointer, where), at, node)
    return o.finish()


def _lanes(group: Group, context: Context) -> int:
    """The lanes of a search of rows that lie in memory; 1: it is serial."""
    _, n, inner = view(group.anchor.operands[0], group.anchor.attrs["dim"])
    width = vector_width(group, context)
    return width if plain(group.anchor.operands[0], context) and inner == 1 and n >= 4 * width else 1


def _preferred(o: KernelBuilder, x: Expression) -> Expression:
    """The key of an element, or of each of a vector."""
    fn: Any = o.node.fn
    return key(o, x, fn.better == "<")


def _keep_highest(o: KernelBuilder, mine: Expression, keys: Local, places: Local, numbers: Expression) -> None:
    """Keys that are higher take their lanes' places."""
    w, node = o.writer, o.node
    wins = w.declare("better", Infix(">", mine, keys), node)
    w.assign(keys, Select(wins, mine, keys), node)
    w.assign(places, Select(wins, numbers, places), node)


def _search_rows(group: Group, context: Context) -> Kernel:
    """Row by row: the highest key of each lane, the highest of these, and of the lanes that have it the first place.

    (100,000 rows of 24: 0.3 of the time that as many rows as there are lanes take.)
    """
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    x = node.operands[0]
    outer, n, _ = view(x, node.attrs["dim"])
    width = min(bit_floor(n), vector_width(group, context))
    number = key_dtype(x)
    first, last = o.part("row", outer, -(-outer // parts(context)))
    with o.loop("row", outer, first, last) as row:
        keys, places = _nothing_yet(o, width, Literal(0, number))
        for low, high in ((0, n - n % width), (n - width, n))[:1 + (n % width > 0)]:
            var = Var("i", n)
            with w.loop(var, low, high, width), ev.along(var, width):
                mine = w.declare("key", _preferred(o, ev.vector(ev.value(x, row * n + var.index))), node)
                _keep_highest(o, mine, keys, places, number_of(ev.lanes_of(var.index), number))
        ev.store(context.output(group, node), node, row, _first_of_highest(o, keys, places, n)[1])
    return o.finish()


def _nothing_yet(o: KernelBuilder, width: int, first: Expression) -> tuple[Local, Local]:
    """The lanes' keys, and their places: of the least key there is the first place wins, since no key is higher."""
    w, number = o.writer, key_dtype(o.node.operands[0])
    keys = w.declare("keys", same(-(2 ** (8 * number.itemsize - 1)), number, width), o.node)
    return keys, w.declare("places", Splat(first, width), o.node)


def _first_of_highest(o: KernelBuilder, keys: Local, places: Local, n: int) -> tuple[Local, Local]:
    """The highest key of all lanes, and of those that have it the first place."""
    top = _halved(o, keys, ">")
    found = Select(Infix("==", keys, Splat(top, keys.lanes)), places, same(n, places.dtype, keys.lanes))
    return top, _halved(o, o.writer.declare("places", found, o.node), "<")


def _halved(o: KernelBuilder, x: Local, better: str) -> Local:
    """The best of a vector's lanes."""
    w = o.writer
    while x.lanes > 1:
        low, high = (w.declare(name, Lanes(x, name), o.node) for name in ("lo", "hi"))
        x = w.declare("best", Select(Infix(better, low, high), low, high), o.node)
    return x


def _search_side_by_side(group: Group, context: Context) -> Kernel:
    """Vectors of results that are neighbours, each lane with its best.

    (20 of 16 x 20 x 20, inside a loop: 0.1 of the serial search's time; 100,000 rows of 12: 0.5.)
    """
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    x = node.operands[0]
    outer, n, inner = view(x, node.attrs["dim"])

    def search(row: Index, column: Index) -> None:
        def value(i: Index) -> Expression:
            found = ev.value(x, (row * n + i) * inner + column)
            return ev.vector(found) if ev.width > 1 else found

        start = value(constant(0))
        best = w.declare("best", _preferred(o, start) if ev.width > 1 else start, node)
        at = w.declare("at", same(0, key_dtype(x), ev.width), node)

        def look(i: Index) -> None:
            here, number = value(i), number_of(w.at(i), x.dtype)
            if ev.width > 1:
                _keep_highest(o, w.declare("key", _preferred(o, here), node), best, at, Splat(number, ev.width))
            else:
                _keep_better(o, better(node, here, best), here, best, at, number)

        if inner == 1 and n <= turns(w.target) and w.target.clang_builtins:     # read together (Oclgrind has 255 for 1 then)
            for k in range(1, n):
                look(constant(k))
        elif n > 1:
            with o.loop("i", n, 1) as i:
                look(i)
        result = at if at.dtype == int64 or ev.width == 1 else Convert(at, int64)
        ev.store(context.output(group, node), node, row * inner + column, result)

    if inner == 1:
        o.columns("row", outer, *column_part(o, outer, 1), lambda row: search(row, constant(0)), most=32 // x.dtype.itemsize)
        return o.finish()
    first, last = o.part("row", outer, -(-outer // parts(context)))
    low, high = column_part(o, inner, min(outer, parts(context)), tuning().scatter_columns)
    with o.loop("row", outer, first, last) as row:
        o.columns("column", inner, low, high, partial(search, row))
    return o.finish()


def _search_lanes(
    o: KernelBuilder, value: Callable[[Index], Expression], start: Index, stop: BoundLike, width: int
) -> tuple[Local, Local]:
    """The highest key of whole vectors from `start` on, and its first place. (4096 x 4096, two cores: 0.1 of the serial search's time.)"""
    node, w, ev = o.node, o.writer, o.ev
    x, n = node.operands[0], view(node.operands[0], node.attrs["dim"])[1]
    keys, places = _nothing_yet(o, width, number_of(w.at(start), x.dtype))
    var = Var("i", n)
    with w.loop(var, start, stop, width, whole=True), ev.along(var, width):
        mine = w.declare("key", _preferred(o, ev.vector(value(var.index))), node)
        _keep_highest(o, mine, keys, places, number_of(ev.lanes_of(var.index), x.dtype))
    return _first_of_highest(o, keys, places, n)


def better(node: Node, a: Expression, b: Expression) -> Expression:
    """Whether value a beats value b."""
    fn: Any = node.fn
    found = Infix(fn.better, a, b)
    return Infix("||", found, Infix("&&", Infix("!=", a, a), Infix("==", b, b))) if dtype_kind(a.dtype) == "f" else found
