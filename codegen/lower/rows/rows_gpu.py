"""The same groups on devices with many small work-items: one element each, rows by work-groups. Start at `loops`, `columns`.

A row is done by 2 to 256 work-items side by side, which stride along it and then add up in local memory, always in the same order; a
work-group does as many rows as it has room for. Where there is no real local memory an item does a row by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Literal, Load, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Access, Array, Declare, Local, bound
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows.row_program import Pass, RowProgram, called, r_identity
from tracegrad.codegen.lower.rows.rows_cpu import RowKernel
from tracegrad.codegen.lower.rows.shape import Shape
from tracegrad.codegen.lower.rows.tiles_gpu import turned
from tracegrad.codegen.lower.sums import strided
from tracegrad.codegen.lower.workgroup import WorkGroup, room
from tracegrad.codegen.schedule.grouping import Chunks, Columns, Flat, Granularity, Group, Rows, cost
from tracegrad.graph.ir import Node
from tracegrad.support.tuning import tuning


def loops(group: Group, context: Context) -> list[Kernel]:
    """Elementwise groups, row reductions, and chunks of them."""
    kind = group.kind
    if isinstance(kind, Flat):
        return [turned(group, context) or _elementwise(group, context)]
    assert isinstance(kind, (Rows, Chunks))
    shape = Shape(kind.rows, (kind.cols,), 1, 1, kind.length if isinstance(kind, Chunks) else None)
    if not context.target.local_memory or room(context) == 1:
        return [RowKernel(group, context, shape).finished()]
    return [Team(group, context, shape).finished()]


def scratch(reductions: Iterable[Node]) -> int:
    """Bytes of an item in local memory, where there is an array of each type with an element for each."""
    return sum({register_type(r.dtype): max(4, register_dtype(r.dtype).itemsize) for r in reductions}.values())


def up(n: int) -> int:
    """The power of two that is not less."""
    return 1 << (n - 1).bit_length()


def _elementwise(group: Group, context: Context) -> Kernel:
    o, width = WorkGroup(group, context), _width(group, context)
    w, ev = o.writer, o.ev
    i, inside = o.elements(group.size // width, name="item" if width > 1 else "i")
    with inside:
        if width > 1:
            first = Var("i", group.size, multiple=width, aligned=True)
            w.add(Declare(first, f"const {w.index}", w.at(i * width), bound=bound(i * width)))
            w.bind(first)
            i, ev.lane, ev.width = first.index, first, width
        context.store(ev, group, group.stored, i)
    return o.done(required=False)


def _width(group: Group, context: Context) -> int:
    """Elements of a work-item: up to four side by side, 16 bytes of each array, if there are items enough for all cores and all that is
    read lies as the results do (gathered rows, biases, slices, permutations but of the last dimension), or is the same for the four.

    Then every vector begins at a multiple of its size, which a driver would not know of `vload4`: buffers of the device's own memory do,
    arrays of the host's may begin anywhere.
    """
    if context.target.host_memory or group.into or any(s.fn.family == "pair" or s.aval.size != group.size for s in group.stored):
        return 1
    most = min(4, 16 // max(s.dtype.itemsize for s in group.stored))
    for width in (w for w in (4, 2) if w <= most):
        if group.size % width == 0 and group.size // width >= tuning().wide_items * context.target.items and _lies(group, context, width):
            return width
    return 1


def _lies(group: Group, context: Context, width: int) -> bool:
    """Whether the kernel reads nothing but whole vectors at multiples of their size, and what is the same in all lanes."""
    w = context.writer(group)
    ev = context.evaluator(group, w)
    first = Var("i", group.size, multiple=width, aligned=True)
    w.bind(first, 0)
    ev.lane, ev.width = first, width
    for root in group.stored:
        ev.value(root, first.index)
    whole = all(x.access.aligned and x.stride == 1 and x.places is None and x.lanes * x.dtype.itemsize <= 16 for x in ev.vectors)
    return whole and not ev.counts_lanes()


class Team(RowProgram):
    """A kernel in which work-items side by side do a row, or a chunk of one; of short rows a work-group does several.

    What several passes over a row need stays in registers, where a work-item's share of the row is short enough.
    """

    builder = WorkGroup
    o: WorkGroup

    @property
    def room(self) -> int:
        """Work-items of a group."""
        return room(self.context, 2 * scratch(self.reductions))

    def lanes(self) -> int:
        """Work-items of a row: some elements each, but enough of them all together."""
        s, most = self.shape, self.room
        cols = s.length or s.cols[0]
        rows = s.rows * (-(-s.cols[0] // s.length) if s.length else 1)
        lanes = min(up(cols), most, 32)
        while 2 * lanes <= min(most, up(cols)) and (cols > 8 * lanes or rows * lanes < self.context.target.items):
            lanes *= 2
        return lanes

    def kernel(self) -> Kernel:
        s, w = self.shape, self.writer
        self.size = self.lanes()
        chunks = 1 if s.length is None else -(-s.cols[0] // s.length)
        self.lines = min(self.room // self.size, up(s.rows))       # rows of a group
        if self.picks and s.rows % self.lines:                                   # labels of rows that are not there
            self.lines = 1
        self.scratch: dict[str, list[Array]] = {}
        self.turn: dict[str, int] = {}
        for r in self.reductions:
            self.turn[register_type(r.dtype)] = self.turn.get(register_type(r.dtype), -1) + 1
        for type_, last in self.turn.items():
            # One level: two arrays by turns, so that none is written while others read it. Two levels: their barriers see to that.
            first = w.array(f"scratch_{type_}", type_, self.lines * self.size, shared=True)
            again = last > 0 or self.second() > 1
            size = self.lines * (self.second() if self.second() > 1 else self.size)
            self.scratch[type_] = [first, w.array(f"part_{type_}", type_, size, shared=True) if again else first]
            self.turn[type_] = 0
        self.spot = self.o.spot(s.rows, 1, self.size, self.lines, chunks)
        self.item, self.row, self.chunk = self.spot.item, self.spot.row, self.spot.chunk
        self.ends = self.o.ends(self.chunk, s.length or s.cols[0], s.cols[0])
        self.over_row(self.share())
        return self.o.done()

    def once(self) -> AbstractContextManager[None]:
        """Only the first item of a row."""
        return self.o.first_of(self.spot)

    # -- what stays in registers

    def share(self) -> int:
        """Elements of a row that are one work-item's."""
        return -(-self.shape.cols[0] // self.lanes())

    def costly(self) -> dict[Node, int]:
        """What is loaded, and what takes long to compute, where an item's share of it fits in registers."""
        def worth(node: Node) -> bool:
            return self.ev.storage(node) is not None or (node.fn.family == "elementwise" and cost(node) >= tuning().costly)

        fits = self.shape.length is None and self.share() <= tuning().row_registers
        kept = self.needed_again(worth) if fits else {}
        return kept if sum(max(1, node.dtype.itemsize // 4) for node in kept) * self.share() <= tuning().row_registers else {}

    def place_of(self, node: Node, at: Index) -> Access:
        return Access(self.arrays[node], self.iteration_of_row)

    # -- one pass over a row

    def loops(self, step: Pass) -> None:
        s, w = self.shape, self.writer
        reductions, roots = list(step.reductions), step.roots
        accumulators = {r: w.declare(called(r, w), Literal(r_identity(r), r.dtype), r) for r in reductions}
        n = s.cols[0]
        with self.o.where(*self.spot.there):
            if self.kept:
                with ExitStack() as inside:
                    iteration = ZERO
                    if self.share() > 1:
                        var = Var("iteration", self.share())
                        inside.enter_context(w.loop(var, 0, self.share(), unrolled=True))
                        iteration = var.index
                    self.iteration_of_row = iteration
                    col = iteration * self.size + self.item
                    if n % self.size:
                        inside.enter_context(w.branch(Infix("<", w.at(col), whole(n)), (("range", col, 0, n),)))
                        for each in col.vars:
                            w.bind(each)
                        col = bounded(col, 0, n)
                    self.body(self.row * n + col, reductions, roots, accumulators)
            else:
                each, (start, stop) = Var("col", n), self.ends
                with strided(self.ev, each, start, bound(stop), self.size, -(-(s.length or n) // self.size), self.item, accumulators):
                    self.body(self.row * n + each.index, reductions, roots, accumulators)
        for r in reductions:
            self.tree(r, accumulators[r])

    def second(self) -> int:
        """Work-items that add up the first level's values, where one level would be too long."""
        return 1 if self.size <= 32 else 8 if self.size == 64 else 16

    def tree(self, r: Node, accumulator: Local) -> None:
        """Combine the items' accumulators in local memory: each item reads all of a row's, or, of long rows, those that a few combined."""
        w, type_ = self.writer, register_type(r.dtype)
        few = self.second()
        turn = self.turn[type_]
        self.turn[type_] = 1 - turn
        scratch = self.scratch[type_][turn if few == 1 else 0]
        if self.size > 1:
            place, line = self.spot.here, self.spot.lane
            w.store(Access(scratch, place), accumulator, r)
            w.barrier()
            count, apart = min(self.size, self.shape.length or self.shape.cols[0]), self.size      # the others have nothing to add
            if few > 1:
                part = self.scratch[type_][1]
                with self.o.where((self.item, few)):
                    self.gathered(r, accumulator, scratch, place, few, self.size // few)
                    at = line * few + self.item
                    w.store(Access(part, at), accumulator, r)
                w.barrier()
                scratch, count, apart = part, few, few
            self.gathered(r, accumulator, scratch, line * apart, 1, count)
        self.reduced(r, accumulator)

    def gathered(self, r: Node, accumulator: Local, scratch: Array, first: Index, step: int, count: int) -> None:
        """The accumulator becomes what `count` values in local memory, `step` apart, make together: four at a time, pairwise."""
        w, ev = self.writer, self.ev

        def four(at: Index, *more: Expression) -> None:
            level: list[Expression] = [Load(Access(scratch, at + k * step), r.dtype) for k in range(min(4, count))]
            while len(level) > 1:
                odd = level[-1:] if len(level) % 2 else []
                level = [ev.combined(r, a, b) for a, b in zip(level[::2], level[1::2], strict=False)] + odd
            w.assign(accumulator, ev.combined(r, more[0], level[0]) if more else level[0], r)

        four(first)
        whole_ = count - count % 4
        if whole_ > 4:
            other = Var("other", whole_ - 4, 4)
            with w.loop(other, 4, whole_, 4):
                four(first + other.index * step, accumulator)
        if count > 4 and count % 4:
            other = Var("other", count - whole_, whole_)
            with w.loop(other, whole_, count):
                at = first + other.index * step
                w.assign(accumulator, ev.combined(r, accumulator, Load(Access(scratch, at), r.dtype)), r)


def columns(group: Group, context: Context) -> list[Kernel]:
    """Work-items side by side read neighbouring columns, those one above the other every so manieth row; they add up in local memory."""
    kind = group.kind
    assert isinstance(kind, Columns)
    outer, middle, inner, chunks = kind.outer, kind.middle, kind.inner, kind.chunks
    o, reductions = WorkGroup(group, context), group.results(Granularity.CHUNK)
    w, ev = o.writer, o.ev
    most = room(context, scratch(reductions)) if context.target.local_memory else context.target.group(tuning().group)
    across = min(up(inner), most, 32)
    lines = min(most // across, up(kind.length)) if context.target.local_memory else 1
    types = dict.fromkeys(register_type(r.dtype) for r in reductions) if lines > 1 else {}
    arrays = {type_: o.shared(f"scratch_{type_}", type_, across * lines) for type_ in types}
    spot = o.spot(outer, inner, lines, across, chunks)
    accumulators = {r: w.declare(w.base(r), Literal(r_identity(r), r.dtype), r) for r in reductions}
    first, stop = o.ends(spot.chunk, kind.length, middle)
    with o.where(*spot.there):
        each = Var("r", middle)
        with strided(ev, each, first, bound(stop), lines, -(-kind.length // lines), spot.item, accumulators):
            at = (spot.row * middle + each.index) * inner + spot.column
            for r in reductions:
                ev.accumulate(r, accumulators[r], ev.value(r.operands[0], at))
            context.store(ev, group, group.results(Granularity.ELEMENT), at)
    for number, r in enumerate(reductions if lines > 1 else ()):
        if number:
            w.barrier()                                      # the one before is read
        array = arrays[register_type(r.dtype)]
        w.store(Access(array, spot.here), accumulators[r], r)

        def put(to: Index, of: Index, r: Node = r, array: Array = array) -> None:
            w.store(Access(array, to), ev.combined(r, *(Load(Access(array, at), r.dtype) for at in (to, of))), r)

        o.tree(spot, put)
        w.assign(accumulators[r], Load(Access(array, spot.first), r.dtype), r)
    with o.first_of(spot):
        for r in reductions:
            ev.store(context.output(group, r), r, (spot.row * chunks + spot.chunk) * inner + spot.column, accumulators[r])
    return [o.done(required=lines > 1)]
