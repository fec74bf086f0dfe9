"""Orthogonal factors: Householder products, the polar decomposition, square roots, and singular values of low rank (randomised)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operators import PUBLIC, Operators, linalg, public
from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.arguments import integer, on_nodes
from tracegrad.ops.arrays.shaping.diagonals import tril, triu
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.linalg import inverses
from tracegrad.ops.linalg.decompositions import check_floats, check_matrices, qr
from tracegrad.ops.linalg.decompositions import svd as full_svd
from tracegrad.ops.linalg.lapack import POSITIVE, SQUARE, TALL, Lapack, column, h, hermitian_part, row, run
from tracegrad.ops.linalg.products import matmul as product
from tracegrad.ops.linalg.systems import _eye
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import matmul

Array = Any      # a Node or a Tensor


# ----------------------------------------------------------------------------------------------------- Householder reflectors


class Geqrf(Lapack):
    """What LAPACK's geqrf gives of (*, m, n): R above the diagonal, the reflectors below it; and their factors tau (*, min(m, n))."""
    name, square, differentiable, python = "geqrf", False, False, None
    cases = [((TALL,), dict(index=0)), ((TALL,), dict(index=1))]

    def avals(self, *operands, **attrs):
        (a,) = operands
        return a, Aval((*a.shape[:-2], min(a.shape[-2:])), a.dtype)

    def results(self, a):
        k = min(a.shape[-2:])
        if not a.size:
            return [a, np.zeros((*a.shape[:-2], k), a.dtype)]
        packed, tau = np.linalg.qr(a, "raw")
        return [packed.swapaxes(-1, -2).astype(a.dtype), tau.astype(a.dtype)]


class GeqrfResult(NamedTuple):
    """What `geqrf` returns."""

    a: Any
    tau: Any


@public("geqrf")
@on_nodes
def geqrf(input: Array) -> Any:
    """(a, tau) of (*, m, n): the QR decomposition as LAPACK packs it, for `linalg.householder_product` and `ormqr`. No derivative.

    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.geqrf(tg.ones(3, 2))
    """
    check_matrices("geqrf", input)
    return GeqrfResult(run(REGISTRY["geqrf"], input), run(REGISTRY["geqrf"], input, index=1))


def _reflectors(name: str, a: Node, tau: Node) -> tuple[Any, Any]:
    """V (*, m, k) and T (*, k, k) with H1 H2 ... Hk = I - V T V^H, Hi = I - tau[i] v v^H

    (the compact WY form: R. Schreiber, C. Van Loan, 1989; T solves (I + D U) T = D, D = diag(tau), U = V^H V above its diagonal).
    """
    check_floats(name, a, tau)
    *lead, m, n = a.shape
    if tau.ndim != a.ndim - 1 or tau.shape[:-1] != tuple(lead) or tau.shape[-1] > min(m, n):
        raise ShapeError(f"{name}: takes reflectors (*, m, n) and tau (*, k), k <= m and n, got {a.shape} and {tau.shape}")
    k = tau.shape[-1]
    v = tril(mv.narrow(a, a.ndim - 1, 0, k), -1) + mv.pad(_eye(k, a), (0, 0), (m - k, 0))
    d = _eye(k, a) * row(tau)
    return v, run(inverses.TRIANGLE, _eye(k, a) + column(tau) * triu(matmul(h(v), v), 1), d, upper=True, unit=True)


@linalg()
@on_nodes
def householder_product(A: Array, tau: Array) -> Array:
    """The first n columns (*, m, n) of H1 H2 ... Hk, Hi = I - tau[i] v v^H, v = (0, ..., 1, A[i + 1:, i]): Q of what `geqrf` gives.

    A (*, m, n), m >= n; tau (*, k), k <= n. dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.linalg.householder_product(*tg.geqrf(tg.ones(3, 2)))
    """
    check_matrices("householder_product", A)
    m, n = A.shape[-2:]
    if m < n:
        raise ShapeError(f"householder_product: takes A (*, m, n), m >= n, got {A.shape}")
    v, w = _reflectors("householder_product", A, tau)
    first = mv.narrow(v, v.ndim - 2, 0, n)                                         # its adjoint: V^H times the first n columns of I
    return mv.pad(_eye(n, A), (0, 0), (m - n, 0)) - matmul(v, matmul(w, h(first)))


@public("orgqr")
def orgqr(input: Array, tau: Array) -> Array:
    """`linalg.householder_product`. The shapes and dtypes are those; raises what that raises.

    >>> tg.orgqr(*tg.geqrf(tg.rand(4, 2))).shape
    (4, 2)
    """
    return householder_product(input, tau)


@public("ormqr")
@on_nodes
def ormqr(input: Array, tau: Array, other: Array, left: bool = True, transpose: bool = False) -> Array:
    """Q other (left=False: other Q; transpose: Q^H), Q (*, m, m) the product of the reflectors that `geqrf` gives; other is not square.

    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.ormqr(*tg.geqrf(tg.ones(3, 2)), tg.ones(3, 1))
    """
    check_matrices("ormqr", input, other)
    v, w = _reflectors("ormqr", input, tau)
    m = input.shape[-2]
    if other.shape[-2 if left else -1] != m or other.shape[:-2] != input.shape[:-2]:
        raise ShapeError(f"ormqr: other {other.shape} must have {m} {'rows' if left else 'columns'}, and the batch of input {input.shape}")
    w = h(w) if transpose else w
    if left:
        return other - matmul(v, matmul(w, matmul(h(v), other)))
    return other - matmul(matmul(matmul(other, v), w), h(v))


# -------------------------------------------------------------------------------------------- square roots and polar factors


class Lyapunov(Lapack):
    """Y in X Y + Y X = E, of Hermitian X (*, n, n) with no two eigenvalues of sum 0: by eigenvectors. Linear in E, and its own adjoint."""
    name, python, symmetric = "lyapunov", None, True
    cases = [((POSITIVE, SQUARE), dict(index=0))]

    def avals(self, *operands, **attrs): return operands[:1]

    def results(self, x, e):
        w, v = self.decomposed(np.linalg.eigh, x)
        vt = v.conj().swapaxes(-1, -2)
        return [(v @ ((vt @ e @ v) / (w[..., None, :] + w[..., :, None])) @ vt).astype(x.dtype)]

    def vjp(self, ct, y, x, e, index):
        g = run(self, x, ct)
        return hermitian_part(-(matmul(g, h(y)) + matmul(h(y), g))), g


class MatrixSqrtH(Lapack):
    """The square root of Hermitian positive definite (*, n, n), of which the lower triangle is read. Derivative: dX X + X dX = dA."""
    name, symmetric = "matrix_sqrth", True
    cases = [((POSITIVE,), dict(index=0)), ((POSITIVE[1],), dict(index=0))]

    def avals(self, *operands, **attrs): return operands

    def results(self, a):
        w, v = self.decomposed(np.linalg.eigh, a)
        bad = np.argwhere(~(w[..., :1] > 0))
        if len(bad):
            raise self.error("is not positive definite: it has no Hermitian square root", a, tuple(int(i) for i in bad[0][:-1]))
        return [(v * np.sqrt(w)[..., None, :]) @ v.conj().swapaxes(-1, -2)]

    def vjp(self, ct, y, a, index): return (run(_LYAPUNOV, y, hermitian_part(ct)),)


class Polar(Lapack):
    """U with orthonormal columns and H Hermitian in A = U H, of (*, m, n), m >= n: by singular values.

    Derivative: dU = U W + (I - U U^H) dA H^-1 and dH = U^H dA - W H, where H W + W H = U^H dA - dA^H U (N. Higham, "Functions of matrices",
    2008, chapter 8).
    """
    name, square = "polar", False
    cases = [((TALL,), dict(index=0)), ((TALL,), dict(index=1)), ((SQUARE,), dict(index=0))]

    def avals(self, *operands, **attrs):
        (a,) = operands
        if a.shape[-2] < a.shape[-1]:
            raise ShapeError(f"polar: takes matrices (*, m, n), m >= n, got {a.shape}; use x.mT")
        return a, Aval((*a.shape[:-2], a.shape[-1], a.shape[-1]), a.dtype)

    def results(self, a):
        u, s, vh = self.decomposed(lambda x: np.linalg.svd(x, full_matrices=False), a)
        return [u @ vh, (vh.conj().swapaxes(-1, -2) * s[..., None, :]) @ vh]

    def vjp(self, ct, y, a, index):
        attrs = {"index": index}
        u, right = self.result((a,), attrs, 0, y), self.result((a,), attrs, 1, y)
        if index:
            k = hermitian_part(ct)
            return (matmul(u, k + run(_LYAPUNOV, right, matmul(right, k) - matmul(k, right))),)
        inner = matmul(h(u), ct)
        g = matmul(u, run(_LYAPUNOV, right, inner - h(inner)))
        if a.shape[-2] > a.shape[-1]:
            g = g + h(run(inverses.SOLVE, right, h(ct - matmul(u, inner))))
        return (g,)


_LYAPUNOV = REGISTRY["lyapunov"]


