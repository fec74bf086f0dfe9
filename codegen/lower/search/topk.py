"""topk of the last dimension: one pass over a row that keeps the best k in a heap. Start at `lower_selection`.

The root of the heap is the worst of the kept ones: most elements are compared with it and no more. A long row that would leave cores
idle is cut in chunks; a second kernel then selects among what the chunks kept, in order, so that the first of equals comes first.
On a GPU work-groups do it (sort_gpu.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from tracegrad.codegen.kernel.index.index import ZERO, Index, Mutable, Var, constant
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Load, Operand, Prefix, Select, element, place, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, Array, Bound, Buffer, bound, clipped
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import KernelBuilder, cut, parts
from tracegrad.codegen.lower.workgroup import precedes
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.support.dtypes import int64
from tracegrad.support.tuning import tuning


@lowering("selection")
def lower_selection(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    k, n = node.shape[-1], node.operands[0].shape[-1]
    rows = node.aval.size // k
    chunks, length = cut(n, -(-parts(context) // rows), n // max(tuning().select_chunk, 16 * k))
    if chunks == 1:
        return [_select(group, context, length, None)]
    kept = Temp("kept", node, rows * chunks * k, int64)
    return [_select(group, context, length, kept), _select_kept(group, context, length, kept)]


@dataclass
class Heap:
    """The kept elements' keys, their numbers, and how many there are."""

    keys: Array
    order: Array
    length: Var


def _start(o: KernelBuilder) -> Heap:
    """Nothing kept yet.

    The arrays have one element more: LLVM 14 (PoCL 3.1) reads element child + 1 before it asks whether there is one, and of arrays
    of three it concludes that there always is.
    """
    w, k = o.writer, o.node.shape[-1]
    keys = w.array("keys", register_type(o.node.operands[0].dtype), k + 1, node=o.node)
    return Heap(keys, w.array("order", w.index, k + 1, node=o.node), w.variable("length", k + 1, 0, node=o.node))


def _put(o: KernelBuilder, heap: Heap, to: Operand, key: Expression, number: Expression) -> None:
    o.writer.store(place(heap.keys, to), key, o.node)
    o.writer.store(place(heap.order, to), number, o.node)


def _offer(o: KernelBuilder, heap: Heap, row: Index, at: Index) -> None:
    """Element `at` of the row takes its place in the heap; it comes after all that are there, so of equals it is the worse one."""
    w, k = o.writer, o.node.shape[-1]
    x = o.node.operands[0]
    value = o.ev.value(x, row * x.shape[-1] + at)
    with w.branch(Infix("<", heap.length, k)):
        to = w.variable("place", k, heap.length)
        w.update(heap.length, "+", 1)
        with w.repeat(Infix(">", to, 0)):
            above = w.known("above", k, Infix("/", to.index - 1, 2))
            with w.branch(precedes(o.node, value, element(heap.keys, above))):
                w.leave()
            _put(o, heap, to, element(heap.keys, above), element(heap.order, above))
            w.assign(to, above)
        _put(o, heap, to, value, w.at(at))
    with w.branch(precedes(o.node, value, element(heap.keys, 0)), otherwise=True):
        _sink(o, heap, value, w.at(at), k)


def _sink(o: KernelBuilder, heap: Heap, key: Expression, number: Expression, length: Var | int) -> None:
    """The element moves down from the root, past all that are worse."""
    w, node, k = o.writer, o.node, o.node.shape[-1]
    to, child = w.variable("place", k, 0), Mutable("child", k)

    def worse(a: tuple[Expression, Expression], b: tuple[Expression, Expression]) -> Expression:
        """Whether key and number a must stand behind b."""
        equal = Infix("&&", Prefix("!", precedes(node, a[0], b[0])), Infix(">", a[1], b[1]))
        return Infix("||", precedes(node, b[0], a[0]), equal)

    with w.counting(child, 1, Infix("<", child, length), "=", to.index * 2 + 1):
        with w.branch(Infix("<", child.index + 1, length)):
            left, right = (w.let(name, element(heap.keys, child.index + i), node) for i, name in enumerate(("left", "right")))
            with w.branch(worse((right, element(heap.order, child.index + 1)), (left, element(heap.order, child)))):
                w.update(child, "+", 1)
        other = w.let("other", element(heap.keys, child), node)
        behind = Infix("||", precedes(node, other, key), Infix(">", number, element(heap.order, child)))
        with w.branch(Infix("&&", Prefix("!", precedes(node, key, other)), behind)):
            w.leave()
        _put(o, heap, to, other, element(heap.order, child))
        w.assign(to, child)
    _put(o, heap, to, key, number)


def _finish(o: KernelBuilder, heap: Heap, pointer: Buffer, first: Index) -> Kernel:
    """Takes the worst out of the heap until it is in order, and writes it."""
    w, node, k = o.writer, o.node, o.node.shape[-1]
    last = Mutable("last", k)
    with w.counting(last, heap.length.index - 1, Infix(">", last, 0), "-", 1):
        mine = w.let("mine", element(heap.keys, last), node)
        number = w.let("from", element(heap.order, last), node)
        _put(o, heap, last, element(heap.keys, 0), element(heap.order, 0))
        _sink(o, heap, mine, number, last)
    with o.loop("j", k, last=heap.length) as j:
        w.store(place(pointer, first + j), element(heap.order, j), node)
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
    return _finish(o, heap, o.temp(kept, "kept", "out") if kept else o.output(), (row * chunks + chunk) * k)


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
    return _finish(o, heap, o.output(), row * k)
