"""The GPU kernels of convolutions: matrix products whose operand is the image, read window by window. Start at `taps`, `input_grad`.

(Implicit GEMM: no array of windows is made.) The generator of products brings blocks of both to local memory, with fused loads and
zeros outside of the image, and splits k where there are few results. `empty` is for sums of nothing, on any device.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from tracegrad.codegen.conv.problem import Array, Axis, Pair, Store, Taps, Window
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.text import Text
from tracegrad.codegen.kernel.vectors import Compound, Emit, Term, ceil_div, ctype, plus
from tracegrad.codegen.matmul.gpu import total
from tracegrad.codegen.matmul.problem import DType, Operand, Product
from tracegrad.codegen.matmul.problem import Store as Results
from tracegrad.codegen.matmul.schedules import gpu_product
from tracegrad.plan import Target


def apart(emit: Emit, of: Term, names: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Emits the coordinates `names` of element number `of`, which has one fewer `sizes`: those of all but the first."""
    inner = 1
    for name, size in reversed(list(zip(names, (0, *sizes), strict=True))):
        at = f"{of} / {inner}" if inner > 1 else of
        emit(f"const int {name} = {at} % {size};" if size else f"const int {name} = {at};")
        inner *= size or 1


def _windowed(emit: Emit, x: Array, dtype: DType, n: Term, channel: Term, image: Pair, stride: Pair, dilation: Pair, padding: Pair) -> str:
    """Emits the load of what tap (ky, kx) of the window at (y, x) sees: the image's element, or 0 outside."""
    for i, at, tap, axis in (("iy", "y", "ky", 0), ("ix", "x", "kx", 1)):
        emit(f"const int {i} = {plus((at, stride[axis]), (tap, dilation[axis]), -padding[axis])};")
    return _or_zero(emit, x, dtype, n, channel, image)


def _or_zero(emit: Emit, x: Array, dtype: DType, n: Term, channel: Term, image: Pair) -> str:
    """Emits the load of an image's element (iy, ix), or of 0 outside."""
    emit(f"{ctype(dtype)} image = 0;")
    emit(f"if (iy >= 0 && iy < {image[0]} && ix >= 0 && ix < {image[1]}) {{")
    emit(f"image = {x.load(emit, n, channel, 'iy', 'ix')};")
    emit("}")
    return "image"


def taps(t: Taps) -> list[Kernel]:
    """The output channels by the output pixels, added up over channels and taps."""
    (oh, ow), (kh, kw) = t.out, t.size

    def weight(emit: Emit, b: Term, line: Term, k: Term) -> str:
        apart(emit, k, ("channel", "ky", "kx"), t.size)
        return t.w.load(emit, b, line, "channel", "ky", "kx")

    def pixel(emit: Emit, b: Term, line: Term, k: Term) -> str:
        apart(emit, line, ("n", "y", "x"), t.out)
        apart(emit, k, ("channel", "ky", "kx"), t.size)
        return _windowed(emit, t.x, t.dtype, "n", plus((b, t.c), "channel"), t.image, t.stride, t.dilation, t.padding)

    def write(emit: Emit, b: Term, i: Term, j: Term, value: str, width: int) -> None:
        apart(emit, j, ("n", "y", "x"), t.out)
        t.store.write(emit, "n", plus((b, t.o), i), "y", "x", value, width)

    a = Operand("a", t.o, weight, t.w.params, t.groups > 1)
    b = Operand("b", t.n * oh * ow, pixel, t.x.params, t.groups > 1, across=True)
    return _product(t.name, t.groups, a, b, t.c * kh * kw, t.dtype, Results(write, t.store.params), t.target, t.owner, t.bytes)


