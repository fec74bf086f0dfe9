"""Special functions: gamma, zeta, Bessel and normal-distribution functions, their inverses, and float functions beside them.

Primitives first: those that OpenCL has, then Formulas (`ops/primitives/formula.py`: written once for numpy and for C). Functions composed
of them follow; all are in `tg.special` too, under torch's names there. tests/ops/special/test_special.py measures how accurate they are.
Sources: [AS] Abramowitz & Stegun 1964; [DLMF] dlmf.nist.gov; [C] Moshier, Methods and Programs for Mathematical Functions, 1989 (Cephes);
[W] Wichura, Algorithm AS 241, Applied Statistics 37, 1988; [SL] Shepherd & Laframboise, Math. Comp. 36, 1981.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, pi
from math import log as ln
from math import sqrt as root
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, AutogradError, DTypeError
from tracegrad.graph.families import Elementwise, common_dtype, refuse_complex
from tracegrad.graph.operators import PUBLIC, SPECIAL, F, Operators, entered, method, public
from tracegrad.graph.primitive import REGISTRY, call, const
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays import reductions  # noqa: F401 - its exports are listed under tg.special, too
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
    sign,
    sin,
    where,
)
from tracegrad.ops.primitives.float_functions import Analytic, Float, erfc_of
from tracegrad.ops.primitives.formula import INF, NAN, Formula, chebyshev, next_to_zero, polynomial
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor

LN2 = ln(2.0)

# Chebyshev coefficients, computed with 40 digits
_I0E_SMALL = (
    0.33839763720473803, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764, 0.04930528423967071, -0.02373741480589947,
    0.010546460394594998, -0.004324309995050576, 0.0016394756169413357, -0.0005763755745385824, 0.00018850288509584165,
    -5.754195010082104e-05, 1.6448448070728896e-05, -4.4167383584587505e-06, 1.1173875391201037e-06, -2.670793853940612e-07,
    6.046995022541919e-08, -1.300025009986248e-08, 2.6598237246823866e-09, -5.189795601635263e-10, 9.675809035373237e-11,
    -1.726826291441556e-11, 2.95505266312964e-12, -4.856446783111929e-13, 7.676185498604936e-14, -1.1685332877993451e-14,
    1.715391285555133e-15, -2.431279846547955e-16, 3.3307945188222384e-17, -4.4153416464793395e-18,
)
_I0E_LARGE = (
    0.4022452055070544, 0.0033691164782556943, 6.889758346916825e-05, 2.8913705208347567e-06, 2.0489185894690638e-07,
    2.266668990498178e-08, 3.3962320257083865e-09, 4.94060238822497e-10, 1.1889147107846439e-11, -3.1499165279632416e-11,
    -1.3215811840447713e-11, -1.7941785315068062e-12, 7.180124451383666e-13, 3.8527783827421426e-13, 1.54008621752141e-14,
    -4.150569347287222e-14, -9.554846698828307e-15, 3.8116806693526224e-15, 1.7725601330565263e-15, -3.425485619677219e-16,
    -2.8276239805165836e-16, 3.461222867697461e-17, 4.46562142029676e-17, -4.830504485944182e-18, -7.233180487874754e-18,
    9.921475412173699e-19, 1.193650890845982e-18,
)
_I1E_SMALL = (
    0.12629359322181682, -0.17641651835783406, 0.1026436586898471, -0.05294598120809499, 0.024726449030626516, -0.010564084894626197,
    0.004156422944312888, -0.0015135724506312532, 0.0005122859561685758, -0.00016176081582589674, 4.781565107550054e-05,
    -1.3273163656039436e-05, 3.4702513081376785e-06, -8.568720264695455e-07, 2.0032947535521353e-07, -4.445059128796328e-08,
    9.381537386495773e-09, -1.8872497517228294e-09, 3.625590281552117e-10, -6.663489723502027e-11, 1.1736186298890901e-11,
    -1.9839743977649436e-12, 3.223793365945575e-13, -5.042185504727912e-14, 7.600684294735408e-15, -1.1055969477353862e-15,
    1.5536319577362005e-16, -2.111421214358166e-17, 2.7779141127610464e-18,
)
_I1E_LARGE = (
    0.38928811750914005, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-06, -2.512236237870209e-07,
    -2.6314688468895196e-08, -3.835380385964237e-09, -5.589743462196584e-10, -1.8974958123505413e-11, 3.2526035830154884e-11,
    1.4125807436613782e-11, 2.0356285441470896e-12, -7.198551776245908e-13, -4.0835511110921974e-13, -2.1015418427726643e-14,
    4.272440016711951e-14, 1.0420276984128802e-14, -3.8144030724370075e-15, -1.8803547755107825e-15, 3.3082023109209285e-16,
    2.96262899764595e-16, -3.209525921993424e-17, -4.6503053684893586e-17, 4.414348323071708e-18, 7.517296310842105e-18,
    -9.314178867326884e-19, -1.242193275194891e-18,
)
_ERFCX = (
    1.1775789345674017, -0.004590054580646478, -0.08424913336651792, 0.05920993999819189, -0.026658668435305753, 0.009074997670705265,
    -0.002413163540417608, 0.0004907758365258086, -6.916973302501207e-05, 4.13902798607301e-06, 7.74038306619849e-07,
    -2.1886401049234397e-07, 1.076499946567091e-08, 4.521959811218287e-09, -7.754400208831351e-10, -6.318088340886684e-11,
    2.86879501093067e-11, 1.9455868545777347e-13, -9.65469674843344e-13, 3.25254814814874e-14, 3.3478119482868056e-14,
    -1.864562880419313e-15, -1.2507950530688648e-15, 7.418235256624044e-17, 5.0681489047961116e-17,
)


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


class Erfc(Float):
    """1 - erf(x), accurate where that is small."""
    name, cost = "erfc", 150.0
    flops = 40
    def numpy(self, x): return erfc_of(x).astype(x.dtype)
    def vjp(self, ct, y, x): return (ct * exp(-(x * x)) * -1.1283791670955126,)
    def opencl(self, x): return f"erfc({x})"


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
    """The float next to a in the direction of b. Its derivative is that of a, but 0 where they are equal, as in torch."""
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


# -------------------------------------------------------------------------------------------------------- gamma and zeta

# B_2, B_4, ... ([DLMF] table 24.2.1), as fractions
_BERNOULLI = ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43867, 798), (-174611, 330), (854513, 138),
             (-236364091, 2730))
_DIGAMMA = [p / (q * 2 * k) for k, (p, q) in enumerate(_BERNOULLI[:8], 1)]                   # [DLMF] 5.11.2
_ZETA = [p / (q * factorial(2 * k)) for k, (p, q) in enumerate(_BERNOULLI, 1)]               # [DLMF] 2.10.1 (Euler and Maclaurin)
STIRLING = [p / (q * 2 * k * (2 * k - 1)) for k, (p, q) in enumerate(_BERNOULLI[:8], 1)]      # [DLMF] 5.11.1


class Lgamma(Formula):
    """The logarithm of |gamma(x)|; inf at 0 and the negative integers."""
    name, domain = "lgamma", (0.3, 4.0)
    def formula(self, m, x): return m.lgamma(x)
    def vjp(self, ct, y, x): return (ct * digamma(x),)


class Digamma(Formula):
    """The derivative of lgamma: ln(x) and an asymptotic series from 10 on, by recurrence below, by reflection below 0.5 ([DLMF] 5.5, 5.11).

    At 0 infinite with the other sign, NaN at the negative integers, as in torch.
    """
    name, domain = "digamma", (0.3, 4.0)

    def formula(self, m, x):
        reflected = x < 0.5
        y = m.where(reflected, 1.0 - x, x)

        def up(y, total):
            small = y < 10.0
            return m.where(small, y + 1.0, y), m.where(small, total - 1.0 / y, total)

        y, total = m.loop(10, (y, 0.0 * y), up)
        z = 1.0 / (y * y)
        value = total + (m.log(y) - 0.5 / y - z * polynomial(_DIGAMMA, z, m, 3))
        value = next_to_zero(m, x, value, (1.4616321325302124, 1.2438149938918909e-8), (0.967672245447621, -0.442763168983592, 0.2584998))
        value = m.where(y == INF, y, value)
        rest = x - m.rint(x)
        pole = m.where(x == 0.0, -1.0 / x, NAN)
        return m.where(reflected, m.where(rest == 0.0, pole, value - pi / m.tan(pi * rest)), value)

    def vjp(self, ct, y, x): return (ct * polygamma(1, x),)


class Zeta(Formula):
    """Hurwitz's zeta function: the sum of (q + k)^-x over k = 0, 1, ...; by Euler and Maclaurin's formula after nine terms ([C]).

    Infinite for x = 1 and for q a pole (0, -1, ...); 0 for infinite q (torch: NaN); NaN for x below 1, and for negative q unless x is
    an integer. No derivative in x.
    """
    name, nin, domain, constants, cost = "zeta", 2, (1.5, 4.0), (0,), 700.0

    def formula(self, m, x, q):
        below = q < 0.0
        whole = m.floor(q)
        nearest = q - m.rint(q)
        after, before = m.where(nearest > 0.0, nearest, 1.0 + nearest), m.where(nearest > 0.0, 1.0 - nearest, -nearest)
        value = self.hurwitz(m, x, m.where(below, after, q))
        # for q < 0 and integers x: the terms above 0 (from q - floor(q) on), and those below, which end with q
        sign = m.where(m.floor(x * 0.5) * 2.0 == x, 1.0, -1.0)
        value = m.where(below, value + sign * (self.hurwitz(m, x, before) - self.hurwitz(m, x, 1.0 - q)), value)
        value = m.where(below & (m.floor(x) != x), NAN, value)
        value = m.where((q <= 0.0) & (whole == q), INF, m.where(q == INF, 0.0, value))
        return m.where(x == 1.0, INF, m.where((x > 1.0) & (q == q), value, NAN))

    def hurwitz(self, m, x, q):
        def term(total, at):
            return total + self.powers(m, x, at, lifted)[0], at + 1.0

        lifted = None if m.double else (x - 1.0) * m.log(q) > 30.0
        total, w = m.loop(9, (0.0 * q, q), term)
        power, whole = self.powers(m, x, w, lifted)                 # q + 9: the integral of the rest, half a term, corrections
        small = m.where(x > 1e4, 1e4, x)                            # (there is nothing left of the rest from there on)
        t = power * small / w
        inverse = 1.0 / (w * w)
        rest = t * _ZETA[0]
        for k, b in enumerate(_ZETA[1:], 1):
            t = t * ((small + (2.0 * k - 1.0)) * (small + 2.0 * k)) * inverse
            rest = rest + t * b
        value = total + (whole / (x - 1.0) + 0.5 * power + rest)
        return value if m.double else value * m.where(lifted, 2.0 ** -64, 1.0)

    def powers(self, m, x, at, lifted):
        """at^-x and at^(1 - x); where `lifted`, 2^64 times that: of pairs, what is next to float32's smallest numbers has few digits."""
        if m.double:
            power = m.pow(at, -x)
            return power, power * at
        logarithm = m.log(at)
        exponent = m.where(lifted, 64.0 * LN2 - (x - 1.0) * logarithm, -x * logarithm)
        value = m.where(logarithm == 0.0, 1.0, m.exp(exponent))
        return value / m.where(lifted, at, 1.0), value * m.where(lifted, 1.0, at)

    def vjp(self, ct, y, x, q):
        _not_in(self.name, "input", x)
        return None, ct * -x * zeta(x + 1.0, q)


