"""What the kernels over (rows, cols) compute, whatever device they are for. Start at `RowProgram`.

A group with reductions makes one pass over a row for each level of them: softmax is a pass for the maximum, one for the sum, one for the
result. A pass (`Pass`) loads, maps, reduces along the row, and stores. How the loop over a row is written, and how the accumulators of a
row are put together, is the device's: rows_cpu.py, rows_gpu.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tracegrad.codegen.kernel.index.facts import picked
from tracegrad.codegen.kernel.index.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir.expressions import Cast, Expression, Infix, Literal, Load, Select, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Access, Array, Local
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows.shape import Shape
from tracegrad.codegen.lower.serial import KernelBuilder
from tracegrad.codegen.schedule.grouping import Granularity, Group, Rows, is_reduction
from tracegrad.errors import CompilerBug
from tracegrad.graph.ir import Node
from tracegrad.support.plan import Plain


class Pass(Plain):
    """One pass over a row. Of the group's nodes: reductions, along the row; columns, sums to which the row is added; results, stored
    element by element; picks, sums in which one term can differ from 0, which need no loop.
    """

    number: int
    reductions: tuple[Node, ...]
    columns: tuple[Node, ...]
    results: tuple[Node, ...]
    picks: tuple[Node, ...]

    @property
    def roots(self) -> list[Node]:
        """What is done with each element, beside reductions."""
        return [*self.columns, *self.results]

    @property
    def loops(self) -> bool:
        return bool(self.reductions or self.columns or self.results)


def levels(group: Group, context: Context) -> tuple[dict[Node, int], list[Node]]:
    """The pass in which each root of a group is computed, and the reductions that have to be."""
    level: dict[Node, int] = {}
    deps = {s: [d for d in context.schedule.deps[s] if context.schedule.group_of.get(d) is group] for s in group.roots}
    for root in group.roots:
        level[root] = max((level[d] + (group.place[d] is Granularity.ROW and is_reduction(d)) for d in deps[root]), default=0)
    needed = set(group.stored)
    for root in reversed(group.roots):
        if root in needed:
            needed.update(deps[root])
    last = max((level[s] for s in needed), default=0)
    for root in group.stored:        # an in-place result is written when nothing reads the old value any more
        if root in context.alias and group.place[root] is Granularity.ELEMENT:
            level[root] = last
    return level, [s for s in group.roots if s in needed and is_reduction(s)]


class RowProgram:
    """The kernel of a group, while it is written: its passes, and the element at hand in them. A device's class writes the loops."""

    builder: type[KernelBuilder] = KernelBuilder

    def __init__(self, group: Group, context: Context, shape: Shape) -> None:
        self.group, self.context, self.shape, self.o = group, context, shape, self.builder(group, context)
        self.writer, self.ev = self.o.writer, self.o.ev
        self.level, found = levels(group, context)
        self.picks = [r for r in found if self.is_pick(r)]
        self.columns = group.results(Granularity.CHUNK) if isinstance(group.kind, Rows) else []
        self.reductions = [r for r in found if r not in self.picks and r not in self.columns]
        self.passes = self._passes()
        self.kept = self.costly()
        self.arrays: dict[Node, Array] = {}
        self.row = self.chunk = ZERO
        self.at: Index | None = None                         # the element at hand, in a pass
        self.ev.given = self.kept_value

    def finished(self) -> Kernel:
        """The kernel."""
        made = self.kernel()
        del self.ev.given                                    # refers to all of this: without it, all goes now
        return made

    def _passes(self) -> list[Pass]:
        results = self.group.results(Granularity.ELEMENT)

        def of(nodes: list[Node], number: int) -> tuple[Node, ...]:
            return tuple([x for x in nodes if self.level[x] == number])

        numbers = sorted({self.level[x] for x in (*self.reductions, *self.picks, *self.columns, *results)})
        return [Pass(n, *(of(nodes, n) for nodes in (self.reductions, self.columns, results, self.picks))) for n in numbers]

    def over_row(self, room: int) -> None:
        """All passes over a row, and then the results that are one number a row. room: elements of it that an item may have to keep."""
        w = self.writer
        self.depth = w.depth
        for node in self.kept:
            self.arrays[node] = w.array(w.base(node) + "_row", register_type(node.dtype), room)
        for step in self.passes:
            self.number = step.number
            if step.loops:
                self.loops(step)
            for r in step.picks:
                self.pick(r)
        if roots := self.group.results(Granularity.ROW):
            with self.once():
                self.context.store(self.ev, self.group, roots, self.row)

    # -- what a device's class says

    def kernel(self) -> Kernel:
        """The kernel, written."""
        raise NotImplementedError

    def loops(self, step: Pass) -> None:
        """The loop of a pass, with `body` for each element, and what comes of its reductions (`reduced`)."""
        raise NotImplementedError

    def costly(self) -> dict[Node, int]:
        """What passes over a row keep for later ones, and the first pass that has it."""
        raise NotImplementedError

    def add_to_columns(self, at: Index, columns: list[Node]) -> None:
        """Combine the element(s) at hand with what their columns have so far."""
        raise NotImplementedError

    def place_of(self, node: Node, at: Index) -> Access:
        """Where that element of what is kept lies."""
        raise NotImplementedError

    def once(self) -> AbstractContextManager[object]:
        """A block in which what is one number a row is stored."""
        return nullcontext()

    # -- what one pass leaves for the next

    def needed_again(self, worth: Callable[[Node], bool]) -> dict[Node, int]:
        """Of the elementwise nodes and loads that are `worth` it those that several passes need, and the first pass that does."""
        first: dict[Node, int] = {}
        kept: dict[Node, int] = {}
        for step in self.passes:
            seen: set[Node] = set()
            todo = [r.operands[0] for r in (*step.reductions, *step.columns)]
            for root in step.results:
                todo += root.operands if root.fn.family == "pair" else (root,)
            while todo:
                node = todo.pop()
                if node in seen or node in kept or node.aval.size != self.group.size or node in self.context.scalars:
                    continue
                seen.add(node)
                stored = self.ev.storage(node) is not None
                if not stored and is_reduction(node):
                    continue
                if worth(node) and first.setdefault(node, step.number) < step.number:
                    kept[node] = first[node]
                elif not stored and (node.fn.family == "elementwise" or node.fn.name == "reshape"):
                    todo += node.operands                    # others read it at other elements than these
        return kept

    def kept_value(self, node: Node, flat: Index) -> Expression | None:
        """What an earlier pass kept of the element at hand; any other (of what is flipped, of another row) is computed again."""
        if node not in self.kept or self.kept[node] >= self.number or self.at is None or flat - self.at != 0:
            return None
        return self.writer.declare(self.writer.base(node), Load(self.place_of(node, flat), node.dtype, self.ev.width))

    def keep(self, at: Index) -> None:
        """Store what later passes need of the element(s) at hand."""
        for node, number in self.kept.items():
            value = self.ev.find(node, at) if number == self.number else None
            if value is not None:
                self.writer.store(self.place_of(node, at), self.ev.vector(value) if self.ev.width > 1 else value)

    # -- an element, and a row

    def body(self, at: Index, reductions: list[Node], roots: list[Node], accumulators: dict[Node, Local]) -> None:
        """What is done at an element, or at as many as a vector has lanes."""
        self.at = at
        for r in reductions:
            self.ev.accumulate(r, accumulators[r], self.ev.value(r.operands[0], at))
        if columns := [x for x in roots if x in self.columns]:
            self.add_to_columns(at, columns)
        self.context.store(self.ev, self.group, [x for x in roots if x not in self.columns], at)
        self.keep(at)
        self.at = None

    def reduced(self, r: Node, value: Local) -> None:
        """A row's value, or a chunk's, is there."""
        if self.group.place[r] is Granularity.CHUNK:
            chunks = r.aval.size // self.shape.rows
            with self.once():
                self.ev.store(self.context.output(self.group, r), r, self.row * chunks + self.chunk, value)
        else:
            self.ev.put(r, self.row, value)

    def is_pick(self, r: Node) -> bool:
        s = self.shape
        if s.length is not None or r.fn.family != "reduction":
            return False
        return picked(r, Var("row", s.rows).index, Var("col", s.row_size).index) is not None

    def pick(self, r: Node) -> None:
        """The sum over a row in which one term can differ from 0: that term, found by its column (a class by its label)."""
        s, w, ev = self.shape, self.writer, self.ev
        label = ev.value(*self.term(r, Var("col", s.row_size))[1])
        test = Infix("&&", Infix(">=", label, whole(0)), Infix("<", label, whole(s.row_size)))
        inside = w.declare("inside", test, depth=self.depth)
        at = w.computed("at", s.row_size, Select(inside, Cast(label, w.index_dtype), whole(0)), depth=self.depth)
        x, zero = ev.value(*self.term(r, at)[0]), Literal(0, r.dtype)
        found = Select(inside, Infix("+", x, zero), zero)    # a sum: -0 becomes 0
        ev.put(r, self.row, w.declare(w.base(r), found, r, self.depth))

    def term(self, r: Node, col: Var) -> tuple[tuple[Node, Index], tuple[Node, Index]]:
        """The only term of `r`, in column `col`, and the label it is found by."""
        found = picked(r, self.row, col.index)
        if found is None:
            raise CompilerBug(f"codegen: {r!r}, computed at {r.loc}, is no longer a sum that picks one element")
        return found


def called(r: Node, w: Writer) -> str:
    """What an accumulator is called: as a part of a reduction, after that."""
    return w.base(r) if r.fn.family == "reduction" else w.namer(r) or r.attrs["op"].name


def r_identity(r: Node) -> object:
    fn = r.attrs.get("op", r.fn)
    return fn.identity(r.dtype)
