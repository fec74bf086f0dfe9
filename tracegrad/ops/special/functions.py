"""Functions of floats beside the primitives: inverse hyperbolic functions, hypot, gcd, entr, logaddexp, xlogy, sinc, logit.

All are in `tg.special` too, under torch's names there. tests/ops/special/test_special.py measures how accurate they are.
"""

from __future__ import annotations

from math import factorial, pi
from math import log as ln
from typing import Any

import numpy as np

from tracegrad.errors import DTypeError
from tracegrad.graph.operation_families import Elementwise, Float, common_dtype, refuse_complex
from tracegrad.graph.operators import PUBLIC, SPECIAL, Operators, public
from tracegrad.graph.primitive import REGISTRY, call, const
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays.complex_numbers import real
from tracegrad.ops.arrays.pointwise import (
    abs_,
    bitwise_not,
    eq,
    exp,
    floor,
    gt,
    isnan,
    log,
    log1p,
    lt,
    ne,
    round_,
    rsqrt,
    sigmoid,
    sin,
    where,
)
from tracegrad.ops.primitives.float_functions import Analytic
from tracegrad.ops.primitives.formula import INF, NAN, Formula, polynomial
from tracegrad.ops.special.exports import export_special, operation
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


LN2 = ln(2.0)


# ---------------------------------------------------------------------------------------------------- what OpenCL has


class Acosh(Analytic):
    """Inverse hyperbolic cosine; NaN below 1."""
    name, domain, cost = "acosh", (1.2, 4.0), 14.0
    flops = 30
    numpy = staticmethod(np.arccosh)
    def vjp(self, ct, y, x): return (ct * rsqrt(x - 1.0) * rsqrt(x + 1.0),)
    def opencl(self, x): return f"acosh({x})"


class Asinh(Analytic):
    """Inverse hyperbolic sine."""
    name, cost = "asinh", 28.0
    flops = 40
    numpy = staticmethod(np.arcsinh)
    def vjp(self, ct, y, x): return (ct * rsqrt(x * x + 1.0),)
    def opencl(self, x): return f"asinh({x})"


class Atanh(Analytic):
    """Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond."""
    name, domain, cost = "atanh", (-0.9, 0.9), 25.0
    flops = 30
    numpy = staticmethod(np.arctanh)
    def vjp(self, ct, y, x): return (ct / ((1.0 - x) * (1.0 + x)),)
    def opencl(self, x): return f"atanh({x})"


class Hypot(Elementwise):
    """sqrt(a² + b²), without overflow. (NaN has no derivative at the origin, as in torch.)"""
    name, nin, kinds, domain, cost = "hypot", 2, "f", (0.3, 2.0), 15.0
    numpy = staticmethod(np.hypot)
    def vjp(self, ct, y, a, b): return ct * (a / y), ct * (b / y)
    def opencl(self, a, b): return f"hypot({a}, {b})"


class Copysign(Float):
    """|a| with the sign of b, which may be that of a zero."""
    name, nin, domain, exact = "copysign", 2, (0.3, 2.0), True
    numpy = staticmethod(np.copysign)
    def vjp(self, ct, y, a, b): return ct * where(eq(a, 0.0), 0.0, y / where(eq(a, 0.0), 1.0, a)), None
    def opencl(self, a, b): return f"copysign({a}, {b})"


class Nextafter(Elementwise):
    """The float next to a in the direction of b (no half). Its derivative is that of a, but 0 where they are equal, as in torch."""
    name, nin, kinds = "nextafter", 2, "f"

    def aval(self, *operands):
        if halves := [o.dtype for o in operands if dtypes.is_half(o.dtype)]:
            raise DTypeError(f"nextafter: takes float32 and float64, got {halves[0]}; cast first")
        return super().aval(*operands)

    numpy = staticmethod(np.nextafter)

    def vjp(self, ct, y, a, b):
        return where(eq(a, b), 0.0, ct), 0

    def opencl(self, a, b): return f"nextafter({a}, {b})"


