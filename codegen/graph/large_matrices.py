"""Factorizations of large matrices as kernels, for devices with local memory: the pass that takes them from the host. Start at `in_blocks`.

`codegen/blocked` writes the kernels: some columns by work-groups in local memory, then what is right of them by products of blocks.
Systems, inverses and determinants are composed of LU and triangular systems. Complex matrices, QR, eigenvalues and singular values stay
the host's; what is small is `small_matrices.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tracegrad.codegen.graph.rewrite import op
from tracegrad.codegen.graph.small_matrices import InKernel
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import Primitive, bind, cast, const, iota
from tracegrad.graph.substitution import replaced
from tracegrad.ops.arrays.indexing import take_rows
from tracegrad.ops.linalg import factorizations, inverses
from tracegrad.ops.linalg.lapack import eye
from tracegrad.ops.primitives.elementwise import ne, where
from tracegrad.ops.primitives.movement import expand, reshape
from tracegrad.ops.primitives.reduction import total
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import DType, dtype_kind, int32
from tracegrad.support.plan import LargeMatrixCheck, Target
from tracegrad.support.tuning import tuning


def in_blocks(graph: Graph, target: Target) -> Graph:
    """The graph with those factorizations that kernels do block by block as operations of theirs."""
    return replaced(graph, lambda node: target.local_memory > 0 and node.fn in _COMPOSED and _is_worth_it(node, target),
                    lambda node, *operands: _COMPOSED[node.fn](node, *operands))


def _is_worth_it(node: Node, target: Target) -> bool:
    """Whether the matrices are real, larger than those of small_matrices.py, and not too many or too large for what kernels note."""
    x = node.operands[0]
    if dtype_kind(x.dtype) != "f" or not node.aval.size or not all(o.aval.size for o in node.operands) or block_of(x.dtype, target) < 2:
        return False
    size, batch = max(x.shape[-2:]), prod(x.shape[:-2])
    enough = tuning().matrix_size if not target.host_memory else max(tuning().matrix_size, tuning().factor_shared)
    if size <= enough or size >= LargeMatrixCheck.PIVOTS - 1 or batch >= LargeMatrixCheck.MOST:
        return False
    return node.fn in (factorizations.CHOLESKY, inverses.TRIANGLE) or x.shape[-2] <= ROWS * items_of(target)


ROWS = 32                                    # of an item that eliminates a block's columns: it has a bit for each


def items_of(target: Target) -> int:
    """Items of the work-group that eliminates a block's columns: a power of two."""
    return 1 << (min(tuning().factor_items, target.max_work_group).bit_length() - 1)


def block_of(dtype: DType, target: Target) -> int:
    """Columns of a step: blocks of as many rows take a third of a work-group's local memory at most."""
    width = tuning().factor_block
    while width > 1 and 3 * width * (width + 1) * dtype.itemsize > target.local_memory:
        width //= 2
    return width


class InBlocks(InKernel):
    """A factorization of large matrices, by kernels, for `call`: made by `_in_blocks`. reporting: whether they report impossible ones."""

    family = "blocked"

    def __init__(self, fn: Any, call: Any) -> None:
        super().__init__(fn)
        self.call, self.reporting = call, bool(call.impossible)

    def check(self, node: Node) -> LargeMatrixCheck:
        """What its kernels report of a node."""
        loc = node.loc
        return LargeMatrixCheck(self.call.name, node.operands[0].shape, self.call.impossible, str(loc), loc.who, loc.position)


@memoize(64)
def _in_blocks(fn: Primitive, call: Primitive) -> Primitive:
    """The one `InBlocks` of a factorization: results of one call must have one operation."""
    return InBlocks(fn, call)


def _run(fn: Any, *operands: Node, call: Any = None, **attrs: Any) -> Node:
    return bind(_in_blocks(fn, call or fn), operands, attrs)


def _as_it_is(node: Node, *operands: Node) -> Node:
    return _run(node.fn, *operands, **node.attrs)


def _solved(node: Node, a: Node, b: Node) -> Node:
    """A X = B by L and U; a zero pivot is the error of the call."""
    packed, order = (_run(factorizations.LU_, a, call=node.fn, index=k) for k in (0, 2))
    *batch, n, columns = b.shape
    if batch:
        order = order + reshape(iota((prod(batch), 1), 0, int32), (*batch, 1)) * n
    rows = reshape(take_rows(reshape(b, (prod(batch) * n, columns)), order), b.shape)
    y = _run(inverses.TRIANGLE, packed, rows, upper=False, unit=True, index=0)
    return _run(inverses.TRIANGLE, packed, y, call=factorizations.LU_, upper=True, unit=False, index=0)


def _inverse(node: Node, a: Node) -> Node:
    return _solved(node, a, expand(cast(eye(a.shape[-1]), a.dtype), a.shape))


def _pivots(a: Node) -> tuple[Node, Node]:
    """The diagonal of U (*, n), and the sign (*) of the exchanges of rows."""
    packed, pivots = (_run(factorizations.LU_, a, index=k) for k in (0, 1))
    n, zero = a.shape[-1], const(0, a.dtype)
    diagonal = total(where(eye(n), packed, zero), (len(a.shape) - 1,))
    moved = ne(pivots, iota(pivots.shape, len(pivots.shape) - 1, int32) + 1)
    return diagonal, _product(where(moved, const(-1, a.dtype), const(1, a.dtype)))


def _product(x: Node) -> Node:
    """Of the last dimension."""
    return op("prod", x, dim=(len(x.shape) - 1,))


def _determinant(node: Node, a: Node) -> Node:
    diagonal, sign = _pivots(a)
    return _product(diagonal) * sign  # type: ignore[no-any-return]


def _log_determinant(node: Node, a: Node) -> Node:
    diagonal, sign = _pivots(a)
    if node.attrs["index"]:
        return total(op("log", op("abs", diagonal)), (len(diagonal.shape) - 1,))
    return _product(op("sign", diagonal)) * sign  # type: ignore[no-any-return]


_COMPOSED: dict[Any, Callable[..., Node]] = {
    factorizations.CHOLESKY: _as_it_is, inverses.TRIANGLE: _as_it_is, factorizations.LU_: _as_it_is, inverses.SOLVE: _solved,
    inverses.INV: _inverse, inverses.DET: _determinant, inverses.SLOGDET: _log_determinant,
}
