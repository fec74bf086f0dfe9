"""Values as Python on numpy's, with C's types: what C does by itself, for `kernel.run`. Start at `Term`.

Small integers become ints, unsigned ones wrap, the lesser of two types becomes the other. One value is a Python int, or a float of numpy's;
a vector is an array. What the text calls stands in `NAMES`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracegrad.support.dtypes import OPENCL, DType, float32, float64, int32, int64, uint32, uint64

COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!=", "&&", "||"))
Array = np.ndarray[Any, Any]
_RANK = (int32, uint32, int64, uint64, float32, float64)           # C computes with the one of two that is further behind
_WRAPPED: dict[DType, str] = {
    int32: "_int({})", int64: "_checked({})", uint32: f"({{}} & {(1 << 32) - 1})", uint64: f"({{}} & {(1 << 64) - 1})"}


class Term(NamedTuple):
    """A value as Python text, and its C type."""

    code: str
    dtype: DType
    lanes: int = 1

    @property
    def whole(self) -> bool:
        return self.dtype.kind in "iu"

    def one(self, dtype: DType) -> str:
        """One value as another dtype, as C converts it."""
        if self.dtype == dtype:
            return self.code
        if dtype.kind == "f":
            return f"{dtype.name}({self.code})"
        alike = self.dtype.kind == dtype.kind
        wider = self.whole and self.dtype.kind in ("u", dtype.kind) and self.dtype.itemsize < dtype.itemsize + alike
        return self.code if wider else f"whole({self.code}, d_{dtype.name})"

    def as_(self, dtype: DType, lanes: int = 1) -> str:
        """It where a value of this type is wanted."""
        if self.lanes > 1:
            return self.code
        return self.one(dtype) if lanes == 1 else f"_lanes_of({self.code}, {lanes}, d_{dtype.name})"


def promoted(dtype: DType) -> DType:
    """Small integers are ints."""
    return int32 if dtype.kind in "iu" and dtype.itemsize < 4 else dtype


def common(*terms: Term) -> tuple[DType, int]:
    """The type in which C computes with several, and how many lanes."""
    wide = [t for t in terms if t.lanes > 1]
    return wide[0][1:] if wide else (max([promoted(t.dtype) for t in terms], key=_RANK.index), 1)


def wrapped(code: str, dtype: DType) -> str:
    """An integer that was computed, as one of its dtype: an unsigned one wraps, of others it is a fault not to fit."""
    return _WRAPPED[dtype].format(code)


def single(code: str, dtype: DType) -> str:
    """What numpy computed, as one value."""
    return f"{dtype.name if dtype.kind == 'f' else 'int'}({code})"


def binary(sign: str, a: Term, b: Term) -> Term:
    """a sign b."""
    if sign in ("&&", "||"):
        return Term(f"int(bool({a.code}) {'and' if sign == '&&' else 'or'} bool({b.code}))", int32)
    dtype, lanes = common(a, b)
    shifts = sign in ("<<", ">>") and lanes == 1
    dtype = promoted(a.dtype) if shifts else dtype
    x, y = (t.code if shifts else t.as_(dtype, lanes) for t in (a, b))
    code = f"({x} {sign} {y})"
    if sign in COMPARISONS:
        mask = np.dtype(f"i{dtype.itemsize}")
        return Term(f"(-{code}.astype(d_{mask.name}))", mask, lanes) if lanes > 1 else Term(f"int{code}", int32)
    if dtype.kind in "iu" and sign in "/%":
        code = f"{'_vector' * (lanes > 1)}{'_divided' if sign == '/' else '_rest'}({x}, {y})"
    elif dtype.kind in "iu" and lanes == 1 and sign in "+-*":
        code = wrapped(code, dtype)
    elif sign == "<<" and lanes == 1:                        # OpenCL C drops the bits that do not fit, of signed numbers, too
        code = f"whole({code}, d_{dtype.name})"
    return Term(code, dtype, lanes)


# --------------------------------------------------------------------------------------------------------------- C's operators


def _checked(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"signed overflow: {value}")
    return value


def _int(value: int) -> int:
    if not -(1 << 31) <= value < 1 << 31:
        raise OverflowError(f"signed overflow: {value} is no int")
    return value


def _divided(a: int, b: int) -> int:
    if not b:
        raise ZeroDivisionError("integer division by zero")
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _rest(a: int, b: int) -> int:
    return a - _divided(a, b) * b


def _vector_divided(a: Array, b: Array) -> Array:
    if not np.all(b):
        raise ZeroDivisionError("integer division by zero")
    q = np.abs(a) // np.abs(b) if a.dtype.kind == "i" else a // b
    return np.asarray(np.where((a < 0) != (b < 0), -q, q) if a.dtype.kind == "i" else q, a.dtype)


def _vector_rest(a: Array, b: Array) -> Array:
    return np.asarray(a - _vector_divided(a, b) * b)


def whole(value: Any, dtype: np.dtype[Any]) -> int:
    """A number as an integer of `dtype`: a float is truncated (what does not fit is undefined in C, and numpy's here), an integer wraps."""
    if isinstance(value, (float, np.floating)):
        truncated: int = np.asarray(value).astype(dtype).item()
        return truncated
    bits = 8 * dtype.itemsize
    wrapped: int = int(value) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if dtype.kind == "i" and wrapped >> (bits - 1) else wrapped


def _lanes_of(value: Any, lanes: int, dtype: np.dtype[Any]) -> Array:
    out = np.empty(lanes, dtype)
    np.copyto(out, value, casting="unsafe")
    return out


def _selected(mask: Array, a: Any, b: Any) -> Array:
    return np.asarray(np.where(mask < 0, a, b))


NAMES: dict[str, Any] = {
    **{f"d_{d.name}": d for d in OPENCL}, "np": np, "float32": float32.type, "float64": float64.type, "whole": whole,
    **{f.__name__: f for f in (_checked, _int, _divided, _rest, _vector_divided, _vector_rest, _lanes_of, _selected)},
}
