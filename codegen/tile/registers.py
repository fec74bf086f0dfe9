"""What tile programs on CPUs are written with: where registers are, and what is done with a few. Start at `start_of`, `Places`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, constant
from tracegrad.codegen.kernel.index.varying import uneven
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Joined, Lanes, Local, Vector
from tracegrad.codegen.kernel.ir.expressions import Load as Read
from tracegrad.codegen.kernel.ir.statements import Access, Bound, Declare, bound
from tracegrad.codegen.kernel.ir.vectors import ceil_div
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.program import Axis, Tile
from tracegrad.support.dtypes import DType


def held(tile: Tile) -> list[Axis]:
    """The axes along which a tile has several registers."""
    return [axis for axis in tile.axes if axis.registers > 1 and axis.of is None]


def rows_of(tile: Tile) -> list[Axis]:
    """Those of them that are not its columns."""
    return [axis for axis in held(tile) if axis is not tile.axes[-1]]


def numbered(axis: Axis, number: int | Index) -> Axis:
    """Stands for an axis where its tile is that of register `number`, along the axis that tells."""
    return replace(axis, name=f"{axis.name}:{number}")


def early_by(axis: Axis) -> int:
    """By how much the last tile along an axis begins early."""
    return -axis.size % axis.registers if axis.size >= axis.registers else 0


def offsets_of(axis: Axis) -> list[int]:
    """Where in a tile the vectors along an axis begin: the last one early, where they do not fit."""
    size = axis.registers
    return [min(start, size - axis.lanes) for start in range(0, size, axis.lanes)]


def start_of(w: Writer, name: str, size: int, tile: int, number: Index, lanes: int = 1) -> Index:
    """Where tile number `number` of an axis begins: the last one early, where they do not fit. That of vectors is a variable always."""
    right, most = number * tile, max(0, size - tile)
    if not (uneven(size, tile) and size >= tile) and lanes == 1:
        return w.indexed(name, right)
    var = Var(name, most + lanes)
    right = right if right.terms else constant(min(right.constant, most))
    early = bool(right.terms) and size > tile and uneven(size, tile)
    w.add(Declare(var, f"const {w.index}", w.least(right, most) if early else w.at(right),
                  bound=Bound(w.at(right), constant(min(right.lo, most)), right, most) if early else bound(right)))
    w.bind(var)
    return var.index


def rest(last: Index, step: int) -> tuple[Index, Index]:
    """Where what is left of 0..last-1 after whole steps begins and ends. Nothing begins within, too: what would be read there is there."""
    first = last // step * step
    return (last - 1, last - 1) if not last.terms and first == last else (first, last)


def read(access: Access, dtype: DType, lanes: int) -> Read:
    return Read(access if lanes == 1 else Access(access.memory, access.at, guards=access.guards, each=lanes), dtype, lanes)


def lanes_of(x: Expression, first: int, lanes: int) -> Expression:
    """Some lanes of a vector."""
    return x if lanes == x.lanes else Lanes(x, first if lanes == 1 else range(first, first + lanes))


def added(w: Writer, vectors: list[Local]) -> Expression:
    """A vector with the sum of the lanes of each. Of more than four, neighbours in two make one vector, those of two such again: 45 steps
    for 16. (Of few that takes longer: convolutions' gradients 1.2 times.)"""
    lanes, sums = vectors[0].lanes, 1                        # sums: of how many vectors each has lanes, side by side
    while len(vectors) > max(1, 4 // sums) and sums < lanes:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        halves = [Infix("+", *[joined([Lanes(a, which), Lanes(b, which)]) for which in ("even", "odd")]) for a, b in pairs]
        sums *= 2
        if len(halves) == 1 and sums == lanes:
            return halves[0]
        vectors = [w.let(f"{a.name}h", half) for a, half in zip(vectors[::2], halves, strict=True)]
    if sums > 1:
        x = vectors[0]
        while x.lanes > 2 * sums:
            x = w.let(f"{x.name}h", Infix("+", Lanes(x, "even"), Lanes(x, "odd")))
        return joined([Infix("+", Lanes(x, "even"), Lanes(x, "odd")) if x.lanes > sums else x, *vectors[1:]])
    while vectors[0].lanes > 4:
        vectors = [w.let(f"{x.name}h", Infix("+", Lanes(x, "lo"), Lanes(x, "hi"))) for x in vectors]
    each = [[lanes_of(x, lane, 1) for x in vectors] for lane in range(vectors[0].lanes)]
    return reduce(partial(Infix, "+"), [joined(parts) for parts in each])


def joined(parts: Sequence[Expression]) -> Expression:
    """The vector of the lanes of all."""
    if parts[0].lanes == 1 and len(parts) > 1:
        return Vector(tuple(parts))
    while len(parts) > 1:
        parts = [Joined(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def running(sizes: Sequence[int]) -> list[int]:
    """Where each begins, one behind the other."""
    return [0, *accumulate(sizes)][:-1]


class Places:
    """Where the tiles of a kernel are. items: the numbers of work-items; numbers: of the tile along each axis; starts: where it begins;
    open: the indices of the loops that are open; numbered: axes whose tiles are numbered along others.
    """

    def __init__(self, w: Writer, numbered: Sequence[Axis]) -> None:
        self.w, self.numbered = w, numbered
        self.items: dict[Axis, Index] = {}
        self.numbers: dict[Axis, Index] = {}
        self.starts: dict[Axis, Index] = {}
        self.open: dict[Axis, Index] = {}

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
