"""Eigenvalues and singular values of many small matrices, by Jacobi's rotations (see small_matrices.py). Start at `eigh`, then `svd`.

A rotation makes one pair of rows orthogonal (svd), or one element below the diagonal zero (eigh); sweeps go over all pairs until nothing
is left to do in any matrix of the vector. A matrix that is done is not turned any more: what it gives does not depend on its neighbours.
C. Jacobi (1846); M. Hestenes, "Inversion of matrices by biorthogonalization and related results" (1958); J. Demmel, K. Veselic,
"Jacobi's method is more accurate than QR" (1992). Of complex matrices a rotation's sine is complex, too, its phase that of the element that
becomes zero (G. Forsythe, P. Henrici, "The cyclic Jacobi method", 1960).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.lower.matrices.kernel import Matrices
from tracegrad.codegen.lower.matrices.values import Numbers, Value, Variable, squares, sum_of
from tracegrad.ops.linalg.eigen import NOT_SMALL

_SWEEPS = 30                        # at most: 4 to 8 are usual up to 16 x 16, for off the diagonal the size is squared in each of the last


def eigh(k: Matrices) -> None:
    """a becomes diagonal: turned rows and columns. The rows of `vectors` are the eigenvectors."""
    n = k.n
    a = k.load(0, "a")
    k.note()
    values, vectors = k.array("values", n), k.unit("vectors", n, n) if k.wanted(1) else None
    if k.parts > 1:                                          # of a Hermitian matrix the diagonal is real
        for r in k.range("r", n):
            a.imag[r, r] = k.number(0)
    scale = scaled(k, a, lambda: ((r, c) for r in k.range("r", n) for c in k.range("c", 0, r + 1)))
    least = (float(np.finfo(k.node.operands[0].dtype).eps) / 8) ** 2
    for _ in k.times("sweep", _SWEEPS):
        off, norm = k.variable("off", k.number(0)), k.variable("norm", k.number(0))
        for r in k.range("r", n):
            for c in k.range("c", 0, r):
                off += a[r, c].squared
            norm += a[r, r].real.squared
        open_ = k.let("open", off > least * (norm + off))
        k.leave(open_)
        for p in k.range("p", n - 1):
            for q in k.range("q", p + 1, n):
                _zeroed(k, a, vectors, p, q, open_)
    for j in k.range("j", n):
        values[j] = a[j, j].real * scale
    _sort(k, values, "<", *([vectors] if vectors else []))
    k.report()
    k.store(0, values)
    if vectors:
        _signs(k, vectors, n)
        k.store(1, vectors, (n, n))


def _zeroed(k: Matrices, a: Numbers, vectors: Numbers | None, p: Index, q: Index, open_: Value) -> None:
    """The rotation that makes nothing of element q, p."""
    n = k.n
    x, y = k.let("x", a[q, p]), k.let("y", (a[q, q].real - a[p, p].real) * 0.5)
    size = k.let("size", k.fabs(y) + k.sqrt(squares(x, y)))
    here = k.let("here", open_ & (size > 0))
    tangent = k.let("tangent", k.where(here, k.where(y < 0, -x, x) / k.where(here, size, 1), 0))
    cosine = k.let("cosine", 1 / k.sqrt(sum_of((k.number(1), *(Value(t) * Value(t) for t in tangent.parts)))))
    sine = k.let("sine", tangent * cosine)
    a.real[p, p] -= (tangent.conj * x).real
    a.real[q, q] += (tangent.conj * x).real
    a[q, p] = k.where(open_, 0, x)
    for i in k.range("i", 0, p):
        turned(k, a[p, i], a[q, i], cosine, sine.conj)
    for i in k.range("i", p + 1, q):
        turned(k, a[i, p], a[q, i], cosine, sine, mirrored=True)
    for i in k.range("i", q + 1, n):
        turned(k, a[i, p], a[i, q], cosine, sine)
    for i in k.range("i", n) if vectors else ():
        turned(k, vectors[p, i], vectors[q, i], cosine, sine)  # type: ignore[index]


def svd(k: Matrices) -> None:
    """One-sided: the shorter side's rows (of A, or of A^T) are turned until they are orthogonal. Then their lengths are the singular

    values, their directions are the vectors of the longer side, `rows`, and the turns are those of the other, `turns` (conjugated, so that
    all are stored as they are: where the turns are T, T A = S V^H gives U = T^H, and T A^T = S U^T gives V^H = conj(T)).
    """
    tall, least, length = k.m > k.n, min(k.m, k.n), max(k.m, k.n)
    left, right = k.wanted(0), k.wanted(2)
    vectors = left or right
    count = length if k.attrs["full"] and vectors else least                        # of rows: those beyond are of the null space
    rows = k.load(0, "rows", tall, count * length)
    k.note()
    values = k.array("values", count)
    turns = k.unit("turns", least, least) if (vectors if tall else left) else None    # signs are those of the right vectors
    scale = scaled(k, rows, lambda: k.pairs(least, length))
    nothing = float(k.limits.tiny) / float(k.limits.eps) ** 3                           # rows are as good as 0 whose squares are below that
    for _ in k.times("sweep", _SWEEPS):
        open_ = k.variable("open", k.truth(False))
        for p in k.range("p", least - 1):
            for q in k.range("q", p + 1, least):
                _orthogonal(k, rows, turns, p, q, open_, nothing)
        k.leave(open_)
    for j in k.range("j", least):
        norm = k.total("norm", (rows[j, i].squared for i in k.range("i", length)))
        values[j] = k.sqrt(norm)
    for j in k.range("j", least, count):
        values[j] = k.number(0)
        for i in k.range("i", length):
            rows[j, i] = k.zero(k.parts)
    _sort(k, values, ">", rows, *([turns] if turns else []))
    if vectors:
        _orthonormal(k, rows, values, count, nothing ** 0.5)
    for j in k.range("j", least):
        values[j] *= scale
    k.report()
    k.store(1, values)
    first, second = (rows, turns) if tall else (turns, rows)
    if second and vectors:
        _signs(k, second, least, first)
    if left:
        k.store(0, first, (length, count) if tall else (least, least))
    if right:
        k.store(2, second)


def _orthogonal(k: Matrices, rows: Numbers, turns: Numbers | None, p: Index, q: Index, open_: Variable, nothing: float) -> None:
    """The rotation that makes rows p and q orthogonal, where they are not: then `open_`, too."""
    dtype, length = k.node.operands[0].dtype, rows.columns
    right_angle = float(np.finfo(dtype).eps) * (length ** 0.5 if dtype == k.dtype else 0.125)  # a cosine below this is one
    alpha, beta, x = (k.variable(name, k.zero(parts)) for name, parts in (("alpha", 1), ("beta", 1), ("x", k.parts)))
    for i in k.range("i", length):
        upper, lower = rows[p, i], rows[q, i]
        alpha += upper.squared
        beta += lower.squared
        x += upper * lower.conj
    size = k.let("size", k.sqrt(alpha) * k.sqrt(beta))
    norm = k.fabs(x) if k.parts == 1 else k.let("norm", k.call("hypot", x.real, x.imag))
    here = k.let("here", (norm > right_angle * size) & (alpha > nothing) & (beta > nothing))
    with k.where_any(here):
        open_ |= here
        twice = x + x if k.parts == 1 else norm + norm
        y = k.let("y", (beta - alpha) / k.where(here, twice, 1))
        whole = k.let("whole", 1 / (k.fabs(y) + k.sqrt(1 + y * y)))
        tangent = k.let("tangent", k.where(here, k.where(y < 0, -whole, whole), 0))
        cosine = k.let("cosine", 1 / k.sqrt(1 + tangent * tangent))
        sine = k.let("sine", tangent * cosine if k.parts == 1 else x / k.where(here, norm, 1) * tangent * cosine)
        for i in k.range("i", length):
            turned(k, rows[p, i], rows[q, i], cosine, sine)
        for i in k.range("i", turns.columns) if turns else ():
            turned(k, turns[p, i], turns[q, i], cosine, sine.conj)  # type: ignore[index]


# ------------------------------------------------------------------------------------------------------------------- steps


def scaled(k: Matrices, a: Numbers, places: Callable[[], Iterator[tuple[Index, Index]]]) -> Value:
    """Divides the elements at `places` by a power of two, the size of the largest, so that no square is too large or too small.

    `info` becomes 1 where one of them is NaN or infinite. What is given back is the power.
    """
    least, most = float(k.limits.tiny), 2.0 ** (k.limits.maxexp - 2)
    best = k.variable("best", k.number(0))
    for place in places():
        for x in k.absolutes(a[place]):
            size = k.let("size", x)
            k.info[0] = k.where(size - size == 0, k.info[0], k.whole(1))
            k.most(best, size)
    best.assign(k.power(best))
    scale = k.let("scale", k.where(best < least, least, k.where(best > most, most, best)))
    for place in places():
        a[place] /= scale
    return scale


def turned(k: Matrices, x: Variable, y: Variable, cosine: Value, sine: Value, mirrored: bool = False) -> None:
    """Two numbers, turned by an angle: c x - s y and conj(s) x + conj(c) y. mirrored: of y's conjugate, before and after."""
    e, r = k.let("e", x), k.let("r", y.conj if mirrored else y)
    x.assign(cosine * e - sine * r)
    other = sine.conj * e + cosine.conj * r
    y.assign(other.conj if mirrored else other)


def _sort(k: Matrices, values: Numbers, before: str, *others: Numbers) -> None:
    """Puts the numbers of the matrices in order, and with them rows."""
    count = min(k.m, k.n)
    for i in k.range("i", count - 1):
        for j in k.range("j", i + 1, count):
            alpha, beta = k.let("alpha", values[i]), k.let("beta", values[j])
            here = k.let("here", beta < alpha if before == "<" else beta > alpha)
            values[i] = k.where(here, beta, alpha)
            values[j] = k.where(here, alpha, beta)
            for x in others:
                k.swap(here, x, i, j, x.columns)


def _signs(k: Matrices, rows: Numbers, count: int, others: Numbers | None = None) -> None:
    """Turns round those rows whose first number that is not small is negative, and with them the others'.

    Complex ones are turned until that number is positive, and the others the other way.
    """
    small = NOT_SMALL / rows.columns ** 0.5
    for j in k.range("j", count):
        sign = k.variable("sign", k.zero(k.parts))
        for c in k.range("c", rows.columns):
            x = k.let("x", rows[j, c])
            if k.parts == 1:
                sign.assign(k.where((sign == 0) & (k.fabs(x) > small), x, sign))
                continue
            norm = k.let("norm", k.sqrt(x.squared))
            here = k.let("here", (sign.real == 0) & (sign.imag == 0) & (norm > small))
            sign.assign(k.where(here, x / norm, sign))
        for array, by in ((rows, sign.conj), (others, sign)):
            for c in k.range("c", array.columns) if array else ():
                e = array[j, c]  # type: ignore[index]
                e.assign(k.where(sign < 0, -e, e) if k.parts == 1 else by * e)


