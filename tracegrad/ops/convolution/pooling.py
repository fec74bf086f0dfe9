"""Pools: the largest, mean or power mean of windows; max_unpool; unfold and fold of images. Start at `_Pool`."""

from __future__ import annotations

from functools import wraps
from inspect import unwrap
from math import prod
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import FUNCTIONAL, functional
from tracegrad.graph.primitive import REGISTRY, bind, cast, iota
from tracegrad.ops.arguments import integer, on_nodes, rounded_once
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import scatter_rows
from tracegrad.ops.arrays.pointwise import div, eq
from tracegrad.ops.arrays.pointwise import pow as power
from tracegrad.ops.arrays.reductions import WRITTEN_OUT, ValuesIndices
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.convolution.convolution import out_size, per_dim
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.reduction import total
from tracegrad.ops.primitives.windows import overlapped, windows
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


class _Pool:
    """The arguments of a pooling function, checked. size: how many windows there are."""

    def __init__(self, name: str, n: int, x: Node, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> None:
        if x.ndim not in (n + 1, n + 2):
            raise ShapeError(f"{name}: takes an input of {n + 2} dimensions (N, C, spatial) or {n + 1}, got {x.shape}")
        self.kernel = per_dim(name, "kernel_size", kernel, n)
        self.stride = self.kernel if stride is None or stride == [] or stride == () else per_dim(name, "stride", stride, n)
        self.padding = per_dim(name, "padding", padding, n, 0)
        self.dilation = per_dim(name, "dilation", dilation, n)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise ArgumentError(f"{name}: padding {self.padding} must be at most half of the kernel {self.kernel}")
        self.n, self.lead = n, x.ndim - n
        size = []
        for s, k, st, p, d in zip(x.shape[self.lead:], self.kernel, self.stride, self.padding, self.dilation, strict=True):
            room = s + 2 * p - d * (k - 1) - 1
            count = (-(-room // st) if ceil_mode else room // st) + 1
            if ceil_mode and (count - 1) * st >= s + p:      # torch: a last window must start inside the input or the left padding
                count -= 1
            beyond = ceil_mode and (d == 1 or not p)         # a window may be larger, as in torch, where it surely has an element
            if (room < 0 and not beyond) or count < 1:
                raise ShapeError(f"{name}: a window of {self.kernel} (dilation {self.dilation}) is larger than the padded input {x.shape}")
            size.append(count)
        self.size = tuple(size)

    def total(self, x: Node) -> Any:
        """The sum of each window of x: (..., *size). Of large ones that overlap dimension by dimension, for all that share a part."""
        high = [max(p, (o - 1) * st + k - s - p) for o, s, k, st, p in
                zip(self.size, x.shape[self.lead:], self.kernel, self.stride, self.padding, strict=True)]
        zeros = (0,) * self.lead
        x = mv.pad(x, (*zeros, *self.padding), (*zeros, *high), None, 0)
        for i in range(self.n):
            x = windows(x, self.lead + i, self.kernel[i], self.stride[i])
            x = mv.narrow(x, self.lead + i, 0, self.size[i])
            if self.kernel[i] > self.stride[i] and prod(self.kernel) > WRITTEN_OUT:
                x = total(x, (x.ndim - 1,))
        left = tuple(range(self.lead + self.n, x.ndim))
        return total(x, left) if left else x


def _max_pool(name: str, n: int, input: Node, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
              return_indices: bool) -> Any:
    refuse_complex(name, input)
    p = _Pool(name, n, input, kernel_size, stride, padding, dilation, ceil_mode)
    image, planes = input.shape[p.lead:], prod(input.shape[:p.lead])
    attrs = {"kernel": p.kernel, "stride": p.stride, "padding": p.padding, "dilation": p.dilation, "image": image, "size": p.size}
    x = mv.reshape(input, (planes, *image))

    def found(op: str) -> Any:
        return mv.reshape(bind(REGISTRY[op], (x,), attrs), (*input.shape[:p.lead], *p.size))

    return ValuesIndices(found("max_pool"), cast(found("max_pool_places"), dtypes.int64)) if return_indices else found("max_pool")


@functional
@on_nodes
def max_pool1d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
               return_indices: bool = False) -> Any:
    """The largest of each window of (N, C, L) or (C, L); the gradient goes to the first of equals. stride: kernel_size if None.

    dtype: any real one, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.max_pool1d(tg.rand(1, 1, 4), 2)
    """
    return _max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@functional
@on_nodes
def max_pool2d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
               return_indices: bool = False) -> Any:
    """The largest of each window of (N, C, H, W) or (C, H, W); the gradient goes to the first of equals. stride: kernel_size if None.

    dtype: any real one, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.max_pool2d(tg.rand(1, 1, 4, 4), 2)
    """
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(name: str, n: int, input: Node, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
              divisor_override: int | None) -> Any:
    if dtype_kind(input.dtype) != "f" and input.dtype != dtypes.int64:
        raise DTypeError(f"{name}: takes floats or int64, got {input.dtype}; use x.float()")
    exact = dtype_kind(input.dtype) != "f"                         # integers are divided as C does, towards 0, as in torch
    if divisor_override is not None and integer(name, "divisor_override", divisor_override) == 0:
        raise ArgumentError(f"{name}: divisor_override must not be 0")
    p = _Pool(name, n, input, kernel_size, stride, padding, 1, ceil_mode)
    y = p.total(input)
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
@rounded_once
def avg_pool1d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Array:
    """The mean of each window of (N, C, L) or (C, L). stride: kernel_size if None.

    dtype: float or int64, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.avg_pool1d(tg.rand(1, 1, 4), 2)
    """
    return _avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


@functional
@on_nodes
@rounded_once
def avg_pool2d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Array:
    """The mean of each window of (N, C, H, W) or (C, H, W). stride: kernel_size if None.

    dtype: float or int64, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.avg_pool2d(tg.rand(1, 1, 4, 4), 2)
    """
    return _avg_pool("avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@functional
@on_nodes
def max_pool3d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
               return_indices: bool = False) -> Any:
    """The largest of each window of (N, C, D, H, W) or (C, D, H, W), see max_pool2d. stride: kernel_size if None.

    dtype: any real one, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.max_pool3d(tg.rand(1, 1, 2, 2, 2), 2)
    """
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@functional
@on_nodes
@rounded_once
def avg_pool3d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Array:
    """The mean of each window of (N, C, D, H, W) or (C, D, H, W). stride: kernel_size if None.

    dtype: float or int64, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.avg_pool3d(tg.rand(1, 1, 2, 2, 2), 2)
    """
    return _avg_pool("avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _power_pool(name: str, n: int, x: Node, p: float, kernel: Any, stride: Any, ceil_mode: bool) -> Any:
    sizes = per_dim(name, "kernel_size", kernel, n)
    y = _avg_pool(name, n, power(x, p), sizes, stride, 0, ceil_mode, True, None)
    nothing = eq(y, 0.0)                                       # there the root has no derivative; torch's is 0
    return where(nothing, 0.0, power(where(nothing, 1.0, y) * float(prod(sizes)), 1.0 / p))


@functional
@on_nodes
@rounded_once
def lp_pool1d(input: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Array:
    """(The sum of x^p over each window of (N, C, L))^(1/p), p = norm_type.

    dtype: real; of integers and bools the default float one. Raises ShapeError for other shapes.

    >>> nn.functional.lp_pool1d(tg.rand(1, 1, 4), 2, 2)
    """
    return _power_pool("lp_pool1d", 1, input, float(norm_type), kernel_size, stride, ceil_mode)


@functional
@on_nodes
@rounded_once
def lp_pool2d(input: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Array:
    """(The sum of x^p over each window of (N, C, H, W))^(1/p), p = norm_type.

    dtype: real; of integers and bools the default float one. Raises ShapeError for other shapes.

    >>> nn.functional.lp_pool2d(tg.rand(1, 1, 4, 4), 2, 2)
    """
    return _power_pool("lp_pool2d", 2, input, float(norm_type), kernel_size, stride, ceil_mode)


@functional
@on_nodes
@rounded_once
def lp_pool3d(input: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Array:
    """(The sum of x^p over each window of (N, C, D, H, W))^(1/p), p = norm_type.

    dtype: real; of integers and bools the default float one. Raises ShapeError for other shapes.

    >>> nn.functional.lp_pool3d(tg.rand(1, 1, 2, 2, 2), 2, 2)
    """
    return _power_pool("lp_pool3d", 3, input, float(norm_type), kernel_size, stride, ceil_mode)


# ------------------------------------------------------------------------------------------------------------------- unpool


def _unpool(name: str, n: int, x: Node, indices: Node, kernel: Any, stride: Any, padding: Any, output_size: Any) -> Any:
    if x.ndim not in (n + 1, n + 2) or indices.shape != x.shape:
        raise ShapeError(f"{name}: takes an input of {n + 2} or {n + 1} dimensions and indices of its shape, got {x.shape} and "
                         f"{indices.shape}")
    sizes = per_dim(name, "kernel_size", kernel, n)
    steps = sizes if stride is None else per_dim(name, "stride", stride, n)
    edges = per_dim(name, "padding", padding, n, 0)
    lead = x.ndim - n
    usual = tuple((s - 1) * st - 2 * p + k for s, st, p, k in zip(x.shape[lead:], steps, edges, sizes, strict=True))
    if output_size is None:
        size = usual
    else:
        size = tuple(int(s) for s in output_size)[-n:]
        if len(size) != n or any(not u - st < s < u + st for s, u, st in zip(size, usual, steps, strict=True)):
            raise ShapeError(f"{name}: output_size {tuple(output_size)} must be within a stride {steps} of {usual}")
    images, pixels, room = prod(x.shape[:lead]), prod(x.shape[lead:]), prod(size)
    place = in_range(mv.reshape(indices, (images, pixels)), room, name, "indices", f"an output of {size}")
    place = place + mv.reshape(iota((images,), 0, place.dtype), (images, 1)) * room
    flat = scatter_rows("scatter_set", full_like_shape((images * room,), 0, x.dtype), mv.reshape(place, (images * pixels,)),
                        mv.reshape(x, (images * pixels,)))
    return mv.reshape(flat, (*x.shape[:lead], *size))


@functional
@on_nodes
def max_unpool1d(input: Array, indices: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Array:
    """The inverse of max_pool1d, from its values and indices: zero wherever no maximum was.

    Of the shapes that max_pool1d gives. dtype: real; indices: integers, else DTypeError.

    >>> nn.functional.max_unpool1d(tg.tensor([[[5.0, 6.0]]]), tg.tensor([[[0, 3]]]), 2)
    """
    return _unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


@functional
@on_nodes
def max_unpool2d(input: Array, indices: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Array:
    """The inverse of max_pool2d, from its values and indices: zero wherever no maximum was.

    Of the shapes that max_pool2d gives. dtype: real; indices: integers, else DTypeError.

    >>> nn.functional.max_unpool2d(tg.tensor([[[[5.0]]]]), tg.tensor([[[[3]]]]), 2)
    """
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


@functional
@on_nodes
def max_unpool3d(input: Array, indices: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Array:
    """The inverse of max_pool3d, from its values and indices: zero wherever no maximum was.

    Of the shapes that max_pool3d gives. dtype: real; indices: integers, else DTypeError.

    >>> nn.functional.max_unpool3d(tg.ones(1, 1, 1, 1, 1), tg.tensor([[[[[7]]]]]), 2)
    """
    return _unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)


# ----------------------------------------------------------------------------------------------------------- unfold and fold


class _Patches:
    """The arguments of unfold and fold, checked."""

    def __init__(self, name: str, kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
        self.name = name
        self.kernel, self.gaps = per_dim(name, "kernel_size", kernel, 2), per_dim(name, "dilation", dilation, 2)
        self.edges, self.steps = per_dim(name, "padding", padding, 2, 0), per_dim(name, "stride", stride, 2)

    def counts(self, image: tuple[int, ...]) -> tuple[int, ...]:
        each = zip(image, self.kernel, self.steps, self.edges, self.gaps, strict=True)
        found = tuple(out_size(s, k, step, (p, p), gap) for s, k, step, p, gap in each)
        if min(found) < 1:
            raise ShapeError(f"{self.name}: a kernel of {self.kernel} (dilation {self.gaps}) is larger than the image {image} with padding "
                             f"{self.edges}")
        return found


@functional
@on_nodes
def unfold(input: Array, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    """The patches of images (N, C, H, W) or (C, H, W) as columns: (N, C kh kw, number of patches). x.unfold cuts along one dimension.

    Any dtype. Raises ShapeError for other shapes.

    >>> nn.functional.unfold(tg.rand(1, 1, 3, 3), 2)
    """
    if input.ndim not in (3, 4):
        raise ShapeError(f"unfold: takes images (N, C, H, W) or (C, H, W), got {input.shape}")
    patches = _Patches("unfold", kernel_size, dilation, padding, stride)
    x = input if input.ndim == 4 else mv.reshape(input, (1, *input.shape))
    counts = patches.counts(x.shape[2:])
    x = mv.pad(x, (0, 0, *patches.edges), (0, 0, *patches.edges))
    for i in range(2):
        x = windows(x, 2 + i, patches.kernel[i], patches.steps[i], patches.gaps[i])
        x = mv.narrow(x, 2 + i, 0, counts[i])
    n, c = x.shape[:2]
    y = mv.reshape(mv.permute(x, (0, 1, 4, 5, 2, 3)), (n, c * prod(patches.kernel), prod(counts)))
    return y if input.ndim == 4 else mv.reshape(y, y.shape[1:])


@functional
@on_nodes
def fold(input: Array, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    """The adjoint of unfold: patches (N, C kh kw, L) or (C kh kw, L) added up where they came from, in images of output_size.

    Any dtype. Raises ShapeError for other shapes.

    >>> nn.functional.fold(tg.ones(1, 4, 4), (3, 3), 2)
    """
    patches = _Patches("fold", kernel_size, dilation, padding, stride)
    size = per_dim("fold", "output_size", output_size, 2)
    counts, taps = patches.counts(size), prod(patches.kernel)
    if input.ndim not in (2, 3) or input.shape[-2] % taps or input.shape[-1] != prod(counts):
        raise ShapeError(f"fold: takes (N, a multiple of {taps}, {prod(counts)}) for output_size {size} and kernel_size {patches.kernel}, "
                         f"got {input.shape}")
    n, c = input.shape[0] if input.ndim == 3 else 1, input.shape[-2] // taps
    x: Any = mv.permute(mv.reshape(input, (n, c, *patches.kernel, *counts)), (0, 1, 4, 5, 2, 3))
    for i in (1, 0):
        x = overlapped(x, 2 + i, size[i] + 2 * patches.edges[i], patches.steps[i], patches.gaps[i])
    for i in range(2):
        x = mv.narrow(x, 2 + i, patches.edges[i], size[i])
    return x if input.ndim == 3 else mv.reshape(x, x.shape[1:])


def export_with_indices(name: str) -> None:
    """Export the pool `name` under torch's second name, too: the one that returns indices."""
    whole = FUNCTIONAL[name]
    place = unwrap(whole).__code__.co_varnames.index("return_indices")

    @wraps(whole)
    def fn(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            return whole(*args[:place], True, *args[place + 1:], **kwargs)
        return whole(*args, **{**kwargs, "return_indices": True})

    fn.__name__ = fn.__qualname__ = f"{name}_with_indices"
    sizes, windows = ", ".join("4" * int(name[-2])), "2, 2" if name.startswith("fractional") else "2"
    fn.__doc__ = f"""`{name}` with return_indices=True: values of input's dtype and int64 indices, of one shape; raises what that raises.

    >>> values, indices = nn.functional.{name}_with_indices(tg.rand(1, 1, {sizes}), {windows})
    """
    functional(fn)


for _name in ("max_pool1d", "max_pool2d", "max_pool3d"):
    export_with_indices(_name)
