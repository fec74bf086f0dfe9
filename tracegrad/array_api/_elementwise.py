"""The standard's elementwise functions: tracegrad's own, positional-only, with the standard's promotion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.array_api._common import Array, arrays, promoted, tg
from tracegrad.support import dtypes


def _named(function: Any, name: str, of: Callable[..., Any]) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{(of.__doc__ or '').strip().splitlines()[0]} (tracegrad's `{of.__name__}`, by the standard's rules.)"
    return function


def _unary(name: str, own: str = "") -> Any:
    fn = getattr(tg, own or name)

    def function(x: Array, /) -> Array:
        return fn(x)

    return _named(function, name, fn)


def _binary(name: str, own: str = "", operands: Any = promoted) -> Any:
    fn = getattr(tg, own or name)

    def function(x1: Array, x2: Array, /) -> Array:
        return fn(*operands(name, x1, x2))

    return _named(function, name, fn)


acos, acosh, asin, asinh, atan, atanh = map(_unary, ("acos", "acosh", "asin", "asinh", "atan", "atanh"))
cos, cosh, sin, sinh, tan = map(_unary, ("cos", "cosh", "sin", "sinh", "tan"))
exp, log, log1p, log2, log10 = map(_unary, ("exp", "log", "log1p", "log2", "log10"))
abs, ceil, floor, real, sqrt, square, trunc = map(_unary, ("abs", "ceil", "floor", "real", "sqrt", "square", "trunc"))
conj, negative, positive, reciprocal, signbit = map(_unary, ("conj", "negative", "positive", "reciprocal", "signbit"))
isfinite, isinf, isnan, logical_not = map(_unary, ("isfinite", "isinf", "isnan", "logical_not"))
bitwise_invert = _unary("bitwise_invert", "bitwise_not")

add, atan2, divide, multiply, remainder, subtract = map(_binary, ("add", "atan2", "divide", "multiply", "remainder", "subtract"))
bitwise_and, bitwise_left_shift, bitwise_or, bitwise_right_shift, bitwise_xor = map(
    _binary, ("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor")
)
equal, not_equal = _binary("equal", "eq"), _binary("not_equal", "ne")
greater, greater_equal, less, less_equal = map(_binary, ("greater", "greater_equal", "less", "less_equal"))
logical_and, logical_or, logical_xor = map(_binary, ("logical_and", "logical_or", "logical_xor"))
maximum, minimum, pow = map(_binary, ("maximum", "minimum", "pow"))
copysign, hypot, logaddexp, nextafter = (_binary(name, operands=arrays) for name in ("copysign", "hypot", "logaddexp", "nextafter"))


def clip(x: Array, /, min: Array = None, max: Array = None) -> Array:
    """x limited to [min, max]: numbers or arrays that broadcast, None for no limit. NaN where x or a limit is. The result has x's dtype."""
    if min is None and max is None:
        return tg.clone(x)
    return tg.clamp(*promoted("clip", x, min, max)).to(dtype=x.dtype)


def expm1(x: Array, /) -> Array:
    """exp(x) - 1, accurate near 0. Of a complex -0 (+-) 0j, the real part is +0."""
    y = tg.expm1(x)
    if not dtypes.is_complex(x.dtype):
        return y
    im = tg.imag(x)
    return tg.where(x == 0, tg.complex(tg.zeros_like(im), im), y)


def floor_divide(x1: Array, x2: Array, /) -> Array:
    """The largest integer not above x1 / x2; with an infinite operand floor(x1 / x2), where torch has NaN and -1."""
    a, b = arrays("floor_divide", x1, x2)
    quotient = tg.floor_divide(a, b)
    return tg.where(tg.isinf(a) | tg.isinf(b), tg.floor(a / b), quotient) if dtypes.is_float(quotient.dtype) else quotient


def imag(x: Array, /) -> Array:
    """The imaginary part; of real numbers 0 (torch refuses them)."""
    return tg.imag(x) if dtypes.is_complex(x.dtype) else tg.zeros_like(x)


def round(x: Array, /) -> Array:
    """The nearest integer, halves to even; of a complex number (which torch refuses) both parts."""
    return tg.complex(tg.round(tg.real(x)), tg.round(tg.imag(x))) if dtypes.is_complex(x.dtype) else tg.round(x)


def sign(x: Array, /) -> Array:
    """-1, 0 or 1 by the element's sign, x / |x| for complex x; NaN for NaN (0 in torch)."""
    return tg.where(tg.isnan(x), x, tg.sign(x)) if dtypes.is_float(x.dtype) else tg.sgn(x)


def tanh(x: Array, /) -> Array:
    """The hyperbolic tangent. Of one with an infinite real part, the imaginary part is 0 with x's sign (in torch, sin 2x's)."""
    y = tg.tanh(x)
    if not dtypes.is_complex(x.dtype):
        return y
    re, im = tg.real(x), tg.imag(x)
    return tg.where(tg.isinf(re), tg.complex(tg.real(y), tg.copysign(tg.zeros_like(im), im)), y)


__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp",
    "expm1", "floor", "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan", "less", "less_equal",
    "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum",
    "multiply", "negative", "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round", "sign", "signbit",
    "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip
