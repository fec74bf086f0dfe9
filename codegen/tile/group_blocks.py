"""Blocks that a work-group keeps in local memory, and products of them in registers: attention on GPUs. Start at `GroupBlocks`.

Item (x, y) of X * Y has of a product of two blocks the group's own lines y, y + Y, ... by the others x, x + X, ...: neighbours in local
memory, in lines of four elements more than a multiple of 32 banks, so that vectors of four come without conflicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Lanes, Load, Select, Splat, combined
from tracegrad.codegen.kernel.ir.statements import Access, Allocate, Array, Block, Bound, Buffer
from tracegrad.codegen.kernel.ir.vectors import ceil_div, ctype
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.blocks import Blocks, Lines, Map, Mask, Place, Side, Sum, Tile
from tracegrad.support.dtypes import DType

OTHERS = 4                    # lines of the others that an item has: a vector
PAD = 4                       # elements behind a line in local memory, so that the lines' beginnings are in different banks


class GroupPart:
    """The whole product: an item has `rows` own lines of it by four others."""

    def __init__(self, t: GroupBlocks, array: Array) -> None:
        self.t, self.array = t, array

    @contextmanager
    def each(self) -> Iterator[tuple[Place, Index]]:
        with self.t.each(r=self.t.lines, n=OTHERS) as (r, n):
            yield Place(r, n), r * OTHERS + n

    def map(self, f: Map, *given: Tile) -> None:
        with self.each() as (place, at):
            self.t.set(self.array, at, f(self.t.at(self.array, at), *[x.at(place) for x in given]))

    def unseen(self, value: float) -> None:
        t, w = self.t, self.t.w
        whole = t.other.count % t.other_lines == 0
        if whole and not t.causal:
            return
        with self.each() as (place, at):
            (row, key), other = t.row_and_key(place), t.other_first + t.column(place.other)
            test = combined("||", [None if whole else Infix(">=", w.at(other), t.other.count),
                                   Infix(">", w.at(key), w.at(row)) if t.causal else None])
            with t.only(test):
                t.set(self.array, at, t.literal(value))

    def row_max(self, largest: Tile) -> None:
        t, tops, to = self.t, self.t.tops, array_of(largest)
        with t.each(r=t.lines) as (r,):
            with t.each(n=OTHERS) as (n,):
                t.set(to, r, t.larger(t.at(self.array, r * OTHERS + n), t.at(to, r)))
            t.w.store(Access(tops, t.line(r) * t.X + t.x), t.at(to, r))
        t.w.barrier()
        t.across(tops, t.X, to, t.larger)

    def row_sum(self, total: Tile) -> None:
        with self.each() as (place, at):
            self.t.update(array_of(total), place.own, "+", self.t.at(self.array, at))


def array_of(tile: Tile | Sum) -> Array:
    assert tile.array is not None
    return tile.array


class GroupBlocks(Blocks):
    """One kernel while it is written. lines: own ones that an item has; padded: what a line in local memory holds, for its size.

    loaded: something was put into local memory since the last barrier.
    """

    who = "a work-group"

    def __init__(self, w: Writer, dtype: DType, heads: int, own: Side, other: Side, rows: Side, causal: bool, parts: int,
                 across: int, down: int, lines: int, padded: Callable[[int], int]) -> None:
        super().__init__(w, dtype, heads, own, other, rows, causal, parts)
        self.lines, self.padded, self.loaded = lines, padded, False
        self.X, self.Y, self.own_lines, self.other_lines = across, down, down * lines, across * OTHERS

    # -- the order of blocks

    def start(self) -> None:
        self.start_items()
        self.head = self.w.number("head", self.heads, 1, "group")
        block = self.w.number("block", ceil_div(self.own.count, self.own_lines), 0, "group")
        self.part = self.w.number("part", self.parts, 2, "group")
        self.own_first = self.w.indexed("first", block * self.own_lines)

    def start_items(self) -> None:
        """The item's numbers in the group."""
        self.x, self.y = self.w.number("x", self.X, 0, "local"), self.w.number("y", self.Y, 1, "local")
        self.item = self.w.indexed("item", self.y * self.X + self.x)

    def launch(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        size, local = (ceil_div(self.own.count, self.own_lines) * self.X, self.heads * self.Y), (self.X, self.Y)
        return ((*size, self.parts), (*local, 1)) if self.parts > 1 else (size, local)

    @contextmanager
    def own_blocks(self) -> Iterator[None]:
        yield

    @contextmanager
    def other_blocks(self) -> Iterator[None]:
        """Those of the group's part, if there are several."""
        w, count, step, begin, stop = self.w, self.other.count, self.other_lines, ZERO, constant(self.other.count)
        if self.causal and self.own is not self.rows:
            begin = self.own_first // step * step
        elif self.causal:
            end = self.own_first + self.own_lines
            stop = self.w.bounded_by("stop", count, Bound(w.least(end, count), ZERO, end, count))
        if self.parts > 1:
            share = w.indexed("share", (stop - begin + (step * self.parts - 1)) // (step * self.parts) * step)
            if share.terms:                                      # only the running program knows it
                first = w.known("start", count, Infix("+", w.at(begin), Infix("*", w.at(self.part), w.at(share)))).index
            else:
                first = w.indexed("start", begin + self.part * share)
            end = first + share
            begin, stop = first, self.w.bounded_by("end", count, Bound(w.least(stop, end), ZERO, end, count))
        with self.loop("other", begin, stop, step) as self.other_first:
            yield

    # -- small things

    def number(self, x: float) -> Expression:
        return self.literal(x)

    def local(self, name: str, size: int) -> Array:
        """An array of the group's."""
        array = Array(name, ctype(self.dtype), size, True, aligned=32)
        self.w.add(Allocate(array), 0)
        return array

    @cached_property
    def weights(self) -> Array:
        """Room for a product that all items see: own lines of others."""
        return self.local("weights", self.own_lines * (self.other_lines + PAD))

    @cached_property
    def tops(self) -> Array:
        """Room for a number that each item has of each of its lines."""
        return self.local("tops", self.own_lines * self.X)

    def registers(self, name: str, n: int, lanes: int = 1) -> Array:
        """An array of the item's, which is in registers: it is indexed in loops that are written out."""
        return self.w.array(name, ctype(self.dtype, lanes), n)

    def filled(self, name: str, n: int, x: float, lanes: int = 1) -> Array:
        made = self.registers(name, n, lanes)
        with self.each(n=n) as (at,):
            self.set(made, at, Splat(self.literal(x), lanes) if lanes > 1 else self.literal(x))
        return made

    def at(self, array: Array, at: Index | int) -> Load:
        """An element of an item's array."""
        return Load(Access(array, ZERO + at), self.dtype, array.lanes)

    def set(self, array: Array, at: Index | int, x: Expression) -> None:
        self.w.store(Access(array, ZERO + at), x)

    def update(self, array: Array, at: Index | int, sign: str, x: Expression) -> None:
        self.w.update(Access(array, ZERO + at), sign, x)

    def vector(self, array: Array, at: Index) -> Load:
        """Four elements of local memory."""
        return Load(Access(array, at, each=OTHERS), self.dtype, OTHERS)

    @contextmanager
    def each(self, **counts: int) -> Iterator[list[Index]]:
        """Loops over an item's registers that are written out, or just a block where all have one iteration."""
        with self.w.unrolled(**counts) as found, self.w.block(Block("{")) if max(counts.values()) == 1 else nullcontext():
            yield found

    @contextmanager
    def loop(self, name: str, first: Index, stop: Index | int, step: int) -> Iterator[Index]:
        """A loop from `first` to `stop`, in steps."""
        with self.w.scope():
            var = Var(name, stop if isinstance(stop, int) else stop.hi)
            with self.w.loop(var, first, stop, step):
                yield var.index

    def only(self, *tests: Expression | None) -> AbstractContextManager[Any]:
        """Where all of these hold that are tests at all."""
        test = combined("&&", tests)
        return nullcontext() if test is None else self.w.branch(test)

    def less(self, x: Index, size: int) -> Infix | None:
        """The test that x is less, if it has to be tested."""
        return Infix("<", self.w.at(x), size) if x.hi >= size else None

    def across(self, shares: Array, pitch: int, to: Array, put: Callable[[Expression, Expression], Expression]) -> None:
        """to[r]: put together of it and what the items of a row have left in local memory."""
        with self.each(r=self.lines, n=self.X) as (r, n):
            self.set(to, r, put(Load(Access(shares, self.line(r) * pitch + n), self.dtype), self.at(to, r)))

    # -- places

    def line(self, r: Index) -> Index:
        """The own line number r of an item, in the block."""
        return self.y + r * self.Y

    def column(self, n: Index) -> Index:
        """The other line number n of an item, in the block."""
        return self.x + n * self.X

    def row_and_key(self, place: Place) -> tuple[Index, Index]:
        own, other = self.own_first + self.line(place.own), self.other_first + self.column(place.other)
        return (own, other) if self.own is self.rows else (other, own)

    def pitch(self, size: int) -> int:
        return self.padded(size) + PAD

    def chunks(self, size: int) -> int:
        """How many vectors of a line of a result are an item's."""
        return self.padded(size) // (OTHERS * self.X)

    def of_block(self, side: Side) -> tuple[Index, int]:
        """Where the block's lines of that side begin, and how many it has."""
        return (self.own_first, self.own_lines) if side is self.own else (self.other_first, self.other_lines)

    # -- tiles

    def load(self, name: str, source: Buffer, side: Side, size: int, factor: float | None = None) -> Lines:
        """Zeros where there is nothing."""
        w, padded, (first, lines) = self.w, self.padded(size), self.of_block(side)
        to, total = self.local(name, lines * self.pitch(size)), side.count
        with self.loop("unit", self.item, lines * padded, self.X * self.Y) as unit:
            line, e = w.indexed("line", unit // padded), w.indexed("e", unit % padded)
            tests = [self.less(first + line, total), Infix("<", w.at(e), size) if size < padded else None]
            place = (self.head // side.shared * total + bounded(first + line, 0, total)) * size + bounded(e, 0, size)
            x: Expression = Load(Access(source, place), self.dtype)
            x = x if factor is None else Infix("*", x, self.literal(factor))
            test = combined("&&", tests)
            w.store(Access(to, line * self.pitch(size) + e), x if test is None else Select(test, x, self.literal(0.0)))
        self.loaded = True
        return Lines(side, size, source, to)

    def mask(self, mask: Mask) -> Tile:
        keys = self.own if self.own is not self.rows else self.other

        def read(place: Place) -> Expression:
            row, key = self.row_and_key(place)
            row = self.w.at_most("row", row, self.rows.count - 1) if mask.shape[1] > 1 else ZERO
            key = self.w.at_most("key", key, keys.count - 1) if mask.shape[2] > 1 else ZERO
            return Load(Access(mask.buffer, mask.where(self.heads, self.head, row, key)), mask.buffer.dtype)

        return Tile(read)

    def row_numbers(self, name: str, source: Buffer, start: int) -> Tile:
        first, lines = self.of_block(self.rows)
        to, count = self.local(name, lines), self.rows.count
        with self.loop("unit", self.item, lines, self.X * self.Y) as unit:
            row = self.head * count + self.w.at_most("row", first + unit, count - 1)
            self.w.store(Access(to, unit), Load(Access(source, row + start), self.dtype))
        self.loaded, own = True, self.own is self.rows
        return Tile(lambda place: Load(Access(to, self.line(place.own) if own else self.column(place.other)), self.dtype), to)

    def row_dot(self, name: str, a: Buffer, b: Buffer, size: int) -> Tile:
        w, count, total = self.w, self.rows.count, self.compute(name, lambda: self.literal(0.0))
        with self.each(r=self.lines) as (r,):
            row = w.indexed("row", self.head * count + w.at_most("line", self.own_first + self.line(r), count - 1))
            with self.loop("e", self.x, size, self.X) as e:
                self.update(array_of(total), r, "+", Infix("*", *(Load(Access(x, row * size + e), self.dtype) for x in (a, b))))
        self.totals(total)
        return total

    def compute(self, name: str, f: Map, *given: Tile) -> Tile:
        array = self.registers(name, self.lines)
        found = Tile(lambda place: self.at(array, place.own), array)
        self.change(found, f, *given)
        return found

    def change(self, tile: Tile, f: Map, *given: Tile) -> None:
        with self.each(r=self.lines) as (r,):
            self.set(array_of(tile), r, f(*[x.at(Place(r)) for x in given]))

    def totals(self, total: Tile) -> None:
        to, pitch = array_of(total), self.other_lines + PAD
        with self.each(r=self.lines) as (r,):
            self.w.store(Access(self.weights, self.line(r) * pitch + self.x), self.at(to, r))
        self.w.barrier()
        self.change(total, lambda: self.literal(0.0))
        self.across(self.weights, pitch, to, lambda share, total: Infix("+", total, share))
        self.loaded = True                                       # read, rather: nothing may be put there yet

    def product(self, name: str) -> Tile:
        array = self.registers(name, self.lines * OTHERS)
        return Tile(lambda place: self.at(array, place.own * OTHERS + place.other), array)

    def dot(self, to: Tile, own: Lines, other: Lines) -> Iterator[GroupPart]:
        """[r * 4 + n]: the products of own lines and the others."""
        pitch, array = self.pitch(own.size), array_of(to)
        assert isinstance(own.memory, Array)
        assert isinstance(other.memory, Array)
        self.arrived()
        with self.each(n=array.size) as (n,):
            self.set(array, n, self.literal(0.0))
        with self.loop("e", ZERO, ceil_div(own.size, OTHERS) * OTHERS, OTHERS) as e:
            a, b = self.registers("a", self.lines, OTHERS), self.registers("b", OTHERS, OTHERS)
            with self.each(r=self.lines) as (r,):
                self.set(a, r, self.vector(own.memory, self.line(r) * pitch + e))
            with self.each(n=OTHERS) as (n,):
                self.set(b, n, self.vector(other.memory, self.column(n) * pitch + e))
            with self.each(r=self.lines, n=OTHERS) as (r, n):
                for lane in range(OTHERS):
                    self.update(array, r * OTHERS + n, "+", Infix("*", Lanes(self.at(a, r), lane), Lanes(self.at(b, n), lane)))
        yield GroupPart(self, array)

    def arrived(self) -> None:
        """All items see what was put into local memory."""
        if self.loaded:
            self.w.barrier()
        self.loaded = False

    def elements(self, of: Tile) -> Iterator[GroupPart]:
        yield GroupPart(self, array_of(of))

    # -- sums

    def sum(self, name: str, side: Side, size: int, buffer: Buffer, start: int) -> Sum:
        return Sum(side, size, buffer, start, self.filled(name, self.lines * self.chunks(size), 0.0, OTHERS))

    def add(self, to: Sum, weights: Tile, values: Lines, shrink: Tile | None = None) -> None:
        """[r * chunks + n]: of own lines the columns (x + X n) * 4 and the three behind."""
        w, array, chunks, pitch, weights_pitch = self.w, array_of(to), self.chunks(to.size), self.pitch(to.size), self.other_lines + PAD
        assert isinstance(values.memory, Array)
        if shrink is not None:
            with self.each(r=self.lines, n=chunks) as (r, n):
                self.update(array, r * chunks + n, "*", Splat(shrink.at(Place(r)), OTHERS))
        with self.each(r=self.lines, n=OTHERS) as (r, n):
            w.store(Access(self.weights, self.line(r) * weights_pitch + self.column(n)), weights.at(Place(r, n)))
        w.barrier()
        with w.scope(), w.block(Block("{")) if self.apart else ExitStack():
            into = self.filled("some", array.size, 0.0, OTHERS) if self.apart else array
            with self.loop("j", ZERO, self.other_lines, OTHERS) as j:
                a = self.registers("a", self.lines, OTHERS)
                with self.each(r=self.lines) as (r,):
                    self.set(a, r, self.vector(self.weights, self.line(r) * weights_pitch + j))
                with self.each(n=chunks) as (n,):
                    for lane in range(OTHERS):
                        b = self.let(f"b{lane}", self.vector(values.memory, (j + lane) * pitch + self.column(n) * OTHERS))
                        with self.each(r=self.lines) as (r,):
                            self.update(into, r * chunks + n, "+", Infix("*", Lanes(self.at(a, r), lane), b))
            if self.apart:
                with self.each(n=array.size) as (n,):
                    self.update(array, n, "+", self.at(into, n))
        w.barrier()

    def store(self, of: Sum, f: Map | None = None, *given: Tile) -> None:
        """An element is a vector of four: numbers of the line are as wide."""
        w, size, array, chunks = self.w, of.size, array_of(of), self.chunks(of.size)
        with self.each(r=self.lines) as (r,):
            line = w.indexed("line", self.own_first + self.line(r))
            with self.only(self.less(line, self.own.count)), self.each(n=chunks) as (n,):
                e, start = w.indexed("e", self.column(n) * OTHERS), self.line_start(
                    self.own, bounded(line, 0, self.own.count), size, of.start)
                found: Expression = self.at(array, r * chunks + n)
                if f is not None:
                    found = f(found, *[Splat(x.at(Place(r)), OTHERS) for x in given])
                some = self.let("some", found)
                if size % OTHERS == 0:
                    with self.only(self.less(e, size - OTHERS + 1)):
                        w.store(Access(of.buffer, start + bounded(e, 0, size - OTHERS + 1), each=OTHERS), some)
                for lane in range(min(OTHERS, size) if size % OTHERS else 0):
                    with self.only(self.less(e + lane, size)):
                        w.store(Access(of.buffer, start + bounded(e + lane, 0, size)), Lanes(some, lane))

    def store_numbers(self, to: Buffer, starts: list[int], values: list[Tile], once: bool = False) -> None:
        w, count = self.w, self.own.count
        with self.each(r=self.lines) as (r,):
            line = w.indexed("line", self.own_first + self.line(r))
            with self.only(Infix("==", w.at(self.x), 0) if self.x.terms else None, self.less(line, count),
                           Infix("==", w.at(self.part), 0) if once and self.part.terms else None):
                for start, tile in zip(starts, values, strict=True):
                    row = bounded(line, 0, count)
                    place = self.head * count + row + start if once else self.line_start(self.own, row, 1, start)
                    w.store(Access(to, place), tile.at(Place(r)))
