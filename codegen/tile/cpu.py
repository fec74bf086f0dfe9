"""Tile programs on CPUs: a work-item does tiles of registers, one after the other; registers side by side are vectors. Start at `written`.

All vectors of a tile are variables. A tile that would go beyond the end of its axis begins earlier, so that all loads are inside; it
stores only what the tile before it does not. Along an axis with lanes the last vector of a tile begins earlier in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tracegrad.codegen.kernel.expressions import Expression, Infix, Joined, Lanes, Local, Splat, Vector
from tracegrad.codegen.kernel.expressions import Load as Read
from tracegrad.codegen.kernel.expressions import Zeros as Nothing
from tracegrad.codegen.kernel.index import ZERO, Index, Var, bounded, constant, unravel
from tracegrad.codegen.kernel.statements import Access, Bound, Declare, bound, clipped_at
from tracegrad.codegen.kernel.vectors import ceil_div, ctype, pieces
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.program import Add, Axis, Dot, Element, Fold, Held, Load, Loop, Place, Program, Store, Tile, Zeros
from tracegrad.support.dtypes import DType
from tracegrad.support.tuning import tuning

Piece = tuple[int, Expression]                # where in a tile's row some lanes belong, and these


def written(w: Writer, program: Program) -> None:
    """Writes the program's statements."""
    _Tiles(w, program).run()


def pack(
    w: Writer, source: Place, to: Place, where: tuple[Index, Index], lines: tuple[int, int], k: tuple[Index, Index, int], block: int
) -> None:
    """Copies a panel of lines: `source` has them at (batch, line, k), `to` at (batch, panel, k, place in it). where: batch and panel.

    lines: how many there are, and of a panel; k: where it begins and ends, and how much there is in all. block: so many of as many lines
    are read as vectors, and transposed.
    """
    (b, number), (count, panel), (first, last, size) = where, lines, k
    line0 = _start(w, "line0", count, panel, number)
    if block > 1:
        at = Var(w.own("k"), size)
        with w.loop(at, first, last, block, whole=True), ExitStack() as inside:
            line = _counted(w, inside, "line", panel, block)
            rows = [found.access for n in range(block) if (found := source(b, line0 + (line + n), at.index)).access is not None]
            for n, value in enumerate(transposed(w, [Read(Access(x.memory, x.at, each=block), x.memory.dtype, block) for x in rows])):
                _write(to(b, number, at.index + n, line), value)
        first = last // block * block
    if size % block or block == 1:
        with w.scope():
            at = Var(w.own("k"), size)
            with w.loop(at, first, last), ExitStack() as inside:
                line = _counted(w, inside, "line", panel, 1)
                found = source(b, line0 + line, at.index)
                assert found.read is not None
                _write(to(b, number, at.index, line), found.read())


def _counted(w: Writer, inside: ExitStack, name: str, count: int, step: int) -> Index:
    """A loop over 0..count-1 in steps, the last one early; if there is one step, 0."""
    if count == step:
        return ZERO
    var = Var(w.own(name), count)
    inside.enter_context(w.loop(var, 0, count, step))
    if count % step == 0:
        return var.index
    at = Var(w.own("at"), count - step + 1)
    w.add(Declare(at, f"const {w.index}", w.least(var, count - step), bound=Bound(w.at(var), ZERO, var.index, count - step)))
    w.bind(at)
    return at.index


def transposed(w: Writer, rows: Sequence[Expression]) -> list[Local]:
    """The transpose of a square of vectors, as many as each has lanes (a power of two).

    A stage puts the even lanes of neighbouring rows into one of the first half, and the odd ones into one of the second: of row and lane
    number, the lowest bits trade places.
    """
    half = len(rows) // 2
    values = [_let(w, f"c0_{n}", row) for n, row in enumerate(rows)]
    for stage in range(1, len(rows).bit_length()):
        made = {}
        for n in range(half):
            a, b = values[2 * n:2 * n + 2]
            for place, which in ((n, "even"), (n + half, "odd")):
                made[place] = _let(w, f"c{stage}_{place}", Joined(Lanes(a, which), Lanes(b, which)))
        values = [made[n] for n in range(len(rows))]
    return values