def input_grad(name: str, v: Window, dtype: DType, gy: Array, w: Array, store: Store, target: Target, owner: Hashable) -> list[Kernel]:
    """The input channels by the pixels of one phase of the stride, for each of them: a batch. They have not all as many taps."""
    (py, px), og, cg = v.phases, v.o // v.groups, v.c // v.groups
    out = ceil_div(v.h, v.stride[0]), ceil_div(v.w, v.stride[1])
    axes = Axis.of(v, 0), Axis.of(v, 1)
    if v.n * v.c * out[0] * out[1] == 0:
        return []

    def group(b: Term) -> Term:
        return Compound(f"{b} / {py * px}") if v.groups > 1 else 0

    def extent(emit: Emit, b: Term) -> str:
        """Emits a phase's first tap, the pixel of y that it sees from (0, 0), and how many taps there are, along each axis."""
        emit(f"const int fy = {b} / {px} % {py}, fx = {b} % {px};")
        for axis in axes:
            _begin(emit, axis)
        return f"ty * tx * {og}"

    def taps_(emit: Emit, k: Term) -> None:
        emit(f"const int channel = {k} % {og}, tap = {k} / {og};")
        emit(f"const int ky = {_by_taps(axes[1], 'tap', '/')}, kx = {_by_taps(axes[1], 'tap', '%')};")

    def weight(emit: Emit, b: Term, line: Term, k: Term) -> str:
        taps_(emit, k)
        places = (plus((name, axis.step), f"{name}0") for name, axis in zip(("ky", "kx"), axes, strict=True))
        return w.load(emit, plus((group(b), og), "channel"), line, *places)

    def pixel(emit: Emit, b: Term, line: Term, k: Term) -> str:
        apart(emit, line, ("n", "y", "x"), out)
        taps_(emit, k)
        for at, tap, axis in (("y", "ky", axes[0]), ("x", "kx", axes[1])):
            emit(f"const int i{at} = {plus(at, f'i{at}0', (tap, -axis.dilation))};")
        return _or_zero(emit, gy, dtype, "n", plus((group(b), og), "channel"), (v.oh, v.ow))

    def write(emit: Emit, b: Term, i: Term, j: Term, value: str, width: int) -> None:
        apart(emit, j, ("n", "y", "x"), out)
        at = plus(("y", v.stride[0]), Compound(f"{b} / {px} % {py}")), plus(("x", v.stride[1]), Compound(f"{b} % {px}"))
        tests = [f"{a} < {size}" for a, size, s in zip(at, (v.h, v.w), v.stride, strict=True) if size % s]
        if tests:
            emit(f"if ({' && '.join(tests)}) {{")
        store.write(emit, "n", plus((group(b), cg), i), *at, value, width)
        if tests:
            emit("}")

    a = Operand("a", cg, weight, w.params, True)
    b = Operand("b", v.n * out[0] * out[1], pixel, gy.params, True, across=True)
    p = Product(name, v.groups * py * px, a, b, og * max(axes[0].counts) * max(axes[1].counts), dtype, Results(write, store.params), target,
                owner, extent)
    if p.k == 0:
        return [total(p, 0, None)]
    kernels = gpu_product(p)
    pixels, weights = v.n * v.o * v.oh * v.ow, cg * v.kh * v.kw
    moved = (pixels + v.n * v.c * v.h * v.w + v.o * weights) * dtype.itemsize
    return [replace(kernels[0], flops=2 * pixels * weights, bytes=moved), *kernels[1:]]


def _begin(emit: Emit, axis: Axis) -> None:
    """Emits a phase's first tap along an axis, the pixel of y that it sees from pixel 0, and the number of taps."""
    f, first, at, count = (name.format(axis.name) for name in ("f{}", "k{}0", "i{}0", "t{}"))
    emit(f"const int {first} = {axis.first(f)};")
    emit(f"const int {at} = {axis.at(f, first)};")
    emit(f"const int {count} = {axis.count(f, first)};")


def _by_taps(axis: Axis, text: str, operator: str) -> str:
    """`text` divided by the number of taps, which is one of few: the driver knows better ways for each of them."""
    most, *others = sorted({n for n in axis.counts if n}, reverse=True)

    def by(n: int) -> str:
        return f"{text} {operator} {n}" if n > 1 else text if operator == "/" else "0"

    found = by(most)
    for n in others:
        found = f"t{axis.name} == {n} ? {by(n)} : {found}"
    return found


