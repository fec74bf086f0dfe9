"""tg.linalg: systems, inverses, ranks and products of several matrices, composed of the primitives in `inverses.py`.

Names and arguments are torch.linalg's. Everything takes matrices (*, m, n) of floats or complex numbers, `*` any batch dimensions, and is
differentiable to any order, forward, under vmap and in a trace. Raises ShapeError and DTypeError at the call, LinAlgError (a matrix is
singular, not positive definite, ...) when a value that depends on it is read. Factors and eigenvalues are in `decompositions.py`, norms
and determinants in `properties.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import broadcast_shapes, common_dtype
from tracegrad.graph.operators import linalg, public
from tracegrad.graph.primitive import cast, const
from tracegrad.ops.arguments import integer, on_nodes, one_dim
from tracegrad.ops.arrays.complex_numbers import real
from tracegrad.ops.arrays.pointwise import abs_squared, detach, lt, maximum
from tracegrad.ops.arrays.shaping.diagonals import diagonal as diagonal_
from tracegrad.ops.arrays.shaping.diagonals import tril
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.linalg import inverses, lapack, matrix_exponential
from tracegrad.ops.linalg.decompositions import check_floats, check_matrices, svdvals
from tracegrad.ops.linalg.lapack import h, run
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.reduction import total
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


class LstsqResult(NamedTuple):
    """What `lstsq` returns."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


def _together(name: str, a: Node, b: Node) -> tuple[Node, Node]:
    """Matrices with their batch dimensions broadcast."""
    try:
        batch = broadcast_shapes(name, [a.shape[:-2], b.shape[:-2]])
    except ShapeError:
        raise ShapeError(f"{name}: the batch dimensions of {a.shape} and {b.shape}, {a.shape[:-2]} and {b.shape[:-2]}, do not broadcast "
                         "together; reshape or unsqueeze one of them") from None
    return mv.expand(a, (*batch, *a.shape[-2:])), mv.expand(b, (*batch, *b.shape[-2:]))


