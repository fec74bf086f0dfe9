"""Registers of a work-item in a tile program on GPUs, and the levels of sums in them. Start at `ItemRegisters`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, ravel
from tracegrad.codegen.kernel.ir.expressions import Access, Expression, Infix, Literal, Local
from tracegrad.codegen.kernel.ir.expressions import Load as Read
from tracegrad.codegen.kernel.ir.statements import Array, BoundLike
from tracegrad.codegen.kernel.ir.vectors import ceil_div, ctype
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.levels import in_blocks, levels
from tracegrad.codegen.tile.program import Add, Axis, Dot, Held, Tile

FEW = 16                      # registers of a tile, at most, that leave room for as many more to which they are added now and then
Registers = Mapping[tuple[Axis, int], Index]
Above = Sequence[tuple[int, Array | Expression]]         # the levels of accumulators: after how many terms one is added to, and what it has


class ItemRegisters:
    """The tiles of which an item has elements in registers: arrays whose indices are known where they are written out."""

    def __init__(self, w: Writer) -> None:
        self.w = w
        self.registers: dict[Tile, Array | Expression] = {}

    @contextmanager
    def spread(self, axes: Sequence[Axis], unrolled: bool = True) -> Iterator[dict[tuple[Axis, int], Index]]:
        """Loops over the registers along these axes. Asked to be unrolled: what is indexed by a number that is known is in a register."""
        found: dict[tuple[Axis, int], Index] = {}
        with self.w.scope(), ExitStack() as inside:
            for axis in axes:
                for n, digit in enumerate(axis.digits):
                    if digit.held is Held.REGISTER and digit.count > 1:
                        var = Var(f"{axis.name}{n}", digit.count)
                        inside.enter_context(self.w.loop(var, 0, digit.count, unrolled=unrolled))
                        found[axis, n] = var.index
            yield found

    def register(self, axes: Sequence[Axis], registers: Registers) -> Index:
        """The number of a register of a tile."""
        digits = [(axis, n) for axis in axes for n, d in enumerate(axis.digits) if d.held is Held.REGISTER]
        return ravel([registers.get(d, ZERO) for d in digits], [axis.digits[n].count for axis, n in digits])

    def held(self, tile: Tile, name: str, axes: Sequence[Axis]) -> Array:
        """Registers for the elements along these axes."""
        return self.w.array(name, ctype(tile.dtype), prod(axis.held(Held.REGISTER) for axis in axes))

    def value(self, tile: Tile, registers: Registers, without: Axis | None = None) -> Expression:
        """An element of the tile."""
        found = self.registers[tile]
        if isinstance(found, Expression):
            return found
        axes = [axis for axis in tile.axes if axis is not without]
        return Read(Access(found, self.register(axes, registers)), tile.dtype)

    def zeros(self, tile: Tile) -> None:
        self.registers[tile] = self.nothing(tile, tile.name)

    def nothing(self, tile: Tile, name: str) -> Array | Expression:
        """Registers for a tile, that are 0."""
        if prod(axis.held(Held.REGISTER) for axis in tile.axes) == 1:
            return self.named(tile, Literal(0, tile.dtype), name)
        array = self.held(tile, name, tile.axes)
        array.zeros = True
        return array

    def named(self, tile: Tile, value: Expression, name: str = "") -> Local:
        """A variable for the one element of the tile that an item has."""
        local = Local(name or tile.name, tile.dtype)
        self.w.define(local, value)
        return local

    def accumulate(self, step: Dot | Add, axis: Axis) -> None:
        """into += a * b, or x, for all registers of the tile."""
        into = self.registers[step.into]
        with self.spread(step.into.axes) as registers:
            if isinstance(step, Dot):
                value: Expression = Infix("*", self.value(step.a, registers, axis), self.value(step.b, registers, axis))
            else:
                value = self.value(step.x, registers, axis)
            self.w.update(self.slot(into, step.into, registers), "+", value)

    def slot(self, held: Array | Expression, tile: Tile, registers: Registers) -> Access | Local:
        """Where a tile's registers have one of it."""
        if isinstance(held, Array):
            return Access(held, self.register(tile.axes, registers))
        assert isinstance(held, Local)
        return held

    def above(self, tile: Tile, steps: int) -> list[tuple[int, Array | Expression]]:
        """After how many steps what an accumulator has is added to one of the level above, and all of these; the longest first."""
        found = [(length, self.nothing(tile, f"{tile.name}_sum")) for length in levels(steps, tile.dtype)]
        for _, total in found:
            if isinstance(total, Array):
                total.spilled = total.size > FEW
        return found

    def flush(self, tile: Tile, total: Array | Expression, below: Array | Expression) -> None:
        """A block ends: its accumulators are added to those above, and start anew."""
        with self.spread(tile.axes) as registers:
            to, of = self.slot(total, tile, registers), self.slot(below, tile, registers)
            self.w.update(to, "+", of if isinstance(of, Local) else Read(of, tile.dtype))
            self.become(of, Literal(0, tile.dtype))

    def take_sums(self, tile: Tile, total: Array | Expression) -> None:
        """The tile is what the longest of the levels has."""
        with self.spread(tile.axes) as registers:
            to, of = (self.slot(x, tile, registers) for x in (self.registers[tile], total))
            self.become(to, of if isinstance(of, Local) else Read(of, tile.dtype))

    def become(self, to: Access | Local, value: Expression) -> None:
        if isinstance(to, Local):
            self.w.assign(to, value)
        else:
            self.w.store(to, value)

    def in_blocks(
        self, inside: ExitStack, axis: Axis, above: Above, into: Tile, first: Index, last: Index, size: int, unit: int, each: int = 1,
    ) -> tuple[Index, BoundLike]:
        """Blocks at whose ends accumulators are added to those above, around a loop over so many units of an axis; each: of them an
        iteration takes.
        """
        below = [*[total for _, total in above], self.registers[into]][1:]
        blocks = [(ceil_div(length, unit) * each, partial(self.flush, into, total, of))
                  for (length, total), of in zip(above, below, strict=True)]
        return in_blocks(self.w, inside, axis, "sum", blocks, first, last, size)
