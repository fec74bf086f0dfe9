"""Statistics beyond `ops/arrays/reductions.py`: moments in pairs, covariance, what ignores NaNs; differences, integrals and distances
along a dim."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from tracegrad.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import cast, const, holds
from tracegrad.ops.arguments import integer, on_nodes, one_dim, rounded_once
from tracegrad.ops.arrays.complex_numbers import complex_, imag, real
from tracegrad.ops.arrays.joining import cat
from tracegrad.ops.arrays.pointwise import clamp, eq, gt, ne, sqrt
from tracegrad.ops.arrays.reductions import amax, amin, cumsum, mean, nansum, norm, std, sum_
from tracegrad.ops.arrays.shaping.reshaping import as_float
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import over, times, where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


class MinMax(NamedTuple):
    """What aminmax returns."""

    min: Any
    max: Any


@public("aminmax")
@on_nodes
def aminmax(input: Array, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """(min, max) of all elements or along dim; NaN if any is.

    dtype: any real one, which the result has. Raises DTypeError for complex numbers, ArgumentError of nothing.

    >>> tg.aminmax(tg.tensor([3.0, 1.0]))
    """
    return MinMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


@public("std_mean", method=False)
@on_nodes
@rounded_once
def std_mean(input: Array, dim: Any = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = 1) -> Any:
    """(standard deviation, mean) over dim. dtype: float or complex, the deviation real. Raises DTypeError for integers and bools.

    >>> tg.std_mean(tg.tensor([1.0, 2.0, 4.0]))
    """
    spread = std(input, dim, unbiased, keepdim, correction=correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)


@public("nanmean")
@on_nodes
@rounded_once
def nanmean(input: Array, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The mean over dim of the elements that are no NaN; NaN if there are none.

    dtype: float, which the result has. Raises DTypeError for others.

    >>> tg.nanmean(tg.tensor([1.0, float("nan")]))
    """
    refuse_complex("nanmean", input)
    x = input if dtype is None else cast(input, dtypes.as_dtype(dtype))
    if dtype_kind(x.dtype) != "f":
        raise DTypeError(f"nanmean: takes a float tensor, got {x.dtype}; use x.float()")
    return nansum(x, dim, keepdim) / cast(sum_(eq(x, x), dim, keepdim), x.dtype)


@public("cov")
@on_nodes
@rounded_once
def cov(input: Array, *, correction: int = 1, fweights: Array = None, aweights: Array = None) -> Array:
    """The covariance matrix of variables (rows) observed in columns; of one variable, its variance. ((n) or (v, n) -> () or (v, v))

    fweights: how often each observation counts (integers); aweights: how much (floats). Divided by the total weight less correction.
    dtype: any; of integers and bools the default float one. Raises ShapeError for other shapes.

    >>> tg.cov(tg.tensor([[1.0, 2.0, 4.0], [3.0, 1.0, 0.0]]))
    """
    if input.ndim > 2:
        raise ShapeError(f"cov: takes at most 2 dimensions, got {input.shape}")
    x = as_float(input)
    rows = mv.reshape(x, (1, x.aval.size)) if x.ndim < 2 else x
    n = rows.shape[1]
    weight: Any = None
    for what, w, kinds in (("fweights", fweights, "iu"), ("aweights", aweights, "f")):
        if w is None:
            continue
        if w.ndim > 1 or w.aval.size != n or dtype_kind(w.dtype) not in kinds:
            raise ShapeError(f"cov: {what} {w.aval} must hold {n} {'integers' if kinds == 'iu' else 'floats'}, one for each observation")
        part = mv.reshape(cast(w, dtypes.real_of(x.dtype)), (n,))
        weight = part if weight is None else weight * part
    if weight is None:
        centred = rows - mean(rows, 1, True)
        freedom: Any = float(max(0, n - correction))
        product = matmul(centred, centred.mH)
    else:
        whole = sum_(weight)
        centred = rows - sum_(rows * weight, 1, True) / whole
        if aweights is None or not correction:
            freedom = whole - float(correction)
        else:
            freedom = whole - sum_(weight * cast(aweights, dtypes.real_of(x.dtype))) / whole * float(correction)
        freedom = clamp(freedom, min=0.0)
        product = matmul(centred * weight, centred.mH)
    y = product / freedom
    return mv.reshape(y, ()) if rows.shape[0] == 1 else y


