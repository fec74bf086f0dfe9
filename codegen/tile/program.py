"""Tile programs: what a kernel does with blocks of values, before anything is said in statements. Start at `Program`.

A tile is a block of values along axes of the problem. Its layout is that of its axes: the digits of an index are the numbers of a
work-group, of an item in it, and of a register, so an element belongs to one item, which holds it in a register. A lowering (`gpu`,
`cpu`) makes the statements. What a tile is loaded from and stored to are callbacks, which get the index along each axis: index maps
(windows of an image), fused producers and epilogues are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from math import prod

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.expressions import Access, Expression
from tracegrad.codegen.tile.instructions import MatrixInstruction
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Plain

ALONE = (1, 1, 1)                 # the sizes of a work-group of one item


class Held(Enum):
    """What a digit of an index is the number of."""

    GROUP = "group"               # a work-group
    ITEM = "local"                # an item of its group
    GLOBAL = "global"             # an item of all: of items that have nothing to do with each other
    REGISTER = "register"         # a register, or an iteration of a loop
    TILE = "tile"                 # a tile of registers, of the several that an item does one after the other (on CPUs)


class Digit(Plain):
    """One of `count` values; dim: the dimension of the launch, of groups and items."""

    held: Held
    count: int
    dim: int = 0


class Axis(Plain):
    """The indices 0..size-1 along one dimension of the problem. digits: where each is, the largest first; they may go beyond `size`.

    name: what kernels call the index. lanes: so many registers side by side are a vector (on CPUs); apart: they do not lie side by side in
    memory. Axes with lanes have vectors together: rows by columns of an image.
    of: the axis whose index tells the number of the tile along this one, which changes with every so many of it: tiles of an image, along
    both of its axes, are numbered one after the other.
    """

    name: str
    size: int
    digits: tuple[Digit, ...] = ()
    lanes: int = 1
    apart: bool = False
    of: tuple[Axis, int] | None = None

    @classmethod
    def of_items(cls, name: str, size: int, dim: int = 0) -> Axis:
        """Each work-item along a dimension has one index."""
        return cls(name, size, (Digit(Held.GLOBAL, size, dim),))

    @classmethod
    def tiled(cls, name: str, size: int, width: int = 1, lanes: int = 1) -> Axis:
        """Each work-item has all of them, in tiles of `width`."""
        return cls(name, size, (Digit(Held.TILE, -(-size // width)), Digit(Held.REGISTER, width)), lanes)

    @property
    def covered(self) -> int:
        """How many indices the digits count."""
        return prod(d.count for d in self.digits)

    @property
    def block(self) -> int:
        """How many of them are of one work-group."""
        return prod(d.count for d in self.digits if d.held is not Held.GROUP)

    @property
    def registers(self) -> int:
        """How many of them a tile has in registers, or in iterations of loops."""
        return self.held(Held.REGISTER)

    def held(self, held: Held) -> int:
        """How many of them the digits of a kind count."""
        return prod(d.count for d in self.digits if d.held is held)


class Tile(Plain):
    """The values along `axes`. staged: they come through local memory, where all items of the work-group see them."""

    name: str
    axes: tuple[Axis, ...]
    dtype: DType
    staged: bool = False


def _nothing(*value: Expression) -> Expression:
    raise AssertionError("an element that cannot be read, or written")


class Element(Plain):
    """One element of what a tile is loaded from, or stored to. tests: what has to hold for it to be there; elsewhere 0 is loaded, and
    nothing is stored. read: its value, by statements where it is called; write: stores a value, or the lanes of a vector, along the last
    index. access: where it lies, if that is all there is to reading it.
    """

    tests: tuple[Expression, ...]
    read: Callable[[], Expression] = _nothing
    write: Callable[[Expression], object] = _nothing
    access: Access | None = None


# Finds an element: at these indices, one for each axis of the tile, all of them within the axes' sizes where the tests hold.
ElementAt = Callable[..., Element]


class Zeros(Plain):
    """The tile is 0."""

    tile: Tile


class Load(Plain):
    """The tile is read. across: what lies side by side in memory is along the axis that the loop around does not count.

    copied: where 16 bytes of it are that lie side by side, from an element on whose index there is a multiple of their number; None if they
    do not lie so.
    panels: of this axis, which is in tiles, the source is given two indices: the number of the tile, and the place in it.
    """

    tile: Tile
    source: ElementAt
    across: bool = False
    copied: Callable[..., Access] | None = None
    panels: Axis | None = None


class Dot(Plain):
    """into += the sum over the loop's axis of a * b. by: the matrix instruction that does it."""

    into: Tile
    a: Tile
    b: Tile
    by: MatrixInstruction | None = None


class Add(Plain):
    """into += the sum over the loop's axis of x."""

    into: Tile
    x: Tile


