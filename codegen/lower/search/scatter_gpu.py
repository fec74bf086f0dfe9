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

from tracegrad.codegen.kernel.index.index import ZERO, Index, Mutable, Var
from tracegrad.codegen.kernel.ir.expressions import Call, Cast, Expression, Infix, Literal, Load, Local, Select, element, place, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Array, Buffer
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.search.radix import Keys, by_digits
from tracegrad.codegen.lower.serial import scratch
from tracegrad.codegen.lower.workgroup import WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind, int64
from tracegrad.support.tuning import tuning


def scatters(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a scatter; None where they are those of parts' owners."""
    node = group.anchor
    base, index, _ = node.operands
    rows, count = base.shape[0], index.aval.size
    if count <= tuning().scatter_few:
        return [_rows(group, context, None, None, None, 1)]
    if count >= 1 << 31 or rows >= 1 << 31:
        return None

    def row(o: WorkGroup, at: Index) -> Expression:
        return o.writer.let("key", Cast(o.ev.clamped(o.value(index, at), rows - 1), np.dtype(np.uint32)), node)

    found = by_digits(group, context, 1, count, Keys(False, max(1, (rows - 1).bit_length()), row), False)
    if found is None:
        return None
    kernels, keys, order = found
    # The parts of a row's n indices, and what is left of them at both ends, are least where a part has about the root of n.
    part = max(tuning().scatter_part, 1 << (count.bit_length() // 2))
    sums = None
    if _joins(node) and count >= 8 * part:
        sums = Temp("part_sums", node, count // part * (base.aval.size // rows), scratch(node.dtype))
        kernels.append(_sums(group, context, keys, order, sums, part))
    return [*kernels, _rows(group, context, keys, order, sums, part)]


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


def _sums(group: Group, context: Context, keys: Temp, order: Temp, sums: Temp, part: int) -> Kernel:
    """What the parts of the sorted indices that are all one row's add up: a part and some columns a work-group, with a tree at the end."""
    o = WorkGroup(group, context)
    w, node = o.writer, o.node
    base, index, source = node.operands
    rest, count = base.aval.size // base.shape[0], index.aval.size
    size = room(context, 8)
    across = min(32, size, 1 << (rest - 1).bit_length())
    lines = min(size // across, 1 << (part.bit_length() - 1))
    array = o.shared("tile", register_type(node.dtype), across * lines)
    lane = o.number("lane", across, 0, "local").index if across > 1 else ZERO
    line = o.number("line", lines, 1, "local")
    column = o.number("column", rest, 0, "global").index if rest > 1 else ZERO
    number = o.number("part", count // part, 1, "group")
    sorted_, places, out = (o.temp(t, name, how) for t, name, how in
                            ((keys, "sorted_keys", "const"), (order, "sorted_order", "const"), (sums, "part_sums", "out")))
    first = number.index * part
    same: Expression = Infix("==", element(sorted_, first), element(sorted_, first + part - 1))
    known = (("range", column, 0, rest),) if rest % across else ()
    all_ = w.let("all", Infix("&&", Infix("<", column, rest), same) if known else same)
    total = w.let("total", _nothing(o), node, changes=True)
    e = Var("e", count)
    with o.only(all_, column, known=known), w.loop(e, first + line.index, first + part, lines):
        at = w.known("number", count, element(places, e))
        w.assign(total, _joined(o, total, o.value(source, at.index * rest + column)), node)
    mine = line.index * across + lane
    _add_up(o, array, total, line, mine, lines, across)
    with w.branch(Infix("&&", all_, Infix("==", line, 0)), (("range", line.index, 0, 1), *known)):
        w.store(place(out, number.index * rest + column), Load(place(array, lane), node.dtype), node)
    return o.done((-(-rest // across) * across, count // part * lines), (across, lines), source.aval.size)


def _add_up(o: WorkGroup, array: Array, total: Local, line: Var, mine: Index, lines: int, across: int) -> None:
    """What the lines' totals add up to, in the first of them."""
    w, dtype = o.writer, o.node.dtype
    w.store(place(array, mine), total)
    o.barrier()
    with w.halving(line, lines) as half_size:
        a, b = (Load(place(array, at), dtype) for at in (mine, mine + half_size * across))
        w.store(place(array, mine), _joined(o, a, b))


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


def _search(o: WorkGroup, name: str, sign: str, keys: Buffer, to: Var, count: int) -> Mutable:
    """How many of the sorted keys are less than `to`, or (sign "<=") not more."""
    w = o.writer
    low, end = w.variable(name, count + 1, 0), w.variable(f"{name}_end", count + 1, count)
    with w.repeat(Infix("<", low, end)):
        middle = w.known("middle", count, Infix("+", low, Infix("/", Infix("-", end, low), 2)))
        with w.branch(Infix(sign, Cast(element(keys, middle), int64), to)):
            w.assign(low, middle.index + 1)
        with w.otherwise():
            w.assign(end, middle)
    return low


def _sorted_ones(x: _Element, keys: Temp, order: Temp, sums: Temp | None, part: int, line: Var | None, lines: int) -> None:
    """All of the row's: they lie side by side among the sorted indices. What is set is the last of them."""
    o, w, count = x.o, x.o.writer, x.o.node.operands[1].aval.size
    sorted_, places = o.temp(keys, "sorted_keys", "const"), o.temp(order, "sorted_order", "const")
    if not _joins(o.node):
        high = _search(o, "high", "<=", sorted_, x.to, count)
        last = Infix("==", Cast(element(sorted_, high.index - 1), int64), x.to)
        with w.branch(Infix("&&", Infix(">", high, 0), last)):
            x.take(w.known("number", count, element(places, high.index - 1)).index)
        return
    low, high = (_search(o, name, sign, sorted_, x.to, count) for name, sign in (("low", "<"), ("high", "<=")))
    mine, e = line.index if line is not None else ZERO, Var("e", count)
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


def _rows(group: Group, context: Context, keys: Temp | None, order: Temp | None, sums: Temp | None, part: int) -> Kernel:
    """An element of the result an item, neighbours side by side in a row; of few elements several items, which add up in local memory.

    sums: of parts of the sorted indices.
    """
    o = WorkGroup(group, context)
    node, w, ev = o.node, o.writer, o.ev
    base, index, source = node.operands
    rows, count, size = base.shape[0], index.aval.size, base.aval.size
    rest = size // rows
    most, lines = room(context, 8), 1
    if _joins(node) and keys is not None:
        while lines < 32 and 8 * lines < most and 2 * lines * size <= context.target.items and lines * rows < count:
            lines *= 2
    across = most // lines if lines > 1 else min(tuning().owners, context.target.max_work_group)
    across = min(across, 1 << (size - 1).bit_length())       # of one element one item: its number is a constant, which no guard tests
    items = -(-size // across) * across
    array = o.shared("tile", register_type(node.dtype), across * lines) if lines > 1 else None
    i = o.number("i", size, 0, "global").index
    lane, line = (o.number("lane", across, 0, "local"), o.number("line", lines, 1, "local")) if lines > 1 else (None, None)
    in_place = context.ref(node) is context.ref(strip(base))
    there = [(i, size)] if items > size else []
    out = o.output()

    def start() -> Expression:
        return ev.load(node, context.output(group, node), i, (), written=True) if in_place else o.value(base, i)

    if lane is None or line is None or array is None:
        with o.where(*there):
            to = w.known("to", rows, i // rest)
            found = w.let("found", whole(0), changes=True) if in_place else None       # an element that no index names stays as it is
            x = _Element(o, i % rest, to, w.let("total", start(), node, changes=True), found)
            if keys is not None and order is not None:
                _sorted_ones(x, keys, order, sums, part, None, 1)
            else:
                with o.times("e", count) as e, o.only(Infix("==", ev.clamped(o.value(index, e), rows - 1), to), e):
                    x.take(e)
            with o.only(found, ZERO) if found is not None else nullcontext():
                w.store(place(out, i), x.total, node)
        return o.done((items,), (across,))
    assert keys is not None
    assert order is not None
    total = w.let("total", _nothing(o), node, changes=True)
    with o.where(*there):
        _sorted_ones(_Element(o, i % rest, w.known("to", rows, i // rest), total, None), keys, order, sums, part, line, lines)
    _add_up(o, array, total, line, line.index * across + lane.index, lines, across)
    with o.only(Infix("==", line, 0), i, known=(("range", line.index, 0, 1),)), o.where(*there):
        w.store(place(out, i), _joined(o, start(), Load(place(array, lane), node.dtype)), node)
    share = min(source.aval.size, 2 * part * size) + (0 if sums is None else sums.size)
    return o.done((items, lines), (across, lines), share)
