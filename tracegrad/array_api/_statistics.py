"""The standard's statistical and utility functions."""

from __future__ import annotations

from typing import Any

from tracegrad.array_api._common import Array, Axis, accumulated, reduced, tg
from tracegrad.errors import ArgumentError


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether all elements over axis are nonzero, as bool."""
    return reduced(tg.all, x != 0, axis, keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether any element over axis is nonzero, as bool."""
    return reduced(tg.any, x != 0, axis, keepdims)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The largest over axis; NaN if any is."""
    return reduced(tg.amax, x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The smallest over axis; NaN if any is."""
    return reduced(tg.amin, x, axis, keepdims)


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """The mean over axis, of floats."""
    return reduced(tg.mean, x, axis, keepdims)


def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """The sum over axis; of integers as int64 or uint64, unless dtype is given."""
    return reduced(tg.sum, x, axis, keepdims, dtype=accumulated(x, dtype))


def prod(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """The product over axis; of integers as int64 or uint64, unless dtype is given."""
    return reduced(tg.prod, x, axis, keepdims, dtype=accumulated(x, dtype))


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The standard deviation over axis: the square root of `var`."""
    return reduced(tg.std, x, axis, None, keepdims, correction=correction)


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance over axis: squared distances from the mean, summed, over n - correction."""
    return reduced(tg.var, x, axis, None, keepdims, correction=correction)


def _running(name: str, fn: Any, x: Array, axis: int | None, dtype: Any, include_initial: bool) -> Array:
    if axis is None and x.ndim > 1:
        raise ArgumentError(f"{name}: axis must be given for an array of {x.ndim} dimensions")
    d = axis or 0
    y = fn(x, d, dtype=accumulated(x, dtype))
    if not include_initial:
        return y
    shape = list(y.shape)
    shape[d] = 1
    return tg.cat([tg.full(shape, 0 if fn is tg.cumsum else 1, dtype=y.dtype, device=y.device), y], d)


def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Running sums along axis, which may be left out for a vector; include_initial: with a 0 in front."""
    return _running("cumulative_sum", tg.cumsum, x, axis, dtype, include_initial)


def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Running products along axis, which may be left out for a vector; include_initial: with a 1 in front."""
    return _running("cumulative_prod", tg.cumprod, x, axis, dtype, include_initial)


def diff(x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array = None, append: Array = None) -> Array:
    """The n-th differences of neighbours along axis, with `prepend` and `append` put before and behind x first."""
    return tg.diff(x, n, axis, prepend, append)


__all__ = ["all", "any", "cumulative_prod", "cumulative_sum", "diff", "max", "mean", "min", "prod", "std", "sum", "var"]
