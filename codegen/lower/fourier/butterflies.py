"""Fourier transforms of a few points in a work-item's registers: the butterflies of `lines_gpu.py`. Start at `butterfly`.

A number is a pair of expressions. A composite count is cut as r = a b (J. Cooley, J. Tukey, 1965), 2 and 4 points are sums and differences,
and an odd prime takes x[j] + x[r-j] and x[j] - x[r-j], of which the cosines and the sines are summed: half of the multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import cos, pi, sin

from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Literal, Prefix, is_zero
from tracegrad.codegen.kernel.writer import Writer

Complex = tuple[Expression, Expression]
PRIMES = (2, 3, 5, 7, 11, 13)


class Arithmetic:
    """Sums and products of complex numbers as variables of a kernel. (A part that is the number 0 costs nothing.)"""

    def __init__(self, writer: Writer) -> None:
        self.w = writer

    def named(self, value: Expression) -> Expression:
        return value if is_zero(value) else self.w.declare("v", value)

    def plus(self, a: Expression, b: Expression) -> Expression:
        """A negated part is subtracted, so no variable holds it (Intel's CPU compiler computes such a variable wrongly across barriers)."""
        if is_zero(a) or is_zero(b):
            return b if is_zero(a) else a
        if isinstance(b, Prefix):
            return self.minus(a, b.parts[0])
        return self.minus(b, a.parts[0]) if isinstance(a, Prefix) else self.named(Infix("+", a, b))

    def minus(self, a: Expression, b: Expression) -> Expression:
        if is_zero(b):
            return a
        if isinstance(b, Prefix):
            return self.plus(a, b.parts[0])
        return Prefix("-", b) if is_zero(a) else self.named(Infix("-", a, b))

    def add(self, a: Complex, b: Complex) -> Complex:
        return self.plus(a[0], b[0]), self.plus(a[1], b[1])

    def sub(self, a: Complex, b: Complex) -> Complex:
        return self.minus(a[0], b[0]), self.minus(a[1], b[1])

    def scaled(self, a: Complex, factor: float) -> Complex:
        x, y = (p if is_zero(p) else self.named(Infix("*", p, Literal(factor, p.dtype))) for p in a)
        return x, y

    def weighted(self, parts: Sequence[Expression], factors: Sequence[float]) -> Expression:
        """The sum of numbers, each times its factor."""
        terms: list[Expression] = [Infix("*", p, Literal(f, p.dtype)) for p, f in zip(parts, factors, strict=True) if not is_zero(p)]
        return self.named(reduce(lambda a, b: Infix("+", a, b), terms)) if terms else parts[0]

    def times(self, a: Complex, b: Complex) -> Complex:
        """Of numbers that are both variables."""
        if is_zero(a[1]):
            return self.named(Infix("*", a[0], b[0])), self.named(Infix("*", a[0], b[1]))
        return (self.named(Infix("-", Infix("*", a[0], b[0]), Infix("*", a[1], b[1]))),
                self.named(Infix("+", Infix("*", a[0], b[1]), Infix("*", a[1], b[0]))))

    def turned(self, a: Complex, t: int, n: int) -> Complex:
        """a exp(-2 pi i t / n)."""
        t %= n
        if (4 * t) % n == 0:                 # by whole quarters: no multiplication
            quarter = 4 * t // n
            if quarter == 0:
                return a
            minus = self.minus
            none = Literal(0.0, a[0].dtype)
            return ((a[1], minus(none, a[0])), (minus(none, a[0]), minus(none, a[1])), (minus(none, a[1]), a[0]))[quarter - 1]
        c, s = cos(2 * pi * t / n), -sin(2 * pi * t / n)
        if (8 * t) % n == 0:                 # (±1 ± i) / sqrt(2): two multiplications
            re = self.minus(a[0], a[1]) if s * c > 0 else self.plus(a[0], a[1])
            im = self.plus(a[0], a[1]) if s * c > 0 else self.minus(a[1], a[0])
            x, y = self.scaled((re, im), c)
            return x, y
        return self.weighted(a, (c, -s)), self.weighted(a, (s, c))


def butterfly(of: Arithmetic, x: Sequence[Complex]) -> list[Complex]:
    """The transform of x, in order: the sums over j of x[j] exp(-2 pi i j k / r)."""
    r = len(x)
    if r == 1:
        return list(x)
    if r == 2:
        return [of.add(x[0], x[1]), of.sub(x[0], x[1])]
    if r == 4:
        even, odd = (of.add(x[0], x[2]), of.sub(x[0], x[2])), (of.add(x[1], x[3]), of.sub(x[1], x[3]))
        (re, im), (u, v) = even[1], odd[1]                 # less, and more, i times the odd ones' difference
        return [of.add(even[0], odd[0]), (of.plus(re, v), of.minus(im, u)),
                of.sub(even[0], odd[0]), (of.minus(re, v), of.plus(im, u))]
    a = 4 if r % 4 == 0 and r > 8 else next(p for p in PRIMES if r % p == 0)
    return _odd(of, x) if a == r else _composite(of, x, a)


def _composite(of: Arithmetic, x: Sequence[Complex], a: int) -> list[Complex]:
    b = len(x) // a
    columns = [butterfly(of, x[j::b]) for j in range(b)]
    rows = [butterfly(of, [of.turned(columns[j][k], j * k, len(x)) for j in range(b)]) for k in range(a)]
    return [rows[k % a][k // a] for k in range(len(x))]


def _odd(of: Arithmetic, x: Sequence[Complex]) -> list[Complex]:
    r, half = len(x), range(1, (len(x) + 1) // 2)
    sums = [of.add(x[j], x[r - j]) for j in half]
    differences = [of.sub(x[j], x[r - j]) for j in half]
    found = [reduce(of.add, sums, x[0])] + [x[0]] * (r - 1)
    for k in half:
        cosines, sines = ([f(2 * pi * j * k / r) for j in half] for f in (cos, sin))
        even = tuple(of.weighted([x[0][p], *(s[p] for s in sums)], [1.0, *cosines]) for p in (0, 1))
        odd = tuple(of.weighted([d[p] for d in differences], sines) for p in (0, 1))
        found[k] = of.plus(even[0], odd[1]), of.minus(even[1], odd[0])
        found[r - k] = of.minus(even[0], odd[1]), of.plus(even[1], odd[0])
    return found