def _orthonormal(k: Matrices, rows: Numbers, values: Numbers, count: int, small: float) -> None:
    """Gives rows the length 1: `values` are their lengths. One that has none becomes orthogonal to those before it: made of the unit

    vector that is farthest from them, twice, for once leaves what rounding leaves.
    """
    length = rows.columns
    for j in k.range("j", count):
        flat = k.let("flat", values[j] <= small)
        for i in k.range("i", length):
            rows[j, i] = k.where(flat, 0, rows[j, i] / k.where(flat, 1, values[j]))
        with k.where_any(flat):
            best, first = k.variable("best", k.number(0)), k.variable("first", k.whole(0))
            for i in k.range("i", length):
                x = k.variable("x", k.number(1))
                for r in k.range("r", 0, j):
                    x -= rows[r, i].squared
                first.assign(k.where(x > best, k.whole(i), first))
                k.most(best, x)
            for i in k.range("i", length):
                rows.real[j, i] = k.where(flat & (first == i), 1, rows[j, i].real)
            for _ in k.times("again", 2):
                for r in k.range("r", 0, j):
                    along = k.total("along", (rows[j, i] * rows[r, i].conj for i in k.range("i", length)), k.zero(k.parts))
                    along.assign(k.where(flat, along, 0))
                    for i in k.range("i", length):
                        rows[j, i] -= along * rows[r, i]
                norm = k.total("norm", (rows[j, i].squared for i in k.range("i", length)))
                norm.assign(k.where(flat, k.sqrt(norm), 1))
                for i in k.range("i", length):
                    rows[j, i] /= norm
