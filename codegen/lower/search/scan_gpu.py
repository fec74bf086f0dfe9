"""Running sums, products and extremes on GPUs: reduce, then scan, in two launches. Start at `scans`.

A row is cut in chunks, of which a work-group adds up one; in the second launch a group puts together what the chunks before its own make,
and goes over its chunk in tiles from there. A tile is read by neighbours side by side, and scanned in local memory, a few
elements an item. Where the dimension is not the last, an item takes a part of a column, and its neighbours the columns beside it.

What elements make together has parts (`_Parts`): one number, or of products a pair where the device has no float64, as each product rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Expression, Literal, Load, Local, Operand, place
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Array, Bound, Buffer
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import cut, scratch, view
from tracegrad.codegen.lower.sums import Running, adds, in_pairs, of_pairs, running_dtype
from tracegrad.codegen.lower.workgroup import Spot, WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning

_EACH = 8            # elements of a tile that an item scans
_Parts = Sequence[Expression]


@lowering("scan", on="gpu")
def scans(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a scan; None where work-items cannot work together."""
    node = group.anchor
    outer, n, inner = view(node, node.attrs["dim"])
    bytes_ = max(4, register_dtype(_carried_in(node, context.target)).itemsize) * (1 + _products_in_pairs(node, context.target))
    size = room(context, 2 * bytes_ * (_EACH + 2) if inner == 1 else 2 * bytes_)
    if size < 2:
        return None
    groups = outer if inner == 1 else outer * -(-inner // min(32, size))
    least = max(tuning().scan_chunk, size * _EACH) if inner == 1 else max(2, tuning().scan_chunk // 16)
    chunks, length = cut(n, -(-context.target.groups(size) // groups), n // least, tuning().scan_chunks)
    whole = _across if inner == 1 else _down
    if chunks == 1:
        return [whole(group, context, size, length, None)]
    sums = [Temp(f"chunk_sums{end}", node, outer * chunks * inner, scratch(_carried_in(node, context.target)))
            for end in ("", "_low")[:1 + _products_in_pairs(node, context.target)]]
    return [_sums(group, context, size, length, sums), whole(group, context, size, length, sums)]


def _carried_in(node: Node, target: Target) -> DType:
    """The dtype of what is put together: products lose digits with every factor, sums are kept by pairs where there are many terms."""
    return node.dtype if adds(node) else running_dtype(node, target)


def _products_in_pairs(node: Node, target: Target) -> bool:
    """Whether what elements make is a pair everywhere. (Of sums it is one only where an item has many terms.)"""
    return not adds(node) and in_pairs(node, target)


class _Memory:
    """Arrays of a work-group, or buffers, of parts of what elements make."""

    def __init__(self, o: _Scan, parts: Sequence[Array | Buffer]) -> None:
        self.o, self.parts = o, parts

    def read(self, at: Operand) -> _Parts:
        return [Load(place(part, at), self.o.dtype) for part in self.parts]

    def store(self, at: Operand, values: _Parts) -> None:
        for part, value in zip(self.parts, values, strict=True):
            self.o.writer.store(place(part, at), value)


class _Scan(WorkGroup):
    def __init__(self, group: Group, context: Context) -> None:
        super().__init__(group, context)
        fn: Any = self.node.fn
        self.fn = fn
        self.dtype = _carried_in(self.node, context.target)
        self.type = register_type(self.dtype)
        zero = Literal(0, self.dtype)
        self.start: _Parts = [Literal(fn.identity(self.dtype), self.dtype), zero][:1 + _products_in_pairs(self.node, context.target)]
        self.outer, self.n, self.inner = view(self.node, self.node.attrs["dim"])
        self.x = self.node.operands[0]

    def both(self, a: _Parts, b: _Parts) -> _Parts:
        if len(a) > 1:
            return of_pairs(self.ev, self.node, "sum" if adds(self.node) else "product", a, b)
        if self.dtype == self.node.dtype:
            return [self.ev.joined(self.node, a[0], b[0])]
        return [self.ev.op(self.fn.combine, [a[0], b[0]], self.dtype, self.dtype, {})]

    def element(self, at: Index) -> Expression:
        """An element of the operand, in the dtype of the scan."""
        value = self.value(self.x, at)
        return value if self.dtype == self.node.dtype else self.ev.cast(value, self.dtype)

    def parts(self, element: Expression) -> _Parts:
        """What one element makes."""
        return [element, *(Literal(0, self.dtype) for _ in self.start[1:])]

    def put(self, at: Operand, value: Expression) -> None:
        """An element of the result."""
        value = value if self.dtype == self.node.dtype else self.ev.cast(value, self.node.dtype)
        self.writer.store(place(self.output(), at), value, self.node)

    def memory(self, name: str, size: int, parts: int = 0) -> _Memory:
        """An array of the work-group, of what elements make. parts: how many numbers that is."""
        lows = [self.writer.array(f"{name}_low", self.type, size, True) for _ in range(1, parts or len(self.start))]
        return _Memory(self, [self.shared(name, self.type, size), *lows])

    def temps(self, temps: list[Temp], access: str) -> _Memory:
        return _Memory(self, [self.temp(temp, temp.name, access) for temp in temps])

    def let(self, name: str, values: _Parts, changes: bool = False) -> list[Local]:
        """Variables with these values; changes: they are assigned to."""
        names = [name, *(f"{name}_low" for _ in values[1:])]
        return [self.writer.let(each, value, self.node, changes) for each, value in zip(names, values, strict=True)]

    def together(self, name: str, values: list[_Parts]) -> _Parts:
        """What they make, pairwise: of equal ones without rounding."""
        while len(values) > 1:
            odd = values[-1:] if len(values) % 2 else []
            values = [self.both(a, b) for a, b in zip(values[::2], values[1::2], strict=False)] + odd
        return self.let(name, values[0])

    def running(self, name: str, start: _Parts = ()) -> Running:
        """What many elements make, which begins so (or with none). Of sums what rounding loses stays there: `kept` has none of it."""
        return Running(self.ev, self.node, name, start or [*self.start, *[Literal(0, self.dtype)] * adds(self.node)])

    def kept(self, x: Running) -> _Parts:
        return x.parts[:len(self.start)]

    def tree_of(self, at: Spot, memory: _Memory) -> None:
        """What the items of a chunk have left in `memory` is put together."""
        self.tree(at, lambda to, of: memory.store(to, self.both(memory.read(to), memory.read(of))))


def _sums(group: Group, context: Context, size: int, length: int, sums: list[Temp]) -> Kernel:
    """What the elements of each chunk make."""
    o = _Scan(group, context)
    w, chunks = o.writer, -(-o.n // length)
    across = 1 if o.inner == 1 else min(32, size, 1 << (o.inner - 1).bit_length())
    lines = size // across
    array, pointer = o.memory("scratch", size, 2 if adds(o.node) else len(o.start)), o.temps(sums, "out")
    at = o.spot(o.outer, o.inner, lines, across, chunks)
    start, stop = o.ends(at.chunk, length, o.n)
    total, i = o.running("total"), Var("i", o.n)
    with o.where(*at.there), w.loop(i, start + at.item, stop, lines):
        total.take(*o.parts(o.element((at.row * o.n + i.index) * o.inner + at.column)))
    array.store(at.here, total.parts)
    o.tree_of(at, array)
    with o.first_of(at):
        pointer.store((at.row * chunks + at.chunk) * o.inner + at.column, array.read(at.first)[:len(pointer.parts)])
    return o.done()


def _before(o: _Scan, sums: list[Temp], at: Spot, chunks: int) -> Running:
    """What every so manieth of the `chunks` before this one makes, from the item's on."""
    source, prior = o.temps(sums, "const"), o.running("prior")
    e = Var("e", sums[0].size)
    with o.writer.loop(e, at.item, at.chunk, at.items):
        prior.take(*source.read((at.row * chunks + e.index) * o.inner + at.column))
    return prior


def _across(group: Group, context: Context, size: int, length: int, sums: list[Temp] | None) -> Kernel:
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
    mine, part = o.memory("scratch", lines * (lanes + few)), o.memory("total", lines * few)
    spot = o.spot(o.outer, 1, lanes, lines, chunks)
    item, row, there, line = spot.item, spot.row, spot.there, spot.lane
    start, stop = o.ends(spot.chunk, length, o.n)
    carry = o.running("carry")
    if sums is not None:
        before = _Memory(o, [*mine.parts, tile]) if adds(o.node) else mine   # what is lost stands where the first tile comes
        before.store(item, _before(o, sums, spot, chunks).parts)
        o.tree_of(spot, before)
        carry.take(*before.read(ZERO))
        if before is not mine:
            o.barrier()
    first = Var("first", o.n)

    def at(i: Index) -> Index:
        return line * pitch + i + i // 32                    # a gap after every 32, as items lie apart

    def read(i: Index) -> Expression:
        return Load(place(tile, at(i)), o.dtype)

    with w.loop(first, start, stop, count):
        with o.times("e", each) as e:
            i = first.index + e * lanes + item
            value = w.let("value", o.start[0], changes=True)
            with o.where((i, stop), *there):
                w.assign(value, o.element(row * o.n + bounded(i, 0, o.n)), o.node)
            w.store(place(tile, at(e * lanes + item)), value)
        o.barrier()
        share = o.together("share", [o.parts(read(item * each + e)) for e in range(each)])
        mine.store(line * (lanes + few) + item + item // some, share)
        o.barrier()
        with o.where((item, few)):
            here = line * (lanes + few) + item * (some + 1)
            part.store(line * few + item, o.together("all", [mine.read(here + e) for e in range(some)]))
        o.barrier()
        carried = o.running("carried", carry.parts)
        with o.times("e", few, item // some) as e:
            carried.take(*part.read(line * few + e))
        with o.times("e", lanes, item, item // some * some) as e:
            carried.take(*mine.read(line * (lanes + few) + e + item // some))
        with o.times("e", each) as e:
            carried.take(*o.parts(read(item * each + e)))
            w.store(place(tile, at(item * each + e)), carried.total)
        carry.take(*o.together("of_tile", [part.read(line * few + e) for e in range(few)]))
        o.barrier()
        with o.times("e", each) as e:
            i = first.index + e * lanes + item
            with o.where((i, stop), *there):
                to = row * o.n + bounded(i, 0, o.n)
                o.put(to if chunks == 1 else w.at(to), read(e * lanes + item))
    return o.done()


def _down(group: Group, context: Context, size: int, length: int, sums: list[Temp] | None) -> Kernel:
    """The scan of columns, or chunks of them: an item adds up its part of one, then scans it from what those before it make."""
    o = _Scan(group, context)
    w, chunks = o.writer, -(-o.n // length)
    across = min(32, size, 1 << (o.inner - 1).bit_length())
    lines = max(1, min(size // across, 1 << (length - 1).bit_length()))
    part = -(-length // lines)
    array = o.memory("scratch", across * lines)
    spot = o.spot(o.outer, o.inner, lines, across, chunks)
    row, column, there, first = spot.row, spot.column, spot.there, spot.first
    start, stop = o.ends(spot.chunk, length, o.n)
    at = start + spot.item * part
    begin = w.bounding("begin", o.n, Bound(w.least(at, stop), ZERO, at, o.n))
    end = w.bounding("end", o.n, Bound(w.least(begin.index + part, stop), ZERO, at + part, o.n))
    share, i = o.running("share"), Var("i", o.n)
    with o.where(*there), w.loop(i, begin, end):
        share.take(*o.parts(o.element((row * o.n + i.index) * o.inner + column)))
    array.store(spot.here, o.kept(share))
    others = None
    if sums is not None:
        others = o.memory("block", across * lines)
        with o.where(*there):
            others.store(spot.here, o.kept(_before(o, sums, spot, chunks)))
    o.barrier()
    with o.where(*there):
        carry = o.running("carry")
        if others is not None:
            with o.times("e", lines) as e:
                carry.take(*others.read(e * across + first))
        with o.times("e", lines, spot.item) as e:
            carry.take(*array.read(e * across + first))
        i = Var("i", o.n)
        with w.loop(i, begin, end):
            to = (row * o.n + i.index) * o.inner + column
            carry.take(*o.parts(o.element(to)))
            o.put(to if chunks == 1 or lines * part == length else w.at(to), carry.total)
    return o.done()
