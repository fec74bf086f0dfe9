"""What a program over blocks of rows and keys is written with: attention and its gradient. Start at `Blocks`.

Such a program loads blocks of lines, multiplies two of them (`dot`), maps the elements of that product, reduces them along each row, and
adds products of it to sums (`add`). It is written once (`codegen/lower/attention.py`) and lowered twice: `ItemBlocks` makes vectors and
arrays of a work-item of it, for CPUs; `GroupBlocks` makes registers and local memory of a work-group of it, for GPUs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from tracegrad.codegen.kernel.index.index import ZERO, Index
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Literal, Local, Select
from tracegrad.codegen.kernel.ir.statements import Array, Buffer, Pointer
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning

Map = Callable[..., Expression]


class Side(Plain):
    """Rows, or keys: `count` lines of each head; `shared` heads, one after the other, have them in common."""

    count: int
    shared: int = 1


class Mask(Plain):
    """A mask operand: bools that keep a score or make it `fill`, or (None) numbers that are added; see ops/attention/fused.py."""

    buffer: Buffer
    fill: float | None
    inner: int
    shape: tuple[int, ...]

    def where(self, heads: int, head: Index, row: Index, key: Index) -> Index:
        """Where the element of a head's row and key is."""
        count, lines, columns = self.shape
        matrix = head // self.inner if count > 1 else ZERO
        matrix = matrix if count * self.inner == heads or count == 1 else matrix % count
        return matrix * (lines * columns) + (row * columns if lines > 1 else 0) + (key if columns > 1 else 0)


class Place(NamedTuple):
    """An element of a product: the numbers of its own line and of the other one, among those that a work-item has."""

    own: Index
    other: Index = ZERO


class Tile(NamedTuple):
    """Elements of a product or a mask, or a number of each row: what is at a place of the work-item's, and where they are kept."""

    at: Callable[[Place], Expression]
    array: Array | None = None
    values: tuple[Local, ...] = ()


class Lines(NamedTuple):
    """Lines of `size` that were loaded, and where from."""

    side: Side
    size: int
    source: Buffer
    memory: Array | Pointer


class Sum(NamedTuple):
    """Lines of `size` to which products are added: in an array, or (None) where they belong, in a buffer from `start` on."""

    side: Side
    size: int
    buffer: Buffer
    start: int
    array: Array | None


class Part(ABC):
    """Some lines of a product, in registers."""

    @abstractmethod
    def map(self, f: Map, *given: Tile) -> None:
        """Each element becomes f of it and of what is given at its place."""

    @abstractmethod
    def unseen(self, value: float) -> None:
        """Elements of no row or key, and those of keys that a row does not see, become that."""

    @abstractmethod
    def row_max(self, largest: Tile) -> None:
        """A row's number becomes the largest of it and the row's elements; NaN is left out."""

    @abstractmethod
    def row_sum(self, total: Tile) -> None:
        """A row's elements are added to its number: to the work-item's share of it, see `Blocks.totals`."""


class Blocks(ABC):
    """One kernel while it is written. own: the lines that a block has results of; other: those that it goes over, in blocks.

    parts: ranges that the others are cut in, each of which makes a result. apart: of very many others a block's sum is made first and then
    added, so that no accumulator adds up all of them. own_lines, other_lines: of a block; own_first, other_first: where it begins.
    """

    who: str
    own_lines: int
    other_lines: int
    head: Index
    part: Index
    own_first: Index
    other_first: Index

    def __init__(self, w: Writer, dtype: DType, heads: int, own: Side, other: Side, rows: Side, causal: bool, parts: int) -> None:
        self.w, self.dtype, self.heads, self.own, self.other, self.rows = w, dtype, heads, own, other, rows
        self.causal, self.parts, self.apart = causal, parts, other.count > tuning().attention_long

    # -- small things

    def literal(self, x: float) -> Literal:
        return Literal(x, self.dtype)

    def let(self, name: str, value: Expression, changes: bool = False) -> Local:
        return self.w.let(name, value, changes=changes)

    def larger(self, a: Expression, b: Expression) -> Select:
        """The larger of two numbers; b if a is none."""
        return Select(Infix(">", a, b), a, b)

    def line_start(self, side: Side, line: Index, size: int, start: int) -> Index:
        """Where a line of a head's begins in an array of results of all parts, which is at `start`."""
        return ((self.part * self.heads + self.head) * side.count + line) * size + start

    @abstractmethod
    def number(self, x: float) -> Expression:
        """A number, as wide as what is mapped."""

    # -- the order of blocks

    @abstractmethod
    def start(self) -> None:
        """Tell the work-item's numbers."""

    @abstractmethod
    def own_blocks(self) -> AbstractContextManager[None]:
        """For each block of own lines that the kernel's work-item or work-group does."""

    @abstractmethod
    def other_blocks(self) -> AbstractContextManager[None]:
        """For each block of the others, as far as the own lines see them."""

    @abstractmethod
    def launch(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """How many work-items there are, and of a group."""

    # -- tiles

    @abstractmethod
    def load(self, name: str, source: Buffer, side: Side, size: int, factor: float | None = None) -> Lines:
        """The block's lines of that side, each of `size`, times a factor."""

    @abstractmethod
    def mask(self, mask: Mask) -> Tile:
        """The mask of the block's rows and keys: tests whether scores are kept, or what is added to them."""

    @abstractmethod
    def row_numbers(self, name: str, source: Buffer, start: int) -> Tile:
        """A number of each row, from an array that begins at `start`."""

    @abstractmethod
    def row_dot(self, name: str, a: Buffer, b: Buffer, size: int) -> Tile:
        """The products of the own lines, rows of `size`, of two arrays."""

    @abstractmethod
    def compute(self, name: str, f: Map, *given: Tile) -> Tile:
        """A number of each own line: f of those given."""

    @abstractmethod
    def change(self, tile: Tile, f: Map, *given: Tile) -> None:
        """The same, of a tile that is there."""

    @abstractmethod
    def product(self, name: str) -> Tile:
        """Room for a product of a block of own lines and one of others."""

    @abstractmethod
    def dot(self, to: Tile, own: Lines, other: Lines) -> Iterator[Part]:
        """to = own times the transposed other: in parts, each of which is changed before it is kept."""

    @abstractmethod
    def elements(self, of: Tile) -> Iterator[Part]:
        """A product that is there, in parts."""

    @abstractmethod
    def totals(self, total: Tile) -> None:
        """What `row_sum` made: the shares of all work-items put together."""

    # -- sums

    @abstractmethod
    def sum(self, name: str, side: Side, size: int, buffer: Buffer, start: int) -> Sum:
        """Lines that are 0: own ones of a block, or others, which are asked for in front of `own_blocks`."""

    @abstractmethod
    def add(self, to: Sum, weights: Tile, values: Lines, shrink: Tile | None = None) -> None:
        """to += weights times values, which are lines of the other side than `to`. shrink: `to` is first that much of itself."""

    @abstractmethod
    def store(self, of: Sum, f: Map | None = None, *given: Tile) -> None:
        """Write own lines where they belong: f of each element and of what is given for its line."""

    @abstractmethod
    def store_numbers(self, to: Buffer, starts: list[int], values: list[Tile], once: bool = False) -> None:
        """Write numbers of own lines to arrays that begin at `starts`. once: all parts have the same ones, and only one does."""
