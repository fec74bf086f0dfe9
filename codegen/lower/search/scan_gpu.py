"""Running sums, products and extremes on GPUs: reduce, then scan, in three launches. Start at `scans`.

A row is cut in chunks, of which a work-group adds up one; a second launch scans the sums of the chunks; in the third a group goes over its
chunk in tiles, starting from what the chunks before it make. A tile is read by neighbours side by side, and scanned in local memory, a few
elements an item. Where the dimension is not the last, an item takes a part of a column, and its neighbours the columns beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Mutable, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Literal, Load, Local, Operand, Select, place
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Array, Bound, Buffer
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.serial import scratch, view
from tracegrad.codegen.lower.sums import add_to_pair, adds, running_dtype
from tracegrad.codegen.lower.workgroup import WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning

_EACH = 8            # elements of a tile that an item scans


def scans(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a scan; None where work-items cannot work together."""
    node = group.anchor
    outer, n, inner = view(node, node.attrs["dim"])
    bytes_ = max(4, register_dtype(_carried_in(node, context.target)).itemsize)
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
    sums = Temp("chunk_sums", node, outer * chunks * inner, scratch(_carried_in(node, context.target)))
    before = Temp("chunks_before", node, outer * chunks * inner, scratch(_carried_in(node, context.target)))
    between = _before_together if inner == 1 and chunks <= size else _before
    return [_sums(group, context, size, length, sums), between(group, context, chunks, sums, before),
            whole(group, context, size, length, before)]


def _carried_in(node: Node, target: Target) -> DType:
    """The dtype of what is put together: products lose digits with every factor, sums are kept by pairs where there are many terms."""
    return node.dtype if adds(node) else running_dtype(node, target)


