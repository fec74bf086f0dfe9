"""The dtypes, their promotion, and their OpenCL names.

tracegrad uses numpy's dtype objects: `tg.float32` is `np.dtype("float32")`. numpy has no bfloat16: that one is `ml_dtypes`'. To numpy it is
of kind "V", so ask for the kind of a dtype by `dtype_kind`. Promotion is torch's: a tensor of a higher
category (bool < integer < float < complex) wins, then the wider. 0-d tensors only raise the category beside tensors with dimensions; Python
and numpy scalars are weak: they only raise it, too, and then to the default of that category. A complex number of some precision
beside a float of a higher one has the higher one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tracegrad.errors import DTypeError

DType = np.dtype[Any]

float16, float32, float64 = np.dtype("float16"), np.dtype("float32"), np.dtype("float64")
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
int8, int16, int32, int64 = np.dtype("int8"), np.dtype("int16"), np.dtype("int32"), np.dtype("int64")
uint8, uint16, uint32, uint64 = np.dtype("uint8"), np.dtype("uint16"), np.dtype("uint32"), np.dtype("uint64")
bool_ = np.dtype("bool")
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")

# dtype -> OpenCL type in memory. In registers a bool is an int, what is in HALVES a float. (OpenCL has no bfloat: see kernel/ir/bfloats.py)
OPENCL: dict[DType, str] = {
    float16: "half", bfloat16: "bfloat", float32: "float", float64: "double", int8: "char", int16: "short", int32: "int", int64: "long",
    uint8: "uchar", uint16: "ushort", uint32: "uint", uint64: "ulong", bool_: "uchar",
}
HALVES = (float16, bfloat16)                # 16 bits in memory, computed in float32, and rounded
COMPLEX: dict[DType, DType] = {complex64: float32, complex128: float64}          # and the dtype of their parts
SUPPORTED = (*OPENCL, *COMPLEX)
_HAVE = frozenset(SUPPORTED)                # (to compare with each takes ten times as long)
_ALIASES: dict[str, DType] = {"float": float32, "double": float64, "half": float16, "long": int64, "int": int32, "bool": bool_,
                              "cfloat": complex64, "cdouble": complex128}
OLDER: dict[str, DType] = {                # as torch's older types of tensors are called: FloatTensor, ...
    "Half": float16, "Float": float32, "Double": float64, "Bool": bool_, "Byte": uint8, "Char": int8, "Short": int16, "Int": int32,
    "Long": int64, "BFloat16": bfloat16,
}
default_float = [float32]
# What programs see in place of a dtype, and of which type that is: torch's under `tracegrad.as_torch`, which stand for these wherever a
# dtype is taken. Else NumPy's own.
users: dict[DType, Any] = {}
users_type: type = np.dtype
# By the identities of what lasts as long as the process: Python's types, dtypes, and what programs see in place of these. (NumPy asks the
# latter for attributes that they do not have, which takes 4 us.)
_known: dict[int, DType] = {id(float): float64, id(int): int64, id(bool): bool_, id(complex): complex128, **{id(d): d for d in SUPPORTED}}


def as_dtype(dtype: Any) -> DType:
    """The dtype that `dtype` names: a numpy dtype or type, a Python type, or a name such as "float32"."""
    known = _known.get(id(dtype))
    if known is not None:
        return known
    try:
        found: DType = _ALIASES[dtype] if isinstance(dtype, str) and dtype in _ALIASES else np.dtype(dtype)
    except TypeError:
        raise DTypeError(f"dtype: {dtype!r} is not a dtype; use tg.float32, tg.int64, ... or their names") from None
    if found not in _HAVE:
        raise DTypeError(f"dtype: {found} is not supported; supported are {', '.join(str(d) for d in SUPPORTED)}")
    return found


def show(names: Mapping[DType, Any], type_: type) -> None:
    """From now on programs see these in place of dtypes, which are of this type."""
    global users_type
    users.update(names)
    _known.update({id(shown): d for d, shown in names.items()})
    users_type = type_


def is_dtype(value: Any) -> bool:
    """Whether this is a dtype, or a type that stands for one."""
    return isinstance(value, (np.dtype, type, users_type))


def get_default_dtype() -> DType:
    """The dtype of Python floats and of float creation functions (float32 unless set).

    >>> tg.get_default_dtype()
    """
    return default_float[0]


def set_default_dtype(d: Any) -> None:
    """Make `d` (a float dtype) the default of Python floats and of creation functions. Raises DTypeError for others.

    >>> tg.set_default_dtype(tg.float32)
    """
    found = as_dtype(d)
    if not is_float(found):
        raise DTypeError(f"set_default_dtype: {found} is not a float dtype")
    default_float[0] = found


def dtype_kind(dtype: DType) -> str:
    """One letter: "b" bool, "i" and "u" integers, "f" floats (bfloat16, too, which numpy does not know), "c" complex numbers."""
    kind = dtype.kind
    return "f" if kind == "V" and dtype == bfloat16 else kind


def spelled(dtype: DType) -> str:
    """A text of which np.dtype makes the dtype again."""
    return dtype.name if dtype.kind == "V" else dtype.str


def finfo(dtype: DType) -> Any:
    """numpy's finfo; of bfloat16, too."""
    limits: Any = ml_dtypes.finfo if dtype == bfloat16 else np.finfo
    return limits(dtype)


def is_half(dtype: DType) -> bool:
    """Whether this is a float of 16 bits."""
    return dtype.itemsize == 2 and dtype_kind(dtype) == "f"


def is_float(dtype: DType) -> bool:
    return dtype_kind(dtype) == "f"


def is_int(dtype: DType) -> bool:
    return dtype.kind in "iu"


def is_complex(dtype: DType) -> bool:
    return dtype.kind == "c"


def differentiable(dtype: DType) -> bool:
    """Whether numbers of this dtype have derivatives: floats and complex numbers."""
    return dtype_kind(dtype) in "fc"


def real_of(dtype: DType) -> DType:
    """The dtype of a complex number's parts; of any other, the dtype itself."""
    return COMPLEX.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """The complex dtype whose parts are of the float dtype `dtype` (of halves and of other kinds: complex64, or the default's)."""
    if dtype.kind == "c":
        return dtype
    return complex128 if (dtype if dtype_kind(dtype) == "f" else get_default_dtype()) == float64 else complex64


def default_of(dtype: DType) -> DType:
    """What a Python number of `dtype` becomes as a tensor: the default float dtype, its complex one, or `dtype` itself."""
    return get_default_dtype() if dtype_kind(dtype) == "f" else complex_of(get_default_dtype()) if dtype.kind == "c" else dtype


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 float, 3 complex."""
    return {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}[dtype_kind(dtype)]


def promote(a: DType, b: DType) -> DType:
    """The dtype of an operation on tensors of dtypes `a` and `b`, as torch.promote_types gives it."""
    if a == b:
        return a
    ca, cb = category(a), category(b)
    if min(ca, cb) >= 2:                                    # beside any other dtype, both of 16 bits give the same: neither holds the other
        return float32 if a in HALVES and b in HALVES else np.promote_types(*(float16 if d == bfloat16 else d for d in (a, b)))
    if ca != cb:
        return a if ca > cb else b
    return np.promote_types(a, b) if {a, b} & {uint64} == set() else uint64


def promote_scalar(dtype: DType, value: bool | int | float | complex) -> DType:
    """The dtype of an operation on a tensor of `dtype` and the weak Python scalar `value`."""
    if isinstance(value, (bool, np.bool_)):
        return dtype
    if isinstance(value, (int, np.integer)):
        return dtype if category(dtype) >= 1 else int64
    if isinstance(value, (complex, np.complexfloating)):
        return complex_of(dtype)
    return dtype if category(dtype) >= 2 else get_default_dtype()
