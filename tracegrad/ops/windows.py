"""Sliding windows: the movement primitive Unfold, and the pooling functions.

Windows that do not overlap are a reshape, so that pooling is a reduction and its derivative elementwise. Overlapping ones are Unfold,
whose adjoint is a sum of padded slices, one for each place in the window: no scatter in either.
"""

from __future__ import annotations

from math import prod
from typing import Any

from numpy.lib.stride_tricks import as_strided

from tracegrad import dtypes
from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.function import REGISTRY, Movement, bind, cast, const, iota, refuse_complex
from tracegrad.ir import Aval, Node
from tracegrad.operators import functional, public
from tracegrad.ops import movement as mv
from tracegrad.ops.arguments import on_nodes, one_dim
from tracegrad.ops.convolution import per_dim
from tracegrad.ops.elementwise import where
from tracegrad.ops.pointwise import div
from tracegrad.ops.reduction import total
from tracegrad.ops.statistics import ValuesIndices

Array = Any      # a Node or a Tensor


class Unfold(Movement):
    """The windows of `size` elements, `gap` apart, that start every `step` along `dim`: their number at `dim`, their elements last."""
    name = "unfold"
    cases = [(((7,),), dict(dim=0, size=3, step=2, gap=1)), (((2, 6, 3),), dict(dim=1, size=2, step=1, gap=2))]

    def aval(self, x, *, dim, size, step, gap):
        count = (x.shape[dim] - gap * (size - 1) - 1) // step + 1
        return Aval((*x.shape[:dim], max(0, count), *x.shape[dim + 1:], size), x.dtype)

    def numpy(self, x, *, dim, size, step, gap):
        shape = self.aval(Aval(x.shape, x.dtype), dim=dim, size=size, step=step, gap=gap).shape
        stride = x.strides[dim]
        return as_strided(x, shape, (*x.strides[:dim], stride * step, *x.strides[dim + 1:], stride * gap), writeable=False)

    def vjp(self, ct, y, x, *, dim, size, step, gap): return (overlapped(ct, dim, x.shape[dim], step, gap),)

    def locate(self, index, x, *, dim, size, step, gap):
        return [(0, (*index[:dim], index[dim] * step + index[-1] * gap, *index[dim + 1:-1]), [])]


def overlapped(parts: Node, dim: int, n: int, step: int, gap: int = 1) -> Any:
    """The adjoint of `windows`: the elements of the windows (last dimension) added to the n places along `dim` that they came from."""
    count, out = parts.shape[dim], None
    if count == 0:
        return mv.expand(const(0, parts.dtype), (*parts.shape[:dim], n, *parts.shape[dim + 1:-1]))
    zeros = [0] * (parts.ndim - 1)
    for k in range(parts.shape[-1]):
        part = mv.reshape(mv.narrow(parts, parts.ndim - 1, k, 1), parts.shape[:-1])
        low, high, interior = list(zeros), list(zeros), list(zeros)
        low[dim], high[dim], interior[dim] = k * gap, n - k * gap - (count - 1) * step - 1, step - 1
        part = mv.pad(part, tuple(low), tuple(high), tuple(interior), 0)
        out = part if out is None else out + part
    return out


def windows(x: Node, dim: int, size: int, step: int, gap: int = 1) -> Node:
    """x with its windows along `dim` (their elements last); a reshape if they do not overlap and have no gaps."""
    n = x.shape[dim]
    count = max(0, (n - gap * (size - 1) - 1) // step + 1)
    if size == step and gap == 1:
        x = mv.narrow(x, dim, 0, count * size)
        x = mv.reshape(x, (*x.shape[:dim], count, size, *x.shape[dim + 1:]))
        return mv.permute(x, (*range(dim + 1), *range(dim + 2, x.ndim), dim + 1))
    return bind(REGISTRY["unfold"], (x,), {"dim": dim, "size": size, "step": step, "gap": gap})


@public("unfold")
@on_nodes
def unfold(input: Array, dimension: int, size: int, step: int) -> Array:
    """The windows of `size` elements that start every `step` along the dimension, their elements in a new last dimension."""
    d = one_dim("unfold", dimension, input.ndim)
    x = input if input.ndim else mv.reshape(input, (1,))
    if size < 0 or step < 1 or size > x.shape[d]:
        raise ArgumentError(f"unfold: size {size} and step {step} must be positive, and size at most {x.shape[d]} for {input.shape}")
    if size == 0:
        return mv.expand(mv.narrow(x, d, 0, 0), (*x.shape, 0))
    return windows(x, d, size, step)


# ----------------------------------------------------------------------------------------------------------------- pooling


class _Pool:
    """The arguments of a pooling function, checked, and its input cut into windows."""

    def __init__(self, name: str, n: int, x: Node, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
                 fill: Any) -> None:
        refuse_complex(name, x)
        if x.ndim not in (n + 1, n + 2):
            raise ShapeError(f"{name}: takes an input of {n + 2} dimensions (N, C, spatial) or {n + 1}, got {x.shape}")
        self.kernel = per_dim(name, "kernel_size", kernel, n)
        self.stride = self.kernel if stride is None or stride == [] or stride == () else per_dim(name, "stride", stride, n)
        self.padding = per_dim(name, "padding", padding, n, 0)
        self.dilation = per_dim(name, "dilation", dilation, n)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise ArgumentError(f"{name}: padding {self.padding} must be at most half of the kernel {self.kernel}")
        self.input, self.n, self.lead = x, n, x.ndim - n
        self.size, high = [], []
        for s, k, st, p, d in zip(x.shape[self.lead:], self.kernel, self.stride, self.padding, self.dilation, strict=True):
            room = s + 2 * p - d * (k - 1) - 1
            count = (-(-room // st) if ceil_mode else room // st) + 1
            if ceil_mode and (count - 1) * st >= s + p:      # torch: a last window must start inside the input or the left padding
                count -= 1
            if room < 0 or count < 1:
                raise ShapeError(f"{name}: a window of {self.kernel} (dilation {self.dilation}) is larger than the padded input {x.shape}")
            self.size.append(count)
            high.append(max(p, (count - 1) * st + d * (k - 1) + 1 - s - p))
        self.high = tuple(high)
        self.fill = fill
        self.windows = self._cut(x)

    def _cut(self, x: Node) -> Any:
        """The windows of x: (..., OH, OW, kh, kw)."""
        zeros = (0,) * self.lead
        x = mv.pad(x, (*zeros, *self.padding), (*zeros, *self.high), None, self.fill)
        for i in range(self.n):
            x = windows(x, self.lead + i, self.kernel[i], self.stride[i], self.dilation[i])
            x = mv.narrow(x, self.lead + i, 0, self.size[i])
        return x

    @property
    def dims(self) -> tuple[int, ...]:
        return tuple(range(self.windows.ndim - self.n, self.windows.ndim))


def _max_pool(name: str, n: int, input: Node, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
              return_indices: bool) -> Any:
    largest: Any = REGISTRY["first_max"]
    refuse_complex(name, input)
    p = _Pool(name, n, input, kernel_size, stride, padding, dilation, ceil_mode, largest.identity(input.dtype))
    y = bind(largest, (p.windows,), {"dim": p.dims})
    if not return_indices:
        return y
    # The winner's place in its window, and from it its place in the (flattened) image.
    flat = mv.reshape(p.windows, (*y.shape, prod(p.kernel)))
    place = bind(REGISTRY["argmax"], (flat,), {"dim": y.ndim})
    index: Any = const(0, dtypes.int64)
    for i in range(n):
        inner = prod(p.kernel[i + 1:])
        tap = (place // inner) % p.kernel[i]
        at = iota(y.shape, p.lead + i, dtypes.int64) * p.stride[i] - p.padding[i] + tap * p.dilation[i]
        if p.padding[i]:                                    # among equals of -inf the padding comes first: then the first real element
            at = where(at < 0, at % p.dilation[i], at)
        index = index * input.shape[p.lead + i] + at
    return ValuesIndices(y, index)


@functional
@on_nodes
def max_pool1d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
               return_indices: bool = False) -> Any:
    """The largest of each window of (N, C, L) or (C, L); the gradient goes to the first of equals. stride: kernel_size if None."""
    return _max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@functional
@on_nodes
def max_pool2d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
               return_indices: bool = False) -> Any:
    """The largest of each window of (N, C, H, W) or (C, H, W); the gradient goes to the first of equals. stride: kernel_size if None."""
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(name: str, n: int, input: Node, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
              divisor_override: int | None) -> Any:
    refuse_complex(name, input)
    if input.dtype.kind != "f" and input.dtype != dtypes.int64:
        raise DTypeError(f"{name}: takes floats or int64, got {input.dtype}; use x.float()")
    exact = input.dtype.kind != "f"                         # integers are divided as C does, towards 0, as in torch
    if divisor_override == 0:
        raise ArgumentError(f"{name}: divisor_override must not be 0")
    p = _Pool(name, n, input, kernel_size, stride, padding, 1, ceil_mode, 0)
    y = total(p.windows, p.dims)
    if divisor_override is not None:
        return div(y, divisor_override, rounding_mode="trunc") if exact else y * (1.0 / divisor_override)
    counts = []                                             # how many elements of each window count: per dimension, known now
    for i, s in enumerate(input.shape[p.lead:]):
        low, high = (-p.padding[i], s + p.padding[i]) if count_include_pad else (0, s)
        start = [j * p.stride[i] - p.padding[i] for j in range(p.size[i])]
        counts.append([min(a + p.kernel[i], high) - max(a, low) for a in start])
    if all(count == k for row, k in zip(counts, p.kernel, strict=True) for count in row):
        return div(y, prod(p.kernel), rounding_mode="trunc") if exact else y * (1.0 / prod(p.kernel))
    for i, s in enumerate(input.shape[p.lead:]):
        at = iota((p.size[i],), 0, dtypes.int32) * p.stride[i] - p.padding[i]
        low, high = (-p.padding[i], s + p.padding[i]) if count_include_pad else (0, s)
        limit = REGISTRY["minimum"], REGISTRY["maximum"]
        count = limit[0](at + p.kernel[i], high) - limit[1](at, low)
        count = mv.reshape(cast(count, y.dtype), (p.size[i], *[1] * (n - 1 - i)))
        y = div(y, count, rounding_mode="trunc" if exact else None)
    return y


@functional
@on_nodes
def avg_pool1d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Array:
    """The mean of each window of (N, C, L) or (C, L). stride: kernel_size if None."""
    return _avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


@functional
@on_nodes
def avg_pool2d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Array:
    """The mean of each window of (N, C, H, W) or (C, H, W). stride: kernel_size if None."""
    return _avg_pool("avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
