"""Stable sorting by digits, the lowest first, in one launch a digit and one before them all. Start at `by_digits`.

A row is cut in chunks, each of which is a work-group's. The first launch counts each chunk's digits. Then a launch a digit: a work-group
finds where its chunk's elements of each digit go, from the counts of all chunks; goes over its chunk in tiles; sorts a tile by the digit in
local memory, a few bits at a time; and writes it, so that neighbours write side by side. It also counts the next digit in the chunk that
an element comes to, with atomics. (Of very many elements a launch of its own counts, in local memory.) Atomics change integers only, so
nothing depends on the order of work-groups. What is sorted by are unsigned numbers (`Keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import Index, Var, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import (
    Bits,
    Call,
    Cast,
    Expression,
    Infix,
    Literal,
    Load,
    Local,
    Prefix,
    Select,
    element,
    place,
    whole,
)
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, Array, Block
from tracegrad.codegen.kernel.ir.types import register_dtype
from tracegrad.codegen.kernel.ir.vectors import ceil_div
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.workgroup import WorkGroup, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind, int32, uint32
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning

_ASKED = 8                              # chunks' counts that an item asks for together
_RANKED = 4                             # bits that a tile is sorted by in one step: counts of 8 pairs of digits an item

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


class Sorted(Plain):
    """What sorting leaves: the kernels, where each element came from; where the elements of each key begin and end, if wanted.

    An element of `begins` is not below that of `ends` where no element has the key.
    """

    kernels: list[Kernel]
    order: Temp
    begins: Temp | None
    ends: Temp | None


def by_digits(group: Group, context: Context, rows: int, n: int, keys: Keys, result: bool = False, different: int = 0) -> Sorted | None:
    """Sort rows of n; None where that cannot be done.

    result: where they came from is the node's value, and that is all that is wanted. different: of one row, how many keys there can be,
    if it is to be found out where each begins and ends.
    """
    node = group.anchor
    each = tuning().sort_each
    while each > 1 and room(context, _bytes(keys, each)) < room(context):
        each //= 2
    size = room(context, _bytes(keys, each))
    if size < 4:
        return None
    # Few elements keep more of the device busy with fewer for each item, as long as there are few chunks.
    while each > 2 and rows * n < each * context.target.items // 4 and ceil_div(n, size * (each - 1)) <= tuning().sort_few_chunks:
        each -= 1
    most = min(tuning().digit_bits, size.bit_length() - 1)               # an item finds where a digit goes
    passes = max(1, ceil_div(keys.bits, most))
    bits = ceil_div(max(1, keys.bits), passes)
    tile = size * each
    chunks = max(1, min(ceil_div(context.target.groups(size), rows), tuning().sort_chunks, ceil_div(n, tile)))
    length = ceil_div(ceil_div(n, chunks), tile) * tile
    chunks = -(-n // length)
    sides = [(Temp(f"sorted_keys_{s}", node, rows * n, keys.dtype), Temp(f"sorted_order_{s}", node, rows * n, int32)) for s in "ab"]
    counts = [Temp(f"digit_counts_{k}", node, (rows * chunks) << bits, int32) for k in range(passes)]
    bounds = (Temp("key_begins", node, different, int32), Temp("key_ends", node, different, int32)) if different else None
    counted = rows * n <= tuning().sort_counted
    kernels: list[Kernel] = []
    source: tuple[Temp, Temp] | None = None
    for number in range(passes):
        p = _Pass(group, context, rows, n, size, each, chunks, length, keys, bits, number, source, tuple(counts), bounds)
        into, last = sides[number % 2], number == passes - 1
        if number == 0 or not counted:
            kernels.append(p.count(tuple(counts[1:]) if counted and not number else (), bounds if not number else None))
        kernels.append(p.move(into, result and last, last, counted and not last))
        source = into
    assert source is not None
    return Sorted(kernels, source[1], *(bounds or (None, None)))


def _bytes(keys: Keys, each: int) -> int:
    """Of local memory an item: its elements, the counts of its digits, its share of sums; and where a digit goes."""
    return ceil_div(each * (keys.dtype.itemsize + 4) * 33, 32) + 4 * ((1 << (_RANKED - 1)) + 1) + 8 + 8


class _Pass(Plain):
    """One digit, the `number`th. source: keys and places as the digit before left them; None for the first."""

    group: Group
    context: Context
    rows: int
    n: int
    size: int
    each: int
    chunks: int
    length: int
    keys: Keys
    bits: int
    number: int
    source: tuple[Temp, Temp] | None
    counts: tuple[Temp, ...]
    bounds: tuple[Temp, Temp] | None

    @property
    def digits(self) -> int:
        return 1 << self.bits

    def key(self, o: WorkGroup, row: Index, i: Index) -> Expression:
        """The key of element i of the row."""
        if self.source is None:
            return self.keys.of(o, row * self.n + i)
        return element(o.temp(self.source[0], "keys_in", "const"), row * self.n + i)

    def digit(self, o: WorkGroup, name: str, key: Expression, number: int = -1) -> Var:
        """A key's digit, this one or another."""
        shift = self.bits * (self.number if number < 0 else number)
        shifted = Infix(">>", key, whole(shift)) if shift else key
        digit = Infix("&", shifted, Literal(self.digits - 1, self.keys.dtype))
        return o.writer.known(name, self.digits, Cast(digit, int32), node=o.node)

    def count(self, zeros: tuple[Temp, ...], bounds: tuple[Temp, Temp] | None) -> Kernel:
        """How many of each digit a chunk has. zeros: what is counted later, which begins here; and so do the bounds of keys."""
        o = WorkGroup(self.group, self.context)
        w, size, digits = o.writer, self.size, self.digits
        counts = o.shared("counts", "int", digits)
        spot = o.spot(self.rows, 1, size, 1, self.chunks)
        item, chunk, row = spot.item, spot.chunk, spot.row
        out = o.temp(self.counts[self.number], "digit_counts", "out")
        with o.where((item, digits)):
            w.store(place(counts, item), whole(0))
        starts = [(t, name, 0) for t, name in zip(zeros, [f"counts_{k}" for k in range(len(zeros))], strict=True)]
        if bounds is not None:
            starts += [(bounds[0], "key_begins", self.n), (bounds[1], "key_ends", 0)]
        groups = self.rows * self.chunks
        mine = (row * self.chunks + chunk) * size + item
        for temp, name, first in starts:
            buffer, e = o.temp(temp, name, "out"), Var("e", temp.size + 1)        # of one element, too, an item's: no constant
            with w.loop(e, mine, temp.size, groups * size):
                w.store(place(buffer, e.index), whole(first))
        o.barrier()
        first_, stop = o.ends(chunk, self.length, self.n)
        i = Var("i", self.n)
        with w.loop(i, first_ + item, stop, size):
            w.atomic(place(counts, self.digit(o, "digit", self.key(o, row, i.index))), "add", 1)
        o.barrier()
        with o.where((item, digits)):
            w.store(place(out, (row * self.chunks + chunk) * digits + item), element(counts, item), o.node)
        return o.done(self.rows * self.n)

    def move(self, into: tuple[Temp, Temp], result: bool, last: bool, counting: bool) -> Kernel:
        """Each element goes to its place. result: where it came from is written, as the result; counting: the next digit is counted."""
        o = WorkGroup(self.group, self.context)
        w, node, size, each, type_ = o.writer, o.node, self.size, self.each, self.keys.type
        tile_size = size * each
        keys, order = (o.shared(name, t, tile_size + tile_size // 32) for name, t in (("keys", type_), ("order", "int")))
        ranks = o.shared("counts", "uint", size * (self.halves + 1))
        group = 1 << ((size.bit_length() - 1) // 2)           # what items in front have is added up in two levels
        sums = o.shared("scratch", "uint", size + size // group), o.shared("sums", "uint", size // group)
        base, begins = o.shared("base", "int", self.digits), o.shared("begin", "int", self.digits)
        spot = o.spot(self.rows, 1, size, 1, self.chunks)
        item, chunk, row = spot.item, spot.chunk, spot.row
        self.bases(o, item, chunk, row, sums, base)
        first, stop = o.ends(chunk, self.length, self.n)

        def digit_of(name: str, key: Expression) -> Var:
            return self.digit(o, name, key)

        tile = Var("tile", self.n)
        with w.loop(tile, first, stop, tile_size):
            count = w.known("count", tile_size + 1, w.least(Infix("-", stop, tile), tile_size))
            e = Var("e", tile_size)
            with w.loop(e, item, tile_size, size):
                # Beyond the end: digits that none is above, so that these stay behind all others.
                mine = w.let("mine", Literal((1 << 8 * self.keys.dtype.itemsize) - 1, self.keys.dtype), changes=True)
                number = w.let("number", whole(0), changes=True)
                with o.where((tile.index + e.index, stop)):
                    i = bounded(tile.index + e.index, 0, self.n)
                    w.assign(mine, self.key(o, row, i), node)
                    at: Expression = Cast(w.at(i), int32) if w.index != "int" else w.at(i)
                    if self.source is not None:
                        at = element(o.temp(self.source[1], "order_in", "const"), row * self.n + i)
                    w.assign(number, at, node)
                w.store(place(keys, _spread(e.index)), mine, node)
                w.store(place(order, _spread(e.index)), number, node)
            o.barrier()
            self.sort_tile(o, item, keys, order, ranks, sums)
            e = Var("e", tile_size)
            with w.loop(e, item, count, size), w.branch(self.changes(o, e.index, False, count, digit_of, keys)):
                w.store(place(begins, self.digit(o, "digit", element(keys, _spread(e.index)))), w.at(e))
            o.barrier()
            e = Var("e", tile_size)
            with w.loop(e, item, count, size):
                self.put(o, row, e.index, count, (keys, order, base, begins), into, result, last, counting)
            if self.length > tile_size:
                o.barrier()
                e = Var("e", tile_size)
                with w.loop(e, item, count, size), w.branch(self.changes(o, e.index, True, count, digit_of, keys)):
                    digit = self.digit(o, "digit", element(keys, _spread(e.index)))
                    w.update(place(base, digit), "+", Infix("-", e.index + 1, element(begins, digit)))
                o.barrier()
        return o.done(self.rows * self.n)

    @property
    def step(self) -> int:
        """Bits that a tile is sorted by in one step."""
        return ceil_div(self.bits, ceil_div(self.bits, _RANKED))

    @property
    def halves(self) -> int:
        """Counts of an item in one step: each is of two digits, 16 bits of either."""
        return 1 << (self.step - 1)

    def bases(self, o: WorkGroup, item: Index, chunk: Index, row: Index, sums: tuple[Array, Array], base: Array) -> None:
        """Where the first of each digit of the chunk goes: behind those of lower digits, and those of the same digit in earlier chunks."""
        w = o.writer
        counts = o.temp(self.counts[self.number], "digit_counts", "const")
        share, earlier = w.let("share", Literal(0, uint32), changes=True), w.let("earlier", whole(0), changes=True)

        def add(first: Index, many: int) -> None:
            """The counts of some chunks, which are all asked for before the first of them is there."""
            numbers = [first + k for k in range(many)]
            values = [w.declare("value", element(counts, (row * self.chunks + at) * self.digits + item)) for at in numbers]
            for at, value in zip(numbers, values, strict=True):
                w.update(share, "+", Cast(value, uint32))
                if self.chunks > 1:
                    w.update(earlier, "+", Select(Infix("<", at, chunk), value, 0))

        with o.where((item, self.digits)):
            blocks = self.chunks // _ASKED * _ASKED
            e = Var("e", max(1, blocks))
            with w.loop(e, 0, blocks, _ASKED) if blocks else nullcontext():
                add(e.index, _ASKED if blocks else 0)
            add(constant(blocks), self.chunks - blocks)
        with w.block(Block("{")):
            before, _ = _before(o, item, self.size, share, sums)
            with o.where((item, self.digits)):
                w.store(place(base, item), Infix("+", Cast(before, int32), earlier))

    def sort_tile(self, o: WorkGroup, item: Index, keys: Array, order: Array, ranks: Array, sums: tuple[Array, Array]) -> None:
        """Sort the tile in local memory by the digit, a few bits at a time: their counts are of (bits, item)."""
        w, node, each, halves, mask = o.writer, o.node, self.each, self.halves, (self.digits - 1) << self.bits * self.number
        own = [[w.declare(name, Literal(0, dtype)) for _ in range(each)] for name, dtype in (("key", self.keys.dtype), ("number", int32))]
        bit = Var("bit", self.bits)
        with w.loop(bit, 0, self.bits, self.step):

            def rank(key: Expression) -> tuple[Access, Expression]:
                """Where the key's bits are counted, and how far the count is to the left there."""
                if self.bits % self.step:                    # bits of the next digit stand behind
                    key = Infix("&", key, Literal(mask, self.keys.dtype))
                shifted = Infix(">>", key, Infix("+", bit, self.bits * self.number) if self.number else bit)
                some = w.let("some", Infix("&", shifted, Literal((1 << self.step) - 1, self.keys.dtype)), node)
                digit = w.known("digit", halves, Cast(Infix("&", some, Literal(halves - 1, self.keys.dtype)), int32))
                at = digit.index * self.size + item
                high = Infix("*", Cast(Infix(">>", some, whole(self.step - 1)), int32), 16)
                return place(ranks, at + at // halves), high

            with o.times("e", halves) as e_:
                at = e_ * self.size + item
                w.store(place(ranks, at + at // halves), Literal(0, uint32))
            for e, (key, number) in enumerate(zip(*own, strict=True)):        # written out: key and number stay in registers
                with w.block(Block("{")):
                    w.assign(key, element(keys, _spread(item * each + e)))
                    w.assign(number, element(order, _spread(item * each + e)))
                    where, high = rank(key)
                    w.update(where, "+", Infix("<<", Literal(1, uint32), high))
            o.barrier()
            share = w.let("share", Literal(0, uint32), changes=True)
            with o.times("e", halves) as e_:
                w.update(share, "+", element(ranks, item * (halves + 1) + e_))
            before, total = _before(o, item, self.size, share, sums)
            w.update(before, "+", Infix("<<", total, whole(16)))              # the upper digits of all pairs are behind the lower ones
            with o.times("e", halves) as e_:
                here = w.let("here", element(ranks, item * (halves + 1) + e_))
                w.store(place(ranks, item * (halves + 1) + e_), before)
                w.update(before, "+", here)
            o.barrier()
            for key, number in zip(*own, strict=True):
                with w.block(Block("{")):
                    where, high = rank(key)
                    pair = w.let("pair", Load(where, uint32))
                    to = w.known("to", self.size * each, Cast(Infix("&", Infix(">>", pair, high), Literal(0xffff, uint32)), int32))
                    w.store(where, Infix("+", pair, Infix("<<", Literal(1, uint32), high)))
                    w.store(place(keys, _spread(to.index)), key)
                    w.store(place(order, _spread(to.index)), number)
            o.barrier()

    def changes(self, o: WorkGroup, at: Index, behind: bool, count: Var, of: Callable[[str, Expression], Var | Expression],
                keys: Array) -> Expression:
        """Whether element `at` of the sorted tile is the first (behind: the last) of those of which `of` tells the same of the key."""
        w = o.writer
        beside = w.least(at + 1, Infix("-", count, 1)) if behind else Call("max", w.at(at - 1), w.at(0))
        other = w.known("behind" if behind else "before", self.size * self.each, beside)
        alone = Infix("==", at + 1, count) if behind else Infix("==", at, 0)
        mine, theirs = of("digit", element(keys, _spread(at))), of("other", element(keys, _spread(other.index)))
        return Infix("||", alone, Infix("!=", mine, theirs))

    def put(self, o: WorkGroup, row: Index, e: Index, count: Var, arrays: tuple[Array, ...], into: tuple[Temp, Temp], result: bool,
            last: bool, counting: bool) -> None:
        """Write element e of the sorted tile, tell of it where a key begins or ends, and count its next digit."""
        w, node = o.writer, o.node
        keys, order, base, begins = arrays
        digit = self.digit(o, "digit", element(keys, _spread(e)))
        moved = w.known("moved", self.n, Infix("-", Infix("+", element(base, digit), e), element(begins, digit)))
        out = o.output() if result else o.temp(into[1], "order_out", "out")
        w.store(place(out, w.at(row * self.n + moved.index)), element(order, _spread(e)), node)
        if not last:
            w.store(place(o.temp(into[0], "keys_out", "out"), w.at(row * self.n + moved.index)), element(keys, _spread(e)), node)
        if counting:
            following = self.digit(o, "following", element(keys, _spread(e)), self.number + 1)
            at = (row * self.chunks + moved.index // self.length) * self.digits + following.index
            w.atomic(place(o.temp(self.counts[self.number + 1], "counts_out", "inout"), at), "add", 1)
        if last and self.bounds is not None:
            begins_, ends = (o.temp(t, name, "inout") for t, name in zip(self.bounds, ("key_begins", "key_ends"), strict=True))
            for buffer, behind, sign in ((begins_, False, "min"), (ends, True, "max")):
                at_end = self.changes(o, e, behind, count, lambda name, key: key, keys)
                with w.branch(at_end):
                    found = w.known("found", ends.size or 1, Cast(element(keys, _spread(e)), int32))
                    w.atomic(place(buffer, found), sign, moved.index + 1 if behind else moved, node)


def _spread(at: Index) -> Index:
    """A gap after every 32, as items lie apart."""
    return at + at // 32


def _before(o: WorkGroup, item: Index, size: int, share: Expression, arrays: tuple[Array, Array]) -> tuple[Local, Local]:
    """What the shares of the items before make, and what those of all do: in two levels."""
    w, (shares, sums) = o.writer, arrays
    group = 1 << ((size.bit_length() - 1) // 2)
    w.store(place(shares, item + item // group), share)
    o.barrier()
    with o.where((item, size // group)):
        some = w.let("some", Literal(0, uint32), changes=True)
        with o.times("e", group) as e:
            w.update(some, "+", element(shares, item * (group + 1) + e))
        w.store(place(sums, item), some)
    o.barrier()
    carry, total = (w.let(name, Literal(0, uint32), changes=True) for name in ("carry", "total"))
    with o.times("e", size // group) as e:
        some = w.let("some", element(sums, e))
        w.update(total, "+", some)
        w.update(carry, "+", Select(Infix("<", e, item // group), some, Literal(0, uint32)))
    e_ = Var("e", size)
    with w.loop(e_, item // group * group, item):
        w.update(carry, "+", element(shares, e_.index + item // group))
    return carry, total
