"""What factorizations by blocks share: the kernel of one step, and the product of blocks that follows it. Start at `Blocked`, `update`.

A matrix is factorized in place, in the buffer of the result. A kernel is the same for all steps: where a step begins is an argument of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Access, Expression, Infix, Operand, place
from tracegrad.codegen.kernel.ir.expressions import Load as Read
from tracegrad.codegen.kernel.ir.kernel import FAULTS, Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Buffer
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.fused import Fused
from tracegrad.codegen.lower.workgroup import WorkGroup
from tracegrad.codegen.matmul import gpu, problem
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.program import Element, Load
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, int32
from tracegrad.support.plan import LargeMatrixCheck

Held = Node | Temp                          # what a buffer is bound to
FEWEST = 16                                 # rows and columns of a product: fewer would be another kernel


class Blocked(WorkGroup):
    """One kernel while it is written: of matrices (batch, n, n), by work-groups along dimension 0, each of a matrix along dimension 1."""

    def __init__(self, group: Group, context: Context, batch: int) -> None:
        super().__init__(group, context)
        self.batch = batch

    def held(self, what: Held, name: str, access: str = "inout") -> Buffer:
        """A buffer: of a result or scratch, or (const) of an operand."""
        if isinstance(what, Temp):
            return self.writer.buffer(what, name, what.dtype, access)
        ref = self.context.ref(what)
        return self.writer.buffer(ref, name, what.dtype, access)

    def matrix(self) -> Index:
        """The number of the group's matrix."""
        return self.number("part", self.batch, 1, "group").index if self.batch > 1 else ZERO

    def begin(self, start: int, n: int) -> Index:
        """Where the step begins, an argument."""
        return begin(self.writer, self.context, start, n)

    def row(self, name: str, at: Index) -> Index:
        """A row's, or column's, number as a variable: conditions on it are known to what reads or writes there."""
        return self.writer.indexed(name, at)

    @contextmanager
    def each(self, name: str, count: int, item: Var, items: int) -> Iterator[Index]:
        """A loop of all items together over `count` elements."""
        var = Var(name, count)
        with self.writer.loop(var, item.index, count, items):
            yield var.index

    def report(self, matrix: Index, pivot: Operand) -> None:
        """Note that a matrix is impossible, at `pivot` from 1 on: of a matrix the first is kept, of matrices the first."""
        w, most = self.writer, LargeMatrixCheck.PIVOTS
        faults, fault = w.buffer(FAULTS, "faults", FAULTS.dtype, "inout"), w.scalar(self.context.fault(self.node), "fault", int32)
        info = w.let("info", Infix("-", most, pivot), self.node)
        w.report("IMPOSSIBLE", (info, w.at((self.batch - matrix) * most), w.at(most)), faults, fault, self.node)

    def copied(self, out: Held) -> tuple[int, int]:
        """An element of the last operand, to the same place of the result: the items that are launched, and of a group."""
        x = self.node.operands[-1]
        at, launched, local = elements(self, x.aval.size)
        with self.where(*[(at, x.aval.size)] * (launched > x.aval.size)):
            self.put(self.held(out, "out"), at, self.ev.value(x, at))
        return launched, local

    def put(self, memory: Buffer, at: Index, value: Expression) -> None:
        """Write an element. (Which item writes which is not linear in their numbers: nobody proves that they are apart.)"""
        self.writer.store(place(memory, self.writer.at(at)), value, self.node)


def begin(w: Writer, context: Context, start: int, n: int) -> Index:
    """Where a step begins: an argument, so that the steps share a kernel."""
    number = w.scalar(context.constant(start, int32), "start", int32)
    return w.known("begin", max(n, 2), number).index


class Part:
    """Elements of a matrix (batch, rows, columns) of a product: `at` gives row and column for those of the product, and whether they are
    there, where the step's beginning is known."""

    def __init__(self, of: Held, rows: int, columns: int, at: Callable[[Index, Index, Index], tuple[Index, Index, Sequence[Expression]]]
                 ) -> None:
        self.of, self.rows, self.columns, self.at = of, rows, columns, at


def update(group: Group, context: Context, entry: str, batch: int, start: int, n: int, sizes: tuple[int, int, int], dtype: DType,
           a: Part, b: Part, c: Part) -> Kernel:
    """c[i, j] -= the sum over k of a[i, k] b[k, j], of about `sizes` (m, n, k): a product by the kernels of products.

    Blocks may go beyond the last row: their parts say what is there. Neighbours in memory are of one row of a, b and c.
    """
    m, columns, k = -(-sizes[0] // FEWEST) * FEWEST, -(-sizes[1] // FEWEST) * FEWEST, sizes[2]
    node = group.anchor

    def where(f: Fused, at: Sequence[Index]) -> tuple[Index, Sequence[Expression]]:
        raise AssertionError("the parts say where elements are")

    operand = node.operands[0]
    moved = dtype.itemsize * batch * (sizes[0] * sizes[1] * 2 + (sizes[0] + sizes[1]) * k)
    p = problem.Product(group, context, entry, batch, m, columns, k, dtype, problem.Operand(operand, where, False),
                        problem.Operand(operand, where, True), node, where, moved)
    layout = _covering(gpu.layout_of(p, True))
    f = Fused(group, context)
    first = begin(f.writer, context, start, n)
    def found(part: Part, access: str, b: Index, i: Index, j: Index) -> Element:
        w = f.writer
        memory = w.buffer(part.of if isinstance(part.of, Temp) else context.ref(part.of), "matrix", part.of.dtype, access)
        row, column, tests = part.at(first, i, j)
        at = Access(memory, (b * part.rows + bounded(row, 0, part.rows)) * part.columns + bounded(column, 0, part.columns))

        def write(value: Expression) -> None:
            w.store(at, Infix("-", Read(at, dtype), value), node)

        return Element(tuple(tests), lambda: w.declare("value", Read(at, dtype)), write)

    def access(part: Part) -> str:
        return "inout" if part.of == c.of else "const"

    ta, tb = layout.operands(dtype)
    of_a = Load(ta, lambda b_, i, t: found(a, access(a), b_, i, t))
    of_b = Load(tb, lambda b_, j, t: found(b, access(b), b_, t, j), True)
    made = gpu.multiplied(p, f, layout, of_a, of_b, lambda b_, i, j: found(c, "inout", b_, i, j))
    return replace(made, flops=2 * batch * sizes[0] * sizes[1] * sizes[2])


def _covering(layout: gpu.Layout) -> gpu.Layout:
    """The layout of as many rows and columns as its blocks have: then no kernel tests how many there are, which every step has fewer of."""
    rows, columns = (replace(axis, size=axis.covered) for axis in (layout.rows, layout.columns))
    return replace(layout, rows=rows, columns=columns)


def elements(o: Blocked, count: int) -> tuple[Index, int, int]:
    """The number of the item's element of `count`, the items that are launched, and of a group; within `o.where` if there are more."""
    local = max(1, min(o.context.target.group(256), count))
    launched = -(-count // local) * local
    return o.number("at", launched, 0, "global").index, launched, local
