"""torch.masked's names: reductions and normalizations of the elements where a mask holds. Start at `_filled`.

mask: bools that broadcast to the input, True for what counts; None: all. What does not count is replaced by what changes nothing (the
operation's identity), so that the function is the plain one of what is left.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import LINALG, PUBLIC
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.tensor import Tensor

Dims = int | tuple[int, ...] | list[int] | None


def _checked(name: str, input: Tensor, mask: Tensor | None) -> None:
    for what, x in (("input", input), ("mask", mask)):
        if not isinstance(x, Tensor) and not (what == "mask" and x is None):
            raise DTypeError(f"masked.{name}: {what} must be a Tensor, got {type(x).__name__}")
    if mask is not None and mask.dtype != dtypes.bool_:
        raise DTypeError(f"masked.{name}: the mask must be bool, got {mask.dtype}; use mask.bool()")
    if mask is not None and broadcast_shapes(f"masked.{name}", [input.shape, mask.shape]) != input.shape:
        raise ShapeError(f"masked.{name}: the mask {mask.shape} does not broadcast to the input {input.shape}")


def _filled(name: str, input: Tensor, mask: Tensor | None, identity: Any) -> Any:
    """input, with the identity where mask does not hold."""
    _checked(name, input, mask)
    return input if mask is None else PUBLIC["where"](mask, input, identity)


def _least(dtype: Any) -> Any:
    return -inf if dtype_kind(dtype) in "fc" else False if dtype.kind == "b" else int(np.iinfo(dtype).min)


def _most(dtype: Any) -> Any:
    return inf if dtype_kind(dtype) in "fc" else True if dtype.kind == "b" else int(np.iinfo(dtype).max)


def _dims(input: Tensor, dim: Dims) -> tuple[int, ...]:
    return tuple(range(len(input.shape))) if dim is None or dim in ((), []) else tuple(dim) if isinstance(dim, (tuple, list)) else (dim,)


def sum(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The sums over dim (all dimensions unless given); 0 where nothing counts. Integers become int64."""
    return _filled("sum", input, mask, 0).sum(_dims(input, dim), keepdim=keepdim, dtype=dtype)


