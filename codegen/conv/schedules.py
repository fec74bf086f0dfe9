"""Kernel texts of 2-d convolutions and their gradients on CPUs. Start at `conv2d`, `conv2d_input_grad`; for that by weights: `weight_grad`.

The caller says how the operands are read (`Array`: a callback, and strides if it is a plain buffer) and what becomes of the
result (`Store`: the fused epilogue, called exactly once for each element).

Everything but the weight gradient is reduced to one problem, `Taps`: an output pixel is a sum over input channels and a grid of
taps at fixed distances. The gradient by the input is that for each of the stride's phases: the pixels of x that stand at the same
place between the strides see the same taps, and no multiplication by an inserted zero is ever done. All phases are one kernel's
(`cpu.input_grad`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from tracegrad.codegen.conv import text_cpu as cpu
from tracegrad.codegen.conv.epilogue import DType
from tracegrad.codegen.conv.text_problem import Array, Store, Taps, Weights, Window
from tracegrad.codegen.conv.weight_grad import conv2d_weight_grad
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.vectors import Emit, Term, plus
from tracegrad.support.plan import Target

__all__ = ["Array", "Store", "Window", "conv2d", "conv2d_input_grad", "conv2d_weight_grad"]


def conv2d(
    name: str, window: Window, dtype: DType, x: Array, w: Array, store: Store, target: Target, owner: Hashable
) -> list[Kernel]:
    """The kernels of y[n,o,·,·] = sum over c, ky, kx of w[o,c,ky,kx] * x[n,c,·,·]; `store` gets elements of y (n, o, y, x)."""
    v = window

    def read(emit: Emit, g: Term, o: Term, c: Term, ky: Term, kx: Term) -> str:
        return w.load(emit, plus((g, v.o // v.groups), o), c, ky, kx)

    weights = Weights(read, w.params)
    if w.strided:
        pointer, (so, sc, sy, sx) = w.strided
        weights = replace(weights, strided=(pointer, 0, (so * (v.o // v.groups), so, sc, sy, sx)))
    (sy, sx), (dy, dx), (py, px) = v.stride, v.dilation, v.padding
    taps = Taps(
        name, v.n, v.groups, v.c // v.groups, v.o // v.groups, (v.h, v.w), (v.oh, v.ow), (v.kh, v.kw), (sy, sx), (dy, dx), (py, px),
        np.dtype(dtype), x, weights, store, target, owner,
    )
    return _kernels(taps)


def conv2d_input_grad(
    name: str, window: Window, dtype: DType, gy: Array, w: Array, store: Store, target: Target, owner: Hashable
) -> list[Kernel]:
    """The kernels of the gradient by x, given that by y: the forward's transpose; `store` gets elements (n, c, y, x) of x's shape."""
    v = window
    if v.phases != (1, 1):
        return cpu.input_grad(name, v, np.dtype(dtype), gy, w, store, target, owner)
    og = v.o // v.groups
    (ky0, ty, ystep, ydil, ypad), (kx0, tx, xstep, xdil, xpad) = v.alone(0), v.alone(1)
    ylast, xlast = ky0 + (ty - 1) * ystep, kx0 + (tx - 1) * xstep

    def read(emit: Emit, g: Term, o: Term, c: Term, ky: Term, kx: Term) -> str:
        return w.load(emit, plus((g, og), c), o, plus((ky, -ystep), ylast), plus((kx, -xstep), xlast))

    weights = Weights(read, w.params)
    if w.strided:
        pointer, (so, sc, sy, sx) = w.strided
        start = ylast * sy + xlast * sx if ty * tx else 0
        weights = replace(weights, strided=(pointer, start, (so * og, sc, so, -ystep * sy, -xstep * sx)))
    return _kernels(Taps(
        name, v.n, v.groups, og, v.c // v.groups, (v.oh, v.ow), (v.h, v.w), (ty, tx), (1, 1), (ydil, xdil), (ypad, xpad),
        np.dtype(dtype), gy, weights, store, target, owner,
    ))


def _kernels(t: Taps) -> list[Kernel]:
    if t.n * t.groups * t.o * t.out[0] * t.out[1] == 0:
        return []
    if t.c * t.size[0] * t.size[1] == 0:
        return cpu.empty_taps(t)
    return cpu.taps(t)
