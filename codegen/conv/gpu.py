"""The GPU kernels of convolutions: matrix products, of which one operand is the image, read window by window. Start at `kernels`.

(Implicit GEMM: no array of windows is made.) What a convolution is beside a product (`matmul/gpu.py`) are index maps: which element of
the image and of the weights an element of an operand is, and where it is 0, outside of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tracegrad.codegen.conv.problem import Axis, Pair, Window
from tracegrad.codegen.kernel.index.index import Index, Var, bounded, ravel, unravel
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Select
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.vectors import ceil_div, computed_in
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.fused import Fused
from tracegrad.codegen.matmul import gpu
from tracegrad.codegen.matmul.gpu import Operand, Product
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node

Address = tuple[Index, Sequence[Expression]]
_TAP = ("channel", "ky", "kx")


def kernels(group: Group, context: Context, v: Window) -> list[Kernel]:
    """The kernels of a convolution, or of one of its gradients."""
    first, second = group.anchor.operands
    name = group.anchor.fn.name
    if name == "conv2d_weight_grad":
        return _weight_grad(group, context, v, first, second)
    if name == "conv2d":
        return _taps(group, context, v, first, second, (v.h, v.w), (v.oh, v.ow), (v.kh, v.kw), v.stride, v.dilation, v.padding,
                     lambda g, o, c, ky, kx: (g * (v.o // v.groups) + o, c, ky, kx))
    if v.phases != (1, 1):
        return _input_grad(group, context, v, first, second)
    (ky0, ty, ystep, ydil, ypad), (kx0, tx, xstep, xdil, xpad) = v.alone(0), v.alone(1)
    ylast, xlast = ky0 + (ty - 1) * ystep, kx0 + (tx - 1) * xstep
    return _taps(group, context, v, first, second, (v.oh, v.ow), (v.h, v.w), (ty, tx), (1, 1), (ydil, xdil), (ypad, xpad),
                 lambda g, o, c, ky, kx: (g * (v.o // v.groups) + c, o, ylast - ky * ystep, xlast - kx * xstep))


def _apart(f: Fused, x: Index, names: Sequence[str], sizes: Sequence[int]) -> list[Index]:
    """The coordinates, called so, of an element of an array of these sizes."""
    return [f.writer.indexed(name, i) for name, i in zip(names, unravel(x, sizes), strict=True)]


def _inside(f: Fused, at: Sequence[Index], image: Pair) -> tuple[list[Index], list[Expression]]:
    """The pixel (iy, ix), and what has to hold for it to be in the image."""
    places: list[Index] = []
    tests: list[Expression] = []
    for name, x, size in zip(("iy", "ix"), at, image, strict=True):
        x = f.writer.indexed(name, x)
        tests += [Infix(">=", f.writer.at(x), 0)] * (x.lo < 0) + [Infix("<", f.writer.at(x), size)] * (x.hi >= size)
        places.append(bounded(x, 0, size))
    return places, tests


def _bytes(group: Group) -> int:
    """What is read and written once."""
    return sum(x.aval.size for x in (*group.anchor.operands, group.anchor)) * computed_in(group.anchor.dtype).itemsize


def _taps(
    group: Group, context: Context, v: Window, x: Node, w: Node, image: Pair, out: Pair, size: Pair, stride: Pair, dilation: Pair,
    padding: Pair, weight_at: Callable[..., Sequence[Index]],
) -> list[Kernel]:
    """The output channels by the output pixels, added up over channels and taps."""
    result = group.anchor
    c, o = x.shape[1] // v.groups, result.shape[1] // v.groups
    taps, pixels = (c, *size), (v.n, *out)

    def weight(f: Fused, at: Sequence[Index]) -> Address:
        g, line, k = at
        return ravel(weight_at(g, line, *_apart(f, k, _TAP, taps)), w.shape), ()

    def pixel(f: Fused, at: Sequence[Index]) -> Address:
        g, line, k = at
        n, *place = _apart(f, line, "nyx", pixels)
        channel, *tap = _apart(f, k, _TAP, taps)
        places, tests = _inside(f, [i * s + t * d - p for i, s, t, d, p in zip(place, stride, tap, dilation, padding, strict=True)], image)
        return ravel((n, g * c + channel, *places), x.shape), tests

    def where(f: Fused, at: Sequence[Index]) -> Address:
        g, i, j = at
        n, y, x = _apart(f, j, "nyx", pixels)
        return ravel((n, g * o + i, y, x), result.shape), ()

    return gpu.kernels(Product(
        group, context, context.entry(group), v.groups, o, v.n * out[0] * out[1], c * size[0] * size[1], computed_in(result.dtype),
        Operand(w, weight, False), Operand(x, pixel, True), result, where, _bytes(group)))


def _input_grad(group: Group, context: Context, v: Window, gy: Node, w: Node) -> list[Kernel]:
    """The input channels by the pixels of one phase of the stride, for each of them: a batch. They have not all as many taps."""
    result, phases = group.anchor, v.phases
    og, cg = v.o // v.groups, v.c // v.groups
    axes, out = (Axis.of(v, 0), Axis.of(v, 1)), (ceil_div(v.h, v.stride[0]), ceil_div(v.w, v.stride[1]))
    pixels, batch = (v.n, *out), (v.groups, *phases)

    def begin(f: Fused, b: Index) -> Var | None:
        """Declares what there is to know of a phase."""
        for axis, phase in zip(axes, unravel(b, batch)[1:], strict=True):
            axis.begin(f, f.writer.indexed(f"f{axis.name}", phase))
        ty, tx = f.noted["ty"], f.noted["tx"]
        if not ty.terms and not tx.terms:
            return None
        most = max(axes[0].counts) * max(axes[1].counts) * og
        return f.writer.known(f.writer.own("count"), most + 1, Infix("*", Infix("*", f.writer.at(ty), f.writer.at(tx)), og))

    def taps(f: Fused, k: Index) -> tuple[Index, Index, Index]:
        tap = f.writer.indexed("tap", k // og)
        ky, kx = (_by_taps(f, axes[1], f"k{axis.name}", tap, axis is axes[0], max(axis.counts)) for axis in axes)
        return f.writer.indexed("channel", k % og), ky, kx

    def weight(f: Fused, at: Sequence[Index]) -> Address:
        b, line, k = at
        channel, *tap = taps(f, k)
        places = []
        for t, axis in zip(tap, axes, strict=True):
            x = t * axis.step + f.noted[f"k{axis.name}0"]
            places.append(x if x.hi < axis.size else f.writer.known(f.writer.own(f"w{axis.name}"), axis.size, x).index)
        return ravel((unravel(b, batch)[0] * og + channel, line, *places), w.shape), ()

    def pixel(f: Fused, at: Sequence[Index]) -> Address:
        b, line, k = at
        n, *place = _apart(f, line, "nyx", pixels)
        channel, *tap = taps(f, k)
        seen = [i + f.noted[f"i{a.name}0"] - t * a.dilation for i, t, a in zip(place, tap, axes, strict=True)]
        places, tests = _inside(f, seen, (v.oh, v.ow))
        return ravel((n, unravel(b, batch)[0] * og + channel, *places), gy.shape), tests

    def where(f: Fused, at: Sequence[Index]) -> Address:
        b, i, j = at
        g, *phase = unravel(b, batch)
        n, *place = _apart(f, j, "nyx", pixels)
        places, tests = _inside(f, [i * s + p for i, s, p in zip(place, v.stride, phase, strict=True)], (v.h, v.w))
        return ravel((n, g * cg + i, *places), result.shape), tests

    found = gpu.kernels(Product(
        group, context, context.entry(group), v.groups * phases[0] * phases[1], cg, v.n * out[0] * out[1],
        og * max(axes[0].counts) * max(axes[1].counts), computed_in(result.dtype), Operand(w, weight, False), Operand(gy, pixel, True),
        result, where, _bytes(group), begin))
    return [replace(k, flops=2 * gy.aval.size * cg * v.kh * v.kw) if n == 0 else k for n, k in enumerate(found)]


def _by_taps(f: Fused, axis: Axis, name: str, tap: Index, whole: bool, size: int) -> Index:
    """`tap` divided by the number of taps along an axis (whole: how often it goes in; else the rest), which is one of few: the driver
    knows better ways for each of them. size: how many there may be.
    """
    w = f.writer
    most, *others = sorted({n for n in axis.counts if n}, reverse=True)
    if not others:
        return w.indexed(name, tap // most if whole else tap % most)
    found: Expression = w.at(tap // most if whole else tap % most)
    for n in others:
        found = Select(Infix("==", w.at(f.noted[f"t{axis.name}"]), n), w.at(tap // n if whole else tap % n), found)
    return w.known(w.own(name), size, found).index


def _weight_grad(group: Group, context: Context, v: Window, x: Node, gy: Node) -> list[Kernel]:
    """The output channels by the weights of one, added up over the pixels of all images."""
    result, og, cg = group.anchor, v.o // v.groups, v.c // v.groups
    taps, pixels = (cg, v.kh, v.kw), (v.n, v.oh, v.ow)

    def grad(f: Fused, at: Sequence[Index]) -> Address:
        g, line, k = at
        n, oy, ox = _apart(f, k, ("n", "oy", "ox"), pixels)
        return ravel((n, g * og + line, oy, ox), gy.shape), ()

    def pixel(f: Fused, at: Sequence[Index]) -> Address:
        g, line, k = at
        channel, *tap = _apart(f, line, _TAP, taps)
        n, *place = _apart(f, k, ("n", "oy", "ox"), pixels)
        seen = [i * s + t * d - p for i, s, t, d, p in zip(place, v.stride, tap, v.dilation, v.padding, strict=True)]
        places, tests = _inside(f, seen, (v.h, v.w))
        return ravel((n, g * cg + channel, *places), x.shape), tests

    def where(f: Fused, at: Sequence[Index]) -> Address:
        g, i, j = at
        return ravel((g * og + i, *_apart(f, j, _TAP, taps)), result.shape), ()

    return gpu.kernels(Product(
        group, context, context.entry(group), v.groups, og, cg * v.kh * v.kw, v.n * v.oh * v.ow, computed_in(result.dtype),
        Operand(gy, grad, False), Operand(x, pixel, False), result, where, _bytes(group)))
