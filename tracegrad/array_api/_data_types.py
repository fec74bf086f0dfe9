"""Dtypes: what they are called, what they hold, how they promote, and `astype`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from tracegrad.array_api._common import SCALARS, Array
from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.tensor import Tensor

_KINDS = {"bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f", "complex floating": "c",
          "numeric": "iufc"}  # fmt: skip


@dataclass(frozen=True)
class FloatInfo:
    """What finfo returns: the limits of a float dtype (of a complex dtype's parts). dtype is that float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any


@dataclass(frozen=True)
class IntegerInfo:
    """What iinfo returns: the limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: Any


def _dtype(call: str, x: Any) -> Any:
    if isinstance(x, SCALARS) or x is None:
        raise DTypeError(f"{call}: expected a dtype or an array, got {x!r}")
    return x.dtype if isinstance(x, Tensor) else dtypes.as_dtype(x)


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """x as dtype: a copy, or (copy=False) x itself if it has that dtype. Raises DTypeError for complex numbers as real ones."""
    found = dtypes.as_dtype(dtype)
    if x.dtype.kind == "c" and found.kind not in "cb":
        raise DTypeError(f"astype: {x.dtype} cannot become {found}, since that is ambiguous; take real(x) or imag(x) first")
    return x.to(dtype=found, device=device, copy=copy)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion leads from a dtype (or an array's) to another."""
    a, b = _dtype("can_cast", from_), dtypes.as_dtype(to)
    return bool(dtypes.promote(a, b) == b)


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a float dtype, or of the parts of a complex one; `type` may be an array. Raises DTypeError for others."""
    found = _dtype("finfo", type)
    if dtype_kind(found) not in "fc":
        raise DTypeError(f"finfo: takes float and complex dtypes, got {found}; use iinfo for integers")
    info = dtypes.finfo(found)
    return FloatInfo(int(info.bits), float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), np.dtype(info.dtype))


def iinfo(type: Any, /) -> IntegerInfo:
    """The limits of an integer dtype; `type` may be an array. Raises DTypeError for others."""
    found = _dtype("iinfo", type)
    if found.kind not in "iu":
        raise DTypeError(f"iinfo: takes integer dtypes, got {found}; use finfo for floats")
    info = np.iinfo(found)
    return IntegerInfo(info.bits, info.max, info.min, found)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether dtype is of a kind ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating" or

    "numeric"), or equal to the dtype `kind`, or any of a tuple of those. Raises ArgumentError for another kind.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ArgumentError(f"isdtype: kind must be a dtype or one of {', '.join(map(repr, _KINDS))}, got {kind!r}")
        return dtype_kind(dtypes.as_dtype(dtype)) in _KINDS[kind]
    return bool(dtypes.as_dtype(dtype) == dtypes.as_dtype(kind))


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype of an operation on these arrays, dtypes and Python numbers; numbers only raise the kind."""
    strong = [_dtype("result_type", x) for x in arrays_and_dtypes if not isinstance(x, SCALARS)]
    if not strong:
        raise ArgumentError(f"result_type: expected at least one array or dtype, got {arrays_and_dtypes}")
    found = reduce(dtypes.promote, strong)
    for x in arrays_and_dtypes:
        found = dtypes.promote_scalar(found, x) if isinstance(x, SCALARS) else found
    return found


__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]
