"""The functions that kernels call, with numpy's meaning: the math library is not interpreted (tests/codegen/test_mathlib.py has it)."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tracegrad.graph.families import Elementwise
from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.special.polynomials import OrthogonalPolynomial
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType, bfloat16, float16
from tracegrad.support.philox import philox_block


@memoize(None)
def functions() -> dict[str, Callable[..., Any]]:
    """The functions that kernels call, by the names that ops spell, with numpy's meaning."""
    found: dict[str, Callable[..., Any]] = {}
    for fn in REGISTRY.values():
        orders: tuple[dict[str, int], ...] = ({}, {"order": 1}, {"order": 2}) if isinstance(fn, OrthogonalPolynomial) else ({},)
        for attrs in orders if isinstance(fn, Elementwise) and not fn.cases else ():
            try:
                text = fn.opencl(*"abc"[:fn.nin], **attrs)  # type: ignore[attr-defined]
            except TypeError:
                continue
            match = re.fullmatch(r"(\w+)\((a(, b)?(, c)?)\)", text)
            if match and len(match[2].split(", ")) == fn.nin:  # type: ignore[attr-defined]
                found[match[1]] = fn.numpy_with(**attrs)
    found |= {
        "fabs": np.abs, "abs": np.abs, "min": np.minimum, "max": np.maximum, "fmin": np.fmin, "fmax": np.fmax, "sqrt": np.sqrt,
        "fma": lambda a, b, c: a * b + c, "mad": lambda a, b, c: a * b + c, "copysign": np.copysign, "rint": np.rint, "log1p": np.log1p,
        "exp_nonpositive": np.exp, "cos_narrow": np.cos,
        "tg_to_half": partial(_rounded, float16), "tg_to_bfloat": partial(_rounded, bfloat16),
        "tg_remainder_by": _by(np.remainder), "tg_floordiv_by": _by(np.floor_divide),
    }
    for name, exact in (("plus", _two_sum), ("times", _two_product)):
        found[f"tg_pair_{name}"] = lambda *operands, exact=exact: _pair(*exact(*operands))[0]
        found[f"tg_pair_{name}_low"] = lambda *operands, exact=exact: _pair(*exact(*operands))[1]
    found["tg_sum_lost"] = lambda a, b: _two_sum(a, 0, b)[1]
    found["tg_sum_whole"] = lambda total, low: np.where(np.isfinite(low), total + low, total)[()]
    for word in range(4):
        found[f"philox{word}"] = lambda a, b, c, d, word=word: philox_block(a, b, c, d)[word]
    for name, meaning in list(found.items()):
        found.setdefault(f"tg_{name}", meaning)
        if name.startswith("tg_"):
            found.setdefault(name.removeprefix("tg_"), meaning)
    found["tg_pow_int"] = found["pow"]
    return found


def _by(divide: Callable[..., Any]) -> Callable[..., Any]:
    """Division by what the generator knows to be positive."""
    def meaning(a: Any, b: Any) -> Any:
        assert np.all(np.asarray(b) > 0), f"a divisor that was said to be positive: {b}"
        return divide(a, b)

    return meaning


def _two_sum(a: Any, low: Any, b: Any, b_low: Any = 0) -> tuple[Any, Any]:
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back) + (low + b_low)


def _two_product(a: Any, low: Any, b: Any, b_low: Any = 0) -> tuple[Any, Any]:
    product = a * b
    rest = np.float64(a) * np.float64(b) - np.float64(product)               # (of float32: exact)
    return product, np.asarray(rest).astype(product.dtype)[()] + (a * b_low + low * b)


def _pair(x: Any, rest: Any) -> tuple[Any, Any]:
    some = np.isfinite(rest) & (rest != 0)
    total = np.where(some, x + rest, x)
    return total[()], np.where(some, rest - (total - x), total.dtype.type(0))[()]


def _rounded(dtype: DType, x: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x, dtype).astype(np.float32)[()]
