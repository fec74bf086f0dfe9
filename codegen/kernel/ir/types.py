"""What values are in registers: the OpenCL type of a dtype and a number of lanes. Start at `register_type`."""

from __future__ import annotations

from tracegrad.codegen.kernel.ir.vectors import computed_in, ctype
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import OPENCL, DType, int32


@memoize(None)
def register_type(dtype: DType, width: int = 1, mask: int = 4) -> str:
    """The type a value of `dtype` has in registers. (Bools: int, vectors of them masks of `mask` bytes a lane; halves: float.)"""
    if dtype.kind == "b":
        return "int" if width == 1 else mask_type(mask, width)
    return ctype(computed_in(dtype), width)


@memoize(None)
def register_dtype(dtype: DType) -> DType:
    """The dtype of one value as `register_type` holds it."""
    return int32 if dtype.kind == "b" else computed_in(dtype)


def mask_type(size: int, width: int) -> str:
    """The vector type of a comparison of `width` elements of `size` bytes."""
    return f"{_SIGNED[size]}{width}"


def size_of(type_: str) -> int:
    """Bytes of a value of an OpenCL type."""
    return _SIZES[type_]


def lanes_of(type_: str) -> int:
    """How many values a value of an OpenCL type is."""
    return _LANES.get(type_, 1)


def dtype_of(type_: str) -> DType:
    """The dtype of one of them."""
    return _DTYPES[type_]


_WIDTHS = (1, 2, 4, 8, 16)
_DTYPES = {f"{name}{n if n > 1 else ''}": dtype for dtype, name in OPENCL.items() if dtype.kind != "b" for n in _WIDTHS}
_LANES = {f"{name}{lanes}": lanes for name in OPENCL.values() for lanes in (2, 4, 8, 16)}
_SIZES = {f"{name}{lanes if lanes > 1 else ''}": dtype.itemsize * lanes for dtype, name in OPENCL.items() for lanes in (1, 2, 4, 8, 16)}
_SIGNED = {1: "char", 2: "short", 4: "int", 8: "long"}
