"""The CPU kernels of matrix products: register tiles over a block of C, with one of two inner loops. Start at `tiles`."""

from __future__ import annotations

from typing import Protocol

from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import item
from tracegrad.codegen.kernel.names import is_variable_of_product
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import (
    Term,
    add_lanes,
    ceil_div,
    ctype,
    index_type,
    inside,
    kept,
    load,
    pieces,
    plus,
    swizzle,
    vector_of,
    write,
)
from tracegrad.codegen.matmul.problem import DType, Product, View
from tracegrad.plan import Plain


class Inner(Protocol):
    """The inner loop over k of one tile, and the vectors it leaves."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def title(self) -> str: ...

    @property
    def widths(self) -> tuple[int, ...]:
        """The lanes of its vectors."""

    def loop(self, emit: Text, index: str, a: View, b: View, k0: Term, k1: Term) -> None:
        """Emits the loop from k0 to k1, with `pa` and `pb` at the tile's first elements."""

    def results(self, row: int, skip: int) -> list[tuple[int, str, int]]:
        """(column, value, width) of what `row` of the tile stores if its first `skip` columns are not stored."""


class Broadcast(Plain):
    """A scalar of each row times each vector of columns. Its accumulators may lie in memory between blocks of k: `where`, if not ""."""

    dtype: DType
    width: int
    rows: int
    columns: int

    @property
    def title(self) -> str:
        return f"{self.rows}x{self.columns} register tiles"

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width,)

    @property
    def offsets(self) -> list[int]:
        return [min(start, self.columns - self.width) for start in range(0, self.columns, self.width)]

    @property
    def size(self) -> int:
        return len(self.accumulators) * self.width

    @property
    def accumulators(self) -> list[str]:
        return [f"c{r}_{v}" for r in range(self.rows) for v in range(len(self.offsets))]

    def loop(self, emit: Text, index: str, a: View, b: View, k0: Term, k1: Term, where: str = "") -> None:
        vector = ctype(self.dtype, self.width)
        many = len(self.offsets) > 1
        for r in range(self.rows):
            emit(f"{vector} " + ", ".join(f"c{r}_{v} = 0" for v in range(len(self.offsets))) + ";")
        if where:
            emit(f"if ({k0} > 0) {{")
            for number, c in enumerate(self.accumulators):
                emit(f"{c} = {load(self.dtype, self.width, plus(where, number * self.width))};")
            emit("}")
        emit("#pragma unroll 4")
        emit(f"for ({index} k = {k0}; k < {k1}; k++) {{")
        for v, offset in enumerate(self.offsets):
            emit(f"const {vector} b{v} = {load(self.dtype, self.width, plus('pb', offset))};")
        for r in range(self.rows):
            scalar = f"pa[{r * a.step}]"
            if many:
                emit(f"const {vector} a{r} = {scalar};")
            for v in range(len(self.offsets)):
                emit(f"c{r}_{v} += {f'a{r}' if many else scalar} * b{v};")
        emit(f"pa += {a.along};")
        emit(f"pb += {b.along};")
        emit("}")

    def keep(self, emit: Text, where: Term) -> None:
        for number, c in enumerate(self.accumulators):
            write(emit, self.dtype, self.width, plus(where, number * self.width), c)

    def results(self, row: int, skip: int) -> list[tuple[int, str, int]]:
        out, done = [], skip
        for v, offset in enumerate(self.offsets):
            for lane, width in pieces(max(0, done - offset), self.width):
                out.append((offset + lane, swizzle(f"c{row}_{v}", lane, width, self.width), width))
            done = max(done, offset + self.width)
        return out


class Dot(Plain):
    """Vectors of rows times vectors of columns along k; then the lanes of each accumulator are added up."""

    dtype: DType
    width: int
    rows: int
    columns: int

    @property
    def title(self) -> str:
        return f"{self.rows}x{self.columns} dot products at a time, {self.width} of k a step"

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width, *(width for _, width in pieces(0, self.columns)))

    def loop(self, emit: Text, index: str, a: View, b: View, k0: Term, k1: Term) -> None:
        vector, width, groups = ctype(self.dtype, self.width), self.width, pieces(0, self.columns)
        for r in range(self.rows):
            emit(f"{vector} " + ", ".join(f"c{r}_{j} = 0" for j in range(self.columns)) + ";")
        emit(f"{index} k = {k0};")
        emit(f"for (; k + {width} <= {k1}; k += {width}) {{")
        for j in range(self.columns):
            emit(f"const {vector} b{j} = {load(self.dtype, width, plus('pb', j * b.step))};")
        for r in range(self.rows):
            emit(f"const {vector} a{r} = {load(self.dtype, width, plus('pa', r * a.step))};")
            for j in range(self.columns):
                emit(f"c{r}_{j} += a{r} * b{j};")
        emit(f"pa += {width};")
        emit(f"pb += {width};")
        emit("}")
        for r in range(self.rows):
            for first, count in groups:
                add_lanes(emit, self.dtype, width, f"s{r}_{first}", [f"c{r}_{j}" for j in range(first, first + count)])
        if k0 == 0 and isinstance(k1, int) and k1 % width == 0:
            return
        emit(f"for (; k < {k1}; k++) {{")
        for r in range(self.rows):
            for first, count in groups:
                row = vector_of(self.dtype, [f"pb[{j * b.step}]" for j in range(first, first + count)])
                emit(f"s{r}_{first} += pa[{r * a.step}] * {row};")
        emit("pa++;")
        emit("pb++;")
        emit("}")

    def results(self, row: int, skip: int) -> list[tuple[int, str, int]]:
        out = []
        for first, count in pieces(0, self.columns):
            for lane, width in pieces(max(0, skip - first), count):
                out.append((first + lane, swizzle(f"s{row}_{first}", lane, width, count), width))
        return out


