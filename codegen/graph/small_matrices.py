"""Factorisations of many small matrices, for kernels: the pass that takes them from the host. Start at `in_kernels`.

Which way an operation goes depends on its shapes and the device alone (`reason`), never on time. What is left is LAPACK's, a host step.
`lower/small_matrices.py` writes the kernels.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from tracegrad.codegen.graph.rewrite import at
from tracegrad.codegen.tuning import tuning
from tracegrad.function import Primitive, Shared, bind
from tracegrad.ir import Aval, Graph, Node
from tracegrad.ops import factorizations as lapack
from tracegrad.plan import MatrixCheck, Target

KERNELS = (lapack.SOLVE, lapack.INV, lapack.TRIANGLE, lapack.DET, lapack.SLOGDET, lapack.CHOLESKY, lapack.LU_, lapack.QR_, lapack.INFO,
           lapack.EIGH, lapack.SVD_)


def in_kernels(graph: Graph, target: Target) -> Graph:
    """The graph with those factorisations that kernels do sooner than LAPACK as operations of theirs."""
    if not any(node.fn in KERNELS for node in graph):
        return graph

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        small = node.fn in KERNELS and not reason(node)
        if not small and all(a is b for a, b in zip(operands, node.operands, strict=True)):
            return node
        with at(node.loc):
            return bind(_in_kernel(node.fn) if small else node.fn, operands, node.attrs)

    return graph.rebuilt(replace)


def reason(node: Node) -> str:
    """Why a factorisation is the host's, for `explain()`; "": it is not."""
    if node.fn not in KERNELS:
        return ""
    shapes = [o.shape for o in node.operands]
    batch, most = prod(shapes[0][:-2]), tuning().matrix_size
    if node.operands[0].dtype.kind == "c":
        return "LAPACK's: complex"
    if max(size for shape in shapes for size in shape[-2:]) > most:
        return f"LAPACK's: larger than {most} x {most}"
    if not node.aval.size or not all(o.aval.size for o in node.operands) or batch >= MatrixCheck.MOST:
        return "LAPACK's: none or too many matrices"
    return ""


class InKernel(Shared):
    """A factorisation of small matrices, many at a time. Made by `_in_kernel`."""

    family = "small_matrices"

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self.fn = fn
        self.name = fn.name  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return self.fn.avals(*operands, **attrs)  # type: ignore[no-any-return]

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        return self.fn.results(*arrays, **attrs)  # type: ignore[no-any-return]

    def check(self, node: Node) -> MatrixCheck:
        """What its kernel reports of a node."""
        return MatrixCheck(self.name, node.operands[0].shape, self.fn.impossible, str(node.loc), node.loc.who, node.loc.position)


@lru_cache(maxsize=64)
def _in_kernel(fn: Primitive) -> Primitive:
    """The one `InKernel` of a factorisation: results of one call must have one operation."""
    return InKernel(fn)
