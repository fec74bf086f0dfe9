"""Order statistics: running extremes, logcumsumexp, kthvalue, modes, medians, quantiles.

Values are gathered at indices, so their derivatives are right.
"""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import integer, on_nodes, one_dim, rounded_once
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import gather
from tracegrad.ops.arrays.pointwise import ceil as ceil_
from tracegrad.ops.arrays.pointwise import clamp, detach, eq, exp, floor, gt, log, maximum, ne, round_
from tracegrad.ops.arrays.reductions import ValuesIndices, argmax, sum_
from tracegrad.ops.arrays.shaping.reordering import transpose
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.arrays.sorting import argsort, shared, sort
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


_INF, _NAN = float("inf"), float("nan")


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
    short = dtypes.int32 if x.shape[d] <= 1 << 31 else dtypes.int64        # places that 32 bits tell are compared as such
    place = bind(REGISTRY["running_max"], (where(found, iota(x.shape, d, short), 0),), {"dim": d, "dtype": dtypes.int64})
    return ValuesIndices(gather(x, d, place) if x.needs_grad else best, place)


@public("cummax")
@on_nodes
def cummax(input: Array, dim: int) -> Any:
    """(values, indices) of the largest so far along dim; of equals the last, NaN from the first NaN on, as in torch.

    dtype: any real one, which the result has. Raises DTypeError for complex numbers, IndexOutOfRange for other dims.

    >>> tg.cummax(tg.tensor([1.0, 3.0, 2.0]), 0)
    """
    return _running_extreme("cummax", input, dim)


@public("cummin")
@on_nodes
def cummin(input: Array, dim: int) -> Any:
    """(values, indices) of the smallest so far along dim; of equals the last, NaN from the first NaN on, as in torch.

    dtype: any real one, which the result has. Raises DTypeError for complex numbers, IndexOutOfRange for other dims.

    >>> tg.cummin(tg.tensor([1.0, 3.0, 2.0]), 0)
    """
    return _running_extreme("cummin", input, dim)


@public("logcumsumexp")
@on_nodes
@rounded_once
def logcumsumexp(input: Array, dim: int) -> Array:
    """log(cumsum(exp(x))) along dim, without overflow. dtype: float, which the result has. Raises DTypeError for others.

    >>> tg.logcumsumexp(tg.tensor([0.0, 0.0]), 0)
    """
    refuse_complex("logcumsumexp", input)               # its imaginary parts would be any of many, 2 pi apart
    if dtype_kind(input.dtype) != "f":
        raise DTypeError(f"logcumsumexp: takes a float tensor, got {input.dtype}; use x.float()")
    d = one_dim("logcumsumexp", dim, input.ndim)
    if not input.ndim or not input.shape[d]:
        return input
    # The sums are kept beside the largest element so far, which nothing rounds. Their logarithms would lose digits at every step.
    limit = float(dtypes.finfo(input.dtype).max)
    top = bind(REGISTRY["running_max"], (detach(input),), {"dim": d})
    largest = clamp(top, -limit, limit)
    total, step = exp(clamp(input, -limit, limit) - largest), 1
    while step < input.shape[d]:
        total = total + _shifted(total, d, step, 0) * exp(_shifted(largest, d, step, -limit) - largest)
        step *= 2
    return where(eq(top, largest), largest + log(total), top)


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
    """(values, indices) of the k-th smallest element along dim, k from 1; NaN is the largest.

    dtype: any real one, which the result has. Raises ArgumentError for a k that is not there.

    >>> tg.kthvalue(tg.tensor([3.0, 1.0, 2.0]), 2)
    """
    refuse_complex("kthvalue", input)
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
    """(values, indices) of the most frequent element along dim: of equally frequent ones the smallest, at its last place.

    dtype: any real one, which the result has. Raises DTypeError for complex numbers.

    >>> tg.mode(tg.tensor([1, 2, 2]))
    """
    refuse_complex("mode", input)
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
    """The lower of the middle elements that are no NaN: of all, or (values, indices) along dim. NaN if there is none.

    dtype: any real one, which the result has. Raises DTypeError for complex numbers.

    >>> tg.nanmedian(tg.tensor([3.0, float("nan"), 1.0]))
    """
    refuse_complex("nanmedian", input)
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
    """input sorted along its first dimension. dtype: any real one, which the result has. Raises DTypeError for complex numbers.

    >>> tg.msort(tg.tensor([3.0, 1.0]))
    """
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
    dtype: float, which the result has. Raises DTypeError for others.

    >>> tg.quantile(tg.tensor([1.0, 2.0, 4.0]), 0.75)           # 3.0
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@public("nanquantile")
@on_nodes
@rounded_once
def nanquantile(input: Array, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Array:
    """quantile without the NaNs; NaN for rows that hold nothing else. Of the shapes and dtypes of `quantile`; raises what that raises.

    >>> tg.nanquantile(tg.tensor([1.0, float("nan"), 3.0]), 0.5)
    """
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)
