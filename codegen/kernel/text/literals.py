"""Numbers as literals of C. Start at `literal`; `literal_marked` is the same with a mark at what an argument could stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.codegen.kernel.text.markup import number
from tracegrad.support.dtypes import OPENCL, DType, dtype_kind, float32, float64, int32, int64, uint32, uint64

# How tightly an expression holds together: what is below the level of where it stands is put in parentheses.
OPEN, LOGIC, COMPARISON, SUM, PRODUCT, PREFIX, ATOM = range(7)
_LITERALS = frozenset((int32, uint32, int64, uint64, float32, float64))          # dtypes that have literals in C
_SUFFIX = {int64: "L", uint32: "u", uint64: "UL"}


def literal(value: Any, dtype: DType) -> tuple[str, int]:
    """`value` as a C literal of exactly `dtype` (of another, it would make calls of overloaded functions ambiguous), and its level."""
    if dtype.kind == "b":
        return ("1" if value else "0"), ATOM
    if dtype.kind in "iu":
        v = int(value)
        if dtype.itemsize < 4:
            return (f"({OPENCL[dtype]}){v}" if v >= 0 else f"({OPENCL[dtype]})({v})"), PREFIX
        suffix = _SUFFIX.get(dtype, "")
        if v == -(1 << 63):
            return "-9223372036854775807L - 1", OPEN
        if v == -(1 << 31) and not suffix:
            return "-2147483647 - 1", OPEN
        return f"{v}{suffix}", OPEN if v < 0 else ATOM
    x = float(value)
    if x != x or x in (float("inf"), float("-inf")):
        text = "NAN" if x != x else "INFINITY" if x > 0 else "-INFINITY"
        if dtype == np.float64:
            return f"(double)({text})" if x < 0 else f"(double){text}", PREFIX
        return text, OPEN if x < 0 else ATOM
    text = repr(x) if dtype == np.float64 else str(np.float32(x))
    if "." not in text and "e" not in text:
        text += ".0"
    return text if dtype == np.float64 else text + "f", OPEN if text[0] == "-" else ATOM


def whole_marked(value: int) -> str:
    """A whole number of an index, marked."""
    return f"-{number(str(-value), int32)}" if value < 0 else number(str(value), int32)


def literal_marked(value: Any, dtype: DType) -> tuple[str, int]:
    """`literal`, marked if it is a number that an argument could stand for."""
    text, level = literal(value, dtype)
    kind = dtype_kind(dtype)
    if dtype not in _LITERALS or (kind == "f" and not np.isfinite(value)) or (kind == "i" and abs(int(value)) >> 31):
        return text, level
    return (f"-{number(text[1:], dtype)}" if text[0] == "-" else number(text, dtype)), level
