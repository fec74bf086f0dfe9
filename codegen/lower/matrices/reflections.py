"""QR factors of many small matrices, by Householder's reflections. Start at `reflections`.

The steps are LAPACK's: a reflection is 1 - t v v^H, v[0] = 1, of complex matrices with a complex t, so that R's diagonal is real.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.lower.matrices.kernel import Matrices
from tracegrad.codegen.lower.matrices.values import Numbers, Value, pair


def _reflected(k: Matrices, a: Numbers, t: Value, x: Numbers, j: Index, c: Index) -> None:
    """Column c of x becomes H x, H the reflection of column j of a; or H^H x, where t is the conjugate."""
    product = k.total("product", (a[i, j].conj * x[i, c] for i in k.range("i", j + 1, k.m)), x[j, c])
    product.assign(t * product)
    x[j, c] -= product
    for i in k.range("i", j + 1, k.m):
        x[i, c] -= product * a[i, j]


def reflections(k: Matrices) -> tuple[Numbers, Numbers]:
    """As geqrf: R and the vectors below it, and their factors."""
    m, n, least = k.m, k.n, min(k.m, k.n)
    a, factors = k.load(0, "a"), k.array("factors", least, parts=k.parts)
    for j in k.range("j", least):
        alpha = k.let("alpha", a[j, j])
        best = k.variable("best", k.size(alpha))
        flat = k.variable("flat", alpha.imag == 0 if k.parts > 1 else k.truth(True))
        for i in k.range("i", j + 1, m):
            size = k.let("size", k.size(a[i, j]))
            k.most(best, size)
            flat &= size == 0
        pivot = k.let("pivot", k.where(best > 0, best, 1))
        norm = k.total("norm", ((a[i, j] / pivot).squared for i in k.range("i", j + 1, m)), (alpha / pivot).squared)
        norm.assign(pivot * k.sqrt(norm))
        beta = k.let("beta", k.where(flat, alpha.real, -k.call("copysign", norm, alpha.real)))
        less = beta - alpha.real if k.parts == 1 else pair(beta - alpha.real, -alpha.imag)
        factors[j] = k.where(flat, 0, less / beta)
        _directions(k, a, j, alpha, beta, pivot, flat)
        a[j, j] = k.complex(beta)
        for c in k.range("c", j + 1, n):
            _reflected(k, a, factors[j].conj, a, j, c)
    return a, factors


def _directions(k: Matrices, a: Numbers, j: Index, alpha: Value, beta: Value, pivot: Value, flat: Value) -> None:
    """Column j below the diagonal, divided by what v[0] would be."""
    first = alpha - beta
    if k.parts > 1:                                          # a square of it may be too large
        first = k.let("first", first / pivot)
        square = k.let("square", first.squared)
    for i in k.range("i", j + 1, k.m):
        x = a[i, j] / first if k.parts == 1 else k.let("x", a[i, j] / pivot) * first.conj / square
        a[i, j] = k.where(flat, 0, x)


def geqrf(k: Matrices) -> None:
    for index, array in enumerate(reflections(k)):
        k.store(index, array)


def qr(k: Matrices) -> None:
    """The reflections' product from the last one on, as orgqr."""
    m, n, least = k.m, k.n, min(k.m, k.n)
    columns = m if k.attrs["complete"] else least
    a, factors = reflections(k)
    if k.wanted(0):
        q = k.unit("q", m, columns)
        for j in k.range("j", least, down=True):
            for c in k.range("c", j, columns):
                _reflected(k, a, factors[j], q, j, c)
        k.store(0, q)
    if k.wanted(1):
        upper = k.array("upper", columns, n, k.parts)
        for r, c in k.pairs(columns, n):
            upper[r, c] = k.where(k.at(c) < r, k.zero(k.parts), a[r, c])
        k.store(1, upper)
