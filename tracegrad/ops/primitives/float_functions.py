"""Elementwise primitives of floats: powers, exponentials, logarithms, trigonometric and hyperbolic functions, erf.

One class per op, derivative beside meaning, as in `elementwise.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.graph.operation import Pair
from tracegrad.graph.operation_families import Elementwise, Float
from tracegrad.graph.primitive import REGISTRY, fixed
from tracegrad.ops.primitives import complex_parts
from tracegrad.ops.primitives.elementwise import bitwise_and, bitwise_not, eq, ge, gt, real, where
from tracegrad.ops.primitives.formula import erf_of
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

_FEW: dict[float, Any] = {2.0: lambda x: x * x, 3.0: lambda x: x * x * x, 4.0: lambda x: np.square(x * x)}


class Pow(Elementwise):
    """a to the power b. Integers wrap; to a negative integer power they are 1, -1 or 0, as in torch."""
    name, nin, kinds, domain, holomorphic = "pow", 2, "iufc", (0.2, 2.0), True
    operator = ("**", 9)
    flops, in_steps = 60, True

    def numpy(self, a, b):
        if b.dtype.kind == "c":
            whole = (b.imag == 0) & (b.real < 0) & (b.real == np.floor(b.real))             # numpy's 1 / z^n: NaN of infinities
            return np.where(whole, 1 / np.power(a, np.where(whole, -b, 1)), np.power(a, b)) if whole.any() else np.power(a, b)
        if b.dtype.kind != "i":
            few = None if b.shape or dtype_kind(b.dtype) != "f" or a.dtype == np.float16 else _FEW.get(float(b))
            return np.power(a, b) if few is None else few(a)         # as kernels do, in a tenth of the time
        limit = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(a.dtype)    # of 1 / a^-b, as in torch; numpy refuses
        return np.where(b < 0, limit, np.power(a, np.maximum(b, 0)))

    def vjp(self, ct, y, a, b):
        if not b.needs_grad:                                                    # no 0 * inf where b is 0,
            exponent = b if b.fn is REGISTRY["const"] and b.attrs["value"] != 0 else where(eq(b, 0.0), 1.0, b)
        else:                                                                   # and a is not large enough: b's derivative is 1 / a
            large = gt(REGISTRY["abs"](a), float(dtypes.finfo(a.dtype).tiny))
            exponent = where(bitwise_and(eq(b, 0.0), bitwise_not(large)), 1.0, b)
        of_base = ct * b * power(a, exponent - 1)
        if fixed(b):                                                            # nobody asks for the exponent's
            return of_base, None
        size = real(b) if b.dtype.kind == "c" else b
        flat = where(eq(a, 0.0), ge(size, 0.0), False)                           # 0 to any power >= 0; log of a negative a is NaN
        return of_base, ct * where(flat, 0.0, y * log(where(flat, 1.0, a)))

    def opencl(self, a, b): return f"pow({a}, {b})"
    def pair(self, a, b): return complex_parts.pow(a, b)


# ------------------------------------------------------------------------------------------------ exponentials and friends


# erf(x) / x as a ratio of polynomials in x^2, the highest power first: the best on [-4, 4], off by 2.1e-9 of the value at most.
# (As arrays: numpy makes one of a Python number at every call.)
_ERF_ABOVE = [*map(np.asarray, (-1.3202292751931501e-08, 4.6847915952530635e-06, 0.00037960920396679673, 0.003849605279750541,
                                0.054316898348052645, 0.18520303114180028, 1.1283791693782792))]
_ERF_BELOW = [*map(np.asarray, (6.311070913440813e-05, 0.0013075690364186474, 0.015462078519237242, 0.11395834821836728,
                                0.4974653267342474, 1.0))]
_ERF_ENDS = np.asarray(-4.0), np.asarray(4.0)


BLOCK = 1 << 13         # elements whose float64s stay in the cache from one step to the next: a third of the time


def erf32(x: Any) -> Any:
    """erf of a float32 or float16 array, in float64: rounded to x's dtype it is within 0.54 ulp. (Ten times as fast as one by one.)"""
    x = np.asarray(x)
    if x.size <= 2 * BLOCK:         # (as many calls take longer than the cache saves)
        return _erf32(x)
    found, flat = np.empty(x.size), x.reshape(-1)
    for k in range(0, x.size, BLOCK):
        found[k:k + BLOCK] = _erf32(flat[k:k + BLOCK])
    return found.reshape(x.shape)


def _erf32(x: Any) -> Any:
    x = np.minimum(np.maximum(np.asarray(x, np.float64), _ERF_ENDS[0]), _ERF_ENDS[1])     # beyond, float32 knows 1 only
    square = x * x
    above, below = square * _ERF_ABOVE[0], square * _ERF_BELOW[0]
    for p in _ERF_ABOVE[1:-1]:
        above += p
        above *= square
    for q in _ERF_BELOW[1:-1]:
        below += q
        below *= square
    above += _ERF_ABOVE[-1]
    below += _ERF_BELOW[-1]
    above *= x
    above /= below
    return above