class Loop(Plain):
    """The body for all of `axis`, or for the `length` of it that are part number `part`: no part is empty. If it loads staged tiles, the
    next block of each is fetched while this one is worked on.

    count: declares what there is to know of the indices along `of` before the loop; how many of the axis there are, if not always all.
    unrolled: the compiler is asked to write it out; written: it is. (On CPUs the body may be a loop, and of an axis with lanes that are no
    whole vectors the last vector begins early, if early is so: lanes that the one before has had do not count. Nor do those beyond the end
    of an axis that is shorter than a vector.)
    stages: how many blocks of staged tiles there is room for; ahead: what is multiplied next is read from there before this is.
    steps: how many terms an accumulator takes, of the innermost loop, if not as many as a product's.
    depth: tiles of registers are done for so many of the axis, then for the next (on CPUs): what they have added up is kept between, in a
    buffer.
    """

    axis: Axis
    body: tuple[Load | Dot | Add | Loop, ...]
    part: Axis | None = None
    length: int = 0
    count: Callable[..., Var | None] | None = None
    of: tuple[Axis, ...] = ()
    unrolled: bool = False
    stages: int = 2
    ahead: bool = False
    depth: int = 0
    kept: ElementAt | None = None
    written: bool = False
    early: bool = False
    steps: int = 0

    @property
    def nest(self) -> list[Loop]:
        """This loop, the one in it, and so on."""
        inner = self.body[0]
        return [self, *(inner.nest if isinstance(inner, Loop) else ())]

    @property
    def loads(self) -> list[Load]:
        return [step for step in self.body if isinstance(step, Load)]

    @property
    def sums(self) -> list[Dot | Add]:
        return [step for step in self.body if isinstance(step, (Dot, Add))]


class Fold(Plain):
    """Items side by side along `axis` have a sum each in `tile`: these are added up. The first of them has the result."""

    tile: Tile
    axis: Axis


class Store(Plain):
    """The tile is written, by the items that have it. statements: how many each element takes, about; alone: each lane by itself."""

    tile: Tile
    root: ElementAt
    statements: int = 1
    alone: bool = False


class Fill(Plain):
    """Elements along `axes` are read and written, one after the other (on CPUs, before all tiles).

    inside: where along an axis the source has elements, given the indices along those before it; what is outside is 0. Axes with registers
    are written out.
    """

    axes: tuple[Axis, ...]
    source: ElementAt
    to: ElementAt
    dtype: DType
    inside: Callable[[Axis, Sequence[Index]], range] | None = None


class Pack(Plain):
    """Lines are copied to panels, in which they lie side by side: `lines` are in tiles, which are the panels (on CPUs).

    source: at indices along `axes`, of the line, and `along` it; to: at those along `axes`, the number of the panel, the index `along` it,
    the place in the panel. square: so many elements of as many lines are read as vectors, and transposed.
    """

    axes: tuple[Axis, ...]
    lines: Axis
    along: Axis
    source: ElementAt
    to: ElementAt
    square: int = 1


Step = Zeros | Loop | Fold | Store | Fill | Pack


def summed(loop: Loop, root: ElementAt, statements: int = 1, alone: bool = False, fold: bool = False) -> tuple[Step, ...]:
    """The steps of a sum: a tile of zeros, what the loop adds to it, the shares of items or lanes put together, the store (see `Store`).

    fold: also of one lane, so that the sums of a row become vectors.
    """
    nest, into = loop.nest, loop.nest[-1].sums[0].into
    shared = fold or any(each.axis.lanes > 1 or each.axis.held(Held.ITEM) > 1 for each in nest)
    return Zeros(into), loop, *[Fold(into, nest[-1].axis)] * shared, Store(into, root, statements, alone)


class Program(Plain):
    """Steps, one after the other. axes: all that have groups or items, those that count slower first; local: the sizes of a work-group."""

    axes: tuple[Axis, ...]
    local: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def cooperates(self) -> bool:
        """Whether the items of a work-group have to do with each other."""
        return any(d.held is Held.ITEM for axis in self.axes for d in axis.digits)

    @property
    def loops(self) -> list[Loop]:
        """All loops, those in others behind them."""
        return [inner for step in self.steps if isinstance(step, Loop) for inner in step.nest]

    @property
    def grouped(self) -> bool:
        """Whether work-items are laid out by work-groups, as on GPUs."""
        return any(d.held is Held.GROUP for axis in self.axes for d in axis.digits)

    def digits(self, held: Held, dim: int) -> list[tuple[Axis, int]]:
        """The digits along a dimension of the launch, each as its axis and its place among that axis' digits."""
        return [(axis, n) for axis in self.axes for n, d in enumerate(axis.digits) if d.held is held and d.dim == dim]

    def count(self, held: Held, dim: int) -> int:
        """How many numbers these have together."""
        return prod(axis.digits[n].count for axis, n in self.digits(held, dim))

    @property
    def launched(self) -> tuple[int, ...]:
        """How many work-items are launched along each dimension."""
        return tuple(self.count(Held.GLOBAL, dim) if self.digits(Held.GLOBAL, dim) else self.count(Held.GROUP, dim) * n
                     for dim, n in enumerate(self.local))


def digits(count: int, several: int, size: int, dim: int) -> tuple[Digit, ...]:
    """Of the work-item along a dimension, of the tile that it does, of the register: of `count` tiles an item does `several` of `size`."""
    return Digit(Held.GLOBAL, -(-count // several), dim), Digit(Held.TILE, several), Digit(Held.REGISTER, size)
