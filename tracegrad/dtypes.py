"""The dtypes, their promotion, and their OpenCL names.

tracegrad uses numpy's dtype objects: `tg.float32` is `np.dtype("float32")`. Promotion is torch's: a tensor of a higher
category (bool < integer < float) wins, then the wider. 0-d tensors only raise the category beside tensors with dimensions; Python
and numpy scalars are weak: they only raise it, too, and then to the default of that category.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import DTypeError

DType = np.dtype[Any]

float16, float32, float64 = np.dtype("float16"), np.dtype("float32"), np.dtype("float64")
int8, int16, int32, int64 = np.dtype("int8"), np.dtype("int16"), np.dtype("int32"), np.dtype("int64")
uint8, uint16, uint32, uint64 = np.dtype("uint8"), np.dtype("uint16"), np.dtype("uint32"), np.dtype("uint64")
bool_ = np.dtype("bool")

# dtype -> (OpenCL type held in registers, OpenCL type in memory). A bool is a char in memory and an int in registers.
OPENCL = {
    float16: "half", float32: "float", float64: "double", int8: "char", int16: "short", int32: "int", int64: "long",
    uint8: "uchar", uint16: "ushort", uint32: "uint", uint64: "ulong", bool_: "uchar",
}
_ALIASES: dict[str, DType] = {"float": float32, "double": float64, "half": float16, "long": int64, "int": int32, "bool": bool_}
_default_float = [float32]


def as_dtype(dtype: Any) -> DType:
    """The dtype that `dtype` names: a numpy dtype or type, a Python type, or a name such as "float32"."""
    if dtype is float:
        return float64
    if dtype is int:
        return int64
    if dtype is bool:
        return bool_
    try:
        found: DType = _ALIASES[dtype] if isinstance(dtype, str) and dtype in _ALIASES else np.dtype(dtype)
    except TypeError:
        raise DTypeError(f"dtype: {dtype!r} is not a dtype; use tg.float32, tg.int64, ... or their names") from None
    if found not in OPENCL:
        raise DTypeError(f"dtype: {found} is not supported; supported are {', '.join(str(d) for d in OPENCL)}")
    return found


def get_default_dtype() -> DType:
    """The dtype of Python floats and of float creation functions (float32 unless set)."""
    return _default_float[0]


def set_default_dtype(dtype: Any) -> None:
    """Make `dtype` (a float dtype) the default of Python floats and of creation functions."""
    found = as_dtype(dtype)
    if not is_float(found):
        raise DTypeError(f"set_default_dtype: {found} is not a float dtype")
    _default_float[0] = found


def is_float(dtype: DType) -> bool:
    return dtype.kind == "f"


def is_int(dtype: DType) -> bool:
    return dtype.kind in "iu"


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 float."""
    return {"b": 0, "i": 1, "u": 1, "f": 2}[dtype.kind]


def promote(a: DType, b: DType) -> DType:
    """The dtype of an operation on tensors of dtypes `a` and `b`, as torch.promote_types gives it."""
    if a == b:
        return a
    ca, cb = category(a), category(b)
    if ca != cb:
        return a if ca > cb else b
    return np.promote_types(a, b) if {a, b} & {uint64} == set() or ca == 2 else uint64


def promote_scalar(dtype: DType, value: bool | int | float) -> DType:
    """The dtype of an operation on a tensor of `dtype` and the weak Python scalar `value`."""
    if isinstance(value, (bool, np.bool_)):
        return dtype
    if isinstance(value, (int, np.integer)):
        return dtype if category(dtype) >= 1 else int64
    return dtype if category(dtype) == 2 else get_default_dtype()
