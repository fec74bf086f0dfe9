"""Stable sorting by digits of 4 bits, the lowest first, in three launches a digit. Start at `by_digits`.

A row is cut in chunks. The first launch counts each chunk's digits; the second finds where each chunk's elements of each digit go; in the
third a work-group goes over its chunk in tiles, ranks a tile's elements in local memory, and writes them digit by digit, so that neighbours
write side by side. Nothing depends on the order of work-groups. What is sorted by are unsigned numbers (`Keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import (
    Bits,
    Cast,
    Expression,
    Infix,
    Literal,
    Load,
    Prefix,
    Select,
    element,
    place,
    whole,
)
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, Array, Bound
from tracegrad.codegen.kernel.ir.types import register_dtype
from tracegrad.codegen.kernel.ir.vectors import ceil_div
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.workgroup import WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind, int32
from tracegrad.support.plan import Plain

_BITS, _DIGITS = 4, 16
_EACH = 4                               # elements of a tile that are one item's


class Keys(Plain):
    """How an element becomes an unsigned number. bits: how many of it count; of(o, at): that of element `at`, in the block that is open."""

    wide: bool                          # 64 bits
    bits: int
    of: Callable[[WorkGroup, Index], Expression]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint64 if self.wide else np.uint32)

    @property
    def type(self) -> str:
        return "ulong" if self.wide else "uint"


def in_order(x: Node, descending: bool) -> Keys:
    """Numbers that stand in the order of x's elements: all zeros are one, and so are all NaNs, behind the others."""
    held = register_dtype(x.dtype)
    wide = held.itemsize == 8
    unsigned, signed = (np.dtype(np.uint64), np.dtype(np.int64)) if wide else (np.dtype(np.uint32), np.dtype(np.int32))
    top, all_ = (Literal(n, unsigned) for n in (1 << 8 * unsigned.itemsize - 1, (1 << 8 * unsigned.itemsize) - 1))

    def key(o: WorkGroup, at: Index) -> Expression:
        w = o.writer
        value: Expression = o.value(x, at)
        if dtype_kind(held) == "f":
            bits = w.let("bits", Bits(Select(Infix("==", value, 0), Literal(0, held), value), unsigned), o.node)      # of -0.0, too
            found: Expression = Select(Infix(">=", bits, top), Prefix("~", bits), Infix("|", bits, top))
            found = Select(Infix("!=", value, value), all_, found)
        else:
            found = Cast(Cast(value, signed) if x.dtype.kind == "i" else value, unsigned)
            found = Infix("^", found, top) if x.dtype.kind == "i" else found
        return w.let("key", Prefix("~", found) if descending else found, o.node)

    bits = 8 * held.itemsize
    if x.dtype.kind in "bu" and not descending:
        bits = 1 if x.dtype.kind == "b" else 8 * x.dtype.itemsize
    return Keys(wide, bits, key)