def _is_vector(a: Node, b: Node) -> bool:
    """Whether the right side b is vectors, by torch's rule: it is 1-d, or has exactly a's batch dimensions and its rows."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])


def _eye(n: int, like: Node) -> Any:
    return cast(lapack.eye(n), like.dtype)


# ------------------------------------------------------------------------------------------------------ systems and inverses


@linalg()
@on_nodes
def solve(A: Array, B: Array, *, left: bool = True) -> Array:
    """X in A X = B (left=False: X A = B), for A (*, n, n) and B (*, n, k), or vectors (*, n) where B has just A's batch dimensions.

    Batch dimensions broadcast; a B of one dimension is a vector for every A. LAPACK's gesv: LU with partial pivoting.
    Raises LinAlgError, when the result is looked at, if an A is singular. dtype: float32, float64 or complex.

    >>> tg.linalg.solve(tg.tensor([[2.0, 1.0], [1.0, 3.0]]), tg.tensor([3.0, 5.0]))
    """
    check_floats("solve", A, B)
    check_matrices("solve", A, square=True)
    vector = _is_vector(A, B)
    if not vector and B.ndim < 2:
        raise ShapeError(f"solve: B must have at least 1 dimension, got {B.shape}")
    if vector and not left:
        raise ShapeError(f"solve: left=False takes matrices B (*, k, n), got {B.shape} for A {A.shape}; use unsqueeze")
    b = mv.reshape(B, (*B.shape, 1)) if vector else B
    n, rows = A.shape[-1], b.shape[-2 if left else -1]
    if rows != n:
        raise ShapeError(f"solve: A {A.shape} and B {B.shape} do not fit: B must have {n} {'rows' if left else 'columns'}, has {rows}")
    a, b = _together("solve", A, b)
    if not left:
        return t(run(inverses.SOLVE, t(a), t(b)))
    x = run(inverses.SOLVE, a, b)
    return mv.reshape(x, x.shape[:-1]) if vector else x


@linalg()
@on_nodes
def inv(A: Array) -> Array:
    """The inverse of (*, n, n). To multiply with one, `solve` is faster and more accurate. LinAlgError if it is singular.
    dtype: float32, float64 or complex.

    >>> tg.linalg.inv(tg.tensor([[2.0, 0.0], [1.0, 4.0]]))
    """
    check_matrices("inv", A, square=True)
    return run(inverses.INV, A)


@public("inverse")
@on_nodes
def inverse(input: Array) -> Array:
    """`linalg.inv`. The shapes and dtypes are those; raises what that raises.

    >>> tg.inverse(tg.tensor([[2.0, 0.0], [0.0, 4.0]]))
    Tensor([[0.5 , 0.  ],
            [0.  , 0.25]], device='cpu')
    """
    return inv(input)


@linalg()
@on_nodes
def solve_triangular(A: Array, B: Array, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Array:
    """X in A X = B (left=False: X A = B) for the upper or lower triangle of A (*, n, n); B (*, n, k). The other triangle is not read.

    unitriangular: the diagonal counts as ones. LinAlgError for a zero on the diagonal (torch divides by it).
    dtype: float32, float64 or complex.

    >>> tg.linalg.solve_triangular(tg.tensor([[2.0, 1.0], [0.0, 4.0]]), tg.ones(2, 1), upper=True)
    """
    check_matrices("solve_triangular", A, B)
    check_matrices("solve_triangular", A, square=True)
    rows = B.shape[-2 if left else -1]
    if rows != A.shape[-1]:
        raise ShapeError(f"solve_triangular: A {A.shape} and B {B.shape} do not fit: B must have {A.shape[-1]} "
                         f"{'rows' if left else 'columns'}, has {rows}")
    a, b = _together("solve_triangular", A, B)
    if left:
        return run(inverses.TRIANGLE, a, b, upper=bool(upper), unit=bool(unitriangular))
    return t(run(inverses.TRIANGLE, t(a), t(b), upper=not upper, unit=bool(unitriangular)))


@linalg("pinv")
@on_nodes
def pinv(A: Array, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Array:
    """The pseudo-inverse (*, n, m) of (*, m, n), by singular values; those up to max(atol, rtol * the largest) count as 0.

    atol, rtol: numbers, or tensors of the batch's shape. rtol: default max(m, n) * eps of the dtype, or 0 where atol is given; rcond is its
    older name. hermitian: A is symmetric, and only its lower triangle is read. The derivative holds where the rank does not change (Golub
    and Pereyra, 1973). Raises ShapeError for other shapes.

    >>> tg.linalg.pinv(tg.tensor([[1.0, 2.0], [2.0, 4.0]]))
    """
    check_matrices("pinv", A)
    a = _hermitian("pinv", A) if hermitian else A
    low, relative = _tolerances("pinv", A, atol, rtol if rtol is not None else rcond)
    if not isinstance(low, Node) and not isinstance(relative, Node):
        return run(inverses.PINV, a, atol=low, rtol=relative)
    limits = (mv.expand(mv.reshape(v, (*v.shape, 1, 1)), (*A.shape[:-2], 1, 1)) for v in
              (cast(v, A.dtype) if isinstance(v, Node) else const(v, A.dtype) for v in (low, relative)))
    return run(inverses.PINV, a, *limits, atol=0.0, rtol=0.0)


def _hermitian(name: str, a: Node) -> Any:
    """The symmetric matrices of which `a` has the lower triangle; the gradient is of all of a, as in torch."""
    check_matrices(name, a, square=True)
    low = h(tril(a, -1))
    triangle = tril(a) + low
    if a.dtype.kind == "c":                     # of which the diagonal is taken to be real
        triangle = h(low) + low + _eye(a.shape[-1], a) * real(a)
    return a + detach(triangle - a)


def _tolerances(name: str, a: Node, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """The tolerances: numbers, or nodes of a's dtype that broadcast to its batch."""
    found = []
    for argument, value in (("atol", atol), ("rtol", rtol)):
        if isinstance(value, Node):
            batch = a.shape[:-2]
            if value.ndim > len(batch) or any(m not in (1, n) for m, n in zip(reversed(value.shape), reversed(batch), strict=False)):
                raise ShapeError(f"{name}: {argument} {value.shape} does not broadcast to the batch of {a.shape}, {batch}")
            if dtype_kind(value.dtype) != "f":
                raise DTypeError(f"{name}: {argument} must be a number or a float tensor, got {value.aval}")
            value = cast(value, dtypes.real_of(a.dtype))
        elif value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ArgumentError(f"{name}: {argument} must be a number or a tensor, got {type(value).__name__}")
        found.append(value)
    low, relative = found
    if relative is None:
        eps = max(a.shape[-2:]) * float(np.finfo(a.dtype).eps)
        relative = cast(where(lt(0.0, low), 0.0, eps), low.dtype) if isinstance(low, Node) else eps if low is None or low <= 0 else 0.0
    return low if isinstance(low, Node) else float(low or 0.0), relative if isinstance(relative, Node) else float(relative)


