"""What LAPACK computes: the base class of factorisations, and what their derivatives share. Start at `Lapack`.

One class per factorisation: systems, inverses and determinants in `inverses.py`, Cholesky, QR and LU in `factorizations.py`, eigenvalues
and singular values in `eigen.py`, the exponential in `matrix_exponential.py`. `systems.py` makes tg.linalg of them.

They run on the host, through NumPy: untraced when they are called, in a trace as a step of the plan between launches. Operands are
(*batch, rows, columns), float32, float64, complex64 or complex128, with equal batch dimensions. Derivatives are graphs of products and of
these operations, so they have any order, run forward, are batched and traced. Formulas: M. Giles, "An extended collection of matrix
derivative results for forward and reverse mode algorithmic differentiation" (2008), unless a class says otherwise.

Of complex matrices: rules that say `holomorphic` are of transposes (autodiff conjugates around them), the others of adjoints, `h`.

A matrix that does not have what is asked for is a LinAlgError when a value made of it is read: it names the matrix of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from tracegrad.errors import DTypeError, LinAlgError, ShapeError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.locations import LINE
from tracegrad.graph.primitive import bind, const, iota
from tracegrad.ops.arrays.complex_numbers import conj
from tracegrad.ops.arrays.pointwise import eq
from tracegrad.ops.primitives.contraction import swap_last as t
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.movement import reshape
from tracegrad.support import dtypes
from tracegrad.support.plan import MatrixCheck

Array = Any


def spread(*shape: int) -> Any:
    """Numbers between -1 and 1 without a pattern: operands of the tests that go over the registry. (numpy.random is long in importing.)"""
    return np.sin(np.arange(1.0, prod(shape) + 1.0) ** 2).reshape(shape)


SQUARE = spread(2, 3, 3) + 3 * np.eye(3)
POSITIVE = SQUARE @ SQUARE.swapaxes(-1, -2)
SYMMETRIC = SQUARE + SQUARE.swapaxes(-1, -2) + np.diag([0.0, 2.0, 5.0])
TALL, WIDE, RIGHT = spread(2, 4, 3), spread(3, 5), spread(2, 3, 2)


FLOATS = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


class Lapack(Shared):
    """Base of these. Give `avals`, `results` (on arrays) and `vjp`; `index` tells which result a node is."""

    family, differentiable, batches = "host_call", True, True
    square: ClassVar[bool] = True           # whether the first operand must be square
    symmetric: ClassVar[bool] = False       # whether it is taken to be symmetric: so is the gradient, half of which goes to either side
    impossible: ClassVar[str] = ""          # what is said of a matrix that has no result (see plan.MatrixCheck)

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        first = operands[0]
        for x in operands:
            if x.dtype not in FLOATS:
                raise DTypeError(f"{self.name}: takes float32, float64 and complex tensors, got {x.dtype}; cast first, for example "
                                 "x.to(tg.float32)")
            if x.dtype != first.dtype:
                raise DTypeError(f"{self.name}: the tensors must have one dtype, got {first.dtype} and {x.dtype}; cast one of them")
            if len(x.shape) < 2 or x.shape[:-2] != first.shape[:-2]:
                raise ShapeError(f"{self.name}: takes matrices (*, m, n), got {' and '.join(str(o.shape) for o in operands)}")
        if self.square and first.shape[-1] != first.shape[-2]:
            raise ShapeError(f"{self.name}: takes square matrices (*, n, n), got {first.shape}")
        return super().aval(*operands, **attrs)

    def _call(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        named = {"unit": "unitriangular", "full": "full_matrices"}
        given = [f"{named.get(k, k)}={v}" for k, v in attrs.items() if k != "index"]
        return f"tg.linalg.{self.name}({', '.join([*operands, *given])})"

    python: Any = _call

    def work(self, y: Aval, *operands: Aval, **attrs: Any) -> float:
        m, n = operands[0].shape[-2:]
        return 1000 + sum(o.size for o in operands) * (1 + min(m, n))

    def result(self, operands: tuple[Node, ...], attrs: dict[str, Any], index: int, y: Node) -> Node:
        """Another result of the call that made `y`."""
        return y if index == attrs["index"] else bind(self, operands, {**attrs, "index": index})

    def each(self, what: str, fn: Callable[..., Any], *arrays: Any, pivot: Callable[[Any], int] | None = None) -> Any:
        """fn(*arrays), numpy's function over a batch; the LinAlgError tells which matrix is `what`, and its first bad `pivot`."""
        try:
            return fn(*arrays)
        except np.linalg.LinAlgError as error:
            for place in np.ndindex(arrays[0].shape[:-2]):
                try:
                    fn(*(a[place] for a in arrays))
                except np.linalg.LinAlgError:
                    raise self.error(what, arrays[0], place, pivot(arrays[0][place]) if pivot else 0) from None
            raise LinAlgError(f"{self.name}: {error}") from None

    def decomposed(self, fn: Callable[..., Any], a: Any) -> Any:
        """fn(a), an iteration of LAPACK's over a batch. With NaN or infinity some of them end with an error, and some with NaN."""
        endless = np.argwhere(~np.isfinite(np.tril(a) if fn is np.linalg.eigh else a).all((-2, -1)))       # eigh reads no more
        if len(endless):
            raise self.error(ENDLESS, a, tuple(int(i) for i in endless[0]))
        return self.each(_SLOW, fn, a)

    def error(self, what: str, a: Any, place: tuple[int, ...], pivot: int = 0) -> LinAlgError:
        number = int(np.ravel_multi_index(place, a.shape[:-2])) if place else 0
        return LinAlgError(MatrixCheck(self.name, a.shape, what).message(number, pivot))


SINGULAR = "is singular{pivot}: it has no inverse; tg.linalg.lstsq and pinv take it"
ENDLESS, _SLOW = (f"has no decomposition: {end}" for end in MatrixCheck.ENDS)
INDEFINITE = "is not positive definite{pivot}: it has no Cholesky factor"


def run(op: Any, *operands: Node, index: int = 0, **attrs: Any) -> Node:
    """Result `index` of a factorisation. A line of the user's shares it with no other line while it may still be an error of that line."""
    node = bind(op, operands, {**attrs, "index": index})
    here = LINE.location
    if here is None or node.loc is here or here.derived or node.value is not None:
        return node
    return node.twin(here)


def eye(n: int) -> Node:
    """Where the diagonal of an n x n matrix is."""
    return eq(iota((n, n), 0, dtypes.int32), iota((n, n), 1, dtypes.int32))  # type: ignore[no-any-return]


def row(x: Node) -> Node:
    """(*, n) as factors of a matrix's columns."""
    return reshape(x, (*x.shape[:-1], 1, x.shape[-1]))


def column(x: Node) -> Node:
    """(*, n) as factors of a matrix's rows."""
    return reshape(x, (*x.shape, 1))


def scalars(x: Node) -> Node:
    """(*) as factors of matrices."""
    return reshape(x, (*x.shape, 1, 1))


def h(x: Any) -> Any:
    """The adjoints of matrices."""
    return conj(t(x))


def hermitian_part(x: Any) -> Any:
    """(x + h(x)) / 2."""
    return (x + h(x)) * 0.5


def of_diagonal(x: Node, scale: Any) -> Any:
    """The diagonal of x, times numbers (*, n), as a diagonal matrix."""
    return where(eye(x.shape[-1]), x * row(scale), const(0, x.dtype))


def off_diagonal(x: Node, differences: Any) -> Any:
    """x / differences, 0 on the diagonal."""
    diagonal = eye(x.shape[-1])
    return where(diagonal, const(0, x.dtype), x / where(diagonal, const(1, x.dtype), differences))


@np.errstate(all="ignore")
def eliminated(a: Any) -> tuple[Any, Any, Any]:
    """LU, LAPACK's pivots and the row numbers of (*, m, n): column by column, for NumPy has no LU."""
    shape, (m, n) = a.shape, a.shape[-2:]
    a = a.reshape(prod(shape[:-2]), m, n).copy()
    every, k = np.arange(len(a)), min(m, n)
    pivots, order = np.empty((len(a), k), np.int32), np.tile(np.arange(m, dtype=np.int32), (len(a), 1))
    for j in range(k):
        p = j + np.argmax(np.abs(a[:, j:, j].real) + np.abs(a[:, j:, j].imag), 1)                   # LAPACK's size of a number
        pivots[:, j] = p + 1                                                        # LAPACK counts from 1
        a[every, p], a[:, j] = a[:, j].copy(), a[every, p]
        order[every, p], order[:, j] = order[:, j].copy(), order[every, p]
        pivot = a[:, j, j]
        a[:, j + 1:, j] /= np.where(pivot == 0, 1, pivot)[:, None]
        a[:, j + 1:, j + 1:] -= a[:, j + 1:, j, None] * a[:, j, None, j + 1:]
    return a.reshape(shape), pivots.reshape((*shape[:-2], k)), order.reshape(shape[:-1])