def _not_in(name: str, what: str, x: Any) -> None:
    if x.needs_grad:
        raise AutogradError(f"{name}: has no derivative in {what} (nor in torch); use {what}.detach()")


@memoize(None)
def _temme(orders: int, terms: int) -> list[list[float]]:
    """Taylor coefficients of the c_k(eta) in Temme's expansion of the incomplete gamma functions ([DLMF] 8.12.7-12)."""
    from fractions import Fraction  # noqa: PLC0415  (which imports more than all the rest of this file's, for one function's coefficients)

    n = terms + 2 * orders + 2
    alpha = [Fraction(0), Fraction(1)]
    for k in range(2, n + 1):
        alpha.append((alpha[k - 1] - sum((j * alpha[j] * alpha[k - j + 1] for j in range(2, k)), Fraction(0))) / (k + 1))
    stirling = [Fraction(1)]                                        # of Gamma*(a), from the logarithm's series
    logarithm = [Fraction(0)] + [Fraction(*_BERNOULLI[k // 2]) / (k * (k + 1)) if k % 2 else Fraction(0) for k in range(1, orders + 1)]
    for k in range(1, orders + 1):
        stirling.append(sum((j * logarithm[j] * stirling[k - j] for j in range(1, k + 1)), Fraction(0)) / k)
    rows = [[(k + 2) * alpha[k + 2] for k in range(n - 2)]]
    rows[0] = [-Fraction(1, 3), *rows[0][1:]]
    for k in range(1, orders):
        above = rows[-1]
        rows.append([(-1) ** k * stirling[k] * rows[0][j] + (j + 2) * above[j + 2] for j in range(len(above) - 2)])
    return [[float(c) for c in row[:terms]] for row in rows]

_ATANH = [1.0 / (2 * k + 3) for k in range(12)]


class Igamma(Formula):
    """The regularized lower incomplete gamma function P(a, x): series, continued fraction ([DLMF] 8.7.1, 8.9.2), Temme's expansion (8.12).

    No derivative in a.
    """
    name, nin, domain, constants, cost = "igamma", 2, (0.5, 4.0), (0,), 3500.0
    upper = False

    def formula(self, m, a, x):
        # x^a e^-x / Gamma(a + 1), without cancellation where a is large
        mu = (x - a) / a
        s = mu / (2.0 + mu)
        near = m.fabs(mu) < 0.5
        s = m.where(near, s, 0.0)
        bend = m.where(near, s * s * s * 2.0 * polynomial(_ATANH, s * s, m, 3) - mu * s, m.log(x / a) - mu)      # log(1 + mu) - mu
        inverse = 1.0 / a
        stirling = inverse * polynomial(STIRLING, inverse * inverse, m)
        far = m.exp(a * bend - stirling) / m.sqrt(2.0 * pi * a)
        logarithm = a * m.log(x) - m.lgamma(a + 1.0)
        front = m.where(a > 10.0, far, m.exp(logarithm - x))
        count = 140 if m.double else 40

        def series(term, total, n):
            n = n + 1.0
            term = term * (x / (a + n))
            return term, total + term, n

        one = 0.0 * a + 1.0
        _, total, _ = m.loop(count, (one, one, 0.0 * a), series)
        lower = front * total

        tiny = 1e-300 if m.double else 1e-36

        def fraction(b, c, d, h, n):                                # the algorithm of Lentz
            n = n + 1.0
            b = b + 2.0
            step = n * (a - n)
            d = step * d + b
            c = b + step / c
            d = 1.0 / m.where(m.fabs(d) < tiny, tiny, d)
            c = m.where(m.fabs(c) < tiny, tiny, c)
            return b, c, d, h * (d * c), n

        b = x + 1.0 - a
        d = 1.0 / m.where(m.fabs(b) < tiny, tiny, b)
        _, _, _, h, _ = m.loop(count, (b, 0.0 * x + 1.0 / tiny, d, d, 0.0 * a), fraction)
        upper = front * a * h

        def alternating(power, total, n):
            n = n + 1.0
            power = power * (-x / n)
            return power, total + power / (a + n), n

        _, tail, _ = m.loop(20, (one, 0.0 * a, 0.0 * a), alternating)
        small = -m.expm1(logarithm) - m.exp(logarithm) * (a * tail)         # Q for small x: 1 - P would lose what it has
        eta = m.sqrt(m.where(bend < 0.0, -2.0 * bend, 0.0))
        eta = m.where(x < a, -eta, eta)
        rows = [polynomial(row if m.double else row[:12], eta, m) for row in _temme(7, 18)]
        between = m.exp(a * bend) / m.sqrt(2.0 * pi * a) * polynomial(rows, inverse, m)
        argument = eta * m.sqrt(0.5 * a)
        temme = (a > (100.0 if m.double else 20.0)) & (m.fabs(mu) < 0.4)
        by_tail = (x <= 1.1) & (x * 1.1 >= a)
        by_series = x < a + 1.0
        if self.upper:
            value = m.where(by_series, m.where(by_tail, small, 1.0 - lower), upper)
            value = m.where(temme, 0.5 * m.erfc(argument) + between, value)
        else:
            value = m.where(by_series, lower, 1.0 - upper)
            value = m.where(temme, 0.5 * m.erfc(-argument) - between, value)
        least, most = (1.0, 0.0) if self.upper else (0.0, 1.0)
        value = m.where(x == 0.0, least, m.where((a == 0.0) | (x == INF), most, m.where(a == INF, least, value)))
        bad = ((a < 0.0) | (x < 0.0)) | (((a == 0.0) & (x == 0.0)) | ((a == INF) & (x == INF)))
        return m.where(bad | ((a != a) | (x != x)), NAN, value)

    def vjp(self, ct, y, a, x):
        _not_in(self.name, "input", a)
        density = exp((a - 1.0) * log(x) - x - lgamma(a))
        return None, ct * (-density if self.upper else density)


class Igammac(Igamma):
    """The regularized upper incomplete gamma function Q(a, x) = 1 - P(a, x), accurate where that is small. No derivative in a."""
    name, upper = "igammac", True


# ------------------------------------------------------------------------------------------ the normal distribution and erf

_CENTRAL = ((3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
             4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
            (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
             2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3))
_MIDDLE = ((1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
            1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
           (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
            1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9))
_TAIL = ((6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
          2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
         (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
          7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15))


def _quantile(m: Any, central: Any, below: Any) -> Any:
    """The normal quantile of 0.5 + central; below: the smaller of the two probabilities ([W])."""
    z = 0.180625 - central * central
    middle = central * (polynomial(_CENTRAL[0], z, m, 4) / polynomial(_CENTRAL[1], z, m, 4))
    r = m.sqrt(-m.log(below))
    near, far = r - 1.6, r - 5.0
    outer = polynomial(_TAIL[0], far, m, 3) / polynomial(_TAIL[1], far, m, 3)
    size = m.where(r <= 5.0, polynomial(_MIDDLE[0], near, m, 5) / polynomial(_MIDDLE[1], near, m, 5), outer)
    size = m.where(below == 0.0, INF, size)
    return m.where(m.fabs(central) <= 0.425, middle, m.where(central < 0.0, -size, size))


class Ndtri(Formula):
    """The quantile function of the standard normal distribution; infinite at 0 and 1, NaN beyond ([W])."""
    name, domain = "ndtri", (0.02, 0.98)
    def formula(self, m, x): return _quantile(m, x - 0.5, m.where(x < 0.5, x, 1.0 - x))
    def vjp(self, ct, y, x): return (ct * exp(y * y * 0.5) * root(2.0 * pi),)


class Erfinv(Formula):
    """The inverse of erf; infinite at -1 and 1, NaN beyond ([W])."""
    name, domain = "erfinv", (-0.95, 0.95)
    def formula(self, m, x): return _quantile(m, 0.5 * x, 0.5 * (1.0 - m.fabs(x))) * root(0.5)
    def vjp(self, ct, y, x): return (ct * exp(y * y) * (root(pi) / 2.0),)


class Erfcx(Formula):
    """exp(x²) erfc(x), without overflow or underflow for positive x: Chebyshev's series in (x - 3.75) / (x + 3.75) ([SL])."""
    name = "erfcx"

    def decaying(self, m, x):
        """The function for x >= 0."""
        far = x > 1e6
        a = m.where(far, 1.0, x)
        value = chebyshev(m, _ERFCX, (a - 3.75) / (a + 3.75)) / (1.0 + 2.0 * a)
        return m.where(far, 1.0 / (x * root(pi)), value)

    def formula(self, m, x):
        value = self.decaying(m, m.fabs(x))
        high = m.where(m.fabs(x) < 1e4, m.rint(x * 128.0) / 128.0, 1e4)      # x² in two parts, so that no digit of it is lost
        square = m.exp(high * high) * m.exp((x - high) * (x + high))
        reflected = m.where(x < -30.0, INF, 2.0 * square - value)
        return m.where(x < 0.0, reflected, value)

    def vjp(self, ct, y, x): return (ct * (x * y * 2.0 - 2.0 / root(pi)),)


class Ndtr(Formula):
    """The distribution function of the standard normal distribution."""
    name = "ndtr"
    def formula(self, m, x): return m.erfc(x * -root(0.5)) * 0.5
    def vjp(self, ct, y, x): return (ct * exp(x * x * -0.5) * (1.0 / root(2.0 * pi)),)


class LogNdtr(Erfcx):
    """log(ndtr(x)), accurate in both tails."""
    name = "log_ndtr"

    def formula(self, m, x):
        low = x < -1.0
        t = m.where(low, x * -root(0.5), 1.0)
        near = m.log1p(m.erfc(m.where(low, 0.0, x * root(0.5))) * -0.5)
        return m.where(low, m.log(self.decaying(m, t) * 0.5) - t * t, near)

    def vjp(self, ct, y, x):
        # On either side what does not overflow there: where erfcx does, the second derivative was inf / inf.
        below = lt(x, 0.0)
        low, high = where(below, x, 0.0), where(below, 0.0, x)
        right = exp(high * high * -0.5) * root(0.5 / pi) / ndtr(high)
        return (ct * where(below, root(2.0 / pi) / erfcx(low * -root(0.5)), right),)


# ------------------------------------------------------------------------------------------------------- Bessel functions


def _bessel(m: Any, small: Any, large: Any, size: Any) -> Any:
    """exp(-|x|) I(|x|) from the two series on [0, 8] and beyond ([C] i0.c, i1.c; coefficients computed with 40 digits)."""
    near = m.where(size <= 8.0, size, 8.0)
    far = m.where(size > 8.0, size, 8.0)
    return chebyshev(m, small, near * 0.25 - 1.0), chebyshev(m, large, 16.0 / far - 1.0) / m.sqrt(far)


class I0e(Formula):
    """exp(-|x|) times the modified Bessel function of the first kind, of order 0."""
    name = "i0e"

    def formula(self, m, x):
        size = m.fabs(x)
        near, far = _bessel(m, _I0E_SMALL, _I0E_LARGE, size)
        return m.where(x == x, m.where(size <= 8.0, near, far), NAN)

    def vjp(self, ct, y, x): return (ct * (i1e(x) - sign(x) * y),)


class I1e(Formula):
    """exp(-|x|) times the modified Bessel function of the first kind, of order 1."""
    name = "i1e"

    def formula(self, m, x):
        size = m.fabs(x)
        near, far = _bessel(m, _I1E_SMALL, _I1E_LARGE, size)
        value = m.where(size <= 8.0, near * x, m.where(x < 0.0, -far, far))
        return m.where(x == x, value, NAN)

    def vjp(self, ct, y, x):
        zero = eq(x, 0.0)
        return (ct * (i0e(x) - y * sign(x) - where(zero, 0.5, y / where(zero, 1.0, x))),)


class I0(I0e):
    """The modified Bessel function of the first kind, of order 0."""
    name = "i0"

    def formula(self, m, x):
        half = m.exp(0.5 * m.fabs(x))                               # twice: exp(|x|) is infinite before the product is
        return super().formula(m, x) * half * half

    def vjp(self, ct, y, x): return (ct * i1(x),)


class I1(I1e):
    """The modified Bessel function of the first kind, of order 1."""
    name = "i1"

    def formula(self, m, x):
        half = m.exp(0.5 * m.fabs(x))
        return super().formula(m, x) * half * half

    def vjp(self, ct, y, x):
        zero = eq(x, 0.0)
        return (ct * (i0(x) - where(zero, 0.5, y / where(zero, 1.0, x))),)


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


# ---------------------------------------------------------------------------------------------------- torch's functions


def _operation(name: str, *aliases: str, special: tuple[str, ...] = (), method: bool = True) -> Any:
    """The primitive as a function: exported under `aliases` (from tg.special alone if there are none), and under `special` there."""
    op = REGISTRY[name]
    if op.nin == 1:  # type: ignore[attr-defined]
        def fn(input: Array) -> Array:
            return call(op, (input,), {})
    else:
        def fn(input: Array, other: Array) -> Array:  # type: ignore[misc]
            return call(op, (input, other), {})
    fn.__name__ = fn.__qualname__ = (aliases or special)[0]
    takes = "input: tensor of any shape" if op.nin == 1 else "input, other: tensors or scalars that broadcast together"  # type: ignore[attr-defined]
    fn.__doc__ = f"{type(op).__doc__}\n\n    {takes}."
    if aliases:
        public(*aliases, method=method)(fn)
    SPECIAL.update(dict.fromkeys(special, entered(fn)))
    return fn


def _special(*names: str) -> Callable[[F], F]:
    """Decorator: the function is exported from tg.special, under `names` (default: its own)."""
    def attach(fn: F) -> F:
        SPECIAL.update(dict.fromkeys(names or (fn.__name__,), entered(fn, names[0] if names else fn.__name__)))
        return fn
    return attach


acosh, asinh = _operation("acosh", "acosh", "arccosh"), _operation("asinh", "asinh", "arcsinh")
atanh = _operation("atanh", "atanh", "arctanh")
hypot, copysign, nextafter = _operation("hypot", "hypot"), _operation("copysign", "copysign"), _operation("nextafter", "nextafter")
gcd, logaddexp2 = _operation("gcd", "gcd"), _operation("logaddexp2", "logaddexp2")
erfc = _operation("erfc", "erfc", special=("erfc",))
erfinv = _operation("erfinv", "erfinv", special=("erfinv",))
lgamma, digamma = _operation("lgamma", "lgamma", special=("gammaln",)), _operation("digamma", "digamma", special=("digamma", "psi"))
igamma = _operation("igamma", "igamma", special=("gammainc",))
igammac = _operation("igammac", "igammac", special=("gammaincc",))
i0 = _operation("i0", "i0", special=("i0", "modified_bessel_i0"))
i1, i0e = _operation("i1", special=("i1", "modified_bessel_i1")), _operation("i0e", special=("i0e",))
i1e = _operation("i1e", special=("i1e",))
zeta = _operation("zeta", special=("zeta",))
erfcx, ndtri, ndtr, log_ndtr = (_operation(name, special=(name,)) for name in ("erfcx", "ndtri", "ndtr", "log_ndtr"))
entr = _operation("entr", special=("entr",))
SPECIAL.update(erf=PUBLIC["erf"], exp2=PUBLIC["exp2"], expit=PUBLIC["sigmoid"], expm1=PUBLIC["expm1"], log1p=PUBLIC["log1p"],
               round=PUBLIC["round"], softmax=PUBLIC["softmax"], log_softmax=PUBLIC["log_softmax"], logsumexp=PUBLIC["logsumexp"])


@public("polygamma", method=False)
def polygamma(n: int, input: Array) -> Array:
    """The n-th derivative of digamma: (-1)^(n + 1) n! zeta(n + 1, x) ([DLMF] 5.15.1). n: an integer, 0 or more.

    >>> tg.polygamma(1, tg.tensor([1.0]))           # pi² / 6
    """
    if type(n) is not int or n < 0:
        raise ArgumentError(f"polygamma: n must be an integer, 0 or more, got {n!r}")
    if n == 0:
        return digamma(input)
    return zeta(float(n + 1), input) * ((-1.0) ** (n + 1) * factorial(n))


_special()(polygamma)


@method("polygamma")
def _polygamma_method(self: Array, n: int) -> Array:
    """tg.polygamma(n, x)."""
    return polygamma(n, self)


@public("mvlgamma")
def mvlgamma(input: Array, p: int) -> Array:
    """The logarithm of the multivariate gamma function of dimension p: p (p - 1) / 4 log(pi) + the sum of lgamma(x - j / 2), j < p."""
    if type(p) is not int or p < 1:
        raise ArgumentError(f"mvlgamma: p must be an integer, 1 or more, got {p!r}")
    out = lgamma(input)
    for j in range(1, p):
        out = out + lgamma(input - 0.5 * j)
    return out + p * (p - 1) / 4.0 * ln(pi)


_special("multigammaln")(mvlgamma)


@public("logaddexp")
def logaddexp(input: Array, other: Array) -> Array:
    """log(exp(input) + exp(other)), without overflow; of complex numbers, too."""
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
    """input * log(other), 0 where input is 0 (unless other is NaN)."""
    return _times_log(input, other, log, 0.0)


@_special()
def xlog1py(input: Array, other: Array) -> Array:
    """input * log(1 + other), 0 where input is 0 (unless other is NaN)."""
    return _times_log(input, other, log1p, -1.0)


_special()(xlogy)


def _as_float(x: Array) -> Array:
    return x if dtype_kind(x.dtype) == "f" else x * 1.0


@public("sinc")
def sinc(input: Array) -> Array:
    """sin(pi x) / (pi x), 1 at 0. Near 0 its Taylor series, so that derivatives of every order are right there."""
    input = _as_float(input)
    small = abs_(input) < 0.15
    near = where(small, input, 0.0) * pi
    away = where(small, 1.0, input)
    whole = round_(real(away))                          # sin(pi x) = ± sin(pi (x - whole)), of which no digit is lost
    odd = whole - floor(whole * 0.5) * 2.0
    ratio = sin((away - whole) * pi) * (1.0 - odd * 2.0) / (away * pi)
    return where(small, polynomial([(-1.0) ** k / factorial(2 * k + 1) for k in range(8)], near * near), ratio)


_special()(sinc)


@_special()
def spherical_bessel_j0(input: Array) -> Array:
    """sin(x) / x, 1 at 0 and 0 at infinity."""
    input = _as_float(input)
    size = abs_(input)
    away = where((size > 0.4) & (size < INF), input, 1.0)
    return where(size < INF, where(size > 0.4, sin(away) / away, sinc(where(size > 0.4, 0.0, input) * (1.0 / pi))),
                 where(isnan(input), input, 0.0))


@public("logit")
@on_nodes
@rounded_once
def logit(input: Array, eps: float | None = None) -> Array:
    """log(x / (1 - x)); NaN outside [0, 1]. eps: x is limited to [eps, 1 - eps] first."""
    refuse_complex("logit", input)
    x = _as_float(input)
    if eps is not None:
        x = where(lt(x, eps), eps, where(gt(x, 1.0 - eps), 1.0 - eps, x))           # as in torch where eps is above 1/2
    else:
        x = x * where(lt(x, 0.0) | gt(x, 1.0), NAN, 1.0)            # so that the derivative is NaN there, too
    middle = (x > 0.25) & (x < 0.75)                    # the ratio is close to 1, whose logarithm is small
    half = where(middle, x, 0.5)
    return where(middle, log1p((half * 2.0 - 1.0) / (1.0 - half)), log(x) - log1p(-x))      # whose derivatives are infinite at 0 and 1


_special()(logit)