class _Scan(WorkGroup):
    def __init__(self, group: Group, context: Context) -> None:
        super().__init__(group, context)
        fn: Any = self.node.fn
        self.fn = fn
        self.dtype = _carried_in(self.node, context.target)
        self.type = register_type(self.dtype)
        self.start = Literal(fn.identity(self.dtype), self.dtype)
        self.outer, self.n, self.inner = view(self.node, self.node.attrs["dim"])
        self.x = self.node.operands[0]

    def both(self, a: Expression, b: Expression) -> Expression:
        if self.dtype == self.node.dtype:
            return self.ev.joined(self.node, a, b)
        return self.ev.op(self.fn.combine, [a, b], self.dtype, self.dtype, {})

    def element(self, at: Index) -> Expression:
        """An element of the operand, in the dtype of the scan."""
        value = self.value(self.x, at)
        return value if self.dtype == self.node.dtype else self.ev.cast(value, self.dtype)

    def put(self, at: Operand, value: Expression) -> None:
        """An element of the result."""
        value = value if self.dtype == self.node.dtype else self.ev.cast(value, self.node.dtype)
        self.writer.store(place(self.output(), at), value, self.node)

    def take(self, to: Local, value: Expression) -> None:
        self.writer.assign(to, self.both(to, value), self.node)

    def read(self, memory: Buffer | Array, at: Operand) -> Load:
        return Load(place(memory, at), self.dtype)

    def together(self, name: str, values: list[Expression]) -> Local:
        """What they make, pairwise: of equal ones without rounding."""
        while len(values) > 1:
            odd = values[-1:] if len(values) % 2 else []
            values = [self.both(a, b) for a, b in zip(values[::2], values[1::2], strict=False)] + odd
        return self.writer.let(name, values[0], self.node)

    def begun(self, name: str, value: Expression) -> Local:
        """What the elements so far make, which begins so."""
        return self.writer.let(name, value, self.node, changes=True)

    def carried(self, start: Expression, name: str = "carry", low: Expression | None = None) -> _Carried:
        """What all elements before make, which begins so."""
        return _Carried(self, start, name, low)

    def chunk(self, length: int) -> tuple[Var | None, Index, Index]:
        """The number of the group's chunk, and where it starts and stops."""
        chunks = -(-self.n // length)
        chunk = self.number("chunk", chunks, 0 if self.inner == 1 else 1, "group") if chunks > 1 else None
        return chunk, *self.ends(chunk, length, self.n)


class _Carried:
    """What many elements make, or all before: of sums a pair."""

    def __init__(self, o: _Scan, start: Expression, name: str, low: Expression | None) -> None:
        self.o, self.total = o, o.begun(name, start)
        self.low = o.begun(f"{name}_low", low or o.start) if adds(o.node) else None

    def take(self, value: Expression) -> None:
        """More elements, or what some make."""
        if self.low is not None:
            add_to_pair(self.o.ev, self.o.node, self.total, self.low, value)
        else:
            self.o.take(self.total, value)


def _sums(group: Group, context: Context, size: int, length: int, sums: Temp) -> Kernel:
    """What the elements of each chunk make."""
    o = _Scan(group, context)
    w, chunks = o.writer, -(-o.n // length)
    across = 1 if o.inner == 1 else min(32, size, 1 << (o.inner - 1).bit_length())
    lines = size // across
    array = o.shared("scratch", o.type, size)
    pointer = o.temp(sums, "chunk_sums", "out")
    item = o.number("item", lines, 0 if o.inner == 1 else 1, "local")
    lane = o.number("lane", across, 0, "local").index if o.inner > 1 else ZERO
    column = o.number("column", o.inner, 0, "global").index if o.inner > 1 else ZERO
    row = o.number("row", o.outer, 1 if o.inner == 1 else 2, "global").index if o.outer > 1 else ZERO
    chunk, start, stop = o.chunk(length)
    assert chunk is not None
    there = [(column, o.inner)] if o.inner % across else []
    total, i = o.carried(o.start, "total"), Var("i", o.n)
    with o.where(*there), w.loop(i, start + item.index, stop, lines):
        total.take(o.element((row * o.n + i.index) * o.inner + column))
    mine = item.index * across + lane
    w.store(place(array, mine), total.total)
    o.barrier()
    with w.halving(item, lines) as half_size:
        w.store(place(array, mine), o.both(o.read(array, mine), o.read(array, mine + half_size * across)))
    with w.branch(Infix("==", item, 0), (("range", item.index, 0, 1),)), o.where(*there):
        w.store(place(pointer, (row * chunks + chunk.index) * o.inner + column), o.read(array, lane))
    if o.inner > 1:
        return o.done((-(-o.inner // across) * across, chunks * lines, o.outer), (across, lines, 1))
    return o.done((chunks * size, o.outer), (size, 1))


def _before(group: Group, context: Context, chunks: int, sums: Temp, before: Temp) -> Kernel:
    """What all chunks before each make: a column of them is one item's."""
    o = _Scan(group, context)
    w, source, pointer = o.writer, o.temp(sums, "chunk_sums", "const"), o.temp(before, "chunks_before", "out")
    column = o.item("column", o.inner)
    row = o.item("row", o.outer)
    carry = o.carried(o.start)
    with o.loop("i", chunks) as i:
        at = (row * chunks + i) * o.inner + column
        value = w.let("value", o.read(source, at))
        w.store(place(pointer, at), carry.total)
        carry.take(value)
    return replace(o.finish(), flops=sums.size, bytes=2 * sums.size * sums.dtype.itemsize)


def _before_together(group: Group, context: Context, chunks: int, sums: Temp, before: Temp) -> Kernel:
    """The same for rows: a chunk an item (Hillis & Steele 1986)."""
    o = _Scan(group, context)
    w, size = o.writer, max(1 << (chunks - 1).bit_length(), min(32, context.target.max_work_group))
    array = o.shared("scratch", o.type, size)
    source, pointer = o.temp(sums, "chunk_sums", "const"), o.temp(before, "chunks_before", "out")
    item = o.number("item", size, 0, "local")
    row = o.number("row", o.outer, 1, "group").index if o.outer > 1 else ZERO
    at = row * chunks + item.index
    w.store(place(array, item), Select(Infix("<", item, chunks), o.read(source, at), o.start), o.node)
    o.barrier()
    step = Mutable("step", chunks)
    with w.counting(step, 1, Infix("<", step, chunks), "*", 2):
        both = o.both(o.read(array, item.index - step.index), o.read(array, item))
        value = w.let("value", Select(Infix("<", item, step), o.read(array, item), both))
        o.barrier()
        w.store(place(array, item), value)
        o.barrier()
    with o.where((item.index, chunks)):
        w.store(place(pointer, at), Select(Infix(">", item, 0), o.read(array, item.index - 1), o.start))
    return o.done((size, o.outer), (size, 1), sums.size)


def _carry(o: _Scan, before: Temp | None, where: Index) -> _Carried:
    return o.carried(o.start if before is None else o.read(o.temp(before, "chunks_before", "const"), where))


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
    item = o.number("item", lanes, 0, "local").index
    line = o.number("line", lines, 1, "local").index if lines > 1 else ZERO
    row = o.number("row", o.outer, 1, "global" if lines > 1 else "group").index if o.outer > 1 else ZERO
    chunk, start, stop = o.chunk(length)
    there = [(row, o.outer)] if o.outer % lines else []
    carry = _carry(o, before, row * chunks + (chunk.index if chunk is not None else 0))
    first = Var("first", o.n)

    def at(i: Index) -> Index:
        return line * pitch + i + i // 32                    # a gap after every 32, as items lie apart

    with w.loop(first, start, stop, count):
        with o.times("e", each) as e:
            i = first.index + e * lanes + item
            value = w.let("value", o.start, changes=True)
            with o.where((i, stop), *there):
                w.assign(value, o.element(row * o.n + bounded(i, 0, o.n)), o.node)
            w.store(place(tile, at(e * lanes + item)), value)
        o.barrier()
        share = o.together("share", [o.read(tile, at(item * each + e)) for e in range(each)])
        w.store(place(mine, line * (lanes + few) + item + item // some), share)
        o.barrier()
        with o.where((item, few)):
            here = line * (lanes + few) + item * (some + 1)
            all_ = o.together("all", [o.read(mine, here + e) for e in range(some)])
            w.store(place(part, line * few + item), all_)
        o.barrier()
        carried = o.carried(carry.total, "carried", carry.low)
        with o.times("e", few, item // some) as e:
            carried.take(o.read(part, line * few + e))
        with o.times("e", lanes, item, item // some * some) as e:
            carried.take(o.read(mine, line * (lanes + few) + e + item // some))
        with o.times("e", each) as e:
            carried.take(o.read(tile, at(item * each + e)))
            w.store(place(tile, at(item * each + e)), carried.total)
        carry.take(o.together("of_tile", [o.read(part, line * few + e) for e in range(few)]))
        o.barrier()
        with o.times("e", each) as e:
            i = first.index + e * lanes + item
            with o.where((i, stop), *there):
                to = row * o.n + bounded(i, 0, o.n)
                o.put(to if chunks == 1 else w.at(to), o.read(tile, at(e * lanes + item)))
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
    column = o.number("column", o.inner, 0, "global").index
    row = o.number("row", o.outer, 2, "global").index if o.outer > 1 else ZERO
    chunk, start, stop = o.chunk(length)
    there = [(column, o.inner)] if o.inner % across else []
    at = start + line.index * part
    begin = w.bounding("begin", o.n, Bound(w.least(at, stop), ZERO, at, o.n))
    end = w.bounding("end", o.n, Bound(w.least(begin.index + part, stop), ZERO, at + part, o.n))
    share, i = o.carried(o.start, "share"), Var("i", o.n)
    with o.where(*there), w.loop(i, begin, end):
        share.take(o.element((row * o.n + i.index) * o.inner + column))
    w.store(place(array, line.index * across + lane.index), share.total)
    o.barrier()
    with o.where(*there):
        carry = _carry(o, before, (row * chunks + (chunk.index if chunk is not None else 0)) * o.inner + column)
        with o.times("e", lines, line) as e:
            carry.take(o.read(array, e * across + lane.index))
        i = Var("i", o.n)
        with w.loop(i, begin, end):
            to = (row * o.n + i.index) * o.inner + column
            carry.take(o.element(to))
            o.put(to if chunks == 1 or lines * part == length else w.at(to), carry.total)
    return o.done((-(-o.inner // across) * across, chunks * lines, o.outer), (across, lines, 1))
