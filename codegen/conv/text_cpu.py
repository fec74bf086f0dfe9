"""The CPU kernels of convolutions: direct, register-blocked over output channels x vectors of pixels. Start at `taps`, `input_grad`.

The input is read in place if it needs no padding and no horizontal stride; else each work-item copies its image to a padded
scratch array that fits the cache and does all output channels of it, or, for larger images, a first kernel pads them all.
The phases of a strided convolution's gradient are a loop around that, or a dimension of the work-items: which taps a phase has, and where
they look, are variables (`Axis`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tracegrad.codegen.conv.epilogue import DType
from tracegrad.codegen.conv.text_layout import Planes, Units, fill, in_place, pad, padded, units
from tracegrad.codegen.conv.text_problem import Array, Axis, Store, Taps, Weights, Window
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import item
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import Compound, Emit, Term, ceil_div, ctype, inside, kept, pieces, plus, register_tile, swizzle
from tracegrad.support.plan import Plain, Target
from tracegrad.support.tuning import tuning


def input_grad(name: str, v: Window, dtype: DType, gy: Array, w: Array, store: Store, target: Target, owner: Hashable) -> list[Kernel]:
    """The input channels by the pixels of each phase of the stride. They have not all as many taps."""
    if v.n * v.c * v.h * v.w == 0:
        return []
    og, cg, axes = v.o // v.groups, v.c // v.groups, (Axis.of(v, 0), Axis.of(v, 1))
    out = ceil_div(v.h, v.stride[0]), ceil_div(v.w, v.stride[1])

    def read(emit: Emit, g: Term, o: Term, c: Term, ky: Term, kx: Term) -> str:
        return w.load(emit, plus((g, og), c), o, ky, kx)

    weights = Weights(read, w.params)
    if w.strided:
        pointer, (so, sc, sy, sx) = w.strided
        weights = replace(weights, strided=(pointer, 0, (so * og, sc, so, sy, sx)))
    backwards = -axes[0].dilation, -axes[1].dilation
    t = Taps(name, v.n, v.groups, og, cg, (v.oh, v.ow), out, (v.kh, v.kw), (1, 1), backwards, (0, 0), dtype, gy, weights, _spread(store, v),
             target, owner, axes)
    if og * t.taps[0] * t.taps[1] == 0:
        return empty_taps(replace(t, out=(v.h, v.w), store=store, phases=None))
    before = (max(-(f + a.padding - taps[-1] * a.given) // a.stride for f, taps in enumerate(a.taps) if taps) for a in axes)
    top, left = (max(0, n) for n in before)
    *first, last = taps(replace(t, padding=(top, left)))
    moved = v.n * (v.c * v.h * v.w + v.o * v.oh * v.ow) + v.o * cg * v.kh * v.kw
    return [*first, replace(last, flops=2 * v.n * v.o * v.oh * v.ow * cg * v.kh * v.kw, bytes=moved * dtype.itemsize)]


def _spread(store: Store, v: Window) -> Store:
    """The store for a phase: its pixel (y, x) is pixel (y * stride + fy, x * stride + fx) of x's gradient, where there is that pixel."""
    (py, px), (sy, sx) = v.phases, v.stride

    def write(emit: Emit, n: Term, c: Term, y: Term, x: Term, value: str, width: int) -> None:
        y = plus((y, sy), "fy") if py > 1 else y
        with _where(emit, y, v.h, py > 1 and v.h % sy > 0):
            if px == 1:
                store.write(emit, n, c, y, x, value, width)
                return
            for lane in range(width):
                at = plus((plus(x, lane), sx), "fx")
                with _where(emit, at, v.w, v.w % sx > 0):
                    store.write(emit, n, c, y, at, swizzle(value, lane, 1, width), 1)

    return Store(write, store.params, lanes=px > 1)


@contextmanager
def _where(emit: Emit, at: Term, size: int, needed: bool) -> Iterator[None]:
    """A block for where index `at` is inside of `size`; needed: whether there is a doubt."""
    if needed:
        emit(f"if ({at} < {size}) {{")
    yield
    if needed:
        emit("}")


def taps(t: Taps) -> list[Kernel]:
    """The kernels, in launch order, for one `Taps` with a non-empty sum."""
    kernels = []
    u = units(t.out, t.dtype, t.target, overlapping=True)
    scratch = False
    planes = in_place(t.x, t.image, u, t.reach, t.stride, t.padding)
    if planes is None:
        planes = padded(t.groups * t.c, u, t.reach, t.stride)
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
    phases = 1 if scratch else math.prod(t.count)            # that are work-items of their own
    wide, high = (across, down) if scratch else _block(t, rows * vectors, across, down)
    params = merge(planes.params, t.w.params, t.store.params)
    (kh, kw), real = t.taps, ctype(t.dtype)
    what = f"{kh}x{kw} taps over {t.c} channels, tiles of {rows} output channels x {vectors} vectors of {u.rows}x{u.piece} pixels"
    what += f", for each of {t.count[0]}x{t.count[1]} phases" if t.phases else ""
    emit = Text(t.name, what + (", from a padded copy of the image." if scratch else "."), params, vectors=[(t.dtype, u.width)])
    inner = [("g", t.groups), *(zip(("fy", "fx"), t.count, strict=True) if phases > 1 else ())]
    several = {name: count for name, count in inner if count > 1}
    apart(emit, item(2), ("n", *several), tuple(several.values()))
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
    loops = 0
    for f, count in zip(("fy", "fx"), t.count, strict=True):
        if scratch and count > 1:
            emit(f"for (int {f} = 0; {f} < {count}; {f}++) {{")
            loops += 1
    phase = _phase(emit, t, planes)
    assert t.w.strided is not None
    pointer, start, (wg, wo, _, wy, wx) = t.w.strided
    loops += _range(emit, "channel_tile", 0, wide, across)
    emit(f"const int o = {_early('channel_tile', rows, t.o)};")
    emit(f"__global const {real} *w = {plus(pointer, start, (g, wg), ('o', wo), (phase.first[0], wy), (phase.first[1], wx))};")
    loops += _range(emit, "unit_tile", 1, high, down)
    emit(f"const int unit = {_early('unit_tile', vectors, u.count)};")
    for v in range(vectors):
        emit(f"const int y{v} = {u.y(plus('unit', v))}, x{v} = {u.x(plus('unit', v))};")
        at = plus((f"y{v}", t.stride[0] * planes.row), f"x{v}", (phase.at[0], planes.row), phase.at[1])
        emit(f"{space}{real} *p{v} = image + {at};")
    _sum(emit, t, u, planes, rows, vectors, scratch, phase)
    _store(emit, t, u, g, rows, vectors)
    for _ in range(loops):
        emit("}")
    size = (ceil_div(across, wide), ceil_div(down, high), t.n * t.groups * phases)
    return emit.kernel(size, (1, 1, 1), t.flops, t.bytes, what)


