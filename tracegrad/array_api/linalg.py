"""The standard's linear algebra: tracegrad.linalg by the standard's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad import linalg
from tracegrad.array_api._common import Array, Axis, accumulated, promoted, reduced, tg
from tracegrad.errors import ShapeError

Axes = int | tuple[Sequence[int], Sequence[int]]


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """The triangle L with x = L L^H (upper: U with x = U^H U) of positive definite matrices (..., M, M)."""
    return linalg.cholesky(x, upper=upper)


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of 3 along axis (negative); the other dimensions broadcast."""
    a, b = promoted("cross", x1, x2)
    n = max(a.ndim, b.ndim)
    return linalg.cross(*(tg.reshape(x, (1,) * (n - x.ndim) + x.shape) for x in (a, b)), dim=axis)


def det(x: Array, /) -> Array:
    """The determinants of (..., M, M)."""
    return linalg.det(x)


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """The diagonals of (..., M, N)."""
    return linalg.diagonal(x, offset=offset)


def eigh(x: Array, /) -> Any:
    """(eigenvalues, eigenvectors) of Hermitian (..., M, M)."""
    return linalg.eigh(x)


def eigvalsh(x: Array, /) -> Array:
    """The eigenvalues of Hermitian (..., M, M)."""
    return linalg.eigvalsh(x)


def inv(x: Array, /) -> Array:
    """The inverses of (..., M, M). LinAlgError, when a value is read, if one has none."""
    return linalg.inv(x)


def matmul(x1: Array, x2: Array, /) -> Array:
    """The matrix product; vectors as in `x1 @ x2`, leading dimensions broadcast."""
    return tg.matmul(x1, x2)


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """The norms of (..., M, N): "fro", "nuc", 1, -1, 2, -2, inf or -inf."""
    return linalg.matrix_norm(x, ord, keepdim=keepdims)


def matrix_power(x: Array, n: int, /) -> Array:
    """The n-th power of (..., M, M); of the inverse, if n is negative."""
    return linalg.matrix_power(x, n)


def matrix_rank(x: Array, /, *, rtol: Any = None) -> Array:
    """How many singular values of (..., M, N) are above rtol (a number, or an array (...)) times the largest."""
    return linalg.matrix_rank(x, rtol=rtol)


def matrix_transpose(x: Array, /) -> Array:
    """x with its last two dimensions exchanged."""
    return x.mT


def outer(x1: Array, x2: Array, /) -> Array:
    """All products of the elements of two vectors."""
    return tg.outer(*promoted("outer", x1, x2))


def pinv(x: Array, /, *, rtol: Any = None) -> Array:
    """The pseudo-inverses of (..., M, N); singular values up to rtol (a number, or an array (...)) times the largest count as 0."""
    return linalg.pinv(x, rtol=rtol)


def qr(x: Array, /, *, mode: str = "reduced") -> Any:
    """(Q, R) with x = Q R; mode: "reduced" or "complete"."""
    return linalg.qr(x, mode)


def slogdet(x: Array, /) -> Any:
    """(sign, logabsdet) of the determinants of (..., M, M)."""
    return linalg.slogdet(x)


def solve(x1: Array, x2: Array, /) -> Array:
    """X in x1 X = x2, for x1 (..., M, M) and x2 (..., M, K), or a vector (M,) for all."""
    a, b = promoted("solve", x1, x2)
    if b.ndim == 1:
        return tg.squeeze(linalg.solve(a, tg.unsqueeze(b, 1)), -1)
    # With as many dimensions as a it is matrices; torch would take (*, M) for vectors where these are just a's batch dimensions.
    return linalg.solve(a, tg.reshape(b, (1,) * (a.ndim - b.ndim) + b.shape))


def svd(x: Array, /, *, full_matrices: bool = True) -> Any:
    """(U, S, Vh) with x = U diag(S) Vh."""
    return linalg.svd(x, full_matrices)


def svdvals(x: Array, /) -> Array:
    """The singular values of (..., M, N), descending."""
    return linalg.svdvals(x)


def tensordot(x1: Array, x2: Array, /, *, axes: Axes = 2) -> Array:
    """Products summed over the last `axes` dimensions of x1 and the first of x2, or over axes = (those of x1, those of x2)."""
    return tg.tensordot(*promoted("tensordot", x1, x2), axes)


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sums of the diagonals of (..., M, N); of integers as int64 or uint64, unless dtype is given."""
    return tg.sum(linalg.diagonal(x, offset=offset), -1, dtype=accumulated(x, dtype))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Products (of x1's conjugate) summed along axis (negative); the other dimensions broadcast."""
    a, b = promoted("vecdot", x1, x2)
    if a.shape[axis] != b.shape[axis]:
        raise ShapeError(f"vecdot: sizes along axis {axis} of {a.shape} and {b.shape} differ: that axis does not broadcast")
    return linalg.vecdot(a, b, dim=axis)


def vector_norm(x: Array, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    """(sum |x|^ord)^(1/ord) over axis; ord may be inf, -inf, or 0 (how many are not 0)."""
    return reduced(lambda x, axis, *rest: linalg.vector_norm(x, ord, axis, *rest), x, axis, keepdims)


__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power", "matrix_rank",
    "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip
