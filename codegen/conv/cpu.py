"""CPU kernels of convolutions and of their gradients by the image, as tile programs. Start at `lower_conv`; the other one: `weight_grad`.

Direct, register-blocked: tiles of accumulators are output channels by units of pixels (see `layout`), summed over input channels and taps.
The input is read in place if it needs no padding and no horizontal stride; else each work-item copies its image to a padded array that fits
the cache and does all output channels of it, or, for larger images, a first kernel pads them all. Weights that are not stored as they are
computed with are copied once.

Both are one problem, `Taps`. The gradient by the image is that for each of the stride's phases: the pixels of x that stand at the same
place between the strides see the same taps, and no multiplication by an inserted zero is ever done. Phases are a loop around the tiles, or
a dimension of the work-items: which taps a phase has, and where they look, are variables (`problem.Axis.begin`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tracegrad.codegen.conv import weight_grad
from tracegrad.codegen.conv.layout import Read, Units, fill, in_place, laid_out, pad, padded, units
from tracegrad.codegen.conv.problem import Sum, Taps, Window
from tracegrad.codegen.kernel.index.index import Index, Var, bounded, ravel
from tracegrad.codegen.kernel.ir.expressions import Access, Expression, Infix
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.vectors import ceil_div, register_tile
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.fused import Fused, Map, statements
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.program import ALONE, Axis, Dot, Element, ElementAt, Fill, Load, Loop, Program, Tile, digits, summed
from tracegrad.support.tuning import tuning


@lowering("conv")
def lower_conv(group: Group, context: Context) -> list[Kernel]:
    """The kernels of a convolution, or of one of its gradients, in launch order."""
    sum_ = Sum(group, context, context.entry(group), Window.of(group.anchor))
    if group.anchor.fn.name == "conv2d_weight_grad":
        return weight_grad.kernels(sum_)
    t = Taps.of(sum_)
    made: list[Kernel] = []
    u = units(t.out, t.dtype, t.target)
    shape = padded(t.v.groups * t.c, u, t.reach, t.stride)
    planes = in_place(t.x, u, t.reach, t.stride, t.padding)
    scratch = planes is None and (
        t.c * prod(shape[1:]) * t.dtype.itemsize <= t.target.l2_bytes // 2 and t.v.n * t.v.groups >= 2 * t.target.cores)
    if planes is None and not scratch:
        planes = pad(made, t.x, t.name, shape, t.stride, t.padding)
    weights = t.w.plain() or laid_out(made, t.w, "weights", ("g", "o", "c", "ky", "kx"), t.w.sizes, t.name,
                                      "The weights, computed once for all images.", "weights of")
    return [*made, _direct(t, u, planes, weights, shape)]


def _direct(t: Taps, u: Units, planes: Read | None, weights: Read, shape: tuple[int, ...]) -> Kernel:
    """The convolution: a work-item does some tiles of (channels x units) of one image and group. planes: None if it fills its own."""
    rows, vectors = register_tile(t.o, u.count, t.target)
    across, down = ceil_div(t.o, rows), ceil_div(u.count, vectors)
    wide, high = (across, down) if planes is None else _block(t, rows * vectors, across, down)
    kh, kw = t.taps
    n, g = Axis.of_items("n", t.v.n, 2), Axis.of_items("g", t.v.groups, 2)
    fy, fx = (Axis.tiled(name, count) if planes is None else Axis.of_items(name, count, 2)
              for name, count in zip(("fy", "fx"), t.count, strict=True))
    o, unit = Axis("o", t.o, digits(across, wide, rows, 0)), Axis("unit", u.count, digits(down, high, vectors, 1))
    y, x = u.axes(unit)
    c, ky, kx = (Axis(name, size) for name, size in (("c", t.c), ("ky", kh), ("kx", kw)))
    f = Fused(t.group, t.context, t.index)
    filled: tuple[Fill, ...] = ()
    if planes is None:
        own = (t.c, *shape[1:])
        image = f.array("image", t.dtype, own)
        filled = (fill(f, t.x, (n, g, Axis("c", t.c)), own, t.stride, t.padding, lambda n, g, *at: image(*at), t.dtype),)
    else:
        found = planes(f)

    def pixels(n: Index, g: Index, channel: Index, *at: Index) -> Element:
        return image(channel, *at) if planes is None else found(n, g * t.c + channel, *at)

    sums = Tile("c", (n, g, fy, fx, o, unit, y, x), t.dtype)
    values, factors = Tile("v", (n, g, unit, y, x, c, ky, kx), t.dtype), Tile("w", (g, o, c, ky, kx), t.dtype)
    body = Load(values, _under_taps(t, f, pixels)), Load(factors, _taps_of_phase(t, f, weights(f))), Dot(sums, factors, values)
    loop = Loop(c, (_taps(t, f, 0, fy, (_taps(t, f, 1, fx, body),)),))
    each = statements(t.group, t.context, t.group.anchor, _where(t), t.dtype, (t.v.n, t.v.groups, *t.count, t.o, 1, *t.out))
    steps = *filled, *summed(loop, f.result(t.group.anchor, _where(t)), each, t.count[1] > 1)
    what = f"{kh}x{kw} taps over {t.c} channels, tiles of {rows} output channels x {vectors} vectors of {u.rows}x{u.piece} pixels"
    what += f", for each of {t.count[0]}x{t.count[1]} phases" if t.phases else ""
    about = what + (", from a padded copy of the image." if planes is None else ".")
    return f.kernel(Program((n, g, fy, fx, o, unit), ALONE, steps), t.name, about, t.v.flops, t.bytes, what)


def _under_taps(t: Taps, f: Fused, pixels: ElementAt) -> ElementAt:
    """The pixels that units see under taps."""
    def source(n: Index, g: Index, unit: Index, y: Index, x: Index, c: Index, ky: Index, kx: Index) -> Element:
        seen, guards = [], []
        for axis, k, dilation, padding, reach in zip("yx", (ky, kx), t.dilation, t.padding, t.reach, strict=True):
            at = k * dilation
            if t.phases:                                     # it is inside for the taps that the phase has
                at = at + f.noted[f"i{axis}0"] + padding
                guards += [("range", at, 0, reach + 1)] * (at.lo < 0 or at.hi > reach)
            seen.append(at)
        down, right = seen
        access = pixels(n, g, c, y * t.stride[0] + down, right % t.stride[1], x + right // t.stride[1]).access
        assert access is not None
        return Element((), access=Access(access.memory, access.at, guards=tuple(guards)))

    return source


def _taps_of_phase(t: Taps, f: Fused, weights: ElementAt) -> ElementAt:
    """The weights: tap k that a phase has is one of all."""
    if not t.phases:
        return weights

    def source(g: Index, o: Index, c: Index, *taps: Index) -> Element:
        places = [k * axis.step + f.noted[f"k{axis.name}0"] for k, axis in zip(taps, t.phases, strict=True)]
        access = weights(g, o, c, *places).access
        assert access is not None
        guards = [("range", k, 0, axis.size) for k, axis in zip(places, t.phases, strict=True) if k.hi >= axis.size]
        return Element((), access=Access(access.memory, access.at, guards=tuple(guards)))

    return source


def _taps(t: Taps, f: Fused, k: int, phase: Axis, body: tuple[Load | Dot | Loop, ...]) -> Loop:
    """The loop over the taps along an axis that a pixel sees, which are as many as its phase has."""
    name, size = ("ky", "kx")[k], t.taps[k]
    written = k == 1 and size <= tuning().conv_unrolled
    if not t.phases:
        return Loop(Axis(name, size), body, written=written, steps=tuning().conv_steps)
    axis = t.phases[k]

    def count(phase: Index) -> Var | None:
        axis.begin(f, phase)
        found = f.noted[f"t{axis.name}"]
        if found.hi > size:
            return f.writer.known(f"t{axis.name}", size + 1, found)
        return next(iter(found.vars), None)

    return Loop(Axis(name, size), body, written=written, steps=tuning().conv_steps, count=count, of=(phase,))


def _where(t: Taps) -> Map:
    """The element of the result that a pixel is, and whether there is that."""
    shape = t.group.anchor.shape

    def where(f: Fused, at: Sequence[Index]) -> tuple[Index, Sequence[Expression]]:
        n, g, *phase, o, _, y, x = at
        if not t.phases:
            return ravel((n, g * t.o + o, y, x), shape), ()
        places = [i * axis.stride + p for i, axis, p in zip((y, x), t.phases, phase, strict=True)]
        tests = [Infix("<", f.writer.at(i), size) for i, size in zip(places, shape[2:], strict=True) if i.hi >= size]
        return ravel((n, g * t.o + o, *[bounded(i, 0, size) for i, size in zip(places, shape[2:], strict=True)]), shape), tests

    return where


def _block(t: Taps, tile: int, across: int, down: int) -> tuple[int, int]:
    """How many tiles of channels and of units one work-item does: all units if that leaves work for every core, then more channels."""
    enough = 4 * t.target.cores
    images, work = t.v.n * t.v.groups * prod(t.count), tile * t.c * t.taps[0] * t.taps[1]
    high = down
    while high > 1 and images * across * ceil_div(down, high) < enough and work * high > 1 << 12:
        high = ceil_div(high, 2)
    wide = 1
    while wide < across and images * ceil_div(across, 2 * wide) * ceil_div(down, high) >= enough and work * high * wide < 1 << 15:
        wide = min(2 * wide, across)
    return wide, high

