"""CPU kernels of matrix products, as tile programs: C[b,i,j] = sum over k of A[b,i,k] * B[b,k,j]. Start at `lower_product`.

The schedule is one of

- tiles: 6 rows x 2 vectors of accumulators, B read as vectors, A as broadcast scalars, each straight from its buffer or packed
  into panels (fused loads, unsuitable strides, or large matrices); of a product that a core's second cache does not hold k is cut in
  blocks, between which a work-item keeps the accumulators of its tiles in a buffer;
- dots: 3 rows x 4 columns of accumulators, both read as vectors along k (A times B-transposed: linear layers), summed at the end;
- either of them with k split over work-items into partial results that a second kernel adds up, in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var
from tracegrad.codegen.kernel.index.varying import varies
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.vectors import bit_floor, ceil_div, index_type, lanes, register_tile
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.fused import Fused
from tracegrad.codegen.matmul.problem import Operand, Product, partial, total
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.program import ALONE, Axis, Dot, Element, ElementAt, Load, Loop, Pack, Program, Tile, digits, summed
from tracegrad.support.tuning import tuning


@lowering("contraction")
def lower_product(group: Group, context: Context) -> list[Kernel]:
    """The kernels, in launch order."""
    p = Product.of(group, context)
    width, made, turned = lanes(p.dtype, p.target), list[Kernel](), p.transposed()
    if p.n == 1 and p.m > 1 and p.a.along_k and p.k >= width:
        if not p.b.along_k:
            turned = replace(turned, a=_pack(made, p, p.b, 1))
        return [*made, *_split(turned, _dots)]
    if 1 < p.n < width and p.m > p.n and p.a.along_k and not p.b.along_k and p.k >= 4 * width:
        p = replace(p, b=_pack(made, p, p.b, 1))          # few columns are soon packed, all rows are not
        return [*made, *_split(p, _dots)]
    if p.a.along_k and p.b.along_k and p.k >= 4 * width and _dots_pay(p):
        return _split(p, _dots)
    return _split(turned if p.n < width and p.m > p.n else p, _tiles)


def _index(p: Product, *more: int) -> str:
    return index_type(*(p.batch * x * y for x, y in ((p.m, p.k), (p.k, p.n), (p.m, p.n))), *more)


def _dots_pay(p: Product) -> bool:
    """Whether dot products beat packing B (measured): few rows or columns, or k long enough to repay the final sums.

    What is packed once for all iterations of a loop is packed for nothing.
    """
    width = lanes(p.dtype, p.target)
    if p.context.steady(p.b.node) and p.n >= width:
        return False
    if p.m <= 16 or p.n <= 2 * width:
        return True
    return p.k * p.n * p.dtype.itemsize <= p.target.l2_bytes and (p.k >= 256 or (p.flops >= 1 << 22 and p.k >= 128))


# ---- k in parts --------------------------------------------------------------------------------------------------------------


def _split(p: Product, schedule: Callable[[Product, int], list[Kernel]]) -> list[Kernel]:
    """Runs `schedule`; with k split into partial results where k is so long that all tiles together read their operands from memory again
    and again, or where there would be too few work-items for the cores.
    """
    parts, found = _parts_in_cache(p), None
    if parts == 1:
        found = schedule(p, 1)
        items, full = math.prod(found[-1].global_size), 2 * p.target.cores
        if 2 * items < full and p.flops >= tuning().split_flops:
            parts = max(1, min(ceil_div(full, items), p.k // tuning().split_k))
    parts = ceil_div(p.k, p.length(parts, 16))                  # none of them is empty
    if parts == 1:
        return found or schedule(p, 1)
    return [*schedule(p, parts), of_parts(p, parts)]


def _parts_in_cache(p: Product) -> int:
    """Into how many parts to cut k, so that what one reads of A and B is in a core's second cache while all of its tiles are made; 1: none.

    Of a weight's gradient, 32 x 192 of 32,768 rows, 128 tiles each read a few elements of every row: 0.25 of the time without. A vector
    times 20,000 rows of 1,000, where a tile reads a piece of every row: 0.4. Not where few tiles read what lies along k, nor where partial
    results would be more than the operands.
    """
    size = p.dtype.itemsize
    k = max(tuning().split_k, p.target.l2_bytes // (2 * (p.m + p.n) * size) // 16 * 16)
    across = any(not lines.along_k and lines.strides is not None and lines.count * size > 256 for lines in (p.a, p.b))
    pays = across or 6 * (p.m + p.n) <= p.m * p.n
    return ceil_div(p.k, k) if pays and p.k >= 4 * k and p.m * p.n <= k * (p.m + p.n) else 1


def of_parts(p: Product, parts: int) -> Kernel:
    """The kernel that adds the partial results: vectors of a row, or of a piece of a long one."""
    width = min(lanes(p.dtype, p.target), bit_floor(p.n))
    f = Fused(p.group, p.context, _index(p, parts * p.batch * p.m * p.n))
    several = max(1, tuning().pack_items // (width * parts))
    j = Axis("j", p.n, digits(ceil_div(p.n, width), several, width, 2), width)
    return total(f, p.name, (Axis.of_items("b", p.batch, 1), Axis.of_items("i", p.m), j), ALONE, p.dtype, Axis("part", parts),
                 f.result(p.result, p.where), "vectors of a row", statements=p.statements)


# ---- packing -----------------------------------------------------------------------------------------------------------------


def _pack(made: list[Kernel], p: Product, lines: Operand, panel: int) -> Operand:
    """The operand copied into panels of `panel` lines, each k-major (line within the panel fastest): the kernel that does it joins `made`.

    Of panels of one line the lines lie along k, one behind the other.
    """
    batch, count = p.batch if lines.batched else 1, ceil_div(lines.count, panel)
    temp = Temp(f"{p.name}_packed_{lines.name}", p.result, batch * count * panel * p.k, p.dtype)
    block = _block_to_transpose(p, lines, panel)
    chunk = max(ceil_div(tuning().pack_items, panel), ceil_div(p.k, ceil_div(4 * p.target.cores, count * batch)))
    chunk = ceil_div(chunk, block) * block
    name, shape = f"packed_{lines.name}", (batch, count, p.k, panel)
    f = Fused(p.group, p.context, _index(p, temp.size))
    each = max(1, tuning().pack_items // max(1, panel * p.k))         # panels that a work-item packs; if it packs all, of several matrices
    each = 1 if varies(p.k) or varies(lines.count) else each          # (so many sizes share the form)
    b, k = Axis("b", batch, digits(batch, max(1, each // count), 1, 2)), Axis("k", p.k, digits(p.k, chunk, 1, 1))
    panels = Axis("line", lines.count, digits(count, each, panel, 0))
    program = Program((b, panels, k), ALONE, (Pack((b,), panels, k, lines.source(f), f.scratch(temp, name, "out", shape), block),))
    what = f"{'rows' if lines.name == 'a' else 'columns'} of {lines.name.upper()}"
    how = f"k-major, {block}x{block} transposed at a time" if block > 1 else "k-major"
    about, note, moved = f"Packs the {what} in panels of {panel} ({how}).", f"packs {lines.name} for {p.name}", 2 * temp.size
    made.append(f.kernel(program, f"{p.name}_pack_{lines.name}", about, 0, moved * p.dtype.itemsize, note))

    def packed(f: Fused) -> ElementAt:
        found = f.scratch(temp, name, "const", shape)

        def place(b: Index, number: Index, *at: Index) -> Element:
            *line, k = at
            return found(b if lines.batched else ZERO, number, k, line[0] if line else ZERO)

        return place

    return replace(lines, packed=packed, panels=panel > 1)


def _block_to_transpose(p: Product, lines: Operand, panel: int) -> int:
    """How many elements of how many lines packing reads at a time, to transpose them in registers; 1 where lines do not lie along k.

    Element by element, lines that are a power of two apart share a few lines of the cache, and each read misses it: four times as long.
    """
    if not lines.along_k or lines.strides is None or lines.strides[1] == 1:
        return 1
    most = min(lanes(p.dtype, p.target), p.target.registers // 2, panel, lines.count, p.k)
    return bit_floor(most) if most >= 4 else 1


# ---- the schedules -----------------------------------------------------------------------------------------------------------


def _tiles(p: Product, parts: int) -> list[Kernel]:
    """Register tiles of rows x vectors, after packing what cannot be read in place or is large."""
    a, b = p.a, p.b
    width = min(lanes(p.dtype, p.target), bit_floor(p.n))
    rows, vectors = _register_tile(p, width)
    columns = min(vectors * width, p.n)
    k = ceil_div(p.k, parts)
    large = k * p.n * p.dtype.itemsize >= 2 * p.target.l2_bytes and p.m >= 10 * rows
    depth = _depth(p, rows, columns) if large and parts == 1 else 0
    huge = not depth and k * p.m * p.dtype.itemsize > 16 * p.target.l2_bytes
    packed = list[Kernel]()
    if a.strides is None or (large and (huge or a.strides[2] != 1)):
        a = _pack(packed, p, a, rows)
    if b.strides is None or large or (b.strides[1] != 1 and width > 1) or (p.context.steady(b.node) and p.n > columns):
        b = _pack(packed, p, b, columns)
    high, wide = _block(p, parts, rows, columns, depth)
    return [*packed, _product(replace(p, a=a, b=b), parts, (rows, columns), (high, wide), width, 1, depth)]


def _register_tile(p: Product, width: int) -> tuple[int, int]:
    """Rows and vectors of a tile. Of sizes that vary it depends as little as can be, as long as it fits: a multiple of all tiles' sizes has
    no best one. Of few columns there are two tiles or more, and a power of two of vectors in each, so that many sizes share the form."""
    down, across, many = p.m, ceil_div(p.n, width), 840
    if varies(p.n) and p.n >= width:
        vectors = register_tile(many if varies(p.m) else p.m, many, p.target)[1]
        across = many if vectors * width < p.n else 1 << max(0, ((p.n - 1) // width).bit_length() - 1)
    rows, vectors = register_tile(many if varies(p.m) else p.m, across, p.target)
    return register_tile(down, across, p.target) if rows > down else (rows, vectors)


def _depth(p: Product, rows: int, columns: int) -> int:
    """Of the blocks that k of a large product is cut into, so that a panel of B is in a core's first cache.

    0 where k is one block: the second cache holds a panel of A and one of B. (Then it is, measured, as fast without the sums in between.)
    """
    if (rows + columns) * p.k * p.dtype.itemsize <= p.target.l2_bytes:
        return 0
    depth = max(tuning().panel_bytes // (columns * p.dtype.itemsize), 1)
    return ceil_div(ceil_div(p.k, ceil_div(p.k, depth)), 8) * 8 if p.k > depth else 0      # the loop over k is unrolled


def _dots(p: Product, parts: int) -> list[Kernel]:
    """Dot products of rows and columns that both lie along k in memory. Of one row a vector's lanes are as many sums, where k is short."""
    width = lanes(p.dtype, p.target)
    columns = min(4 if p.m > 1 else max(8, width if p.k < 16 * width else 0), p.n)
    most = min(p.m, 8, max(1, (p.target.registers - columns - 1) // columns))
    rows = most if varies(p.m) else ceil_div(p.m, ceil_div(p.m, most))
    return [_product(p, parts, (rows, columns), _block(p, parts, rows, columns), 1, width, 0)]


def _product(p: Product, parts: int, size: tuple[int, int], block: tuple[int, int], width: int, along: int, depth: int) -> Kernel:
    """The kernel of tiles of `size`, of which a work-item does a block (of one part of k), in vectors of `width` columns or `along` k."""
    (rows, columns), (high, wide) = size, block
    down, across = ceil_div(p.m, rows), ceil_div(p.n, columns)
    stored = rows * ceil_div(columns, width) * width
    several, high = _batches(p, parts, rows, columns, (high, wide))
    batch = Axis("b", p.batch, digits(p.batch, several, 1, 2))
    part = (Axis.of_items("part", parts, 2),) if parts > 1 else ()
    i = Axis("i", p.m, digits(down, high, rows, 1))
    j = Axis("j", p.n, digits(across, wide, columns, 0), width)
    k = Axis("k", p.k, (), along)
    sums = Temp(f"{p.name}_sums", p.result, p.batch * down * across * stored, p.dtype)
    f = Fused(p.group, p.context, _index(p, parts * p.batch * p.m * p.n, *([sums.size] if depth else [])))
    a, b, c = Tile("a", (batch, i, k), p.dtype), Tile("b", (batch, j, k), p.dtype), Tile("c", (*part, batch, i, j), p.dtype)
    read = [Load(given, lines.source(f), panels=axis if lines.panels else None)
            for given, lines, axis in ((a, p.a, i), (b, p.b, j))]
    kept = f.scratch(sums, "sums", "inout", (p.batch, down, across, stored)) if depth else None
    if parts > 1:
        root, statements = partial(f, p.name, p.dtype, (parts, p.batch, p.m, p.n)), 1
    else:
        root, statements = f.result(p.result, p.where), p.statements
    early = along > 1 and parts == 1 and p.k % along > 0 and not varies(p.k)
    loop = Loop(k, (*read, Dot(c, a, b)), part[0] if part else None, p.length(parts, 16), unrolled=along == 1, depth=depth,
                kept=kept, early=early)
    steps = summed(loop, root, statements * (width if p.turned else 1))
    title = f"{rows}x{columns} register tiles" if along == 1 else f"{rows}x{columns} dot products at a time, {along} of k a step"
    deep = f", {depth} of k after {depth}" if depth else ""
    of_several = f" of {several} products" * (several > 1)
    about = f"{p.m}x{p.n}x{p.k} product in {title}; a work-item does {high}x{wide} of them{deep}{of_several}."
    # Of a short k the result is most of the traffic. If its rows are long it is written row by row: down a column each is another page.
    along_rows = not p.turned and p.n * p.dtype.itemsize >= tuning().written_along * max(p.k, 8)
    return f.kernel(Program((batch, *part, *((i, j) if along_rows else (j, i)), k), ALONE, steps), p.name, about, p.flops, p.bytes, title)


def _batches(p: Product, parts: int, rows: int, columns: int, block: tuple[int, int]) -> tuple[int, int]:
    """How many products a work-item does one after the other, and how many tiles down of each: of small ones, several.

    Where the batch lies inside of rows in memory, a row of one product is a piece of a row of all of them. Then an item does all products
    of a tile's rows, which it reads from one end to the other: prefetchers follow so many rows. (200 products of 1000 x 20 by 20 x 20: 0.3
    of the time of product by product, and of the time with twice as many rows.)
    """
    high, wide = block
    if p.batch == 1 or parts > 1 or (p.turned and p.m > 1):
        return 1, high
    f = Fused(p.group, p.context, _index(p))
    b, i, j = (Var(name, n) for name, n in (("b", p.batch), ("i", p.m), ("j", p.n)))
    found = [at.opened() for at, _ in f.places(p.where(f, [b.index, i.index, j.index])[0])]
    line, rows_of = (j, p.b) if p.turned else (i, p.a)
    strides = [(at.stride(b), at.stride(line)) for at in found] + ([rows_of.strides[:2]] if rows_of.strides is not None else [])
    if not any(each and line and each < line for each, line in strides):
        work = high * wide * rows * columns * p.k                # of small products several are enough to pay for an item's start
        return max(1, min(p.batch, (1 << 13) // max(1, work))), high
    items = ceil_div(p.m, rows) * ceil_div(ceil_div(p.n, columns), wide)
    return ceil_div(p.batch, min(p.batch, ceil_div(4 * p.target.cores, items))), 1


def _block(p: Product, parts: int, rows: int, columns: int, depth: int = 0) -> tuple[int, int]:
    """How many tiles down and across one work-item does: enough work to pay for its start, few enough to feed the cores.

    Of a product whose k is in blocks of `depth`: what a core's second cache holds, a block of A, one of B, and the accumulators; every core
    has several such, so that they end together.
    """
    down, across, k = ceil_div(p.m, rows), ceil_div(p.n, columns), ceil_div(p.k, parts)
    high = wide = 1
    while True:
        items = ceil_div(down, high) * ceil_div(across, wide) * p.batch * parts
        tall = (high * rows <= wide * columns and high < down) or wide >= across
        grown = (min(2 * high, down), wide) if tall else (high, min(2 * wide, across))
        work, sides = high * wide * rows * columns * k, grown[0] * rows + grown[1] * columns
        footprint = (sides * depth + grown[0] * rows * grown[1] * columns if depth else sides * k) * p.dtype.itemsize
        few = ceil_div(down, grown[0]) * ceil_div(across, grown[1]) * p.batch * parts < 4 * p.target.cores
        if depth:
            enough = few or footprint > p.target.l2_bytes
        else:
            enough = (few and work > 1 << 15) or (footprint > p.target.l2_bytes and work > 1 << 18) or (
                items <= p.target.cores and work > 1 << 13) or work > 1 << 21
        if grown == (high, wide) or enough:
            return high, wide
        high, wide = grown