class _Tiles:
    """One kernel while it is written. numbers: of the tile along each axis; starts: where it begins."""

    def __init__(self, w: Writer, program: Program) -> None:
        self.w, self.program = w, program
        self.items: dict[Axis, Index] = {}
        self.numbers: dict[Axis, Index] = {}
        self.starts: dict[Axis, Index] = {}
        self.lasts: dict[Axis, Index] = {}                   # where the tiles of an item end, along an axis
        self.vectors: dict[Tile, dict[tuple[int, ...], Local]] = {}      # of a tile's registers, by where they are in it
        self.loads: dict[Tile, Load] = {}
        self.summed: dict[Tile, list[list[tuple[int, Local]]]] = {}      # a tile's rows, of which lanes were added up

    def run(self) -> None:
        self.count_items()
        axes = [axis for axis in self.program.axes if _tile(axis) > 1 or axis.held(Held.TILE) > 1]
        for axis in axes:
            self.share(axis)
        loops = [step for step in self.program.steps if isinstance(step, Loop)]
        with ExitStack() as inside:
            deep = next((loop for loop in loops if loop.depth), None)
            part: tuple[Index, Index] | None = None
            if deep is not None:
                first = Var(self.w.own(f"{deep.axis.name}0"), deep.axis.size)
                inside.enter_context(self.w.loop(first, 0, deep.axis.size, deep.depth))
                part = first.index, self.end(deep, first.index, deep.depth)
            elif loops:
                part = self.part(loops[0])
            for axis in axes:
                self.tile(axis, inside)
            for step in self.program.steps:
                if isinstance(step, Zeros):
                    self.zeros(step.tile, loops)
                elif isinstance(step, Loop):
                    assert part is not None
                    self.loop(step, *part)
                elif isinstance(step, Fold):
                    assert part is not None
                    self.fold(step, loops, *part)
                elif deep is None:
                    self.store(step)
                else:
                    assert part is not None
                    self.keep_or_store(deep, step, part[1])

    # -- work-items and tiles

    def count_items(self) -> None:
        """Declare the numbers of work-items."""
        for dim in range(len(self.program.local)):
            digits, count = self.program.digits(Held.GLOBAL, dim), self.program.count(Held.GLOBAL, dim)
            several = [axis for axis, n in digits if axis.digits[n].count > 1]
            number = ZERO
            if several:
                axis = several[0]
                ending = "_part" if axis.held(Held.TILE) > 1 else "_tile" if _tile(axis) > 1 else ""
                number = self.w.item(self.w.own("item" if len(several) > 1 else axis.name + ending), count, dim).index
            for (axis, _), x in zip(digits, unravel(number, [a.digits[n].count for a, n in digits]), strict=True):
                self.items[axis] = self.w.indexed(axis.name, x) if len(several) > 1 else x

    def share(self, axis: Axis) -> None:
        """Declare where the tiles of an item end, if that is no number."""
        several = axis.held(Held.TILE)
        if axis.held(Held.GLOBAL) > 1 and several > 1:
            end, count = (self.items[axis] + 1) * several, ceil_div(axis.size, _tile(axis))
            last = self.w.bounding(self.w.own(f"last_{axis.name}_tile"), count, clipped_at(end, count, count % several > 0))
            self.w.bind(last)
            self.lasts[axis] = last.index

    def tile(self, axis: Axis, inside: ExitStack) -> None:
        """The loop over an item's tiles along an axis, and where the tile begins."""
        size, several, item = _tile(axis), axis.held(Held.TILE), self.items.get(axis, ZERO)
        count = ceil_div(axis.size, size)
        if several > 1 and count > 1:
            number = Var(self.w.own(f"{axis.name}_tile"), count)
            inside.enter_context(self.w.loop(number, item * several, self.lasts.get(axis, constant(count))))
            item = number.index
        self.numbers[axis] = item
        folded = any(isinstance(step, Fold) and step.tile.axes[-1] is axis for step in self.program.steps)
        lanes = pieces(0, size)[0][1] if folded else axis.lanes
        self.starts[axis] = item if size == 1 else _start(self.w, axis.name, axis.size, size, item, lanes)

    def at(self, axis: Axis, offset: int | Index = 0) -> Index:
        """The index along an axis, of the register there."""
        return self.starts.get(axis, self.items.get(axis, ZERO)) + offset

    def number(self, axis: Axis) -> Index:
        return self.numbers.get(axis, self.items.get(axis, ZERO))

    @contextmanager
    def only(self, axis: Axis, otherwise: bool = False) -> Iterator[None]:
        """Where the tile does not begin early, or else where it does: what is computed of where it begins is computed here."""
        start, right = self.starts[axis], self.number(axis) * _tile(axis)
        with self.w.otherwise() if otherwise else self.w.branch(Infix("==", self.w.at(start), self.w.at(right))):
            self.bind_starts()
            yield

    def bind_starts(self) -> None:
        for start in self.starts.values():
            for var in start.vars:
                self.w.bind(var)

    # -- registers

    def spots(self, tile: Tile, without: Axis | None = None) -> list[tuple[int, ...]]:
        """Where in a tile its registers, or its vectors, begin."""
        found: list[tuple[int, ...]] = [()]
        for axis in tile.axes:
            if axis is not without and _tile(axis) > 1:
                found = [(*spot, offset) for spot in found for offset in _offsets(axis)]
        return found

    def names(self, base: str, tile: Tile, without: Axis | None = None) -> Iterator[tuple[tuple[int, ...], str]]:
        """The same, each with what to call it: by the numbers of vectors."""
        axes = [axis for axis in tile.axes if axis is not without and _tile(axis) > 1]
        for spot in self.spots(tile, without):
            yield spot, base + "_".join(str(_offsets(axis).index(offset)) for axis, offset in zip(axes, spot, strict=True))

    def zeros(self, tile: Tile, loops: Sequence[Loop]) -> None:
        lanes = max(axis.lanes for axis in (*tile.axes, *(loop.axis for loop in loops)))
        self.vectors[tile] = {}
        for spot, name in self.names(tile.name, tile):
            self.vectors[tile][spot] = _let(self.w, name, Nothing(tile.dtype, lanes), changes=True)

    # -- loops

    def part(self, loop: Loop) -> tuple[Index, Index]:
        """Where an item's part of the loop begins and ends."""
        if loop.part is None:
            return ZERO, constant(loop.axis.size)
        first = self.w.indexed(f"{loop.axis.name}0", self.at(loop.part) * loop.length)
        return first, self.end(loop, first, loop.length)

    def end(self, loop: Loop, first: Index, length: int) -> Index:
        size = loop.axis.size
        last = self.w.bounding(self.w.own(f"{loop.axis.name}1"), size, clipped_at(first + length, size, size % length > 0))
        self.w.bind(last)
        return last.index

    def loop(self, loop: Loop, first: Index, last: Index) -> None:
        w, axis = self.w, loop.axis
        if loop.depth:
            self.take_up(loop, next(s.into for s in loop.body if isinstance(s, (Dot, Add))), first)
        var = Var(w.own(axis.name), axis.size)
        with w.loop(var, first, last, axis.lanes, axis.lanes > 1, unrolled=0 if axis.lanes > 1 else loop.unrolled and 4):
            for step in loop.body:
                if isinstance(step, Load):
                    self.loads[step.tile] = step
                else:
                    self.accumulate(step, axis, var.index)

    def accumulate(self, step: Dot | Add, axis: Axis, at: Index) -> None:
        """into += a * b, or x, for all vectors of the tile: those of b are read first, those of a where they are used."""
        into = self.vectors[step.into]
        if isinstance(step, Add):
            for spot, local in into.items():
                self.w.update(local, "+", self.read(step.x, axis, at, spot))
            return
        columns = {spot: _let(self.w, name, self.read(step.b, axis, at, spot)) for spot, name in self.names(step.b.name, step.b, axis)}
        lanes = next(iter(columns.values())).lanes
        for row, name in self.names(step.a.name, step.a, axis):
            value = self.read(step.a, axis, at, row)
            if len(columns) > 1:
                value = _let(self.w, name, Splat(value, lanes) if value.lanes < lanes else value)
            for spot, vector in columns.items():
                self.w.update(into[(*row, *spot)], "+", Infix("*", value, vector))

    def read(self, tile: Tile, axis: Axis, at: Index, spot: tuple[int, ...], lanes: int = 0) -> Expression:
        """What is there of a tile that is loaded. lanes: so many, rather than as many as its axes have."""
        load, offsets = self.loads[tile], iter(spot)
        indices: list[Index] = []
        for a in tile.axes:
            offset = next(offsets) if a is not axis and _tile(a) > 1 else 0
            if a is load.panels:
                indices += [self.number(a), constant(offset)]
            else:
                indices.append(at if a is axis else self.at(a, offset))
        found = load.source(*indices)
        assert found.access is not None
        return _read(found.access, tile.dtype, lanes or max(a.lanes for a in tile.axes))

    def fold(self, fold: Fold, loops: Sequence[Loop], first: Index, last: Index) -> None:
        """The lanes of each sum are added up: halves, and then lane to lane. The sums of a row become vectors. Then comes what is left of
        the axis where it is no whole vector.
        """
        w, tile, axis = self.w, fold.tile, fold.axis
        loop = next(loop for loop in loops if loop.axis is axis)
        step = next(s for s in loop.body if isinstance(s, Dot) and s.into is tile)
        columns = tile.axes[-1]
        groups = pieces(0, _tile(columns))
        rows: dict[tuple[int, ...], list[tuple[int, Local]]] = {}
        for row, name in self.names("s", step.a, axis):
            rows[row] = []
            for start, count in groups:
                values = [(n, self.vectors[tile][(*row, *([] if _tile(columns) == 1 else [n]))]) for n in range(start, start + count)]
                total = _added(w, [local for _, local in values])
                rows[row].append((start, _let(w, f"{name}_{start}", total, changes=True)))
        self.summed[tile] = [list(found) for found in rows.values()]
        if not first.terms and not last.terms and (last.constant - first.constant) % axis.lanes == 0:
            return
        var = Var(w.own(axis.name), axis.size)
        with w.loop(var, last // axis.lanes * axis.lanes, last):
            for row, found in rows.items():
                for start, total in found:
                    spots = [() if _tile(columns) == 1 else (n,) for n in range(start, start + total.lanes)]
                    read = tuple([self.read(step.b, axis, var.index, spot, 1) for spot in spots])
                    value = self.read(step.a, axis, var.index, row, 1)
                    w.update(total, "+", Infix("*", value, read[0] if len(read) == 1 else Vector(read)))

    def kept(self, loop: Loop, tile: Tile, n: int, lanes: int) -> Access:
        """Where vector number n of the tile is between one block of the loop and the next."""
        assert loop.kept is not None
        found = loop.kept(*[self.number(axis) for axis in tile.axes], constant(n * lanes))
        assert found.access is not None
        return Access(found.access.memory, found.access.at, each=lanes)

    def take_up(self, loop: Loop, tile: Tile, first: Index) -> None:
        """The sums, from where the block before has left them."""
        with self.w.branch(Infix(">", self.w.at(first), 0)):
            for n, local in enumerate(self.vectors[tile].values()):
                self.w.assign(local, _read(self.kept(loop, tile, n, local.lanes), tile.dtype, local.lanes))

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
        """Each element once: rows and columns that the tile before stores are left out of one that begins early."""
        rows = next((axis for axis in store.tile.axes[:-1] if _tile(axis) > 1), None)
        if rows is None:
            self.rows(store, rows, 0, 1)
            return
        over = -rows.size % _tile(rows)
        if over:
            with self.only(rows):
                self.rows(store, rows, 0, over)
        self.rows(store, rows, over, _tile(rows))

    def rows(self, store: Store, rows: Axis | None, first: int, stop: int) -> None:
        columns = store.tile.axes[-1]
        over = -columns.size % _tile(columns)
        if not over:
            self.elements(store, rows, first, stop, 0)
            return
        with self.only(columns):
            self.elements(store, rows, first, stop, 0)
        with self.only(columns, otherwise=True):
            self.elements(store, rows, first, stop, over)

    def pieces(self, tile: Tile, row: int, skip: int) -> list[Piece]:
        """What a row of the tile stores from column `skip` on."""
        found: list[Piece] = []
        columns, done = tile.axes[-1], skip
        if tile in self.summed:
            parts = self.summed[tile][row]
        else:
            offsets = _offsets(columns)
            vectors = list(self.vectors[tile].values())[row * len(offsets):(row + 1) * len(offsets)]
            parts = list(zip(offsets, vectors, strict=True))
        for start, x in parts:
            found += [(start + lane, _lanes(x, lane, n)) for lane, n in pieces(max(0, done - start), x.lanes)]
            done = max(done, start + x.lanes)
        return found

    def elements(self, store: Store, rows: Axis | None, first: int, stop: int, skip: int) -> None:
        """Stores rows `first` to `stop - 1`: in a loop, through an array, where it would be many lines that a driver is slow to build."""
        w, tile = self.w, store.tile
        found = [self.pieces(tile, row, skip) for row in range(first, stop)]
        size, lines = sum(x.lanes for _, x in found[0]), store.statements + 2 * (store.statements > 1)
        with w.scope():
            if rows is None or stop == first + 1 or len(found) * len(found[0]) * lines <= tuning().written_out:
                for row, each in enumerate(found, first):
                    for column, x in each:
                        self.element(store, rows, constant(row), column, x)
                return
            sums = w.array(w.own("sums"), ctype(tile.dtype), (stop - first) * size, reserved=True)
            places = [at for at, _ in _running([x.lanes for _, x in found[0]])]
            for row, each in enumerate(found):
                for at, (_, x) in zip(places, each, strict=True):
                    w.store(Access(sums, constant(row * size + at), each=x.lanes), x)
            var = Var(w.own("row"), stop, first)
            with w.loop(var, first, stop):
                for at, (column, x) in zip(places, found[0], strict=True):
                    place = Access(sums, (var.index - first) * size + at, each=x.lanes)
                    self.element(store, rows, var.index, column, _read(place, tile.dtype, x.lanes))

    def element(self, store: Store, rows: Axis | None, row: Index, column: int, value: Expression) -> None:
        *others, columns = store.tile.axes
        at = [self.at(axis, row if axis is rows else 0) for axis in others]
        _write(store.sink(*at, bounded(self.at(columns, column), 0, columns.size)), value)


def _tile(axis: Axis) -> int:
    """How many indices along an axis are of one tile."""
    return axis.held(Held.REGISTER)


def _offsets(axis: Axis) -> list[int]:
    """Where in a tile the vectors along an axis begin: the last one early, where they do not fit."""
    size = _tile(axis)
    return [min(start, size - axis.lanes) for start in range(0, size, axis.lanes)]


def _start(w: Writer, name: str, size: int, tile: int, number: Index, lanes: int = 1) -> Index:
    """Where tile number `number` of an axis begins: the last one early, where they do not fit. That of vectors is a variable always."""
    right, most = number * tile, size - tile
    if size % tile == 0 and lanes == 1:
        return w.indexed(name, right)
    var = Var(w.own(name), most + lanes)
    early = size % tile > 0
    w.add(Declare(var, f"const {w.index}", w.least(right, most) if early else w.at(right),
                  bound=Bound(w.at(right), ZERO, right, most) if early else bound(right)))
    w.bind(var)
    return var.index


def _let(w: Writer, name: str, value: Expression, changes: bool = False) -> Local:
    """A variable with that value."""
    local = Local(w.own(name), value.dtype, value.lanes)
    w.define(local, value, const=not changes)
    return local


def _write(to: Element, value: Expression) -> None:
    assert to.write is not None
    to.write(value)


def _read(access: Access, dtype: DType, lanes: int) -> Read:
    return Read(access if lanes == 1 else Access(access.memory, access.at, each=lanes), dtype, lanes)


def _lanes(x: Expression, first: int, lanes: int) -> Expression:
    """Some lanes of a vector."""
    return x if lanes == x.lanes else Lanes(x, first if lanes == 1 else range(first, first + lanes))


def _added(w: Writer, vectors: list[Local]) -> Expression:
    """A vector with the sum of the lanes of each."""
    while vectors[0].lanes > 4:
        vectors = [_let(w, f"{x.name}h", Infix("+", Lanes(x, "lo"), Lanes(x, "hi"))) for x in vectors]
    total: Expression | None = None
    for lane in range(vectors[0].lanes):
        each = tuple([_lanes(x, lane, 1) for x in vectors])
        one = each[0] if len(each) == 1 else Vector(each)
        total = one if total is None else Infix("+", total, one)
    assert total is not None
    return total


def _running(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each with where it begins, one behind the other."""
    at = 0
    for size in sizes:
        yield at, size
        at += size
