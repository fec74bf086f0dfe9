"""Factorisations of many small matrices, for kernels: the pass that takes them from the host. Start at `in_kernels`.

Which way an operation goes depends on its shapes and the device alone (`reason`), never on time. What is left is LAPACK's, a host step.
`lower/matrices/small_matrices.py` writes the kernels. Complex matrices are computed of their real and imaginary parts (`InParts`) by the
same algorithms. (Real systems twice as large, [[x, -y], [y, x]] for each number, take two to three times as long.) What is made of
decompositions is composed of them: matrix_functions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tracegrad.codegen.graph.matrix_functions import COMPOSED
from tracegrad.codegen.graph.rewrite import op
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.primitive import REGISTRY, Primitive, bind
from tracegrad.graph.substitution import replaced
from tracegrad.ops.linalg import eigen, factorizations, inverses, matrix_exponential
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import complex_of, real_of
from tracegrad.support.plan import MatrixCheck, Target
from tracegrad.support.tuning import tuning

KERNELS = (inverses.SOLVE, inverses.INV, inverses.TRIANGLE, inverses.INFO, inverses.DET, inverses.SLOGDET,
           factorizations.CHOLESKY, factorizations.LU_, factorizations.QR_, eigen.EIGH, eigen.EIG, eigen.SVD_,
           matrix_exponential.MATRIX_EXP, matrix_exponential.FRECHET, REGISTRY["geqrf"])


def in_kernels(graph: Graph, target: Target) -> Graph:
    """The graph with those factorisations that kernels do sooner than LAPACK as operations of theirs."""
    of: dict[Node, tuple[Node, Node]] = {}                   # the parts of an operand: the same ones for all results of a call

    def parts(a: Node) -> tuple[Node, Node]:
        if a not in of:
            of[a] = op("real", a), op("imag", a)
        return of[a]

    def call(fn: Any, *operands: Node, **attrs: Any) -> Node:
        if fn.aval(*(a.aval for a in operands), **attrs).dtype.kind == "c" or operands[0].dtype.kind == "c":
            return _of_parts(fn, operands, tuple(part for a in operands for part in (parts(a) if a.dtype.kind == "c" else (a,))), attrs)
        return bind(_in_kernel(fn), operands, attrs)

    def made(node: Node, *operands: Node) -> Node:
        if node.fn in COMPOSED:
            return COMPOSED[node.fn](call, node, *operands)  # type: ignore[no-any-return]
        return call(node.fn, *operands, **node.attrs)

    return replaced(graph, lambda node: _known(node) and not reason(node), made)


def _known(node: Node) -> bool:
    return node.fn in KERNELS or node.fn in COMPOSED


def reason(node: Node) -> str:
    """Why a factorisation is the host's, for `explain()`; "": it is not."""
    if not _known(node):
        return ""
    shapes = [(*node.shape[:-1], 1, node.shape[-1])] if node.fn is factorizations.ORDER else [o.shape for o in node.operands]
    batch, most = prod(shapes[0][:-2]), tuning().matrix_size
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
        loc = node.loc
        return MatrixCheck(self.fn.name, node.operands[0].shape, self.fn.impossible, str(loc), loc.who, loc.position)


@memoize(64)
def _in_kernel(fn: Primitive) -> Primitive:
    """The one `InKernel` of a factorisation: results of one call must have one operation."""
    return InKernel(fn)


class InParts(InKernel):
    """A factorisation of small complex matrices, of their real and imaginary parts; of a complex result, too, each part is one.

    parts: how many a matrix has: one where real matrices have complex results.
    """

    def __init__(self, fn: Any, parts: int) -> None:
        super().__init__(fn)
        self.parts, self.name = parts, f"{'complex_' * (parts == 2)}{fn.name}"  # type: ignore[misc]

    def whole(self, operands: Sequence[Aval], attrs: dict[str, Any]) -> tuple[Aval, ...]:
        """The results of the complex matrices whose parts these are."""
        if self.parts == 2:
            operands = [Aval(a.shape, complex_of(a.dtype)) for a in operands[::2]]
        return self.fn.avals(*operands, **attrs)  # type: ignore[no-any-return]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(Aval(a.shape, real_of(a.dtype)) for a in self.whole(operands, attrs) for _ in range(_count(a)))

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        if self.parts == 2:
            arrays = tuple(REGISTRY["complex"].numpy(x, y) for x, y in zip(arrays[::2], arrays[1::2], strict=True))
        found = self.fn.results(*arrays, **attrs)
        return [part for r in found for part in ((r.real, r.imag) if r.dtype.kind == "c" else (r,))]


def _count(a: Aval) -> int:
    return 2 if a.dtype.kind == "c" else 1


@memoize(64)
def _in_parts(fn: Primitive, parts: int) -> InParts:
    return InParts(fn, parts)


def _of_parts(of: Primitive, operands: tuple[Node, ...], parts: tuple[Node, ...], attrs: dict[str, Any]) -> Node:
    fn, result = _in_parts(of, len(parts) // len(operands)), of.aval(*(a.aval for a in operands), **attrs)
    attrs, index = {k: v for k, v in attrs.items() if k != "index"}, attrs["index"]
    first = sum(map(_count, fn.whole([p.aval for p in parts], attrs)[:index]))
    found = [bind(fn, parts, {**attrs, "index": first + k}) for k in range(_count(result))]
    return op("complex", *found) if len(found) == 2 else found[0]
