"""Factorizations of large matrices as kernels, for devices with local memory: the pass that takes them from the host. Start at `in_blocks`.

`codegen/blocked` writes the kernels: some columns by work-groups in local memory, then what is right of them by products of blocks. Systems,
inverses and determinants are composed of LU and triangular systems. Complex matrices, QR, eigenvalues and singular values stay the
host's, and so does what is small (`small_matrices.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tracegrad.codegen.graph.rewrite import at
from tracegrad.codegen.graph.small_matrices import InKernel
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import Primitive, bind
from tracegrad.ops.linalg import factorizations, inverses
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.plan import LargeMatrixCheck, Target
from tracegrad.support.tuning import tuning


def in_blocks(graph: Graph, target: Target) -> Graph:
    """The graph with those factorizations that kernels do block by block as operations of theirs."""
    if not target.local_memory or not any(node.fn in _COMPOSED for node in graph):
        return graph

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        with at(node.loc):
            if node.fn in _COMPOSED and _is_worth_it(node, target):
                return _COMPOSED[node.fn](node, *operands)
            same = all(a is b for a, b in zip(operands, node.operands, strict=True))
            return node if same else bind(node.fn, operands, node.attrs)

    return graph.rebuilt(replace)


def _is_worth_it(node: Node, target: Target) -> bool:
    """Whether the matrices are real, larger than those of small_matrices.py, and not too many or too large for a check to tell which."""
    x = node.operands[0]
    if dtype_kind(x.dtype) != "f" or not node.aval.size or not all(o.aval.size for o in node.operands):
        return False
    size, batch = max(x.shape[-2:]), prod(x.shape[:-2])
    enough = tuning().matrix_size if not target.host_memory else tuning().factor_shared
    return size > enough and size < LargeMatrixCheck.PIVOTS - 1 and batch < LargeMatrixCheck.MOST


class InBlocks(InKernel):
    """A factorization of large matrices. Made by `_in_blocks`."""

    family = "blocked"

    def check(self, node: Node) -> LargeMatrixCheck:
        """What its kernels report of a node."""
        loc = node.loc
        return LargeMatrixCheck(self.fn.name, node.operands[0].shape, self.fn.impossible, str(loc), loc.who, loc.position)


@memoize(64)
def _in_blocks(fn: Primitive) -> Primitive:
    """The one `InBlocks` of a factorization: results of one call must have one operation."""
    return InBlocks(fn)


def _as_it_is(node: Node, *operands: Node) -> Node:
    return bind(_in_blocks(node.fn), operands, node.attrs)


_COMPOSED: dict[Any, Callable[..., Node]] = {factorizations.CHOLESKY: _as_it_is, inverses.TRIANGLE: _as_it_is}