class Analytic(Float):
    """Base of those that also take complex numbers, as `pairs.<name>`, and have a complex derivative there."""
    kinds, holomorphic = "fc", True
    def pair(self, x: Pair) -> Pair: return getattr(complex_parts, self.name)(x)  # type: ignore[no-any-return]


class Exp(Analytic):
    """e to the x."""
    name, nonnegative = "exp", True
    of_value, flops = True, 12
    numpy = staticmethod(np.exp)
    def vjp(self, ct, y, x): return (ct * y,)
    def opencl(self, x): return f"exp({x})"


class Exp2(Analytic):
    """2 to the x."""
    name = "exp2"
    of_value, flops = True, 12
    numpy = staticmethod(np.exp2)
    def vjp(self, ct, y, x): return (ct * y * 0.6931471805599453,)
    def opencl(self, x): return f"exp2({x})"
    def pair(self, x): return complex_parts.exp(complex_parts.scaled(x, 0.6931471805599453))


class Expm1(Analytic):
    """exp(x) - 1, accurate near 0."""
    name, cost = "expm1", 19.0
    of_value, flops = True, 20

    def numpy(self, x):
        if x.dtype.kind != "c":
            return np.expm1(x)
        return np.where(np.isfinite(x), np.expm1(x), np.exp(x) - x.dtype.type(1))           # numpy's gives NaN there

    def vjp(self, ct, y, x): return (ct * (y + 1.0),)
    def opencl(self, x): return f"expm1({x})"


class Log(Analytic):
    """Natural logarithm; -inf at 0, NaN below."""
    name, domain = "log", (0.1, 4.0)
    flops = 14
    numpy = staticmethod(np.log)
    def vjp(self, ct, y, x): return (ct / x,)
    def opencl(self, x): return f"log({x})"


class Log2(Analytic):
    """Logarithm to base 2."""
    name, domain = "log2", (0.1, 4.0)
    flops = 14
    numpy = staticmethod(np.log2)
    def vjp(self, ct, y, x): return (ct / (x * 0.6931471805599453),)
    def opencl(self, x): return f"log2({x})"
    def pair(self, x): return complex_parts.scaled(complex_parts.log(x), 1.4426950408889634)


class Log10(Analytic):
    """Logarithm to base 10."""
    name, domain, cost = "log10", (0.1, 4.0), 13.0
    flops = 14
    numpy = staticmethod(np.log10)
    def vjp(self, ct, y, x): return (ct / (x * 2.302585092994046),)
    def opencl(self, x): return f"log10({x})"
    def pair(self, x): return complex_parts.scaled(complex_parts.log(x), 0.4342944819032518)


class Log1p(Analytic):
    """log(1 + x), accurate near 0."""
    name, domain, cost = "log1p", (-0.8, 4.0), 19.0
    flops = 20

    def numpy(self, x):
        if x.dtype.kind != "c":
            return np.log1p(x)
        small = np.maximum(np.abs(x.real), np.abs(x.imag)) < 0.5          # numpy's loses the digits of small ones
        y = np.array(np.log1p(x))
        y.real = np.where(small, 0.5 * np.log1p(np.where(small, x.real * (x.real + 2) + x.imag * x.imag, 0)), y.real)
        return y

    def vjp(self, ct, y, x): return (ct / (x + 1.0),)
    def opencl(self, x): return f"log1p({x})"


class Sqrt(Analytic):
    """Square root; NaN below zero."""
    name, domain, placeless, nonnegative = "sqrt", (0.1, 4.0), True, True
    of_value, flops = True, 4
    numpy = staticmethod(np.sqrt)
    def vjp(self, ct, y, x): return (ct / (y * 2.0),)
    def opencl(self, x): return f"sqrt({x})"


class Rsqrt(Analytic):
    """1 / sqrt(x)."""
    name, domain = "rsqrt", (0.1, 4.0)
    of_value, flops = True, 5

    def numpy(self, x):
        if x.dtype == np.float16:                            # rounded once
            return np.reciprocal(np.sqrt(x.astype(np.float32))).astype(x.dtype)
        return np.reciprocal(np.sqrt(x)) if dtype_kind(x.dtype) == "f" else (1 / np.sqrt(x)).astype(x.dtype, copy=False)

    def numpy_function(self, operands): return _rsqrt, ()
    def vjp(self, ct, y, x): return (ct * y * y * y * -0.5,)
    def opencl(self, x): return f"rsqrt({x})"
    def pair(self, x): return complex_parts.reciprocal(complex_parts.sqrt(x))


class Sin(Analytic):
    """Sine of x radians."""
    name = "sin"
    flops = 25
    numpy = staticmethod(np.sin)
    def vjp(self, ct, y, x): return (ct * cos(x),)
    def opencl(self, x): return f"sin({x})"


class Cos(Analytic):
    """Cosine of x radians."""
    name = "cos"
    flops = 25
    numpy = staticmethod(np.cos)
    def vjp(self, ct, y, x): return (-ct * sin(x),)
    def opencl(self, x): return f"cos({x})"


