"""Pools: the largest, mean or power mean of windows, adaptive and fractional; max_unpool; unfold and fold of images. Start at `_Pool`."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.families import refuse_complex
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, functional
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import gather, scatter_rows, take_rows
from tracegrad.ops.arrays.pointwise import div, eq, floor, ge, lt
from tracegrad.ops.arrays.pointwise import pow as power
from tracegrad.ops.arrays.reductions import ValuesIndices
from tracegrad.ops.arrays.shaping import full_like_shape, movedim
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
            if room < 0 or count < 1:
                raise ShapeError(f"{name}: a window of {self.kernel} (dilation {self.dilation}) is larger than the padded input {x.shape}")
            size.append(count)
        self.size = tuple(size)

    def total(self, x: Node) -> Any:
        """The sum of each window of x: (..., *size)."""
        high = [max(p, (o - 1) * st + k - s - p) for o, s, k, st, p in
                zip(self.size, x.shape[self.lead:], self.kernel, self.stride, self.padding, strict=True)]
        zeros = (0,) * self.lead
        x = mv.pad(x, (*zeros, *self.padding), (*zeros, *high), None, 0)
        for i in range(self.n):
            x = windows(x, self.lead + i, self.kernel[i], self.stride[i])
            x = mv.narrow(x, self.lead + i, 0, self.size[i])
        return total(x, tuple(range(x.ndim - self.n, x.ndim)))


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
    if dtype_kind(input.dtype) != "f" and input.dtype != dtypes.int64:
        raise DTypeError(f"{name}: takes floats or int64, got {input.dtype}; use x.float()")
    exact = dtype_kind(input.dtype) != "f"                         # integers are divided as C does, towards 0, as in torch
    if divisor_override == 0:
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
    """The mean of each window of (N, C, L) or (C, L). stride: kernel_size if None."""
    return _avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


@functional
@on_nodes
@rounded_once
def avg_pool2d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Array:
    """The mean of each window of (N, C, H, W) or (C, H, W). stride: kernel_size if None."""
    return _avg_pool("avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@functional
@on_nodes
def max_pool3d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
               return_indices: bool = False) -> Any:
    """The largest of each window of (N, C, D, H, W) or (C, D, H, W), see max_pool2d. stride: kernel_size if None."""
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@functional
@on_nodes
@rounded_once
def avg_pool3d(input: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None) -> Array:
    """The mean of each window of (N, C, D, H, W) or (C, D, H, W). stride: kernel_size if None."""
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
    """(The sum of x^p over each window of (N, C, L))^(1/p), p = norm_type."""
    return _power_pool("lp_pool1d", 1, input, float(norm_type), kernel_size, stride, ceil_mode)


@functional
@on_nodes
@rounded_once
def lp_pool2d(input: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Array:
    """(The sum of x^p over each window of (N, C, H, W))^(1/p), p = norm_type."""
    return _power_pool("lp_pool2d", 2, input, float(norm_type), kernel_size, stride, ceil_mode)


@functional
@on_nodes
@rounded_once
def lp_pool3d(input: Array, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Array:
    """(The sum of x^p over each window of (N, C, D, H, W))^(1/p), p = norm_type."""
    return _power_pool("lp_pool3d", 3, input, float(norm_type), kernel_size, stride, ceil_mode)


# ----------------------------------------------------------------------------------------------------------------- adaptive


def _cells(name: str, n: int, x: Node, output_size: Any) -> tuple[int, ...]:
    """The sizes of the grid of cells; None keeps the input's."""
    if x.ndim not in (n + 1, n + 2):
        raise ShapeError(f"{name}: takes an input of {n + 2} dimensions (N, C, spatial) or {n + 1}, got {x.shape}")
    image = x.shape[x.ndim - n:]
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * n
    if len(given) != n:
        raise ArgumentError(f"{name}: output_size must be an integer or {n} of them, got {output_size!r}")
    sizes = tuple(s if o is None else per_dim(name, "output_size", o, 1, 0)[0] for o, s in zip(given, image, strict=True))
    if 0 in image:
        raise ShapeError(f"{name}: the input {x.shape} has nothing to pool")
    return sizes


def _bounds(size: int, cells: int) -> tuple[Any, Any]:
    """Where the cells start and end: floor(i size / cells) and ceil((i + 1) size / cells)."""
    i = iota((cells,), 0)
    return i * size // cells, ((i + 1) * size + (cells - 1)) // cells


def _average_along(x: Node, d: int, cells: int) -> Any:
    """Means over `cells` cells along d. After n / gcd(n, cells) elements their sizes repeat, so that many sums are written out.

    (No product with a matrix of weights: 0 times the inf or NaN of another cell is NaN.)
    """
    n = x.shape[d]
    if cells in (0, n):
        return mv.narrow(x, d, 0, cells)
    rounds = gcd(n, cells)
    n, cells = n // rounds, cells // rounds
    x = mv.reshape(x, (*x.shape[:d], rounds, n, *x.shape[d + 1:]))
    means = []
    for i in range(cells):
        start, stop = i * n // cells, -(-(i + 1) * n // cells)
        mean = total(mv.narrow(x, d + 1, start, stop - start), (d + 1,)) * (1.0 / (stop - start))
        means.append(mv.reshape(mean, (*x.shape[:d + 1], 1, *x.shape[d + 2:])))
    return mv.reshape(mv.concat(means, d + 1), (*x.shape[:d], rounds * cells, *x.shape[d + 2:]))