def tiles(p: Product, parts: int, a: View, b: View, inner: Inner, depth: int = 0) -> Kernel:
    """The kernel that runs `inner` over all tiles: one work-item does a block of tiles (of one part of k).

    The tile at an edge starts early, so it overlaps its neighbour: it stores only what the neighbour does not.
    depth: of the blocks that k is cut into, if it is; between them accumulators are in a buffer.
    """
    rows, columns = inner.rows, inner.columns
    down, across = ceil_div(p.m, rows), ceil_div(p.n, columns)
    high, wide = _deep_block(p, rows, columns, depth) if depth else _block(p, parts, rows, columns)
    params, index = merge(a.params, b.params, p.store.params), p.index
    if depth:
        assert isinstance(inner, Broadcast)
        sums = Temp(f"{p.name}_sums", p.owner, p.batch * down * across * inner.size, p.dtype)
        params = merge(params, (sums.buffer("partial", "inout"),))
        index = "long" if index == "long" else index_type(sums.size)
    emit = Text(p.name, f"{p.m}x{p.n}x{p.k} product in {inner.title}; a work-item does {high}x{wide} of them"
                f"{f', {depth} of k after {depth}' if depth else ''}.", params, is_variable_of_product,
                [(p.dtype, width) for width in inner.widths])
    _open(emit, index, "row_tile", "i", p.m, rows, item(1), high, down, loop=False)
    _open(emit, index, "column_tile", "j", p.n, columns, item(0), wide, across, loop=False)
    batch = "b" if p.batch > 1 else 0
    if parts > 1:
        step = ceil_div(ceil_div(p.k, parts), 16) * 16
        emit(f"const {index} part = {item(2)}" + (f" % {parts};" if p.batch > 1 else ";"))
        emit.part(index, "k0", "k1", step, p.k)
    if p.batch > 1:
        emit(f"const {index} b = {item(2)}" + (f" / {parts};" if parts > 1 else ";"))
    k0, k1 = ("k0", "k1") if parts > 1 or depth else (0, p.k)
    if depth:
        emit(f"for ({index} k0 = 0; k0 < {p.k}; k0 += {depth}) {{")
        emit(f"const {index} k1 = {inside(f'k0 + {depth}', p.k, p.k % depth == 0, index)};")
    loops = _open(emit, index, "column_tile", "j", p.n, columns, "", wide, across, loop=True)
    loops += _open(emit, index, "row_tile", "i", p.m, rows, "", high, down, loop=True)
    row_tile, column_tile = "row_tile" if down > 1 else 0, "column_tile" if across > 1 else 0
    emit(f"__global const {ctype(p.dtype)} *pa = {plus(a.base(batch, row_tile, 'i'), (k0, a.along))};")
    emit(f"__global const {ctype(p.dtype)} *pb = {plus(b.base(batch, column_tile, 'j'), (k0, b.along))};")
    if depth:
        assert isinstance(inner, Broadcast)
        tile = plus((batch, down * across), (row_tile, across), column_tile)
        emit(f"__global {ctype(p.dtype)} *sum = {plus('partial', (tile, inner.size))};")
        inner.loop(emit, index, a, b, k0, k1, "sum")
        emit(f"if (k1 < {p.k}) {{")
        inner.keep(emit, "sum")
        emit("} else {")
    else:
        inner.loop(emit, index, a, b, k0, k1)
    _store(emit, p, inner, batch)
    for _ in range(loops + 2 * (depth > 0)):
        emit("}")
    size = (ceil_div(across, wide), ceil_div(down, high), p.batch * parts)
    return emit.kernel(size, (1, 1, 1), p.flops, p.bytes, inner.title)


