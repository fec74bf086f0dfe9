"""The CPU kernels of convolutions: direct, register-blocked over output channels x vectors of pixels. Start at `taps`.

The input is read in place if it needs no padding and no horizontal stride; else each work-item copies its image to a padded
scratch array that fits the cache and does all output channels of it, or, for larger images, a first kernel pads them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracegrad.codegen.conv.layout import Planes, Units, fill, in_place, pad, padded, units
from tracegrad.codegen.conv.problem import Taps, Weights, Window
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.marks import item
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import Compound, Term, ceil_div, ctype, inside, kept, pieces, plus, register_tile, swizzle
from tracegrad.codegen.tuning import tuning


def taps(t: Taps) -> list[Kernel]:
    """The kernels, in launch order, for one `Taps` with a non-empty sum."""
    kernels = []
    u = units(t.out, t.dtype, t.target, overlapping=True)
    scratch = False
    planes = in_place(t.x, t.image, u, t.size, t.stride, t.dilation, t.padding)
    if planes is None:
        planes = padded(t.groups * t.c, u, t.size, t.stride, t.dilation)
        scratch = t.c * planes.channel * t.dtype.itemsize <= t.target.l2_bytes // 2 and t.n * t.groups >= 2 * t.target.cores
        if scratch:
            planes = replace(planes, params=t.x.params)
        else:
            planes, kernel = pad(t.name, t.owner, t.x, t.n, t.groups * t.c, t.image, planes, t.stride, t.padding, t.dtype)
            kernels.append(kernel)
    if t.w.strided is None:
        w, kernel = _copy_weights(t)
        kernels.append(kernel)
        t = replace(t, w=w)
    return [*kernels, _direct(t, u, planes, scratch)]


def _copy_weights(t: Taps) -> tuple[Weights, Kernel]:
    """The weights as a plain buffer of the compute dtype, and the kernel that computes them."""
    kh, kw = t.size
    temp = Temp(f"{t.name}_weights", t.owner, t.groups * t.o * t.c * kh * kw, t.dtype)
    params = merge(t.w.params, (temp.buffer("weights", "out"),))
    emit = Text(f"{t.name}_weights", "The weights, computed once for all images.", params)
    emit(f"const int o = {item(0)}, g = {item(1)};")
    for k, size in (("c", t.c), ("ky", kh), ("kx", kw)):
        emit(f"for (int {k} = 0; {k} < {size}; {k}++) {{")
    value = t.w.load(emit, "g", "o", "c", "ky", "kx")
    emit(f"weights[{plus(('g', t.o * t.c * kh * kw), ('o', t.c * kh * kw), ('c', kh * kw), ('ky', kw), 'kx')}] = {value};")
    for _ in range(3):
        emit("}")
    kernel = emit.kernel((t.o, t.groups), (1, 1), bytes=2 * temp.size * t.dtype.itemsize, note=f"weights of {t.name}")
    strides = (t.o * t.c * kh * kw, t.c * kh * kw, kh * kw, kw, 1)
    weights = Weights(t.w.load, (temp.buffer("weights", "const"),), ("weights", 0, strides))
    return weights, kernel


def _direct(t: Taps, u: Units, planes: Planes, scratch: bool) -> Kernel:
    """The convolution itself: a work-item does some tiles of (channels x units) of one image and group."""
    rows, vectors = register_tile(t.o, u.count, t.target)
    across, down = ceil_div(t.o, rows), ceil_div(u.count, vectors)
    wide, high = (across, down) if scratch else _block(t, rows * vectors, across, down)
    params = merge(planes.params, t.w.params, t.store.params)
    (kh, kw), real = t.size, ctype(t.dtype)
    what = f"{kh}x{kw} taps over {t.c} channels, tiles of {rows} output channels x {vectors} vectors of {u.rows}x{u.piece} pixels"
    emit = Text(t.name, what + (", from a padded copy of the image." if scratch else "."), params, vectors=[(t.dtype, u.width)])
    emit(f"const int n = {item(2)}" + (f" / {t.groups}, g = {item(2)} % {t.groups};" if t.groups > 1 else ";"))
    g = "g" if t.groups > 1 else 0
    space = "" if scratch else "__global const "
    if scratch:
        emit.array(real, "image", t.c * planes.channel)
        with emit.counting("c", t.c) as c:
            emit(f"{real} *plane = {plus('image', (c, planes.channel))};")
            fill(emit, t.x, t.image, planes, t.stride, t.padding, "n", plus((g, t.c), c), "plane")
    else:
        n = Compound("(size_t)n") if t.n * planes.image >> 31 else "n"
        emit(f"__global const {real} *image = {planes.pointer} + {plus((n, planes.image), (g, t.c * planes.channel))};")
    assert t.w.strided is not None
    pointer, start, (wg, wo, _, _, _) = t.w.strided
    loops = _range(emit, "channel_tile", 0, wide, across)
    emit(f"const int o = {_early('channel_tile', rows, t.o)};")
    emit(f"__global const {real} *w = {plus(pointer, start, (g, wg), ('o', wo))};")
    loops += _range(emit, "unit_tile", 1, high, down)
    emit(f"const int unit = {_early('unit_tile', vectors, u.count)};")
    for v in range(vectors):
        emit(f"const int y{v} = {u.y(plus('unit', v))}, x{v} = {u.x(plus('unit', v))};")
        emit(f"{space}{real} *p{v} = image + {plus((f'y{v}', t.stride[0] * planes.row), f'x{v}')};")
    _sum(emit, t, u, planes, rows, vectors, scratch)
    _store(emit, t, u, g, rows, vectors)
    for _ in range(loops):
        emit("}")
    size = (ceil_div(across, wide), ceil_div(down, high), t.n * t.groups)
    return emit.kernel(size, (1, 1, 1), t.flops, t.bytes, what)


def _block(t: Taps, tile: int, across: int, down: int) -> tuple[int, int]:
    """How many tiles of channels and of units one work-item does: all units if that leaves work for every core, then more channels."""
    enough = 4 * t.target.cores
    images, work = t.n * t.groups, tile * t.c * t.size[0] * t.size[1]
    high = down
    while high > 1 and images * across * ceil_div(down, high) < enough and work * high > 1 << 12:
        high = ceil_div(high, 2)
    wide = 1
    while wide < across and images * ceil_div(across, 2 * wide) * ceil_div(down, high) >= enough and work * high * wide < 1 << 15:
        wide = min(2 * wide, across)
    return wide, high


def _early(tile: str, size: int, total: int) -> Term:
    return inside(plus((tile, size)), total - size, total % size == 0)


def _range(emit: Text, tile: str, axis: int, block: int, count: int) -> int:
    """Emits the tile this work-item does, or the loop over its tiles; returns the loops opened."""
    if block == 1:
        emit(f"const int {tile} = {item(axis)};")
        return 0
    if block == count:
        emit(f"for (int {tile} = 0; {tile} < {count}; {tile}++) {{")
        return 1
    emit(f"const int first_{tile} = {item(axis)} * {block};")
    emit(f"for (int {tile} = first_{tile}; {tile} < {inside(f'first_{tile} + {block}', count, False)}; {tile}++) {{")
    return 1


def tap(t: Taps | Window, planes: Planes, kx: int) -> int:
    """How far right of a unit's first pixel its elements under tap `kx` lie in a plane."""
    at = kx * t.dilation[1]
    return at % t.stride[1] * planes.phase + at // t.stride[1]


def _sum(emit: Text, t: Taps, u: Units, planes: Planes, rows: int, vectors: int, scratch: bool) -> None:
    """Emits the loops over input channels and taps that leave the tile in c0_0 ..."""
    assert t.w.strided is not None
    (kh, kw), (_, _, (_, wo, wc, wy, wx)), vector = t.size, t.w.strided, ctype(t.dtype, u.width)
    for r in range(rows):
        emit(f"{vector} " + ", ".join(f"c{r}_{v} = 0" for v in range(vectors)) + ";")
    unrolled = kw <= tuning().conv_unrolled
    with emit.counting("c", t.c) as c, emit.counting("ky", kh) as ky:
        emit(f"const int at = {plus((c, planes.channel), (ky, t.dilation[0] * planes.row))};")
        emit(f"__global const {ctype(t.dtype)} *wk = {plus('w', (c, wc), (ky, wy))};")
        if not unrolled:
            emit(f"for (int kx = 0; kx < {kw}; kx++) {{")
            at = f"kx * {t.dilation[1]}"
            emit(f"const int right = {at} % {t.stride[1]} * {planes.phase} + {at} / {t.stride[1]};")
        for kx in range(kw if unrolled else 1):
            emit("{")
            right: str | int = tap(t, planes, kx) if unrolled else "right"
            for v in range(vectors):
                emit(f"const {vector} v{v} = {u.load(t.dtype, plus(f'p{v}', 'at', right), t.stride[0] * planes.row, scratch)};")
            for r in range(rows):
                emit(f"const {vector} w{r} = wk[{plus(r * wo + kx * wx, *([] if unrolled else [('kx', wx)]))}];")
                for v in range(vectors):
                    emit(f"c{r}_{v} += w{r} * v{v};")
            emit("}")
        if not unrolled:
            emit("}")


