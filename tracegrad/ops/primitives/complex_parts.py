"""Functions of complex numbers, of their real and imaginary parts: what the `pair` rules of the ops write for kernels. Start at `sqrt`.

Each takes Pairs of real nodes and gives one. Branch cuts and signed zeros are those of C99 and numpy; W. Kahan, "Branch cuts for complex
elementary functions, or much ado about nothing's sign bit" (1987), has the formulas that keep them without overflow on the way.
"""

from __future__ import annotations

from math import log as logarithm
from math import pi
from typing import Any

import numpy as np

from tracegrad.graph.ir import Node
from tracegrad.graph.operation import Pair
from tracegrad.graph.primitive import REGISTRY, filled
from tracegrad.support.dtypes import finfo


def _op(name: str) -> Any:
    def call(*x: Any) -> Any:                # found when it is called: the ops' classes name this module's functions
        return REGISTRY[name](*x)

    return call


_abs, _exp, _log, _log1p, _expm1, _sqrt = (_op(n) for n in ("abs", "exp", "log", "log1p", "expm1", "sqrt"))
_sin, _cos, _tan, _sinh, _cosh, _asinh, _atan2 = (_op(n) for n in ("sin", "cos", "tan", "sinh", "cosh", "asinh", "atan2"))
_hypot, _copysign, _maximum, _minimum, _where = (_op(n) for n in ("hypot", "copysign", "maximum", "minimum", "where"))
_eq, _lt, _gt, _ge, _mul = (_op(n) for n in ("eq", "lt", "gt", "ge", "mul"))


def limits(x: Node) -> Any:
    """numpy's finfo of a node's dtype."""
    return finfo(x.dtype)


def times_i(z: Pair) -> Pair:
    """i z."""
    return Pair(-z.im, z.re)


def over_i(z: Pair) -> Pair:
    """z / i."""
    return Pair(z.im, -z.re)


def scaled(z: Pair, factor: float) -> Pair:
    """z times a real number."""
    return Pair(z.re * factor, z.im * factor)


def mul(a: Pair, b: Pair) -> Pair:
    """a b, as numpy and torch have it: NaN where a part of an infinite product is."""
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def div(a: Pair, b: Pair) -> Pair:
    """a / b, without overflow on the way: R. L. Smith, "Algorithm 116: complex division" (1962), as numpy."""
    swapped = _lt(_abs(b.re), _abs(b.im))
    p, q = _where(swapped, b.im, b.re), _where(swapped, b.re, b.im)
    zero = _eq(p, 0.0)
    ratio = _where(zero, 0.0, q / p)
    whole = _where(zero, _abs(p), p + q * ratio)
    x, y = _where(swapped, a.im, a.re), _where(swapped, a.re, a.im)
    difference = (y - x * ratio) / whole
    return Pair((x + y * ratio) / whole, _where(swapped, -difference, difference))


def reciprocal(z: Pair) -> Pair:
    """1 / z."""
    return div(Pair(filled(1, z.re), filled(0, z.re)), z)


def square(z: Pair) -> Pair:
    """z z."""
    return Pair(z.re * z.re - z.im * z.im, z.re * z.im + z.im * z.re)


def absolute(z: Pair) -> Any:
    """|z|."""
    return _hypot(z.re, z.im)


def angle(z: Pair) -> Any:
    """The angle of z, in (-pi, pi]."""
    return _atan2(z.im, z.re)


def sqrt(z: Pair) -> Pair:
    """The square root with a real part that is not negative. The cut is the negative real axis; the sign of a zero tells the side."""
    large = _gt(_maximum(_abs(z.re), _abs(z.im)), float(limits(z.re).max) / 4)
    x, y = (_where(large, part * 0.25, part) for part in z)
    t = _sqrt((_abs(x) + _hypot(x, y)) * 0.5)
    other = _where(_eq(t, 0.0), y, y / (t + t))
    right = _ge(x, 0.0)
    re, im = _where(right, t, _abs(other)), _where(right, other, _copysign(t, y))
    infinite = _eq(_abs(y), float("inf"))
    back = _where(large, 2.0, filled(1, x))
    return Pair(_where(infinite, _abs(y), re * back), _where(infinite, y, im * back))


def log(z: Pair) -> Pair:
    """The logarithm with an imaginary part in (-pi, pi]."""
    x, y = _abs(z.re), _abs(z.im)
    most, least = _maximum(x, y), _minimum(x, y)
    size = _hypot(x, y)
    near = _log1p((most - 1.0) * (most + 1.0) + least * least) * 0.5             # |z| near 1: no digits are lost
    large = _gt(most, float(limits(x).max) / 4)
    far = _log(_where(large, _hypot(x * 0.25, y * 0.25), size)) + _where(large, logarithm(4.0), filled(0, x))
    return Pair(_where(_gt(size, 0.5) & _lt(size, 2.0), near, far), angle(z))


def log1p(z: Pair) -> Pair:
    """log(1 + z), accurate near 0."""
    x, y = z
    small = _lt(_maximum(_abs(x), _abs(y)), 0.5)
    near = _log1p(_where(small, x * (x + 2.0) + y * y, 0.0)) * 0.5
    far = log(Pair(x + 1.0, y))
    return Pair(_where(small, near, far.re), far.im)


def _along(factor: Any, size: Any) -> Any:
    """factor * size for a size that is not negative and may be infinite: 0 where the factor is."""
    return _where(_eq(factor, 0.0), factor, factor * size)


def exp(z: Pair) -> Pair:
    """e to the z."""
    top = float(np.log(limits(z.re).max))
    large = _gt(z.re, top)                                                      # where e^x is infinite, e^x cos(y) need not be
    size = _exp(_where(large, z.re - top / 2, z.re))
    rest = _where(large, float(np.exp(top / 2)), filled(1, z.re))
    still = _eq(z.re, -float("inf"))                                             # 0, whatever the angle
    c, s = (_where(still, filled(1, z.re), f(z.im)) for f in (_cos, _sin))
    endless = _eq(z.re, float("inf")) & ~_lt(_abs(z.im), float("inf"))           # infinite, in a direction that nobody knows: inf + nan i
    return Pair(_where(endless, z.re, c * size * rest), _where(_eq(z.im, 0.0), z.im, s * size * rest))


def expm1(z: Pair) -> Pair:
    """exp(z) - 1, accurate near 0."""
    half, whole = _sin(z.im * 0.5), exp(z)
    finite = _lt(_maximum(_abs(z.re), _abs(z.im)), float("inf"))
    return Pair(_where(finite, _expm1(z.re) * _cos(z.im) - half * half * 2.0, whole.re - 1.0), whole.im)


def sinh(z: Pair) -> Pair:
    """The hyperbolic sine."""
    return Pair(_sinh(z.re) * _cos(z.im), _along(_sin(z.im), _cosh(z.re)))


def cosh(z: Pair) -> Pair:
    """The hyperbolic cosine."""
    s = _sin(z.im)
    return Pair(_cosh(z.re) * _cos(z.im), _where(_eq(s, 0.0), s * _copysign(filled(1, z.re), z.re), _sinh(z.re) * s))


def sin(z: Pair) -> Pair:
    """The sine."""
    return over_i(sinh(times_i(z)))


def cos(z: Pair) -> Pair:
    """The cosine."""
    return cosh(times_i(z))


def tanh(z: Pair) -> Pair:
    """The hyperbolic tangent (Kahan)."""
    x, y = z
    large = _gt(_abs(x), 10.0 if x.dtype == np.float32 else 20.0)
    t, s = _tan(y), _sinh(_where(large, 0.0, x))
    beta = t * t + 1.0
    whole = beta * s * s + 1.0
    tail = _sin(y) * _cos(y) * _exp(_abs(x) * -2.0) * 4.0
    return Pair(_where(large, _copysign(filled(1, x), x), beta * _sqrt(s * s + 1.0) * s / whole), _where(large, tail, t / whole))


def tan(z: Pair) -> Pair:
    """The tangent."""
    return over_i(tanh(times_i(z)))


def _roots(z: Pair) -> tuple[Pair, Pair]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    return sqrt(Pair(1.0 - z.re, -z.im)), sqrt(Pair(z.re + 1.0, z.im))


def asin(z: Pair) -> Pair:
    """The arc sine (Kahan)."""
    below, above = _roots(z)
    return Pair(_atan2(z.re, below.re * above.re - below.im * above.im), _asinh(below.re * above.im - below.im * above.re))


def acos(z: Pair) -> Pair:
    """The arc cosine (Kahan)."""
    below, above = _roots(z)
    return Pair(_atan2(below.re, above.re) * 2.0, _asinh(above.re * below.im - above.im * below.re))


def asinh(z: Pair) -> Pair:
    """The inverse hyperbolic sine."""
    return times_i(asin(over_i(z)))


def acosh(z: Pair) -> Pair:
    """The inverse hyperbolic cosine (Kahan)."""
    below, above = sqrt(Pair(z.re - 1.0, z.im)), sqrt(Pair(z.re + 1.0, z.im))
    return Pair(_asinh(below.re * above.re + below.im * above.im), _atan2(below.im, above.re) * 2.0)


def atanh(z: Pair) -> Pair:
    """The inverse hyperbolic tangent (Kahan)."""
    side = _copysign(filled(1, z.re), z.re)
    x, y = z.re * side, z.im * side
    large = _gt(_maximum(x, _abs(y)), float(np.sqrt(limits(x).max)) / 4)
    u, v = (_where(large, 0.0, part) for part in (x, y))
    usual = _log1p(u * 4.0 / ((1.0 - u) * (1.0 - u) + v * v)) * 0.25
    above = _log(_hypot(v, 2.0) / _abs(v)) * 0.5                                 # next to 1, where v * v may be 0
    re = _where(large, 1.0 / (x + y * (y / x)), _where(_eq(u, 1.0), above, usual))
    im = _where(large, _copysign(filled(pi / 2, y), y), _atan2(v + v, (1.0 - u) * (u + 1.0) - v * v) * 0.5)
    return Pair(re * side, im * side)


def atan(z: Pair) -> Pair:
    """The arc tangent."""
    return over_i(atanh(times_i(z)))


def pow(z: Pair, exponent: Pair) -> Pair:
    """z to the power of exponent: by multiplications if that is a small integer, known now; else exp(exponent log z)."""
    whole = _known_integer(exponent)
    if whole is not None and abs(whole) <= 32:
        return _whole_power(z, whole)
    general = exp(mul(exponent, log(z)))
    zero = _eq(z.re, 0.0) & _eq(z.im, 0.0)
    one = _eq(exponent.re, 0.0) & _eq(exponent.im, 0.0)
    none = zero & (_gt(exponent.re, 0.0) | one)
    return Pair(_where(none, _where(one, filled(1, exponent.re), 0.0), general.re), _where(none, 0.0, general.im))


def _known_integer(z: Pair) -> int | None:
    values = []
    for part in z:
        while part.fn.name in ("expand", "reshape"):
            part = part.operands[0]
        if part.fn.name != "const":
            return None
        values.append(part.attrs["value"].item())
    return int(values[0]) if values[1] == 0 and values[0] == values[0] // 1 else None


def _whole_power(z: Pair, n: int) -> Pair:
    if n < 0:
        return reciprocal(_whole_power(z, -n))
    out: Pair | None = None
    while n:
        if n & 1:
            out = z if out is None else mul(out, z)
        n >>= 1
        z = square(z) if n else z
    return out if out is not None else Pair(filled(1, z.re), filled(0, z.re))
