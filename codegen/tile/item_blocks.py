"""Blocks that a work-item of a CPU keeps between one product and the next: attention. Start at `ItemBlocks`.

A block is an array of the work-item's own. All of a kernel's blocks have the same columns, the rows of attention, which are vectors, and
lines of their own: a product's accumulators are a tile of lines by columns, a scalar of one operand (a key's, a value's) times vectors of
the other, and what is computed of columns (the largest, sums) needs no lanes added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import At, Expression, Infix, Load, Local, Select, Splat, Steps, Zeros
from tracegrad.codegen.kernel.ir.statements import Access, Array, Block, Bound, Buffer, clipped_at
from tracegrad.codegen.kernel.ir.vectors import ceil_div, ctype, lanes, pieces
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.blocks import Blocks, Lines, Map, Mask, Place, Side, Sum, Tile
from tracegrad.support.dtypes import DType, int32, int64

Limit = tuple[Index, int]                     # this and the number of a line together are less than that
Columns = tuple[int, Callable[[Index], Expression]]          # lanes, and what they are at an index along what is added up
VECTORS = 2                                   # of a block's columns


class ItemPart:
    """A tile of variables: lines from `line` on by vectors of columns."""

    def __init__(self, t: ItemBlocks, line: Index, values: list[list[Local]]) -> None:
        self.t, self.line, self.values = t, line, values

    def each(self) -> Iterator[tuple[Place, Local]]:
        return ((Place(constant(p), self.line + r), c) for r, row in enumerate(self.values) for p, c in enumerate(row))

    def map(self, f: Map, *given: Tile) -> None:
        for place, c in self.each():
            self.t.w.assign(c, f(c, *[x.at(place) for x in given]))

    def unseen(self, value: float) -> None:
        w, t = self.t.w, self.t
        if t.causal:
            with w.branch(Infix(">", w.at(t.other_first + self.line + (len(self.values) - 1)), w.at(t.own_first))):
                for place, c in self.each():
                    row = t.row_lanes[place.own.constant]
                    w.assign(c, Select(Infix(">=", row, t.splat(At(t.other_first + place.other, row.dtype))), c, t.number(value)))

    def row_max(self, largest: Tile) -> None:
        for place, c in self.each():
            to = largest.values[place.own.constant]
            self.t.w.assign(to, self.t.larger(c, to))

    def row_sum(self, total: Tile) -> None:
        for place, c in self.each():
            self.t.w.update(total.values[place.own.constant], "+", c)


class ItemBlocks(Blocks):
    """One kernel while it is written; rows are its own lines. together: a work-item goes over all blocks of rows, for a range of the keys,
    so that it adds to lines of keys, too; else it does a block of rows.

    tall: lines of a tile of accumulators; n: keys in the block; rows_left: rows in it; share: keys from `first` on that are the item's.
    """

    who = "a work-item"
    rows_left: Index
    n: Index

    def __init__(self, w: Writer, dtype: DType, heads: int, own: Side, other: Side, causal: bool, parts: int, step: int, together: bool
                 ) -> None:
        super().__init__(w, dtype, heads, own, other, own, causal, parts)
        self.lanes, self.together = lanes(dtype, w.target), together
        self.own_lines, self.other_lines = VECTORS * self.lanes, max(1, min(step, other.count))
        self.tall = max(1, min(12, (w.target.registers - VECTORS - 1) // VECTORS))
        self.row_lanes: list[Local] = []                        # the numbers of a block's rows, if the mask is causal
        self.first, self.last, self.share, self.part = ZERO, constant(other.count), other.count, ZERO

    # -- values

    def splat(self, x: Expression) -> Expression:
        """A vector with the number in all lanes."""
        return Splat(x, self.lanes) if self.lanes > 1 else x

    def number(self, x: float) -> Expression:
        return self.splat(self.literal(x))

    def values(self, name: str, of: Callable[[Place], Expression], changes: bool = True) -> Tile:
        """A number of each row: a variable for each vector."""
        made = tuple([self.let(f"{name}{p}", of(Place(constant(p))), changes) for p in range(VECTORS)])
        return Tile(lambda place: made[place.own.constant], None, made)

    def compute(self, name: str, f: Map, *given: Tile) -> Tile:
        return self.values(name, lambda place: f(*[x.at(place) for x in given]))

    def change(self, tile: Tile, f: Map, *given: Tile) -> None:
        for p, value in enumerate(tile.values):
            self.w.assign(value, f(*[x.at(Place(constant(p))) for x in given]))

    def totals(self, total: Tile) -> None:
        """A work-item has all of a row."""

    # -- the order of blocks

    @property
    def blocks_of_rows(self) -> int:
        return ceil_div(self.own.count, self.own_lines)

    def start(self) -> None:
        w = self.w
        if not self.together:
            self.block, self.head = w.number("row_block", self.blocks_of_rows, 0), w.number("head", self.heads, 1)
            return
        self.head, self.part = w.number("head", self.heads, 0), w.number("part", self.parts, 1)
        if self.parts > 1:
            self.share = ceil_div(self.other.count, self.parts)
            self.first = self.w.indexed("first", self.part * self.share)
            self.last = self.w.bounded_by("last", self.other.count, clipped_at(self.first + self.share, self.other.count))

    def launch(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        size = (self.blocks_of_rows, self.heads) if not self.together else (self.heads, self.parts) if self.parts > 1 else (self.heads,)
        return size, (1,) * len(size)

    @contextmanager
    def own_blocks(self) -> Iterator[None]:
        if self.together:
            i0 = Var("i0", self.own.count)
            with self.w.loop(i0, 0, self.own.count, self.own_lines):
                self.begin_rows(i0.index)
                yield
        else:
            self.begin_rows(self.w.indexed("i0", self.block * self.own_lines))
            yield

    def begin_rows(self, first: Index) -> None:
        self.own_first = first
        self.rows_left = self.left("rows", -first + self.own.count, self.own_lines)
        dtype = int64 if self.dtype.itemsize == 8 else int32
        for p in range(VECTORS if self.causal else 0):
            row = At(first + p * self.lanes, dtype)
            self.row_lanes.append(self.let(f"row{p}", Infix("+", self.splat(row), Steps(dtype, self.lanes)) if self.lanes > 1 else row))

    @contextmanager
    def other_blocks(self) -> Iterator[None]:
        w, stop = self.w, self.last
        if self.causal:
            end, least = self.own_first + self.own_lines, min(self.other.count, self.own.count) if not stop.terms else self.other.count
            stop = self.w.bounded_by("stop", least, Bound(w.least(end, stop if stop.terms else least), ZERO, end, least))
        with w.scope():
            var = Var("j0", self.other.count)
            with w.loop(var, self.first, stop, self.other_lines):
                self.other_first, size = var.index, self.other_lines
                self.n = self.left("n", stop - var.index, size) if stop.terms or stop.constant % size else constant(size)
                yield

    def left(self, name: str, x: Index, size: int) -> Index:
        """How many of `size` lines or columns there are, where x are left in all."""
        return constant(size) if not x.terms and x.constant >= size else self.w.bounded_by(name, size, clipped_at(x, size))

    @contextmanager
    def counted(self, name: str, stop: Index, first: Index = ZERO, rows: int = 1, limits: Sequence[Limit] = ()) -> Iterator[Index]:
        """A loop over lines, `rows` in each iteration; of one iteration it is none."""
        if not stop.terms and not first.terms and first.constant + rows >= stop.constant > first.constant:
            with self.w.block(Block("{")):
                yield first
            return
        var = Var(name, stop.hi)
        known = tuple([("range", base + var.index, 0, size - rows + 1) for base, size in limits])
        with self.w.loop(var, first, stop, rows, whole=rows > 1, known=known):
            yield var.index

    def tiles(self, name: str, stop: Index, limits: Sequence[Limit] = ()) -> Iterator[tuple[Index, int]]:
        """Loops over tiles of lines: each with where a tile begins, and of how many it is."""
        whole, rest = stop // self.tall * self.tall, 1 if stop.terms else stop.constant % self.tall
        if stop.hi >= self.tall:
            with self.w.scope(), self.counted(name, stop, rows=self.tall, limits=limits) as line:
                yield line, self.tall
        if rest:
            with self.w.scope(), self.counted(name, stop, whole, rest, limits) as line:
                yield line, rest

    @property
    def limits(self) -> list[Limit]:
        """What the number of a key in the block is within."""
        return [(self.other_first, self.other.count), *[(self.other_first - self.first, self.share)] * bool(self.first.terms)]

    # -- places

    def row(self, i: Index) -> Index:
        """Row number i of the block; one beyond the last is it once more: nobody stores what comes of it."""
        return self.w.at_most("row", self.own_first + i, self.own.count - 1)

    def of_row(self, buffer: Buffer, row: Index, e: Index, size: int, start: int = 0) -> Load:
        """Element e of a head's row, of an array that begins at `start`."""
        return Load(Access(buffer, (self.head * self.own.count + row) * size + e + start), self.dtype)

    def key(self, j: Index | int) -> Index:
        """Key number j of the block."""
        return self.first + bounded(self.other_first - self.first + j, 0, self.share)

    # -- blocks

    def keep(self, name: str, lines: int) -> Array:
        return self.w.array(name, ctype(self.dtype), lines * self.own_lines)

    def at(self, block: Array, line: Index | int, p: int) -> Access:
        """Vector number p of a line."""
        return Access(block, constant(0) + line * self.own_lines + p * self.lanes, each=self.lanes)

    def read(self, block: Array, line: Index | int, p: int) -> Load:
        return Load(self.at(block, line, p), self.dtype, self.lanes)

    def tile(self, array: Array) -> Tile:
        return Tile(lambda place: self.read(array, place.other, place.own.constant), array)

    def gather(self, block: Array, lines: Index, source: Callable[[Index, Index], Expression], limits: Sequence[Limit] = (),
               rows: bool = True) -> None:
        """The block is what `source` has, of a row (of 0, if it is not of rows) and of the number of a line."""
        with self.w.scope(), self.counted("i", constant(self.own_lines)) as i:
            row = self.row(i) if rows else ZERO
            with self.counted("e", lines, limits=limits) as e:
                self.w.store(Access(block, e * self.own_lines + i), source(row, e))

    def scatter(self, block: Array, lines: int, to: Buffer, start: int) -> None:
        """The block's columns go to their rows of `lines` elements."""
        limits = [(self.own_first, self.own.count)]
        with self.w.scope(), self.counted("i", self.rows_left, limits=limits) as i, self.counted("e", constant(lines)) as e:
            place = self.line_start(self.own, bounded(self.own_first + i, 0, self.own.count), lines, start) + e
            self.w.store(Access(to, place), Load(Access(block, e * self.own_lines + i), self.dtype))

    def load(self, name: str, source: Buffer, side: Side, size: int, factor: float | None = None) -> Lines:
        if side is self.other:
            start = (self.head // side.shared * side.count + self.other_first) * size
            return Lines(side, size, source, self.w.pointer(name, source, (), start, self.other_lines * size))
        block, found = self.keep(name, size), partial(self.of_row, source, size=size)
        self.gather(block, constant(size),
                    found if factor is None else lambda row, e: Infix("*", found(row, e), self.literal(factor)))
        return Lines(side, size, source, block)

    def mask(self, mask: Mask) -> Tile:
        block = self.keep("mask", self.other_lines)

        def element(row: Index, j: Index) -> Expression:
            found = Load(Access(mask.buffer, mask.where(self.heads, self.head, row, self.key(j))), mask.buffer.dtype)
            return found if mask.fill is None else Select(found, self.literal(1.0), self.literal(0.0))

        self.gather(block, self.n, element, self.limits, mask.shape[1] > 1)
        found = self.tile(block)
        return found if mask.fill is None else Tile(lambda place: Infix("!=", found.at(place), self.number(0.0)), block)

    def row_numbers(self, name: str, source: Buffer, start: int) -> Tile:
        block = self.keep(f"{name}_of", 1)
        self.gather(block, constant(1), partial(self.of_row, source, size=1, start=start))
        return self.values(name, self.tile(block).at, changes=False)

    def row_dot(self, name: str, a: Buffer, b: Buffer, size: int) -> Tile:
        w, block = self.w, self.keep(f"{name}_of", 1)
        with w.scope(), self.counted("i", constant(self.own_lines)) as i:
            row, total = self.row(i), self.let("total", self.literal(0.0), changes=True)
            with w.scope(), self.counted("e", constant(size)) as e:
                w.update(total, "+", Infix("*", self.of_row(a, row, e, size), self.of_row(b, row, e, size)))
            w.store(Access(block, i), total)
        return self.values(name, self.tile(block).at, changes=False)

    # -- products

    def accumulated(
        self, rows: int, name: str, stop: Index, a: Callable[[int, Index], Expression], columns: Sequence[Columns],
        limits: Sequence[Limit] = (), begin: Callable[[int, int], Expression] | None = None,
    ) -> list[list[Local]]:
        """A tile of accumulators: the sums of a(row, k) times each of the columns at k, for k from 0 to `stop`.

        begin: what they are before, of a row and the number of its vector, if not 0.
        """
        into = [[self.let(f"c{r}_{p}", begin(r, p) if begin else Zeros(self.dtype, n), changes=True) for p, (n, _) in enumerate(columns)]
                for r in range(rows)]
        with self.w.scope(), self.counted(name, stop, limits=limits) as k:
            right = [self.let(f"b{p}", read(k)) for p, (_, read) in enumerate(columns)]
            for r, row in enumerate(into):
                left = self.let(f"a{r}", a(r, k))
                for c, x in zip(row, right, strict=True):
                    self.w.update(c, "+", Infix("*", left, x))
        return into

    def of(self, block: Array) -> list[Columns]:
        """The vectors of a block, where its lines are added up."""
        return [(self.lanes, partial(lambda p, k: self.read(block, k, p), p)) for p in range(VECTORS)]

    def product(self, name: str) -> Tile:
        return self.tile(self.keep(name, self.other_lines))

    def dot(self, to: Tile, own: Lines, other: Lines) -> Iterator[ItemPart]:
        assert isinstance(own.memory, Array)
        size, lines = own.size, other.memory
        for j, rows in self.tiles("j", self.n, self.limits):
            left = partial(lambda j, r, e: Load(Access(lines, (j + r) * size + e), self.dtype), j)
            yield from self.kept(to, ItemPart(self, j, self.accumulated(rows, "e", constant(size), left, self.of(own.memory))))

    def elements(self, of: Tile) -> Iterator[ItemPart]:
        with self.w.scope(), self.counted("j", self.n) as j:
            row = [self.let(f"x{p}", of.at(Place(constant(p), j)), changes=True) for p in range(VECTORS)]
            yield from self.kept(of, ItemPart(self, j, [row]))

    def kept(self, to: Tile, part: ItemPart) -> Iterator[ItemPart]:
        """The part; what it is then is stored."""
        assert to.array is not None
        yield part
        for place, c in part.each():
            self.w.store(self.at(to.array, place.other, place.own.constant), c)

    # -- sums

    def sum(self, name: str, side: Side, size: int, buffer: Buffer, start: int) -> Sum:
        block = self.keep(name, size) if side is self.own else None
        first, last = (self.first * size, self.last * size) if block is None else (ZERO, constant(block.size))
        with self.w.scope(), self.counted("e", last, first) as e:
            place = Access(buffer, self.head * (side.count * size) + e + start) if block is None else Access(block, e)
            self.w.store(place, self.literal(0.0))
        return Sum(side, size, buffer, start, block)

    def add(self, to: Sum, weights: Tile, values: Lines, shrink: Tile | None = None) -> None:
        """Apart costs 1.05 of the time with 16 registers."""
        assert weights.array is not None
        if to.array is None:
            self.add_to_others(to, weights.array, values)
            return
        for e, rows in self.tiles("e", constant(to.size)):
            old = partial(self.shrunk, to.array, e, shrink)
            left = partial(lambda e, r, j: Load(Access(values.memory, j * to.size + e + r), self.dtype), e)
            found = self.accumulated(rows, "i", self.n, left, self.of(weights.array), self.limits, None if self.apart else old)
            for r, row in enumerate(found):
                for p, c in enumerate(row):
                    self.w.store(self.at(to.array, e + r, p), Infix("+", old(r, p), c) if self.apart else c)

    def shrunk(self, block: Array, line: Index, shrink: Tile | None, r: int, p: int) -> Expression:
        found = self.read(block, line + r, p)
        return Infix("*", found, shrink.values[p]) if shrink else found

    def add_to_others(self, to: Sum, weights: Array, values: Lines) -> None:
        """The block's keys (keys, size) += weights (keys, rows) values (rows, size), in memory: vectors along `size`."""
        w, size = self.w, to.size
        found = [(start + at, width) for start in range(0, size, self.lanes) for at, width in pieces(0, min(self.lanes, size - start))]

        def columns(at: int, width: int) -> Columns:
            start = self.head * self.own.count + self.own_first
            return width, lambda i: Load(Access(values.source, (start + i) * size + at, each=width), self.dtype, width)

        for j, rows in self.tiles("j", self.n, self.limits):
            left = partial(lambda j, r, i: Load(Access(weights, (j + r) * self.own_lines + i), self.dtype), j)
            for chosen in (found[i:i + VECTORS] for i in range(0, len(found), VECTORS)):
                with w.scope(), w.block(Block("{")):
                    sums = self.accumulated(rows, "i", self.rows_left, left, [columns(*piece) for piece in chosen],
                                            [(self.own_first, self.own.count)])
                    for r, row in enumerate(sums):
                        for c, (at, width) in zip(row, chosen, strict=True):
                            place = (self.head * self.other.count + self.key(j + r)) * size + (at + to.start)
                            old = Access(to.buffer, place, each=width)
                            w.store(old, Infix("+", Load(old, self.dtype, width), c))

    def store(self, of: Sum, f: Map | None = None, *given: Tile) -> None:
        if of.array is None:
            return
        if f is not None:
            with self.w.scope(), self.counted("e", constant(of.size)) as e:
                for p in range(VECTORS):
                    found = f(self.read(of.array, e, p), *[x.at(Place(constant(p))) for x in given])
                    self.w.store(self.at(of.array, e, p), found)
        self.scatter(of.array, of.size, of.buffer, of.start)

    def store_numbers(self, to: Buffer, starts: list[int], values: list[Tile], once: bool = False) -> None:
        for start, tile in zip(starts, values, strict=True):
            block = self.keep("number", 1)
            for p, value in enumerate(tile.values):
                self.w.store(self.at(block, 0, p), value)
            self.scatter(block, 1, to, start)
