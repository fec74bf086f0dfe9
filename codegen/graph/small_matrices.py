"""Factorisations of many small matrices, for kernels: the pass that takes them from the host. Start at `in_kernels`.

Which way an operation goes depends on its shapes and the device alone (`reason`), never on time. What is left is LAPACK's, a host step.
`lower/small_matrices.py` writes the kernels. Those are of real numbers: complex systems and inverses are those of real matrices twice as
large (`_of_reals`), complex determinants and factors are computed of the parts (`InParts`, lower/complex_matrices.py).
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from tracegrad.codegen.graph.rewrite import at, op
from tracegrad.codegen.tuning import tuning
from tracegrad.dtypes import complex_of, real_of
from tracegrad.function import Primitive, Shared, bind
from tracegrad.ir import Aval, Graph, Node
from tracegrad.ops import factorizations as lapack
from tracegrad.ops.movement import concat, narrow, reshape
from tracegrad.plan import MatrixCheck, Target

KERNELS = (lapack.SOLVE, lapack.INV, lapack.TRIANGLE, lapack.DET, lapack.SLOGDET, lapack.CHOLESKY, lapack.LU_, lapack.QR_, lapack.INFO,
           lapack.EIGH, lapack.SVD_)
OF_REALS = (lapack.SOLVE, lapack.INV)
OF_PARTS = (lapack.DET, lapack.SLOGDET, lapack.CHOLESKY, lapack.LU_, lapack.QR_, lapack.INFO, lapack.EIGH, lapack.SVD_)


def in_kernels(graph: Graph, target: Target) -> Graph:
    """The graph with those factorisations that kernels do sooner than LAPACK as operations of theirs."""
    if not any(node.fn in KERNELS for node in graph):
        return graph

    of: dict[Node, tuple[Node, Node]] = {}                   # the parts of an operand: the same ones for all results of a call

    def parts(a: Node) -> tuple[Node, Node]:
        if a not in of:
            of[a] = op("real", a), op("imag", a)
        return of[a]

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        small = node.fn in KERNELS and not reason(node)
        if not small and all(a is b for a, b in zip(operands, node.operands, strict=True)):
            return node
        with at(node.loc):
            if small and operands[0].dtype.kind == "c":
                return _of_reals(node.fn, operands, node.attrs) if node.fn in OF_REALS else _of_parts(node, parts(operands[0]))
            return bind(_in_kernel(node.fn) if small else node.fn, operands, node.attrs)

    return graph.rebuilt(replace)


def reason(node: Node) -> str:
    """Why a factorisation is the host's, for `explain()`; "": it is not."""
    if node.fn not in KERNELS:
        return ""
    shapes = [o.shape for o in node.operands]
    batch, most = prod(shapes[0][:-2]), tuning().matrix_size
    if node.operands[0].dtype.kind == "c":
        if node.fn not in OF_REALS + OF_PARTS:
            return "LAPACK's: complex"
        most //= 2 if node.fn in OF_REALS else 1
    if max(size for shape in shapes for size in shape[-2:]) > most:
        return f"LAPACK's: larger than {most} x {most}"
    if not node.aval.size or not all(o.aval.size for o in node.operands) or batch >= MatrixCheck.MOST:
        return "LAPACK's: none or too many matrices"
    return ""


class InKernel(Shared):
    """A factorisation of small matrices, many at a time. Made by `_in_kernel`. parts: 2 if they are in complex ones' place."""

    family = "small_matrices"

    def __init__(self, fn: Any, parts: int) -> None:
        super().__init__()
        self.fn, self.parts = fn, parts
        self.name = fn.name  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return self.fn.avals(*operands, **attrs)  # type: ignore[no-any-return]

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        return self.fn.results(*arrays, **attrs)  # type: ignore[no-any-return]

    def check(self, node: Node) -> MatrixCheck:
        """What its kernel reports of a node."""
        loc = node.loc
        return MatrixCheck(self.fn.name, node.operands[0].shape, self.fn.impossible, str(loc), loc.who, loc.position, self.parts)


@lru_cache(maxsize=64)
def _in_kernel(fn: Primitive, parts: int = 1) -> Primitive:
    """The one `InKernel` of a factorisation: results of one call must have one operation."""
    return InKernel(fn, parts)


class InParts(InKernel):
    """A factorisation of small complex matrices, of their real and imaginary parts; of a complex result, too, each part is one."""

    def __init__(self, fn: Any) -> None:
        super().__init__(fn, 1)
        self.name = f"complex_{fn.name}"  # type: ignore[misc]

    def whole(self, first: Aval, attrs: dict[str, Any]) -> tuple[Aval, ...]:
        """The results of the complex matrices whose parts are as `first`."""
        return self.fn.avals(Aval(first.shape, complex_of(first.dtype)), **attrs)  # type: ignore[no-any-return]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(Aval(a.shape, real_of(a.dtype)) for a in self.whole(operands[0], attrs) for _ in range(_count(a)))

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        x, y = arrays
        found = self.fn.results((x + 1j * y).astype(complex_of(x.dtype)), **attrs)
        return [part for r in found for part in ((r.real, r.imag) if r.dtype.kind == "c" else (r,))]


def _count(a: Aval) -> int:
    return 2 if a.dtype.kind == "c" else 1


@lru_cache(maxsize=64)
def _in_parts(fn: Primitive) -> InParts:
    return InParts(fn)


def _of_parts(node: Node, parts: tuple[Node, Node]) -> Node:
    attrs = {k: v for k, v in node.attrs.items() if k != "index"}
    fn, index = _in_parts(node.fn), node.attrs["index"]
    first = sum(map(_count, fn.whole(parts[0].aval, attrs)[:index]))
    found = [bind(fn, parts, {**attrs, "index": first + k}) for k in range(_count(node.aval))]
    return op("complex", *found) if len(found) == 2 else found[0]


def _of_reals(fn: Primitive, operands: tuple[Node, ...], attrs: dict[str, Any]) -> Node:
    """A factorisation of complex matrices by that of real ones: every number x + iy as [[x, -y], [y, x]].

    Sums, products and inverses of these are those of the complex numbers. A column that depends on those before it is two of them, so
    pivots count by twos. The time is 0.2 to 0.8 of a host step's. (Cholesky factors would be as simple, but take twice the time that they
    take of the parts; determinants, QR and eigenvectors are not the complex ones'.)
    """
    first, *others = operands
    result = bind(_in_kernel(fn, 2), (_reals(first), *map(_column, others)), attrs)
    *batch, m, n = (others or operands)[0].shape
    each = reshape(result, (*batch, m, 2, n, 1 if others else 2))              # the parts are one above the other
    d = len(batch)
    re, im = (reshape(narrow(narrow(each, d + 1, k, 1), d + 3, 0, 1), (*batch, m, n)) for k in (0, 1))
    return op("complex", re, im)


def _reals(a: Node) -> Node:
    """(*, m, n) complex numbers as (*, 2 m, 2 n) real ones."""
    *batch, m, n = a.shape
    x, y = (reshape(op(part, a), (*batch, m, 1, n, 1)) for part in ("real", "imag"))
    d = len(batch)
    rows = concat([concat([x, -y], d + 3), concat([y, x], d + 3)], d + 1)
    return reshape(rows, (*batch, 2 * m, 2 * n))


def _column(b: Node) -> Node:
    """(*, m, n) complex numbers as (*, 2 m, n) real ones: each as [x, y]."""
    *batch, m, n = b.shape
    x, y = (reshape(op(part, b), (*batch, m, 1, n)) for part in ("real", "imag"))
    return reshape(concat([x, y], len(batch) + 1), (*batch, 2 * m, n))
