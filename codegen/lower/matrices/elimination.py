"""Elimination for many small matrices: LU factors, systems, inverses, determinants, Cholesky factors. Start at `eliminate`.

The steps are LAPACK's, as are pivots and signs; what differs are roundings. The size of a complex number, by which the pivot is chosen, is
|x| + |y| there, too.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.lower.matrices.kernel import Matrices
from tracegrad.codegen.lower.matrices.values import Numbers, Value, Variable


def eliminate(k: Matrices, a: Numbers, *others: Numbers, orders: tuple[Numbers, ...] = (), pivots: Numbers | None = None,
              keep: bool = False, sign: Variable | None = None) -> None:
    """LU with partial pivoting of a (m x n), as getrf.

    others: matrices of m rows that take the same steps (right sides). keep: L, too. orders: arrays (m) whose rows are exchanged as well.
    pivots: gets LAPACK's. sign: becomes that of the exchanges.
    """
    m, n = k.m, k.n
    for j in k.range("j", min(m, n)):
        best, row = _pivot(k, a, j)
        if pivots is not None:
            pivots[j] = row + 1
        if sign is not None:
            sign.assign(k.where(row == j, sign, -sign))
        for i in k.range("i", j + 1, m):
            here = k.let("here", row == i)
            for x in (a, *others, *orders):
                k.swap(here, x, j, i, x.columns, j if x is a and not keep else 0)
        if k.noted:
            k.note_pivot(j, ~(best > 0))
        divided = k.division(a[j, j], best, k.let("flat", best == 0))
        for i in k.range("i", j + 1, m):
            factor = k.let("factor", divided(a[i, j]))
            if keep:
                a[i, j] = factor
            for x in (a, *others):
                _less(k, x, factor, i, j, j + 1 if x is a else 0)


def _pivot(k: Matrices, a: Numbers, j: Index) -> tuple[Value, Value]:
    """The size of the largest element of column j, from row j on, and its row: the first of the largest, a NaN before all."""
    best, row = k.variable("best", k.size(a[j, j])), k.variable("row", k.whole(j))
    for i in k.range("i", j + 1, k.m):
        size = k.let("size", k.size(a[i, j]))
        larger = k.let("larger", (size > best) | ((size != size) & (best == best)))
        best.assign(k.where(larger, size, best))
        row.assign(k.where(larger, k.whole(i), row))
    return best, row


def _less(k: Matrices, x: Numbers, factor: Value, i: Index, j: Index, first: Index | int) -> None:
    """Row i less factor times row j, from a column on."""
    for c in k.range("c", first, x.columns):
        x[i, c] -= factor * x[j, c]


def substitute(k: Matrices, a: Numbers, b: Numbers, upper: bool = True, unit: bool = False) -> None:
    """b becomes X in A X = B, A the upper or lower triangle of a."""
    n = k.n
    for j in k.range("j", n, down=upper):
        if not unit:
            divided = k.division(a[j, j])
            for c in k.range("c", b.columns):
                b[j, c] = divided(b[j, c])
        for i in k.range("i", 0, j) if upper else k.range("i", j + 1, n):
            _less(k, b, k.let("factor", a[i, j]), i, j, 0)


def _solved(k: Matrices, a: Numbers, b: Numbers) -> None:
    k.note()
    eliminate(k, a, b)
    k.report()
    substitute(k, a, b)
    k.store(0, b)


def solve(k: Matrices) -> None:
    _solved(k, k.load(0, "a"), k.load(1, "b"))


def inv(k: Matrices) -> None:
    _solved(k, k.load(0, "a"), k.unit("b", k.n, k.n))


def triangle(k: Matrices) -> None:
    a, b = k.load(0, "a"), k.load(1, "b")
    if not k.attrs["unit"]:
        k.note()
        for j in k.range("j", k.n):
            k.note_pivot(j, k.size(a[j, j]) == 0)
        k.report()
    substitute(k, a, b, k.attrs["upper"], k.attrs["unit"])
    k.store(0, b)


def _factored(k: Matrices, a: Numbers, nan: bool) -> None:
    """The lower triangle of a becomes that of L. nan: a pivot that is NaN is noted, too."""
    n = k.n
    k.note()
    for j in k.range("j", n):
        x = k.let("x", a[j, j].real)
        k.note_pivot(j, ~(x > 0) if nan else x <= 0)
        pivot = k.let("pivot", k.sqrt(x))
        a[j, j] = k.complex(pivot)
        for i in k.range("i", j + 1, n):
            a[i, j] /= pivot
        for i in k.range("i", j + 1, n):
            factor = k.let("factor", a[i, j])
            for c in k.range("c", j + 1, i + 1):
                a[i, c] -= factor * a[c, j].conj


def cholesky(k: Matrices) -> None:
    a = k.load(0, "a")
    _factored(k, a, False)
    k.report()
    for r in k.range("r", k.n):
        for c in k.range("c", r + 1, k.n):
            a[r, c] = k.zero(k.parts)
    k.store(0, a)


def info(k: Matrices) -> None:
    a = k.load(0, "a")
    if k.attrs["cholesky"]:
        _factored(k, a, True)
    else:
        k.note()
        eliminate(k, a)
    k.store(0, k.info)


def lu(k: Matrices) -> None:
    a = k.load(0, "a")
    pivots = k.array("pivots", min(k.m, k.n), whole=True) if k.wanted(1) else None
    orders = (k.row_numbers(k.m),) if k.wanted(2) else ()
    eliminate(k, a, orders=orders, pivots=pivots, keep=True)
    for index, array in enumerate((a, pivots, *orders)):
        k.store(index, array)


def order(k: Matrices) -> None:
    """The numbers of rows, in the order that exchanges lead to."""
    rows = k.attrs["rows"]
    pivots, order_ = k.load(0, "pivots"), k.row_numbers(rows)
    info_ = k.note()
    for j in k.range("j", k.n):
        row = k.let("row", pivots[j] - 1)
        info_[0] = k.where((row >= 0) & (row < rows), info_[0], k.whole(1))
        for i in k.range("i", rows):
            k.exchange(k.let("here", row == i), order_[j], order_[i])
    k.report()
    k.store(0, order_)


def _triangular(k: Matrices) -> tuple[Numbers, Variable]:
    """U of the operand, and the sign of the exchanges."""
    a, sign = k.load(0, "a"), k.variable("sign", k.number(1))
    eliminate(k, a, sign=sign)
    return a, sign


def _logarithm(k: Matrices, a: Numbers, exchanges: Variable) -> tuple[Value, Value]:
    """The sign of the determinant, and the logarithm of its size."""
    logarithm = k.variable("logarithm", k.number(0))
    sign = exchanges if k.parts == 1 else k.variable("phase", k.complex(exchanges))
    for j in k.range("j", k.n):
        x = a[j, j]
        if k.parts == 1:
            logarithm += k.call("log", k.fabs(x))
            sign.assign(k.where(x < 0, -sign, k.where(x > 0, sign, sign * x)))
            continue
        size = k.let("size", k.size(x))
        flat = k.let("flat", size == 0)
        u = k.let("u", x / k.let("norm", k.where(flat, 1, size)))
        length = k.let("length", k.where(flat, 1, k.sqrt(u.squared)))
        logarithm += k.call("log", size * length)
        sign.assign(sign * u / length)
    return sign, logarithm


def slogdet(k: Matrices) -> None:
    for index, value in enumerate(_logarithm(k, *_triangular(k))):
        k.store_number(index, value)


def det(k: Matrices) -> None:
    """The product of the pivots; where one on the way is too large or too small, by logarithms."""
    a, exchanges = _triangular(k)
    found, safe = k.variable("determinant", k.complex(exchanges)), k.variable("safe", k.truth(True))
    for j in k.range("j", k.n):
        found.assign(found * a[j, j])
        size = k.let("size", k.size(found))
        safe &= (size > float(k.limits.tiny) * 1e6) & (size < float(k.limits.max) / 2)
    sign, logarithm = _logarithm(k, a, exchanges)
    k.store_number(0, k.where(safe, found, sign * k.let("norm", k.call("exp", logarithm))))