def adaptive_average(name: str, n: int, x: Node, output_size: Any) -> Any:
    """Means over a grid of cells of the last n dimensions."""
    refuse_complex(name, x)
    if dtype_kind(x.dtype) != "f":
        raise DTypeError(f"{name}: takes a float tensor, got {x.dtype}; use x.float()")
    sizes = _cells(name, n, x, output_size)
    y: Any = x
    for i, cells in enumerate(sizes):
        y = _average_along(y, x.ndim - n + i, cells)
    return y


def _adaptive_max(name: str, n: int, x: Node, output_size: Any, return_indices: bool) -> Any:
    sizes = _cells(name, n, x, output_size)
    lead = x.ndim - n
    largest: Any = REGISTRY["first_max"]
    lowest = const(largest.identity(x.dtype), x.dtype)
    y: Any = x
    taps, starts = [], []
    for i, cells in enumerate(sizes):                           # (..., size, ...) -> (..., cells, taps, ...)
        d, s = lead + 2 * i, x.shape[lead + i]
        start, end = _bounds(s, cells)
        k = max((-(-(c + 1) * s // cells) - c * s // cells for c in range(cells)), default=1)
        place = mv.reshape(start, (cells, 1)) + iota((cells, k), 1)
        inside = lt(place, mv.reshape(end, (cells, 1)))
        rows = take_rows(movedim(y, d, 0), where(inside, place, 0))
        y = movedim(rows, (0, 1), (d, d + 1))
        shape = (1,) * d + (cells, k) + (1,) * (y.ndim - d - 2)
        y = where(mv.reshape(inside, shape), y, lowest)
        taps.append(k)
        starts.append(start)
    order = (*range(lead), *(lead + 2 * i for i in range(n)), *(lead + 2 * i + 1 for i in range(n)))
    grouped = mv.permute(y, order)
    best = bind(largest, (grouped,), {"dim": tuple(range(lead + n, lead + 2 * n))})
    if not return_indices:
        return best
    tap: Any = bind(REGISTRY["argmax"], (mv.reshape(grouped, (*best.shape, prod(taps))),), {"dim": best.ndim})
    index: Any = const(0, dtypes.int64)
    for i in range(n):
        at = mv.reshape(starts[i], tuple(sizes[i] if d == lead + i else 1 for d in range(best.ndim)))
        index = index * x.shape[lead + i] + at + tap // prod(taps[i + 1:]) % taps[i]
    return ValuesIndices(best, index)


def _fractional(name: str, n: int, x: Node, kernel: Any, output_size: Any, samples: Node, return_indices: bool) -> Any:
    if x.ndim not in (n + 1, n + 2):
        raise ShapeError(f"{name}: takes an input of {n + 2} dimensions (N, C, spatial) or {n + 1}, got {x.shape}")
    sizes, kernels = per_dim(name, "output_size", output_size, n), per_dim(name, "kernel_size", kernel, n)
    lead, spatial = x.shape[:x.ndim - n], x.shape[x.ndim - n:]
    if any(k + o - 1 > s for k, o, s in zip(kernels, sizes, spatial, strict=True)):
        raise ShapeError(f"{name}: {sizes} windows of {kernels} do not fit into {spatial}")
    expected = (lead[0] if len(lead) == 2 else 1, lead[-1], n)
    if samples.shape != expected:
        raise ShapeError(f"{name}: _random_samples {samples.shape} must be {expected}")
    planes = prod(lead)
    draws = mv.reshape(cast(samples, x.dtype), (planes, n))
    index: Any = const(0, dtypes.int64)
    for i, (o, k, s) in enumerate(zip(sizes, kernels, spatial, strict=True)):
        u = mv.reshape(mv.narrow(draws, 1, n - 1 - i if n == 2 else i, 1), (planes, 1))         # (torch draws for W before H)
        alpha = (s - k) / max(1, o - 1)
        at = iota((planes, o), 1)
        start = cast(floor((cast(at, x.dtype) + u) * alpha), dtypes.int64) - cast(floor(u * alpha), dtypes.int64)
        start = where(ge(at, o - 1), s - k, start)                                              # the last one ends at the edge
        place = mv.reshape(start, (planes, o, 1)) + iota((planes, o, k), 2)
        place = mv.reshape(place, (planes, *(o if j == i else 1 for j in range(n)), *(k if j == i else 1 for j in range(n))))
        index = index * s + place
    index = mv.expand(index, (planes, *sizes, *kernels))
    index = mv.reshape(index, (planes, prod(sizes), prod(kernels)))
    flat = mv.reshape(x, (planes, prod(spatial)))
    values = mv.reshape(gather(flat, 1, mv.reshape(index, (planes, prod(sizes) * prod(kernels)))), index.shape)
    tap = bind(REGISTRY["argmax"], (values,), {"dim": 2})
    where_ = gather(index, 2, mv.reshape(tap, (*tap.shape, 1)))
    found = gather(values, 2, mv.reshape(tap, (*tap.shape, 1)))
    shape = (*lead, *sizes)
    return ValuesIndices(mv.reshape(found, shape), mv.reshape(where_, shape)) if return_indices else mv.reshape(found, shape)


def _fractional_pool(name: str, n: int) -> None:
    def fn(input: Array, kernel_size: Any, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
           _random_samples: Array = None) -> Any:
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(f"{name}: give output_size or output_ratio, and not both")
        if input.ndim not in (n + 1, n + 2) or dtype_kind(input.dtype) != "f":
            raise ShapeError(f"{name}: takes floats of {n + 2} dimensions (N, C, spatial) or {n + 1}, got {input.dtype}{list(input.shape)}")
        if output_ratio is not None:
            ratios = tuple(output_ratio) if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * n
            if len(ratios) != n or any(not 0 < r < 1 for r in ratios):
                raise ArgumentError(f"{name}: output_ratio must be between 0 and 1, one number or {n} of them, got {output_ratio!r}")
            output_size = tuple(int(s * r) for s, r in zip(input.shape[-n:], ratios, strict=True))
        if _random_samples is None:
            batch = 1 if input.ndim == n + 1 else input.shape[0]
            _random_samples = PUBLIC["rand"]((batch, input.shape[-n - 1], n), dtype=input.dtype, device=input.device)
        return _drawn(input, _random_samples, kernel_size, output_size, return_indices)

    @on_nodes
    def _drawn(input: Array, samples: Array, kernel_size: Any, output_size: Any, return_indices: bool) -> Any:
        return _fractional(name, n, input, kernel_size, output_size, samples, return_indices)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = ("The largest of each of output_size windows (or output_ratio times the input's size), at random places (Graham 2014)."
                  "\n\n    return_indices: their places in the flattened input, too. _random_samples: the draws (N, C, dims), 0 to 1.")
    functional(fn)


_fractional_pool("fractional_max_pool2d", 2)
_fractional_pool("fractional_max_pool3d", 3)


@functional
@on_nodes
@rounded_once
def adaptive_avg_pool1d(input: Array, output_size: Any) -> Array:
    """Means over output_size cells of (N, C, L): cell i goes from floor(i L / size) to ceil((i + 1) L / size)."""
    return adaptive_average("adaptive_avg_pool1d", 1, input, output_size)


@functional
@on_nodes
@rounded_once
def adaptive_avg_pool2d(input: Array, output_size: Any) -> Array:
    """Means over a grid of output_size (an integer or two; None: the image's) cells of (N, C, H, W); see adaptive_avg_pool1d."""
    return adaptive_average("adaptive_avg_pool2d", 2, input, output_size)


@functional
@on_nodes
@rounded_once
def adaptive_avg_pool3d(input: Array, output_size: Any) -> Array:
    """Means over a grid of output_size (an integer or three; None: the input's) cells of (N, C, D, H, W); see adaptive_avg_pool1d."""
    return adaptive_average("adaptive_avg_pool3d", 3, input, output_size)


@functional
@on_nodes
def adaptive_max_pool1d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of output_size cells of (N, C, L); see adaptive_avg_pool1d. return_indices: its place, too."""
    return _adaptive_max("adaptive_max_pool1d", 1, input, output_size, return_indices)


@functional
@on_nodes
def adaptive_max_pool2d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each cell of a grid of output_size over (N, C, H, W). return_indices: its place in the flattened image, too."""
    return _adaptive_max("adaptive_max_pool2d", 2, input, output_size, return_indices)


@functional
@on_nodes
def adaptive_max_pool3d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each cell of a grid of output_size over (N, C, D, H, W). return_indices: its place when flattened, too."""
    return _adaptive_max("adaptive_max_pool3d", 3, input, output_size, return_indices)


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
    """The inverse of max_pool1d, from its values and indices: zero wherever no maximum was."""
    return _unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


@functional
@on_nodes
def max_unpool2d(input: Array, indices: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Array:
    """The inverse of max_pool2d, from its values and indices: zero wherever no maximum was."""
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


@functional
@on_nodes
def max_unpool3d(input: Array, indices: Array, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None) -> Array:
    """The inverse of max_pool3d, from its values and indices: zero wherever no maximum was."""
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
    """The patches of images (N, C, H, W) or (C, H, W) as columns: (N, C kh kw, number of patches). x.unfold cuts along one dimension."""
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
    """The adjoint of unfold: patches (N, C kh kw, L) or (C kh kw, L) added up where they came from, in images of output_size."""
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


def _with_indices(name: str) -> None:
    whole = FUNCTIONAL[name]

    def fn(*args: Any, **kwargs: Any) -> Any:
        return whole(*args, **{**kwargs, "return_indices": True})

    fn.__name__ = fn.__qualname__ = f"{name}_with_indices"
    fn.__doc__ = f"`{name}` with return_indices=True."
    functional(fn)


for _name in ("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d",
              "max_pool1d", "max_pool2d", "max_pool3d"):
    _with_indices(_name)
