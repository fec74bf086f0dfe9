"""Running sums, products and extremes along a dimension, and linear recurrences. Start at `lower_scan`.

Rows (or, where the dimension is not the last, vectors of columns) are one work-item's loop each. A long row that would leave
cores idle is cut in chunks: a first kernel puts each chunk together, a second one scans them, starting from what those before make.
Sums and extremes along the last dimension go in vectors of neighbours (`Running.take_each`). Products of floats do not, nor are they
cut: a few factors may leave the range where the product does not (0 times infinity is NaN), so each factor has its turn.
On a GPU work-groups do it (scan_gpu.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.index.varying import varies
from tracegrad.codegen.kernel.ir.expressions import Expression, Literal, Load
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, BoundLike, bound, clipped, rest
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.rows.shape import vector_width
from tracegrad.codegen.lower.serial import KernelBuilder, column_part, cut, parts, scratch, view
from tracegrad.codegen.lower.sums import Running, in_pairs, running_dtype
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.tuning import tuning

_ALIGNED = 16        # a chunk is whole vectors
_ROWS = 4            # that a work-item scans side by side, if it has several


@lowering("scan")
def lower_scan(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    outer, n, inner = view(node, node.attrs["dim"])
    wanted = 1 if _in_order(node) else -(-parts(context) // (outer * -(-inner // 8)))
    chunks, length = cut(n, wanted, n // tuning().scan_chunk, 64)
    if _in_vectors(node, context):
        length = -(-length // _ALIGNED) * _ALIGNED
        chunks = -(-n // length)
    if chunks == 1:
        return [_scan(group, context, n, [])]
    names = ("chunk_sums", "chunk_sums_low")[:1 + in_pairs(node, context.target)]
    sums = [Temp(name, node, outer * (chunks - 1) * inner, scratch(running_dtype(node, context.target))) for name in names]
    return [_chunk_sums(group, context, length, sums), _scan(group, context, length, sums)]


def _in_order(node: Node) -> bool:
    """Whether its terms have to be taken in one by one, from the first on."""
    fn: Any = node.fn
    return not fn.linear and not fn.selects_elements and dtype_kind(node.dtype) == "f"


def _in_vectors(node: Node, context: Context) -> bool:
    """Whether neighbours in a row are a vector."""
    plain = node.dtype.name in ("float32", "float64", "int32", "int64") and not in_pairs(node, context.target) and not _in_order(node)
    return plain and context.target.traits.vectors and view(node, node.attrs["dim"])[2] == 1


def _begun(o: KernelBuilder) -> Running:
    """Declares what the elements so far make."""
    fn: Any = o.node.fn
    dtype = running_dtype(o.node, o.context.target)
    start = Literal(fn.identity(dtype), dtype)
    return Running.of(o.ev, o.node, fn.total, o.ev.vector(start) if o.ev.width > 1 else start)


def _value(o: KernelBuilder, x: Node, at: Index) -> Expression:
    value = o.ev.value(x, at)
    return o.ev.vector(value) if o.ev.width > 1 else value


def _chunk_sums(group: Group, context: Context, length: int, sums: list[Temp]) -> Kernel:
    """What each chunk but the last makes."""
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    outer, n, inner = view(node, node.attrs["dim"])
    chunks = -(-n // length) - 1
    pointers = [w.buffer(temp, temp.name, temp.dtype, "out") for temp in sums]
    row = o.item("row", outer)
    chunk = o.item("chunk", chunks)
    low, high = column_part(o, inner, outer * chunks)

    def body(column: Index) -> None:
        running, first, last = _begun(o), chunk * length, chunk * length + length
        if _in_vectors(node, context):
            var, width = Var("i", n), vector_width(group, context)
            with ev.along(var, width):
                lanes = _begun(o)
            with w.loop(var, first, last, width), ev.along(var, width):
                lanes.take(_value(o, node.operands[0], row * n + var.index))
            running.take_all(lanes.total)
        else:
            with o.loop("i", n, first, last) as i:
                running.take(_value(o, node.operands[0], (row * n + i) * inner + column))
        at = (row * chunks + chunk) * inner + column
        for pointer, part in zip(pointers, running.parts, strict=True):
            w.store(Access(pointer, at, ev.width, ev.lane), part, node)

    o.columns("column", inner, low, high, body)
    return o.finish()


def _each(o: KernelBuilder, chunk: Index, length: int, n: int, body: Callable[[Index], None]) -> None:
    """body for each of a chunk's elements, or for vectors of them."""
    first: BoundLike = 0
    last: BoundLike = n
    if chunk.terms:
        first = o.writer.bounding("first", n, chunk * length)
        last = o.writer.bounding("last", n, clipped(chunk * length + length, n, length))
    if not _in_vectors(o.node, o.context):
        with o.loop("i", n, first, last) as i:
            body(i)
    else:
        o.columns("i", n, first, bound(last) if varies(n) else last, body)


def _scan(group: Group, context: Context, length: int, sums: list[Temp]) -> Kernel:
    o = KernelBuilder(group, context)
    node, w, ev = o.node, o.writer, o.ev
    outer, n, inner = view(node, node.attrs["dim"])
    chunks = -(-n // length)
    pointers = [w.buffer(temp, temp.name, temp.dtype, "const") for temp in sums]
    if chunks > 1 or inner > 1 or outer <= parts(context) or not context.target.traits.long_items:
        row, rows = o.item("row", outer), None
    else:
        rows = o.part("row", outer, -(-outer // parts(context)))
    chunk = o.item("chunk", chunks)
    low, high = column_part(o, inner, outer * chunks)

    def body(rows: list[Index], column: Index) -> None:
        running = [_begun(o) for _ in rows]
        if pointers:
            before = Var("before", chunks - 1)
            with w.loop(before, 0, chunk):
                at = (rows[0] * (chunks - 1) + before.index) * inner + column
                running[0].take(*(Load(Access(pointer, at, ev.width, ev.lane), pointer.dtype, ev.width) for pointer in pointers))

        def put(i: Index) -> None:
            for row, total in zip(rows, running, strict=True):
                at = (row * n + i) * inner + column
                value = _value(o, node.operands[0], at)
                if ev.width > 1 and inner == 1:
                    found = total.take_each(value)
                else:
                    total.take(value)
                    found = total.value
                ev.store(context.output(group, node), node, at, found)

        _each(o, chunk, length, n, put)

    if rows is None:
        o.columns("column", inner, low, high, lambda column: body([row], column))
        return o.finish()
    first, last = bound(rows[0]), bound(rows[1])
    if inner == 1 and -(-outer // parts(context)) >= _ROWS and not _in_vectors(node, context):  # they do not wait for each other
        several = Var("row", outer)
        with w.loop(several, first, last, _ROWS, whole=True):
            body([several.index + k for k in range(_ROWS)], constant(0))
        first = rest(first, last, _ROWS)
    with o.loop("row", outer, first, last) as each:
        o.columns("column", inner, low, high, lambda column: body([each], column))
    return o.finish()


@lowering("recurrence")
def lower_recurrence(group: Group, context: Context) -> list[Kernel]:
    """y[i] = a[i] * y[i - 1] + b[i]: a row, or a vector of columns, is one work-item's loop, however long it is."""
    o = KernelBuilder(group, context)
    node, ev = o.node, o.ev
    a, b = node.operands
    outer, n, inner = view(node, node.attrs["dim"])
    row = o.item("row", outer)
    low, high = column_part(o, inner, outer)

    def body(column: Index) -> None:
        first = row * n * inner + column
        running = Running.of(ev, node, "carried", _value(o, b, first))
        ev.store(context.output(group, node), node, first, running.value)
        if n > 1:
            with o.loop("i", n, 1) as i:
                at = (row * n + i) * inner + column
                running.step(_value(o, a, at), _value(o, b, at))
                ev.store(context.output(group, node), node, at, running.value)

    o.columns("column", inner, low, high, body)
    return [o.finish()]
