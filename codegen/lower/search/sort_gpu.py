"""argsort and topk on GPUs: bitonic sorting in local memory; of longer rows by digits, or chunk by chunk. Start at `sorts`, `selections`.

Elements are compared with their numbers behind them, so no two are equal and any sorting network is stable. A row too long for local
memory is sorted by its digits (radix.py). For topk a work-group sorts a chunk and keeps its best; launches follow until one chunk is left.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.index.index import ZERO, Mutable, Var, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Prefix, Select, element, place, value
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Bound, bound
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.search.radix import by_digits, in_order
from tracegrad.codegen.lower.workgroup import WorkGroup, precedes, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import int32
from tracegrad.support.tuning import tuning


def fitting(node: Node, context: Context) -> int:
    """Elements that local memory holds while they are sorted, a power of two; 0 where work-items cannot work together."""
    if room(context) < 2:
        return 0
    bytes_ = max(4, register_dtype(node.operands[0].dtype).itemsize) + 4
    most = min(tuning().sort_local, context.target.local_memory // bytes_)
    return 1 << (most.bit_length() - 1) if most > 1 else 0


def sorts(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of argsort; None where they are those of parts' owners."""
    node = group.anchor
    n, most = node.shape[-1], fitting(node, context)
    if n <= most:
        return [_bitonic(group, context, n, n, None, None)]
    x = node.operands[0]
    if not most or n >= 1 << 31:
        return None
    found = by_digits(group, context, node.aval.size // n, n, in_order(x, node.attrs["descending"]), True)
    return None if found is None else found[0]


def selections(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of topk; None where they are those of parts' owners."""
    node = group.anchor
    k, n = node.shape[-1], node.operands[0].shape[-1]
    most = fitting(node, context)
    if most < 4 * k and n > most:
        return None
    rows, left, source = node.aval.size // k, n, None
    kernels: list[Kernel] = []
    while True:
        length = left
        if left > most:
            length = most
            while length > max(tuning().select_chunk, 8 * k) and rows * -(-left // length) < context.target.groups(room(context)):
                length //= 2
        chunks = -(-left // length)
        last = left - (chunks - 1) * length
        kept = chunks * k if last >= k else (chunks - 1) * k + last
        into = None if chunks == 1 else Temp(f"kept_{len(kernels)}", node, rows * kept, int32)
        kernels.append(_bitonic(group, context, left, length, source, into))
        if into is None:
            return kernels
        left, source = kept, into


def _bitonic(group: Group, context: Context, n: int, length: int, source: Temp | None, into: Temp | None) -> Kernel:
    """Sorts chunks of `length` of the n elements of each row (or of those whose numbers are in `source`), and writes the best of each."""
    o = WorkGroup(group, context)
    node = o.node
    x, keep = node.operands[0], node.shape[-1]
    whole = x.shape[-1]
    rows = node.aval.size // keep
    width = max(2, 1 << (length - 1).bit_length())
    chunks = -(-n // length)
    most = room(context)
    items = min(most, width // 2)
    lines = 1
    if chunks == 1:                                          # short rows: several a group
        while 2 * lines * items <= most and 2 * lines * width <= fitting(node, context) and lines < rows:
            lines *= 2
    key, order = o.shared("keys", register_type(x.dtype), lines * width), o.shared("order", "int", lines * width)
    item = o.number("item", items, 0, "local")
    line = o.number("line", lines, 1, "local") if lines > 1 else None
    chunk = o.number("chunk", chunks, 0, "group") if chunks > 1 else None
    row = o.number("row", rows, 1, "global") if rows > 1 else None
    first, base, at_line = (v.index * size if v is not None else ZERO for v, size in ((chunk, length), (row, 1), (line, width)))
    there = [(row.index, rows)] if row is not None and rows % lines else []
    pointer = o.temp(source, "kept", "const") if source is not None else None
    w, e = o.writer, Var("e", width)
    with w.loop(e, item, width, items):
        i = first + e.index
        w.store(place(order, at_line + e.index), value(whole), node)         # beyond the end: behind all others
        with o.where(*[(e.index, length)] * (width > length), *[(i, n)] * (n % length > 0), *there):
            number = bounded(i, 0, n) if pointer is None else w.known("number", whole, element(pointer, base * n + i)).index
            w.store(place(key, at_line + e.index), o.value(x, base * whole + number), node)
            w.store(place(order, at_line + e.index), w.at(number), node)
    o.barrier()
    size, step, e = Mutable("size", width + 1), Mutable("step", width // 2 + 1), Var("e", width // 2)
    with w.counting(size, 2, Infix("<=", size, width), "*", 2), w.counting(step, Infix("/", size, 2), Infix(">", step, 0), "/", 2):
        with w.loop(e, item, width // 2, items):
            rest, half = Infix("%", e, step), Infix("/", size, 2)
            low = w.known("low", width, Infix("+", Infix("*", step.index * 2, Infix("/", e, step)), rest))
            crossed = Infix("-", Infix("+", low, Infix("*", 2, Infix("-", step, rest))), 1)
            high = w.known("high", width, Select(Infix("==", step, half), crossed, low.index + step.index))
            a, b = at_line + low.index, at_line + high.index
            here, there_ = w.let("here", element(order, a), node), w.let("there", element(order, b), node)
            with w.branch(_behind(node, (element(key, a), here), (element(key, b), there_), whole)):
                swap = w.let("swap", element(key, a), node)
                w.store(place(key, a), element(key, b), node)
                w.store(place(key, b), swap, node)
                w.store(place(order, a), there_, node)
                w.store(place(order, b), here, node)
        o.barrier()
    best = min(keep, length)
    out = o.temp(into, "kept_here", "out") if into is not None else o.output()
    per_row = keep if into is None else into.size // rows
    left = n - (chunks - 1) * length
    stop = bound(best)
    if chunk is not None and left < best:
        stop = Bound(Select(Infix("<", chunk, chunks - 1), best, min(best, left)), None, constant(best))
    e = Var("e", best)
    to = base * per_row + (chunk.index * best if chunk is not None else 0) + e.index
    with w.loop(e, item, stop, items), o.where(*there):
        w.store(place(out, to if left >= best else w.at(to)), element(order, at_line + e.index), node)      # the last chunk may keep fewer
    return o.done((chunks * items, -(-rows // lines) * lines), (items, lines), 0 if source is None else source.size)


def _behind(node: Node, a: tuple[Expression, Expression], b: tuple[Expression, Expression], whole: int) -> Expression:
    """Whether key and number a must stand behind b: by their numbers where the keys are equal; number `whole` stands behind all others."""
    (mine, first), (other, second) = a, b
    equal = Infix("&&", Prefix("!", precedes(node, mine, other)), Infix("<", second, first))
    order = Infix("||", Infix("||", Infix("==", first, whole), precedes(node, other, mine)), equal)
    return Infix("&&", Infix("&&", Infix("!=", first, second), Infix("<", second, whole)), order)
