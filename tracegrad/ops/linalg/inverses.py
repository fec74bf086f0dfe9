"""Systems, inverses, pseudo-inverses and determinants as primitives, with symbolic derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.primitive import REGISTRY, cast, const
from tracegrad.ops.arrays.complex_numbers import conj, imag
from tracegrad.ops.arrays.shaping.diagonals import tril, triu
from tracegrad.ops.linalg.lapack import RIGHT, SINGULAR, SQUARE, TALL, WIDE, Lapack, eliminated, eye, h, run, scalars
from tracegrad.ops.primitives.contraction import matmul
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.ops.primitives.elementwise import ne, where
from tracegrad.ops.primitives.reduction import total
from tracegrad.support import dtypes


def zero_pivot(a: Any) -> int:
    """Which pivot (from 1) of the elimination of the matrix `a` is 0; 0: none."""
    diagonal = eliminated(a)[0].diagonal()
    zeros = np.flatnonzero(~(np.abs(diagonal) > 0))
    return int(zeros[0]) + 1 if len(zeros) else 0


def bad_minor(a: Any) -> int:
    """The order of the first leading minor of the matrix `a` that is not positive definite; 0: none."""
    for k in range(1, a.shape[-1] + 1):
        try:
            if np.isnan(np.linalg.cholesky(a[:k, :k])).any():
                return k
        except np.linalg.LinAlgError:
            return k
    return 0


# ----------------------------------------------------------------------------------------------------- systems and inverses


class Solve(Lapack):
    """X in A X = B, for (*, n, n) and (*, n, k): LU with partial pivoting (gesv)."""
    name, holomorphic, impossible = "solve", True, SINGULAR
    cases = [((SQUARE, RIGHT), dict(index=0)), ((SQUARE[0], RIGHT[0]), dict(index=0))]

    def avals(self, *operands, **attrs):
        a, b = operands
        if a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"solve: A {a.shape} and B {b.shape} do not fit: B must have {a.shape[-1]} rows")
        return (b,)

    def results(self, a, b): return [self.each(SINGULAR, np.linalg.solve, a, b, pivot=zero_pivot)]

    def vjp(self, ct, y, a, b, index):
        g = run(self, t(a), ct)
        return -matmul(g, t(y)), g


class Inv(Lapack):
    """The inverses of (*, n, n)."""
    name, holomorphic, impossible = "inv", True, SINGULAR
    cases = [((SQUARE,), dict(index=0)), ((SQUARE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return operands
    def results(self, a): return [self.each(SINGULAR, np.linalg.inv, a, pivot=zero_pivot)]
    def vjp(self, ct, y, a, index): return (-matmul(matmul(t(y), ct), t(y)),)


BLOCK = 32                    # rows of a triangle that are solved at a time: NumPy has no substitution


class SolveTriangular(Lapack):
    """X in A X = B, A a triangle of (*, n, n), B (*, n, k): substitution by blocks. unit: the diagonal counts as ones."""
    name, holomorphic, impossible = "solve_triangular", True, "is singular: element {element} is 0"
    cases = [((SQUARE, RIGHT), dict(upper=False, unit=False, index=0)), ((SQUARE, RIGHT), dict(upper=True, unit=True, index=0))]

    def avals(self, *operands, **attrs):
        a, b = operands
        if a.shape[-1] != b.shape[-2]:
            raise ShapeError(f"solve_triangular: A {a.shape} and B {b.shape} do not fit: B must have {a.shape[-1]} rows")
        return (b,)

    def results(self, a, b, upper, unit):
        n = a.shape[-1]
        zero = np.argwhere((np.diagonal(a, 0, -2, -1) == 0) & (not unit))
        if len(zero):
            raise self.error(self.impossible, a, tuple(int(i) for i in zero[0][:-1]), int(zero[0][-1]) + 1)
        x = np.empty_like(b)
        for first in range(0, n, BLOCK)[::-1 if upper else 1]:
            last = min(first + BLOCK, n)
            rows, known = slice(first, last), slice(last, n) if upper else slice(first)
            block = (np.triu if upper else np.tril)(a[..., rows, rows], int(unit) if upper else -int(unit))
            if unit:
                block += np.eye(last - first, dtype=a.dtype)
            x[..., rows, :] = self._solved(block, b[..., rows, :] - a[..., rows, known] @ x[..., known, :])
        return [x]

    def _solved(self, block, right):
        """Many columns by the block's inverse, in half the time of LAPACK's elimination. What is left of `right` is solved again: the error
        is then that of substitution (R. Skeel, "Iterative refinement implies numerical stability for Gaussian elimination", 1980)."""
        if right.shape[-1] <= 2 * BLOCK:
            return self.each(SINGULAR, np.linalg.solve, block, right)
        inverse = self.each(SINGULAR, np.linalg.inv, block)
        x = inverse @ right
        return x + inverse @ (right - block @ x)

    def vjp(self, ct, y, a, b, upper, unit, index):
        g = run(self, t(a), ct, upper=not upper, unit=unit)
        full = -matmul(g, t(y))
        return triu(full, int(unit)) if upper else tril(full, -int(unit)), g


class Pinv(Lapack):
    """The pseudo-inverses (*, n, m) of (*, m, n), by singular values; those not above max(atol, rtol * the largest) count as 0.

    atol and rtol are attributes, or operands (*, 1, 1). Derivative at constant rank: G. Golub, V. Pereyra, "The differentiation of
    pseudo-inverses and nonlinear least squares problems whose variables separate" (1973), eq. 4.12.
    """
    name, square = "pinv", False
    cases = [((TALL,), dict(atol=0.0, rtol=1e-15, index=0)), ((WIDE,), dict(atol=0.0, rtol=1e-15, index=0))]

    def avals(self, *operands, **attrs): return (Aval((*operands[0].shape[:-2], *operands[0].shape[:-3:-1]), operands[0].dtype),)

    def results(self, a, *limits, atol, rtol):
        if not a.size:
            return [np.zeros((*a.shape[:-2], *a.shape[:-3:-1]), a.dtype)]
        u, s, vh = self.decomposed(lambda x: np.linalg.svd(x, full_matrices=False), a)
        low, relative = (v[..., 0].real for v in limits) if limits else (atol, rtol)
        keep = s > np.maximum(low, relative * s[..., :1])
        inverted = np.where(keep, 1 / np.where(keep, s, 1), 0).astype(s.dtype)
        return [(vh.conj().swapaxes(-1, -2) * inverted[..., None, :]) @ u.conj().swapaxes(-1, -2)]

    def vjp(self, ct, y, a, *limits, atol, rtol, index):
        p, pt, gt = y, h(y), h(ct)
        left, right = matmul(gt, matmul(p, pt)), matmul(matmul(pt, p), gt)
        g = -matmul(matmul(pt, ct), pt) + (left - matmul(matmul(a, p), left)) + (right - matmul(right, matmul(p, a)))
        return g, *[None] * len(limits)


class Info(Lapack):
    """Which pivot (int32, from 1; 0: none) ends a factorisation of (*, n, n): of its LU the first that is 0, of its Cholesky factor the

    order of the first minor that is not positive definite. What `inv_ex` and `cholesky_ex` call info.
    """
    name, differentiable, python = "factor_info", False, None
    cases = [((SQUARE,), dict(cholesky=False, index=0)), ((SQUARE[0] - 3 * np.eye(3),), dict(cholesky=True, index=0))]

    def avals(self, *operands, **attrs): return (Aval(operands[0].shape[:-2], dtypes.int32),)

    def results(self, a, cholesky):
        found = np.zeros(a.shape[:-2], np.int32)
        try:
            unknown = bool(np.isnan((np.linalg.cholesky if cholesky else np.linalg.inv)(a)).any())     # LAPACK takes NaN for any pivot
        except np.linalg.LinAlgError:
            unknown = True
        if unknown:
            for place in np.ndindex(found.shape):
                found[place] = (bad_minor if cholesky else zero_pivot)(a[place])
        return [found]


# ------------------------------------------------------------------------------------------------------------ determinants


def possible(a: Node, info: Node) -> tuple[Any, Any]:
    """Which matrices have no result, by what `Info` says of them; and `a` with the identity in their places."""
    bad = scalars(ne(info, 0))
    return bad, where(bad, cast(eye(a.shape[-1]), a.dtype), a)


def _unknown(a: Any, y: Any) -> Any:
    """y, but NaN for matrices that hold one (LAPACK takes such a pivot to be 0)."""
    return np.where(np.isnan(a).any((-2, -1)), np.nan, y).astype(y.dtype)


class Det(Lapack):
    """The determinants of (*, n, n)."""
    name, holomorphic = "det", True
    cases = [((SQUARE,), dict(index=0)), ((SQUARE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return (Aval(operands[0].shape[:-2], operands[0].dtype),)
    @np.errstate(all="ignore")
    def results(self, a): return [_unknown(a, np.linalg.det(a))]
    def vjp(self, ct, y, a, index): return (scalars(ct) * run(COFACTORS, a),)


class Cofactors(Lapack):
    """The derivative of det: det(A) times the inverse transposed, and right where A is singular, for it is made of singular values

    (G. W. Stewart, "On the adjugate matrix", 1998).
    """
    name, python, holomorphic = "cofactors", None, True
    cases = [((SQUARE,), dict(index=0)), ((SQUARE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return operands[:1]

    def results(self, a):
        known, u, s, vh, sign = _singular(a)
        ones = np.ones((*s.shape[:-1], 1), s.dtype)
        before = np.cumprod(np.concatenate([ones, s[..., :-1]], -1), -1)[..., :s.shape[-1]]
        after = np.cumprod(np.concatenate([ones, s[..., :0:-1]], -1), -1)[..., :s.shape[-1]][..., ::-1]
        return [np.where(known, (u.conj() * (before * after)[..., None, :]) @ vh.conj() * sign, np.nan).astype(a.dtype)]

    def vjp(self, ct, y, a, index): return (run(MINORS, a, ct),)


class Minors(Cofactors):
    """The derivative of the cofactors along B (*, n, n), which is also the gradient for the cotangent B: right where A is singular, too.

    Of a diagonal A the element (i, i) is the sum of b_jj and (i, j) is -b_ji, each times the product of the diagonal without i and j;
    singular vectors turn any other A into that. Its own derivative takes the inverse K of A, transposed.
    """
    name = "minors"
    cases = [((SQUARE, SQUARE[::-1]), dict(index=0)), ((SQUARE[1], SQUARE[0]), dict(index=0))]

    def results(self, a, b):
        known, u, s, vh, sign = _singular(a)
        others = _without_two(s)
        b = u.conj().swapaxes(-1, -2) @ b @ vh.conj().swapaxes(-1, -2)
        diagonal = (others @ b.diagonal(0, -2, -1)[..., None])[..., 0]
        inner = diagonal[..., None] * np.eye(s.shape[-1]) - others * b.swapaxes(-1, -2)
        return [np.where(known, u.conj() @ inner @ vh.conj() * sign, np.nan).astype(a.dtype)]

    def vjp(self, ct, y, a, b, index):
        k, size = t(run(INV, a)), len(a.shape)

        def inner(x, z): return scalars(total(x * z, (size - 2, size - 1)))
        along, back = matmul(matmul(k, t(b)), k), matmul(matmul(k, t(ct)), k)
        turned = matmul(matmul(along, t(ct)) + matmul(back, t(b)), k)
        change = turned - inner(ct, k) * along - inner(b, k) * back
        return inner(ct, y) * k + scalars(run(DET, a)) * change, run(self, a, ct)


def _singular(a: Any) -> tuple[Any, ...]:
    """Which matrices are finite (*, 1, 1), the singular value decompositions of these, and the determinants (*, 1, 1) of U V^H."""
    known = np.isfinite(a).all((-2, -1), keepdims=True)
    u, s, vh = np.linalg.svd(np.where(known, a, 1))
    return known, u, s, vh, (np.linalg.slogdet(u)[0] * np.linalg.slogdet(vh)[0])[..., None, None]


def _without_two(s: Any) -> Any:
    """(*, n, n): the products of the numbers s (*, n) without i and j, and 0 where these are the same."""
    n = s.shape[-1]
    out, before = np.zeros((*s.shape, n), s.dtype), np.ones(s.shape[:-1], s.dtype)
    ones = np.ones((*s.shape[:-1], 1), s.dtype)
    after = np.concatenate([np.cumprod(s[..., ::-1], -1)[..., ::-1], ones], -1)
    for i in range(n - 1):
        between = np.cumprod(np.concatenate([ones, s[..., i + 1:-1]], -1), -1)
        out[..., i, i + 1:] = out[..., i + 1:, i] = before[..., None] * between * after[..., i + 2:]
        before = before * s[..., i]
    return out


class Slogdet(Lapack):
    """The sign, and the logarithm of the size, of the determinants of (*, n, n); (0, -inf) of a singular matrix."""
    name = "slogdet"
    cases = [((SQUARE,), dict(index=1)), ((SQUARE[1],), dict(index=1))]

    def avals(self, *operands, **attrs):
        shape, dtype = operands[0].shape[:-2], operands[0].dtype
        return Aval(shape, dtype), Aval(shape, dtypes.real_of(dtype))

    @np.errstate(all="ignore")
    def results(self, a): return [_unknown(a, r) for r in np.linalg.slogdet(a)]

    def vjp(self, ct, y, a, index):
        if index:
            return (scalars(ct) * h(run(INV, a)),)
        if a.dtype.kind != "c":
            return (None,)
        angle = imag(ct * conj(y))                                                  # the sign turns by the imaginary part of tr A^-1 dA
        return (scalars(angle) * const(1j, a.dtype) * h(run(INV, a)),)


SOLVE, INV, PINV, INFO, TRIANGLE = (REGISTRY[name] for name in ("solve", "inv", "pinv", "factor_info", "solve_triangular"))
DET, SLOGDET, COFACTORS, MINORS = (REGISTRY[name] for name in ("det", "slogdet", "cofactors", "minors"))
