"""What stores a tile of a tile program on CPUs, each element once. Start at `Stored`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded, constant, ravel
from tracegrad.codegen.kernel.index.varying import varies
from tracegrad.codegen.kernel.ir.expressions import Array, Expression, Infix, combined
from tracegrad.codegen.kernel.ir.statements import Access
from tracegrad.codegen.kernel.ir.vectors import ctype, pieces
from tracegrad.codegen.tile.program import Axis, Store
from tracegrad.codegen.tile.registers import early_by, lanes_of, read, rows_of, running

if TYPE_CHECKING:
    from tracegrad.codegen.tile.cpu import Tiles

Piece = tuple[int, Expression]                # where in a tile's row some lanes belong, and these


class Stored:
    """What stores a tile. rows: its registers; sums: where they were put, if they are stored in loops."""

    def __init__(self, tiles: Tiles, store: Store, rows: dict[tuple[int, ...], list[Piece]]) -> None:
        self.tiles, self.w, self.store, self.found = tiles, tiles.w, store, rows
        self.sums: Array | None = None
        self.one_by_one = False
        self.axes, self.columns = store.tile.axes, store.tile.axes[-1]
        self.outer, self.numbered = rows_of(store.tile), self.columns.of[0] if self.columns.of is not None else None
        self.apart = next((axis for axis in self.axes if axis.apart), None)

    def along(self, axes: Sequence[Axis], ranges: dict[Axis, range]) -> None:
        """Those rows, for all of the further axes: the first ones along an axis only where the tile does not begin early."""
        if not axes:
            self.vectors(ranges)
            return
        axis, *rest = axes
        over = 0 if varies(axis.size) and axis.size > axis.registers else -axis.size % axis.registers         # (0: see `new`)
        if over:
            with self.tiles.only(axis):
                self.along(rest, {**ranges, axis: range(over)})
        self.along(rest, {**ranges, axis: range(over, axis.registers)})

    def vectors(self, ranges: dict[Axis, range]) -> None:
        """Columns that the tile before stores are left out in the same way."""
        inner = [axis for axis in self.outer if axis is not self.numbered]
        size, over = self.columns.registers, early_by(self.columns)
        for number in self.each(self.numbered, ranges):
            if number.terms and self.numbered is not None:
                self.tiles.begin(self.numbered, number)
            loop = varies(self.columns.size) and self.columns.size > size and self.apart is None and self.sums is None
            if loop or over:
                with self.tiles.only(self.columns, False, number):
                    self.rows(ranges, inner, {self.numbered: number}, range(size))
                with self.tiles.only(self.columns, True, number), self.through_array() if loop else nullcontext():
                    self.rows(ranges, inner, {self.numbered: number}, range(over, size))
            else:
                self.rows(ranges, inner, {self.numbered: number}, range(min(size, self.columns.size)))

    def each(self, axis: Axis | None, ranges: dict[Axis, range]) -> Iterator[Index]:
        """The indices along an axis: in a loop, if there is an array to read."""
        which = range(1) if axis is None or axis not in ranges else ranges[axis]
        if self.sums is None or len(which) == 1:
            yield from map(constant, which)
            return
        with self.w.scope():
            var = Var("vector" if axis is self.numbered else "row", len(which), which.start)
            with self.w.loop(var, which.start, which.stop):
                yield var.index

    def rows(self, ranges: dict[Axis, range], axes: Sequence[Axis], at: dict[Axis | None, Index], columns: range) -> None:
        if axes:
            for n in self.each(axes[0], ranges):
                with self.new(axes[0], n):
                    self.rows(ranges, axes[1:], {**at, axes[0]: n}, columns)
            return
        apart = self.apart
        for lane in range(1 if apart is None else min(apart.lanes, apart.size)):
            with self.tiles.only(apart, False, at[self.numbered]) if apart is not None and lane < early_by(apart) else nullcontext():
                self.row(at, columns, lane)

    def to_array(self) -> None:
        """The tile goes to an array, from which it is stored in loops."""
        size = sum(x.lanes for _, x in next(iter(self.found.values())))
        self.sums = self.w.array("sums", ctype(self.store.tile.dtype), len(self.found) * size)
        for n, row in enumerate(self.found.values()):
            for at, (_, x) in zip(running([x.lanes for _, x in row]), row, strict=True):
                self.w.store(Access(self.sums, constant(n * size + at), each=x.lanes), x)

    @contextmanager
    def through_array(self) -> Iterator[None]:
        """The columns of the tile are stored one by one, in a loop."""
        self.to_array()
        self.one_by_one = True
        yield
        self.sums, self.one_by_one = None, False

    @contextmanager
    def new(self, axis: Axis, n: Index) -> Iterator[None]:
        """Where row number n of a tile is not the tile's before: a test, where tiles begin early for some sizes."""
        if not self.tested(axis, n):
            yield
            return
        at, first = self.tiles.at(axis, n), self.tiles.number(axis) * axis.registers
        known = ("range", at - first, 0, axis.registers), ("range", at, 0, axis.size)
        with self.w.scope(), self.w.branch(Infix(">=", self.w.at(at), self.w.at(first)), known):
            self.tiles.bind_starts()
            yield

    def tested(self, axis: Axis, n: Index) -> bool:
        """Whether `new` tests a row (the last one of a tile is the tile's in any case)."""
        size = axis.registers
        return axis in self.outer and varies(axis.size) and axis.size > size and (bool(n.terms) or n.constant < size - 1)

    def row(self, at: dict[Axis | None, Index], columns: range, n: int) -> None:
        """Stores these columns of row number n of those that are lanes."""
        spot = [at[axis] for axis in self.outer]
        row = self.found[tuple([x.constant if not x.terms else 0 for x in spot])]
        size, done = sum(x.lanes for _, x in row), columns.start
        first = ravel(spot, [axis.registers for axis in self.outer]) * size
        places = running([x.lanes for _, x in row])
        if self.one_by_one and self.sums is not None:
            var = Var("column", size)
            with self.w.loop(var, columns.start, columns.stop, kept=True):
                self.element(at, n, var.index, read(Access(self.sums, first + var.index), row[0][1].dtype, 1))
            return
        for (start, x), behind in zip(row, places, strict=True):
            begin, lanes = n * self.columns.lanes * (self.apart is not None), x.lanes if self.apart is None else self.columns.lanes
            some = range(max(0, done - start), min(lanes, columns.stop - start))
            done = max(done, start + lanes)
            if self.store.alone and self.sums is not None and len(some) > 1:
                var = Var("lane", len(some), some.start)
                with self.w.loop(var, some.start, some.stop):
                    self.element(at, n, var.index + start, read(Access(self.sums, first + behind + begin + var.index), x.dtype, 1))
                continue
            for lane, width in [(lane, 1) for lane in some] if self.store.alone else pieces(some.start, some.stop):
                value: Expression = lanes_of(x, begin + lane, width)
                if self.sums is not None:
                    value = read(Access(self.sums, first + behind + begin + lane), x.dtype, width)
                self.element(at, n, constant(start + lane), value)

    def element(self, at: dict[Axis | None, Index], n: int, column: Index, value: Expression) -> None:
        indices = []
        for axis in self.axes:
            offset = column if axis is self.columns else constant(n) if axis is self.apart else at.get(axis, ZERO)
            x = self.tiles.at(axis, offset, at[self.numbered])
            if axis is not self.columns and self.tested(axis, offset):
                first = self.tiles.number(axis) * axis.registers
                x = first + bounded(x - first, 0, axis.registers)
            indices.append(bounded(x, 0, axis.size) if axis is self.columns or axis.of is not None else x)
        found = self.store.root(*indices)
        test = combined("&&", found.tests)
        if test is None:
            found.write(value)
            return
        with self.w.scope(), self.w.branch(test):
            self.tiles.bind_starts()
            found.write(value)