def prod(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The products over dim (all dimensions unless given); 1 where nothing counts. Integers become int64."""
    x = _filled("prod", input, mask, 1)
    if dtype is not None or x.dtype.kind in "biu":
        x = x.to(dtype=dtypes.int64 if dtype is None else dtype)
    dims = sorted((d % max(1, x.ndim) for d in _dims(input, dim)), reverse=True)
    for d in dims:
        x = x.prod(d, keepdim)
    return x


def amax(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The largest elements over dim; -inf, or the dtype's least number, where nothing counts."""
    y = _filled("amax", input, mask, _least(input.dtype)).amax(_dims(input, dim), keepdim)
    return y if dtype is None else y.to(dtype=dtype)


def amin(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The smallest elements over dim; inf, or the dtype's largest number, where nothing counts."""
    y = _filled("amin", input, mask, _most(input.dtype)).amin(_dims(input, dim), keepdim)
    return y if dtype is None else y.to(dtype=dtype)


def argmax(input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The places (int64) of the largest elements that count, along dim or in the flattened input. dtype: accepted.

    (torch converts the places to the input's dtype, which does not hold large ones.)
    """
    return _filled("argmax", input, mask, _least(input.dtype)).argmax(dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The places (int64) of the smallest elements that count, as `argmax`."""
    return _filled("argmin", input, mask, _most(input.dtype)).argmin(dim, keepdim)


def _count(input: Tensor, mask: Tensor | None, dims: tuple[int, ...], keepdim: bool) -> Any:
    ones = PUBLIC["ones_like"](input, dtype=dtypes.int64)
    return (ones if mask is None else PUBLIC["where"](mask, ones, 0)).sum(dims, keepdim)


def mean(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The means over dim of what counts; NaN where nothing does."""
    _checked("mean", input, mask)
    found = input.dtype if dtype is None else dtypes.as_dtype(dtype)
    if dtype_kind(found) not in "fc":
        raise DTypeError(f"masked.mean: takes a float or complex tensor, or a float dtype=, got {found}")
    return sum(input, dim, keepdim=keepdim, dtype=found, mask=mask) / _count(input, mask, _dims(input, dim), keepdim)


def median(input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The lower of the middle elements along dim of what counts (and is no NaN); NaN where nothing does."""
    if dtype_kind(input.dtype) != "f" and dtype is None:
        raise DTypeError(f"masked.median: takes a float tensor, or a float dtype=, got {input.dtype}")
    x: Any = input if dtype is None else input.to(dtype=dtype)
    plain = x if mask is None else _filled("median", x, mask, nan)
    return (x.median(dim, keepdim) if mask is None else plain.nanmedian(dim, keepdim))[0]


def logsumexp(input: Tensor, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The logarithms of sums of exponentials over dim; -inf where nothing counts."""
    x: Any = input
    if dtype is not None or dtype_kind(input.dtype) not in "fc":
        x = input.to(dtype=dtypes.get_default_dtype() if dtype is None else dtype)
    return _filled("logsumexp", x, mask, -inf).logsumexp(_dims(input, dim), keepdim)


def logaddexp(input: Tensor, other: Tensor, *, dtype: Any = None, input_mask: Tensor | None = None,
              other_mask: Tensor | None = None) -> Any:
    """log(exp(input) + exp(other)), where either counts; -inf where neither does."""
    a, b = _filled("logaddexp", input, input_mask, -inf), _filled("logaddexp", other, other_mask, -inf)
    y = PUBLIC["logaddexp"](a, b)
    return y if dtype is None else y.to(dtype=dtype)


def norm(input: Tensor, ord: float | None = 2.0, dim: Dims = None, *, keepdim: bool = False, dtype: Any = None,
         mask: Tensor | None = None) -> Any:
    """`linalg.vector_norm` over dim of what counts; 0 (inf for ord=-inf) where nothing does."""
    order = 2.0 if ord is None else ord
    return LINALG["vector_norm"](_filled("norm", input, mask, inf if order == -inf else 0), order, _dims(input, dim), keepdim, dtype=dtype)


def _spread(name: str, input: Tensor, dim: Dims, unbiased: bool | None, correction: float | None, keepdim: bool, dtype: Any,
            mask: Tensor | None) -> Any:
    if unbiased is not None and correction is not None:
        raise ArgumentError(f"masked.{name}: give unbiased or correction, not both")
    _checked(name, input, mask)
    less = correction if correction is not None else 1.0 if unbiased is None or unbiased else 0.0
    keeps = dtype is None and dtype_kind(input.dtype) in "fc"
    x: Any = input if keeps else input.to(dtype=dtypes.get_default_dtype() if dtype is None else dtype)
    dims = _dims(input, dim)
    centred = _filled(name, x - mean(x, dim, keepdim=True, mask=mask), mask, 0)
    count = _count(input, mask, dims, keepdim).to(dtype=dtypes.real_of(x.dtype))
    return (centred * centred.conj()).sum(dims, keepdim) / (count - less).clamp(min=0.0)        # complex, of complex numbers, as in torch


def var(input: Tensor, dim: Dims = None, unbiased: bool | None = None, *, correction: float | None = None, keepdim: bool = False,
        dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The variances over dim of what counts, divided by its number less `correction` (1 unless given; unbiased=False: 0)."""
    return _spread("var", input, dim, unbiased, correction, keepdim, dtype, mask)


def std(input: Tensor, dim: Dims = None, unbiased: bool | None = None, *, correction: float | None = None, keepdim: bool = False,
        dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The square roots of `var`."""
    return _spread("std", input, dim, unbiased, correction, keepdim, dtype, mask).sqrt()


def cumsum(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """Running sums along dim of what counts."""
    return _filled("cumsum", input, mask, 0).cumsum(dim, dtype=input.dtype if dtype is None else dtype)


def cumprod(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """Running products along dim of what counts."""
    return _filled("cumprod", input, mask, 1).cumprod(dim, dtype=input.dtype if dtype is None else dtype)


def softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The softmax along dim of what counts, 0 elsewhere; NaN where nothing does."""
    return _filled("softmax", input, mask, _least(input.dtype)).softmax(dim, dtype=dtype)


def log_softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The logarithm of `softmax`."""
    return _filled("log_softmax", input, mask, _least(input.dtype)).log_softmax(dim, dtype=dtype)


def softmin(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """The softmax of -input along dim of what counts, 0 elsewhere."""
    return (-_filled("softmin", input, mask, _most(input.dtype))).softmax(dim, dtype=dtype)


def normalize(input: Tensor, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None, mask: Tensor | None = None) -> Any:
    """What counts, divided by its norm along dim (at least eps); 0 elsewhere."""
    size = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _filled("normalize", input, mask, 0) / size.clamp(min=eps)


__all__ = ["amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp", "mean", "median", "norm",
           "normalize", "prod", "softmax", "softmin", "std", "sum", "var"]
