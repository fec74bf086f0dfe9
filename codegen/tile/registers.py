"""What tile programs on CPUs are written with: where registers are, and what is done with a few. Start at `start_of`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate

from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.index.varying import uneven
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Joined, Lanes, Local, Vector
from tracegrad.codegen.kernel.ir.expressions import Load as Read
from tracegrad.codegen.kernel.ir.statements import Access, Bound, Declare, bound
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


def transposed(w: Writer, rows: Sequence[Expression]) -> list[Local]:
    """The transpose of a square of vectors, as many as each has lanes (a power of two).

    A stage puts the even lanes of neighbouring rows into one of the first half, and the odd ones into one of the second: of row and lane
    number, the lowest bits trade places.
    """
    values = [w.let(f"c0_{n}", row) for n, row in enumerate(rows)]
    for stage in range(1, len(rows).bit_length()):
        made = {}
        for n, (a, b) in enumerate(zip(values[::2], values[1::2], strict=True)):
            for place, which in ((n, "even"), (n + len(rows) // 2, "odd")):
                made[place] = w.let(f"c{stage}_{place}", Joined(Lanes(a, which), Lanes(b, which)))
        values = [made[n] for n in range(len(rows))]
    return values


def running(sizes: Sequence[int]) -> list[int]:
    """Where each begins, one behind the other."""
    return [0, *accumulate(sizes)][:-1]
