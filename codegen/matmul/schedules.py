"""Kernel texts of matrix products on CPUs: C[b,i,j] = sum over k of A[b,i,k] * B[b,k,j], any shape and dtype. Start at `gemm`.

The caller says how elements of A and B are read (`Matrix`: a callback, and strides if it is a plain buffer) and what becomes
of the result (`Store`: a callback with the fused epilogue, called exactly once for each element). The schedule is one of

- tile: 6 rows x 2 vectors of accumulators, B read as vectors, A as broadcast scalars, each straight from its buffer or packed
  into panels (fused loads, unsuitable strides, or large matrices); of a product that a core's second cache does not hold k is cut in
  blocks, between which a work-item keeps the accumulators of its tiles in a buffer;
- dot: 3 rows x 4 columns of accumulators, both read as vectors along k (A times B-transposed: linear layers), summed at the end;
- either of them with k split over work-items into partial results that a second kernel adds up, in a fixed order.

A tile at an edge starts earlier and skips what its neighbour stores, so that every load is in bounds and no tile is special.
The compute dtype is what loads yield and what the epilogue is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np

from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import item
from tracegrad.codegen.kernel.names import is_variable_of_product
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import (
    Compound,
    Emit,
    Term,
    ceil_div,
    ctype,
    inside,
    lanes,
    load,
    pieces,
    plus,
    register_tile,
    swizzle,
    transposed,
    write,
)
from tracegrad.codegen.matmul.cpu import Broadcast, Dot, tiles
from tracegrad.codegen.matmul.problem import DType, Matrix, Operand, Product, Store, View
from tracegrad.codegen.tuning import tuning
from tracegrad.plan import Target

__all__ = ["Matrix", "Store", "gemm"]


def gemm(
    name: str, batch: int, m: int, n: int, k: int, dtype: DType, a: Matrix, b: Matrix, store: Store, target: Target, owner: Hashable
) -> list[Kernel]:
    """The kernels, in launch order, that compute the (batch, m, n) product of `a` (batch, m, k) and `b` (batch, k, n).

    `name` begins every entry point, `owner` makes the scratch buffers this product's own. No kernels if the result is empty.
    """
    dtype = np.dtype(dtype)
    if batch * m * n == 0:
        return []
    p = Product(name, batch, _rows(a, m), _columns(b, n), k, dtype, store, target, owner)
    if k == 0:
        return [_total(p, 0)]
    return _on_cpu(p)


def _rows(x: Matrix, m: int) -> Operand:
    if x.strided is None:
        return Operand("a", m, x.load, x.params, x.batched, steady=x.steady)
    pointer, batch, row, column = x.strided
    return Operand("a", m, x.load, x.params, batch != 0, pointer, (batch, row, column), steady=x.steady)


def _columns(x: Matrix, n: int) -> Operand:
    def read(emit: Emit, b: Term, line: Term, k: Term) -> str:
        return x.load(emit, b, k, line)

    if x.strided is None:
        return Operand("b", n, read, x.params, x.batched, steady=x.steady)
    pointer, batch, row, column = x.strided
    return Operand("b", n, read, x.params, batch != 0, pointer, (batch, column, row), steady=x.steady)


def _swapped(p: Product) -> Product:
    """The transposed product: vectors run down the columns of C and are stored lane by lane."""

    def lanewise(emit: Emit, b: Term, i: Term, j: Term, value: str, width: int) -> None:
        emit("{")
        emit(f"const {ctype(p.dtype, width)} column = {value};")
        for lane in range(width):
            p.store.write(emit, b, plus(j, lane), i, swizzle("column", lane, 1, width), 1)
        emit("}")

    return replace(p, a=p.b, b=p.a, store=Store(lanewise, p.store.params, lanes=True))


# ---- choosing ----------------------------------------------------------------------------------------------------------------


def _on_cpu(p: Product) -> list[Kernel]:
    width = lanes(p.dtype, p.target)
    if _along_k(p.a) and _along_k(p.b) and p.k >= 4 * width and _dot_pays(p):
        return _split(p, _dot)
    if p.n < width and p.m > p.n:
        if p.n == 1 and _along_k(p.a) and p.k >= width:
            packed, kernel = _pack(p, p.b, 1)
            return [kernel, *_split(replace(p, b=packed), _dot)]
        p = _swapped(p)
    return _split(p, _tile)


def _dot_pays(p: Product) -> bool:
    """Whether dot products beat packing B (measured): few rows or columns, or k long enough to repay the final sums.

    What is packed once for all turns of a loop is packed for nothing.
    """
    if p.b.steady and p.n >= lanes(p.dtype, p.target):
        return False
    if p.m <= 16 or p.n <= 2 * lanes(p.dtype, p.target):
        return True
    return p.k * p.n * p.dtype.itemsize <= p.target.l2_bytes and (p.k >= 256 or (p.flops >= 1 << 22 and p.k >= 128))


def _along_k(x: Operand) -> bool:
    return x.pointer is not None and x.strides[2] == 1


def _split(p: Product, schedule: Callable[[Product, int], list[Kernel]]) -> list[Kernel]:
    """Runs `schedule`; with k split into partial results where k is so long that all tiles together read their operands from memory again
    and again, or where there would be too few work-items for the cores.
    """
    parts = _parts_in_cache(p)
    if parts == 1:
        kernels = schedule(p, 1)
        items, full = math.prod(kernels[-1].global_size), 2 * p.target.cores
        parts = min(ceil_div(full, items), p.k // tuning().split_k)
        if 2 * items >= full or parts < 2 or p.flops < tuning().split_flops:
            return kernels

    def keep(emit: Emit, b: Term, i: Term, j: Term, value: str, width: int) -> None:
        where = plus((Compound(f"part * {p.batch} + {b}") if p.batch > 1 else "part", p.m * p.n), (i, p.n), j)
        write(emit, p.dtype, width, f"partial + {where}", value)

    store = Store(keep, (_partial(p, parts).buffer("partial", "out"),))
    return [*schedule(replace(p, store=store), parts), _total(p, parts)]


def _parts_in_cache(p: Product) -> int:
    """Into how many parts to cut k, so that what one reads of A and B is in a core's second cache while all of its tiles are made; 1: none.

    Of a weight's gradient, 32 x 192 of 32,768 rows, 128 tiles each read a few elements of every row: 0.25 of the time without. A vector
    times 20,000 rows of 1,000, where a tile reads a piece of every row: 0.4. Not where few tiles read what lies along k, nor where partial
    results would be more than the operands.
    """
    k = max(tuning().split_k, p.target.l2_bytes // (2 * (p.m + p.n) * p.dtype.itemsize) // 16 * 16)
    across = any(not _along_k(x) and x.pointer is not None and x.lines * p.dtype.itemsize > 256 for x in (p.a, p.b))
    pays = across or 6 * (p.m + p.n) <= p.m * p.n
    return ceil_div(p.k, k) if pays and p.k >= 4 * k and p.m * p.n <= k * (p.m + p.n) else 1


def _partial(p: Product, parts: int) -> Temp:
    return Temp(f"{p.name}_partial", p.owner, parts * p.batch * p.m * p.n, p.dtype)


# ---- packing -----------------------------------------------------------------------------------------------------------------


def _pack(p: Product, x: Operand, panel: int) -> tuple[Operand, Kernel]:
    """The operand copied into panels of `panel` lines, each k-major (line within the panel fastest), and the kernel that does it."""
    batch = p.batch if x.batched else 1
    count = ceil_div(x.lines, panel)
    temp = Temp(f"{p.name}_packed_{x.name}", p.owner, batch * count * panel * p.k, p.dtype)
    lines, block = min(panel, x.lines), _block_to_transpose(p, x, panel)
    chunk = max(ceil_div(tuning().pack_items, panel), ceil_div(p.k, ceil_div(4 * p.target.cores, count * batch)))
    chunk = ceil_div(chunk, block) * block
    chunks = ceil_div(p.k, chunk)
    packed = f"packed_{x.name}"
    params = merge(x.params, (temp.buffer(packed, "out"),))
    what = f"{'rows' if x.name == 'a' else 'columns'} of {x.name.upper()}"
    how = f"k-major, {block}x{block} transposed at a time" if block > 1 else "k-major"
    emit = Text(f"{p.name}_pack_{x.name}", f"Packs the {what} in panels of {panel} ({how}).", params, is_variable_of_product,
                [(p.dtype, block)])
    index = p.index
    number, line0 = ("panel", "line0") if count > 1 else (0, 0)
    if count > 1:
        emit(f"const {index} panel = {item(0)};")
        emit(f"const {index} line0 = {_start(x.lines, panel, index)};")
    if batch > 1:
        emit(f"const {index} b = {item(2)};")
    b = "b" if batch > 1 else 0
    k0, k1 = ("k0", "k1") if chunks > 1 else (0, p.k)
    if chunks > 1:
        emit(f"const {index} k0 = {item(1)} * {chunk};")
        emit(f"const {index} k1 = {inside(f'k0 + {chunk}', p.k, p.k % chunk == 0, index)};")
    base = plus((plus((b, count), number), panel * p.k))
    if block > 1:
        emit(f"{index} k = {k0};")
        emit(f"for (; k + {block} <= {k1}; k += {block}) {{")
        with emit.counting("line", lines, step=block, type_=index) as line:
            if lines % block:
                emit(f"const {index} at = {inside(line, lines - block, False, index)};")
                line = "at"
            start = plus(str(x.pointer), (b, x.strides[0]), (plus(line0, line), x.strides[1]), "k")
            emit(f"__global const {ctype(p.dtype)} *p{x.name} = {start};")
            emit(f"__global {ctype(p.dtype)} *to = {plus(packed, base, ('k', panel), line)};")
            rows = [load(p.dtype, block, plus(f"p{x.name}", row * x.strides[1])) for row in range(block)]
            for row, value in enumerate(transposed(emit, p.dtype, rows)):
                write(emit, p.dtype, block, plus("to", row * panel), value)
        emit("}")
    if p.k % block or block == 1:
        emit(f"for ({'' if block > 1 else f'{index} k = {k0}'}; k < {k1}; k++) {{")
        with emit.counting("line", lines, type_=index) as line:
            value = x.load(emit, b, plus(line0, line), "k")
            emit(f"{packed}[{plus(base, ('k', panel), line)}] = {value};")
        emit("}")
    kernel = emit.kernel((count, chunks, batch), (1, 1, 1), bytes=2 * temp.size * p.dtype.itemsize, note=f"packs {x.name} for {p.name}")
    operand = replace(
        x, params=(temp.buffer(packed, "const"),), pointer=packed,
        strides=(count * panel * p.k if x.batched else 0, p.k, 1),
    )
    return operand, kernel


def _block_to_transpose(p: Product, x: Operand, panel: int) -> int:
    """How many elements of how many lines packing reads at a time, to transpose them in registers; 1 where lines do not lie along k.

    Element by element, lines that are a power of two apart share a few lines of the cache, and each read misses it: four times as long.
    """
    if not _along_k(x) or x.strides[1] == 1:
        return 1
    most = min(lanes(p.dtype, p.target), p.target.registers // 2, panel, x.lines, p.k)
    return 1 << (most.bit_length() - 1) if most >= 4 else 1


def _start(lines: int, panel: int, index: str) -> Term:
    """The first line of panel number `panel`: the last one starts early."""
    return 0 if lines <= panel else inside(plus(("panel", panel)), lines - panel, lines % panel == 0, index)


def _in_place(x: Operand) -> View:
    batch, line, k = x.strides
    return View(x.params, lambda b, panel, first: plus(str(x.pointer), (b, batch), (first, line)), line, k)


def _panels(x: Operand, panel: int, k: int) -> View:
    return View(x.params, lambda b, index, first: plus(str(x.pointer), (b, x.strides[0]), (index, panel * k)), 1, panel)


# ---- the schedules -----------------------------------------------------------------------------------------------------------


def _tile(p: Product, parts: int) -> list[Kernel]:
    """Register tiles of rows x vectors, after packing what cannot be read in place or is large."""
    width = min(lanes(p.dtype, p.target), 1 << (p.n.bit_length() - 1))
    rows, vectors = register_tile(p.m, ceil_div(p.n, width), p.target)
    columns = min(vectors * width, p.n)
    k = ceil_div(p.k, parts)
    large = k * p.n * p.dtype.itemsize >= 2 * p.target.l2_bytes and p.m >= 10 * rows
    depth = _depth(p, rows, columns) if large and parts == 1 else 0
    huge = not depth and k * p.m * p.dtype.itemsize > 16 * p.target.l2_bytes
    packed = []
    if p.a.pointer is None or (large and (huge or p.a.strides[2] != 1)):
        a, kernel = _pack(p, p.a, rows)
        view_a = _panels(a, rows, p.k)
        packed.append(kernel)
    else:
        view_a = _in_place(p.a)
    if p.b.pointer is None or large or (p.b.strides[1] != 1 and width > 1) or (p.b.steady and p.n > columns):
        b, kernel = _pack(p, p.b, columns)
        view_b = _panels(b, columns, p.k)
        packed.append(kernel)
    else:
        view_b = _in_place(p.b)
    return [*packed, tiles(p, parts, view_a, view_b, Broadcast(p.dtype, width, rows, columns), depth)]


def _depth(p: Product, rows: int, columns: int) -> int:
    """Of the blocks that k of a large product is cut into, so that a panel of B is in a core's first cache.

    0 where k is one block: the second cache holds a panel of A and one of B. (Then it is, measured, as fast without the sums in between.)
    """
    if (rows + columns) * p.k * p.dtype.itemsize <= p.target.l2_bytes:
        return 0
    depth = max(tuning().panel_bytes // (columns * p.dtype.itemsize), 1)
    return ceil_div(ceil_div(p.k, ceil_div(p.k, depth)), 8) * 8 if p.k > depth else 0      # the loop over k is unrolled


def _dot(p: Product, parts: int) -> list[Kernel]:
    """Dot products of rows and columns that both lie along k in memory."""
    columns = min(4, p.n)
    most = min(p.m, 8, max(1, (p.target.registers - columns - 1) // columns))
    rows = ceil_div(p.m, ceil_div(p.m, most))
    return [tiles(p, parts, _in_place(p.a), _in_place(p.b), Dot(p.dtype, lanes(p.dtype, p.target), rows, columns))]


def _total(p: Product, parts: int) -> Kernel:
    """The kernel that adds the partial results in order and runs the epilogue; with no parts it stores zeros."""
    width = min(lanes(p.dtype, p.target), 1 << (p.n.bit_length() - 1))
    name = f"{p.name}_total" if parts else p.name
    temp = (_partial(p, parts).buffer("partial", "const"),) if parts else ()
    params = merge(temp, p.store.params)
    index, b = p.index, "b" if p.batch > 1 else 0
    emit = Text(name, f"Adds up {parts} partial results, a row at a time." if parts else "An empty sum: all zeros.", params,
                is_variable_of_product, [(p.dtype, width)])
    emit(f"const {index} i = {item(0)};")
    if p.batch > 1:
        emit(f"const {index} b = {item(1)};")

    def columns(j: Term, lanes: int) -> None:
        emit(f"{ctype(p.dtype, lanes)} c = 0;")
        if parts:
            emit(f"for ({index} part = 0; part < {parts}; part++) {{")
            where = plus((Compound(f"part * {p.batch} + b") if p.batch > 1 else "part", p.m * p.n), ("i", p.n), j)
            emit(f"c += {load(p.dtype, lanes, f'partial + {where}')};")
            emit("}")
        p.store.write(emit, b, "i", j, "c", lanes)

    emit(f"for ({index} j = 0; j < {p.n - p.n % width}; j += {width}) {{")
    columns("j", width)
    emit("}")
    for start, lanes_left in pieces(p.n - p.n % width, p.n):
        emit("{")
        columns(start, lanes_left)
        emit("}")
    size = (parts + 1) * p.batch * p.m * p.n
    return emit.kernel((p.m, p.batch), (1, 1), size, size * p.dtype.itemsize, f"adds up {parts} parts of k")