class _Phase(Plain):
    """What differs from phase to phase, along both axes: the first tap, where in a plane pixel 0 sees it, and how many taps there are."""

    first: tuple[Term, Term]
    at: tuple[Term, Term]
    count: tuple[Term, Term]


def _phase(emit: Text, t: Taps, planes: Planes) -> _Phase:
    """Emits what is no number."""
    if t.phases is None:
        return _Phase((0, 0), (0, 0), t.size)
    found: list[tuple[Term, Term, Term]] = []
    for axis, padding, several in zip(t.phases, t.padding, t.count, strict=True):
        if several == 1:
            found.append((axis.taps[0].start, axis.starts[0] + padding, axis.counts[0]))
            continue
        f = f"f{axis.name}"
        first = _named(emit, f"k{axis.name}0", axis.first(f))
        at = _named(emit, f"i{axis.name}0", plus(axis.at(f, first), padding))
        found.append((first, at, _named(emit, f"t{axis.name}", axis.count(f, first))))
    y, x = found
    return _Phase((y[0], x[0]), (y[1], x[1]), (y[2], x[2]))


def _named(emit: Text, name: str, term: Term) -> Term:
    """A number, or the variable `name`."""
    if isinstance(term, int):
        return term
    emit(f"const int {name} = {term};")
    return name


def _block(t: Taps, tile: int, across: int, down: int) -> tuple[int, int]:
    """How many tiles of channels and of units one work-item does: all units if that leaves work for every core, then more channels."""
    enough = 4 * t.target.cores
    images, work = t.n * t.groups * math.prod(t.count), tile * t.c * t.taps[0] * t.taps[1]
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


def _sum(emit: Text, t: Taps, u: Units, planes: Planes, rows: int, vectors: int, scratch: bool, phase: _Phase) -> None:
    """Emits the loops over input channels and taps that leave the tile in c0_0 ..."""
    assert t.w.strided is not None
    (_, kw), (_, _, (_, wo, wc, wy, wx)), vector = t.taps, t.w.strided, ctype(t.dtype, u.width)
    least = kw
    if t.phases:
        wy, wx, least = wy * t.phases[0].step, wx * t.phases[1].step, min(t.phases[1].counts)
    for r in range(rows):
        emit(f"{vector} " + ", ".join(f"c{r}_{v} = 0" for v in range(vectors)) + ";")
    unrolled = kw <= tuning().conv_unrolled
    with emit.counting("c", t.c) as c, emit.counting("ky", phase.count[0]) as ky:
        emit(f"const int at = {plus((c, planes.channel), (ky, t.dilation[0] * planes.row))};")
        emit(f"__global const {ctype(t.dtype)} *wk = {plus('w', (c, wc), (ky, wy))};")
        if not unrolled:
            emit(f"for (int kx = 0; kx < {phase.count[1]}; kx++) {{")
            at = f"kx * {t.dilation[1]}"
            emit(f"const int right = {at} % {t.stride[1]} * {planes.phase} + {at} / {t.stride[1]};")
        for kx in range(kw if unrolled else 1):
            emit(f"if (tx > {kx}) {{" if unrolled and kx >= least else "{")
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


def apart(emit: Emit, of: Term, names: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Emits the coordinates `names` of element number `of`, which has one fewer `sizes`: those of all but the first."""
    inner = 1
    for name, size in reversed(list(zip(names, (0, *sizes), strict=True))):
        at = f"{of} / {inner}" if inner > 1 else of
        emit(f"const int {name} = {at} % {size};" if size else f"const int {name} = {at};")
        inner *= size or 1


def empty_taps(t: Taps) -> list[Kernel]:
    """Zeros, where there is nothing to add up."""
    (oh, ow), (kh, kw) = t.out, t.size
    emit = Text(t.name, f"{kh}x{kw} taps over {t.c} channels, one output pixel a work-item.", t.store.params, group=None)
    emit(f"const int x = get_global_id(0) % {ow}, y = get_global_id(0) / {ow};")
    emit("const int channel = get_global_id(1), n = get_global_id(2);")
    emit(f"{ctype(t.dtype)} sum = 0;")
    t.store.write(emit, "n", "channel", "y", "x", "sum", 1)
    return [emit.kernel((oh * ow, t.groups * t.o, t.n), None, t.flops, t.bytes, "one output pixel a work-item")]
