"""What a program over blocks of rows and keys is written with: attention and its gradient. Start at `Blocks`.

Such a program (`codegen/lower/attention.py`) is written once and lowered twice: `ItemBlocks` makes vectors and arrays of a work-item of it,
for CPUs; `GroupBlocks` makes registers and local memory of a work-group of it, for GPUs. Both have, and mypy holds them to what is used:

- `start()`: tells the work-item's numbers; `launch()`: how many work-items there are, and of a group
- `with own_blocks()`: for each block of own lines that a work-item or work-group does; `with other_blocks()`: for each block of the others,
  as far as the own lines see them
- `load(name, source, side, size, factor)`: the block's lines of that side, each of `size`, times a factor
- `mask(mask)`: that of the block's rows and keys: tests whether scores are kept, or what is added to them
- `row_numbers(name, source, start)`: a number of each row, from an array that begins at `start`; `row_dot(name, a, b, size)`: the products
  of the own lines, rows of `size`, of two arrays; `number(x)`: one that is as wide as what is mapped
- `compute(name, f, *given)`: a number of each own line, f of those given; `change(tile, f, *given)`: the same, of a tile that is there
- `product(name)`: room for a product of a block of own lines and one of others; `dot(to, own, other)`: to = own times the transposed
  other, in parts, each of which is changed before it is kept; `elements(of)`: a product that is there, in parts
- of a part, which is some lines of a product in registers: `map(f, *given)`: each element becomes f of it and of what is given at its
  place; `unseen(value)`: elements of no row or key, and those of keys that a row does not see, become that; `row_max(largest)`: a row's
  number becomes the largest of it and the row's elements, but NaN; `row_sum(total)`: they are added to it, to the work-item's share of it
- `totals(total)`: what `row_sum` made: the shares of all work-items put together
- `sum(name, side, size, buffer, start)`: lines that are 0: own ones of a block, or others, which are asked for in front of `own_blocks`
- `add(to, weights, values, shrink)`: to += weights times values, which are lines of the other side than `to`, which is first `shrink` times
  itself; `store(of, f, *given)`: writes own lines where they belong, f of each element and of what is given for its line
- `store_numbers(to, starts, values, once)`: writes numbers of own lines to arrays that begin at `starts`; once: all parts have the same
"""

from __future__ import annotations

from collections.abc import Callable
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


class Blocks:
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