def by_digits(group: Group, context: Context, rows: int, n: int, keys: Keys, result: bool) -> tuple[list[Kernel], Temp, Temp] | None:
    """The kernels that sort rows of n, and the buffers of the sorted keys and of where each came from; None where that cannot be done.

    result: where they came from is the node's value, and that is all that is wanted.
    """
    node = group.anchor
    size = room(context, 17 * 4 + _EACH * (keys.dtype.itemsize + 4) + 8)
    if size < _DIGITS:
        return None
    tile = size * _EACH
    chunks = max(1, min(ceil_div(context.target.groups(size), rows), ceil_div(n, tile)))
    length = ceil_div(ceil_div(n, chunks), tile) * tile
    chunks = -(-n // length)
    sides = [(Temp(f"sorted_keys_{s}", node, rows * n, keys.dtype), Temp(f"sorted_order_{s}", node, rows * n, int32)) for s in "ab"]
    counts = Temp("digit_counts", node, rows * _DIGITS * chunks, int32)
    kernels: list[Kernel] = []
    source: tuple[Temp, Temp] | None = None
    passes = max(1, -(-keys.bits // _BITS))
    for number in range(passes):
        p = _Pass(group, context, rows, n, size, chunks, length, keys, _BITS * number, source, counts)
        into = sides[number % 2]
        kernels += [p.count(), p.places(), p.move(into, result and number == passes - 1)]
        source = into
    assert source is not None
    return kernels, *source


class _Pass(Plain):
    """One digit. source: keys and places as the digit before left them; None for the first."""

    group: Group
    context: Context
    rows: int
    n: int
    size: int
    chunks: int
    length: int
    keys: Keys
    shift: int
    source: tuple[Temp, Temp] | None
    counts: Temp

    def numbers(self, o: WorkGroup) -> tuple[Var, Var | None, Index]:
        """The item in its group, its chunk, its row."""
        item = o.number("item", self.size, 0, "local")
        chunk = o.number("chunk", self.chunks, 0, "group") if self.chunks > 1 else None
        row = o.number("row", self.rows, 1, "group").index if self.rows > 1 else ZERO
        return item, chunk, row

    def key(self, o: WorkGroup, row: Index, i: Index) -> Expression:
        """The key of element i of the row."""
        if self.source is None:
            return self.keys.of(o, row * self.n + i)
        return element(o.temp(self.source[0], "keys_in", "const"), row * self.n + i)

    def digit(self, o: WorkGroup, key: Expression) -> Var:
        shifted = Infix(">>", key, whole(self.shift)) if self.shift else key
        return o.writer.known("digit", _DIGITS, Cast(Infix("&", shifted, whole(_DIGITS - 1)), int32), node=o.node)

    def at_count(self, row: Index, chunk: Var | None, digit: Var) -> Index:
        return (row * _DIGITS + digit.index) * self.chunks + (chunk.index if chunk is not None else 0)

    def count(self) -> Kernel:
        """How many of each digit a chunk has."""
        o = WorkGroup(self.group, self.context)
        w, size = o.writer, self.size
        counts = o.shared("counts", "int", _DIGITS * size)
        item, chunk, row = self.numbers(o)
        out = o.temp(self.counts, "digit_counts", "out")
        with o.times("e", _DIGITS) as e:
            w.store(place(counts, e * size + item.index), whole(0))
        first, stop = o.ends(chunk, self.length, self.n)
        i = Var("i", self.n)
        with w.loop(i, first + item.index, stop, size):
            digit = self.digit(o, self.key(o, row, i.index))
            w.update(place(counts, digit.index * size + item.index), "+", 1)
        o.barrier()
        with w.halving(item, size) as half_size, o.times("e", _DIGITS) as e:
            at = e * size + item.index
            w.update(place(counts, at), "+", element(counts, at + half_size))
        with o.where((item.index, _DIGITS)):
            w.store(place(out, self.at_count(row, chunk, item)), element(counts, item.index * size), o.node)
        return o.done((self.chunks * size, self.rows), (size, 1), self.rows * self.n)

    def places(self) -> Kernel:
        """Counts become where the first of each goes: those of lower digits, and of the same digit in earlier chunks, are before it."""
        o = WorkGroup(self.group, self.context)
        w = o.writer
        total, size = _DIGITS * self.chunks, min(self.size, 64 if self.chunks <= 256 else 256)
        each = ceil_div(total, size)
        scratch = o.shared("scratch", "int", size)
        item = o.number("item", size, 0, "local")
        row = o.number("row", self.rows, 1, "group").index if self.rows > 1 else ZERO
        out = o.temp(self.counts, "digit_counts", "inout")
        begin = w.bounding("begin", total, Bound(w.least(item.index * each, total), ZERO, item.index * each, total))
        end = w.bounding("end", total, Bound(w.least(begin.index + each, total), ZERO, item.index * each + each, total))
        share = w.let("share", whole(0), changes=True)
        e = Var("e", total)
        with w.loop(e, begin, end):
            w.update(share, "+", element(out, row * total + e.index))
        w.store(place(scratch, item), share)
        o.barrier()
        carry = w.let("carry", whole(0), changes=True)
        with o.times("e", size, item) as e_:
            w.update(carry, "+", element(scratch, e_))
        e = Var("e", total)
        with w.loop(e, begin, end):
            count = w.let("count", element(out, row * total + e.index))
            w.store(place(out, row * total + e.index), carry)
            w.update(carry, "+", count)
        return o.done((size, self.rows), (size, 1), self.counts.size)

    def move(self, into: tuple[Temp, Temp], last: bool) -> Kernel:
        """Each element goes to its place; last: only where it came from is written, as the result."""
        o = WorkGroup(self.group, self.context)
        w, node, size, tile_size, type_ = o.writer, o.node, self.size, self.size * _EACH, self.keys.type
        keys, order = (o.shared(name, t, tile_size + tile_size // 32) for name, t in (("keys", type_), ("order", "int")))
        ranks = o.shared("counts", "int", 17 * size)         # of (digit, item), a gap after every 16: those are one item's to add up
        group = 1 << ((size.bit_length() - 1) // 2)           # what items in front have is added up in two levels
        totals = o.shared("scratch", "int", size + size // group)
        base, begins = o.shared("base", "int", _DIGITS), o.shared("begin", "int", _DIGITS + 1)
        item, chunk, row = self.numbers(o)
        starts = o.temp(self.counts, "digit_counts", "const")
        pointers = [] if last else [o.temp(t, name, "out") for t, name in zip(into, ("keys_out", "order_out"), strict=True)]
        out = o.output() if last else pointers[1]
        with o.where((item.index, _DIGITS)):
            w.store(place(base, item), element(starts, self.at_count(row, chunk, item)))

        def spread(at: Index) -> Index:
            return at + at // 32                             # a gap after every 32, as items lie apart

        def rank(digit: Index) -> Access:
            at = digit * size + item.index
            return place(ranks, at + at // _DIGITS)

        first, stop = o.ends(chunk, self.length, self.n)
        tile = Var("tile", self.n)
        with w.loop(tile, first, stop, tile_size):
            count = w.known("count", tile_size + 1, w.least(Infix("-", stop, tile), tile_size))
            e = Var("e", tile_size)
            with w.loop(e, item, tile_size, size), o.where((tile.index + e.index, stop)):
                i = bounded(tile.index + e.index, 0, self.n)
                number: Expression = Cast(w.at(i), int32) if w.index != "int" else w.at(i)
                if self.source is not None:
                    number = element(o.temp(self.source[1], "order_in", "const"), row * self.n + i)
                w.store(place(keys, spread(e.index)), self.key(o, row, i), node)
                w.store(place(order, spread(e.index)), number, node)
            with o.times("e", _DIGITS) as digit:
                w.store(rank(digit), whole(0))
            o.barrier()
            key, held = (w.array(name, t, _EACH, reserved=True) for name, t in (("key", type_), ("number", "int")))
            with o.times("e", _EACH, unrolled=True) as e_:     # key and number stay in registers
                at = item.index * _EACH + e_
                with o.where((at, count)):
                    w.store(place(key, e_), element(keys, spread(at)))
                    w.store(place(held, e_), element(order, spread(at)))
                    w.update(rank(self.digit(o, element(key, e_)).index), "+", 1)
            o.barrier()
            share = w.let("share", whole(0), changes=True)
            with o.times("e", _DIGITS) as e_:
                w.update(share, "+", element(ranks, item.index * (_DIGITS + 1) + e_))
            w.store(place(totals, item.index + item.index // group), share)
            o.barrier()
            with o.where((item.index, size // group)):
                all_ = w.let("all", whole(0), changes=True)
                with o.times("e", group) as e_:
                    w.update(all_, "+", element(totals, item.index * (group + 1) + e_))
                w.store(place(keys, item), Cast(all_, self.keys.dtype))
            o.barrier()
            self.carried(o, item, (keys, totals, ranks, begins), group)
            o.barrier()
            with o.times("e", _EACH, unrolled=True) as e_, o.where((item.index * _EACH + e_, count)):
                digit_ = self.digit(o, element(key, e_))
                to = w.known("to", tile_size, Load(rank(digit_.index), int32))
                w.store(rank(digit_.index), w.at(to.index + 1))
                w.store(place(keys, spread(to.index)), element(key, e_))
                w.store(place(order, spread(to.index)), element(held, e_))
            o.barrier()
            e = Var("e", tile_size)
            with w.loop(e, item, count, size):
                digit_ = self.digit(o, element(keys, spread(e.index)))
                moved = Infix("-", Infix("+", element(base, digit_), e), element(begins, digit_))
                to = w.known("to", self.rows * self.n, moved if row is ZERO else Infix("+", row * self.n, moved))
                if not last:
                    w.store(place(pointers[0], w.at(to)), element(keys, spread(e.index)))
                w.store(place(out, w.at(to)), element(order, spread(e.index)), node)
            o.barrier()
            with o.where((item.index, _DIGITS)):
                w.update(place(base, item), "+", Infix("-", element(begins, item.index + 1), element(begins, item)))
            o.barrier()
        return o.done((self.chunks * size, self.rows), (size, 1), self.rows * self.n)

    def carried(self, o: WorkGroup, item: Var, arrays: tuple[Array, ...], group: int) -> None:
        """The counts of (digit, item) become where in the tile the first of them goes; and where the first of each digit does."""
        w, size = o.writer, self.size
        keys, totals, ranks, begins = arrays
        carry = w.let("carry", whole(0), changes=True)
        with o.times("e", size // group, item.index // group) as e_:
            w.update(carry, "+", Cast(element(keys, e_), int32))
        e = Var("e", size)
        with w.loop(e, item.index // group * group, item):
            w.update(carry, "+", element(totals, e.index + item.index // group))
        with o.times("e", _DIGITS) as e_:
            place_ = item.index * _DIGITS + e_                # digit * size + item of the one that it belongs to
            here = w.let("here", element(ranks, item.index * (_DIGITS + 1) + e_))
            w.store(place(ranks, item.index * (_DIGITS + 1) + e_), carry)
            with w.branch(Infix("==", place_ % size, 0)):
                w.store(place(begins, place_ // size), carry)
            w.update(carry, "+", here)
        with w.branch(Infix("==", item, size - 1)):
            w.store(place(begins, _DIGITS), carry)