class PolarResult(NamedTuple):
    """What `polar` returns."""

    U: Any
    H: Any


@linalg()
@on_nodes
def polar(A: Array) -> Any:
    """(U, H) with A = U H, of (*, m, n), m >= n: U (*, m, n) has orthonormal columns, H (*, n, n) is Hermitian positive semidefinite.

    U is the closest such matrix to A. Derivatives need full rank. dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.linalg.polar(tg.tensor([[0.0, -2.0], [3.0, 0.0]])).H
    """
    check_matrices("polar", A)
    return PolarResult(run(REGISTRY["polar"], A), run(REGISTRY["polar"], A, index=1))


@linalg()
@on_nodes
def matrix_sqrth(A: Array) -> Array:
    """X in X X = A, Hermitian positive definite, as A (*, n, n), of which the lower triangle is read. LinAlgError if A is not.

    dtype: float32, float64 or complex.

    >>> tg.linalg.matrix_sqrth(tg.tensor([[4.0, 0.0], [0.0, 9.0]]))
    """
    check_matrices("matrix_sqrth", A, square=True)
    return run(REGISTRY["matrix_sqrth"], A)


# ------------------------------------------------------------------------------------------------------- singular values


class SVDResult(NamedTuple):
    """What `svd` returns."""

    U: Any
    S: Any
    V: Any


@public("svd")
@on_nodes
def svd(input: Array, some: bool = True, compute_uv: bool = True) -> Any:
    """(U, S, V) with input = U diag(S) V^H: `linalg.svd` with V in place of V^H. some=False: square U and V.

    compute_uv=False: zeros for them. dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.svd(tg.tensor([[3.0, 0.0], [0.0, 4.0]])).S
    """
    u, s, vh = full_svd(input, full_matrices=not some)
    if not compute_uv:
        m, n = input.shape[-2:]
        u, v = (full_like_shape((*input.shape[:-2], k, k), 0, input.dtype) for k in (m, n))
        return SVDResult(u, s, v)
    return SVDResult(u, s, h(vh))


def _low_rank(name: str, a: Any, q: int, niter: int, shift: Any) -> Any:
    """Halko, Martinsson, Tropp, "Finding structure with randomness" (2009), algorithms 4.4 and 5.1."""
    if not isinstance(a, Operators) or len(a.shape) < 2:
        raise ShapeError(f"{name}: takes matrices (*, m, n), got {getattr(a, 'shape', type(a).__name__)}")
    q, niter = integer(name, "q", q), integer(name, "niter", niter)
    m, n = a.shape[-2:]
    if not 0 <= q <= min(m, n) or niter < 0:
        raise ArgumentError(f"{name}: q must be from 0 to {min(m, n)}, the smaller size of {a.shape}, and niter not negative, got {q} and "
                            f"{niter}")
    x: Any = a if shift is None else a - shift
    wide = m < n
    x = x.mH if wide else x
    draw = PUBLIC["randn"]((x.shape[-1], q), dtype=x.dtype, device=x.device)
    basis = qr(product(x, draw)).Q
    for _ in range(niter):
        basis = qr(product(x, qr(product(x.mH, basis)).Q)).Q
    u, s, vh = full_svd(product(basis.mH, x), full_matrices=False)
    u, v = product(basis, u), vh.mH
    return SVDResult(v, s, u) if wide else SVDResult(u, s, v)


@public("svd_lowrank", method=False)
def svd_lowrank(A: Array, q: int | None = 6, niter: int | None = 2, M: Array = None) -> Any:
    """(U, S, V): nearly the q largest singular values of (*, m, n), with their vectors, by random projections and niter power iterations.

    M: subtracted from A first. Draws from the random stream.
    dtype: float32, float64 or complex. Raises ArgumentError for a q above min(m, n).

    >>> tg.svd_lowrank(tg.eye(3), 2)
    """
    return _low_rank("svd_lowrank", A, 6 if q is None else q, 2 if niter is None else niter, M)


@public("pca_lowrank", method=False)
def pca_lowrank(A: Array, q: int | None = None, center: bool = True, niter: int = 2) -> Any:
    """(U, S, V) as `svd_lowrank`, of A (*, m, n) less the mean of its rows (center): V's columns are the principal directions.

    dtype: float32, float64 or complex. Raises ArgumentError for a q above min(m, n).

    >>> tg.pca_lowrank(tg.rand(4, 3), 2)
    """
    q = min(6, *A.shape[-2:]) if q is None else q
    return _low_rank("pca_lowrank", A, q, niter, A.mean(-2, True) if center else None)