def _store(emit: Text, t: Taps, u: Units, g: Term, rows: int, vectors: int) -> None:
    """Emits the stores of the tile, each pixel once: a tile or unit that starts early skips what its neighbour stores."""
    looped = t.store.long(rows * vectors * u.rows, "n", "o", "y0", "x0", value="c0_0", width=u.piece)
    if looped:
        emit.array(ctype(t.dtype), "sums", rows * vectors * u.width)
        for r in range(rows):
            for v in range(vectors):
                emit(f"{kept(t.dtype, u.width, plus('sums', (r * vectors + v) * u.width))} = c{r}_{v};")
    channels_over, units_over = -t.o % rows, -u.count % vectors
    for channels, early_o in ((range(channels_over), True), (range(channels_over, rows), False)):
        for parts, early_u in ((range(units_over), True), (range(units_over, vectors), False)):
            if not channels or not parts:
                continue
            tests = [f"o == channel_tile * {rows}"] * early_o + [f"unit == unit_tile * {vectors}"] * early_u
            if tests:
                emit(f"if ({' && '.join(tests)}) {{")
            if looped:
                with emit.counting("r", channels.stop, channels.start) as row, emit.counting("v", parts.stop, parts.start) as unit:
                    _store_looped(emit, t, u, g, row, unit, vectors)
            for v in () if looped else parts:
                _store_unit(emit, t, u, g, channels, v)
            if tests:
                emit("}")


def _store_unit(emit: Text, t: Taps, u: Units, g: Term, channels: range, v: int) -> None:
    """Emits the stores of one unit of each channel: whole vectors inside, fewer lanes at the right and bottom edges."""

    def lanes(first: int, stop: int) -> None:
        for r in channels:
            for j in range(u.rows):
                guarded = u.rows > 1 and t.out[0] % u.rows > 0 and j >= t.out[0] % u.rows
                if guarded:
                    emit(f"if (y{v} + {j} < {t.out[0]}) {{")
                for start, width in pieces(first, stop):
                    value = swizzle(f"c{r}_{v}", j * u.piece + start, width, u.width)
                    t.store.write(emit, "n", plus((g, t.o), "o", r), plus(f"y{v}", j), plus(f"x{v}", start), value, width)
                if guarded:
                    emit("}")

    _each_piece(emit, t, u, f"x{v}", lanes)


def _store_looped(emit: Text, t: Taps, u: Units, g: Term, r: Term, v: Term, vectors: int) -> None:
    """Emits the stores of unit `v` of channel `r` from the tile's sums: in loops, for a long epilogue."""
    emit(f"const int y = {u.y(plus('unit', v))}, x = {u.x(plus('unit', v))};")

    def lanes(first: int, stop: int) -> None:
        with emit.counting("j", u.rows) as j:
            guarded = u.rows > 1 and t.out[0] % u.rows > 0
            if guarded:
                emit(f"if (y + {j} < {t.out[0]}) {{")
            row = plus("sums", (r, vectors * u.width), (v, u.width), (j, u.piece))
            where = "n", plus((g, t.o), "o", r), plus("y", j)
            if t.store.lanes:
                with emit.counting("k", stop, first) as k:
                    t.store.write(emit, *where, plus("x", k), kept(t.dtype, 1, plus(row, k)), 1)
            for start, width in () if t.store.lanes else pieces(first, stop):
                t.store.write(emit, *where, plus("x", start), kept(t.dtype, width, plus(row, start)), width)
            if guarded:
                emit("}")

    _each_piece(emit, t, u, "x", lanes)


def _each_piece(emit: Text, t: Taps, u: Units, x: Term, lanes: Callable[[int, int], None]) -> None:
    """Emits what `lanes` does of the lanes of a unit at column `x` that are stored: all, but at the right edge those that are left."""
    tail = t.out[1] % u.piece
    if tail and u.across > 1:
        first_of_last = t.out[1] - u.piece
        emit(f"if ({x} < {first_of_last}) {{")
        lanes(0, u.piece)
        emit("} else {")
        lanes(u.piece - tail, u.piece)
        emit("}")
    else:
        lanes(0, tail or u.piece)
