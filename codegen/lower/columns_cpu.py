"""Reductions over the middle of (outer, middle, inner), by chunks, on CPUs: private accumulator rows. Start at `lower_columns`.

A work-item owns a chunk of the middle and one row of partial results, to which it adds the chunk's rows one after the other
along the contiguous inner dimension. A later kernel adds the few partial results.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.expressions import Local
from tracegrad.codegen.kernel.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.statements import bound, clipped
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows_cpu import vector_width
from tracegrad.codegen.schedule.grouping import Columns, Group, Place
from tracegrad.ir import Node


def lower_columns(group: Group, context: Context) -> list[Kernel]:
    """The kernel of one or more reductions over the middle of the same view."""
    kind = group.kind
    assert isinstance(kind, Columns)
    outer, middle, inner, length, chunks = kind.outer, kind.middle, kind.inner, kind.length, kind.chunks
    w = context.writer(group)
    ev = context.evaluator(group, w)
    reductions = group.results(Place.CHUNK)
    sizes = []
    a: Index = ZERO
    part: Index = ZERO
    if chunks > 1:
        part = w.item("chunk", chunks, 0).index
        sizes.append(chunks)
    if outer > 1:
        a = w.item("row", outer, len(sizes)).index
        sizes.append(outer)
    first = part * length
    end = first + length
    stop = bound(middle) if chunks == 1 else clipped(end, middle, length)

    def body(row: Index, fresh: bool) -> None:
        width = vector_width(group, context)
        for lanes, low, high in ((width, 0, inner - inner % width), (1, inner - inner % width, inner)):
            if high <= low:
                continue
            col = Var("col", inner)
            with w.loop(col, low, high, lanes):
                ev.lane, ev.width = (col, lanes) if lanes > 1 else (None, 1)
                at = (a * middle + row) * inner + col.index
                for r in reductions:
                    value = ev.value(r.operands[0], at)
                    where = (a * chunks + part) * inner + col.index
                    if not fresh:
                        value = ev.fold(r, [accumulator(r, where), value])
                    ev.store(context.output(group, r), r, where, value)
                context.store(ev, group, group.results(Place.ELEMENT), at)
        ev.lane, ev.width = None, 1

    def accumulator(r: Node, where: Index) -> Local:
        return ev.load(r, context.output(group, r), where, (), written=True)

    body(first, True)
    r = Var("r", middle - 1, 1)
    with w.loop(r, first + 1, stop):
        body(r.index if middle > 1 else ZERO, False)
    return [context.finish(group, w, tuple(sizes) or (1,), (1,) * max(1, len(sizes)), True)]
