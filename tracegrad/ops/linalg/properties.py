"""tg.linalg's properties of matrices: norms (of absolute values and singular values), condition numbers, determinants."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.operators import linalg
from tracegrad.graph.primitive import const
from tracegrad.ops.arguments import no_tensor, on_nodes, one_dim, rounded_once, some_dims
from tracegrad.ops.arrays.pointwise import eq, lt, ne
from tracegrad.ops.arrays.reductions import as_asked, reduce
from tracegrad.ops.arrays.reductions import norm as elementwise_norm
from tracegrad.ops.linalg.decompositions import check_matrices, svdvals
from tracegrad.ops.linalg.inverses import DET, INFO, SLOGDET, possible
from tracegrad.ops.linalg.lapack import run
from tracegrad.ops.linalg.systems import inv
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.float_functions import log
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


class SlogdetResult(NamedTuple):
    """What `slogdet` returns."""

    sign: Any
    logabsdet: Any


def _float(name: str, x: Any, dtype: Any) -> Any:
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if dtype_kind(wanted or x.dtype) not in "fc":
        raise DTypeError(f"{name}: takes a float tensor, got {wanted or x.dtype}; use x.float() or dtype=tg.float32")
    return x if wanted is None else as_asked(x, wanted)


@linalg()
@on_nodes
@rounded_once
def vector_norm(x: Array, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """(sum |x|^ord)^(1/ord) over dim (default: all elements). ord: a number, inf, -inf, or 0 (how many are not 0).

    dtype: float or complex; the norm is real. Raises DTypeError for others.

    >>> tg.linalg.vector_norm(tg.tensor([3.0, 4.0]))
    """
    if isinstance(ord, (bool, str)) or not isinstance(ord, (int, float)):
        no_tensor("ord", ord)
        raise ArgumentError(f"vector_norm: ord must be a number, got {ord!r}")
    return elementwise_norm(_float("vector_norm", x, dtype), ord, dim, keepdim)


@linalg()
@on_nodes
def matrix_norm(A: Array, ord: Any = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Array:
    """The norm of the matrices in the dimensions `dim`. ord: "fro", "nuc" (the sum of the singular values), 2, -2 (the largest, smallest),

    1, -1 (largest, smallest column sum of absolute values), inf, -inf (row sum).
    dtype: float or complex; the norm is real. Raises ArgumentError for another ord.

    >>> tg.linalg.matrix_norm(tg.tensor([[3.0, 0.0], [0.0, 4.0]]))
    """
    x = _float("matrix_norm", A, dtype)
    if not isinstance(dim, (tuple, list)) or len(dim) != 2 or x.ndim < 2:
        raise ShapeError(f"matrix_norm: takes at least 2 dimensions, two of them as dim, got {x.shape} and dim={dim!r}")
    rows, columns = (one_dim("matrix_norm", d, x.ndim) for d in dim)
    if rows == columns:
        raise ArgumentError(f"matrix_norm: dim {tuple(dim)} names a dimension twice")
    no_tensor("ord", ord)
    if ord in ("fro", "f") or ord is None:
        return elementwise_norm(x, 2, (rows, columns), keepdim)
    if ord not in ("nuc", 1, -1, 2, -2, inf, -inf) or isinstance(ord, bool):
        raise ArgumentError(f"matrix_norm: ord must be 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2, got {ord!r}")
    x = mv.permute(x, (*(d for d in range(x.ndim) if d not in (rows, columns)), rows, columns))
    last = x.ndim - 1
    sizes = svdvals(x) if ord in ("nuc", 2, -2) else reduce("sum", abs(x), (last - 1 if abs(ord) == 1 else last,), False)
    # The largest of none is 0, as in torch: norms are not negative.
    kind = "sum" if ord == "nuc" or (ord > 0 and not sizes.shape[-1]) else "amax" if ord > 0 else "amin"
    y = reduce(kind, sizes, (sizes.ndim - 1,), False)
    return mv.reshape(y, tuple(1 if d in (rows, columns) else n for d, n in enumerate(A.shape))) if keepdim else y


@linalg()
@on_nodes
def norm(A: Array, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """`vector_norm` where dim is one dimension (or A is 1-d, or neither ord nor dim is given), `matrix_norm` where it is two.

    Raises ArgumentError for an ord without dim if A has neither 1 nor 2 dimensions. dtype: float or complex; the norm is real.

    >>> tg.linalg.norm(tg.tensor([3.0, 4.0]))
    """
    if dim is not None:
        dims = some_dims("norm", dim, A.ndim)
        if isinstance(ord, str) or (len(dims) == 2 and ord is not None):
            return matrix_norm(A, ord, tuple(dim) if isinstance(dim, (tuple, list)) else (dim,), keepdim, dtype=dtype)
        return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)
    if ord is None:
        return vector_norm(A, 2, None, keepdim, dtype=dtype)
    if A.ndim == 2:
        return matrix_norm(A, ord, (0, 1), keepdim, dtype=dtype)
    if A.ndim != 1:
        raise ArgumentError(f"norm: ord={ord!r} without dim takes 1 or 2 dimensions, got {A.shape}; give dim")
    return vector_norm(A, ord, None, keepdim, dtype=dtype)


@linalg()
@on_nodes
def cond(A: Array, p: Any = None) -> Array:
    """The condition numbers (*): norm(A, p) * norm(inv(A), p). p=None and 2: the largest by the smallest singular value (of any shape;

    inf for a singular matrix), -2 the reverse; others as matrix_norm's ord, for square matrices (inf where singular).
    dtype: float32, float64 or complex. The result is real. Raises ShapeError for other shapes.

    >>> tg.linalg.cond(tg.tensor([[2.0, 0.0], [0.0, 1.0]]))
    """
    if p in (None, 2, -2):
        if A.ndim < 2 or not min(A.shape[-2:]):
            raise ShapeError(f"cond: takes matrices (*, m, n) that are not empty, got {A.shape}")
        s = svdvals(A)
        ends = [mv.reshape(mv.narrow(s, s.ndim - 1, k, 1), s.shape[:-1]) for k in (0, s.shape[-1] - 1)]
        return ends[1] / ends[0] if p == -2 else ends[0] / ends[1]
    size = matrix_norm(A, p)
    check_matrices("cond", A, square=True)
    info = run(INFO, A, cholesky=False)
    _, a = possible(A, info)
    return where(ne(info, 0) & eq(size, size), const(inf, size.dtype), size * matrix_norm(inv(a), p))


@linalg(public=True)
@on_nodes
def det(A: Array) -> Array:
    """The determinants (*) of (*, n, n). The gradient is right for singular matrices, too; the second derivative needs the inverse.
    dtype: float32, float64 or complex. Raises ShapeError for other shapes.

    >>> tg.linalg.det(tg.tensor([[1.0, 2.0], [3.0, 4.0]]))
    """
    check_matrices("det", A, square=True)
    return run(DET, A)


@linalg(public=True)
@on_nodes
def slogdet(A: Array) -> Any:
    """(sign, logabsdet) of the determinants of (*, n, n): sign * exp(logabsdet), without overflow. (0, -inf) of a singular matrix.

    The sign, of complex matrices a complex number of size 1, has no derivative for real ones; that of logabsdet is the inverse, transposed:
    a LinAlgError where there is none.

    >>> tg.linalg.slogdet(tg.tensor([[2.0, 0.0], [1.0, 4.0]]))
    """
    check_matrices("slogdet", A, square=True)
    return SlogdetResult(run(SLOGDET, A), run(SLOGDET, A, index=1))


@linalg(public=True)
@on_nodes
def logdet(input: Array) -> Array:
    """The logarithm of the determinants of (*, n, n): -inf for 0, NaN for negative ones, but complex numbers of complex matrices.
    Raises ShapeError for other shapes.

    >>> tg.logdet(tg.tensor([[2.0, 0.0], [1.0, 4.0]]))
    """
    check_matrices("logdet", input, square=True)
    size = run(SLOGDET, input, index=1)
    if input.dtype.kind == "c":
        return size + log(run(SLOGDET, input))
    return where(lt(run(SLOGDET, input), 0.0), const(float("nan"), input.dtype), size)
