"""Questions about elements, whose answers are bools: isinf, isfinite, logical_and, ... Comparisons and isnan are in `pointwise.py`."""

from __future__ import annotations

from typing import Any

from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import Operators, public
from tracegrad.ops.arrays.pointwise import abs_, acceptable, bitwise_and, bitwise_not, bitwise_or, bitwise_xor, eq, imag, lt, ne, real
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


@public("isinf")
def isinf(input: Array) -> Array:
    """Whether x is +inf or -inf (of a complex number: a part of it).
    dtype: any; the result is bool. Raises DTypeError for what is no tensor.

    >>> tg.isinf(tg.tensor([1.0, float("-inf"), float("nan")]))
    Tensor([False,  True, False], device='cpu')
    """
    if input.dtype.kind == "c":
        return isinf(real(input)) | isinf(imag(input))
    return eq(abs_(input), float("inf")) if dtype_kind(input.dtype) == "f" else ne(input, input)


@public("isfinite")
def isfinite(input: Array) -> Array:
    """Whether x is neither infinite nor NaN (of a complex number: both parts).
    dtype: any; the result is bool. Raises DTypeError for what is no tensor.

    >>> tg.isfinite(tg.tensor([1.0, float("inf"), float("nan")]))
    Tensor([ True, False, False], device='cpu')
    """
    if input.dtype.kind == "c":
        return isfinite(real(input)) & isfinite(imag(input))
    return lt(abs_(input), float("inf")) if dtype_kind(input.dtype) == "f" else eq(input, input)


def _logical(name: str, bitwise: Any, input: Array, other: Array) -> Array:
    broadcast_shapes(name, [a.shape for a in (input, other) if isinstance(a, Operators)] or [()])
    return bitwise(_as_bool(input), _as_bool(other))


def _as_bool(x: Array) -> Array:
    if not isinstance(x, Operators):
        return bool(x) if acceptable(x) else x
    return x if x.dtype == dtypes.bool_ else ne(x, 0)


@public("logical_and")
def logical_and(input: Array, other: Array) -> Array:
    """Whether both are nonzero. dtype: any; the result is bool. ShapeError where shapes do not broadcast.

    >>> tg.logical_and(tg.tensor([0, 1, 2]), tg.tensor([True, True, False]))
    Tensor([False,  True, False], device='cpu')
    """
    return _logical("logical_and", bitwise_and, input, other)


@public("logical_or")
def logical_or(input: Array, other: Array) -> Array:
    """Whether either is nonzero. dtype: any; the result is bool. ShapeError where shapes do not broadcast.

    >>> tg.logical_or(tg.tensor([0, 1, 2]), tg.tensor([False, True, False]))
    Tensor([False,  True,  True], device='cpu')
    """
    return _logical("logical_or", bitwise_or, input, other)


@public("logical_xor")
def logical_xor(input: Array, other: Array) -> Array:
    """Whether exactly one is nonzero. dtype: any; the result is bool. ShapeError where shapes do not broadcast.

    >>> tg.logical_xor(tg.tensor([0, 1, 2]), tg.tensor([True, True, False]))
    Tensor([ True, False,  True], device='cpu')
    """
    return _logical("logical_xor", bitwise_xor, input, other)


@public("logical_not")
def logical_not(input: Array) -> Array:
    """Whether it is zero. Any shape. dtype: any; the result is bool. Raises DTypeError for what is no tensor.

    >>> tg.logical_not(tg.tensor([0, 1, 2]))
    Tensor([ True, False, False], device='cpu')
    """
    return bitwise_not(_as_bool(input))
