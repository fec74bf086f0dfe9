"""LDL factorisations of symmetric and Hermitian matrices: linalg.ldl_factor, ldl_factor_ex and ldl_solve, in LAPACK's form (sytrf).

A = L D L^T (hermitian: L^H), D of blocks 1x1 and 2x2: J. Bunch, L. Kaufman, "Some stable methods for calculating inertia and solving
symmetric linear systems" (1977). Computed on the host, by SciPy's LAPACK where SciPy is installed. As in torch the factors have no
derivative; `ldl_solve` has one with respect to the right-hand side. `linalg.solve` is the function for anything else.
"""

from __future__ import annotations

from importlib import import_module
from math import sqrt as root
from typing import Any, NamedTuple

import numpy as np

from tracegrad.errors import AutogradError, LinAlgError, ShapeError
from tracegrad.graph.ir import Aval
from tracegrad.graph.operators import linalg
from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.linalg.decompositions import check_matrices
from tracegrad.ops.linalg.factorizations import permutation
from tracegrad.ops.linalg.lapack import Lapack, h, run, spread
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.linalg.systems import solve_triangular
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize

Array = Any      # a Node or a Tensor
_ALPHA = (1 + root(17)) / 8
INDEFINITE = (lambda x: x + x.swapaxes(-1, -2))(spread(2, 4, 4))


class LDLFactorResult(NamedTuple):
    """What `ldl_factor` returns."""

    LD: Any
    pivots: Any


class LDLFactorExResult(NamedTuple):
    """What `ldl_factor_ex` returns."""

    LD: Any
    pivots: Any
    info: Any


# ------------------------------------------------------------------------------------------------------ LAPACK's algorithms


@memoize(1)
def _library() -> Any:
    """scipy.linalg.lapack, if it is there."""
    try:
        return import_module("scipy.linalg.lapack")
    except ImportError:
        return None


def _size(x: Any) -> Any:
    """What LAPACK compares complex numbers by."""
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def _block(a: Any, k: int, step: int, hermitian: bool) -> Any:
    """The block of D at k, of which the lower triangle is read."""
    block = np.tril(a[k:k + step, k:k + step])
    if step == 2:
        block[0, 1] = block[1, 0].conj() if hermitian else block[1, 0]
    if hermitian:
        np.einsum("ii->i", block)[...] = block.diagonal().real
    return block


def factor(a: Any, hermitian: bool) -> tuple[Any, Any, int]:
    """(LD, pivots, info) of the matrix a, of which the lower triangle is read: LAPACK's (he|sy)tf2."""
    n = len(a)
    low = np.tril(a, -1)
    a = low + (low.conj() if hermitian else low).T + np.diag(a.diagonal().real if hermitian else a.diagonal()).astype(a.dtype)
    pivots, info, k = np.zeros(n, np.int32), 0, 0
    while k < n:
        size, step, p = _size(a[k:, k]), 1, k
        here = abs(a[k, k].real) if hermitian else size[0]
        far = k + 1 + int(np.argmax(size[1:])) if k + 1 < n else k
        most = size[far - k] if far > k else 0.0
        if not max(here, most) > 0:                                  # a zero column, or NaN
            info = info or k + 1
        elif here < _ALPHA * most:
            row = _size(a[far, k:]).copy()
            corner = abs(a[far, far].real) if hermitian else row[far - k]
            row[far - k] = 0
            widest = row.max()
            if here < _ALPHA * most * (most / widest):
                p = far
                step = 1 if corner >= _ALPHA * widest else 2
        at = k + step - 1
        if p != at:
            rest = a[k:, k:]
            rest[[at - k, p - k]] = rest[[p - k, at - k]]
            rest[:, [at - k, p - k]] = rest[:, [p - k, at - k]]
        pivots[k:k + step] = p + 1 if step == 1 else -(p + 1)
        block, below = _block(a, k, step, hermitian), a[k + step:, k:k + step]
        a[k:k + step, k:k + step] = block                           # an imaginary part from rounding would grow from step to step
        if len(below) and (step == 2 or block[0, 0] != 0):
            # L = below D^-1; what is left: below D^-1 below^H
            low = np.linalg.solve(block.T, below.T).T if step == 2 else below / block[0, 0]
            a[k + step:, k + step:] -= low @ (below.conj() if hermitian else below).T
            a[k + step:, k:k + step] = low
        k += step
    return np.tril(a), pivots, info


