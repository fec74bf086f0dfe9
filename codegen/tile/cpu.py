"""Tile programs on CPUs: a work-item does tiles of registers, one after the other; registers side by side are vectors. Start at `written`.

All vectors of a tile are variables. A tile that would go beyond the end of its axis begins earlier, so that all loads are inside; it
stores only what the tile before it does not. Along an axis with lanes the last vector of a tile begins earlier in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from math import prod

import numpy as np

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, constant, unravel
from tracegrad.codegen.kernel.index.varying import any_vary, uneven, varies
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Literal, Local, Select, Splat, Vector
from tracegrad.codegen.kernel.ir.expressions import Zeros as Nothing
from tracegrad.codegen.kernel.ir.statements import Access, BoundLike, If, clipped
from tracegrad.codegen.kernel.ir.vectors import ceil_div, pieces
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.program import Add, Axis, Dot, Fill, Fold, Held, Load, Loop, Pack, Program, Store, Tile, Zeros
from tracegrad.codegen.tile.registers import added, held, joined, numbered, offsets_of, read, rest, rows_of, start_of, transposed
from tracegrad.codegen.tile.stores_cpu import Piece, Stored
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.tuning import tuning


def written(w: Writer, program: Program) -> None:
    """Writes the program's statements."""
    Tiles(w, program).run()


