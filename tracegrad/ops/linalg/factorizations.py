"""Cholesky, QR and LU, one class per factorisation, with symbolic derivatives. `lapack.py` says what they share."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tracegrad.errors import AutogradError, LinAlgError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.primitive import REGISTRY, cast, iota
from tracegrad.ops.arrays.pointwise import eq
from tracegrad.ops.arrays.shaping.diagonals import tril, triu
from tracegrad.ops.linalg.inverses import TRIANGLE, bad_minor
from tracegrad.ops.linalg.lapack import INDEFINITE, POSITIVE, SQUARE, TALL, WIDE, Lapack, eliminated, eye, h, hermitian_part, row, run
from tracegrad.ops.primitives.contraction import matmul
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.movement import concat, narrow
from tracegrad.support import dtypes
from tracegrad.support.plan import MatrixCheck


class Cholesky(Lapack):
    """L (lower) in A = L L^H, of the lower triangle of (*, n, n). Derivative: I. Murray, "Differentiation of the Cholesky decomposition"

    (2016), eq. 10; symmetric.
    """
    name, symmetric, impossible = "cholesky", True, INDEFINITE
    cases = [((POSITIVE,), dict(index=0)), ((POSITIVE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return operands
    def results(self, a): return [self.each(INDEFINITE, np.linalg.cholesky, a, pivot=bad_minor)]

    def vjp(self, ct, y, a, index):
        low = tril(matmul(h(y), tril(ct)))
        phi = where(eye(a.shape[-1]), low * 0.5, low)
        half = run(TRIANGLE, h(y), phi, upper=True, unit=False)                    # L^-H phi
        return (hermitian_part(h(run(TRIANGLE, h(y), h(half), upper=True, unit=False))),)


class QR(Lapack):
    """Q (orthonormal columns) and R (upper triangle) of (*, m, n): Q (*, m, k), R (*, k, n), k the smaller of m and n, or m if `complete`.

    Differentiable for m >= n, without `complete` unless m = n: S. Walter, L. Lehmann, "Algorithmic differentiation of linear algebra
    functions with application in optimum experimental design" (2010). systems.py composes the rest.
    """
    name, square = "qr", False
    cases = [((TALL,), dict(complete=False, index=0)), ((TALL,), dict(complete=False, index=1)),
             ((SQUARE,), dict(complete=True, index=0))]

    def avals(self, *operands, **attrs):
        (a,) = operands
        *lead, m, n = a.shape
        k = m if attrs["complete"] else min(m, n)
        return Aval((*lead, m, k), a.dtype), Aval((*lead, k, n), a.dtype)

    def python(self, define, operands, complete, index):
        return f"tg.linalg.qr({operands[0]}, mode='{'complete' if complete else 'reduced'}')"

    def results(self, a, complete): return list(np.linalg.qr(a, "complete" if complete else "reduced"))

    def vjp(self, ct, y, a, complete, index):
        m, n = a.shape[-2:]
        if m < n or (complete and m > n):
            raise AutogradError(f"qr: mode 'complete' has no derivative for {a.shape}: its last columns are arbitrary; use mode='reduced'")
        attrs = {"complete": complete, "index": index}
        q, r = self.result((a,), attrs, 0, y), self.result((a,), attrs, 1, y)
        inner = tril(matmul(r, h(ct)) if index else -matmul(h(ct), q))
        both = inner + h(inner)
        mirrored = matmul(q, where(eye(n), both * 0.5, both))
        full = mirrored if index else ct + mirrored
        return (h(run(TRIANGLE, r, h(full), upper=True, unit=False)),)             # full R^-H


class LU(Lapack):
    """The factors of P^T A = L U, of (*, m, n) by partial pivoting, in one matrix (without L's diagonal, which is ones); LAPACK's pivots

    (*, k), k the smaller of m and n; and row numbers (*, m): row i of L U is row P[i] of A. A zero pivot is no error here.

    Derivative of the first k rows and columns: the triangles of L^-T (L^T dL below the diagonal + dU U^T above) U^-T, rows put back; the
    rows below are L = A U^-1 and the columns beyond are U = L^-1 A.
    """
    name, python, square, holomorphic = "lu_factor", None, False, True        # tg.linalg.lu_factor leaves the row numbers out
    cases = [((x,), dict(index=0)) for x in (SQUARE, SQUARE[1], TALL, WIDE)]

    def avals(self, *operands, **attrs):
        *lead, m, n = operands[0].shape
        return operands[0], Aval((*lead, min(m, n)), dtypes.int32), Aval((*lead, m), dtypes.int32)

    def results(self, a): return list(eliminated(a))

    def vjp(self, ct, y, a, index):
        if index:
            return (None,)
        (m, n), d = a.shape[-2:], len(a.shape)
        k = min(m, n)

        def parts(x):                                                               # its first k rows and columns, and the others
            if m == n:
                return x, None
            dim = d - 2 if m > n else d - 1
            return narrow(x, dim, 0, k), narrow(x, dim, k, max(m, n) - k)

        (core, rest), (head, tail) = parts(y), parts(ct)
        low, high, more = tril(head, -1), triu(head), None
        if m > n:
            more = _right(tail, core)                                              # of the rows below: dL U^-T
            high = high - triu(matmul(t(rest), more))
        elif m < n:
            more = run(TRIANGLE, t(core), tail, upper=True, unit=True)             # of the columns beyond: L^-T dU
            low = low - tril(matmul(more, t(rest)), -1)
        inner = tril(matmul(t(tril(core, -1)), low) + low, -1) + triu(matmul(high, t(triu(core))))
        whole = _right(run(TRIANGLE, t(core), inner, upper=True, unit=True), core)
        if more is not None:
            whole = concat([whole, more], d - 2 if m > n else d - 1)
        order = self.result((a,), {"index": 0}, 2, y)
        return (matmul(permutation(order, a.dtype), whole),)


def _right(x: Node, u: Node) -> Any:
    """x U^-T, U the upper triangle of u."""
    return t(run(TRIANGLE, u, t(x), upper=True, unit=False))


class PivotOrder(Shared):
    """The numbers (int32) of `rows` rows that LAPACK's pivots (*, k) lead to: row i is exchanged with row pivots[i] - 1, in turn."""
    name, family, differentiable, batches = "pivot_order", "host_call", False, True
    impossible = "holds pivots that are not from 1 to the number of rows"
    cases = [((np.array([[2, 3, 3], [1, 2, 3]], np.int32),), dict(rows=3, index=0)), ((np.array([4, 3], np.int32),), dict(rows=5, index=0))]

    def avals(self, *operands, **attrs): return (Aval((*operands[0].shape[:-1], attrs["rows"]), dtypes.int32),)

    def results(self, pivots, rows):
        *batch, k = pivots.shape
        lists = pivots.reshape(prod(batch), k)
        bad = np.flatnonzero(((lists < 1) | (lists > rows)).any(1))
        if len(bad):
            raise LinAlgError(MatrixCheck(self.name, (*batch, 1, k), self.impossible).message(int(bad[0]), 0))
        order, every = np.tile(np.arange(rows, dtype=np.int32), (len(lists), 1)), np.arange(len(lists))
        for j in range(pivots.shape[-1]):
            p = lists[:, j] - 1
            order[every, p], order[:, j] = order[:, j].copy(), order[every, p]
        return [order.reshape((*pivots.shape[:-1], rows))]


def permutation(order: Node, dtype: Any) -> Node:
    """The matrices P (*, n, n) whose column i has its one in row order[i]."""
    n = order.shape[-1]
    return cast(eq(row(order), iota((n, n), 0, dtypes.int32)), dtype)
CHOLESKY, QR_, LU_, ORDER = (REGISTRY[name] for name in ("cholesky", "qr", "lu_factor", "pivot_order"))
