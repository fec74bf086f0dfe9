"""Registers of a work-item in a tile program on GPUs, and the levels of sums in them. Start at `ItemRegisters`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod

from tracegrad.codegen.kernel.index.index import ZERO, Index, ravel
from tracegrad.codegen.kernel.ir.expressions import Access, Expression, Infix, Literal, Local
from tracegrad.codegen.kernel.ir.expressions import Load as Read
from tracegrad.codegen.kernel.ir.statements import Array, BoundLike
from tracegrad.codegen.kernel.ir.vectors import ceil_div, ctype
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.program import Add, Axis, Dot, Held, Tile
from tracegrad.support.dtypes import DType, dtype_kind
from tracegrad.support.tuning import tuning

FEW = 16                      # registers of a tile, at most, that leave room for as many more to which they are added now and then
Registers = Mapping[tuple[Axis, int], Index]


def levels(steps: int, dtype: DType) -> list[int]:
    """The lengths of the blocks of a loop of so many steps, the longest first: no accumulator takes many terms. None of a short one."""
    found, length = list[int](), tuning().product_steps
    while dtype_kind(dtype) == "f" and steps > length:
        found.insert(0, length)
        length *= tuning().product_blocks
    return found


class ItemRegisters:
    """The tiles of which an item has elements in registers: arrays whose indices are known where they are written out."""

    def __init__(self, w: Writer) -> None:
        self.w = w
        self.registers: dict[Tile, Array | Expression] = {}

    @contextmanager
    def spread(self, axes: Sequence[Axis]) -> Iterator[dict[tuple[Axis, int], Index]]:
        """Loops over the registers along these axes. Asked to be unrolled: what is indexed by a number that is known is in a register."""
        digits = {(axis, n): d.count for axis in axes for n, d in enumerate(axis.digits) if d.held is Held.REGISTER and d.count > 1}
        with self.w.unrolled(**{f"{axis.name}{n}": count for (axis, n), count in digits.items()}) as found:
            yield dict(zip(digits, found, strict=True))

    def register(self, axes: Sequence[Axis], registers: Registers) -> Index:
        """The number of a register of a tile."""
        digits = [(axis, n) for axis in axes for n, d in enumerate(axis.digits) if d.held is Held.REGISTER]
        return ravel([registers.get(d, ZERO) for d in digits], [axis.digits[n].count for axis, n in digits])

    def held(self, tile: Tile, name: str, axes: Sequence[Axis]) -> Array:
        """Registers for the elements along these axes."""
        return self.w.array(name, ctype(tile.dtype), prod(axis.registers for axis in axes))

    def value(self, tile: Tile, registers: Registers, without: Axis | None = None) -> Expression:
        """An element of the tile."""
        found = self.registers[tile]
        if isinstance(found, Expression):
            return found
        axes = [axis for axis in tile.axes if axis is not without]
        return Read(Access(found, self.register(axes, registers)), tile.dtype)

    def zeros(self, tile: Tile, name: str) -> Array | Expression:
        """Registers for a tile, that are 0."""
        if prod(axis.registers for axis in tile.axes) == 1:
            return self.w.let(name, Literal(0, tile.dtype), changes=True)
        array = self.held(tile, name, tile.axes)
        array.zeros = True
        return array

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

    @contextmanager
    def in_levels(self, axis: Axis, into: Tile, steps: int, first: Index, last: Index, size: int, unit: int, each: int = 1
                  ) -> Iterator[tuple[Index, BoundLike]]:
        """Loops over blocks of an axis, `unit` of it counted as one: each adds what its accumulators have to those of the level above.

        steps: the terms that an accumulator would take without them; each: how many units an iteration takes. Given are where the loop for
        one accumulator begins and ends. In the end `into` has what the highest level has.
        """
        lengths, below = levels(steps, into.dtype), self.registers[into]
        totals = [self.zeros(into, f"{into.name}_sum") for _ in lengths]
        for total in totals:
            if isinstance(total, Array):
                total.spilled = total.size > FEW
        blocks = [(ceil_div(length, unit) * each, partial(self.flush, into, total, of))
                  for length, total, of in zip(lengths, totals, [*totals, below][1:], strict=True)]
        with ExitStack() as inside:
            yield self.w.in_blocks(inside, f"{axis.name}_sum", f"{axis.name}_end", blocks, first, last, size)
        if totals:
            with self.spread(into.axes) as registers:
                to, of = (self.slot(x, into, registers) for x in (below, totals[0]))
                self.become(to, of if isinstance(of, Local) else Read(of, into.dtype))

    def flush(self, tile: Tile, total: Array | Expression, below: Array | Expression) -> None:
        """A block ends: its accumulators are added to those above, and start anew."""
        with self.spread(tile.axes) as registers:
            to, of = self.slot(total, tile, registers), self.slot(below, tile, registers)
            self.w.update(to, "+", of if isinstance(of, Local) else Read(of, tile.dtype))
            self.become(of, Literal(0, tile.dtype))

    def become(self, to: Access | Local, value: Expression) -> None:
        if isinstance(to, Local):
            self.w.assign(to, value)
        else:
            self.w.store(to, value)