@public("pinverse")
@on_nodes
def pinverse(input: Array, rcond: float = 1e-15) -> Array:
    """`linalg.pinv` with a relative tolerance. The shapes and dtypes are those; raises what that raises.

    >>> tg.pinverse(tg.ones(3, 2)).shape
    (2, 3)
    """
    return pinv(input, rtol=rcond)


@linalg()
@on_nodes
def lstsq(A: Array, B: Array, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """(solution, residuals, rank, singular_values): the X of least norm that minimises ||A X - B||, for A (*, m, n) B (*, m, k), (*, m).

    Any rank, by A's singular values, of which those up to rcond * the largest (default max(m, n) * eps) count as 0, as LAPACK's gelsd and
    numpy do. residuals: sums of squares (*, k) if m > n, else empty. (torch leaves them empty for rank-deficient A as well; here they are
    always what is left.) driver: all compute the same, and leave empty (shape (0,)) what LAPACK's do not give: "gels" rank and
    singular_values, "gelsy" residuals and singular_values; None, "gelsd" and "gelss" give everything. The derivative is that of
    pinv(A) B, at constant rank; singular_values has none, see `svdvals`.
    dtype: float32, float64 or complex. Raises ShapeError where rows differ.

    >>> tg.linalg.lstsq(tg.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), tg.tensor([0.0, 1.0, 2.0])).solution
    """
    check_floats("lstsq", A, B)
    check_matrices("lstsq", A)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise ArgumentError(f"lstsq: driver must be 'gels', 'gelsy', 'gelsd' or 'gelss', got {driver!r}")
    vector = _is_vector(A, B)
    if not vector and B.ndim < 2:
        raise ShapeError(f"lstsq: B must have at least 1 dimension, got {B.shape}")
    b = mv.reshape(B, (*B.shape, 1)) if vector else B
    if b.shape[-2] != A.shape[-2]:
        raise ShapeError(f"lstsq: A {A.shape} and B {B.shape} do not fit: B must have {A.shape[-2]} rows, has {b.shape[-2]}")
    x = matmul(pinv(A, rtol=rcond), b)
    m, n = A.shape[-2:]
    nothing = full_like_shape((0,), 0, dtypes.real_of(A.dtype))
    residuals = nothing
    if m > n and driver != "gelsy":
        left = matmul(A, x) - b
        residuals = total(abs_squared(left), (left.ndim - 2,))
    rank = full_like_shape((0,), 0, dtypes.int64) if driver == "gels" else matrix_rank(A, rtol=rcond)
    s = nothing if driver in ("gels", "gelsy") else detach(svdvals(A))
    return LstsqResult(mv.reshape(x, x.shape[:-1]) if vector else x, residuals, rank, s)


@linalg(public=True)
@on_nodes
def matrix_power(input: Array, n: int) -> Array:
    """The n-th power of (*, m, m), by repeated squaring; of the inverse for negative n.
    dtype: any but bool. Raises ShapeError for other shapes.

    >>> tg.linalg.matrix_power(tg.tensor([[1.0, 1.0], [0.0, 1.0]]), 5)
    """
    n = integer("matrix_power", "n", n)
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise ShapeError(f"matrix_power: takes square matrices (*, n, n), got {input.shape}")
    if n == 0:
        return mv.expand(_eye(input.shape[-1], input), input.shape)
    x = inv(input) if n < 0 else input
    n = abs(n)
    y = None
    while True:
        if n % 2:
            y = x if y is None else matmul(y, x)
        n //= 2
        if not n:
            return y
        x = matmul(x, x)


@linalg(public=True)
@on_nodes
def matrix_exp(input: Array) -> Array:
    """exp of the matrices (*, n, n): the series, not element by element; Taylor's polynomial of degree 16, scaling and squaring.
    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.linalg.matrix_exp(tg.zeros(2, 2))
    """
    check_matrices("matrix_exp", input, square=True)
    return run(matrix_exponential.MATRIX_EXP, input)


@linalg()
@on_nodes
def tensorsolve(A: Array, B: Array, dims: Sequence[int] | None = None) -> Array:
    """X in tensordot(A, X, X.ndim) = B. dims: A's dimensions to move to its end first; A's sizes are B's, then X's, with equal products.
    dtype: float32, float64 or complex. Raises ShapeError where the products differ.

    >>> tg.linalg.tensorsolve(2 * tg.eye(4).reshape(2, 2, 4), tg.ones(2, 2))
    Tensor([0.5, 0.5, 0.5, 0.5], device='cpu')
    """
    x = A
    if dims is not None:
        moved = [one_dim("tensorsolve", d, A.ndim) for d in dims]
        x = mv.permute(A, (*(d for d in range(A.ndim) if d not in moved), *moved))
    shape = x.shape[B.ndim:]
    if prod(shape) != B.aval.size or prod(x.shape[:B.ndim]) != B.aval.size:
        raise ShapeError(f"tensorsolve: A {x.shape} is not square for B {B.shape}: its first {B.ndim} sizes and the rest must each have "
                         f"the product {B.aval.size}")
    n = B.aval.size
    return mv.reshape(solve(mv.reshape(x, (n, n)), mv.reshape(B, (n,))), shape)


@linalg()
@on_nodes
def tensorinv(A: Array, ind: int = 2) -> Array:
    """The inverse of tensordot(A, ., ind): A's first `ind` sizes have the product of the others.
    (*ind, *rest) -> (*rest, *ind). dtype: float32, float64 or complex. Raises ShapeError where the products differ.

    >>> tg.linalg.tensorinv(tg.eye(4).reshape(2, 2, 4)).shape
    """
    k = integer("tensorinv", "ind", ind)
    if not 0 < k < max(2, A.ndim + 1):
        raise ArgumentError(f"tensorinv: ind must be from 1 to {A.ndim}, got {k}")
    n = prod(A.shape[:k])
    if prod(A.shape[k:]) != n:
        raise ShapeError(f"tensorinv: the first {k} sizes of {A.shape} have the product {n}, the others {prod(A.shape[k:])}; they must be "
                         "equal")
    return mv.reshape(inv(mv.reshape(A, (n, n))), (*A.shape[k:], *A.shape[:k]))


# ------------------------------------------------------------------------------------------------ Cholesky factors and ranks


@linalg(public=True)
@on_nodes
def cholesky_solve(input: Array, L: Array, upper: bool = False) -> Array:
    """X in A X = input (*, n, k), where A = L L^T (upper: L^T L). dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.cholesky_solve(tg.ones(2, 1), tg.eye(2))
    """
    check_matrices("cholesky_solve", input, L)
    y = solve_triangular(h(L) if upper else L, input, upper=False)
    return solve_triangular(L if upper else h(L), y, upper=True)


@public("cholesky_inverse")
@on_nodes
def cholesky_inverse(L: Array, upper: bool = False) -> Array:
    """The inverse of A = L L^T (upper: L^T L), from its Cholesky factor (*, n, n).
    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.cholesky_inverse(tg.tensor([[2.0, 0.0], [0.0, 4.0]]))
    Tensor([[0.25  , 0.    ],
            [0.    , 0.0625]], device='cpu')
    """
    check_matrices("cholesky_inverse", L, square=True)
    return cholesky_solve(mv.expand(_eye(L.shape[-1], L), L.shape), L, upper)


@linalg()
@on_nodes
def matrix_rank(A: Array, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Array:
    """How many singular values (int64) of (*, m, n) are above max(atol, rtol * the largest). rtol: default max(m, n) * eps, 0 with an atol.

    atol, rtol: numbers, or tensors that broadcast to the batch. tol: the absolute tolerance, the older name. hermitian: A is symmetric, and
    only its lower triangle is read. Raises ShapeError for other shapes.

    >>> tg.linalg.matrix_rank(tg.tensor([[1.0, 2.0], [2.0, 4.0]]))
    """
    check_matrices("matrix_rank", A)
    low, relative = _tolerances("matrix_rank", A, atol if atol is not None else tol, rtol)
    if not min(A.shape[-2:]):
        return full_like_shape(A.shape[:-2], 0, dtypes.int64)
    s = svdvals(_hermitian("matrix_rank", A) if hermitian else A)
    low, relative = (mv.reshape(v, (*v.shape, 1)) if isinstance(v, Node) else v for v in (low, relative))
    limit = maximum(mv.narrow(s, s.ndim - 1, 0, 1) * relative, low)
    return total(cast(lt(limit, s), dtypes.int64), (s.ndim - 1,))


# ------------------------------------------------------------------------------------------------------------------ products


@linalg("matmul")
@on_nodes
def _matmul(input: Array, other: Array) -> Array:
    """`tg.matmul`. Shapes, dtypes and an example are there; raises what that raises. (*, m, k), (*, k, n).

    >>> tg.linalg.matmul(tg.ones(2, 3), tg.ones(3))
    Tensor([3., 3.], device='cpu')
    """
    return matmul(input, other)


@linalg("diagonal")
@on_nodes
def _diagonal(A: Array, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """The diagonals of matrices: `tg.diagonal` of the last two dimensions. Any dtype. Raises IndexOutOfRange for fewer.

    >>> tg.linalg.diagonal(tg.arange(4).reshape(2, 2))
    Tensor([0, 3], device='cpu')
    """
    return diagonal_(A, offset, dim1, dim2)


@linalg()
@on_nodes
def multi_dot(tensors: Sequence[Array]) -> Array:
    """The product of two and more matrices, in the order that takes the fewest multiplications; the first and the last may be vectors.
    (n, m), (m, p), ... dtype: any but bool. Raises ShapeError where sizes do not fit.

    >>> tg.linalg.multi_dot([tg.ones(2, 3), tg.ones(3, 4), tg.ones(4)])
    """
    xs = common_dtype(list(tensors), name="multi_dot")
    if len(xs) < 2:
        raise ArgumentError(f"multi_dot: takes at least 2 tensors, got {len(xs)}")
    if any(x.ndim != 2 for x in xs[1:-1]) or any(x.ndim not in (1, 2) for x in (xs[0], xs[-1])):
        raise ShapeError(f"multi_dot: takes matrices, and vectors at the ends, got {', '.join(str(x.shape) for x in xs)}")
    first, last = xs[0].ndim == 1, xs[-1].ndim == 1
    xs[0] = mv.reshape(xs[0], (1, *xs[0].shape)) if first else xs[0]
    xs[-1] = mv.reshape(xs[-1], (*xs[-1].shape, 1)) if last else xs[-1]
    n, sizes = len(xs), [xs[0].shape[0], *(x.shape[1] for x in xs)]
    for i, x in enumerate(xs):
        if x.shape[0] != sizes[i]:
            raise ShapeError(f"multi_dot: tensors {i - 1} and {i}, {xs[i - 1].shape} and {x.shape}, do not fit")
    cost = {(i, i): (0, i) for i in range(n)}           # of the product of tensors i to j, and where it is cut
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i, j] = min((cost[i, k][0] + cost[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j))

    def product(i: int, j: int) -> Any:
        return xs[i] if i == j else matmul(product(i, cost[i, j][1]), product(cost[i, j][1] + 1, j))

    y = product(0, n - 1)
    return mv.reshape(y, (() if first else y.shape[:1]) + (() if last else y.shape[1:]))


@public("cross")
@on_nodes
def cross_(input: Array, other: Array, dim: int | None = None) -> Array:
    """The cross product of vectors of three along dim (None: the first dimension of size 3, as in torch), broadcast.
    dtype: any but bool, promoted. Raises ShapeError where no size is 3.

    >>> tg.cross(tg.tensor([1.0, 0.0, 0.0]), tg.tensor([0.0, 1.0, 0.0]))
    Tensor([0., 0., 1.], device='cpu')
    """
    shape = broadcast_shapes("cross", [input.shape, other.shape])
    if dim is None:
        dim = next((d for d, n in enumerate(shape) if n == 3), None)
        if dim is None:
            raise ShapeError(f"cross: no dimension of {input.shape} and {other.shape} has size 3")
    d = one_dim("cross", dim, len(shape))
    if not shape or shape[d] != 3 or 1 in (input.shape[d - len(shape)], other.shape[d - len(shape)]):
        raise ShapeError(f"cross: dimension {dim} of {input.shape} and {other.shape} must have size 3")

    def turned(x: Node, first: int) -> Any:
        x = mv.expand(x, shape)
        return mv.concat([mv.narrow(x, d, (first + k) % 3, 1) for k in range(3)], d)

    return turned(input, 1) * turned(other, 2) - turned(input, 2) * turned(other, 1)


@linalg()
@on_nodes
def cross(input: Array, other: Array, *, dim: int = -1) -> Array:
    """The cross product of vectors of 3 along dim; the other dimensions broadcast.
    dtype: any but bool, promoted. Raises ShapeError for other sizes.

    >>> tg.linalg.cross(tg.tensor([1.0, 0.0, 0.0]), tg.tensor([0.0, 1.0, 0.0]))
    """
    if input.ndim != other.ndim:
        raise ShapeError(f"cross: takes tensors of as many dimensions, got {input.shape} and {other.shape}; use unsqueeze")
    return cross_(input, other, dim)


@linalg("vander")
@on_nodes
def vander(x: Array, *, N: int | None = None) -> Array:
    """The powers 0 ... N - 1 (default: as many as x has) of the elements of x (*, n), as rows: (*, n, N).
    Integers and bools give int64, other dtypes stay. Raises ArgumentError for a number without N.

    >>> tg.linalg.vander(tg.tensor([1, 2, 3]))
    Tensor([[1, 1, 1],
            [1, 2, 4],
            [1, 3, 9]], device='cpu')
    """
    if not x.ndim:
        if N is None:
            raise ArgumentError("vander: of a single number, a tensor of shape (), N must be given")
        x = mv.reshape(x, (1,))
    count = x.shape[-1] if N is None else integer("vander", "N", N)
    if count < 1:
        raise ArgumentError(f"vander: N must be at least 1, got {count}")
    wide = cast(x, dtypes.int64) if x.dtype.kind in "iub" else x
    Aval((*x.shape, count), wide.dtype)                      # which refuses what no index reaches
    parts = [mv.expand(const(1, wide.dtype), (*x.shape, 1))]
    for _ in range(count - 1):
        parts.append(parts[-1] * mv.reshape(wide, (*x.shape, 1)))
    return mv.concat(parts, x.ndim)