class Tiles:
    """One kernel while it is written."""

    def __init__(self, w: Writer, program: Program) -> None:
        self.w, self.program = w, program
        self.numbered = [axis for step in program.steps if isinstance(step, Store) for axis in step.tile.axes if axis.of is not None]
        self.items: dict[Axis, Index] = {}                   # the numbers of work-items
        self.numbers: dict[Axis, Index] = {}                 # of the tile along each axis,
        self.starts: dict[Axis, Index] = {}                  # and where it begins
        self.open: dict[Axis, Index] = {}                    # the indices of the loops that are open
        self.lasts: dict[Axis, Index] = {}                   # where the tiles of an item end, along an axis
        self.counts: dict[Axis, Index] = {}                  # how many of an axis there are, if not always all
        self.fresh: dict[Axis, range] = {}                   # along open loops, the lanes that were not added up before, if not all
        self.blocks: dict[Axis, list[int]] = {}              # the lengths of the blocks that floats' loops are cut into, the longest first
        self.levels: list[list[Local]] = []                  # the accumulators, and those that take what these have of blocks
        self.vectors: dict[Tile, dict[tuple[int, ...], Local]] = {}      # of a tile's registers, by where they are in it
        self.loads: dict[Tile, Load] = {}
        self.summed: dict[Tile, dict[tuple[int, ...], list[tuple[int, Local]]]] = {}      # a tile's rows, of which lanes were added up

    def run(self) -> None:
        self.count_items()
        axes = [axis for axis in self.program.axes if axis.registers > 1 or axis.held(Held.TILE) > 1]
        for axis in axes:
            self.share(axis)
        packs = [step for step in self.program.steps if isinstance(step, Pack)]
        axes = [axis for axis in axes if all(axis is not step.along for step in packs)]
        for step in self.program.steps:
            if isinstance(step, Fill):
                with self.w.scope():
                    self.fill(step, ())
        loop = next((step for step in self.program.steps if isinstance(step, Loop)), None)
        part = ZERO, ZERO
        with ExitStack() as inside:
            if loop is not None:
                part = self.part(loop, inside)
            self.count(axes)
            for axis in self.program.axes:
                if axis not in axes:
                    self.begin(axis, 0)
            for axis in axes:
                self.tile(axis, inside)
                self.count(axes[axes.index(axis) + 1:])
            for step in self.program.steps:
                if isinstance(step, Zeros):
                    self.zeros(step.tile)
                elif isinstance(step, Loop):
                    self.nest(step, *part)
                elif isinstance(step, Fold):
                    self.fold(step, *part)
                elif isinstance(step, Store) and loop is not None and loop.depth:
                    self.keep_or_store(loop, step, part[1])
                elif isinstance(step, Store):
                    self.store(step)
                elif isinstance(step, Pack):
                    self.pack(step)

    # -- work-items and tiles

    def count_items(self) -> None:
        """Declare the numbers of work-items."""
        for dim in range(len(self.program.local)):
            digits, count = self.program.digits(Held.GLOBAL, dim), self.program.count(Held.GLOBAL, dim)
            several = [axis for axis, n in digits if axis.digits[n].count > 1]
            number = ZERO
            if several:
                axis = several[0]
                ending = "_part" if axis.held(Held.TILE) > 1 else "_tile" if axis.registers > 1 else ""
                number = self.w.item("item" if len(several) > 1 else axis.name + ending, count, dim).index
            for (axis, _), x in zip(digits, unravel(number, [a.digits[n].count for a, n in digits]), strict=True):
                self.items[axis] = self.w.indexed(axis.name, x) if len(several) > 1 else x

    def share(self, axis: Axis) -> None:
        """Declare where the tiles of an item end, if that is no number."""
        several = axis.held(Held.TILE)
        if axis.held(Held.GLOBAL) > 1 and (several > 1 or any_vary()):
            end, count = (self.items[axis] + 1) * several, ceil_div(axis.size, axis.registers)
            self.lasts[axis] = self.w.bounded_by(f"last_{axis.name}_tile", count, clipped(end, count, several))

    def count(self, later: Sequence[Axis]) -> None:
        """Declare how many iterations loops have, of those that depend on no later axis."""
        for loop in self.program.loops:
            if loop.count is not None and loop.axis not in self.counts and not any(axis in later for axis in loop.of):
                found = loop.count(*[self.at(axis) for axis in loop.of])
                self.counts[loop.axis] = constant(loop.axis.size) if found is None else found.index

    def tile(self, axis: Axis, inside: ExitStack) -> None:
        """The loop over an item's tiles along an axis, and where the tile begins."""
        size, several, item = axis.registers, axis.held(Held.TILE), self.items.get(axis, ZERO)
        count = ceil_div(axis.size, size)
        if count > 1 and (several > 1 or axis in self.lasts):
            number = Var(f"{axis.name}_tile" if size > 1 else axis.name, count)
            inside.enter_context(self.w.loop(number, item * several, self.lasts.get(axis, constant(count)), kept=any_vary()))
            item = number.index
        self.numbers[axis] = item
        folded = any(isinstance(step, Fold) and step.tile.axes[-1] is axis for step in self.program.steps)
        lanes = pieces(0, size)[0][1] if folded else axis.lanes
        self.starts[axis] = item if size == 1 else start_of(self.w, axis.name, axis.size, size, item, lanes)
        for offset in range(size):
            self.begin(axis, offset, str(offset) if size > 1 else "")

    # -- where tiles are

    def begin(self, axis: Axis, offset: int | Index, ending: str = "") -> None:
        """Declare where the tiles begin that are numbered along `axis`, of the one `offset` behind the first."""
        for a in self.numbered:
            if a.of is not None and a.of[0] is axis:
                number = (self.at(axis) + offset) // a.of[1] % ceil_div(a.size, a.registers)
                self.numbers[numbered(a, offset)] = number
                lanes = 1 if a.apart else a.lanes
                self.starts[numbered(a, offset)] = start_of(self.w, a.name + ending, a.size, a.registers, number, lanes)

    def at(self, axis: Axis, offset: int | Index = 0, number: int | Index = 0) -> Index:
        """The index along an axis, of the register there; number: of the tile, if that is another axis' register."""
        if axis.of is not None:
            axis = numbered(axis, number)
        return self.open.get(axis, self.starts.get(axis, self.items.get(axis, ZERO))) + offset

    def number(self, axis: Axis) -> Index:
        return self.numbers.get(axis, self.items.get(axis, ZERO))

    @contextmanager
    def only(self, axis: Axis, otherwise: bool = False, number: int | Index = 0) -> Iterator[None]:
        """Where the tile does not begin early, or else where it does: what is computed of where it begins is computed here."""
        start = self.at(axis, 0, number)
        tile = self.number(axis if axis.of is None else numbered(axis, number))
        if any(atom.base is not None for atom, _ in tile.terms):                 # a quotient, or what is left of one, takes longer
            test = Infix("<", self.w.at(start), axis.size - axis.registers)
        else:
            test = Infix("==", self.w.at(start), self.w.at(tile * axis.registers))
        with self.w.otherwise() if otherwise else self.w.branch(test):
            self.bind_starts()
            yield

    def bind_starts(self) -> None:
        for start in self.starts.values():
            for var in start.vars:
                self.w.bind(var)

    # -- arrays that are filled

    def fill(self, step: Fill, at: tuple[Index, ...], zeros: bool = False) -> None:
        """The loops over the axes behind those whose indices are known; zeros: there is nothing to read."""
        if len(at) == len(step.axes):
            read = step.source(*at).read if not zeros else partial(Nothing, step.dtype)
            step.to(*at).write(read())
            return
        axis = step.axes[len(at)]
        if axis in self.items or axis.registers > 1 or axis.size == 1:
            for x in [self.items[axis]] if axis in self.items else map(constant, range(axis.size)):
                self.fill(step, (*at, x), zeros)
            return
        inside = range(axis.size) if zeros or step.inside is None else step.inside(axis, at)
        parts = (range(inside.start), inside, range(inside.stop, axis.size)) if len(inside) else (range(axis.size),)
        for part in parts:
            outside = zeros or part is not inside
            if len(part) == 1:
                self.fill(step, (*at, constant(part.start)), outside)
            elif part:
                with self.w.scope():
                    var = Var(axis.name, part.stop)
                    with self.w.loop(var, part.start, part.stop):
                        self.fill(step, (*at, var.index), outside)

    def pack(self, step: Pack) -> None:
        """Squares, and what is left of the lines where they are no whole ones."""
        axis = step.along
        first = self.items.get(axis, ZERO) * axis.held(Held.TILE)
        last = self.lasts.get(axis, first + 1 if axis.held(Held.GLOBAL) > 1 else constant(axis.size))
        if step.square > 1:
            self.copied(step, first, last, step.square)
            first, last = rest(last, step.square)
        if uneven(axis.size, step.square) or step.square == 1:
            with self.w.scope():
                self.copied(step, first, last, 1)

    def copied(self, step: Pack, first: Index, last: Index, size: int) -> None:
        """Copies a panel, from one index along its lines to another: `size` of them, and of lines, at a time."""
        w, lines, at = self.w, step.lines, Var(step.along.name, step.along.size)
        outer, panel = [self.at(axis) for axis in step.axes], self.number(step.lines)
        with w.loop(at, first, last, size, whole=size > 1, kept=varies(step.along.size)), ExitStack() as inside:
            place = ZERO
            if lines.registers > size:                       # the last ones begin early
                var = Var("place", lines.registers)
                inside.enter_context(w.loop(var, 0, lines.registers, size))
                place = w.at_most("at", var.index, lines.registers - size) if lines.registers % size else var.index
            rows = [step.source(*outer, self.at(lines, place + n), at.index) for n in range(size)]
            if size == 1:
                step.to(*outer, panel, at.index, place).write(rows[0].read())
                return
            vectors = [read(x.access, x.access.memory.dtype, size) for x in rows if x.access is not None]
            for n, value in enumerate(transposed(w, vectors)):
                step.to(*outer, panel, at.index + n, place).write(value)

    # -- registers

    def names(self, base: str, tile: Tile, without: Sequence[Axis] = ()) -> Iterator[tuple[tuple[int, ...], str]]:
        """Where in a tile its registers, or its vectors, begin, each with what to call it: by their numbers."""
        offsets = [offsets_of(axis) for axis in held(tile) if axis not in without]
        for numbers in product(*[range(len(found)) for found in offsets]):
            spot = tuple([found[n] for found, n in zip(offsets, numbers, strict=True)])
            yield spot, base + "_".join(map(str, numbers))

    def zeros(self, tile: Tile) -> None:
        lanes = max(prod(axis.lanes for axis in axes) for axes in (tile.axes, [loop.axis for loop in self.program.loops]))
        self.vectors[tile] = {}
        for spot, name in self.names(tile.name, tile):
            self.vectors[tile][spot] = self.w.let(name, Nothing(tile.dtype, lanes), changes=True)

    # -- loops

    def part(self, loop: Loop, inside: ExitStack) -> tuple[Index, Index]:
        """Where an item's part of the loop begins and ends, or, in a loop over these, a block of `depth`."""
        name, size, length = loop.axis.name, loop.axis.size, loop.depth or loop.length
        if loop.depth:
            block = Var(f"{name}0", size)
            inside.enter_context(self.w.loop(block, 0, size, length))
            first = block.index
        elif loop.part is not None:
            first = self.w.indexed(f"{name}0", self.at(loop.part) * length)
        else:
            return ZERO, constant(size)
        return first, self.w.bounded_by(f"{name}1", size, clipped(first + length, size, length))

    def nest(self, loop: Loop, first: Index, last: Index) -> None:
        """A loop, and those in it: no accumulator takes many terms. What it has of a block of a loop is added to one that is of the level
        above, and it starts anew.
        """
        into = loop.nest[-1].sums[0].into
        own = list(self.vectors[into].values())
        self.blocks = {}
        if dtype_kind(into.dtype) == "f":
            self.cut(loop, loop.depth or loop.length or loop.axis.size)
        count = sum(len(lengths) for lengths in self.blocks.values())
        self.levels = [own, *[[self.w.let(f"{x.name}_sum", Nothing(x.dtype, x.lanes), changes=True) for x in own] for _ in range(count)]]
        self.loop(loop, first, last)
        for totals in self.levels[1:]:
            for local, total in zip(own, totals, strict=True):
                self.w.update(local, "+", total)
        if loop.depth:
            self.add_kept(loop, into, first)

    def cut(self, loop: Loop, length: int) -> tuple[int, int]:
        """Finds the lengths of the blocks of a loop and of those in it, the longest first; how many terms the highest level has of one
        iteration after that, and how many it may have.
        """
        steps, most = 1, loop.steps or tuning().product_steps
        if isinstance(loop.body[0], Loop):
            steps, most = self.cut(loop.body[0], loop.body[0].axis.size)
        count, block, found = ceil_div(length, loop.axis.lanes), 1, list[int]()
        while steps * count > most and count > 1 and not loop.written and loop.count is None:
            several = max(1, most // steps)
            several = ceil_div(count, ceil_div(count, several))          # about as long, all of them
            block, count = block * several, ceil_div(count, several)
            found.insert(0, block)
            steps, most = 1, tuning().product_blocks
        self.blocks[loop.axis] = found
        return steps * count, most

    def loop(self, loop: Loop, first: Index, last: Index) -> None:
        w, axis = self.w, loop.axis
        if loop.written or (axis not in self.counts and last == first + axis.lanes and not varies(axis.size)):
            for n in range(axis.size // axis.lanes):
                self.iteration(loop, first + n * axis.lanes, n, loop.written and axis.size > 1)
        elif axis.size >= axis.lanes:
            with self.in_levels(loop, first, self.counts.get(axis, last)) as (begin, stop):
                var = Var(axis.name, axis.size)
                unrolled = 0 if axis.lanes > 1 else loop.unrolled and 4
                with w.scope(), w.loop(var, begin, stop, axis.lanes, axis.lanes > 1, unrolled=unrolled, kept=varies(axis.size)):
                    self.body(loop, var.index)
        if loop.early and axis.size % axis.lanes:
            if axis.size > axis.lanes:
                self.fresh[axis] = range(-axis.size % axis.lanes, axis.lanes)
            self.iteration(loop, constant(max(0, axis.size - axis.lanes)), 0, True)
            self.fresh.pop(axis, None)

    @contextmanager
    def in_levels(self, loop: Loop, first: Index, last: Index) -> Iterator[tuple[Index, BoundLike]]:
        """From where to where the loop goes for one accumulator, in loops over the blocks of which the levels above are made."""
        axis = loop.axis
        lengths = self.blocks.get(axis, [])
        level = len(lengths) + sum(len(self.blocks.get(inner.axis, ())) for inner in loop.nest[1:])
        with ExitStack() as inside:
            blocks = [(length * axis.lanes, partial(self.flush, level - n)) for n, length in enumerate(lengths)]
            yield self.w.in_blocks(inside, f"{axis.name}_block", f"{axis.name}_end", blocks, first, last, axis.size)

    def flush(self, level: int) -> None:
        """A block ends: the accumulators start anew."""
        for total, local in zip(self.levels[level], self.levels[level - 1], strict=True):
            self.w.update(total, "+", local)
            self.w.assign(local, Nothing(local.dtype, local.lanes))

    def iteration(self, loop: Loop, at: Index, n: int, apart: bool) -> None:
        """Number n of a loop, written out: if there is that. apart: its variables are its own."""
        count = self.counts.get(loop.axis)
        test = Infix(">", self.w.at(count), n) if count is not None and count.lo <= n else None
        if not apart and test is None:
            self.body(loop, at)
            return
        with self.w.scope(), self.w.block(If(test)):
            self.body(loop, at)

    def body(self, loop: Loop, at: Index) -> None:
        self.open[loop.axis] = at
        for step in loop.body:
            if isinstance(step, Load):
                self.loads[step.tile] = step
            elif isinstance(step, Loop):
                self.loop(step, ZERO, constant(step.axis.size))
            else:
                self.accumulate(step)
        del self.open[loop.axis]

    def accumulate(self, step: Dot | Add) -> None:
        """into += a * b, or x, for all vectors of the tile: those of b are read first, those of a where they are used."""
        into = self.vectors[step.into]
        if isinstance(step, Add):
            for spot, local in into.items():
                self.w.update(local, "+", self.read(step.x, spot))
            return
        new = self.among(self.fresh, step.b.axes, step.into)
        columns = {spot: self.w.let(name, new(self.read(step.b, spot))) for spot, name in self.names(step.b.name, step.b)}
        lanes = next(iter(columns.values())).lanes
        for row, name in self.names(step.a.name, step.a):
            value = new(self.read(step.a, row))
            if len(columns) > 1:
                value = self.w.let(name, Splat(value, lanes) if value.lanes < lanes else value)
            for spot, vector in columns.items():
                self.w.update(into[(*row, *spot)], "+", Infix("*", value, vector))

    def among(self, lanes: Mapping[Axis, range], axes: Sequence[Axis], like: Tile) -> Callable[[Expression], Expression]:
        """What puts 0 in the other lanes of a vector along some axes. (That one factor is 0 is not enough: the other may be infinite.)"""
        if not lanes:
            return lambda x: x
        dtype = np.dtype(f"int{8 * like.dtype.itemsize}")
        inside = product(*[[n in lanes.get(axis, range(axis.lanes)) for n in range(axis.lanes)] for axis in axes if axis.lanes > 1])
        known = Vector(tuple([Literal(int(all(each)), dtype) for each in inside]))
        mask = self.w.let("known", Infix(">", known, Splat(Literal(0, dtype), known.lanes)))
        return lambda x: Select(mask, x, Nothing(x.dtype, x.lanes))

    def read(self, tile: Tile, spot: tuple[int, ...], lanes: int = 0) -> Expression:
        """What is there of a tile that is loaded. lanes: so many, rather than as many as its axes have."""
        load, offsets = self.loads[tile], dict(zip(held(tile), spot, strict=True))
        apart = [axis for axis in tile.axes if axis.apart and not lanes]
        found: list[Expression] = []
        for more in product(*[range(axis.lanes) for axis in apart]):
            behind = dict(zip(apart, more, strict=True))
            indices: list[Index] = []
            for a in tile.axes:
                offset = offsets.get(a, 0) + behind.get(a, 0)
                if a is load.panels:
                    indices += [self.number(a), constant(offset)]
                else:
                    indices.append(self.at(a, offset, 0 if a.of is None else offsets.get(a.of[0], 0)))
            element = load.source(*indices)
            assert element.access is not None
            found.append(read(element.access, tile.dtype, lanes or prod(a.lanes for a in tile.axes if not a.apart)))
        return joined(found)

    def fold(self, fold: Fold, first: Index, last: Index) -> None:
        """The lanes of each sum are added up: halves, and then lane to lane. The sums of a row become vectors. Then comes what is left of
        the axis where it is no whole vector.
        """
        w, tile, axis = self.w, fold.tile, fold.axis
        loop = next(loop for loop in self.program.loops if loop.axis is axis)
        step, = (s for s in loop.body if isinstance(s, Dot))
        short = {each.axis: range(each.axis.size) for each in self.program.loops if each.early and each.axis.size < each.axis.lanes}
        inside = self.among(short, [each.axis for each in self.program.loops], tile)
        for local in self.vectors[tile].values() if short else ():
            w.assign(local, inside(local))
        columns = [] if tile.axes[-1].registers == 1 else [tile.axes[-1]]
        groups = pieces(0, tile.axes[-1].registers)
        rows: dict[tuple[int, ...], list[tuple[int, Local]]] = {}
        for row, name in self.names("s", tile, columns):
            rows[row] = []
            for start, count in groups:
                spots = [(*row, n) if columns else row for n in range(start, start + count)]
                total = added(w, [self.vectors[tile][spot] for spot in spots])
                rows[row].append((start, w.let(f"{name}_{start}", total, changes=True)))
        self.summed[tile] = rows
        if loop.early or (not first.terms and not last.terms and not uneven(last.constant - first.constant, axis.lanes)):
            return
        var = Var(axis.name, axis.size)
        with w.loop(var, *rest(last, axis.lanes), kept=varies(axis.size)):
            self.open[axis] = var.index
            for row, found in rows.items():
                for start, total in found:
                    read = tuple([self.read(step.b, (n,) if columns else (), 1) for n in range(start, start + total.lanes)])
                    value = self.read(step.a, row, 1)
                    w.update(total, "+", Infix("*", value, read[0] if len(read) == 1 else Vector(read)))
            del self.open[axis]

    def kept(self, loop: Loop, tile: Tile, n: int, lanes: int) -> Access:
        """Where vector number n of the tile is between one block of the loop and the next."""
        assert loop.kept is not None
        found = loop.kept(*[self.number(axis) for axis in tile.axes], constant(n * lanes))
        assert found.access is not None
        return Access(found.access.memory, found.access.at, each=lanes)

    def add_kept(self, loop: Loop, tile: Tile, first: Index) -> None:
        """The sums of this block of the loop, and those that the blocks before have left."""
        with self.w.branch(Infix(">", self.w.at(first), 0)):
            for n, local in enumerate(self.vectors[tile].values()):
                self.w.update(local, "+", read(self.kept(loop, tile, n, local.lanes), tile.dtype, local.lanes))

    def keep_or_store(self, loop: Loop, store: Store, last: Index) -> None:
        """The sums are left to the next block; after the last one they are the result."""
        with self.w.branch(Infix("<", self.w.at(last), loop.axis.size)):
            for n, local in enumerate(self.vectors[store.tile].values()):
                self.w.store(self.kept(loop, store.tile, n, local.lanes), local)
        with self.w.otherwise():
            self.bind_starts()
            self.store(store)

    # -- results

    def store(self, store: Store) -> None:
        """Each element once: what the tile before stores is left out of one that begins early.

        In loops, through an array, where it would be many lines that a driver is slow to build.
        """
        tile = store.tile
        outer = rows_of(tile)
        found = {spot: self.row(tile, spot) for spot in product(*[range(axis.registers) for axis in outer])}
        lines = store.statements + 2 * (store.statements > 1)
        rows = prod(axis.lanes for axis in tile.axes if axis.apart)
        each = sum(x.lanes if store.alone else rows for row in found.values() for _, x in row)
        with self.w.scope():
            stored = Stored(self, store, found)
            if each * lines > tuning().written_out and (len(found) > 1 or store.alone):
                stored.to_array()
            stored.along(outer, {})

    def row(self, tile: Tile, spot: tuple[int, ...]) -> list[Piece]:
        """The vectors of a row of the tile, or the sums of their lanes."""
        if tile in self.summed:
            return list(self.summed[tile][spot])
        columns = tile.axes[-1]
        offsets = [(n, (*spot, n)) for n in offsets_of(columns)] if columns in held(tile) else [(0, spot)]
        return [(n, self.vectors[tile][at]) for n, at in offsets]