class Tan(Analytic):
    """Tangent of x radians."""
    name, domain, cost = "tan", (-1.2, 1.2), 20.0
    of_value, flops = True, 30
    numpy = staticmethod(np.tan)
    def vjp(self, ct, y, x): return (ct * (y * y + 1.0),)
    def opencl(self, x): return f"tan({x})"


class Asin(Analytic):
    """Arc sine, in radians."""
    name, domain, cost = "asin", (-0.9, 0.9), 14.0
    flops = 30
    numpy = staticmethod(np.arcsin)
    def vjp(self, ct, y, x): return (ct * rsqrt(1.0 - x * x),)
    def opencl(self, x): return f"asin({x})"


class Acos(Analytic):
    """Arc cosine, in radians."""
    name, domain, cost = "acos", (-0.9, 0.9), 14.0
    flops = 30
    numpy = staticmethod(np.arccos)
    def vjp(self, ct, y, x): return (-ct * rsqrt(1.0 - x * x),)
    def opencl(self, x): return f"acos({x})"


class Atan(Analytic):
    """Arc tangent, in radians."""
    name, cost = "atan", 12.0
    flops = 30
    numpy = staticmethod(np.arctan)
    def vjp(self, ct, y, x): return (ct / (x * x + 1.0),)
    def opencl(self, x): return f"atan({x})"


class Atan2(Float):
    """The angle of the point (b, a), in radians, in (-pi, pi]."""
    name, nin, domain, cost = "atan2", 2, (0.3, 2.0), 20.0
    flops = 40
    numpy = staticmethod(np.arctan2)

    def vjp(self, ct, y, a, b):
        square = a * a + b * b
        scale = ct / where(eq(square, 0.0), 1.0, square)                # 0 at the origin, as in torch
        return scale * b, -scale * a

    def opencl(self, a, b): return f"atan2({a}, {b})"


class Sinh(Analytic):
    """Hyperbolic sine."""
    name, cost = "sinh", 20.0
    flops = 30
    numpy = staticmethod(np.sinh)
    def vjp(self, ct, y, x): return (ct * cosh(x),)
    def opencl(self, x): return f"sinh({x})"


class Cosh(Analytic):
    """Hyperbolic cosine."""
    name, cost = "cosh", 8.0
    flops = 30
    numpy = staticmethod(np.cosh)
    def vjp(self, ct, y, x): return (ct * sinh(x),)
    def opencl(self, x): return f"cosh({x})"


class Tanh(Analytic):
    """Hyperbolic tangent."""
    name = "tanh"
    of_value, flops = True, 20
    numpy = staticmethod(np.tanh)
    def vjp(self, ct, y, x): return (ct * (1.0 - y * y),)
    def opencl(self, x): return f"tanh({x})"


def _rsqrt(x: Any, out: Any = None) -> Any:
    """1 / sqrt(x), of float32 or float64."""
    return np.reciprocal(np.sqrt(x, out=out), out=out)


def _sigmoid(x: Any, one: Any, out: Any = None) -> Any:
    """In one array: half the time, for few elements."""
    y = np.negative(x, out)
    np.exp(y, y)
    np.add(y, one, y)
    return np.divide(one, y, y)


class Sigmoid(Analytic):
    """1 / (1 + exp(-x)), without overflow."""
    name = "sigmoid"
    of_value, flops = True, 20
    def numpy(self, x):
        wide = x.astype(np.float32) if x.dtype == np.float16 else x             # rounded once
        with np.errstate(over="ignore"):
            return (1 / (1 + np.exp(-wide))).astype(x.dtype)

    def numpy_with(self):
        ones = {c: np.ones((), c) for c in "fdFD"}                             # an array costs less than a number of Python's
        return lambda x: self.numpy(x) if not x.ndim or x.dtype.char not in ones else _sigmoid(x, ones[x.dtype.char])

    def numpy_function(self, operands):
        x, = operands
        return (_sigmoid, (np.ones((), x.dtype),)) if x.shape else None

    def vjp(self, ct, y, x): return (ct * y * (1.0 - y),)
    def opencl(self, x): return f"(1 / (1 + exp(-{x})))"

    def pair(self, x):
        small = complex_parts.exp(Pair(-x.re, -x.im))
        return complex_parts.reciprocal(Pair(small.re + 1.0, small.im))


class Erf(Float):
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
    name, cost = "erf", 15.0
    flops = 25
    def numpy(self, x): return (erf32(x) if x.dtype != np.float64 else erf_of(x)).astype(x.dtype)
    def vjp(self, ct, y, x): return (ct * exp(-(x * x)) * 1.1283791670955126,)
    def opencl(self, x): return f"erf({x})"


exp, log, power, rsqrt, sin, cos, sinh, cosh = (REGISTRY[n] for n in ("exp", "log", "pow", "rsqrt", "sin", "cos", "sinh", "cosh"))
