"""Scatters on GPUs: the indices are sorted, then each element of the result adds up its own. Start at `scatters`.

Sorting is stable (radix.py), so equal indices stay in order, and results do not depend on that of work-items: no atomics. An item finds
where its row begins among the sorted indices, and goes on as long as they are its row's. Where very many could be (a word of each sentence,
a histogram of few bins), the sorted ones are cut in parts, and a work-group adds up those that are all one row's; an item takes such a sum
in one step. What is set is the last of a row's. Of few indices each item looks at all.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir.expressions import Call, Cast, Expression, Infix, Literal, Load, Local, Select, element, place, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Array
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.search.radix import Keys, Sorted, by_digits
from tracegrad.codegen.lower.search.scatter_exact import adds_exactly, in_place, old
from tracegrad.codegen.lower.serial import cut, scratch
from tracegrad.codegen.lower.workgroup import Spot, WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.tuning import tuning


@lowering("scatter", on="gpu")
def scatters(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a scatter; None where they are those of parts' owners."""
    node = group.anchor
    base, index, _ = node.operands
    rows, count = base.shape[0], index.aval.size
    if count <= tuning().scatter_few:
        return [_rows(group, context, None, None, 1)]
    if count >= 1 << 31 or rows >= 1 << 31:
        return None
    for find in (_few_rows, adds_exactly):
        if (kernels := find(group, context)) is not None:
            return kernels

    def row(o: WorkGroup, at: Index) -> Expression:
        return o.writer.let("key", Cast(o.ev.clamped(o.value(index, at), rows - 1), np.dtype(np.uint32)), node)

    found = by_digits(group, context, 1, count, Keys(False, max(1, (rows - 1).bit_length()), row), different=rows)
    if found is None:
        return None
    kernels = found.kernels
    # The parts of a row's n indices, and what is left of them at both ends, are least where a part has about the root of n.
    part = max(tuning().scatter_part, 1 << (count.bit_length() // 2))
    sums = None
    if _joins(node) and count >= 8 * part:
        sums = Temp("part_sums", node, count // part * (base.aval.size // rows), scratch(node.dtype))
        kernels.append(_sums(group, context, found.order, sums, part))
    return [*kernels, _rows(group, context, found, sums, part)]


def _joined(o: WorkGroup, a: Expression, b: Expression) -> Expression:
    fn: Any = o.node.fn
    if fn.name == "scatter_add":
        return Infix("|" if o.node.dtype.kind == "b" else "+", a, b)
    return o.ev.joined(o.node, a, b)


def _nothing(o: WorkGroup) -> Expression:
    """What changes nothing that it is put together with, not even -0.0."""
    fn: Any = o.node.fn
    if fn.name == "scatter_add":
        return Literal(-0.0 if dtype_kind(o.node.dtype) == "f" else 0, o.node.dtype)
    return Literal(fn.identity(o.node.dtype), o.node.dtype)


def _joins(node: Node) -> bool:
    return node.fn.joins  # type: ignore[attr-defined, no-any-return]


def _sums(group: Group, context: Context, order: Temp, sums: Temp, part: int) -> Kernel:
    """What the parts of the sorted indices that are all one row's add up: a part and some columns a work-group, with a tree at the end."""
    o = WorkGroup(group, context)
    w, node = o.writer, o.node
    base, index, source = node.operands
    rest, count = base.aval.size // base.shape[0], index.aval.size
    size = room(context, 8)
    across = min(32, size, 1 << (rest - 1).bit_length())
    lines = min(size // across, 1 << (part.bit_length() - 1))
    array = o.shared("tile", register_type(node.dtype), across * lines)
    spot = o.spot(1, rest, lines, across, count // part)
    column = spot.column
    places, out = o.temp(order, "sorted_order", "const"), o.temp(sums, "part_sums", "out")
    first = spot.chunk * part
    ends = [w.known(name, count, element(places, at)) for name, at in (("begin", first), ("end", first + part - 1))]
    same: Expression = Infix("==", *[o.ev.clamped(o.value(index, at.index), base.shape[0] - 1) for at in ends])
    known = (("range", column, 0, rest),) if rest % across else ()
    all_ = w.let("all", Infix("&&", Infix("<", column, rest), same) if known else same)
    total = w.let("total", _nothing(o), node, changes=True)
    e = Var("e", count)
    with o.only(all_, column, known=known), w.loop(e, first + spot.item, first + part, lines):
        at = w.known("number", count, element(places, e))
        w.assign(total, _joined(o, total, o.value(source, at.index * rest + column)), node)
    _add_up(o, array, total, spot)
    with w.branch(Infix("&&", all_, Infix("==", spot.item, 0)), (("range", spot.item, 0, 1), *known)):
        w.store(place(out, spot.chunk * rest + column), Load(place(array, spot.first), node.dtype), node)
    return o.done(source.aval.size)


def _add_up(o: WorkGroup, array: Array, total: Local, spot: Spot) -> None:
    """What the items' totals add up to, in the first of them."""
    o.writer.store(place(array, spot.here), total)
    o.tree(spot, lambda to, of: o.writer.store(place(array, to), _joined(o, *(Load(place(array, at), o.node.dtype) for at in (to, of)))))


def _few_rows(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a scatter to so few rows that each item keeps a total of each in local memory; None where it is no such one.

    A chunk of the indices, and some columns, is a work-group's: its items add up their own indices, in order, then these totals.
    """
    node = group.anchor
    base, index, _ = node.operands
    rows, count = base.shape[0], index.aval.size
    rest = base.aval.size // rows
    size = room(context, rows * max(4, register_dtype(node.dtype).itemsize))
    across = min(32, size, 1 << (rest - 1).bit_length())
    lines = size // across
    if not _joins(node) or size < max(2, tuning().few_rows_items) or count < 8 * lines:
        return None
    blocks = -(-rest // across)
    chunks, length = cut(count, -(-context.target.groups(size) // blocks), count // (8 * lines))
    sums = Temp("chunk_sums", node, chunks * base.aval.size, scratch(node.dtype))
    return [_totals(group, context, sums, size, across, length), _whole(group, context, sums, chunks)]


def _totals(group: Group, context: Context, sums: Temp, size: int, across: int, length: int) -> Kernel:
    """What each chunk of `length` indices adds to each row."""
    o = WorkGroup(group, context)
    w, node = o.writer, o.node
    base, index, source = node.operands
    rows, count = base.shape[0], index.aval.size
    rest, lines, chunks = base.aval.size // rows, size // across, -(-count // length)
    array = o.shared("tile", register_type(node.dtype), rows * size)
    spot, out = o.spot(1, rest, lines, across, chunks), o.temp(sums, "chunk_sums", "out")
    with o.times("e", rows) as at_row:
        w.store(place(array, at_row * size + spot.here), _nothing(o))
    first, stop = o.ends(spot.chunk, length, count)
    i = Var("i", count)
    with o.where(*spot.there), w.loop(i, first + spot.item, stop, lines):
        to = w.known("to", rows, o.ev.clamped(o.value(index, i.index), rows - 1))
        at = to.index * size + spot.here
        w.store(place(array, at), _joined(o, Load(place(array, at), node.dtype), o.value(source, i.index * rest + spot.column)), node)

    def put(to: Index, of: Index) -> None:
        with o.times("e", rows) as at_row:
            a, b = (Load(place(array, at_row * size + at), node.dtype) for at in (to, of))
            w.store(place(array, at_row * size + to), _joined(o, a, b))

    o.tree(spot, put)
    e = Var("e", rows)
    with o.where(*spot.there), w.loop(e, spot.item, rows, lines):
        to_ = (spot.chunk * rows + e.index) * rest + spot.column
        w.store(place(out, to_), Load(place(array, e.index * size + spot.first), node.dtype), node)
    return o.done(source.aval.size)


def _whole(group: Group, context: Context, sums: Temp, chunks: int) -> Kernel:
    """What all chunks add to each element: some items an element, and a tree at the end."""
    o = WorkGroup(group, context)
    node, w = o.node, o.writer
    base = node.operands[0]
    size = base.aval.size
    most = room(context, 8)
    across = min(32, most, 1 << (size - 1).bit_length())
    while across > 8 and -(-size // across) * most < context.target.items:         # 8 are a sector of memory
        across //= 2
    lines = max(1, min(most // across, 1 << (chunks - 1).bit_length()))
    array = o.shared("tile", register_type(node.dtype), across * lines)
    spot, summed = o.spot(1, size, lines, across), o.temp(sums, "chunk_sums", "const")
    total = w.let("total", _nothing(o), node, changes=True)
    e = Var("e", chunks)
    with o.where(*spot.there), w.loop(e, spot.item, chunks, lines):
        w.assign(total, _joined(o, total, Load(place(summed, e.index * size + spot.column), node.dtype)), node)
    _add_to_old(o, array, total, spot)
    return o.done(sums.size)


def _add_to_old(o: WorkGroup, array: Array, total: Local, spot: Spot) -> None:
    """What the items' totals add up to is added to an element of the result."""
    _add_up(o, array, total, spot)
    with o.first_of(spot):
        all_ = Load(place(array, spot.first), o.node.dtype)
        o.writer.store(place(o.output(), spot.column), _joined(o, old(o, spot.column), all_), o.node)


@dataclass
class _Element:
    """An element of the result while its row's are added to it. found: whether there was any, where that matters."""

    o: WorkGroup
    column: Index
    to: Var
    total: Local
    found: Local | None

    def add(self, value: Expression) -> None:
        o = self.o
        o.writer.assign(self.total, _joined(o, self.total, value) if _joins(o.node) else value, o.node)
        if self.found is not None:
            o.writer.assign(self.found, 1)

    def take(self, number: Index) -> None:
        """Add element `number` of the source."""
        source = self.o.node.operands[2]
        rest = source.aval.size // self.o.node.operands[1].aval.size
        self.add(self.o.value(source, number * rest + self.column))


def _sorted_ones(x: _Element, found: Sorted, sums: Temp | None, part: int, mine: Index, lines: int) -> None:
    """All of the row's: they lie side by side among the sorted indices. What is set is the last of them."""
    o, w, count = x.o, x.o.writer, x.o.node.operands[1].aval.size
    assert found.begins is not None
    assert found.ends is not None
    places = o.temp(found.order, "sorted_order", "const")
    high = w.known("high", count + 1, element(o.temp(found.ends, "key_ends", "const"), x.to))
    if not _joins(o.node):
        with w.branch(Infix(">", high, 0)):
            x.take(w.known("number", count, element(places, high.index - 1)).index)
        return
    low = w.known("low", count + 1, Call("min", element(o.temp(found.begins, "key_begins", "const"), x.to), high))
    e = Var("e", count)
    if sums is None:
        with w.loop(e, low.index + mine, high, lines):
            x.take(w.known("number", count, element(places, e)).index)
        return
    begin = w.known("begin", count // part + 1, (low.index + part - 1) // part, "what is in whole parts")
    end = w.known("end", count // part + 1, Call("max", begin, high.index // part))
    before = w.known("before", count + 1, w.least(begin.index * part, high), "what is before and behind")
    skipped = w.known("skipped", count + 1, end.index * part - before.index)
    all_ = w.known("all", count + 1, Select(Infix(">", end, begin), high.index - skipped.index, high))
    summed, e = o.temp(sums, "part_sums", "const"), Var("e", count // part)
    rest = sums.size // (count // part)
    with w.loop(e, begin.index + mine, end, lines):
        x.add(Load(place(summed, e.index * rest + x.column), o.node.dtype))
    e = Var("e", count)
    with w.loop(e, low.index + mine, all_, lines):
        behind = Infix("&&", Infix(">", end, begin), Infix(">=", e, before))
        x.take(w.known("number", count, element(places, Select(behind, e.index + skipped.index, e))).index)


def _rows(group: Group, context: Context, found: Sorted | None, sums: Temp | None, part: int) -> Kernel:
    """An element of the result an item, neighbours side by side in a row; of few elements several items, which add up in local memory.

    sums: of parts of the sorted indices.
    """
    o = WorkGroup(group, context)
    node, w, ev = o.node, o.writer, o.ev
    base, index, source = node.operands
    rows, count, size = base.shape[0], index.aval.size, base.aval.size
    rest = size // rows
    most, lines = room(context, 8), 1
    if _joins(node) and found is not None:
        while lines < 32 and 8 * lines < most and 2 * lines * size <= context.target.items and lines * rows < count:
            lines *= 2
    across = most // lines if lines > 1 else min(tuning().owners, context.target.max_work_group)
    across = min(across, 1 << (size - 1).bit_length())       # of one element one item: its number is a constant, which no guard tests
    if lines > 1 and found is not None:
        array, spot = o.shared("tile", register_type(node.dtype), across * lines), o.spot(1, size, lines, across)
        total, i = w.let("total", _nothing(o), node, changes=True), spot.column
        with o.where(*spot.there):
            _sorted_ones(_Element(o, i % rest, w.known("to", rows, i // rest), total, None), found, sums, part, spot.item, lines)
        _add_to_old(o, array, total, spot)
        return o.done(min(source.aval.size, 2 * part * size) + (0 if sums is None else sums.size))
    i, inside = o.elements(size, across)
    with inside:
        to = w.known("to", rows, i // rest)
        any_ = w.let("found", whole(0), changes=True) if in_place(o) else None       # an element that no index names stays as it is
        x = _Element(o, i % rest, to, w.let("total", old(o, i), node, changes=True), any_)
        if found is not None:
            _sorted_ones(x, found, sums, part, ZERO, 1)
        else:
            with o.times("e", count) as e, o.only(Infix("==", ev.clamped(o.value(index, e), rows - 1), to), e):
                x.take(e)
        with o.only(any_, ZERO) if any_ is not None else nullcontext():
            w.store(place(o.output(), i), x.total, node)
    return o.done()
