"""The functions that kernels call, a line for each: what it means, and what it is called on each target. Start at `BUILTINS`.

`library` spells kernels by this table, and `kernel.run` takes the meanings: it does not interpret the library, whose texts
tests/codegen/test_mathlib.py compares with numpy. A function that an op is called by (`exp`) means what the op does, and has a line here
only if it is spelled in a special way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tracegrad.graph.operation_families import Elementwise
from tracegrad.graph.primitive import REGISTRY
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType, bfloat16, float16
from tracegrad.support.philox import philox_block
from tracegrad.support.plan import Plain

Meaning = Callable[..., Any]


class Builtin(Plain):
    """A function, by the name that ops spell. means: on numpy's values (None: what the op of that name does).

    floats, integers: what those of floats and of integers are called, if not so; weaker: OpenCL's, which promises less; wide: of floats it
    computes in double.
    """

    name: str
    means: Meaning | None = None
    floats: str = ""
    integers: str = ""
    weaker: str = ""
    wide: bool = False


def _by(divide: Meaning) -> Meaning:
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


def _pair(exact: Callable[..., tuple[Any, Any]], part: int, *operands: Any) -> Any:
    x, rest = exact(*operands)
    some = np.isfinite(rest) & (rest != 0)
    total = np.where(some, x + rest, x)
    return (total, np.where(some, rest - (total - x), total.dtype.type(0)))[part][()]


def _rounded(dtype: DType, x: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x, dtype).astype(np.float32)[()]


BUILTINS = {b.name: b for b in (
    Builtin("abs", np.abs, floats="fabs", integers="tg_abs"), Builtin("fabs", np.abs),
    Builtin("min", np.minimum, integers="tg_min"), Builtin("max", np.maximum, integers="tg_max"),
    Builtin("fmin", np.fmin), Builtin("fmax", np.fmax), Builtin("copysign", np.copysign), Builtin("rint", np.rint),
    Builtin("sqrt", np.sqrt), Builtin("log1p", np.log1p),
    Builtin("fma", lambda a, b, c: a * b + c), Builtin("mad", lambda a, b, c: a * b + c),
    # OpenCL's mean something else than numpy's, or are not there
    Builtin("sign", floats="tg_sign", integers="tg_sign"),
    Builtin("sigmoid", floats="tg_sigmoid"), Builtin("softplus", floats="tg_softplus"),
    Builtin("fmod", integers="tg_fmod"), Builtin("pow", integers="tg_pow_int", wide=True),
    Builtin("sin", wide=True), Builtin("cos", wide=True), Builtin("tan", wide=True),
    # names that promise something of their operand: that it is not positive, that it is small, that a divisor is positive
    Builtin("exp_nonpositive", np.exp, weaker="exp"), Builtin("cos_narrow", np.cos, weaker="cos", wide=True),
    Builtin("tg_remainder_by", _by(np.remainder)), Builtin("tg_floordiv_by", _by(np.floor_divide)),
    # of the library only
    Builtin("tg_to_half", partial(_rounded, float16)), Builtin("tg_to_bfloat", partial(_rounded, bfloat16)),
    Builtin("tg_pair_plus", partial(_pair, _two_sum, 0)), Builtin("tg_pair_plus_low", partial(_pair, _two_sum, 1)),
    Builtin("tg_pair_times", partial(_pair, _two_product, 0)), Builtin("tg_pair_times_low", partial(_pair, _two_product, 1)),
    Builtin("tg_sum_lost", lambda a, b: _two_sum(a, 0, b)[1]),
    Builtin("tg_sum_whole", lambda total, low: np.where(np.isfinite(low), total + low, total)[()]),
    *(Builtin(f"tg_philox{word}", lambda a, b, c, d, word=word: philox_block(a, b, c, d)[word]) for word in range(4)),
)}
PLAIN = Builtin("")                      # what has no line


def builtin(name: str) -> Builtin:
    """What the table says of a name that ops spell."""
    return BUILTINS.get(name, PLAIN)


def meaning(name: str) -> Meaning | None:
    """What a function that kernels call means, by any of its names (None: there is none)."""
    return _meanings().get(name)


@memoize(None)
def _meanings() -> dict[str, Meaning]:
    found: dict[str, Meaning] = {}
    for fn in REGISTRY.values():
        if not isinstance(fn, Elementwise) or fn.cases:
            continue
        for attrs in ({}, *({"order": k} for k in range(1, fn.orders))):
            try:
                text = fn.opencl(*"abc"[:fn.nin], **attrs)
            except TypeError:
                continue
            match = re.fullmatch(r"(\w+)\((a(, b)?(, c)?)\)", text)
            if match and len(match[2].split(", ")) == fn.nin:
                found[match[1]] = fn.numpy_with(**attrs)
    found |= {b.name: b.means for b in BUILTINS.values() if b.means is not None}
    for name, means in list(found.items()):
        for other in (f"tg_{name}", name.removeprefix("tg_"), builtin(name).floats or name, builtin(name).integers or name):
            found.setdefault(other, means)
    return found
