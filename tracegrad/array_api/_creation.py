"""The standard's creation functions: tracegrad's own under the standard's names of arguments."""

from __future__ import annotations

from typing import Any

from tracegrad.array_api._common import Array, tg
from tracegrad.support import dtypes

Shape = int | tuple[int, ...]


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Array:
    """start, start + step, ... below stop (or 0, 1, ... below start)."""
    return tg.arange(start, stop, step, dtype=dtype, device=device)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """`tg.asarray`: obj as an array, copied if copy is True or it must be."""
    return tg.asarray(obj, dtype=dtype, device=device, copy=copy)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """`tg.from_dlpack`: an array of an object that supports DLPack."""
    return tg.from_dlpack(x, device=device, copy=copy)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """An array to be overwritten (it holds zeros)."""
    return tg.empty(shape, dtype=dtype, device=device)


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """Zeros of the default float dtype, unless given."""
    return tg.zeros(shape, dtype=dtype, device=device)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """Ones of the default float dtype, unless given."""
    return tg.ones(shape, dtype=dtype, device=device)


def full(shape: Shape, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array filled with a number, whose kind gives the dtype unless dtype does."""
    return tg.full(shape, fill_value, dtype=dtype, device=device)


def empty_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """`empty`, with the shape, dtype and device of x unless given."""
    return tg.empty_like(x, dtype=dtype, device=device)


def zeros_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Zeros, with the shape, dtype and device of x unless given."""
    return tg.zeros_like(x, dtype=dtype, device=device)


def ones_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Ones, with the shape, dtype and device of x unless given."""
    return tg.ones_like(x, dtype=dtype, device=device)


def full_like(x: Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """An array filled with a number, with the shape, dtype and device of x unless given."""
    return tg.full_like(x, fill_value, dtype=dtype, device=device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Array:
    """Ones on diagonal k of a matrix of zeros."""
    columns = n_rows if n_cols is None else n_cols
    k = max(-n_rows, min(k, columns))                           # beyond the matrix is beyond the matrix, and may not fit int64
    on = tg.arange(columns, device=device) == tg.unsqueeze(tg.arange(n_rows, device=device), 1) + k
    return on.to(dtype=dtypes.get_default_dtype() if dtype is None else dtype)


def linspace(start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True) -> Array:
    """num evenly spaced values from start to stop, which is among them unless endpoint is False."""
    values = tg.linspace(start, stop, num if endpoint else num + 1, dtype=dtype, device=device)
    return values if endpoint else values[:num]


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """The coordinates of a grid, an array for each vector. indexing: "xy" (the first two dimensions exchanged) or "ij"."""
    return list(tg.meshgrid(*arrays, indexing=indexing)) if arrays else []


def tril(x: Array, /, *, k: int = 0) -> Array:
    """The elements on and below diagonal k of each matrix, zeros above."""
    return tg.tril(x, k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """The elements on and above diagonal k of each matrix, zeros below."""
    return tg.triu(x, k)


__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace", "meshgrid", "ones", "ones_like",
    "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip
