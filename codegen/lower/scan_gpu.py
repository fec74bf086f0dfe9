"""Running sums and products on GPUs: reduce, then scan, in three launches. Start at `scans`.

A row is cut in chunks, of which a work-group adds up one; a second launch scans the sums of the chunks; in the third a group goes over its
chunk in tiles, starting from what the chunks before it make. A tile is read by neighbours side by side, and scanned in local memory, a few
elements an item. Where the dimension is not the last, an item takes a part of a column, and its neighbours the columns beside it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.expressions import Literal
from tracegrad.codegen.kernel.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.types import register_dtype, register_type
from tracegrad.codegen.kernel.vectors import Compound, Term, inside, plus
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.serial import scratch, view
from tracegrad.codegen.lower.workgroup import WorkGroup, put, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning

_EACH = 8            # elements of a tile that an item scans


def scans(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a scan; None where work-items cannot work together."""
    node = group.anchor
    outer, n, inner = view(node, node.attrs["dim"])
    bytes_ = max(4, register_dtype(node.dtype).itemsize)
    size = room(context, 2 * bytes_ * (_EACH + 2) if inner == 1 else bytes_)
    if size < 2:
        return None
    groups = outer if inner == 1 else outer * -(-inner // min(32, size))
    least = max(tuning().scan_chunk, size * _EACH) if inner == 1 else max(2, tuning().scan_chunk // 16)
    chunks = max(1, min(-(-context.target.groups(size) // groups), n // least, 256))          # an item goes over all
    length = -(-n // chunks)
    chunks = -(-n // length)
    whole = _across if inner == 1 else _down
    if chunks == 1:
        return [whole(group, context, size, length, None)]
    sums = Temp("chunk_sums", node, outer * chunks * inner, scratch(node.dtype))
    before = Temp("chunks_before", node, outer * chunks * inner, scratch(node.dtype))
    between = _before_together if inner == 1 and chunks <= size else _before
    return [_sums(group, context, size, length, sums), between(group, context, chunks, sums, before),
            whole(group, context, size, length, before)]


class _Scan(WorkGroup):
    def __init__(self, group: Group, context: Context) -> None:
        super().__init__(group, context)
        fn: Any = self.node.fn
        self.fn = fn
        self.dtype = self.node.dtype
        self.type = register_type(self.dtype)
        self.start = self.writer.shown(Literal(fn.identity(self.dtype), self.dtype))
        self.outer, self.n, self.inner = view(self.node, self.node.attrs["dim"])
        self.x = self.node.operands[0]

    def both(self, a: str, b: str) -> str:
        if self.dtype.kind == "b":
            return f"{a} {self.fn.bools} {b}"
        if not self.fn.wraps or self.dtype.kind != "i":
            return str(self.fn.combine(a, b))
        wide = register_type(np.dtype(f"u{self.dtype.name}"))
        return f"({self.type}){self.fn.combine(f'({wide}){a}', f'({wide}){b}')}"

    def chunk(self, length: int) -> tuple[Var | None, Term, Term]:
        """The number of the group's chunk, and where it starts and stops."""
        chunks = -(-self.n // length)
        if chunks == 1:
            return None, 0, self.n
        chunk = self.number("chunk", chunks, 0 if self.inner == 1 else 1, "group")
        start = plus(("chunk", length))
        return chunk, start, inside(plus(start, length), self.n, self.n % length == 0)


def _sums(group: Group, context: Context, size: int, length: int, sums: Temp) -> Kernel:
    """What the elements of each chunk make."""
    o = _Scan(group, context)
    w, chunks = o.writer, -(-o.n // length)
    across = 1 if o.inner == 1 else min(32, size, 1 << (o.inner - 1).bit_length())
    lines = size // across
    array = o.shared("scratch", o.type, size)
    pointer = o.temp(sums, "chunk_sums", "out")
    item = o.number("item", lines, 0 if o.inner == 1 else 1, "local")
    lane = o.number("lane", across, 0, "local") if o.inner > 1 else None
    chunk, start, stop = o.chunk(length)
    assert chunk is not None
    column = o.number("column", o.inner, 0, "global") if o.inner > 1 else None
    row = o.number("row", o.outer, 1 if o.inner == 1 else 2, "global").index if o.outer > 1 else ZERO
    total = w.declare(o.fn.total, Literal(o.fn.identity(o.dtype), o.dtype), o.node)
    guard = o.block(f"if (column < {o.inner}) {{", column) if column is not None else nullcontext()
    with guard, o.each("i", o.n, f"{start} + item", str(stop), lines, (chunk, item)) as i:
        value = o.load(o.x, (row * o.n + i.index) * o.inner + (column.index if column is not None else 0))
        o.lines([f"{total.name} = {o.both(total.name, value)};"], (total,))
    place = f"item * {across} + lane" if lane is not None else "item"
    o.lines([f"{array}[{place}] = {total.name};"], (total, item))
    o.barrier()
    with o.block(f"for (int half_size = {lines // 2}; half_size > 0; half_size /= 2) {{"):
        other = f"item * {across} + half_size * {across} + lane" if lane is not None else "item + half_size"
        o.lines([f"if (item < half_size) {array}[{place}] = {o.both(f'{array}[{place}]', f'{array}[{other}]')};"], (item,))
        o.barrier()
    where = (row * chunks + chunk.index) * o.inner
    if column is not None:
        line = put(pointer, (where + column.index).c(), f"{array}[lane]")
        o.lines([f"if (item == 0 && column < {o.inner}) {line}"], (row, chunk, column), (pointer,))
        return o.done((-(-o.inner // across) * across, chunks * lines, o.outer), (across, lines, 1))
    o.lines([f"if (item == 0) {put(pointer, where.c(), f'{array}[0]')}"], (row, chunk), (pointer,))
    return o.done((chunks * size, o.outer), (size, 1))


def _before(group: Group, context: Context, chunks: int, sums: Temp, before: Temp) -> Kernel:
    """What all chunks before each make: a column of them is one item's."""
    o = _Scan(group, context)
    source, pointer = o.temp(sums, "chunk_sums", "const"), o.temp(before, "chunks_before", "out")
    column = o.item("column", o.inner)
    row = o.item("row", o.outer)
    at = plus(row * chunks * o.inner + column, ("i", o.inner))
    o.lines([
        f"{o.type} carry = {o.start};",
        f"for (int i = 0; i < {chunks}; i++) {{",
        f"  {o.type} value = {source}[{at}];",
        f"  {put(pointer, at, 'carry')}",
        f"  carry = {o.both('carry', 'value')};",
        "}",
    ], (row, column, source), (pointer,))
    return replace(o.finish(), flops=sums.size, bytes=2 * sums.size * sums.dtype.itemsize)


def _before_together(group: Group, context: Context, chunks: int, sums: Temp, before: Temp) -> Kernel:
    """The same for rows: a chunk an item (Hillis & Steele 1986)."""
    o = _Scan(group, context)
    size = max(1 << (chunks - 1).bit_length(), min(32, context.target.max_work_group))
    array = o.shared("scratch", o.type, size)
    source, pointer = o.temp(sums, "chunk_sums", "const"), o.temp(before, "chunks_before", "out")
    item = o.number("item", size, 0, "local")
    row = o.number("row", o.outer, 1, "group").index if o.outer > 1 else ZERO
    at = str(plus(row * chunks, "item"))
    o.lines([f"{array}[item] = item < {chunks} ? {source}[{plus(row * chunks, Compound(f'min(item, {chunks - 1})'))}] : {o.start};"],
            (item, row, source))
    o.barrier()
    with o.block(f"for (int step = 1; step < {chunks}; step *= 2) {{"):
        o.lines([f"const {o.type} value = item < step ? {array}[item] : {o.both(f'{array}[item - step]', f'{array}[item]')};"], (item,))
        o.barrier()
        o.lines([f"{array}[item] = value;"], (item,))
        o.barrier()
    o.lines([f"if (item < {chunks}) {put(pointer, at, f'item == 0 ? {o.start} : {array}[item - 1]')}"], (item, row), (pointer,))
    return o.done((size, o.outer), (size, 1), sums.size)


def _carry(o: _Scan, before: Temp | None, where: Index) -> None:
    if before is None:
        o.lines([f"{o.type} carry = {o.start};"])
        return
    pointer = o.temp(before, "chunks_before", "const")
    o.lines([f"{o.type} carry = {pointer}[{where.c()}];"], (pointer, where))


def _across(group: Group, context: Context, size: int, length: int, before: Temp | None) -> Kernel:
    """The scan of rows, or chunks of them, in tiles."""
    o = _Scan(group, context)
    w, chunks = o.writer, -(-o.n // length)
    each = min(_EACH, max(1, -(-length // 32)))
    lanes = min(size, 1 << (-(-length // each) - 1).bit_length())             # of a row; a group does several short ones
    lines = max(1, min(size // lanes, 1 << (o.outer - 1).bit_length())) if chunks == 1 else 1
    few = 1
    while few * few < lanes:
        few *= 2
    some = lanes // few
    count = lanes * each
    pitch = count + count // 32 + 1
    tile = o.shared("tile", o.type, lines * pitch)
    mine, part = o.shared("scratch", o.type, lines * (lanes + few)), o.shared("total", o.type, lines * few)
    item = o.number("item", lanes, 0, "local")
    line = o.number("line", lines, 1, "local") if lines > 1 else None
    chunk, start, stop = o.chunk(length)
    row = o.number("row", o.outer, 1, "global" if lines > 1 else "group") if o.outer > 1 else None
    there = f" && row < {o.outer}" if row is not None and o.outer % lines else ""
    out = o.output()
    base = row.index * o.n if row is not None else ZERO
    chunk_at = (row.index if row is not None else ZERO) * chunks + (chunk.index if chunk is not None else 0)
    _carry(o, before, chunk_at)
    at_tile, at_item, at_part = (f"line * {n} + " if line is not None else "" for n in (pitch, lanes + few, few))

    def place(text: str) -> str:
        return f"{tile}[{at_tile}{text} + {text} / 32]"

    with o.block(f"for ({w.index} first = {start}; first < {stop}; first += {count}) {{"):
        with o.block(f"for (int e = 0; e < {each}; e++) {{"):
            i = o.at("i", o.n, f"first + e * {lanes} + item", (item,))
            o.lines([f"{o.type} value = {o.start};"])
            with o.block(f"if (i < {stop}{there}) {{", i, *((row,) if row is not None else ())):
                o.lines([f"value = {o.load(o.x, base + i.index)};"])
            o.lines([f"{place(f'(e * {lanes} + item)')} = value;"])
        o.barrier()
        o.lines([
            f"{o.type} share = {place(f'(item * {each})')};",
            f"for (int e = 1; e < {each}; e++) share = {o.both('share', place(f'(item * {each} + e)'))};",
            f"{mine}[{at_item}item + item / {some}] = share;",
        ], (item,))
        o.barrier()
        with o.block(f"if (item < {few}) {{"):
            o.lines([
                f"{o.type} all = {mine}[{at_item}item * {some + 1}];",
                f"for (int e = 1; e < {some}; e++) all = {o.both('all', f'{mine}[{at_item}item * {some + 1} + e]')};",
                f"{part}[{at_part}item] = all;",
            ], (item,))
        o.barrier()
        o.lines([
            f"{o.type} carried = carry;",
            f"for (int e = 0; e < item / {some}; e++) carried = {o.both('carried', f'{part}[{at_part}e]')};",
            f"for (int e = item / {some} * {some}; e < item; e++) carried = {o.both('carried', f'{mine}[{at_item}e + item / {some}]')};",
            f"for (int e = 0; e < {few}; e++) carry = {o.both('carry', f'{part}[{at_part}e]')};",
            f"for (int e = 0; e < {each}; e++) {{",
            f"  carried = {o.both('carried', place(f'(item * {each} + e)'))};",
            f"  {place(f'(item * {each} + e)')} = carried;",
            "}",
        ], (item,))
        o.barrier()
        with o.block(f"for (int e = 0; e < {each}; e++) {{"):
            i = o.at("i", o.n, f"first + e * {lanes} + item", (item,))
            with o.block(f"if (i < {stop}{there}) {{", i):
                o.lines([put(out, (base + i.index).c(), place(f"(e * {lanes} + item)"))], (), (out,))
    return o.done((chunks * lanes, -(-o.outer // lines) * lines), (lanes, lines))


def _down(group: Group, context: Context, size: int, length: int, before: Temp | None) -> Kernel:
    """The scan of columns, or chunks of them: an item adds up its part of one, then scans it from what those before it make."""
    o = _Scan(group, context)
    w, chunks = o.writer, -(-o.n // length)
    across = min(32, size, 1 << (o.inner - 1).bit_length())
    lines = max(1, min(size // across, 1 << (length - 1).bit_length()))
    part = -(-length // lines)
    array = o.shared("scratch", o.type, across * lines)
    lane, line = o.number("lane", across, 0, "local"), o.number("line", lines, 1, "local")
    column = o.number("column", o.inner, 0, "global")
    chunk, start, stop = o.chunk(length)
    row = o.number("row", o.outer, 2, "global").index if o.outer > 1 else ZERO
    out = o.output()
    o.lines([f"const {w.index} begin = min({plus(start, ('line', part))}, {stop}), end = min(begin + {part}, {stop});",
             f"{o.type} share = {o.start};"], (line, lane))

    def at(i: Var) -> Index:
        return (row * o.n + i.index) * o.inner + column.index

    with o.block(f"if (column < {o.inner}) {{", column), o.each("i", o.n, "begin", "end", 1, (line,)) as i:
        o.lines([f"share = {o.both('share', o.load(o.x, at(i)))};"])
    o.lines([f"{array}[line * {across} + lane] = share;"])
    o.barrier()
    with o.block(f"if (column < {o.inner}) {{", column):
        _carry(o, before, (row * chunks + (chunk.index if chunk is not None else 0)) * o.inner + column.index)
        o.lines([f"for (int e = 0; e < line; e++) carry = {o.both('carry', f'{array}[e * {across} + lane]')};"])
        with o.each("i", o.n, "begin", "end", 1, (line,)) as i:
            o.lines([f"carry = {o.both('carry', o.load(o.x, at(i)))};", put(out, at(i).c(), "carry")], (), (out,))
    return o.done((-(-o.inner // across) * across, chunks * lines, o.outer), (across, lines, 1))
