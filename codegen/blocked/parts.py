"""What factorizations by blocks share: the kernel of a step, and the product of blocks that follows. Start at `Factorization`, `update`.

A matrix is factorized in place, in the buffer of the result. A kernel is the same for all steps: where a step begins is an argument of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tracegrad.codegen.graph.large_matrices import block_of
from tracegrad.codegen.kernel.index.index import Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Access, Array, Expression, Infix, Literal, Operand, Select, element, place
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
from tracegrad.support.plan import LargeMatrixCheck, Plain
from tracegrad.support.tuning import tuning

Held = Node | Temp                          # what a buffer is bound to
FEWEST = 16                                 # rows and columns of a product: fewer would be another kernel


class Blocked(WorkGroup):
    """One kernel while it is written: of matrices (batch, n, n), by work-groups along dimension 0, each of a matrix along dimension 1.

    width: columns, or rows, of a step; pitch: elements from one row of a block to the next in local memory.
    """

    def __init__(self, group: Group, context: Context, batch: int, width: int) -> None:
        super().__init__(group, context)
        self.batch, self.width, self.pitch = batch, width, width + 1

    def places(self, items: int, groups: int = 1, most: int = 0) -> tuple[Index, Index, Index]:
        """The number of the item in its group, of the group among those of a matrix, and of the matrix. most: groups of another step."""
        self.sizes, self.local = [groups * items, self.batch], [items, 1]
        w = self.writer
        return (w.number("item", items, 0, "local"), w.number("block", max(most, groups), 0, "group"),
                w.number("part", self.batch, 1, "group"))

    def held(self, what: Held, name: str, access: str = "inout") -> Buffer:
        """A buffer: of a result or scratch, or (const) of an operand."""
        if isinstance(what, Temp):
            return self.writer.buffer(what, name, what.dtype, access)
        ref = self.context.ref(what)
        return self.writer.buffer(ref, name, what.dtype, access)

    def begin(self, start: int, n: int) -> Index:
        """Where the step begins, an argument."""
        return begin(self.writer, self.context, start, n)

    def row(self, name: str, at: Index) -> Index:
        """A row's, or column's, number as a variable: conditions on it are known to what reads or writes there."""
        return self.writer.indexed(name, at)

    @contextmanager
    def each(self, name: str, count: int, item: Index) -> Iterator[Index]:
        """A loop of all items of a group together over `count` elements."""
        var = Var(name, count)
        with self.writer.loop(var, item, count, self.local[0]):
            yield var.index

    def triangle(self, tile: Array, item: Index, first: Index, n: int, found: Callable[[Index, Index], Expression], below: str = "<="
                 ) -> None:
        """tile: the lower triangle of the block that begins at row and column `first` of n; beyond the matrix ones on the diagonal."""
        w, width, dtype = self.writer, self.width, self.node.dtype
        with self.each("e", width * width, item) as e:
            i, j = self.row("row", first + e // width), self.row("column", first + e % width)
            same = Infix("==", w.at(e // width), w.at(e % width))
            value = w.let("value", Select(same, Literal(1.0, dtype), Literal(0.0, dtype)), changes=True)
            with self.where((i, n), (j, n)), self.only(Infix(below, j, i)):
                w.assign(value, found(i, j))
            w.store(place(tile, e // width * self.pitch + e % width), value)

    def substituted(self, tile: Array, lines: Array, at: Callable[[Index], Index], end: Callable[[Expression, Index], Expression]) -> None:
        """The item's line, whose number c is at(c) of `lines`, is solved for `tile`, a lower triangle. end: divides by its diagonal."""
        w, c, k = self.writer, Var("c", self.width), Var("k", self.width)
        with w.loop(c, 0, self.width):
            total = w.let("total", element(lines, at(c.index)), changes=True)
            with w.loop(k, 0, c, unrolled=4):
                w.update(total, "-", Infix("*", element(tile, c.index * self.pitch + k.index), element(lines, at(k.index))))
            w.store(place(lines, at(c.index)), end(total, c.index))

    def report(self, matrix: Index, pivot: Operand) -> None:
        """Note that a matrix is impossible, at `pivot` from 1 on: of a matrix the first is kept, of matrices the first."""
        w, most = self.writer, LargeMatrixCheck.PIVOTS
        faults, fault = w.buffer(FAULTS, "faults", FAULTS.dtype, "inout"), w.scalar(self.context.fault(self.node), "fault", int32)
        info = w.let("info", Infix("-", most, pivot), self.node)
        w.report("IMPOSSIBLE", (info, w.at((self.batch - matrix) * most), w.at(most)), faults, fault, self.node)

    def put(self, memory: Buffer, at: Index, value: Expression) -> None:
        """Write an element. (Which item writes which is not linear in their numbers: nobody proves that they are apart.)"""
        self.writer.store(place(memory, self.writer.at(at)), value, self.node)