def _deep_block(p: Product, rows: int, columns: int, depth: int) -> tuple[int, int]:
    """How many tiles down and across one work-item does of a product whose k is in blocks: what a core's second cache holds.

    These are a block of A, one of B, and the accumulators; every core has several such, so that they end together.
    """
    down, across = ceil_div(p.m, rows), ceil_div(p.n, columns)
    high = wide = 1
    while True:
        tall = (high * rows <= wide * columns and high < down) or wide >= across
        grown = (min(2 * high, down), wide) if tall else (high, min(2 * wide, across))
        footprint = (grown[0] * rows + grown[1] * columns) * depth + grown[0] * rows * grown[1] * columns
        left = ceil_div(down, grown[0]) * ceil_div(across, grown[1]) * p.batch
        if grown == (high, wide) or left < 4 * p.target.cores or footprint * p.dtype.itemsize > p.target.l2_bytes:
            return high, wide
        high, wide = grown


def _open(emit: Text, index: str, tile: str, first: str, lines: int, panel: int, gid: str, block: int, count: int, loop: bool) -> int:
    """Emits, for one direction, the range of tiles of this work-item (loop=False) or the loop over it; returns the loops opened."""
    if count == 1:
        if loop:
            emit(f"const {index} {first} = 0;")
        return 0
    if not loop:
        if block == 1:
            emit(f"const {index} {tile} = {gid};")
        elif block < count:
            emit(f"const {index} first_{tile} = {gid} * {block};")
            emit(f"const {index} last_{tile} = {inside(f'first_{tile} + {block}', count, count % block == 0, index)};")
        return 0
    if block > 1:
        start, stop = (f"first_{tile}", f"last_{tile}") if block < count else (0, count)
        emit(f"for ({index} {tile} = {start}; {tile} < {stop}; {tile}++) {{")
    start = f"{tile} * {panel}" if panel > 1 else tile
    emit(f"const {index} {first} = {inside(start, lines - panel, lines % panel == 0, index)};")
    return int(block > 1)


def _block(p: Product, parts: int, rows: int, columns: int) -> tuple[int, int]:
    """How many tiles down and across one work-item does: enough work to pay for its start, few enough to feed the cores."""
    down, across = ceil_div(p.m, rows), ceil_div(p.n, columns)
    high = wide = 1
    while True:
        items = ceil_div(down, high) * ceil_div(across, wide) * p.batch * parts
        tall = (high * rows <= wide * columns and high < down) or wide >= across
        grown = (min(2 * high, down), wide) if tall else (high, min(2 * wide, across))
        work = high * wide * rows * columns * ceil_div(p.k, parts)
        footprint = (grown[0] * rows + grown[1] * columns) * ceil_div(p.k, parts) * p.dtype.itemsize
        left = ceil_div(down, grown[0]) * ceil_div(across, grown[1]) * p.batch * parts
        if grown == (high, wide) or (left < 4 * p.target.cores and work > 1 << 15) or (footprint > p.target.l2_bytes and work > 1 << 18):
            return high, wide
        if (items <= p.target.cores and work > 1 << 13) or work > 1 << 21:
            return high, wide
        high, wide = grown


def _store(emit: Text, p: Product, inner: Inner, batch: Term) -> None:
    """Emits the stores of a tile: rows and columns that the neighbours of an early-starting tile store are left out of it."""
    rows_over = -p.m % inner.rows
    if rows_over:
        emit(f"if (i == row_tile * {inner.rows}) {{")
        _store_rows(emit, p, inner, batch, 0, rows_over)
        emit("}")
    _store_rows(emit, p, inner, batch, rows_over, inner.rows)


def _store_rows(emit: Text, p: Product, inner: Inner, batch: Term, first: int, stop: int) -> None:
    def columns(skip: int) -> None:
        found = [inner.results(r, skip) for r in range(first, stop)]
        _, value, width = found[0][0]
        if stop == first + 1 or not p.store.long(len(found) * len(found[0]), batch, "i", "j", value=value, width=width):
            for r, row in enumerate(found, first):
                for column, value, width in row:
                    p.store.write(emit, batch, plus("i", r), plus("j", column), value, width)
            return
        size, at = sum(width for *_, width in found[0]), 0
        emit("{")
        emit.array(ctype(p.dtype), "sums", (stop - first) * size)
        for row in found:
            for _, value, width in row:
                emit(f"{kept(p.dtype, width, plus('sums', at))} = {value};")
                at += width
        at = -first * size
        with emit.counting("r", stop, first) as line:
            for column, _, width in found[0]:
                p.store.write(emit, batch, plus("i", line), plus("j", column), kept(p.dtype, width, plus("sums", (line, size), at)), width)
                at += width
        emit("}")

    over = -p.n % inner.columns
    if over == 0:
        columns(0)
        return
    emit(f"if (j == column_tile * {inner.columns}) {{")
    columns(0)
    emit("} else {")
    columns(over)
    emit("}")