@public("corrcoef")
@on_nodes
@rounded_once
def corrcoef(input: Array) -> Array:
    """The correlation coefficients of variables (rows) observed in columns, limited to [-1, 1] (of complex ones, both parts).

    ((n) or (v, n) -> () or (v, v)) dtype: any; of integers and bools the default float one. Raises ShapeError for other shapes.

    >>> tg.corrcoef(tg.tensor([[1.0, 2.0, 4.0], [3.0, 1.0, 0.0]]))
    """
    if input.ndim > 2:
        raise ShapeError(f"corrcoef: takes at most 2 dimensions, got {input.shape}")
    c = cov(input)
    if not c.ndim:
        return c / c
    spread = sqrt(real(c.diagonal()))
    n = spread.shape[0]
    y = c / mv.reshape(spread, (n, 1)) / mv.reshape(spread, (1, n))
    if y.dtype.kind == "c":
        return complex_(clamp(real(y), -1.0, 1.0), clamp(imag(y), -1.0, 1.0))
    return clamp(y, -1.0, 1.0)


# ------------------------------------------------------------------------------------------------- differences and integrals


@public("diff")
@on_nodes
def diff(input: Array, n: int = 1, dim: int = -1, prepend: Array = None, append: Array = None) -> Array:
    """The n-th differences of neighbours along dim, of prepend, input and append one after the other. Of bools: whether they differ.

    Other dtypes stay. Raises IndexOutOfRange for other dims.

    >>> tg.diff(tg.tensor([1.0, 2.0, 4.0]))
    """
    if not input.ndim:
        raise ShapeError("diff: takes at least 1 dimension, got ()")
    d = one_dim("diff", dim, input.ndim)
    if integer("diff", "n", n) < 0:
        raise ArgumentError(f"diff: n must not be negative, got {n}")
    if not n:                               # as in torch, without prepend and append
        return input
    one = (*input.shape[:d], 1, *input.shape[d + 1:])
    parts = [part if part.ndim else mv.expand(part, one) for part in (prepend, input, append) if part is not None]
    x = cat(parts, d) if len(parts) > 1 else input
    for _ in range(min(n, x.shape[d])):
        m = max(0, x.shape[d] - 1)
        after, before = mv.narrow(x, d, x.shape[d] - m, m), mv.narrow(x, d, 0, m)
        x = ne(after, before) if x.dtype == dtypes.bool_ else after - before
    return x


def _strips(name: str, y: Node, x: Any, dx: Any, dim: int) -> tuple[int, Any]:
    """The areas of the trapezoids between neighbours along dim."""
    if not y.ndim:
        raise IndexOutOfRange(f"{name}: takes at least 1 dimension, got ()")
    d = one_dim(name, dim, y.ndim)
    if x is not None and dx is not None:
        raise ArgumentError(f"{name}: give x or dx, not both")
    y = as_float(y)
    n = y.shape[d]
    m = max(0, n - 1)
    both = mv.narrow(y, d, 0, m) + mv.narrow(y, d, n - m, m)
    if x is None:
        return d, times(both, (1.0 if dx is None else dx) / 2.0)
    if x.ndim == 1 and x.shape[0] == n:
        x = mv.reshape(x, tuple(n if i == d else 1 for i in range(y.ndim)))
    elif x.ndim > y.ndim or x.ndim < 1 or x.shape[d - y.ndim] != n:
        raise ShapeError(f"{name}: x {x.shape} must have {n} places along dimension {d} of y {y.shape}, or its last sizes")
    k = d - y.ndim + x.ndim
    x = cast(x, dtypes.int64) if x.dtype.kind in "iub" else x           # what lies between two bytes may be negative
    return d, both * (mv.narrow(x, k, 1, m) - mv.narrow(x, k, 0, m)) * 0.5 if n else both * 0.5


@public("trapezoid", "trapz", method=False)
@on_nodes
@rounded_once
def trapezoid(y: Array, x: Array = None, *, dx: float | None = None, dim: int = -1) -> Array:
    """The integral of y along dim by the trapezoidal rule, at the places x, or dx (1) apart.

    dtype: any; of integers and bools the default float one. Raises ArgumentError for both x and dx.

    >>> tg.trapezoid(tg.tensor([1.0, 2.0, 4.0]))
    """
    d, areas = _strips("trapezoid", y, x, dx, dim)
    return sum_(areas, d)


@public("cumulative_trapezoid", method=False)
@on_nodes
@rounded_once
def cumulative_trapezoid(y: Array, x: Array = None, *, dx: float | None = None, dim: int = -1) -> Array:
    """The running integral of y along dim by the trapezoidal rule (one element less), at the places x, or dx (1) apart.

    dtype: any; of integers and bools the default float one. Raises ArgumentError for both x and dx.

    >>> tg.cumulative_trapezoid(tg.tensor([1.0, 2.0, 4.0]))
    """
    d, areas = _strips("cumulative_trapezoid", y, x, dx, dim)
    return cumsum(areas, d)


