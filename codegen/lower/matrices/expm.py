"""Exponentials of many small matrices, and their derivatives (see small_matrices.py). Start at `exponential`.

The steps are those of `matrix_exponential.py`: scaling and squaring of Taylor's polynomial of degree 16, in products alone. Each matrix
of a vector is halved as often as its norm asks for. A derivative is that of dual numbers A + x E, x x = 0: the same steps on A and E.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.lower.matrices.kernel import Matrices
from tracegrad.codegen.lower.matrices.values import Numbers, Value, Variable, sum_of
from tracegrad.ops.linalg.matrix_exponential import EXP_NORM, EXP_SERIES

_NORMS = {4: (2.47, 2.1), 8: EXP_NORM}                       # by a number's bytes; float32 is exact from larger ones on
_HALVINGS = 1100                                             # more than any norm takes


def exponential(k: Matrices) -> None:
    """The result is exp A, or, of a dual number's two matrices, what belongs to E."""
    n, a = k.n, [k.load(number, name) for number, name in zip(range(len(k.shapes)), "ae", strict=False)]

    def arrays(base: str) -> list[Numbers]:
        return [k.array(f"{base}{'_e' * dual}", n, n, k.parts) for dual in range(len(a))]

    halvings = _halved(k, a)
    b, c, d, x, y = map(arrays, ("square", "cube", "fourth", "x", "y"))
    powers = [a, b, c, d]

    def terms(dual: int, lowest: int, r: Index, column: Index) -> list[Value]:
        """Those of the series from `lowest` on, of the element at r, c: the larger ones last, so that I is rounded once."""
        last = 4 if lowest == 12 else 3
        one = [] if dual else [k.where(k.at(column) == r, float(EXP_SERIES[lowest]), 0)]
        return [*(float(EXP_SERIES[lowest + j]) * powers[j - 1][dual][r, column] for j in range(last, 0, -1)), *one]

    for z, left, right in ((b, a, a), (c, b, a), (d, b, b)):
        _product(k, z, left, right)
    for r, column in k.pairs(n, n):
        for dual, part in enumerate(x):
            part[r, column] = sum_of(terms(dual, 12, r, column))
    for lowest in (8, 4, 0):
        _product(k, y, d, x)
        for r, column in k.pairs(n, n):
            for dual, part in enumerate(y):
                part[r, column] = sum_of([part[r, column], *terms(dual, lowest, r, column)])
        x, y = y, x
    for _ in k.times("iteration", _HALVINGS):
        open_ = k.let("open", halvings > 0)
        k.leave(open_)
        halvings -= 1
        _product(k, y, x, x)
        for e in k.range("e", n * n):
            for part, square in zip(x, y, strict=True):
                part[e] = k.where(open_, square[e], part[e])
    k.store(0, x[-1])


def _halved(k: Matrices, a: list[Numbers]) -> Variable:
    """Halves the matrices until they are small: how often."""
    n = k.n
    norm, rest = k.variable("norm", k.number(0)), k.variable("rest", k.number(0))          # rest: NaN where one of them is NaN or infinite
    for c in k.range("c", n):
        size = k.total("size", (k.size(a[0][r, c]) for r in k.range("r", n)))
        k.most(norm, size)
        rest += size - size
    halvings = k.variable("halvings", k.number(0))
    for e in k.range("e", n * n):
        for x in a:
            x[e] += Value(*rest.parts * k.parts)
    for _ in k.times("iteration", _HALVINGS):
        open_ = k.let("open", (norm > _NORMS[k.dtype.itemsize][len(a) - 1]) & (rest == 0))
        k.leave(open_)
        norm.assign(k.where(open_, norm * 0.5, norm))
        halvings.assign(k.where(open_, halvings + 1, halvings))
        for e in k.range("e", n * n):
            for x in a:
                x[e] = k.where(open_, x[e] * 0.5, x[e])
    return halvings


def _product(k: Matrices, z: list[Numbers], x: list[Numbers], y: list[Numbers]) -> None:
    """z becomes x y."""
    n = k.n
    for r in k.range("r", n):
        for c in k.range("c", n):
            for part in z:
                part[r, c] = k.zero(k.parts)
        for i in k.range("i", n):
            factors = [k.let(name, part[r, i]) for name, part in zip("pq", x, strict=False)]
            for c in k.range("c", n):
                z[0][r, c] += factors[0] * y[0][i, c]
                for dual in z[1:]:
                    dual[r, c] += factors[0] * y[1][i, c] + factors[1] * y[0][i, c]
