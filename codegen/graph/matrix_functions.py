"""What is made of small matrices' decompositions, for kernels: pseudo-inverses, cofactors, polar factors, Lyapunov's equation.

Each says what the `results` of its class in `tracegrad.ops` do, of operations instead of NumPy's functions. Start at `COMPOSED`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import REGISTRY, const
from tracegrad.ops.arrays.complex_numbers import conj, real
from tracegrad.ops.arrays.pointwise import eq, lt, maximum
from tracegrad.ops.linalg import eigen, factorizations, inverses
from tracegrad.ops.linalg.lapack import column, eye, h, row, scalars
from tracegrad.ops.primitives.contraction import matmul
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.movement import narrow, reshape
from tracegrad.ops.primitives.reduction import products_of_others, total

Call = Callable[..., Node]                   # of an operation, its operands and its attributes: a result of it, by kernels


def _svd(call: Call, a: Node) -> list[Any]:
    return [call(eigen.SVD_, a, full=False, index=k) for k in range(3)]


def _pinv(call: Call, node: Node, a: Node, *limits: Node) -> Any:
    u, s, vh = _svd(call, a)
    low, relative = ([reshape(real(v), (*v.shape[:-2], 1)) for v in limits] if limits else
                     [const(node.attrs[name], s.dtype) for name in ("atol", "rtol")])
    keep = lt(maximum(low, relative * narrow(s, len(s.shape) - 1, 0, 1)), s)
    one = const(1, s.dtype)
    return matmul(h(vh) * row(where(keep, one / where(keep, s, one), const(0, s.dtype))), h(u))


def _finite(call: Call, a: Node) -> list[Any]:
    """Which matrices are finite (*, 1, 1), the decompositions of these, and the determinants (*, 1, 1) of U V^H."""
    rank, zero = len(a.shape), const(0, a.dtype)
    known = scalars(eq(total(a * zero, (rank - 2, rank - 1)), zero))                # neither NaN nor infinity
    u, s, vh = _svd(call, where(known, a, const(1, a.dtype)))
    return [known, u, s, vh, scalars(call(inverses.SLOGDET, u, index=0) * call(inverses.SLOGDET, vh, index=0))]


def _cofactors(call: Call, node: Node, a: Node) -> Any:
    known, u, s, vh, sign = _finite(call, a)
    found = matmul(conj(u) * row(products_of_others(s, (len(s.shape) - 1,))), conj(vh)) * sign
    return where(known, found, const(float("nan"), a.dtype))


def _minors(call: Call, node: Node, a: Node, b: Node) -> Any:
    known, u, s, vh, sign = _finite(call, a)
    rank, diagonal = len(a.shape), eye(a.shape[-1])
    without_one = where(diagonal, const(1, s.dtype), row(s))
    others = where(diagonal, const(0, s.dtype), products_of_others(without_one, (rank - 1,)))
    b = matmul(matmul(h(u), b), h(vh))
    along = total(others * row(total(where(diagonal, b, const(0, b.dtype)), (rank - 2,))), (rank - 1,))
    inner = where(diagonal, column(along), -(others * t(b)))
    return where(known, matmul(matmul(conj(u), inner), conj(vh)) * sign, const(float("nan"), a.dtype))


def _polar(call: Call, node: Node, a: Node) -> Any:
    u, s, vh = _svd(call, a)
    return matmul(h(vh) * row(s), vh) if node.attrs["index"] else matmul(u, vh)


def _lyapunov(call: Call, node: Node, x: Node, e: Node) -> Any:
    w, v = (call(eigen.EIGH, x, index=k) for k in range(2))
    return matmul(matmul(v, matmul(matmul(h(v), e), v) / (row(w) + column(w))), h(v))


def _order(call: Call, node: Node, pivots: Node) -> Any:
    *batch, count = pivots.shape
    return reshape(call(factorizations.ORDER, reshape(pivots, (*batch, 1, count)), **node.attrs), node.shape)     # as matrices of one row


COMPOSED: dict[Any, Callable[..., Any]] = {
    inverses.PINV: _pinv, inverses.COFACTORS: _cofactors, inverses.MINORS: _minors, REGISTRY["polar"]: _polar,
    REGISTRY["lyapunov"]: _lyapunov, factorizations.ORDER: _order,
}
