"""Order statistics and counting: running extremes, quantiles, modes, bins; and what has a shape that only values tell (unique, ...).

Values are gathered at indices, so their derivatives are right. What reads values works untraced only, and says what to use in a trace.
"""

from __future__ import annotations

from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError, TraceError
from tracegrad.graph.families import common_dtype, refuse_complex
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import PUBLIC, Operators, public
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import integer, on_nodes, one_dim, rounded_once
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import gather, scatter_rows, take_rows
from tracegrad.ops.arrays.pointwise import ceil as ceil_
from tracegrad.ops.arrays.pointwise import detach, eq, floor, ge, gt, le, lt, maximum, ne, round_
from tracegrad.ops.arrays.reductions import ValuesIndices, amax, amin, argmax, sum_
from tracegrad.ops.arrays.shaping import full_like_shape, transpose
from tracegrad.ops.arrays.sorting import argsort, shared, sort
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.special.functions import logaddexp
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state

Array = Any      # a Node or a Tensor
_INF, _NAN = float("inf"), float("nan")
COMPARED = 64    # up to so many boundaries, searchsorted compares with each: one kernel


# ---------------------------------------------------------------------------------------------------------- running results


def _shifted(x: Node, d: int, step: int, fill: Any) -> Any:
    """x moved `step` elements up along d, filled with `fill` below."""
    low = tuple(step if i == d else 0 for i in range(x.ndim))
    return mv.pad(mv.narrow(x, d, 0, x.shape[d] - step), low, (0,) * x.ndim, None, fill)


def _running_extreme(name: str, x: Node, dim: int) -> Any:
    refuse_complex(name, x)                             # else running_max would
    d = one_dim(name, dim, x.ndim)
    if not x.ndim or not x.aval.size:
        return ValuesIndices(x, full_like_shape(x.shape, 0, dtypes.int64))
    best = bind(REGISTRY[name.replace("cum", "running_")], (detach(x),), {"dim": d})
    found = eq(x, best) | ne(x, x)                              # a NaN is the latest one
    place = bind(REGISTRY["running_max"], (where(found, iota(x.shape, d), 0),), {"dim": d})
    return ValuesIndices(gather(x, d, place), place)


@public("cummax")
@on_nodes
def cummax(input: Array, dim: int) -> Any:
    """(values, indices) of the largest so far along dim; of equals the last, NaN from the first NaN on, as in torch."""
    return _running_extreme("cummax", input, dim)


@public("cummin")
@on_nodes
def cummin(input: Array, dim: int) -> Any:
    """(values, indices) of the smallest so far along dim; of equals the last, NaN from the first NaN on, as in torch."""
    return _running_extreme("cummin", input, dim)


@public("logcumsumexp")
@on_nodes
@rounded_once
def logcumsumexp(input: Array, dim: int) -> Array:
    """log(cumsum(exp(x))) along dim, without overflow."""
    refuse_complex("logcumsumexp", input)               # its imaginary parts would be any of many, 2 pi apart
    if dtype_kind(input.dtype) != "f":
        raise DTypeError(f"logcumsumexp: takes a float tensor, got {input.dtype}; use x.float()")
    d = one_dim("logcumsumexp", dim, input.ndim)
    x, step = input, 1
    while input.ndim and step < x.shape[d]:
        x = logaddexp(x, _shifted(x, d, step, -_INF))
        step *= 2
    return x


# ------------------------------------------------------------------------------------------------------------ sorted values


def _dropped(values: Any, indices: Any, d: int, keepdim: bool) -> Any:
    """(values, indices) with one element along d, without that dimension unless keepdim."""
    if keepdim or not values.ndim:
        return ValuesIndices(values, indices)
    shape = values.shape[:d] + values.shape[d + 1:]
    return ValuesIndices(mv.reshape(values, shape), mv.reshape(indices, shape))


@public("kthvalue")
@on_nodes
def kthvalue(input: Array, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """(values, indices) of the k-th smallest element along dim, k from 1; NaN is the largest."""
    d = one_dim("kthvalue", dim, input.ndim)
    n = input.shape[d] if input.ndim else 1
    if not 1 <= integer("kthvalue", "k", k) <= n:
        raise ArgumentError(f"kthvalue: k must be from 1 to {n}, the size of dimension {d} of {input.shape}, got {k}")
    if not input.ndim:
        return ValuesIndices(input, const(0, dtypes.int64))
    place = mv.narrow(argsort(input, d), d, k - 1, 1)
    return _dropped(gather(input, d, place), place, d, keepdim)


@public("mode")
@on_nodes
def mode(input: Array, dim: int = -1, keepdim: bool = False) -> Any:
    """(values, indices) of the most frequent element along dim: of equally frequent ones the smallest, at its last place."""
    d = one_dim("mode", dim, input.ndim)
    if not input.ndim:
        return ValuesIndices(input, const(0, dtypes.int64))
    if not input.shape[d]:
        raise ArgumentError(f"mode: dimension {d} of {input.shape} is empty: no mode")
    order = argsort(input, d)
    values = detach(gather(input, d, order))
    at = iota(input.shape, d)
    starts = where(ne(values, _shifted(values, d, 1, 0)) | eq(at, 0), at, 0)
    run = at - cummax(starts, d)[0]                             # how many equal ones come before, in the sorted row
    place = gather(order, d, argmax(run, d, True))
    return _dropped(gather(input, d, place), place, d, keepdim)


@public("nanmedian")
@on_nodes
def nanmedian(input: Array, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the middle elements that are no NaN: of all, or (values, indices) along dim. NaN if there is none."""
    x = mv.reshape(input, (input.aval.size,)) if dim is None else input
    d = one_dim("nanmedian", 0 if dim is None else dim, x.ndim)
    if not x.ndim:
        return ValuesIndices(x, const(0, dtypes.int64))
    if not x.shape[d] and dim is None and dtype_kind(x.dtype) == "f":
        return sum_(x) * float("nan")
    if not x.shape[d]:
        raise ArgumentError(f"nanmedian: dimension {d} of {x.shape} is empty: no median")
    numbers = sum_(eq(x, x), d, True)
    place = gather(argsort(x, d), d, maximum(numbers - 1, 0) // 2)
    found = _dropped(gather(x, d, place), place, d, keepdim and dim is not None)
    return found if dim is not None else shared(x, found.values)


@public("msort")
@on_nodes
def msort(input: Array) -> Array:
    """input sorted along its first dimension."""
    return sort(input, 0)[0]


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(name: str, x: Node, q: Any, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool) -> Any:
    if x.dtype not in (dtypes.float32, dtypes.float64):
        raise DTypeError(f"{name}: takes a float32 or float64 tensor, got {x.dtype}; use x.float()")
    if interpolation not in _INTERPOLATIONS:
        raise ArgumentError(f"{name}: interpolation must be one of {', '.join(_INTERPOLATIONS)}, got {interpolation!r}")
    if not isinstance(q, Node):
        if not 0.0 <= q <= 1.0:
            raise ArgumentError(f"{name}: q must be from 0 to 1, got {q}")
        q = const(q, x.dtype)
    elif q.aval.weak:                                           # a number of run time
        q = cast(q, x.dtype)
    if q.dtype != x.dtype or q.ndim > 1:
        raise DTypeError(f"{name}: q must be a number or a tensor of at most one dimension of dtype {x.dtype}, got {q.aval}")
    if not x.aval.size:
        raise ArgumentError(f"{name}: the input {x.shape} is empty: no quantile")
    lead = (1,) * x.ndim if dim is None else None
    d = 0 if dim is None else one_dim(name, dim, x.ndim)
    flat = mv.reshape(x, (x.aval.size,)) if dim is None or not x.ndim else x
    kept = lead or tuple(1 if i == d else n for i, n in enumerate(x.shape))
    rows = transpose(sort(flat, d)[0], d, -1)                   # NaNs last
    n = rows.shape[-1]
    numbers = sum_(eq(rows, rows), -1, True)
    fractions = mv.reshape(q, (q.aval.size,))
    if ignore_nan:
        last = maximum(numbers - 1, 0)
        rank = fractions * cast(last, x.dtype)
    else:
        last = full_like_shape((*rows.shape[:-1], 1), n - 1, dtypes.int64)
        rank = where(eq(numbers, n), fractions * float(n - 1), float(n - 1))
    if interpolation == "lower":
        rank = floor(rank)
    elif interpolation == "higher":
        rank = ceil_(rank)
    elif interpolation == "nearest":
        rank = round_(rank)
    below = floor(rank)
    weight = rank - below
    low = cast(below, dtypes.int64)
    low = in_range(low, n, name, "q", f"the {n} elements of each row of {x.shape} (q must be from 0 to 1)")
    high = cast(ceil_(rank), dtypes.int64)
    high = where(gt(high, n - 1), n - 1, high)
    a, b = gather(rows, -1, low), gather(rows, -1, high)
    weight = where(gt(weight, 0.0), 0.5, 0.0) if interpolation == "midpoint" else weight
    y = where(eq(low, high), a, a + (b - a) * weight)           # (..., Q); (no inf - inf where nothing is between)
    y = mv.permute(y, (y.ndim - 1, *range(y.ndim - 1)))
    # the row's dimension is the last one of `rows`: back to its place
    body = kept if dim is None or not x.ndim else tuple(s for i, s in enumerate(x.shape) if i != d)
    if dim is not None and x.ndim:
        y = transpose(mv.reshape(y, (*y.shape, 1)), d + 1, -1) if d != x.ndim - 1 else mv.reshape(y, (*y.shape, 1))
        y = mv.reshape(y, (y.shape[0], *(kept if keepdim else body)))
    else:
        y = mv.reshape(y, (y.shape[0], *(kept if keepdim else ())))
    return y if q.ndim else mv.reshape(y, y.shape[1:])


@public("quantile")
@on_nodes
@rounded_once
def quantile(input: Array, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Array:
    """The q-quantiles (q: a number, or a vector of them, in front) of all elements or along dim; NaN for rows that hold one.

    interpolation: "linear", "lower", "higher", "midpoint" or "nearest" (rank). "linear" has a derivative in q.

    >>> tg.quantile(tg.tensor([1.0, 2.0, 4.0]), 0.75)           # 3.0
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@public("nanquantile")
@on_nodes
@rounded_once
def nanquantile(input: Array, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Array:
    """quantile without the NaNs; NaN for rows that hold nothing else."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


# ------------------------------------------------------------------------------------------------------------------- bins


@public("searchsorted", method=False)
@on_nodes
def searchsorted(sorted_sequence: Array, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
                 sorter: Array = None) -> Array:
    """Where each value of input would be put into sorted_sequence (the last dimension; one for all, or one for each row of input).

    Before equal elements, or with right=True (side="right") behind them. sorter: the indices that sort sorted_sequence.
    Returns int64 (out_int32: int32) of input's shape. NaN goes behind all.
    """
    if side not in (None, "left", "right") or (right and side == "left"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right' and agree with right, got {side!r} and right={right}")
    after = right or side == "right"
    sequence, values = common_dtype([sorted_sequence, input], name="searchsorted")
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
        low, high = full_like_shape(values.shape, 0, dtypes.int64), full_like_shape(values.shape, n, dtypes.int64)
        for _ in range(ceil(log2(n + 1))):                      # bisection
            middle = (low + high) // 2
            at = middle.clamp(0, n - 1)
            element = take_rows(sequence, at) if sequence.ndim == 1 else gather(sequence, -1, at)
            open_ = lt(low, high)
            passed = before(element, values)
            low, high = where(open_ & passed, middle + 1, low), where(open_ & passed.logical_not(), middle, high)
    return where(ne(values, values), n, low) if dtype_kind(values.dtype) == "f" else low


@public("bucketize", method=False)
@on_nodes
def bucketize(input: Any, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    """The number of the interval between boundaries (1-d, sorted) that each value lies in: searchsorted(boundaries, input)."""
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


def _counted(x: Node, low: Any, high: Any, bins: int, weight: Any) -> Any:
    """How often x falls into each of `bins` equal intervals, the last with its end; times weight."""
    inside = ge(x, low) & le(x, high)
    place = _bin(x, low, high, bins, inside)
    return scatter_rows("scatter_add", full_like_shape((bins,), 0, x.dtype), place, where(inside, weight, const(0, x.dtype)))


def _bin(x: Node, low: Any, high: Any, bins: int, inside: Any) -> Any:
    """The number of the bin that x lies in, where it is inside."""
    place = cast(floor(where(inside, (x - low) / (high - low), 0.0) * float(bins)), dtypes.int64)
    return where(ge(place, bins), bins - 1, place)


def _even_edges(low: Any, high: Any, n: int, dtype: Any) -> Any:
    """The n + 1 edges of n equal bins."""
    i = cast(iota((n + 1,), 0), dtype)
    step = (high - low) * (1.0 / n)
    return where(lt(i, n / 2), low + i * step, high - (float(n) - i) * step)


_indices = range        # (an argument is called range)


@public("histc")
@on_nodes
def histc(input: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    """How many elements lie in each of `bins` equal intervals from min to max (those of input if both are 0), as floats. No derivative."""
    refuse_complex("histc", input)
    if dtype_kind(input.dtype) != "f":
        raise DTypeError(f"histc: takes a float tensor, got {input.dtype}; use x.float()")
    if integer("histc", "bins", bins) < 1:
        raise ArgumentError(f"histc: bins must be positive, got {bins}")
    x = detach(mv.reshape(input, (input.aval.size,)))
    low, high = _limits("histc", x, float(min), float(max))
    return _counted(x, low, high, bins, const(1, x.dtype))


class Histogram(NamedTuple):
    """What histogram returns."""

    hist: Any
    bin_edges: Any


@public("histogram")
@on_nodes
def histogram(input: Array, bins: Any, *, range: Any = None, weight: Array = None, density: bool = False) -> Any:
    """(hist, bin_edges): how many elements (or how much of weight) lie in each bin, the last one with its end.

    bins: how many of equal width, from range[0] to range[1] (input's extremes if None); or a vector of their edges, increasing.
    density: divided by the total and the widths. No derivative.
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
        inside = ge(x, mv.narrow(edges, 0, 0, 1)) & le(x, mv.narrow(edges, 0, n, 1))
        place = (_searched(edges, x, True) - 1).clamp(0, n - 1)
        hist = scatter_rows("scatter_add", full_like_shape((n,), 0, x.dtype), place, where(inside, w, const(0, x.dtype)))
    else:
        n = integer("histogram", "bins", bins)
        if n < 1:
            raise ArgumentError(f"histogram: bins must be positive, got {bins}")
        first, last = map(float, range) if range is not None else (0.0, 0.0)
        low, high = _limits("histogram", x, first, last, margin=0.5)
        edges = _even_edges(low, high, n, x.dtype)
        hist = _counted(x, low, high, n, w)
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
        if isinstance(given, Node):
            inside = inside & ge(x, mv.narrow(own, 0, 0, 1)) & le(x, mv.narrow(own, 0, n, 1))
            place: Any = (_searched(own, x, True) - 1).clamp(0, n - 1)
        else:
            inside = inside & ge(x, low) & le(x, high)
            place = _bin(x, low, high, n, inside)
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


# ------------------------------------------------------------------------------------- results whose shape depends on values


def known(name: str, x: Any, instead: str) -> np.ndarray[Any, Any]:
    """The values of a Tensor, for a function whose result's shape depends on them; a TraceError says what to use in a trace."""
    if not isinstance(x, Operators):
        raise DTypeError(f"{name}: expected a Tensor, got {type(x).__name__}; use tg.tensor(...) for arrays and lists")
    if isinstance(x, Node):
        raise TraceError(f"{name}: the shape of the result depends on values, which a derivative rule does not have; {instead}")
    try:
        return x.detach().numpy()  # type: ignore[no-any-return]
    except TraceError:
        raise TraceError(f"{name}: the shape of the result depends on values, which are not known inside @trace; {instead}") from None


def _tensor(like: Any, array: Any) -> Any:
    if state.trace is not None:                 # which takes no arrays of the user's; this is none
        return PUBLIC["tensor"](array.reshape(-1).tolist(), dtype=array.dtype, device=like.device).reshape(array.shape)
    return PUBLIC["tensor"](np.asarray(array, order="C"), device=like.device)


@public("bincount")
def bincount(input: Array, weights: Array = None, minlength: int = 0) -> Array:
    """How often each integer from 0 on is in input (1-d), as int64; with weights, how much of them. At least minlength numbers.

    Inside @trace of constants only: the length depends on values (there use zeros(n).index_add(0, input, ones), or histc).
    """
    values = known("bincount", input, "use tg.zeros(n).index_add(0, input, ones) with the number n of bins")
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DTypeError(f"bincount: takes a vector of integers, got {values.dtype} {values.shape}")
    if integer("bincount", "minlength", minlength) < 0:
        raise ArgumentError(f"bincount: minlength must not be negative, got {minlength}")
    if values.size and values.min() < 0:
        raise IndexOutOfRange(f"bincount: the integers must not be negative, got {values.min()}")
    if weights is None:
        return _tensor(input, np.bincount(values, minlength=minlength).astype(np.int64))
    if weights.shape != values.shape:
        raise ShapeError(f"bincount: weights {weights.shape} must have the shape of the input {values.shape}")
    w = known("bincount", weights, "use tg.zeros(n).index_add(0, input, weights)")
    return _tensor(input, np.bincount(values, w, minlength).astype(w.dtype if dtype_kind(w.dtype) == "f" else np.float64))


@public("nonzero")
def nonzero(input: Array, *, as_tuple: bool = False) -> Any:
    """The indices (int64) of the elements that are not 0: a row for each; as_tuple: a vector for each dimension.

    Inside @trace of constants only: how many there are depends on values.
    """
    values = known("nonzero", input, "use tg.where(condition, x, y), or masked_fill")
    found = np.nonzero(values.reshape(-1) if as_tuple and not values.ndim else values) if values.ndim else (
        np.nonzero(values.reshape(1)) if as_tuple else ())
    if as_tuple:
        return tuple(_tensor(input, part) for part in found)
    return _tensor(input, np.stack(found, 1) if values.ndim else np.zeros((int(values != 0), 0), np.int64))


@public("argwhere")
def argwhere(input: Array) -> Array:
    """The indices (int64) of the elements that are not 0, a row for each. Inside @trace of constants only."""
    return nonzero(input)


@public("nonzero_static")
@on_nodes
def nonzero_static(input: Array, *, size: int, fill_value: int = -1) -> Array:
    """The first `size` rows of nonzero(input), filled up with fill_value: a shape that is known, so also inside @trace."""
    if integer("nonzero_static", "size", size) < 0:
        raise ArgumentError(f"nonzero_static: size must not be negative, got {size}")
    n = input.aval.size
    if not n or not input.ndim or not size:
        return full_like_shape((size, input.ndim), fill_value, dtypes.int64)
    hit = cast(mv.reshape(ne(input, 0) if input.dtype != dtypes.bool_ else input, (n,)), dtypes.int64)
    order = argsort(hit, 0, True, True)                         # the hits, in their order, then the others
    count = sum_(hit)
    taken = mv.narrow(order, 0, 0, min(size, n))
    taken = mv.pad(taken, (0,), (size - min(size, n),))
    columns, rest = [], taken
    for s in reversed(input.shape):
        columns.append(mv.reshape(rest % s, (size, 1)))
        rest = rest // s
    index = mv.concat([cast(c, dtypes.int64) for c in reversed(columns)], 1)
    return where(lt(iota((size, 1), 0), count), index, const(fill_value, dtypes.int64))


def _results(like: Any, found: tuple[Any, ...], inverse: bool, counts: bool) -> Any:
    parts = [found[0], *([found[1]] if inverse else []), *([found[2]] if counts else [])]
    out = tuple(_tensor(like, p) for p in parts)
    return out if len(out) > 1 else out[0]


@public("unique")
def unique(input: Array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The different elements (or, with dim, slices) of input, sorted; with them, if asked: where each element went, how many there are.

    Inside @trace of constants only: their number depends on values. No derivative.
    """
    values = known("unique", input, "sort, and compare neighbours")
    axis = None if dim is None else one_dim("unique", dim, values.ndim)
    found, inverse, counts = np.unique(values, return_inverse=True, return_counts=True, axis=axis, equal_nan=False)
    shape = values.shape if axis is None else (values.shape[axis],)
    return _results(input, (found, inverse.reshape(shape).astype(np.int64), counts.astype(np.int64)), return_inverse, return_counts)


@public("unique_consecutive")
def unique_consecutive(input: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """input (flattened, or its slices along dim) without those that equal the one in front. Inside @trace of constants only."""
    values = known("unique_consecutive", input, "compare neighbours, x[1:] != x[:-1]")
    axis = 0 if dim is None else one_dim("unique_consecutive", dim, values.ndim)
    rows = values.reshape(-1) if dim is None else np.moveaxis(values, axis, 0)
    n = len(rows)
    new = np.ones(n, bool)
    if n > 1:
        new[1:] = (rows[1:] != rows[:-1]).reshape(n - 1, -1).any(1)
    starts = np.flatnonzero(new)
    inverse = np.cumsum(new) - 1
    counts = np.diff(np.append(starts, n))
    found = rows[new] if dim is None else np.moveaxis(rows[new], 0, axis)
    shape = values.shape if dim is None else (n,)
    return _results(input, (found, inverse.reshape(shape).astype(np.int64), counts.astype(np.int64)), return_inverse, return_counts)
