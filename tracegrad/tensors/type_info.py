"""What there is to know of dtypes, under torch's names: `finfo`, `iinfo`, `promote_types`, `result_type`, `can_cast`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import DTypeError
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.tensor import Tensor

dtype = np.dtype                    # the class of tg.float32, ...: isinstance(x.dtype, tg.dtype)


class finfo:
    """The limits of a float dtype (default: the default one); of a complex dtype, those of its parts. Python floats, as in torch.

    bits, eps (1 + eps is the next number after 1), max, min, tiny and smallest_normal (the smallest positive normal number),
    resolution (of decimals), dtype. Raises DTypeError for other dtypes.

    >>> tg.finfo(tg.float32).eps
    """

    def __init__(self, type: Any = None) -> None:
        found = dtypes.get_default_dtype() if type is None else dtypes.as_dtype(type)
        if dtype_kind(found) not in "fc":
            raise DTypeError(f"finfo: takes a float or complex dtype, got {found}; use tg.iinfo")
        self.dtype = dtypes.real_of(found)
        known = dtypes.finfo(self.dtype)
        self.bits = int(known.bits)
        self.eps, self.max, self.min, self.tiny = (float(v) for v in (known.eps, known.max, known.min, known.tiny))
        self.smallest_normal, self.resolution = self.tiny, 10.0**-int(known.precision)

    def __repr__(self) -> str:
        return (f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
                f"smallest_normal={self.tiny:g}, tiny={self.tiny:g}, dtype={self.dtype})")


class iinfo:
    """The limits of an integer dtype: bits, max, min, dtype. Raises DTypeError for other dtypes.

    >>> tg.iinfo(tg.int8).max
    """

    def __init__(self, type: Any) -> None:
        self.dtype = dtypes.as_dtype(type)
        if not dtypes.is_int(self.dtype):
            raise DTypeError(f"iinfo: takes an integer dtype, got {self.dtype}; use tg.finfo")
        known = np.iinfo(self.dtype)
        self.bits, self.max, self.min = int(known.bits), int(known.max), int(known.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def promote_types(type1: Any, type2: Any) -> Any:
    """The dtype of an operation on tensors (with dimensions) of two dtypes. Raises DTypeError for what is no dtype.

    >>> tg.promote_types(tg.int32, tg.float16)
    """
    return dtypes.promote(dtypes.as_dtype(type1), dtypes.as_dtype(type2))


def result_type(tensor1: Any, tensor2: Any) -> Any:
    """The dtype of an operation on two operands, each a tensor or a Python number: those without dimensions only raise the kind.

    >>> tg.result_type(tg.ones(3, dtype=tg.int32), 1.5)
    """
    for operand in (tensor1, tensor2):
        if not isinstance(operand, (Tensor, bool, int, float, complex, np.generic)):
            raise DTypeError(f"result_type: takes tensors and numbers, got {type(operand).__name__}")
    (a, ranked), (b, other) = (_weight(x) for x in (tensor1, tensor2))
    if ranked == other:
        return dtypes.promote(a, b)
    strong, weak = (a, b) if ranked > other else (b, a)
    if dtypes.category(weak) <= dtypes.category(strong):
        return strong
    return dtypes.complex_of(strong) if weak.kind == "c" and dtype_kind(strong) == "f" else weak


def _weight(operand: Any) -> tuple[Any, int]:
    """The dtype of an operand, and how much it counts: 2 with dimensions, 1 as a tensor without, 0 as a number."""
    if isinstance(operand, Tensor):
        return operand.dtype, (2 if operand.ndim else 1) if not operand._n.aval.weak else 0
    value = operand.item() if isinstance(operand, np.generic) else operand
    return dtypes.default_of(dtypes.as_dtype(type(value))), 0


def can_cast(from_: Any, to: Any) -> bool:
    """Whether torch's in-place operations and out= take a result of dtype `from_` for a tensor of dtype `to`: not to a lower kind.

    Raises DTypeError for what is no dtype.

    >>> tg.can_cast(tg.float64, tg.float32), tg.can_cast(tg.float32, tg.int64)
    """
    return dtypes.category(dtypes.as_dtype(from_)) <= dtypes.category(dtypes.as_dtype(to))
