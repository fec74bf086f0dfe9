"""tg.linalg: Cholesky, QR, eigenvalues and singular values, composed of the primitives in `factorizations.py` and `eigen.py`.

Arguments, derivatives and errors are as `systems.py` says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import linalg, public
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.linalg import eigen, factorizations, lapack
from tracegrad.ops.linalg.lapack import h, run
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.primitives import movement as mv

Array = Any      # a Node or a Tensor


class EighResult(NamedTuple):
    """What `eigh` returns."""

    eigenvalues: Any
    eigenvectors: Any


class EigResult(NamedTuple):
    """What eig returns."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """What `qr` returns."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """What `svd` returns."""

    U: Any
    S: Any
    Vh: Any


def check_floats(name: str, *xs: Any) -> None:
    for x in xs:
        if not isinstance(x, Node) or x.dtype not in lapack.FLOATS:
            seen = x.dtype if isinstance(x, Node) else type(x).__name__
            raise DTypeError(f"{name}: takes float32, float64 and complex tensors, got {seen}; cast first, for example x.to(tg.float32)")
    if any(x.dtype != xs[0].dtype for x in xs):
        raise DTypeError(f"{name}: the tensors must have one dtype, got {' and '.join(str(x.dtype) for x in xs)}; cast one of them")


def check_matrices(name: str, *xs: Any, square: bool = False) -> None:
    check_floats(name, *xs)
    for x in xs:
        if x.ndim < 2:
            raise ShapeError(f"{name}: takes matrices (*, m, n), got {x.shape}; use unsqueeze")
    if square and xs[0].shape[-1] != xs[0].shape[-2]:
        raise ShapeError(f"{name}: takes square matrices (*, n, n), got {xs[0].shape}")


# ------------------------------------------------------------------------------------------------------------ factorisations


@linalg()
@on_nodes
def cholesky(A: Array, *, upper: bool = False) -> Array:
    """L in A = L L^T, lower triangle with a positive diagonal, of symmetric positive definite (*, n, n); upper: U = L^T in A = U^T U.

    Only the lower triangle of A is read; the gradient is symmetric. LinAlgError if A is not positive definite.
    dtype: float32, float64 or complex.

    >>> tg.linalg.cholesky(tg.tensor([[4.0, 2.0], [2.0, 5.0]]))
    """
    check_matrices("cholesky", A, square=True)
    y = run(factorizations.CHOLESKY, A)
    return h(y) if upper else y


def _cholesky(input: Array, upper: bool = False) -> Array:
    """`linalg.cholesky`. Shapes, dtypes, and what it raises: as there.

    >>> tg.cholesky(tg.tensor([[4.0, 2.0], [2.0, 5.0]]))
    """
    return cholesky(input, upper=upper)


_cholesky.__name__ = "cholesky"
public("cholesky")(on_nodes(_cholesky))


@linalg()
@on_nodes
def eigh(A: Array, UPLO: str = "L") -> Any:
    """(eigenvalues, eigenvectors) of symmetric or Hermitian (*, n, n): (*, n) in ascending order, and (*, n, n), whose columns are

    orthonormal. UPLO: which triangle is read, "L" or "U"; imaginary parts of the diagonal are not. The gradient is symmetric. Vectors are
    known up to their sign, or complex phase (the first component that is not small is positive), and rotations, of equal eigenvalues:
    their gradient has a meaning for functions that don't depend on it, and is NaN or infinite for equal eigenvalues; that of eigenvalues
    always is right for simple ones. Raises ShapeError for other shapes, DTypeError for integers and halves.

    >>> tg.linalg.eigh(tg.tensor([[2.0, 1.0], [1.0, 2.0]])).eigenvalues
    """
    a = _triangle("eigh", A, UPLO)
    return EighResult(run(eigen.EIGH, a), run(eigen.EIGH, a, index=1))


def _triangle(name: str, a: Any, uplo: str) -> Any:
    """a, such that its lower triangle is the one to read."""
    check_matrices(name, a, square=True)
    if uplo not in ("L", "U", "l", "u"):
        raise ArgumentError(f"{name}: UPLO must be 'L' or 'U', got {uplo!r}")
    return h(a) if uplo in "Uu" else a


@linalg()
@on_nodes
def eigvalsh(A: Array, UPLO: str = "L") -> Array:
    """The eigenvalues (*, n) of symmetric or Hermitian (*, n, n), ascending: `eigh` without the vectors, also for equal eigenvalues.

    dtype: float32, float64 or complex. The result is real. Raises ShapeError for other shapes.

    >>> tg.linalg.eigvalsh(tg.tensor([[2.0, 1.0], [1.0, 2.0]]))
    """
    return run(eigen.EIGH, _triangle("eigvalsh", A, UPLO))


@linalg()
@on_nodes
def eig(A: Array) -> Any:
    """(eigenvalues, eigenvectors) of (*, n, n), complex: (*, n) in no promised order, and (*, n, n), whose columns have length 1.

    Vectors are known up to a factor of size 1; here the largest component is positive. Their gradient has a meaning for functions that do
    not depend on that factor, and is NaN or infinite for equal eigenvalues. For symmetric and Hermitian matrices `eigh` is faster and more
    accurate. Raises ShapeError for other shapes, DTypeError for integers and halves.

    >>> tg.linalg.eig(tg.tensor([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    """
    check_matrices("eig", A, square=True)
    return EigResult(run(eigen.EIG, A), run(eigen.EIG, A, index=1))


@linalg()
@on_nodes
def eigvals(A: Array) -> Any:
    """The eigenvalues (*, n) of (*, n, n), complex, in no promised order: `eig` without the vectors. Raises ShapeError for other shapes.

    >>> tg.linalg.eigvals(tg.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    """
    check_matrices("eigvals", A, square=True)
    return run(eigen.EIG, A)


@linalg()
@on_nodes
def qr(A: Array, mode: str = "reduced") -> Any:
    """(Q, R) with A = Q R, of (*, m, n): Q (*, m, k) with orthonormal columns, R (*, k, n) an upper triangle, k = min(m, n).

    mode: "reduced"; "complete": k = m (no derivative if m > n); "r": Q is empty. The derivative needs that the first k columns are
    independent. The signs of R's diagonal are LAPACK's. dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.linalg.qr(tg.tensor([[1.0, 2.0], [3.0, 4.0]]))
    """
    check_matrices("qr", A)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"qr: mode must be 'reduced', 'complete' or 'r', got {mode!r}")
    m, n = A.shape[-2:]
    complete = mode == "complete" and m > n
    first = mv.narrow(A, A.ndim - 1, 0, m) if m < n else A
    q, r = run(factorizations.QR_, first, complete=complete), run(factorizations.QR_, first, complete=complete, index=1)
    if m < n:                               # the rest of R follows from Q
        r = mv.concat([r, matmul(h(q), mv.narrow(A, A.ndim - 1, m, n - m))], A.ndim - 1)
    return QRResult(full_like_shape((0,), 0, A.dtype) if mode == "r" else q, r)


@linalg()
@on_nodes
def svd(A: Array, full_matrices: bool = True, *, driver: str | None = None) -> Any:
    """(U, S, Vh) with A = U diag(S) Vh, of (*, m, n): (*, m, k), S (*, k) descending, (*, k, n), k = min(m, n); or square U, Vh.

    The gradient of U and Vh needs distinct singular values (and, if m != n, none that is 0, and full_matrices=False), else it is NaN or
    infinite, or an AutogradError; that of S does not. driver is accepted (LAPACK's gesdd is used, or Jacobi's rotations for small
    matrices). The signs of vectors, or complex phases, are such that of each row of Vh (up to k) the first number that is not small is
    positive; the gradient has a meaning for functions that do not depend on it. dtype: float32, float64 or complex.

    >>> tg.linalg.svd(tg.tensor([[3.0, 0.0], [0.0, 4.0]]))
    """
    check_matrices("svd", A)
    return SVDResult(*(run(eigen.SVD_, A, full=bool(full_matrices), index=k) for k in range(3)))


@linalg()
@on_nodes
def svdvals(A: Array, *, driver: str | None = None) -> Array:
    """The singular values (*, min(m, n)) of (*, m, n), descending.

    dtype: float32, float64 or complex. The result is real. Raises ShapeError for other shapes.

    >>> tg.linalg.svdvals(tg.tensor([[3.0, 0.0], [0.0, 4.0]]))
    """
    check_matrices("svdvals", A)
    return run(eigen.SVD_, A, full=False, index=1)
