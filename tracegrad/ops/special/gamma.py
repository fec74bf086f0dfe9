"""The gamma function and its family: lgamma, digamma, polygamma, zeta, the incomplete gamma functions, mvlgamma.

Primitives are Formulas (`ops/primitives/formula.py`: written once for NumPy and for C); functions composed of them follow.
Sources: [AS] Abramowitz & Stegun 1964; [DLMF] dlmf.nist.gov; [C] Moshier, Methods and Programs for Mathematical Functions, 1989 (Cephes).
"""

from __future__ import annotations

from math import factorial, pi
from math import log as ln
from typing import Any

from tracegrad.errors import ArgumentError, MissingRuleError
from tracegrad.graph.operators import method, public
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays.pointwise import exp, log
from tracegrad.ops.primitives.formula import INF, NAN, Formula, next_to_zero, of_doubles, polynomial
from tracegrad.ops.special.exports import export_special, operation
from tracegrad.support.cache import memoize

Array = Any      # a Node or a Tensor


LN2 = ln(2.0)


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


# lgamma(1 + u) / (u (u - 1)) in u - 1/2, 0 <= u <= 1: a fit by Chebyshev's points, off by 3e-17
_BETWEEN_ZEROS = (
    0.4831289505409809, -0.14595989591430608, 0.06291140107458168, -0.0313084875010217, 0.01679709862898276,
    -0.009425622447061077, 0.005446457956850198, -0.003212074148968353, 0.0019229132430031888, -0.0011644126224041502,
    0.0007115650250304279, -0.0004380224528708151, 0.0002708950296280356, -0.00016865016226225166, 0.00010771545393886628,
    -6.765020809380933e-05, 3.4988964640274815e-05, -2.2062867871136606e-05, 2.8340547351058232e-05, -1.804276273750087e-05,
)
_SINE = [(-1.0) ** k * pi ** (2 * k + 1) / factorial(2 * k + 1) for k in range(11)]           # of pi x, over x, in x²


@of_doubles("lgamma")
def _lgamma(m: Any, x: Any) -> Any:
    """Between its zeros at 1 and 2 a polynomial, by recurrence up to 8, Stirling's series beyond, by reflection below 0.

    All of them take one logarithm; only what is below 0 takes another, where a vector has some.
    """
    size = m.fabs(x)
    above = size - m.floor(size)                                    # lgamma(1 + above) has the zeros at 0 and 1
    near = above * (above - 1.0) * polynomial(_BETWEEN_ZEROS, above - 0.5)
    below, far = size < 1.0, size >= 8.0
    product = m.where(below, size, 1.0)
    for k in range(1, 7):
        product = m.where(size >= k + 1.0, product * (size - float(k)), product)
    logarithm = m.log(m.where(far, size, product))
    inverse = 1.0 / size
    series = (size - 0.5) * (logarithm - 1.0) + (inverse * polynomial(STIRLING, inverse * inverse) + (0.5 * ln(2.0 * pi) - 0.5))
    value = m.where(far, series, near + m.where(below, -logarithm, logarithm))

    def reflected(k: Any, value: Any) -> Any:
        rest = size - m.rint(size)
        sine = m.fabs(rest * polynomial(_SINE, rest * rest))
        found = m.log(pi / (sine * m.where(below, 1.0, size))) - m.where(below, near, value)
        return (m.where((rest == 0.0) | (size == INF), INF, found),)

    return m.times(m.where(x < 0.0, 1.0, 0.0), (value,), reflected)[0]


class Digamma(Formula):
    """The derivative of lgamma: ln(x) and an asymptotic series from 10 on, by recurrence below, by reflection below 0.5 ([DLMF] 5.5, 5.11).

    At 0 infinite with the other sign, NaN at the negative integers, as in torch.
    """
    name, domain = "digamma", (0.3, 4.0)

    def formula(self, m, x):
        reflected = x < 0.5
        y = m.where(reflected, 1.0 - x, x)

        def up(y, above, under):                                        # the sum of 1 / y as one fraction: a division takes longest
            small = y < 10.0
            return m.where(small, y + 1.0, y), m.where(small, above * y + under, above), m.where(small, under * y, under)

        y, above, under = m.loop(10, (y, 0.0 * y, 0.0 * y + 1.0), up)
        total = -above / under
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
        raise MissingRuleError(f"{name}: has no derivative in {what} (nor in torch); use {what}.detach()")


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
lgamma, digamma = operation("lgamma", "lgamma", special=("gammaln",)), operation("digamma", "digamma", special=("digamma", "psi"))
igamma = operation("igamma", "igamma", special=("gammainc",))
igammac = operation("igammac", "igammac", special=("gammaincc",))
zeta = operation("zeta", special=("zeta",))


@public("polygamma", method=False)
def polygamma(n: int, input: Array) -> Array:
    """The n-th derivative of digamma: (-1)^(n + 1) n! zeta(n + 1, x) ([DLMF] 5.15.1). n: an integer, 0 or more.

    Any shape. dtype: real; of integers and bools the default float one. Raises ArgumentError for a negative n.

    >>> tg.polygamma(1, tg.tensor([1.0]))           # pi² / 6
    """
    if type(n) is not int or n < 0:
        raise ArgumentError(f"polygamma: n must be an integer, 0 or more, got {n!r}")
    if n == 0:
        return digamma(input)
    return zeta(float(n + 1), input) * ((-1.0) ** (n + 1) * factorial(n))


export_special()(polygamma)


@method("polygamma")
def _polygamma_method(self: Array, n: int) -> Array:
    """tg.polygamma(n, x)."""
    return polygamma(n, self)


@public("mvlgamma")
@on_nodes
@rounded_once
def mvlgamma(input: Array, p: int) -> Array:
    """The logarithm of the multivariate gamma function of dimension p: p (p - 1) / 4 log(pi) + the sum of lgamma(x - j / 2), j < p.

    dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers.

    >>> tg.mvlgamma(tg.tensor([3.0]), 2)
    """
    if type(p) is not int or p < 1:
        raise ArgumentError(f"mvlgamma: p must be an integer, 1 or more, got {p!r}")
    out = lgamma(input)
    for j in range(1, p):
        out = out + lgamma(input - 0.5 * j)
    return out + p * (p - 1) / 4.0 * ln(pi)


export_special("multigammaln")(mvlgamma)
