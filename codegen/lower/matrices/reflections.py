"""Householder's reflections, and QR factors of many small matrices by them. Start at `reflection`, then `reflected`.

The steps are LAPACK's: a reflection is 1 - t v v^H, v[0] = 1, of complex matrices with a complex t, so that R's diagonal is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tracegrad.codegen.lower.matrices.kernel import Matrices
from tracegrad.codegen.lower.matrices.values import IndexLike, Numbers, Value, Variable, pair


def reflection(k: Matrices, a: Numbers, row: IndexLike, column: IndexLike, stop: int) -> Value:
    """As larfg: t of the reflection H whose H^H leaves one real number of a column's, from a row on.

    That number takes the first one's place, and the reflection's vector those below.
    """
    alpha = k.let("alpha", a[row, column])
    best = k.variable("best", k.size(alpha))
    flat = k.variable("flat", alpha.imag == 0 if k.parts > 1 else k.truth(True))
    for i in k.range("i", row + 1, stop):
        size = k.let("size", k.size(a[i, column]))
        k.most(best, size)
        flat &= size == 0
    pivot = k.let("pivot", k.where(best > 0, best, 1))
    norm = k.total("norm", ((a[i, column] / pivot).squared for i in k.range("i", row + 1, stop)), (alpha / pivot).squared)
    norm.assign(pivot * k.sqrt(norm))
    beta = k.let("beta", k.where(flat, alpha.real, -k.call("copysign", norm, alpha.real)))
    less = beta - alpha.real if k.parts == 1 else pair(beta - alpha.real, -alpha.imag)
    factor = k.let("factor", k.where(flat, 0, less / beta))
    divided = k.division(alpha - beta, pivot)
    for i in k.range("i", row + 1, stop):
        a[i, column] = k.where(flat, 0, divided(a[i, column]))
    a[row, column] = k.complex(beta)
    return factor


def reflected(k: Matrices, t: Value, v: Callable[[Any], Value], x: Callable[[Any], Variable], first: Any,
              others: Callable[[], Iterable[Any]], right: bool = False) -> None:
    """The numbers of a column, x(first) and others, become H times these; or H^H, where t is the conjugate. right: a row's, times H.

    v: the reflection's vector, but its first number, which is 1.
    """
    product = k.total("product", ((v(i) if right else v(i).conj) * x(i) for i in others()), x(first))
    product.assign(t * product)
    at = x(first)
    at -= product
    for i in others():
        at = x(i)
        at -= product * (v(i).conj if right else v(i))


def reflections(k: Matrices) -> tuple[Numbers, Numbers]:
    """As geqrf: R and the vectors below it, and their factors."""
    least = min(k.m, k.n)
    a, factors = k.load(0, "a"), k.array("factors", least, parts=k.parts)
    for j in k.range("j", least):
        factors[j] = reflection(k, a, j, j, k.m)
        for c in k.range("c", j + 1, k.n):
            reflected(k, factors[j].conj, a.column(j), a.column(c), j, partial(k.range, "i", j + 1, k.m))
    return a, factors


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
                reflected(k, factors[j], a.column(j), q.column(c), j, partial(k.range, "i", j + 1, m))
        k.store(0, q)
    if k.wanted(1):
        upper = k.array("upper", columns, n, k.parts)
        for r, c in k.pairs(columns, n):
            upper[r, c] = k.where(k.at(c) < r, k.zero(k.parts), a[r, c])
        k.store(1, upper)
