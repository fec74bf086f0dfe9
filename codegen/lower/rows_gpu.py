"""The same groups on devices with many small work-items: one element each, rows by work-groups. Start at `loops`, `columns`.

A reduction over a row is a work-group's: its items stride along the row, then add up in a tree in local memory, always in the
same order. Where local memory is not real (or rows are short) an item does a row by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.expressions import At, Infix, Literal, Load, Verbatim, whole
from tracegrad.codegen.kernel.index import ZERO, Var
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.statements import Access, Array, Block, BoundLike, Local, bound, least, product
from tracegrad.codegen.kernel.types import register_type
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows_cpu import Rows, Shape, r_identity
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.ir import Node


def loops(group: Group, context: Context) -> list[Kernel]:
    """Elementwise groups, row reductions, and chunks of them."""
    if group.cols is None:
        return [_elementwise(group, context)]
    rows = group.size // group.cols
    shape = Shape(rows, (group.cols,), 1, 1, group.length)
    if group.cols <= tuning().short_row or not context.target.local_memory:
        return [Rows(group, context, shape).kernel()]
    return [Team(group, context, shape).kernel()]


def _elementwise(group: Group, context: Context) -> Kernel:
    w = context.writer(group)
    ev = context.evaluator(group, w)
    n = group.size
    local = min(tuning().group, context.target.max_work_group, n)         # no item without an element: it would read what the others write
    i = w.item("i", n, 0)
    with guarded(w, i, n, -(-n // local) * local):
        values = [ev.value(sink, i.index) for sink in group.stored]
        for sink, value in zip(group.stored, values, strict=True):
            ev.store(context.output(group, sink), sink, i.index, value)
    return context.finish(group, w, (-(-n // local) * local,), (local,))


@contextmanager
def guarded(w: Writer, i: Var, size: int, items: int) -> Iterator[None]:
    """Only items with i < size, if there are more."""
    if items == size:
        yield
        return
    with w.branch(Infix("<", At(i.index), whole(size)), (("range", i.index, 0, size),)):
        w.bind(i)
        yield


class Team(Rows):
    """A kernel in which a work-group does a row, or a chunk of one."""

    def kernel(self) -> Kernel:
        s, w = self.shape, self.writer
        self.size = 1
        while self.size < min(tuning().group, self.context.target.max_work_group) and self.size < (s.length or s.cols[0]):
            self.size *= 2
        self.kept = {}
        self.scratch: dict[str, Array] = {}
        for r in self.reductions:
            type_ = register_type(r.dtype)
            if type_ not in self.scratch:
                self.scratch[type_] = w.array(f"scratch_{type_}", type_, self.size, shared=True)
        self.item = w.item("item", self.size, 0, "local", "int")
        sizes = [self.size]
        local = [self.size]
        if s.length is not None:
            n, chunks = s.cols[0], -(-s.cols[0] // s.length)
            chunk = w.item("chunk", chunks, 0, "group")
            self.chunk = chunk.index
            end = product(chunk, s.length, s.length)
            self.last = w.bounding("last", n, end if n % s.length == 0 else least(end, n, "min"))
            sizes[0] *= chunks
        if s.rows > 1:
            axis = 0 if s.length is None else 1
            self.row = w.item("row", s.rows, axis, "group").index
            if axis:
                sizes.append(s.rows)
                local.append(1)
            else:
                sizes[0] *= s.rows
        self.depth = w.depth
        self.passes()
        sinks = [x for x in self.group.stored if self.group.place[x] == "row"]
        if sinks:
            with self.first_item():
                self.store(sinks, self.row)
        return self.context.finish(self.group, w, tuple(sizes), tuple(local), True)

    def first_item(self) -> Any:
        return self.writer.branch(Infix("==", At(self.item.index), whole(0)), (("range", self.item.index, 0, 1),))

    def loops(self, reductions: list[Node], sinks: list[Node]) -> None:
        s, w = self.shape, self.writer
        accumulators = {r: w.declare(w.base(r), Literal(r_identity(r), r.dtype), r) for r in reductions}
        start: BoundLike = self.item
        if s.length is not None:
            at = self.chunk * s.length + self.item.index
            start = bound(at)
        col = Var("col", s.cols[0])
        with w.loop(col, start, s.cols[0] if s.length is None else self.last, self.size):
            self.body(self.row * s.cols[0] + col.index, reductions, sinks, accumulators)
        for r in reductions:
            self.tree(r, accumulators[r])

    def tree(self, r: Node, accumulator: Local) -> None:
        """Combine the items' accumulators in local memory."""
        w, ev = self.writer, self.ev
        scratch = self.scratch[register_type(r.dtype)]
        mine = Access(scratch, self.item.index)
        w.store(mine, accumulator, r)
        w.barrier()
        with w.block(Block(f"for (int half_size = {self.size // 2}; half_size > 0; half_size /= 2) {{")):
            other = Verbatim(f"{scratch}[item + half_size]", r.dtype, 1, (Access(scratch, None),))
            both = ev.combined(r, Load(mine, r.dtype), other)
            with w.branch(Verbatim("item < half_size", np.dtype(bool), 1, (self.item,))):
                w.store(mine, both, r)
            w.barrier()
        w.assign(accumulator, Load(Access(scratch, ZERO), r.dtype), r)
        w.barrier()
        if r.fn.family == "partial":
            chunks = r.aval.size // self.shape.rows
            with self.first_item():
                ev.store(self.context.output(self.group, r), r, self.row * chunks + self.chunk, accumulator)
        else:
            ev.put(r, self.row, accumulator)


def columns(group: Group, context: Context) -> list[Kernel]:
    """A work-item adds up one column of one chunk; neighbours read neighbouring columns."""
    assert group.view is not None
    assert group.length is not None
    outer, middle, inner = group.view
    chunks = -(-middle // group.length)
    w = context.writer(group)
    ev = context.evaluator(group, w)
    local = min(64, context.target.max_work_group)
    col, chunk = w.item("col", inner, 0), w.item("chunk", chunks, 1)
    part = chunk.index
    a = w.item("row", outer, 2).index if outer > 1 else ZERO
    with w.branch(Infix("<", At(col.index), whole(inner)), (("range", col.index, 0, inner),)):
        w.bind(col)
        w.bind(chunk)
        reductions = [s for s in group.stored if s.fn.family == "partial"]
        sinks = [s for s in group.stored if s.fn.family != "partial"]
        accumulators = {r: w.declare(w.base(r), Literal(r_identity(r), r.dtype), r) for r in reductions}
        end = part * group.length + group.length
        stop = bound(middle) if chunks == 1 else bound(end) if middle % group.length == 0 else least(end, middle, "min")
        each = Var("r", middle)
        with w.loop(each, part * group.length, stop):
            at = (a * middle + each.index) * inner + col.index
            for r in reductions:
                ev.accumulate(r, accumulators[r], ev.value(r.operands[0], at))
            values = [ev.value(sink, at) for sink in sinks]
            for sink, value in zip(sinks, values, strict=True):
                ev.store(context.output(group, sink), sink, at, value)
        for r in reductions:
            ev.store(context.output(group, r), r, (a * chunks + part) * inner + col.index, accumulators[r])
    return [context.finish(group, w, (-(-inner // local) * local, chunks, outer), (local, 1, 1))]
