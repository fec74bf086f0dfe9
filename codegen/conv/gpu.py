"""The GPU kernels of convolutions: matrix products, of which one operand is the image, read window by window. Start at `lower_conv`.

(Implicit GEMM: no array of windows is made.) What a convolution is beside a product (`matmul/gpu.py`) are index maps: which element of
the image and of the weights an element of an operand is, and where it is 0, outside of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tracegrad.codegen.conv.problem import Address, Axis, Sum, Taps, Window, apart, inside, weight_grad
from tracegrad.codegen.kernel.index.index import Index, Var, constant, ravel, unravel
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Select
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.fused import Fused
from tracegrad.codegen.matmul import gpu
from tracegrad.codegen.matmul.problem import Operand, Product
from tracegrad.codegen.schedule.grouping import Group

_TAP = ("channel", "ky", "kx")


@lowering("conv", on="gpu")
def lower_conv(group: Group, context: Context) -> list[Kernel]:
    """The kernels of a convolution, or of one of its gradients."""
    sum_ = Sum(group, context, context.entry(group), Window.of(group.anchor))
    first, *rest = gpu.kernels(weight_grad(sum_) if group.anchor.fn.name == "conv2d_weight_grad" else _taps(Taps.of(sum_)))
    return [replace(first, flops=sum_.v.flops), *rest]


def _taps(t: Taps) -> Product:
    """The output channels by the output pixels, added up over channels and taps.

    Phases are a batch. They have not all as many taps, so that taps count slower than channels.
    """
    v, result, axes, pixels, batch = t.v, t.group.anchor, t.phases, (t.v.n, *t.out), (t.v.groups, *t.count)

    def begin(f: Fused, b: Index) -> Var | None:
        """Declares what there is to know of a phase."""
        for axis, phase in zip(axes, unravel(b, batch)[1:], strict=True):
            axis.begin(f, f.writer.indexed(f"f{axis.name}", phase))
        ty, tx = f.noted["ty"], f.noted["tx"]
        if not ty.terms and not tx.terms:
            return None
        count = Infix("*", Infix("*", f.writer.at(ty), f.writer.at(tx)), t.c)
        return f.writer.known("count", t.c * prod(t.taps) + 1, count)

    def channel_and_tap(f: Fused, k: Index) -> list[Index]:
        if not axes:
            return apart(f, k, _TAP, (t.c, *t.taps))
        tap = f.writer.indexed("tap", k // t.c)
        ky, kx = (_by_taps(f, axes[1], f"k{axis.name}", tap, axis is axes[0], max(axis.counts)) for axis in axes)
        return [f.writer.indexed("channel", k % t.c), ky, kx]

    def weight(f: Fused, at: Sequence[Index]) -> Address:
        b, line, k = at
        channel, *tap = channel_and_tap(f, k)
        for number, axis in enumerate(axes):                 # tap k that the phase has is one of all
            x = tap[number] * axis.step + f.noted[f"k{axis.name}0"]
            tap[number] = x if x.hi < axis.size else f.writer.known(f"w{axis.name}", axis.size, x).index
        return t.w.flat(unravel(b, batch)[0], line, channel, *tap), ()

    def pixel(f: Fused, at: Sequence[Index]) -> Address:
        b, line, k = at
        n, *place = apart(f, line, "nyx", pixels)
        channel, *tap = channel_and_tap(f, k)
        first = [f.noted[f"i{axis.name}0"] for axis in axes] or [constant(-p) for p in t.padding]
        seen = [i * by + o + k * d for i, by, o, k, d in zip(place, t.stride, first, tap, t.dilation, strict=True)]
        places, tests = inside(f, seen, t.image)
        return t.x.flat(n, unravel(b, batch)[0] * t.c + channel, *places), tests

    def where(f: Fused, at: Sequence[Index]) -> Address:
        b, i, j = at
        g, *phase = unravel(b, batch)
        n, *places = apart(f, j, "nyx", pixels)
        tests: Sequence[Expression] = ()
        if axes:
            places, tests = inside(f, [i * a.stride + p for i, a, p in zip(places, axes, phase, strict=True)], (v.h, v.w))
        return ravel((n, g * t.o + i, *places), result.shape), tests

    return Product(
        t.group, t.context, t.name, prod(batch), t.c * prod(t.taps), t.dtype, Operand("a", t.o, t.w.node, weight, False),
        Operand("b", prod(pixels), t.x.node, pixel, True), result, where, t.bytes, begin if axes else None)


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
    return w.known(name, size, found).index