def weight_grad(name: str, v: Window, dtype: DType, x: Array, gy: Array, store: Store, target: Target, owner: Hashable) -> list[Kernel]:
    """The output channels by the weights of one, added up over the pixels of all images."""
    og, cg, taps_ = v.o // v.groups, v.c // v.groups, (v.kh, v.kw)

    def grad(emit: Emit, b: Term, line: Term, k: Term) -> str:
        apart(emit, k, ("n", "y", "x"), (v.oh, v.ow))
        return gy.load(emit, "n", plus((b, og), line), "y", "x")

    def pixel(emit: Emit, b: Term, line: Term, k: Term) -> str:
        apart(emit, line, ("channel", "ky", "kx"), taps_)
        apart(emit, k, ("n", "y", "x"), (v.oh, v.ow))
        return _windowed(emit, x, dtype, "n", plus((b, cg), "channel"), (v.h, v.w), v.stride, v.dilation, v.padding)

    def write(emit: Emit, b: Term, i: Term, j: Term, value: str, width: int) -> None:
        apart(emit, j, ("channel", "ky", "kx"), taps_)
        store.write(emit, plus((b, og), i), "channel", "ky", "kx", value, width)

    a = Operand("a", og, grad, gy.params, v.groups > 1)
    b = Operand("b", cg * v.kh * v.kw, pixel, x.params, v.groups > 1)
    moved = (v.n * (v.c * v.h * v.w + v.o * v.oh * v.ow) + v.o * cg * v.kh * v.kw) * dtype.itemsize
    return _product(name, v.groups, a, b, v.n * v.oh * v.ow, dtype, Results(write, store.params), target, owner, moved)


def _product(
    name: str, batch: int, a: Operand, b: Operand, k: int, dtype: DType, store: Results, target: Target, owner: Hashable, moved: int
) -> list[Kernel]:
    kernels = gpu_product(Product(name, batch, a, b, k, dtype, store, target, owner))
    return [replace(kernels[0], bytes=moved), *kernels[1:]]


def empty_taps(t: Taps) -> list[Kernel]:
    """Zeros, where there is nothing to add up."""
    (oh, ow), (kh, kw) = t.out, t.size
    emit = Text(t.name, f"{kh}x{kw} taps over {t.c} channels, one output pixel a work-item.", t.store.params, group=None)
    emit(f"const int x = get_global_id(0) % {ow}, y = get_global_id(0) / {ow};")
    emit("const int channel = get_global_id(1), n = get_global_id(2);")
    emit(f"{ctype(t.dtype)} sum = 0;")
    t.store.write(emit, "n", "channel", "y", "x", "sum", 1)
    return [emit.kernel((oh * ow, t.groups * t.o, t.n), None, t.flops, t.bytes, "one output pixel a work-item")]


def empty_weight_grad(name: str, v: Window, dtype: np.dtype[np.generic], store: Store) -> Kernel:
    """Zeros, where there are no pixels."""
    emit = Text(name, f"Gradient by {v.kh}x{v.kw} weights, one weight a work-item.", store.params, group=None)
    emit(f"const int kx = get_global_id(0) % {v.kw}, ky = get_global_id(0) / {v.kw};")
    emit("const int c = get_global_id(1), o = get_global_id(2);")
    emit(f"{ctype(dtype)} sum = 0;")
    store.write(emit, "o", "c", "ky", "kx", "sum", 1)
    moved = (v.n * (v.c * v.h * v.w + v.o * v.oh * v.ow) + v.o * (v.c // v.groups) * v.kh * v.kw) * dtype.itemsize
    return emit.kernel((v.kh * v.kw, v.c // v.groups, v.o), None, 0, moved, "one weight a work-item")