def begin(w: Writer, context: Context, start: int, n: int) -> Index:
    """Where a step begins: an argument, so that the steps share a kernel."""
    number = w.scalar(context.constant(start, int32), "start", int32)
    return w.known("begin", max(n, 2), number).index


class Factorization:
    """The kernels of one, in `out`. width: columns, or rows, of a step; product: what the updates are called."""

    def __init__(self, group: Group, context: Context, out: Held, batch: int, product: str) -> None:
        self.group, self.context, self.out, self.batch, self.node = group, context, out, batch, group.anchor
        self.dtype, self.target = self.node.operands[0].dtype, context.target
        self.width = block_of(self.dtype, context.target)
        self.name, self.product = context.entry(group), context.fresh(product)

    def builder(self) -> Blocked:
        return Blocked(self.group, self.context, self.batch, self.width)

    def items(self, room: int, each: int, most: int = 1 << 30) -> int:
        """Items of a group, a power of two: less than twice `most`, of which each takes so much of the room in local memory."""
        items = 1
        while 2 * items <= min(tuning().factor_rows, self.target.max_work_group) and 2 * items * each <= room and items < most:
            items *= 2
        return items

    def elements(self, count: int, body: Callable[[Blocked, Index], None]) -> Kernel:
        """The kernel that does `body` for each of `count` elements."""
        o = self.builder()
        at, inside = o.elements(count, self.target.group(256), "at")
        with inside:
            body(o, at)
        return o.done(required=False, entry=self.context.another(self.name))

    def copied(self) -> Kernel:
        """The last operand, which becomes the result in place."""
        x = self.node.operands[-1]
        return self.elements(x.aval.size, lambda o, at: o.put(o.held(self.out, "out"), at, o.ev.value(x, at)))

    def step(self, o: Blocked, lines: int, moved: int, note: str) -> Kernel:
        """The kernel of a step, which works on so many lines of a matrix, of the step's width, and moves as many lines."""
        made = o.done(entry=self.context.another(self.name))
        made.flops, made.bytes = self.batch * lines * self.width ** 2, moved * self.batch * lines * self.width * self.dtype.itemsize
        made.note = note
        return made

    def updated(self, start: int, n: int, rows: int, columns: int, *parts: Part) -> Kernel:
        """A product of the step's width, see `update`: of what begins at `start` of n."""
        sizes, entry = (rows, columns, self.width), self.context.another(self.product)
        return update(self.group, self.context, entry, self.batch, start, n, sizes, self.dtype, *parts)


class Part(Plain):
    """Elements of a matrix (batch, rows, columns) of a product: those from `down` and `right` (None: its own first column) on, behind where
    the step begins. swapped: its rows are the product's columns; lower: its upper triangle is not there; turned: counted from the end.
    """

    of: Held
    rows: int
    columns: int
    down: int
    right: int | None
    swapped: bool = False
    lower: bool = False
    turned: Callable[[Index], Index] | None = None

    def at(self, first: Index, i: Index, j: Index) -> tuple[Index, Index, list[Expression]]:
        """Row and column of element i, j of the product, and whether they are there."""
        i, j = (j, i) if self.swapped else (i, j)
        row, column = first + self.down + i, j if self.right is None else first + self.right + j
        tests: list[Expression] = [Infix("<", row, self.rows), Infix("<", column, self.columns)]
        tests += [Infix("<=", column, row)] * self.lower
        if self.turned is not None:
            row, column = self.turned(row), column if self.right is None else self.turned(column)
        return row, column, tests


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
    p = problem.Product(group, context, entry, batch, k, dtype, problem.Operand("a", m, operand, where, False),
                        problem.Operand("b", columns, operand, where, True), node, where, moved)
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
