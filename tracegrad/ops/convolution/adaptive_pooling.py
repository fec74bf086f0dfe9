"""Adaptive and fractional pools: the largest or the mean of as many windows as the output has elements."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import PUBLIC, functional
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays.indexing import gather, take_rows
from tracegrad.ops.arrays.pointwise import floor, ge, lt
from tracegrad.ops.arrays.reductions import ValuesIndices
from tracegrad.ops.arrays.shaping.reordering import movedim
from tracegrad.ops.convolution.convolution import per_dim
from tracegrad.ops.convolution.pooling import export_with_indices
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.reduction import total
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


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
    Aval((*x.shape[:x.ndim - n], *sizes), x.dtype)              # which refuses what no index reaches
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
    refuse_complex(name, x)
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
                  "\n\n    return_indices: their places in the flattened input, too. _random_samples: the draws (N, C, dims), 0 to 1."
                  "\n    dtype: float. Raises ShapeError for other inputs, ArgumentError without output_size and output_ratio."
                  f"\n\n    >>> nn.functional.{name}(tg.rand(1, 1, {', '.join('4' * n)}), 2, output_size=2)\n    ")
    functional(fn)


_fractional_pool("fractional_max_pool2d", 2)
_fractional_pool("fractional_max_pool3d", 3)


@functional
@on_nodes
@rounded_once
def adaptive_avg_pool1d(input: Array, output_size: Any) -> Array:
    """Means over output_size cells of (N, C, L): cell i goes from floor(i L / size) to ceil((i + 1) L / size).

    dtype: float, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.adaptive_avg_pool1d(tg.rand(1, 1, 4), 2)
    """
    return adaptive_average("adaptive_avg_pool1d", 1, input, output_size)


@functional
@on_nodes
@rounded_once
def adaptive_avg_pool2d(input: Array, output_size: Any) -> Array:
    """Means over a grid of output_size (an integer or two; None: the image's) cells of (N, C, H, W); see adaptive_avg_pool1d.

    dtype: float, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.adaptive_avg_pool2d(tg.rand(1, 1, 4, 4), 2)
    """
    return adaptive_average("adaptive_avg_pool2d", 2, input, output_size)


@functional
@on_nodes
@rounded_once
def adaptive_avg_pool3d(input: Array, output_size: Any) -> Array:
    """Means over a grid of output_size (an integer or three; None: the input's) cells of (N, C, D, H, W); see adaptive_avg_pool1d.

    dtype: float, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.adaptive_avg_pool3d(tg.rand(1, 1, 2, 2, 2), 1)
    """
    return adaptive_average("adaptive_avg_pool3d", 3, input, output_size)


@functional
@on_nodes
def adaptive_max_pool1d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of output_size cells of (N, C, L); see adaptive_avg_pool1d. return_indices: its place, too.

    dtype: any real one, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.adaptive_max_pool1d(tg.rand(1, 1, 4), 2)
    """
    return _adaptive_max("adaptive_max_pool1d", 1, input, output_size, return_indices)


@functional
@on_nodes
def adaptive_max_pool2d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each cell of a grid of output_size over (N, C, H, W). return_indices: its place in the flattened image, too.

    dtype: any real one, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.adaptive_max_pool2d(tg.rand(1, 1, 4, 4), 2)
    """
    return _adaptive_max("adaptive_max_pool2d", 2, input, output_size, return_indices)


@functional
@on_nodes
def adaptive_max_pool3d(input: Array, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each cell of a grid of output_size over (N, C, D, H, W). return_indices: its place when flattened, too.

    dtype: any real one, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.adaptive_max_pool3d(tg.rand(1, 1, 2, 2, 2), 1)
    """
    return _adaptive_max("adaptive_max_pool3d", 3, input, output_size, return_indices)


for _name in ("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d"):
    export_with_indices(_name)
