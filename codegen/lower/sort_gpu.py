"""argsort and topk on GPUs: bitonic sorting in local memory; of longer rows by digits, or chunk by chunk. Start at `sorts`, `selections`.

Elements are compared with their numbers behind them, so no two are equal and any sorting network is stable. A row too long for local
memory is sorted by its digits (radix.py). For topk a work-group sorts a chunk and keeps its best; launches follow until one chunk is left.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.index import ZERO, Index
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.types import register_dtype, register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.radix import Keys, by_digits
from tracegrad.codegen.lower.workgroup import WorkGroup, precedes, put, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.dtypes import int32
from tracegrad.ir import Node


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
    found = by_digits(group, context, node.aval.size // n, n, Keys.of(x, node.attrs["descending"]), True)
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
    there = f"row < {rows}" if row is not None and rows % lines else ""
    base = row.index if row is not None else ZERO
    at = f"line * {width} + " if line is not None else ""
    start = f"chunk * {length} + " if chunk is not None else ""
    pointer = o.temp(source, "kept", "const") if source is not None else None
    with o.block(f"for (int e = item; e < {width}; e += {items}) {{"):
        i = o.at("i", n, f"{start}e", (item,))
        o.lines([f"{order}[{at}e] = {whole};"])              # beyond the end: behind all others
        inside = " && ".join([f"e < {length}"] * (width > length) + [f"i < {n}"] * (n % length > 0) + [there] * bool(there))
        with o.block(f"if ({inside}) {{" if inside else "{", i, *((row,) if row is not None else ())):
            where: Index = i.index
            if pointer is not None:
                where = o.at("number", whole, f"{pointer}[{(base * n + i.index).c()}]", (pointer,)).index
            o.lines([f"{key}[{at}e] = {o.load(x, base * whole + where)};", f"{order}[{at}e] = {where.c()};"])
    o.barrier()
    mine, other = f"{key}[{at}low]", f"{key}[{at}high]"
    first, second = f"{order}[{at}low]", f"{order}[{at}high]"
    before = f"{second} < {whole} && ({first} == {whole} || {precedes(node, other, mine)} || " \
        f"(!{precedes(node, mine, other)} && {second} < {first}))"
    with o.block(f"for (int size = 2; size <= {width}; size *= 2) {{"), o.block("for (int step = size / 2; step > 0; step /= 2) {"):
        with o.block(f"for (int e = item; e < {width // 2}; e += {items}) {{"):
            o.lines([
                "const int low = 2 * step * (e / step) + e % step;",
                "const int high = step == size / 2 ? low + 2 * (step - e % step) - 1 : low + step;",
                f"if ({first} != {second} && {before}) {{",
                f"  const {register_type(x.dtype)} swap = {mine};",
                f"  {mine} = {other};",
                f"  {other} = swap;",
                f"  const int number = {first};",
                f"  {first} = {second};",
                f"  {second} = number;",
                "}",
            ], (item,))
        o.barrier()
    best = min(keep, length)
    out = o.temp(into, "kept_here", "out") if into is not None else o.output()
    per_row = keep if into is None else into.size // rows
    place = (base * per_row + (chunk.index * best if chunk is not None else 0)).c()
    rest = n - (chunks - 1) * length
    stop = f"(chunk < {chunks - 1} ? {best} : {min(best, rest)})" if chunk is not None and rest < best else str(best)
    with o.block(f"for (int e = item; e < {stop}; e += {items}) {{"):
        line_ = put(out, f"{place} + e", f"{order}[{at}e]")
        o.lines([f"if ({there}) {line_}" if there else line_], tuple(v for v in (row, chunk) if v is not None), (out,))
    return o.done((chunks * items, -(-rows // lines) * lines), (items, lines), 0 if source is None else source.size)
