"""The same groups on devices with many small work-items: one element each, rows by work-groups. Start at `loops`, `columns`.

A reduction over a row is a work-group's: its items stride along the row, then add up in a tree in local memory, always in the
same order. Where local memory is not real (or rows are short) an item does a row by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tracegrad.codegen.kernel.index import ZERO, Var
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.statements import Access, Array, Block, Bound, BoundLike, Local, Value, bound, clipped, product
from tracegrad.codegen.kernel.vectors import unwrapped
from tracegrad.codegen.kernel.writer import Writer, literal, register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows_cpu import RowKernel, Shape, r_identity
from tracegrad.codegen.schedule.grouping import Chunks, Columns, Flat, Group, Place, Rows
from tracegrad.codegen.tuning import tuning
from tracegrad.ir import Node


def loops(group: Group, context: Context) -> list[Kernel]:
    """Elementwise groups, row reductions, and chunks of them."""
    kind = group.kind
    if isinstance(kind, Flat):
        return [_elementwise(group, context)]
    assert isinstance(kind, (Rows, Chunks))
    shape = Shape(kind.rows, (kind.cols,), 1, 1, kind.length if isinstance(kind, Chunks) else None)
    if kind.cols <= tuning().short_row or not context.target.local_memory:
        return [RowKernel(group, context, shape).kernel()]
    return [Team(group, context, shape).kernel()]


def _elementwise(group: Group, context: Context) -> Kernel:
    w = context.writer(group)
    ev = context.evaluator(group, w)
    n = group.size
    local = min(tuning().group, context.target.max_work_group, n)         # no item without an element: it would read what the others write
    i = w.item("i", n, 0)
    with guarded(w, i, n, -(-n // local) * local):
        context.store(ev, group, group.stored, i.index)
    return context.finish(group, w, (-(-n // local) * local,), (local,))


@contextmanager
def guarded(w: Writer, i: Var, size: int, items: int) -> Iterator[None]:
    """Only items with i < size, if there are more."""
    if items == size:
        yield
        return
    with w.branch(f"{i} < {size}", (i,), (("range", i.index, 0, size),)):
        w.bind(i)
        yield


class Team(RowKernel):
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
            self.last = w.bounding("last", n, clipped(end, n, s.length, "min({0}, {1})"))
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
        sinks = self.group.results(Place.ROW)
        if sinks:
            with self.first_item():
                self.context.store(self.ev, self.group, sinks, self.row)
        return self.context.finish(self.group, w, tuple(sizes), tuple(local), True)

    def first_item(self) -> Any:
        return self.writer.branch(f"{self.item} == 0", (self.item,), (("range", self.item.index, 0, 1),))

    def loops(self, reductions: list[Node], sinks: list[Node]) -> None:
        s, w = self.shape, self.writer
        accumulators = {r: w.declare(register_type(r.dtype), w.base(r), literal(r_identity(r), r.dtype), r) for r in reductions}
        start: BoundLike = self.item
        if s.length is not None:
            at = self.chunk * s.length + self.item.index
            start = Bound(f"chunk * {s.length} + item", at, at)
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
        w.store(mine, f"{scratch}[item] = {accumulator};", r, (accumulator, self.item))
        w.barrier()
        with w.block(Block(f"for (int half_size = {self.size // 2}; half_size > 0; half_size /= 2) {{")):
            text = ev.translate(ev.combiner(r)(f"{scratch}[item]", f"{scratch}[item + half_size]"), r.dtype, 1)
            w.raw(f"if (item < half_size) {scratch}[item] = {unwrapped(text)};", r, (self.item, Access(scratch, None)), writes=(mine,))
            w.barrier()
        w.assign(accumulator, f"{scratch}[0]", r, (Access(scratch, ZERO),))
        w.barrier()
        value = Value(accumulator.name, r.dtype, 1, self.depth, parts=(accumulator,))
        if r.fn.family == "partial":
            chunks = r.aval.size // self.shape.rows
            with self.first_item():
                ev.store(self.context.output(self.group, r), r, self.row * chunks + self.chunk, value)
        else:
            ev.put(r, self.row, value)


def columns(group: Group, context: Context) -> list[Kernel]:
    """A work-item adds up one column of one chunk; neighbours read neighbouring columns."""
    kind = group.kind
    assert isinstance(kind, Columns)
    outer, middle, inner, chunks = kind.outer, kind.middle, kind.inner, kind.chunks
    w = context.writer(group)
    ev = context.evaluator(group, w)
    local = min(64, context.target.max_work_group)
    col, chunk = w.item("col", inner, 0), w.item("chunk", chunks, 1)
    part = chunk.index
    a = w.item("row", outer, 2).index if outer > 1 else ZERO
    with w.branch(f"col < {inner}", (col,), (("range", col.index, 0, inner),)):
        w.bind(col)
        w.bind(chunk)
        reductions = group.results(Place.CHUNK)
        accumulators = {r: w.declare(register_type(r.dtype), w.base(r), literal(r_identity(r), r.dtype), r) for r in reductions}
        end = part * kind.length + kind.length
        stop = bound(middle) if chunks == 1 else clipped(end, middle, kind.length, "min({0}, {1})")
        each = Var("r", middle)
        with w.loop(each, part * kind.length, stop):
            at = (a * middle + each.index) * inner + col.index
            for r in reductions:
                ev.accumulate(r, accumulators[r], ev.value(r.operands[0], at))
            context.store(ev, group, group.results(Place.ELEMENT), at)
        for r in reductions:
            total = Value(accumulators[r].name, r.dtype, parts=(accumulators[r],))
            ev.store(context.output(group, r), r, (a * chunks + part) * inner + col.index, total)
    return [context.finish(group, w, (-(-inner // local) * local, chunks, outer), (local, 1, 1))]