class Gcd(Elementwise):
    """The greatest common divisor, never negative; gcd(0, 0) = 0."""
    name, nin, kinds, differentiable = "gcd", 2, "iu", False
    numpy = staticmethod(np.gcd)
    def opencl(self, a, b): return f"tg_gcd({a}, {b})"


class Entr(Formula):
    """-x log(x): 0 at 0, -inf below."""
    name, domain, cost = "entr", (0.1, 3.0), 9.0

    def formula(self, m, x):
        positive = x > 0.0
        return m.where(positive, -x * m.log(m.where(positive, x, 1.0)), m.where(x < 0.0, -INF, m.where(x == x, 0.0, NAN)))

    def vjp(self, ct, y, x): return (-ct * (log(x) + 1.0),)


class Logaddexp(Formula):
    """log(exp(a) + exp(b)), without overflow."""
    name, nin, cost = "logaddexp", 2, 40.0
    unit = 1.0                                                      # the logarithm of the base

    def formula(self, m, a, b):
        larger = m.where((a > b) | (a != a), a, b)
        more = m.log1p(m.exp(m.fabs(a - b) * -self.unit)) * (1.0 / self.unit)
        value = larger + m.where(a == b, LN2 / self.unit, more)
        return m.where((a == b) & (m.fabs(a) == INF), a, value)

    def vjp(self, ct, y, a, b):
        infinite = eq(a, b) & eq(abs_(a), INF)
        share = sigmoid(where(infinite, 0.0, a - b) * self.unit)
        return ct * share, ct * (1.0 - share)


class Logaddexp2(Logaddexp):
    """log2(2^a + 2^b), without overflow."""
    name, unit = "logaddexp2", LN2


acosh, asinh = operation("acosh", "acosh", "arccosh"), operation("asinh", "asinh", "arcsinh")
atanh = operation("atanh", "atanh", "arctanh")
hypot, copysign, nextafter = operation("hypot", "hypot"), operation("copysign", "copysign"), operation("nextafter", "nextafter")
gcd, logaddexp2 = operation("gcd", "gcd"), operation("logaddexp2", "logaddexp2")
entr = operation("entr", special=("entr",))
SPECIAL.update(erf=PUBLIC["erf"], exp2=PUBLIC["exp2"], expit=PUBLIC["sigmoid"], expm1=PUBLIC["expm1"], log1p=PUBLIC["log1p"],
               round=PUBLIC["round"], logsumexp=PUBLIC["logsumexp"])


@public("logaddexp")
def logaddexp(input: Array, other: Array) -> Array:
    """log(exp(input) + exp(other)), without overflow; of complex numbers, too.

    The shapes broadcast. dtype: any; of integers and bools the default float one. ShapeError where shapes do not broadcast.

    >>> tg.logaddexp(tg.tensor([0.0]), tg.tensor([0.0]))
    """
    if any(isinstance(x, complex) or (isinstance(x, Operators) and x.dtype.kind == "c") for x in (input, other)):
        if not isinstance(input, Operators):
            input, other = other, input
        return _complex_logaddexp(input, other)
    return call(REGISTRY["logaddexp"], (input, other), {})


@on_nodes
def _complex_logaddexp(input: Array, other: Any) -> Any:
    a, b = common_dtype([input, other], name="logaddexp")
    swap = lt(real(a), real(b))
    large, small = where(swap, b, a), where(swap, a, b)
    same = eq(real(a), real(b)) & eq(abs_(real(a)), INF)            # both infinite: their difference is no number
    difference = where(same, const(0, a.dtype), small - large)
    nothing = same & lt(real(a), 0.0)                                # as in torch: the second of two zeros, the sum of two infinities
    endless = same & gt(real(a), 0.0)
    total = log(exp(where(endless, a, const(0, a.dtype))) + exp(where(endless, b, const(0, a.dtype))))
    return where(nothing, b, where(endless, total, large + log1p(exp(difference))))


@on_nodes
def _floats(x: Array, y: Array) -> Any:
    """Both, as floats of the dtype that they promote to."""
    return tuple(common_dtype((x, y), True))