def unpacked(ld: Any, pivots: Any, hermitian: bool) -> tuple[Any, Any, Any]:
    """(order, L, D^-1) of what `factor` gives: A[order][:, order] = L D L^T, L with ones on its diagonal."""
    n, k = len(ld), 0
    order, low, inverse = np.arange(n, dtype=np.int32), np.eye(n, dtype=ld.dtype), np.zeros_like(ld)
    while k < n:
        step = 1 if pivots[k] > 0 else 2
        at, p = k + step - 1, abs(int(pivots[k])) - 1
        order[[at, p]] = order[[p, at]]
        low[[at, p], :k] = low[[p, at], :k]                         # what LAPACK leaves where it was
        low[k + step:, k:k + step] = ld[k + step:, k:k + step]
        block = _block(ld, k, step, hermitian)
        with np.errstate(all="ignore"):
            inverse[k:k + step, k:k + step] = np.linalg.inv(block) if step == 2 else 1 / block
        k += step
    return order, low, inverse


class LdlFactor(Lapack):
    """LD, pivots (int32) and info (int32) of (*, n, n)."""
    name, differentiable = "ldl_factor", False
    cases = [((INDEFINITE,), dict(hermitian=False, check=True, index=0)), ((INDEFINITE[0],), dict(hermitian=True, check=False, index=0))]

    def avals(self, *operands, **attrs):
        a = operands[0]
        return a, Aval(a.shape[:-1], dtypes.int32), Aval(a.shape[:-2], dtypes.int32)

    def python(self, define, operands, hermitian, check, index):
        return f"tg.linalg.ldl_factor_ex({operands[0]}, hermitian={hermitian}, check_errors={check})"

    def results(self, a, hermitian, check):
        ld, pivots, info = np.zeros_like(a), np.zeros(a.shape[:-1], np.int32), np.zeros(a.shape[:-2], np.int32)
        library, hermitian = _library(), hermitian and a.dtype.kind == "c"
        call = library and library.get_lapack_funcs("hetrf" if hermitian else "sytrf", (a,))
        for place in np.ndindex(info.shape if a.size else (0,)):
            if call:
                packed, pivots[place], info[place] = call(a[place], lower=1, lwork=64 * a.shape[-1])
                ld[place] = np.tril(packed)
            else:
                ld[place], pivots[place], info[place] = factor(a[place], hermitian)
        bad = np.argwhere(info > 0)
        if check and len(bad):
            place = tuple(int(i) for i in bad[0])
            raise self.error(f"has no invertible D: its element ({info[place] - 1}, {info[place] - 1}) is 0", a, place)
        return [ld, pivots, info]


class LdlUnpack(Lapack):
    """The order (int32) of rows, L and the inverse of D, from LD and pivots."""
    name, differentiable, python = "ldl_unpack", False, None
    cases = [((np.tril(INDEFINITE), np.array([[1, 2, 3, 4], [-3, -3, 3, 4]], np.int32)), dict(hermitian=False, index=1))]

    def aval(self, *operands, **attrs): return self.avals(*operands, **attrs)[attrs["index"]]

    def avals(self, *operands, **attrs):
        ld = operands[0]
        return Aval(ld.shape[:-1], dtypes.int32), ld, ld

    def results(self, ld, pivots, hermitian):
        n, size = ld.shape[-1], abs(pivots.astype(np.int64))
        if pivots.size and not 1 <= size.min() <= size.max() <= n:
            raise LinAlgError(f"ldl_solve: pivots must be what ldl_factor gives, from 1 to {n} or their negatives, got {pivots.tolist()}")
        out = [np.zeros(pivots.shape, np.int32), np.zeros_like(ld), np.zeros_like(ld)]
        for place in np.ndindex(ld.shape[:-2] if ld.size else (0,)):
            for array, value in zip(out, unpacked(ld[place], pivots[place], hermitian and ld.dtype.kind == "c"), strict=True):
                array[place] = value
        return out