@public("gradient", method=False)
@on_nodes
@rounded_once
def gradient(input: Array, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> tuple[Array, ...]:
    """The derivative of samples along each of dim (all): central differences inside, one-sided ones of edge_order (1 or 2) at the ends.

    spacing: the distance of samples, one for each dim, or the places themselves (vectors).
    dtype: any; of integers and bools the default float one. Raises ShapeError for too few samples.

    >>> tg.gradient(tg.tensor([1.0, 4.0, 9.0]))
    """
    if edge_order not in (1, 2):
        raise ArgumentError(f"gradient: edge_order must be 1 or 2, got {edge_order}")
    wanted = range(input.ndim) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    dims = [one_dim("gradient", d, input.ndim) for d in wanted]
    spacing = 1 if spacing is None else spacing
    given = list(spacing) if isinstance(spacing, (tuple, list)) else [spacing] * len(dims)
    if len(given) != len(dims) or len(set(dims)) != len(dims):
        raise ArgumentError(f"gradient: spacing must be one number, or one for each of the dims {tuple(dims)}, got {len(given)}")
    x = as_float(input)
    return tuple(_slope(x, d, h, edge_order) for d, h in zip(dims, given, strict=True))


def _slope(x: Node, d: int, spacing: Any, edge_order: int) -> Any:
    n = x.shape[d]
    if n < edge_order + 1:
        raise ShapeError(f"gradient: dimension {d} of {x.shape} needs at least {edge_order + 1} elements")

    def at(start: int, length: int) -> Any:
        return mv.narrow(x, d, start, length)

    if isinstance(spacing, Node) and spacing.ndim:
        if spacing.shape != (n,):
            raise ShapeError(f"gradient: the places {spacing.shape} must be ({n},) for dimension {d} of {x.shape}")
        gaps = mv.narrow(spacing, 0, 1, n - 1) - mv.narrow(spacing, 0, 0, n - 1)
    else:
        gaps = mv.expand(cast(spacing, x.dtype) if isinstance(spacing, Node) else const(spacing, x.dtype), (n - 1,))
    place = [1] * x.ndim
    mul, div = (operator.mul, operator.truediv) if isinstance(spacing, Node) else (times, over)

    def gap(start: int, length: int) -> Any:
        return mv.reshape(mv.narrow(gaps, 0, start, length), tuple(length if i == d else s for i, s in enumerate(place)))

    parts = []
    if n > 2:
        a, b = gap(0, n - 2), gap(1, n - 2)
        inner = mul(at(2, n - 2), a / (b * (a + b))) + mul(at(1, n - 2), (b - a) / (a * b)) - mul(at(0, n - 2), b / (a * (a + b)))
        parts = [inner]
    first, last = gap(0, 1), gap(n - 2, 1)
    if edge_order == 1:
        begin, end = div(at(1, 1) - at(0, 1), first), div(at(n - 1, 1) - at(n - 2, 1), last)
    else:
        second, before = gap(1, 1), gap(n - 3, 1)
        both = first + second
        begin = at(1, 1) * (both / (first * second)) - at(0, 1) * ((first + both) / (first * both)) - at(2, 1) * (first / (second * both))
        both = last + before
        end = at(n - 1, 1) * ((last + both) / (last * both)) - at(n - 2, 1) * (both / (last * before))
        end = end + at(n - 3, 1) * (last / (before * both))
    return mv.concat([cast(p, x.dtype) for p in (begin, *parts, end)], d)


# --------------------------------------------------------------------------------------------------------------- distances


@public("dist")
@on_nodes
@rounded_once
def dist(input: Array, other: Array, p: float = 2) -> Array:
    """The p-norm of input - other, as one vector.

    The shapes broadcast. dtype: any but bool; the result is real, a number (). Raises DTypeError for bools.

    >>> tg.dist(tg.tensor([3.0, 4.0]), tg.zeros(2))
    """
    return norm(input - other, p)


@public("renorm")
@on_nodes
@rounded_once
def renorm(input: Array, p: float, dim: int, maxnorm: float) -> Array:
    """input with each slice along dim whose p-norm exceeds maxnorm scaled down to it.

    dtype: any; of integers and bools the default float one. Raises IndexOutOfRange for other dims.

    >>> tg.renorm(tg.tensor([[3.0, 4.0], [0.3, 0.4]]), 2.0, 0, 1.0)
    """
    if input.ndim < 2:
        raise ShapeError(f"renorm: takes at least 2 dimensions, got {input.shape}")
    if holds(p <= 0) or holds(maxnorm < 0):
        raise ArgumentError(f"renorm: p must be positive and maxnorm not negative, got {p} and {maxnorm}")
    d = one_dim("renorm", dim, input.ndim)
    sizes = norm(input, p, tuple(i for i in range(input.ndim) if i != d), True)
    large = gt(sizes, maxnorm)
    return where(large, input * (maxnorm / (where(large, sizes, 1.0) + 1e-7)), input)