def _times_log(x: Array, y: Array, logarithm: Any, pole: float) -> Array:
    """x times logarithm(y), 0 where x is 0 (unless y is NaN); the derivative in x is the logarithm wherever it is finite."""
    if not isinstance(y, Operators):
        value = float(REGISTRY[logarithm.__name__].numpy(np.float64(y))) if y > pole or y != y else -INF if y == pole else NAN
        return x * value if abs(value) < INF or y != y else where(eq(x, 0.0), 0.0, x * value)
    if isinstance(x, Operators):
        x, y = _floats(x, y)                               # the logarithm in the dtype of the product
    finite = gt(y, pole) & lt(y, INF)
    zero = eq(x, 0.0) if isinstance(x, Operators) else x == 0
    skipped = bitwise_not(finite | ne(y, y)) & zero
    return x * logarithm(where(skipped, pole + 1.0, y))


@public("xlogy")
def xlogy(input: Array, other: Array) -> Array:
    """input * log(other), 0 where input is 0 (unless other is NaN).

    The shapes broadcast. dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> tg.xlogy(tg.tensor([0.0, 2.0]), tg.tensor([0.0, 1.0]))
    """
    return _times_log(input, other, log, 0.0)


@export_special()
def xlog1py(input: Array, other: Array) -> Array:
    """input * log(1 + other), 0 where input is 0 (unless other is NaN).

    The shapes broadcast. dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> tg.special.xlog1py(tg.tensor([0.0, 2.0]), tg.tensor([0.0, 1.0]))
    """
    return _times_log(input, other, log1p, -1.0)


export_special()(xlogy)


def _as_float(x: Array) -> Array:
    return x if dtype_kind(x.dtype) == "f" else x * 1.0


@public("sinc")
@on_nodes
@rounded_once
def sinc(input: Array) -> Array:
    """sin(pi x) / (pi x), 1 at 0. Near 0 its Taylor series, so that derivatives of every order are right there.

    Any shape. dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor.

    >>> tg.sinc(tg.tensor([0.0, 0.5]))
    """
    input = _as_float(input)
    small = abs_(input) < 0.15
    near = where(small, input, 0.0) * pi
    away = where(small, 1.0, input)
    whole = round_(real(away))                          # sin(pi x) = ± sin(pi (x - whole)), of which no digit is lost
    odd = whole - floor(whole * 0.5) * 2.0
    ratio = sin((away - whole) * pi) * (1.0 - odd * 2.0) / (away * pi)
    return where(small, polynomial([(-1.0) ** k / factorial(2 * k + 1) for k in range(8)], near * near), ratio)


export_special()(sinc)


@export_special()
def spherical_bessel_j0(input: Array) -> Array:
    """sin(x) / x, 1 at 0 and 0 at infinity.

    Any shape. dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor.

    >>> tg.special.spherical_bessel_j0(tg.tensor([0.0, 1.0]))
    """
    input = _as_float(input)
    size = abs_(input)
    away = where((size > 0.4) & (size < INF), input, 1.0)
    return where(size < INF, where(size > 0.4, sin(away) / away, sinc(where(size > 0.4, 0.0, input) * (1.0 / pi))),
                 where(isnan(input), input, 0.0))


@public("logit")
@on_nodes
@rounded_once
def logit(input: Array, eps: float | None = None) -> Array:
    """log(x / (1 - x)); NaN outside [0, 1]. eps: x is limited to [eps, 1 - eps] first.

    Any shape. dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> tg.logit(tg.tensor([0.25, 0.5]))
    """
    refuse_complex("logit", input)
    x = _as_float(input)
    if eps is not None:
        x = where(lt(x, eps), eps, where(gt(x, 1.0 - eps), 1.0 - eps, x))           # as in torch where eps is above 1/2
    else:
        x = x * where(lt(x, 0.0) | gt(x, 1.0), NAN, 1.0)            # so that the derivative is NaN there, too
    middle = (x > 0.25) & (x < 0.75)                    # the ratio is close to 1, whose logarithm is small
    half = where(middle, x, 0.5)
    return where(middle, log1p((half * 2.0 - 1.0) / (1.0 - half)), log(x) - log1p(-x))      # whose derivatives are infinite at 0 and 1


export_special()(logit)
