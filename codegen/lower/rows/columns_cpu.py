"""Reductions over the middle of (outer, middle, inner), by chunks, on CPUs: private accumulator rows. Start at `lower_columns`.

A work-item owns a chunk of the middle and one row of partial results, to which it adds the chunk's rows, a few at a time,
along the contiguous inner dimension, block by block (see `sums.ColumnSums`). A later kernel adds the few partial results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var
from tracegrad.codegen.kernel.index.peeling import breakpoints
from tracegrad.codegen.kernel.index.varying import uneven, varies
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import BoundLike, bound, clipped, rest
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows.shape import reads, vector_width
from tracegrad.codegen.lower.serial import KernelBuilder
from tracegrad.codegen.lower.sums import ColumnSums, each_block
from tracegrad.codegen.schedule.grouping import Columns, Granularity, Group
from tracegrad.support.tuning import tuning


def lower_columns(group: Group, context: Context) -> list[Kernel]:
    """The kernel of one or more reductions over the middle of the same view."""
    kind = group.kind
    assert isinstance(kind, Columns)
    outer, middle, inner, length, chunks = kind.outer, kind.middle, kind.inner, kind.length, kind.chunks
    o, reductions = KernelBuilder(group, context), group.results(Granularity.CHUNK)
    w, ev = o.writer, o.ev
    part, a = o.item("chunk", chunks), o.item("row", outer)
    first = part * length
    end = first + length
    stop = bound(middle) if chunks == 1 else clipped(end, middle, length)
    width = vector_width(group, context)

    several = _rows_at_a_time(group, length)
    blocks = -(-length // (several * tuning().sum_steps))
    sums = {r: ColumnSums(ev, r, context.output(group, r), blocks) for r in reductions}

    run = _run(group, context, kind, width)

    def each_vector(body: Callable[[Index], None]) -> None:
        with o.loop("line", inner // run) as line:
            o.vectors("col", run, width, lambda col: body(line * run + col))

    def add(rows: list[Index], fresh: bool) -> None:
        def body(col: Index) -> None:
            places = [(a * middle + row) * inner + col for row in rows]
            for r, each in sums.items():
                value = ev.fold(r, [ev.value(r.operands[0], at) for at in places])
                (each.begin if fresh else each.add)((a * chunks + part) * inner + col, value)
            for at in places:
                context.store(ev, group, group.results(Granularity.ELEMENT), at)

        each_vector(body)

    def each_sum(step: Callable[[ColumnSums, Index], None]) -> None:
        """What a block of rows ends with."""
        def body(col: Index) -> None:
            for each in sums.values():
                step(each, (a * chunks + part) * inner + col)

        if any(each.before for each in sums.values()):
            each_vector(body)

    @contextmanager
    def rows(var: Var, start: BoundLike, step: int) -> Iterator[None]:
        """The loop over the rows from `start` on, `step` at a time."""
        with w.loop(var, start, stop, step, whole=step > 1):
            yield
            if blocks > 1:
                with each_block(w, var.index - first - 1, tuning().sum_steps * step, step):
                    each_sum(ColumnSums.flush)

    add([first], True)
    left: BoundLike = first + 1
    if several > 1:
        r = Var("r", middle - 1, 1)
        with rows(r, first + 1, several):
            add([r.index + k for k in range(several)], False)
        left = rest(first + 1, stop, several)
    if several == 1 or chunks > 1 or uneven(length - 1, several) or varies(middle):
        r = Var("r", middle - 1, 1)
        with rows(r, left, 1) if several == 1 else w.loop(r, left, stop):
            add([r.index if middle > 1 else ZERO], False)
    each_sum(ColumnSums.finish)
    return [o.finish()]


def _run(group: Group, context: Context, kind: Columns, width: int) -> int:
    """Columns next to each other whose elements are read one after the other: all, or as many as a loop of its own is worth."""
    if width == 1 or varies(kind.inner):
        return kind.inner
    a, row, col = Var("a", kind.outer), Var("row", kind.middle), Var("col", kind.inner)
    found = breakpoints(reads(group, context, (a.index * kind.middle + row.index) * kind.inner + col.index).indices, col)
    return next((k for k in found if k >= 2 * width), kind.inner)


def _rows_at_a_time(group: Group, length: int) -> int:
    """Rows whose values are put together before they are added to what memory has: fewer roundings, and less to load and to store."""
    return 4 if length > max(4, tuning().sum_steps) and 4 * group.statements <= tuning().tail_statements else 1