_FACTOR, _UNPACK = REGISTRY["ldl_factor"], REGISTRY["ldl_unpack"]


# ----------------------------------------------------------------------------------------------------------------- functions


def _constant(name: str, a: Any) -> None:
    if a.needs_grad:
        raise AutogradError(f"{name}: has no derivative with respect to its matrix, as in torch; use linalg.solve, or detach() the matrix")


@linalg()
@on_nodes
def ldl_factor(A: Array, *, hermitian: bool = False) -> Any:
    """(LD, pivots) of symmetric (*, n, n), for `ldl_solve`: L below the diagonal (its own is ones) and D in one matrix, as LAPACK's sytrf

    has them. hermitian: complex A is Hermitian, not symmetric. The lower triangle is read. pivots (int32, from 1): the row that was
    exchanged; two equal negative ones are a block of 2x2. LinAlgError for a singular D. Has no derivative: AutogradError.

    >>> tg.linalg.ldl_factor(tg.tensor([[0.0, 1.0], [1.0, 0.0]])).pivots
    """
    check_matrices("ldl_factor", A, square=True)
    _constant("ldl_factor", A)
    attrs = {"hermitian": bool(hermitian), "check": True}
    return LDLFactorResult(run(_FACTOR, A, **attrs), run(_FACTOR, A, index=1, **attrs))


@linalg()
@on_nodes
def ldl_factor_ex(A: Array, *, hermitian: bool = False, check_errors: bool = False) -> Any:
    """(LD, pivots, info): `ldl_factor`, and the number (int32, from 1) of the first block of D that is 0; 0 where there is none.

    check_errors: one that is 0 is a LinAlgError. dtype: float32, float64 or complex.

    >>> tg.linalg.ldl_factor_ex(tg.tensor([[0.0, 1.0], [1.0, 0.0]]))
    """
    check_matrices("ldl_factor_ex", A, square=True)
    _constant("ldl_factor_ex", A)
    attrs = {"hermitian": bool(hermitian), "check": bool(check_errors)}
    return LDLFactorExResult(*(run(_FACTOR, A, index=i, **attrs) for i in range(3)))


@linalg()
@on_nodes
def ldl_solve(LD: Array, pivots: Array, B: Array, *, hermitian: bool = False) -> Array:
    """X in A X = B, B (*, n, k), from `ldl_factor(A, hermitian=...)`; batches broadcast. Differentiable in B, not in LD (AutogradError).

    dtype: float32, float64 or complex.

    >>> tg.linalg.ldl_solve(*tg.linalg.ldl_factor(tg.eye(2)), tg.ones(2, 1))
    """
    check_matrices("ldl_solve", LD, B)
    check_matrices("ldl_solve", LD, square=True)
    _constant("ldl_solve", LD)
    if pivots.dtype != dtypes.int32 or pivots.shape != LD.shape[:-1]:
        raise ShapeError(f"ldl_solve: pivots must be the int32{LD.shape[:-1]} that ldl_factor gives, got {pivots.dtype}{pivots.shape}")
    if B.shape[-2] != LD.shape[-1]:
        raise ShapeError(f"ldl_solve: LD {LD.shape} and B {B.shape} do not fit: B must have {LD.shape[-1]} rows")
    order, low, inverse = (run(_UNPACK, LD, pivots, index=i, hermitian=bool(hermitian)) for i in range(3))
    p = permutation(order, LD.dtype)
    x = matmul(inverse, solve_triangular(low, matmul(t(p), B), upper=False, unitriangular=True))
    return matmul(p, solve_triangular(h(low) if hermitian else t(low), x, upper=True, unitriangular=True))
