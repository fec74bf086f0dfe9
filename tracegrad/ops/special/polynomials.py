"""Orthogonal polynomials of any degree, and their derivatives of any order, each one Formula; tg.special's names of them.

By the recurrence of three terms (M. Abramowitz, I. Stegun, "Handbook of mathematical functions", 1964, 22.7): its error is absolute, so
next to a zero it is float64, or sums of three floats, that keep float32's digits. Start at `OrthogonalPolynomial`.
"""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import SPECIAL, Operators, entered
from tracegrad.graph.primitive import REGISTRY, bind, call
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays.pointwise import detach, trunc
from tracegrad.ops.primitives.formula import NAN, Formula, Numpy, Triples

Array = Any      # a Node or a Tensor


class OrthogonalPolynomial(Formula):
    """Base of the polynomials p_n, by a recurrence of p_k, which is 1 for k = 0, and another one, q_k. n counts as floor(n).

    Both are linear, so the derivatives of `order` j follow with one term more, that of x p: j times the derivative of order j - 1.
    """
    nin, constants, domain, many, cost, orders = 2, (1,), (0.3, 3.0), Triples, 40.0, 3
    step: Any                               # step(m, k, x p, p, q), those of k - 1, -> p and q of k
    start: Any                              # q_0 and its derivative
    alternating: bool                       # whether the recurrence gives (-1)^n p_n

    def formula(self, m, x, n, order=0):
        zeros = [0.0] * order
        one = m.where(x >= 0.0, 1.0, 1.0)                          # of x's shape, and of a NaN, too
        state = [one, *zeros, *[*self.start(x), *zeros][:order + 1]]

        def iteration(k, *state):
            ps, qs = state[:order + 1], state[order + 1:]
            products = [x * p for p in ps]
            products[1:] = [xp + p * float(j) for j, (xp, p) in enumerate(zip(products[1:], ps, strict=False), 1)]
            after = [self.step(m, k, *each) for each in zip(products, ps, qs, strict=True)]
            return *(p for p, _ in after), *(q for _, q in after)

        n = m.floor(n)
        value = m.times(m.where(n < 2.0 ** 24, n, 0.0), state, iteration)[order]
        if self.alternating:
            value = m.where(m.floor(n * 0.5) * 2.0 == n, value, -value)
        return m.where(n >= 0.0, m.where(n < 2.0 ** 24, value, NAN), 0.0)

    def vjp(self, ct, y, x, n, order=0): return ct * bind(self, (x, n), {"order": order + 1}), None


def _composed(op: Any, x: Array, n: Any) -> Array:
    """The polynomial of complex numbers, as a program."""
    if type(n) is not int:
        raise ArgumentError(f"{op.name}: n must be an integer where input is complex, got a tensor")
    p, q = x * 0.0 + float(n >= 0), op.start(x)[0]
    for k in range(1, n + 1):
        p, q = op.step(Numpy(), float(k), x * p, p, q)
    return -p if op.alternating and n % 2 else p


def _polynomial(name: str, doc: str, step: Any, start: Any = lambda x: (0.0, 0.0), alternating: bool = False) -> None:
    """The op of that name, and the function of tg.special."""
    text = f"{doc} n: an integer, or a tensor of them, rounded towards 0; 0 for negative n, NaN for 2^24 and more."
    type(name, (OrthogonalPolynomial,), {"name": name, "__doc__": text, "step": staticmethod(step), "start": staticmethod(start),
                                         "alternating": alternating})
    op = REGISTRY[name]

    def fn(input: Any, n: Any) -> Any:
        if not isinstance(n, Operators) and not (isinstance(input, Operators) and type(n) is int):
            raise ArgumentError(f"{name}: n must be an integer or a tensor, and one of the two a tensor, got {n!r} and "
                                f"{type(input).__name__}")
        if isinstance(input, Operators) and input.dtype.kind == "c":
            return _composed(op, input, n)
        return call(op, (input, trunc(detach(n)) if isinstance(n, Operators) else n), {})

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"""{text}

    input: any shape, which broadcasts with n's, or a number. dtype: any; of integers and bools the default float one.
    Raises ArgumentError for another n.

    >>> tg.special.{name}(tg.tensor([0.25, 0.5]), 2)
    """
    SPECIAL[name] = entered(on_nodes(rounded_once(fn)))             # float16 does not have all degrees


def _chebyshev(m, k, xp, p, q): return xp * 2.0 - q, p


def _shifted(m, k, xp, p, q):
    """q_k = p_k - p_(k - 1): where that is small, next to 0, floats are dense and zeros, too."""
    q = q - xp * 4.0
    return p + q, q


def _hermite(m, k, xp, p, q): return (xp - q) * 2.0, k * p


def _hermite_e(m, k, xp, p, q): return xp - q, k * p


def _laguerre(m, k, xp, p, q):
    q = q - m.over(xp + q, k)
    return p + q, q


def _legendre(m, k, xp, p, q):
    more = xp - q
    return xp + (more - m.over(more, k)), p


for _kind, _plain, _moved in (("t", lambda x: (x, 1.0), lambda x: (x * 2.0, 2.0)), ("u", lambda x: (0.0, 0.0), lambda x: (1.0, 0.0)),
                              ("v", lambda x: (1.0, 0.0), lambda x: (2.0, 0.0)), ("w", lambda x: (-1.0, 0.0), lambda x: (0.0, 0.0))):
    _polynomial(f"chebyshev_polynomial_{_kind}", f"Chebyshev's polynomial {_kind.upper()}_n(x).", _chebyshev, _plain)
    _polynomial(f"shifted_chebyshev_polynomial_{_kind}", f"Chebyshev's polynomial {_kind.upper()}_n(2x - 1).", _shifted, _moved, True)
_polynomial("hermite_polynomial_h", "The physicist's Hermite polynomial H_n(x).", _hermite)
_polynomial("hermite_polynomial_he", "The probabilist's Hermite polynomial He_n(x).", _hermite_e)
_polynomial("laguerre_polynomial_l", "Laguerre's polynomial L_n(x).", _laguerre)
_polynomial("legendre_polynomial_p", "Legendre's polynomial P_n(x).", _legendre)
