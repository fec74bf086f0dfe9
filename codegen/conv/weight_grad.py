"""Kernel texts of the gradient of a 2-d convolution by its weights. Start at `conv2d_weight_grad`.

On a CPU each work-item holds, for some output channels and a block of taps, a vector accumulator per weight; it runs over
images and units of pixels (see `layout`) and adds up the lanes at the end. Images are split into parts, each with partial
results of its own that a last kernel adds in order, where that is needed to feed the cores or to stay in cache.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tracegrad.codegen.conv.text_cpu import tap
from tracegrad.codegen.conv.epilogue import DType
from tracegrad.codegen.conv.text_layout import Planes, Units, in_place, pad, padded, units
from tracegrad.codegen.conv.text_problem import Array, Store, Window
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import item
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import Compound, Emit, Term, add_lanes, ceil_div, ctype, inside, kept, pieces, plus, swizzle, write
from tracegrad.support.plan import Plain, Target
from tracegrad.support.tuning import tuning


def conv2d_weight_grad(
    name: str, window: Window, dtype: DType, x: Array, gy: Array, store: Store, target: Target, owner: Hashable
) -> list[Kernel]:
    """The kernels of the gradient by w, given x and the gradient by y; `store` gets elements (o, c, ky, kx), one at a time."""
    v, dtype, kernels = window, np.dtype(dtype), []
    if v.o * (v.c // v.groups) * v.kh * v.kw == 0:
        return []
    if v.n * v.oh * v.ow == 0:
        return [_empty(name, v, dtype, store)]
    u = units((v.oh, v.ow), dtype, target, overlapping=True)
    planes = in_place(x, (v.h, v.w), u, v.reach, v.stride, v.padding)
    if planes is None:
        planes = padded(v.c, u, v.reach, v.stride)
        planes, kernel = pad(name, owner, x, v.n, v.c, (v.h, v.w), planes, v.stride, v.padding, dtype)
        kernels.append(kernel)
    if gy.strided is None or not (u.exact or (u.overlapping and v.oh % u.rows == 0)) or gy.strided[1][2:] != (v.ow, 1):
        gy, kernel = _in_rows(name, v, u, dtype, gy, owner)
        kernels.append(kernel)
    block = _block(v)
    taps = block.channels * block.height * block.width
    rows = max(1, min(8, v.o // v.groups, (target.registers - 1 - taps) // taps))
    rows = ceil_div(v.o // v.groups, ceil_div(v.o // v.groups, rows))
    items = ceil_div(v.o // v.groups, rows) * (v.c // block.channels) * (v.kh // block.height)
    footprint = rows * v.n * u.count * u.width * dtype.itemsize
    parts = min(v.n, max(ceil_div(2 * target.cores, items) if items < target.cores else 1, ceil_div(footprint, target.l2_bytes // 2)))
    if parts == 1:
        return [*kernels, _main(name, v, u, dtype, planes, gy, store, rows, block, 1)]
    size = v.o * (v.c // v.groups) * v.kh * v.kw
    temp = Temp(f"{name}_partial", owner, parts * size, dtype)
    at = plus(("o", v.c // v.groups * v.kh * v.kw), ("c", v.kh * v.kw), ("ky", v.kw), "kx")

    def keep(emit: Emit, o: Term, c: Term, ky: Term, kx: Term, value: str, width: int) -> None:
        where = plus(("part", size), (o, v.c // v.groups * v.kh * v.kw), (c, v.kh * v.kw), (ky, v.kw), kx)
        write(emit, dtype, width, f"partial + {where}", value)

    partial = Store(keep, (temp.buffer("partial", "out"),))
    main = _main(name, v, u, dtype, planes, gy, partial, rows, block, parts)
    params = merge((temp.buffer("partial", "const"),), store.params)
    emit = Text(f"{name}_total", f"Adds up {parts} partial gradients.", params)
    emit(f"const int c = {item(0)}, o = {item(1)};")
    for k, count in (("ky", v.kh), ("kx", v.kw)):
        emit(f"for (int {k} = 0; {k} < {count}; {k}++) {{")
    emit(f"{ctype(dtype)} sum = 0;")
    emit(f"for (int part = 0; part < {parts}; part++) {{")
    emit(f"sum += partial[{plus(('part', size), at)}];")
    emit("}")
    store.write(emit, "o", "c", "ky", "kx", "sum", 1)
    for _ in range(2):
        emit("}")
    total = emit.kernel((v.c // v.groups, v.o), (1, 1), parts * size, (parts + 1) * size * dtype.itemsize,
                   f"adds up {parts} parts of the images")
    return [*kernels, main, total]


class _Block(Plain):
    """The taps whose accumulators a work-item holds for each of its output channels: channels x height x width of them."""

    channels: int
    height: int
    width: int


def _block(v: Window) -> _Block:
    """A row of taps; two channels of a 1x1 kernel; all taps of a small depthwise kernel (where there is one output channel to hold)."""
    if v.kh * v.kw == 1:
        return _Block(2 if v.c // v.groups % 2 == 0 else 1, 1, 1)
    if v.o == v.groups and v.kh * v.kw <= 9:
        return _Block(1, v.kh, v.kw)
    return _Block(1, 1, v.kw if v.kw <= tuning().conv_unrolled else 1)


def _in_rows(name: str, v: Window, u: Units, dtype: DType, gy: Array, owner: Hashable) -> tuple[Array, Kernel]:
    """A copy of gy in rows as units read them, with zeros where a unit runs over the edge, and the kernel that makes it."""
    width = v.ow if u.overlapping else u.across * u.piece
    height = ceil_div(v.oh, u.rows) * u.rows
    temp = Temp(f"{name}_rows", owner, v.n * v.o * height * width, dtype)
    params = merge(gy.params, (temp.buffer("rows", "out"),))
    emit = Text(f"{name}_rows", f"Copies each channel of the gradient to {height} rows of {width}, zero beyond the edges.", params)
    emit(f"const int o = {item(0)}, n = {item(1)};")
    emit(f"__global {ctype(dtype)} *to = rows + {plus((Compound('(size_t)n'), v.o * height * width), ('o', height * width))};")
    if (height, width) != (v.oh, v.ow):
        emit(f"for (int i = 0; i < {height * width}; i++) {{")
        emit("to[i] = 0;")
        emit("}")
    emit(f"for (int y = 0; y < {v.oh}; y++) {{")
    emit(f"for (int x = 0; x < {v.ow}; x++) {{")
    value = gy.load(emit, "n", "o", "y", "x")
    emit(f"to[{plus(('y', width), 'x')}] = {value};")
    for _ in range(2):
        emit("}")
    moved = (temp.size + v.n * v.o * v.oh * v.ow) * dtype.itemsize
    kernel = emit.kernel((v.o, v.n), (1, 1), bytes=moved, note=f"lays out the gradient for {name}")
    strides = (v.o * height * width, height * width, width, 1)
    return Array(gy.load, (temp.buffer("rows", "const"),), ("rows", strides)), kernel


def _main(
    name: str, v: Window, u: Units, dtype: DType, planes: Planes, gy: Array, store: Store, rows: int, block: _Block, parts: int
) -> Kernel:
    """One work-item: `rows` output channels, one block of taps, one part of the images."""
    og, cg, vector, real = v.o // v.groups, v.c // v.groups, ctype(dtype, u.width), ctype(dtype)
    tiles, down = ceil_div(og, rows), v.kh // block.height
    params = merge(planes.params, gy.params, store.params)
    assert gy.strided is not None
    pointer, (gn, go, gr, _) = gy.strided
    unrolled = block.width == v.kw
    taps = [(c, ky, kx) for c in range(block.channels) for ky in range(block.height) for kx in range(block.width)]
    what = f"{rows} output channels x {len(taps)} taps, vectors of {u.rows}x{u.piece} pixels"
    vectors = [(dtype, width) for width in (u.width, *(width for _, width in pieces(0, len(taps))))]
    emit = Text(name, f"Gradient by {v.kh}x{v.kw} weights: {what}.", params, vectors=vectors)
    where = f"{item(0)} / {down}" if down > 1 else item(0)
    emit(f"const int c = {where}{f' * {block.channels}' if block.channels > 1 else ''};")
    emit(f"const int ky = {f'{item(0)} % {down}' if down > 1 else 0};")
    emit(f"const int tile = {item(1)}" + (f" % {tiles}, g = {item(1)} / {tiles};" if v.groups > 1 else ";"))
    start = inside(plus(("tile", rows)), og - rows, og % rows == 0)
    emit(f"const int o = {plus(('g', og), start) if v.groups > 1 else start};")
    channel = plus(("g", cg), "c") if v.groups > 1 else "c"
    n0, n1 = "0", str(v.n)
    if parts > 1:
        emit(f"const int part = {item(2)};")
        emit.part("int", "n0", "n1", ceil_div(v.n, parts), v.n)
        n0, n1 = "n0", "n1"
    if not unrolled:
        emit(f"for (int kx = 0; kx < {v.kw}; kx++) {{")
        at = f"kx * {v.dilation[1]}"
        emit(f"const int right = {at} % {v.stride[1]} * {planes.phase} + {at} / {v.stride[1]};")
    for r in range(rows):
        emit(f"{vector} " + ", ".join(f"c{r}_{k} = 0" for k in range(len(taps))) + ";")
    emit(f"for (int n = {n0}; n < {n1}; n++) {{")
    image = Compound("(size_t)n") if v.n * max(planes.image, gn) >> 31 else "n"
    row = plus((channel, planes.channel), ("ky", v.dilation[0] * planes.row))
    emit(f"__global const {real} *px = {planes.pointer} + {plus((image, planes.image), row)};")
    emit(f"__global const {real} *pg = {pointer} + {plus((image, gn), ('o', go))};")

    def unit(x: Term, known: int) -> None:
        """One unit at column x, whose first `known` lanes the unit before it had already."""
        for k, (c, ky, kx) in enumerate(taps):
            right = (tap(v, planes, kx) if unrolled else "right", c * planes.channel + ky * v.dilation[0] * planes.row)
            emit(f"const {vector} x{k} = {u.load(dtype, plus('px', x, *right), v.stride[0] * planes.row)};")
        for r in range(rows):
            value = u.load(dtype, plus("pg", x, r * go), gr)
            if known:
                lanes = [f"last{r}.s{lane:x}" if lane >= known else "0" for lane in range(u.width)]
                emit(f"const {vector} last{r} = {value};")
                value = f"({vector})({', '.join(lanes)})"
            emit(f"const {vector} g{r} = {value};")
            for k in range(len(taps)):
                emit(f"c{r}_{k} += g{r} * x{k};")

    early = u.piece - v.ow % u.piece if u.overlapping and v.ow % u.piece else 0
    whole = u.across - bool(early)
    emit(f"for (int y = 0; y < {ceil_div(v.oh, u.rows)}; y++) {{")
    if whole > 1:
        emit(f"for (int x = 0; x < {whole * u.piece}; x += {u.piece}) {{")
        unit("x", 0)
        emit("}")
    elif whole == 1:
        emit("{")
        unit(0, 0)
        emit("}")
    if early:
        emit("{")
        unit(v.ow - u.piece, early)
        emit("}")
    emit(f"px += {u.rows * v.stride[0] * planes.row};")
    emit(f"pg += {u.rows * gr};")
    emit("}")
    emit("}")
    looped = store.long(rows * len(taps), "o", "c", "ky", "kx", value="s0_0", width=1)
    if looped:
        emit.array(real, "sums", rows * len(taps))
        for r in range(rows):
            for first, count in pieces(0, len(taps)):
                total = f"s{r}_{first}"
                add_lanes(emit, dtype, u.width, total, [f"c{r}_{k}" for k in range(first, first + count)])
                emit(f"{kept(dtype, count, plus('sums', r * len(taps) + first))} = {total};")

    def from_sums(r: Term) -> None:
        """The stores of output channel `r` of the tile."""
        with emit.counting("k", block.channels) as k, emit.counting("j", block.height) as j:
            at = plus("sums", (r, len(taps)), (k, block.height * block.width), (j, block.width))
            where = plus("o", r), plus("c", k), plus("ky", j) if down > 1 else j
            for start, width in pieces(0, block.width):
                store.write(emit, *where, start if unrolled else "kx", kept(dtype, width, plus(at, start)), width)

    over = -og % rows
    for group, skipped in ((range(over), True), (range(over, rows), False)):
        if skipped and group:
            emit(f"if ({start} == tile * {rows}) {{")
        if group and looped:
            with emit.counting("r", group.stop, group.start) as row:
                from_sums(row)
        for r in () if looped else group:
            for first, count in pieces(0, len(taps)):
                total = f"s{r}_{first}"
                add_lanes(emit, dtype, u.width, total, [f"c{r}_{k}" for k in range(first, first + count)])
                for k, (c, ky, kx) in enumerate(taps[first: first + count]):
                    row = plus("ky", ky) if down > 1 else ky
                    store.write(emit, plus("o", r), plus("c", c), row, kx if unrolled else "kx", swizzle(total, k, 1, count), 1)
        if skipped and group:
            emit("}")
    if not unrolled:
        emit("}")
    flops = 2 * v.n * v.o * v.oh * v.ow * cg * v.kh * v.kw
    moved = (v.n * (v.c * v.h * v.w + v.o * v.oh * v.ow) + v.o * cg * v.kh * v.kw) * dtype.itemsize
    size = (cg // block.channels * down, tiles * v.groups, parts)
    return emit.kernel(size, (1, 1, 1), flops, moved, what)


def _empty(name: str, v: Window, dtype: DType, store: Store) -> Kernel:
    """Zeros, where there are no pixels."""
    emit = Text(name, f"Gradient by {v.kh}x{v.kw} weights, one weight a work-item.", store.params, group=None)
    emit(f"const int kx = get_global_id(0) % {v.kw}, ky = get_global_id(0) / {v.kw};")
    emit("const int c = get_global_id(1), o = get_global_id(2);")
    emit(f"{ctype(dtype)} sum = 0;")
    store.write(emit, "o", "c", "ky", "kx", "sum", 1)
    moved = (v.n * (v.c * v.h * v.w + v.o * v.oh * v.ow) + v.o * (v.c // v.groups) * v.kh * v.kw) * dtype.itemsize
    return emit.kernel((v.kh * v.kw, v.c // v.groups, v.o), None, 0, moved, "one weight a work-item")
