"""The GPU kernels of convolutions: one result a work-item, bounds tested in the loop, fused loads in place. Also for empty sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tracegrad.codegen.conv.problem import Array, Store, Taps, Window
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.text import Text, merge
from tracegrad.codegen.kernel.vectors import ctype, plus


@contextmanager
def _inside(emit: Text, t: Taps, pixel: str, k: str, size: int, axis: int) -> Iterator[str]:
    """The loop over the taps `k` of one axis whose pixel, `ix` or `iy`, is in the image."""
    with emit.counting(k, size) as tap:
        emit(f"const int i{pixel} = {plus((pixel, t.stride[axis]), (tap, t.dilation[axis]), -t.padding[axis])};")
        emit(f"if (i{pixel} >= 0 && i{pixel} < {t.image[axis]}) {{")
        yield tap
        emit("}")


def taps(t: Taps) -> list[Kernel]:
    """One output pixel a work-item."""
    empty = t.c * t.size[0] * t.size[1] == 0
    operands = [] if empty else [t.x.params, t.w.params]
    params = merge(*operands, t.store.params)
    (oh, ow), (kh, kw) = t.out, t.size
    emit = Text(t.name, f"{kh}x{kw} taps over {t.c} channels, one output pixel a work-item.", params, None)
    emit(f"const int x = get_global_id(0) % {ow}, y = get_global_id(0) / {ow};")
    emit("const int channel = get_global_id(1), n = get_global_id(2);")
    emit(f"{ctype(t.dtype)} sum = 0;")
    if not empty:
        emit(f"const int g = channel / {t.o}, o = channel % {t.o};")
        with emit.counting("c", t.c) as c, _inside(emit, t, "y", "ky", kh, 0) as ky, _inside(emit, t, "x", "kx", kw, 1) as kx:
            value = t.x.load(emit, "n", plus(("g", t.c), c), "iy", "ix")
            weight = t.w.load(emit, "g", "o", c, ky, kx)
            emit(f"sum += {value} * {weight};")
    t.store.write(emit, "n", "channel", "y", "x", "sum", 1)
    return [emit.kernel((oh * ow, t.groups * t.o, t.n), None, t.flops, t.bytes, "one output pixel a work-item")]


def weight_grad(name: str, v: Window, dtype: np.dtype[np.generic], x: Array, gy: Array, store: Store) -> Kernel:
    """One weight a work-item."""
    operands = [x.params, gy.params] if v.n * v.oh * v.ow else []
    params = merge(*operands, store.params)
    emit = Text(name, f"Gradient by {v.kh}x{v.kw} weights, one weight a work-item.", params, None)
    emit(f"const int kx = get_global_id(0) % {v.kw}, ky = get_global_id(0) / {v.kw};")
    emit("const int c = get_global_id(1), o = get_global_id(2);")
    emit(f"{ctype(dtype)} sum = 0;")
    if operands:
        emit(f"const int channel = {plus((f'o / {v.o // v.groups}', v.c // v.groups), 'c')};")
        emit(f"for (int n = 0; n < {v.n}; n++) {{")
        for k, pixel, size, image, axis in (("ky", "y", v.oh, v.h, 0), ("kx", "x", v.ow, v.w, 1)):
            emit(f"for (int {pixel} = 0; {pixel} < {size}; {pixel}++) {{")
            emit(f"const int i{pixel} = {plus((pixel, v.stride[axis]), (k, v.dilation[axis]), -v.padding[axis])};")
            emit(f"if (i{pixel} >= 0 && i{pixel} < {image}) {{")
        value = x.load(emit, "n", "channel", "iy", "ix")
        grad = gy.load(emit, "n", "o", "y", "x")
        emit(f"sum += {value} * {grad};")
        for _ in range(5):
            emit("}")
    store.write(emit, "o", "c", "ky", "kx", "sum", 1)
    flops = 2 * v.n * v.o * v.oh * v.ow * (v.c // v.groups) * v.kh * v.kw
    moved = (v.n * (v.c * v.h * v.w + v.o * v.oh * v.ow) + v.o * (v.c // v.groups) * v.kh * v.kw) * dtype.itemsize
    return emit.kernel((v.kh * v.kw, v.c // v.groups, v.o), None, flops, moved, "one weight a work-item")
