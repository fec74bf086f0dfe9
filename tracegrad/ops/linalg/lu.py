"""LU factorisations as torch has them, under tg.linalg and under its older names, and the functions that report instead of raising (_ex).

Everything takes matrices (*, m, n), float32 or float64, and is composed of the primitives beside it (`lapack.py`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import linalg, method, public
from tracegrad.graph.primitive import cast, const
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.arrays.index_checks import must_hold
from tracegrad.ops.arrays.logical import logical_not
from tracegrad.ops.arrays.pointwise import eq
from tracegrad.ops.arrays.reductions import any_, argmax
from tracegrad.ops.arrays.shaping.diagonals import diagonal, tril, triu
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.linalg import factorizations, inverses
from tracegrad.ops.linalg.decompositions import check_matrices, cholesky
from tracegrad.ops.linalg.lapack import h, run
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.linalg.systems import _eye, inv, solve, solve_triangular
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes

Array = Any      # a Node or a Tensor


class LUFactorResult(NamedTuple):
    """What `lu_factor` returns."""

    LU: Any
    pivots: Any


class LUFactorExResult(NamedTuple):
    """What `lu_factor_ex` returns."""

    LU: Any
    pivots: Any
    info: Any


class LUResult(NamedTuple):
    """What `lu` returns."""

    P: Any
    L: Any
    U: Any


class CholeskyExResult(NamedTuple):
    """What `cholesky_ex` returns."""

    L: Any
    info: Any


class InvExResult(NamedTuple):
    """What `inv_ex` returns."""

    inverse: Any
    info: Any


class SolveExResult(NamedTuple):
    """What `solve_ex` returns."""

    result: Any
    info: Any


# -------------------------------------------------------------------------------------------------------------------- LU


@linalg()
@on_nodes
def lu_factor(A: Array, *, pivot: bool = True) -> Any:
    """(LU, pivots) of (*, m, n), for `lu_solve`: L below the diagonal (its own is ones) and U in one matrix; rows exchanged, from 1, int32.

    LinAlgError for a zero pivot, by which `lu_solve` would divide; `lu_factor_ex` and `lu` take such matrices. NumPy has no LU, so this
    one goes column by column: `solve` is faster for one system. Raises ShapeError for other shapes.

    >>> tg.linalg.lu_factor(tg.tensor([[1.0, 2.0], [3.0, 4.0]])).pivots
    """
    _lu_operand("lu_factor", A, pivot)
    return LUFactorResult(*_without_zero("lu_factor", *(run(factorizations.LU_, A, index=i) for i in (0, 1))))


@linalg()
@on_nodes
def lu_factor_ex(A: Array, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """(LU, pivots, info): `lu_factor`, and the number (int32, from 1) of the first pivot of each matrix that is 0; 0 where there is none.

    check_errors: a pivot that is 0 is a LinAlgError, as in `lu_factor`. dtype: float32, float64 or complex.

    >>> tg.linalg.lu_factor_ex(tg.tensor([[1.0, 2.0], [3.0, 4.0]]))
    """
    _lu_operand("lu_factor_ex", A, pivot)
    packed, pivots = (run(factorizations.LU_, A, index=i) for i in (0, 1))
    if check_errors:
        packed, pivots = _without_zero("lu_factor_ex", packed, pivots)
    return LUFactorExResult(packed, pivots, _first_zero(packed))


def _without_zero(name: str, packed: Node, pivots: Node) -> tuple[Node, Node]:
    """Both, if no pivot is 0; else looking at either is a LinAlgError of the function `name`."""
    zero = eq(diagonal(packed, 0, -2, -1), 0.0)
    if not zero.aval.size:
        return packed, pivots
    fine = must_hold(logical_not(any_(zero)), name, "U has a zero on its diagonal, by which lu_solve would divide: the matrix is singular; "
                   "tg.linalg.lu and lu_factor_ex take it", "matrices")
    return where(fine, packed, const(float("nan"), packed.dtype)), where(fine, pivots, const(0, dtypes.int32))


def _first_zero(packed: Node) -> Any:
    zero = eq(diagonal(packed, 0, -2, -1), 0.0)
    if not zero.shape[-1]:
        return full_like_shape(zero.shape[:-1], 0, dtypes.int32)
    return cast(where(any_(zero, -1), argmax(cast(zero, dtypes.int32), -1) + 1, 0), dtypes.int32)


def _lu_operand(name: str, a: Any, pivot: bool) -> None:
    check_matrices(name, a)
    if not pivot:
        raise ArgumentError(f"{name}: pivot=False is not supported; use pivot=True")


@linalg()
@on_nodes
def lu(A: Array, *, pivot: bool = True) -> Any:
    """(P, L, U) with A = P L U, of (*, m, n), k = min(m, n): a permutation (m, m), L (m, k) with ones on its diagonal, U (k, n).

    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.linalg.lu(tg.tensor([[1.0, 2.0], [3.0, 4.0]]))
    """
    _lu_operand("lu", A, pivot)
    packed = run(factorizations.LU_, A)
    return LUResult(factorizations.permutation(run(factorizations.LU_, A, index=2), A.dtype), *_triangles(packed))


def _triangles(packed: Any) -> tuple[Any, Any]:
    """L and U of the matrix that holds both."""
    (m, n), d = packed.shape[-2:], packed.ndim
    k = min(m, n)
    low, high = mv.narrow(packed, d - 1, 0, k), mv.narrow(packed, d - 2, 0, k)
    ones = mv.pad(_eye(k, packed), (0, 0), (m - k, 0))
    return tril(low, -1) + ones, triu(high)


@linalg()
@on_nodes
def lu_solve(LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    """X in A X = B (left=False: X A = B; adjoint: A^H for A), B (*, n, k), from `lu_factor(A)`.

    NaN where a pivot is 0, which `lu_factor` refuses and `lu_factor_ex` tells of.

    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.linalg.lu_solve(*tg.linalg.lu_factor(tg.eye(2)), tg.ones(2, 1))
    """
    check_matrices("lu_solve", LU, B)
    check_matrices("lu_solve", LU, square=True)
    if pivots.dtype != dtypes.int32 or pivots.shape != LU.shape[:-1]:
        raise ShapeError(f"lu_solve: pivots must be the int32{LU.shape[:-1]} that lu_factor gives, got {pivots.dtype}{pivots.shape}")
    if not left:
        return h(_lu_solved(LU, pivots, h(B), not adjoint))
    return _lu_solved(LU, pivots, B, adjoint)


def _lu_solved(packed: Any, pivots: Any, b: Any, adjoint: bool) -> Any:
    zero = eq(diagonal(packed, 0, -2, -1), 0.0)
    if zero.aval.size:
        bad = mv.reshape(any_(zero, -1), (*packed.shape[:-2], 1, 1))
        packed = where(bad, const(float("nan"), packed.dtype), packed)
    p = factorizations.permutation(run(factorizations.ORDER, pivots, rows=packed.shape[-1]), packed.dtype)
    if adjoint:                             # (P L U)^H = U^H L^H P^H
        y = solve_triangular(h(packed), b, upper=False)
        return matmul(p, solve_triangular(h(packed), y, upper=True, unitriangular=True))
    y = solve_triangular(packed, matmul(t(p), b), upper=False, unitriangular=True)
    return solve_triangular(packed, y, upper=True)


@public("lu", method=False)
@method("lu")
def _torch_lu(A: Array, pivot: bool = True, get_infos: bool = False) -> Any:
    """`linalg.lu_factor`: (LU, pivots), and with get_infos what `linalg.lu_factor_ex` calls info.

    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.lu(tg.tensor([[1.0, 2.0], [3.0, 4.0]]))
    """
    found = lu_factor_ex(A, pivot=pivot)
    return tuple(found) if get_infos else tuple(found[:2])


@public("lu_solve")
def _torch_lu_solve(b: Array, LU_data: Array, LU_pivots: Array) -> Array:
    """`linalg.lu_solve(LU_data, LU_pivots, b)`. The shapes and dtypes are those; raises what that raises.

    >>> tg.lu_solve(tg.ones(2, 1), *tg.linalg.lu_factor(tg.eye(2)))
    """
    return lu_solve(LU_data, LU_pivots, b)


@public("lu_unpack", method=False)
@on_nodes
def lu_unpack(LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    """(P, L, U) from what `linalg.lu_factor` gives; empty tensors for what is not wanted.

    P, L (*, m, k), U (*, k, n), of LU_data's dtype. Raises ShapeError for other shapes.

    >>> tg.lu_unpack(*tg.linalg.lu_factor(tg.tensor([[1.0, 2.0], [3.0, 4.0]])))
    """
    check_matrices("lu_unpack", LU_data)
    *lead, m, n = LU_data.shape
    if LU_pivots.dtype != dtypes.int32 or LU_pivots.shape != (*lead, min(m, n)):
        raise ShapeError(f"lu_unpack: LU_pivots must be the int32{(*lead, min(m, n))} that lu_factor gives, got {LU_pivots.aval}")
    nothing = full_like_shape((0,), 0, LU_data.dtype)
    p = factorizations.permutation(run(factorizations.ORDER, LU_pivots, rows=m), LU_data.dtype) if unpack_pivots else nothing
    return LUResult(p, *(_triangles(LU_data) if unpack_data else (nothing, nothing)))


# ------------------------------------------------------------------------------------------- what reports instead of raising


@linalg()
@on_nodes
def inv_ex(A: Array, *, check_errors: bool = False) -> Any:
    """(inverse, info) of (*, n, n): info (int32, *) is 0, or for a singular matrix, whose inverse is NaN, the first pivot that is 0.

    check_errors: a singular matrix is a LinAlgError, as in `inv`. dtype: float32, float64 or complex.

    >>> tg.linalg.inv_ex(tg.tensor([[2.0, 0.0], [1.0, 4.0]]))
    """
    check_matrices("inv_ex", A, square=True)
    if check_errors:
        return InvExResult(inv(A), full_like_shape(A.shape[:-2], 0, dtypes.int32))
    info = run(inverses.INFO, A, cholesky=False)
    bad, a = inverses.possible(A, info)
    return InvExResult(where(bad, const(float("nan"), A.dtype), inv(a)), info)


@linalg()
@on_nodes
def solve_ex(A: Array, B: Array, *, left: bool = True, check_errors: bool = False) -> Any:
    """(result, info): `solve`, and info (int32, *) as of `inv_ex`; the result of a singular matrix is NaN.

    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.linalg.solve_ex(tg.eye(2), tg.ones(2))
    """
    check_matrices("solve_ex", A, square=True)
    x = solve(A, B, left=left) if check_errors else None
    if x is not None:
        return SolveExResult(x, full_like_shape(A.shape[:-2], 0, dtypes.int32))
    info = run(inverses.INFO, A, cholesky=False)
    bad, a = inverses.possible(A, info)
    x = solve(a, B, left=left)
    vector = x.ndim < max(2, A.ndim)
    if vector:
        bad = mv.reshape(bad, bad.shape[:-1])
    return SolveExResult(where(bad, const(float("nan"), A.dtype), x), info)


@linalg()
@on_nodes
def cholesky_ex(A: Array, *, upper: bool = False, check_errors: bool = False) -> Any:
    """(L, info) of (*, n, n): info (int32, *) is 0, or the order of the first leading minor that is not positive definite; then L is NaN.

    check_errors: such a matrix is a LinAlgError, as in `cholesky`. dtype: float32, float64 or complex.

    >>> tg.linalg.cholesky_ex(tg.tensor([[4.0, 2.0], [2.0, 5.0]]))
    """
    check_matrices("cholesky_ex", A, square=True)
    if check_errors:
        return CholeskyExResult(cholesky(A, upper=upper), full_like_shape(A.shape[:-2], 0, dtypes.int32))
    info = run(inverses.INFO, A, cholesky=True)
    bad, a = inverses.possible(A, info)
    return CholeskyExResult(where(bad, const(float("nan"), A.dtype), cholesky(a, upper=upper)), info)


class TriangularSolveResult(NamedTuple):
    """What `triangular_solve` returns."""

    solution: Any
    cloned_coefficient: Any


@public("triangular_solve")
@on_nodes
def triangular_solve(input: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Any:
    """(X, A) with A X = input (transpose: A^T X): torch's older name of `linalg.solve_triangular`.

    The shapes and dtypes are those; raises what that raises.

    >>> tg.triangular_solve(tg.ones(2, 1), tg.eye(2))
    """
    if input.dtype != A.dtype:
        raise DTypeError(f"triangular_solve: input {input.dtype} and A {A.dtype} must have one dtype; cast one of them")
    a = t(A) if transpose else A
    return TriangularSolveResult(solve_triangular(a, input, upper=upper != transpose, unitriangular=unitriangular), A)
