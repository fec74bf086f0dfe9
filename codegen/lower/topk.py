"""topk of the last dimension: one pass over a row that keeps the best k in a heap. Start at `lower_selection`.

The root of the heap is the worst of the kept ones: most elements are compared with it and no more. A long row that would leave cores
idle is cut in chunks; a second kernel then selects among what the chunks kept, in order, so that the first of equals comes first.
On a GPU work-groups do it (sort_gpu.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from tracegrad.codegen.kernel.expressions import Infix, Load, Local, Select, Verbatim, whole
from tracegrad.codegen.kernel.index import ZERO, Index, constant
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.statements import Access, Allocate, Array, Block, Bound, Buffer, Parts, bound, clipped
from tracegrad.codegen.kernel.types import register_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import KernelBuilder, parts
from tracegrad.codegen.lower.sort_gpu import selections
from tracegrad.codegen.lower.workgroup import precedes
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.dtypes import int64


@lowering("selection")
def lower_selection(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    if context.target.kind == "gpu":
        kernels = selections(group, context)
        if kernels is not None:
            return kernels
    k, n = node.shape[-1], node.operands[0].shape[-1]
    rows = node.aval.size // k
    chunks = max(1, min(-(-parts(context) // rows), n // max(tuning().select_chunk, 16 * k)))
    length = -(-n // chunks)
    chunks = -(-n // length)
    if chunks == 1:
        return [_select(group, context, length, None)]
    kept = Temp("kept", node, rows * chunks * k, int64)
    return [_select(group, context, length, kept), _select_kept(group, context, length, kept)]


@dataclass
class Heap:
    """The kept elements' keys, their numbers, and how many there are."""

    keys: Array
    order: Array
    length: Local

    @property
    def parts(self) -> tuple[Array, Array, Local]:
        return self.keys, self.order, self.length


def _start(o: KernelBuilder) -> Heap:
    w, k = o.writer, o.node.shape[-1]
    key = register_type(o.node.operands[0].dtype)
    heap = Heap(Array("keys", key, k, False), Array("order", w.index, k, False), Local("length", w.index_dtype))
    w.add(Allocate(heap.keys, o.node))
    w.add(Allocate(heap.order, o.node))
    w.define(heap.length, whole(0, w.index_dtype), o.node)
    return heap


def _offer(o: KernelBuilder, heap: Heap, row: Index, at: Index) -> None:
    """Element `at` of the row takes its place in the heap; it comes after all that are there, so of equals it is the worse one."""
    w, k = o.writer, o.node.shape[-1]
    x = o.node.operands[0]
    value = o.ev.value(x, row * x.shape[-1] + at)
    with w.branch(Infix("<", heap.length, whole(k))):
        w.text([
            f"{w.index} place = length++;",
            f"for (; place > 0 && !{precedes(o.node, value.text, 'keys[(place - 1) / 2]')}; place = (place - 1) / 2) {{ "
            "keys[place] = keys[(place - 1) / 2]; order[place] = order[(place - 1) / 2]; }",
            f"keys[place] = {value.text};",
            f"order[place] = {at.c()};",
        ], o.node, (value, at, *heap.parts), heap.parts)
    with w.block(Block(f"else if {precedes(o.node, value.text, 'keys[0]')} {{", (value, heap.keys))):
        _sink(o, heap, value.text, at.c(), str(k), (value, at))


def _sink(o: KernelBuilder, heap: Heap, key: str, number: str, length: str, parts: Parts) -> None:
    """The element moves down from the root, past all that are worse."""
    w = o.writer
    w.text([
        f"{w.index} place = 0;",
        f"for ({w.index} child = 1; child < {length}; child = 2 * place + 1) {{",
        f"  if (child + 1 < {length} && ({precedes(o.node, 'keys[child]', 'keys[child + 1]')} ||",
        f"      (!{precedes(o.node, 'keys[child + 1]', 'keys[child]')} && order[child + 1] > order[child]))) child++;",
        f"  if (!{precedes(o.node, key, 'keys[child]')} && ({precedes(o.node, 'keys[child]', key)} || order[child] < {number})) break;",
        "  keys[place] = keys[child];",
        "  order[place] = order[child];",
        "  place = child;",
        "}",
        f"keys[place] = {key};",
        f"order[place] = {number};",
    ], o.node, (*parts, *heap.parts), heap.parts)


def _finish(o: KernelBuilder, heap: Heap, pointer: Buffer, first: Index) -> Kernel:
    """Takes the worst out of the heap until it is in order, and writes it."""
    w, node = o.writer, o.node
    with w.block(Block(f"for ({w.index} last = length - 1; last > 0; last--) {{", (heap.length,))):
        dtype = node.operands[0].dtype
        mine, place = Local("mine", dtype), Local("from", w.index_dtype)
        w.define(mine, Verbatim("keys[last]", dtype, 1, (heap.keys,)), node, const=True)
        w.define(place, Verbatim("order[last]", w.index_dtype, 1, (heap.order,)), node, const=True)
        w.text(["keys[last] = keys[0];", "order[last] = order[0];"], node, heap.parts, heap.parts)
        _sink(o, heap, "mine", "from", "last", (mine, place))
    with o.loop("j", o.node.shape[-1], last=Bound(heap.length, ZERO, None, o.node.shape[-1])) as j:
        w.store(Access(pointer, first + j), Load(Access(heap.order, j), w.index_dtype), node)
    return o.finish()


def _select(group: Group, context: Context, length: int, kept: Temp | None) -> Kernel:
    """The best k of each chunk of each row, in order."""
    o = KernelBuilder(group, context)
    n, k = o.node.operands[0].shape[-1], o.node.shape[-1]
    chunks, rows = -(-n // length), o.node.aval.size // k
    chunk, row = o.item("chunk", chunks), o.item("row", rows)
    heap, end = _start(o), chunk * length + length
    with o.loop("i", n, chunk * length, clipped(end, n, length)) as i:
        _offer(o, heap, row, i)
    out = context.output(group, o.node)
    pointer = o.writer.buffer(kept, "kept", int64, "out") if kept else o.writer.buffer(out.ref, o.writer.base(o.node), int64, out.access)
    return _finish(o, heap, pointer, (row * chunks + chunk) * k)


def _select_kept(group: Group, context: Context, length: int, kept: Temp) -> Kernel:
    """The best k of what the chunks of each row kept."""
    o = KernelBuilder(group, context)
    w, n, k = o.writer, o.node.operands[0].shape[-1], o.node.shape[-1]
    chunks, rows = -(-n // length), o.node.aval.size // k
    source = w.buffer(kept, "kept", int64, "const")
    row = o.item("row", rows)
    heap = _start(o)
    last = n - (chunks - 1) * length                        # elements of the last chunk: it may have kept fewer than k
    with o.loop("chunk", chunks) as chunk:
        kept_last = Select(Infix("<", w.at(chunk), whole(chunks - 1)), whole(k), whole(last))
        kept_here = bound(k) if last >= k else Bound(kept_last, ZERO, constant(k))
        with o.loop("j", k, last=kept_here) as j:
            where = (row * chunks + chunk) * k + j
            at = w.computed("at", n, Load(Access(source, where), int64), o.node)
            _offer(o, heap, row, at.index)
    out = context.output(group, o.node)
    return _finish(o, heap, w.buffer(out.ref, w.base(o.node), int64, out.access), row * k)
