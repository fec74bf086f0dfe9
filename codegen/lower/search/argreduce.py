"""argmax and argmin: a serial search of each row, the first of equals wins, NaN wins over all. Start at `lower_arg_reduction`.

Rows of a CPU that lie in memory are searched in vectors: each lane has a best of its own, and then halves are compared (`_search_lanes`).
Of dimensions that are not the last, and of short rows, each lane searches a row of its own (`_search_side_by_side`). Rows that are a few
vectors, the last of which overlaps the one before, are searched one by one (`_search_rows`). Both compare floats as integers (`_key`).
A long row that would leave cores idle is cut in chunks; a second kernel then looks at the winners of the chunks only, in order.
On a GPU work-groups do it (argreduce_gpu.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions import (
    Bits,
    Cast,
    Convert,
    Expression,
    Infix,
    Lanes,
    Literal,
    Load,
    Local,
    Prefix,
    Select,
    Splat,
)
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, BoundLike, clipped, rest
from tracegrad.codegen.kernel.ir.vectors import bit_floor, index_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.rows.shape import vector_width
from tracegrad.codegen.lower.serial import KernelBuilder, column_part, cut, parts, view
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, dtype_kind, int64
from tracegrad.support.tuning import tuning


@lowering("arg_reduction")
def lower_arg_reduction(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    outer, n, inner = view(node.operands[0], node.attrs["dim"])
    chunks, length = cut(n, -(-parts(context) // (outer * inner)), n // tuning().arg_chunk, 256)
    if chunks == 1:
        many = inner >= 4 or (inner == 1 and outer >= 4 and n <= tuning().arg_short)
        width = vector_width(group, context)
        if inner == 1 and width > 1 and tuning().arg_rows <= n < 4 * width and _plain(group, context):
            return [_search_rows(group, context)]
        side_by_side = many and _plain(group, context)
        return [_search_side_by_side(group, context) if side_by_side else _search(group, context, n, length, None, None)]
    winners = Temp("winners", node, outer * chunks * inner, int64)
    return [_search(group, context, n, length, None, winners), _search(group, context, chunks, chunks, winners, None)]


def _keep_better(o: KernelBuilder, value: Expression, best: Local, at: Local, number: Expression) -> None:
    """What is better than the best so far takes its place."""
    with o.writer.branch(better(o.node, value, best)):
        o.writer.assign(best, value, o.node)
        o.writer.assign(at, number, o.node)


def _keep_better_lanes(o: KernelBuilder, values: Expression, bests: Local, places: Local, numbers: Expression) -> None:
    """The same in each lane."""
    w, node = o.writer, o.node
    wins = w.declare("better", better(node, values, bests), node)
    w.assign(bests, Select(wins, values, bests), node)
    w.assign(places, Select(wins, numbers, places), node)


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
        best = w.declare("best", value(at_first), node)
        at = w.declare("at", w.at(at_first), node)
        stop: BoundLike = clipped(start + length, n, length) if chunks > 1 else count
        width = _lanes(group, context) if source is None else 1
        if width > 1:
            _search_lanes(o, value, best, at, start, stop, width)
            left = (length if chunks == 1 else 1) % width
            if chunks == 1 and not left:
                stop = 0
            first = n - left if chunks == 1 else rest(start, stop, width)
        else:
            first = start + 1 if start.terms else 1
        if stop != 0:
            with o.loop("i", count, first, stop) as i:
                here = number(i)
                _keep_better(o, value(here), best, at, w.at(here))
        if winners is None:
            ev.store(context.output(group, node), node, result, at)
        else:
            where = (row * chunks + chunk) * inner + column
            pointer = w.buffer(winners, "winners", int64, "out")
            w.store(Access(pointer, where), at, node)
    return o.finish()


def _plain(group: Group, context: Context) -> bool:
    """Whether it may be searched in vectors. The number of an element has to be as wide as the element."""
    x = group.anchor.operands[0]
    return context.target.traits.vectors and x.dtype.name in ("float32", "float64", "int32", "int64") and index_type(x.aval.size) == "int"


def _lanes(group: Group, context: Context) -> int:
    """The lanes of a search of rows that lie in memory; 1: it is serial."""
    _, n, inner = view(group.anchor.operands[0], group.anchor.attrs["dim"])
    width = vector_width(group, context)
    return width if _plain(group, context) and inner == 1 and n >= 4 * width else 1


def _number(x: Expression, dtype: DType) -> Expression:
    """The number of an element, as wide as the element."""
    number = np.dtype(f"i{dtype.itemsize}")
    return x if x.dtype == number else Convert(x, number) if x.lanes > 1 else Cast(x, number)


def _key(o: KernelBuilder, x: Expression) -> Expression:
    """Integers in the order in which a search prefers elements: NaN first, and equals are equal (of floats; integers are as they are)."""
    fn: Any = o.node.fn
    if dtype_kind(x.dtype) != "f":
        return Prefix("~", x) if fn.better == "<" else x
    w, number, bits = o.writer, np.dtype(f"i{x.dtype.itemsize}"), 8 * x.dtype.itemsize
    highest = _same(2 ** (bits - 1) - 1, number, x.lanes)
    found = w.declare("bits", Bits(Infix("+", x, _same(0.0, x.dtype, x.lanes)), number), o.node)         # -0.0 is 0.0
    key: Expression = Infix("^", found, Infix("&", Infix(">>", found, _same(bits - 1, number, x.lanes)), highest))
    return Select(Infix("!=", x, x), highest, Prefix("~", key) if fn.better == "<" else key)


def _same(value: float, dtype: DType, lanes: int) -> Expression:
    return Splat(Literal(value, dtype), lanes) if lanes > 1 else Literal(value, dtype)


def _keep_highest(o: KernelBuilder, key: Expression, keys: Local, places: Local, numbers: Expression) -> None:
    """Keys that are higher take their lanes' places."""
    w, node = o.writer, o.node
    wins = w.declare("better", Infix(">", key, keys), node)
    w.assign(keys, Select(wins, key, keys), node)
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
    number = np.dtype(f"i{x.dtype.itemsize}")
    first, last = o.part("row", outer, -(-outer // parts(context)))
    with o.loop("row", outer, first, last) as row:
        keys = w.declare("keys", _same(-(2 ** (8 * number.itemsize - 1)), number, width), node)
        places = w.declare("places", _same(0, number, width), node)
        for low, high in ((0, n - n % width), (n - width, n))[:1 + (n % width > 0)]:
            var = Var("i", n)
            with w.loop(var, low, high, width), ev.along(var, width):
                key = w.declare("key", _key(o, ev.vector(ev.value(x, row * n + var.index))), node)
                _keep_highest(o, key, keys, places, _number(ev.lanes_of(var.index), number))
        top = _halved(o, keys, ">")
        found = w.declare("places", Select(Infix("==", keys, Splat(top, width)), places, _same(n, number, width)), node)
        ev.store(context.output(group, node), node, row, _halved(o, found, "<"))
    return o.finish()


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
        best = w.declare("best", _key(o, start) if ev.width > 1 else start, node)
        at = w.declare("at", _same(0, np.dtype(f"i{best.dtype.itemsize}"), ev.width), node)
        if n > 1:
            with o.loop("i", n, 1) as i:
                here, number = value(i), _number(w.at(i), best.dtype)
                if ev.width > 1:
                    _keep_highest(o, w.declare("key", _key(o, here), node), best, at, Splat(number, ev.width))
                else:
                    _keep_better(o, here, best, at, number)
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
    o: KernelBuilder, value: Callable[[Index], Expression], best: Local, at: Local, start: Index, stop: BoundLike, width: int
) -> None:
    """Search whole vectors from `start` on, then among the lanes' bests. (4096 x 4096, two cores: 0.1 of the serial search's time.)"""
    node, w, ev = o.node, o.writer, o.ev
    bests = w.declare("bests", Splat(best, width), node)
    places = w.declare("places", Splat(_number(at, best.dtype), width), node)
    var = Var("i", view(node.operands[0], node.attrs["dim"])[1])
    with w.loop(var, start, stop, width, whole=True), ev.along(var, width):
        x, here = ev.vector(value(var.index)), _number(ev.lanes_of(var.index), best.dtype)
        _keep_better_lanes(o, x, bests, places, here)
    a, b = bests, places
    while width > 1:
        width //= 2
        other, found = (w.declare(name, Lanes(x, "hi"), node) for name, x in (("other", a), ("found", b)))
        a, b = (w.declare(name, Lanes(x, "lo"), node) for name, x in (("best", a), ("at", b)))
        either, both = _words(a)
        equal: Expression = Infix("==", other, a)
        if dtype_kind(a.dtype) == "f":
            equal = Infix(either, equal, Infix(both, Infix("!=", other, other), Infix("!=", a, a)))
        wins = w.declare("better", Infix(either, better(o.node, other, a), Infix(both, equal, Infix("<", found, b))), node)
        a = w.declare("best", Select(wins, other, a), node)
        b = w.declare("at", Select(wins, found, b), node)
    w.assign(best, a, node)
    w.assign(at, Cast(b, w.index_dtype) if b.dtype != w.index_dtype else b, node)


def better(node: Node, a: Expression, b: Expression) -> Expression:
    """Whether value a beats value b."""
    fn: Any = node.fn
    plain, (either, both) = Infix(fn.better, a, b), _words(a)
    return Infix(either, plain, Infix(both, Infix("!=", a, a), Infix("==", b, b))) if dtype_kind(a.dtype) == "f" else plain


def _words(x: Expression) -> tuple[str, str]:
    """C's "or" and "and" of comparisons of x."""
    return ("||", "&&") if x.lanes == 1 else ("|", "&")

