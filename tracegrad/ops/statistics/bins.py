"""Values counted in bins: searchsorted, bucketize, histc, histogram, histogramdd."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import by_value, common_dtype, refuse_complex
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import cast, const, iota
from tracegrad.ops.arguments import integer, on_nodes
from tracegrad.ops.arrays.indexing import gather, scatter_rows, take_rows
from tracegrad.ops.arrays.pointwise import detach, eq, floor, ge, le, lt, ne
from tracegrad.ops.arrays.reductions import amax, amin, sum_
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


COMPARED = 64    # up to so many boundaries, searchsorted compares with each: one kernel


# ------------------------------------------------------------------------------------------------------------------- bins


@public("searchsorted", method=False)
@on_nodes
def searchsorted(sorted_sequence: Array, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
                 sorter: Array = None) -> Array:
    """Where each value of input would be put into sorted_sequence (the last dimension; one for all, or one for each row of input).

    Before equal elements, or with right=True (side="right") behind them. sorter: the indices that sort sorted_sequence.
    Returns int64 (out_int32: int32) of input's shape. NaN goes behind all. Raises DTypeError for complex numbers.

    >>> tg.searchsorted(tg.tensor([0.0, 2.0]), tg.tensor([0.5, 3.0]))
    """
    if side not in (None, "left", "right") or (right and side == "left"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right' and agree with right, got {side!r} and right={right}")
    after = right or side == "right"
    sequence, values = common_dtype(by_value([sorted_sequence, input]), name="searchsorted")
    if not sequence.ndim:
        raise ShapeError("searchsorted: sorted_sequence must have at least one dimension, got ()")
    if sorter is not None:
        if sorter.shape != sequence.shape:
            raise ShapeError(f"searchsorted: sorter {sorter.shape} must have the shape of sorted_sequence {sequence.shape}")
        sequence = gather(sequence, -1, sorter)
    if sequence.ndim > 1 and (values.ndim != sequence.ndim or values.shape[:-1] != sequence.shape[:-1]):
        raise ShapeError(f"searchsorted: sorted_sequence {sequence.shape} must have one dimension, or the sizes of input {values.shape} "
                         "but for the last")
    found = _searched(detach(sequence), detach(values), after)
    return cast(found, dtypes.int32 if out_int32 else dtypes.int64)


def _searched(sequence: Node, values: Node, after: bool) -> Any:
    n = sequence.shape[-1]
    before: Any = le if after else lt                           # whether the value comes behind an element; a NaN among these is behind all
    if n <= COMPARED:
        lead = sequence.shape[:-1] if sequence.ndim > 1 else (1,) * values.ndim
        row = mv.reshape(sequence, (*lead, 1, n) if sequence.ndim > 1 else (*lead, n))
        low = sum_(before(row, mv.reshape(values, (*values.shape, 1))), -1)
    else:
        low = full_like_shape(values.shape, 0, dtypes.int32 if n < 1 << 30 else dtypes.int64)      # 32 bits take half of the time
        for step in [1 << k for k in reversed(range(n.bit_length()))]:          # bisection: `low` elements come before the value
            following = low + step
            at = following.clamp(max=n) - 1
            element = take_rows(sequence, at) if sequence.ndim == 1 else gather(sequence, -1, at)
            low = where(before(element, values), following, low)                # (beyond n if the last element does)
        low = low.clamp(max=n)
    return where(ne(values, values), n, low) if dtype_kind(values.dtype) == "f" else low


@public("bucketize", method=False)
@on_nodes
def bucketize(input: Any, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    """The number of the interval between boundaries (1-d, sorted) that each value lies in: searchsorted(boundaries, input).

    dtype: real; the result is int64 (out_int32: int32), of input's shape. Raises DTypeError for complex numbers.

    >>> tg.bucketize(tg.tensor([0.5, 3.0]), tg.tensor([0.0, 2.0]))
    """
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize: boundaries must have one dimension, got {boundaries.shape}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def _limits(name: str, x: Node, low: float, high: float, margin: float = 1.0) -> tuple[Any, Any]:
    """The range of a histogram, as nodes: that of the values if low and high are equal, wider by margin on either side if those are."""
    if low > high or not all(map(np.isfinite, (low, high))):
        raise ArgumentError(f"{name}: the range must be finite, and its lower end first, got {low} and {high}")
    if low != high:
        return const(low, x.dtype), const(high, x.dtype)
    if not x.aval.size or low != 0:
        least: Any = const(low, x.dtype)
        most: Any = least
    else:
        least, most = detach(amin(x)), detach(amax(x))
    if not x.aval.size and margin < 1.0:
        return const(0, x.dtype), const(1, x.dtype)
    flat = eq(least, most)
    return where(flat, least - margin, least), where(flat, most + margin, most)


def _between(edges: Node, x: Node) -> tuple[Node, Node]:
    """Whether x lies within the edges, and in which bin. Even edges are searched, too: a quotient that rounds may not agree with them."""
    n = edges.shape[0] - 1
    return ge(x, mv.narrow(edges, 0, 0, 1)) & le(x, mv.narrow(edges, 0, n, 1)), (_searched(edges, x, True) - 1).clamp(0, n - 1)


def _even_edges(low: Any, high: Any, n: int, dtype: Any) -> Any:
    """The n + 1 edges of n equal bins."""
    i = cast(iota((n + 1,), 0), dtype)
    step = (high - low) / float(n)
    return where(lt(i, n / 2), low + i * step, high - (float(n) - i) * step)


_indices = range        # (an argument is called range)


@public("histc")
@on_nodes
def histc(input: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    """How many elements lie in each of `bins` equal intervals from min to max (those of input if both are 0), as floats. No derivative.

    dtype: float, which the result has, else DTypeError.

    >>> tg.histc(tg.tensor([1.0, 2.0, 1.0]), 4, 0, 4)
    """
    refuse_complex("histc", input)
    if dtype_kind(input.dtype) != "f":
        raise DTypeError(f"histc: takes a float tensor, got {input.dtype}; use x.float()")
    if integer("histc", "bins", bins) < 1:
        raise ArgumentError(f"histc: bins must be positive, got {bins}")
    x = detach(mv.reshape(input, (input.aval.size,)))
    low, high = _limits("histc", x, float(min), float(max))
    inside = ge(x, low) & le(x, high)
    # a product before the division, as in torch: of (x - low) / (high - low) * bins, 0.6 of 0 to 3 would lie below the edge that it is at
    place = cast(floor(where(inside, (x - low) * float(bins) / (high - low), 0.0)), dtypes.int64)
    place = where(ge(place, bins), bins - 1, place)
    return scatter_rows("scatter_add", full_like_shape((bins,), 0, x.dtype), place, where(inside, const(1, x.dtype), const(0, x.dtype)))


class Histogram(NamedTuple):
    """What histogram returns."""

    hist: Any
    bin_edges: Any


@public("histogram")
@on_nodes
def histogram(input: Array, bins: Any = 100, *, range: Any = None, weight: Array = None, density: bool = False) -> Any:
    """(hist, bin_edges): how many elements (or how much of weight) lie in each bin, the last one with its end.

    bins: how many of equal width, from range[0] to range[1] (input's extremes if None); or a vector of their edges, increasing.
    density: divided by the total and the widths. No derivative. dtype: float, which the result has. Raises DTypeError for others.

    >>> tg.histogram(tg.tensor([1.0, 2.0, 1.0]), 2, range=(0.0, 4.0))
    """
    refuse_complex("histogram", input)
    if dtype_kind(input.dtype) != "f":
        raise DTypeError(f"histogram: takes a float tensor, got {input.dtype}; use x.float()")
    if weight is not None and weight.shape != input.shape:
        raise ShapeError(f"histogram: weight {weight.shape} must have the shape of the input {input.shape}")
    x = detach(mv.reshape(input, (input.aval.size,)))
    w = const(1, x.dtype) if weight is None else detach(mv.reshape(weight, x.shape))
    if isinstance(bins, Node):
        if bins.ndim != 1 or bins.dtype != x.dtype or bins.shape[0] < 2 or range is not None:
            raise ArgumentError(f"histogram: bins must be an integer, or a vector of two or more edges of dtype {x.dtype} (without range), "
                                f"got {bins.aval}")
        edges: Any = bins
        n = bins.shape[0] - 1
    else:
        n = integer("histogram", "bins", bins)
        if n < 1:
            raise ArgumentError(f"histogram: bins must be positive, got {bins}")
        first, last = map(float, range) if range is not None else (0.0, 0.0)
        low, high = _limits("histogram", x, first, last, margin=0.5)
        edges = _even_edges(low, high, n, x.dtype)
    inside, place = _between(edges, x)
    hist = scatter_rows("scatter_add", full_like_shape((n,), 0, x.dtype), place, where(inside, w, const(0, x.dtype)))
    if density:
        widths = mv.narrow(edges, 0, 1, n) - mv.narrow(edges, 0, 0, n)
        hist = hist / (sum_(hist) * widths)
    return Histogram(hist, edges)


class HistogramDD(NamedTuple):
    """What histogramdd returns."""

    hist: Any
    bin_edges: Any


@public("histogramdd", method=False)
@on_nodes
def histogramdd(input: Array, bins: Any, *, range: Any = None, weight: Array = None, density: bool = False) -> Any:
    """(hist, bin_edges) of the points in the last dimension (*, D): how many (or how much of weight (*)) lie in each cell of a grid.

    bins: how many bins, one number or one for each of the D dimensions, of equal width from range[2 d] to range[2 d + 1] (the points'
    extremes if None); or a vector of increasing edges for each. density: divided by the total and the cells' volumes. No derivative.
    dtype: float, which the result has. Raises DTypeError for others.

    >>> tg.histogramdd(tg.rand(5, 2), [2, 2], range=(0.0, 1.0, 0.0, 1.0))
    """
    if dtype_kind(input.dtype) != "f" or input.ndim < 1:
        raise DTypeError(f"histogramdd: takes a float tensor (*, D), got {input.aval}")
    size = input.shape[-1]
    count = input.aval.size // size if size else 0
    points = detach(mv.reshape(input, (count, size)))
    each = list(bins) if isinstance(bins, (list, tuple)) else [bins] * size
    if len(each) != size or (range is not None and len(range) != 2 * size):
        raise ArgumentError(f"histogramdd: bins and range must be for {size} dimensions, got {len(each)} bins and range {range}")
    if weight is not None and weight.aval.size != count:
        raise ShapeError(f"histogramdd: weight {weight.shape} must have the shape of input {input.shape} without its last dimension")
    cell: Any = const(0, dtypes.int64)
    inside: Any = full_like_shape((count,), True, dtypes.bool_)
    edges, shape = [], []
    for d, given in enumerate(each):
        x = mv.reshape(mv.narrow(points, 1, d, 1), (count,))
        if isinstance(given, Node):
            if given.ndim != 1 or given.dtype != x.dtype or given.shape[0] < 2:
                raise ArgumentError(f"histogramdd: edges must be a vector of two or more of dtype {x.dtype}, got {given.aval}")
            own: Any = given
            n = own.shape[0] - 1
        else:
            n = integer("histogramdd", "bins", given)
            if n < 1:
                raise ArgumentError(f"histogramdd: bins must be positive, got {given}")
            ends = (float(range[2 * d]), float(range[2 * d + 1])) if range is not None else (0.0, 0.0)
            low, high = _limits("histogramdd", x, *ends, margin=0.5)
            own = _even_edges(low, high, n, x.dtype)
        within, place = _between(own, x)
        inside = inside & within
        cell = cell * n + where(inside, place, 0)
        edges.append(own)
        shape.append(n)
    total = 1
    for n in shape:
        total *= n
    w = const(1, input.dtype) if weight is None else detach(mv.reshape(weight, (count,)))
    none = full_like_shape((total,), 0, input.dtype)
    held = mv.expand(where(inside, w, const(0, input.dtype)), (count,))
    hist: Any = mv.reshape(scatter_rows("scatter_add", none, mv.expand(cell, (count,)), held), tuple(shape))
    if density:
        hist = hist / sum_(hist)
        for d, (own, n) in enumerate(zip(edges, shape, strict=True)):
            widths = mv.narrow(own, 0, 1, n) - mv.narrow(own, 0, 0, n)
            hist = hist / mv.reshape(widths, tuple(n if i == d else 1 for i in _indices(len(shape))))
    return HistogramDD(hist, edges)
