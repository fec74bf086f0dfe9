"""Kernels over (rows, cols): elementwise groups, row reductions, several passes over a row; on CPUs. Start at `lower_loops`.

A work-item is one thread's loop: over rows, over a row or a chunk of it, with explicit vectors along the last dimension and
a scalar loop for what remains. A group with reductions makes one pass over the row for each level of them: softmax is a pass
for the maximum, one for the sum, one for the result. The second pass fetches the next row. What does not change along a loop is
computed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from tracegrad.codegen.kernel.evaluator import Evaluator
from tracegrad.codegen.kernel.index.facts import picked
from tracegrad.codegen.kernel.index.guards import Reads
from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, breakpoints
from tracegrad.codegen.kernel.index.peeling import peeled, scattered
from tracegrad.codegen.kernel.index.varying import room, uneven, varies
from tracegrad.codegen.kernel.ir.expressions import Cast, Expression, Infix, Lanes, Literal, Load, Select, Splat, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import (
    Access,
    Array,
    Block,
    Bound,
    BoundLike,
    Declare,
    Local,
    bound,
    clipped,
    clipped_at,
    product,
)
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.context import Context, computed
from tracegrad.codegen.lower.sums import ColumnSums, LongSum, adds, each_block, in_blocks, is_long
from tracegrad.codegen.schedule.access_maps import IDENTITY
from tracegrad.codegen.schedule.grouping import Chunks, Flat, Granularity, Group, Rows, cost, is_reduction, small_reduction
from tracegrad.errors import CompilerBug
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind, is_half
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning


class Shape(Plain):
    """The loops of a kernel: rows, and columns as nested loops of sizes `cols` (outer ones plain, the last vectorised).

    parts: the elements of a row are (*cols[:-1], parts, cols[-1]), and those of all parts are computed side by side, in the last loop.
    outer_vectorized: vectors are of as many rows, each with its few elements (all of them parts).
    pieces: where in a row loops of their own end, one behind the other; `length` elements of a row are a work-item's, more or less.
    """

    rows: int
    cols: tuple[int, ...]
    width: int
    block: int                       # rows a work-item does
    length: int | None               # chunk of the (single) column loop that a work-item does; None: all
    across: bool = False             # the loop over the rows is inside that over the columns
    parts: int = 1
    pieces: tuple[int, ...] = ()
    outer_vectorized: bool = False

    @property
    def row_size(self) -> int:
        n = self.parts
        for c in self.cols:
            n *= c
        return n


def levels(group: Group, context: Context) -> tuple[dict[Node, int], list[Node]]:
    """The pass in which each root of a group is computed, and the reductions that have to be."""
    level: dict[Node, int] = {}
    deps = group_deps(group, context)
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


def group_deps(group: Group, context: Context) -> dict[Node, list[Node]]:
    """The roots of the same group that each root reads."""
    return {s: [d for d in context.schedule.deps[s] if context.schedule.group_of.get(d) is group] for s in group.roots}


def in_group_reductions(group: Group) -> set[Node]:
    return {s for s in group.roots if is_reduction(s)}


def reads(group: Group, context: Context, flat: Index) -> Reads:
    """All that the kernel reads to compute element `flat`."""
    reductions = in_group_reductions(group)
    found = Reads(context.storage(group), reductions | context.scalars.keys())
    for root in group.roots:
        if root in reductions:
            found.add(root.operands[0], flat)
        elif group.place[root] is Granularity.ELEMENT and root in group.stored:
            found.add(root, flat)
    return found


def vector_width(group: Group, context: Context) -> int:
    """Lanes: a register of the widest float in the group."""
    floats = [n.dtype.itemsize for n in (*group.reads, *group.roots) if dtype_kind(n.dtype) == "f"]
    return max(1, min(16, context.target.simd_bytes // max(4, max(floats, default=4))))


def shape_of(group: Group, context: Context) -> Shape:
    """How the domain of a group is cut into loops and work-items.

    Where something is read transposed, the lines that a vector of columns lies in are used for all rows of the block at once.
    """
    if isinstance(group.kind, Flat) and group.kind.parts:
        put_together = _side_by_side if group.kind.alike else _behind_one_another
        return put_together(group.kind, vector_width(group, context), context.target.cores)
    if isinstance(group.kind, Flat) and (shared := shared_reductions(group, context)):
        return _side_by_side_rows(group, context, *shared)
    at = Var("at", group.size)
    points = [] if _plain(group) or not isinstance(group.kind, Flat) else breakpoints(reads(group, context, at.index).indices, at)
    few = points and points[0] < tuning().few_columns and group.statements * points[0] <= tuning().max_statements
    if few and not any(is_half(s.dtype) for s in group.roots):
        return _side_by_side_rows(group, context, points[0], 1)
    shape = _written_out(_row_by_row(group, context, points), group, context, points)
    if shape.parts > 1 or group.size < 8 * tuning().item or _plain(group):          # little enough for a cache, or read as it lies
        return shape
    if shape.length is not None or len(shape.cols) > 1 or shape.rows < tuning().line_bytes // 4:
        return shape
    if not isinstance(group.kind, Flat):
        return shape
    row, col = Var("row", shape.rows), Var("col", shape.cols[0])
    found = reads(group, context, row.index * shape.cols[0] + col.index).indices
    if not any(i.stride(row) == 1 and (i.stride(col) or 0) > 1 for i in found):
        return shape
    return replace(shape, block=tuning().line_bytes // 4, across=True)


def _plain(group: Group) -> bool:
    """Whether everything is read at its own element, at its row, or as a whole."""
    return not group.positional and all(maps <= {IDENTITY, group.cols, group.size} for maps in group.reads.values())


def _written_out(shape: Shape, group: Group, context: Context, points: list[int]) -> Shape:
    """The same, with the few columns of the last loop as parts if they come from about as many places (numbers or vectors, stacked)."""
    if not group.positional or shape.length is not None or group.statements > tuning().max_statements:
        return shape
    n = shape.cols[-1]
    if len(shape.cols) == 1 and points:                      # rows that are shorter than a vector
        n = points[0]
    if not 1 < n <= tuning().stacked_columns:
        return shape
    row, col = Var("row", group.size // n), Var("col", n)
    if not scattered(reads(group, context, row.index * n + col.index).guards, col, n):
        return shape
    if n == shape.cols[-1]:
        return replace(shape, cols=(*shape.cols[:-1], 1), parts=n)
    rows = group.size // n
    return Shape(rows, (1,), shape.width, max(1, min(rows, -(-tuning().item // n))), None, parts=n)


def shared_reductions(group: Group, context: Context) -> tuple[int, int] | None:
    """Of how many elements, and how far apart, the reductions are that are written out for each of these elements: softmax over few.

    None if there are none, or they are not of the same elements, or all that is computed would be too long for one kernel. Nor where
    rows are whole vectors, whose elements have them in common anyway (0.8 of the time).
    """
    found, nodes = set(), computed(group, context)
    for node in nodes:
        x = node.operands[0] if small_reduction(node) else node
        if x is not node and x.aval.size == group.size and node.aval.size < group.size:
            dims = sorted(node.attrs["dim"])
            found.add((prod(x.shape[dims[0]:dims[-1] + 1]), prod(x.shape[dims[-1] + 1:])))
    if len(found) != 1:
        return None
    (n, inner), = found
    fits = group.size % (n * inner) == 0 and 1 < n <= tuning().unrolled and n * len(nodes) <= 2 * tuning().max_statements
    return (n, inner) if fits and (inner > 1 or n % vector_width(group, context)) else None


def _side_by_side_rows(group: Group, context: Context, n: int, inner: int) -> Shape:
    """The loops where `n` elements, `inner` apart, share reductions: all of them are computed at once."""
    cores, width = context.target.cores, vector_width(group, context)
    share, rows = _share(group.size, cores), group.size // (n * inner)
    plain = not any(s.fn.family == "pair" or is_half(s.dtype) for s in group.roots)
    if plain and n * inner <= tuning().unrolled and rows >= width > 1:
        block = -(-max(1, share // (n * inner)) // width) * width
        return Shape(rows, (1,), width, min(block, rows), None, parts=n * inner, outer_vectorized=True)
    while width > inner:
        width //= 2
    return Shape(rows, (inner,), width, max(1, min(rows, share // (n * inner))), None, parts=n)


def _side_by_side(kind: Flat, width: int, cores: int) -> Shape:
    """The loops over the elements of a list of equal parts."""
    parts, inner, each = len(kind.parts), kind.parts[0], sum(kind.parts)
    rows = kind.size // each
    while width > inner:                                     # 4 numbers are a vector of 4; of 3, one is one of 2, and one is left
        width //= 2
    share = _share(kind.size, cores)
    if each > 2 * share and inner > 2 * (length := -(-share // parts // 64) * 64):
        return Shape(rows, (inner,), width, 1, length, parts=parts)
    return Shape(rows, (inner,), width, max(1, min(rows, share // each)), None, parts=parts)


def _behind_one_another(kind: Flat, width: int, cores: int) -> Shape:
    """The loops over the elements of a list of other parts."""
    each, share = sum(kind.parts), _share(kind.size, cores)
    rows, pieces = kind.size // each, tuple(accumulate(kind.parts))
    if each > 2 * share:
        return Shape(rows, (each,), width, 1, -(-share // 64) * 64, pieces=pieces)
    return Shape(rows, (each,), width, max(1, min(rows, share // each)), None, pieces=pieces)


def _share(size: int, cores: int) -> int:
    """How many elements a work-item does, about."""
    return min(max(tuning().item, -(-size // (16 * cores))), tuning().most_items)


def _row_by_row(group: Group, context: Context, at: list[int]) -> Shape:
    """at: where the elements of a flat group had better be cut into rows, ascending."""
    cores, width = context.target.cores, vector_width(group, context)
    simple = _plain(group)
    kind = group.kind
    if isinstance(kind, Chunks):
        return Shape(kind.rows, (kind.cols,), width, 1, kind.length)
    if isinstance(kind, Rows):
        cols, rows = kind.cols, kind.rows
        row, col = Var("row", rows), Var("col", cols)
        found = [] if simple else breakpoints(reads(group, context, row.index * cols + col.index).indices, col)
        points = [k for k in found if k >= 2 * width]
        inner = points[0] if points else cols
        block = kind.length or max(1, min(tuning().item // cols, -(-rows // (4 * cores))))
        return Shape(rows, (cols,) if inner == cols else (cols // inner, inner), width, block, None)
    points = [k for k in at if k >= tuning().few_columns]
    cols = points[0] if points else group.size
    while width > cols >= tuning().few_columns:
        width //= 2
    rows = group.size // cols
    share = _share(group.size, cores)
    if cols > 2 * share and cols > (length := -(-share // 64) * 64):
        return Shape(rows, (cols,), width, 1, length, pieces=() if simple else _certain(group, context, rows, cols, width))
    return Shape(rows, (cols,), width, max(1, min(rows, share // cols)), None)


def _certain(group: Group, context: Context, rows: int, cols: int, width: int) -> tuple[int, ...]:
    """Where the pieces of a row end in which every guard is certain; none if there is but one, or there are too many."""
    row, col = Var("row", rows), Var("col", cols)
    most = min(tuning().ranges, tuning().max_statements // max(1, group.statements))
    found = peeled(reads(group, context, row.index * cols + col.index).guards, col, cols, width, most)
    return (*(end for _, end in found[:-1]), cols) if len(found) > 1 else ()


def lower_loops(group: Group, context: Context) -> list[Kernel]:
    """The kernel of an elementwise group or of row reductions."""
    return [RowKernel(group, context, shape_of(group, context)).kernel()]


class Run(Plain):
    """Pieces of a row, (begin, end) each, that work-items `start` to `stop` do: one all of them, or several the only one."""

    start: int
    stop: int
    pieces: tuple[tuple[int, int], ...]


def runs(ends: tuple[int, ...], length: int | None) -> list[Run]:
    """Who does which of the pieces that end there, about `length` elements each; None: one does all."""
    found: list[Run] = []
    few: list[tuple[int, int]] = []                          # short ones that are next to each other
    for begin, end in pairwise((0, *ends)):
        if few and length is not None and end - few[0][0] > length:
            found.append(Run(at := found[-1].stop if found else 0, at + 1, tuple(few)))
            few = []
        if length is not None and end - begin > length:
            found.append(Run(at := found[-1].stop if found else 0, at - (begin - end) // length, ((begin, end),)))
        else:
            few.append((begin, end))
    if few:
        found.append(Run(at := found[-1].stop if found else 0, at + 1, tuple(few)))
    return found


class RowKernel:
    """One kernel while it is written."""

    def __init__(self, group: Group, context: Context, shape: Shape) -> None:
        self.group, self.context, self.shape = group, context, shape
        self.writer: Writer = context.writer(group)
        self.ev: Evaluator = context.evaluator(group, self.writer)
        self.level, self.reductions = levels(group, context)
        self.picks = [r for r in self.reductions if self.is_pick(r)]
        self.columns = group.results(Granularity.CHUNK) if isinstance(group.kind, Rows) else []
        self.reductions = [r for r in self.reductions if r not in self.picks and r not in self.columns]
        self.kept = self.costly()
        self.arrays: dict[Node, Array] = {}
        self.row = self.chunk = self.rows_chunk = ZERO
        self.at: Index | None = None                         # the element at hand, in a pass
        self.sums: list[LongSum] = []                        # of a pass
        self.column_sums: dict[Node, ColumnSums] = {}
        self.ev.given = self.kept_value

    def kernel(self) -> Kernel:
        s, w = self.shape, self.writer
        sizes, row = self.begun()
        with row or ExitStack():
            self.depth = w.depth
            for node in self.kept:
                self.arrays[node] = w.array(w.base(node) + "_row", register_type(node.dtype), room(s.row_size))
            self.passes()
            self.context.store(self.ev, self.group, self.group.results(Granularity.ROW), self.row)
        self.end_columns(ColumnSums.finish)
        return self.context.finish(self.group, w, tuple(sizes) or (1,), (1,) * max(1, len(sizes)), True)

    def begun(self) -> tuple[list[int], Any]:
        """The sizes of the launch, and the loop over a work-item's rows, if it has several."""
        s, w, loop = self.shape, self.writer, None
        rows, item = s.rows, 0
        sizes: list[int] = []
        if s.pieces:
            self.runs = runs(s.pieces, s.length)
            sizes += [self.runs[-1].stop] * (s.length is not None)
            item = len(sizes)
        elif s.length is not None:
            n = s.cols[0]
            sizes.append(-(-n // s.length))
            item = 1
        if rows > 1:
            if s.block == 1:
                self.row = self.rows_chunk = w.item("row", rows, item).index
                self.begin_columns()
            else:
                if s.block < rows:
                    self.part = w.item("part", -(-rows // s.block), item)
                    self.rows_chunk = self.part.index
                self.begin_columns()
                if not s.across and not s.outer_vectorized:
                    loop = self.each_row()
            sizes.append(-(-rows // s.block))
        if s.pieces and s.length is not None:
            self.part = w.item("part", self.runs[-1].stop, 0)
        elif s.length is not None:
            n = s.cols[0]
            chunk = w.item("chunk", -(-n // s.length), 0)
            self.chunk = chunk.index
            self.first = w.bounding("first", n, product(chunk, s.length))
            end = Bound(w.at(self.first.index + s.length), None, chunk.index * s.length + s.length)
            self.last = w.bounding("last", n, clipped(end, n, s.length))
        return sizes, loop

    def passes(self) -> None:
        """All passes over the row, and between them the sums that need none."""
        wanted = {self.level[x] for x in (*self.reductions, *self.picks, *self.columns, *self.group.results(Granularity.ELEMENT))}
        looping = [number for number in sorted(wanted) if any(self.work_of(number))]
        for number in sorted(wanted):
            reductions, roots = self.work_of(number)
            self.number, self.ahead = number, len(looping) > 1 and number == looping[1]
            if reductions or roots:
                self.loops(reductions, roots)
            for r in self.picks:
                if self.level[r] == number:
                    self.pick(r)

    def begin_columns(self) -> None:
        """Before any row: what sums over columns start with."""
        for r in self.columns:
            blocks = -(-self.shape.block // tuning().sum_rows)
            self.column_sums[r] = ColumnSums(self.ev, r, self.context.output(self.group, r), blocks)
        self.over_columns(lambda each, at: each.begin(at, Literal(r_identity(each.r), each.r.dtype)), list(self.column_sums.values()))

    def end_columns(self, step: Callable[[ColumnSums, Index], None]) -> None:
        """What a block of rows ends with."""
        self.over_columns(step, [each for each in self.column_sums.values() if each.before])

    def over_columns(self, step: Callable[[ColumnSums, Index], None], sums: list[ColumnSums]) -> None:
        """A pass over the columns alone."""
        s, w, ev = self.shape, self.writer, self.ev
        whole_vectors = s.row_size - s.row_size % s.width
        for lanes, low, high in ((s.width, 0, whole_vectors), (1, whole_vectors, s.row_size)) if sums else ():
            if high <= low and not varies(s.row_size):
                continue
            low = min(low, s.row_size - lanes)
            col = Var("col", s.row_size)
            with w.loop(col, low, max(low, high), lanes, kept=varies(s.row_size)):
                ev.lane, ev.width = (col, lanes) if lanes > 1 else (None, 1)
                for each in sums:
                    step(each, self.rows_chunk * s.row_size + col.index)
                ev.lane, ev.width = None, 1

    def add_to_columns(self, at: Index, columns: list[Node]) -> None:
        """Combine the element(s) at hand with what their columns have so far."""
        where = at - self.row * self.shape.row_size + self.rows_chunk * self.shape.row_size
        values = [self.ev.value(r.operands[0], at) for r in columns]
        for r, value in zip(columns, values, strict=True):
            self.column_sums[r].add(where, value)

    @contextmanager
    def each_row(self) -> Iterator[None]:
        """The loop over the rows of a work-item. Sums over columns start anew after a block of them."""
        s, row = self.shape, Var("row", self.shape.rows)
        self.row = row.index
        first, last = bound(0), bound(s.rows)
        if s.block < s.rows:
            first, last = bound(product(self.part, s.block)), clipped(product(self.part, s.block, s.block), s.rows, s.block)
        with self.writer.loop(row, first, last):
            yield
            if any(each.before for each in self.column_sums.values()):
                with each_block(self.writer, row.index, tuning().sum_rows):
                    self.end_columns(ColumnSums.flush)

    # -- what one pass leaves for the next

    def costly(self) -> dict[Node, int]:
        """Elementwise nodes worth keeping in a private array, since several passes need them, and the first pass that does."""
        first: dict[Node, int] = {}
        kept: dict[Node, int] = {}
        roots: dict[int, list[Node]] = {}
        for root in (*self.reductions, *self.group.stored):
            if is_reduction(root):
                roots.setdefault(self.level[root], []).append(root.operands[0])
            elif self.group.place[root] is Granularity.ELEMENT:
                roots.setdefault(self.level[root], []).extend(root.operands if root.fn.family == "pair" else (root,))
        if len(roots) < 2 or self.shape.length is not None:
            return kept
        for number in sorted(roots):
            seen: set[Node] = set()
            todo = list(roots[number])
            while todo:
                node = todo.pop()
                if node in seen or node in kept or node.aval.size != self.group.size or self.ev.storage(node) or is_reduction(node):
                    continue
                seen.add(node)
                if cost(node) >= tuning().costly and dtype_kind(node.dtype) == "f":
                    if first.setdefault(node, number) < number:
                        kept[node] = first[node]
                        continue
                if node.fn.family == "elementwise" or node.fn.name == "reshape":     # else it is read at other elements than these
                    todo += node.operands
        bytes_ = sum(node.dtype.itemsize for node in kept) * self.shape.row_size
        return kept if bytes_ <= tuning().private_bytes else {}

    def kept_value(self, node: Node, flat: Index) -> Expression | None:
        """What an earlier pass kept of the element at hand; any other (of what is flipped, of another row) is computed again."""
        if node not in self.kept or self.kept[node] == self.number or self.at is None or flat - self.at != 0:
            return None
        at, ev, w = flat - self.row * self.shape.row_size, self.ev, self.writer
        value = Load(Access(self.arrays[node], at, ev.width, ev.lane), node.dtype, ev.width)
        return w.declare(w.base(node), value)                # here: an earlier pass wrote it

    def keep(self, at: Index) -> None:
        """Store what later passes need of the element(s) at hand."""
        for node, number in self.kept.items():
            value = self.ev.find(node, at) if number == self.number else None
            if value is not None:
                col = at - self.row * self.shape.row_size
                width = self.ev.width
                value = self.ev.vector(value) if width > 1 else value
                self.writer.store(Access(self.arrays[node], col, width, self.ev.lane), value)

    # -- one pass over a row

    def work_of(self, number: int) -> tuple[list[Node], list[Node]]:
        """The reductions, and the columns and results, that a pass goes over the row for."""
        return ([r for r in self.reductions if self.level[r] == number],
                [x for x in (*self.columns, *self.group.results(Granularity.ELEMENT)) if self.level[x] == number])

    def loops(self, reductions: list[Node], roots: list[Node]) -> None:
        s, w = self.shape, self.writer
        if s.pieces:
            self.one_behind_the_other(roots)
            return
        if s.outer_vectorized:
            self.rows_abreast(roots)
            return
        width, unroll = s.width, self.unroll(reductions, roots)
        vectors = self.in_vectors(width * unroll)
        _, ends, tail = self.left(unroll)
        vector_acc: dict[Node, list[Local]] = {}
        stem: dict[Node, str] = {}                           # what they are called after
        total: dict[Node, Local] = {}
        narrow: dict[Node, dict[int, Local]] = {}            # of the narrower vectors that a row ends with, by lanes
        for r in reductions:
            start = Literal(r_identity(r), r.dtype)
            ending = "_i" if r in self.ev.stored else ""
            stem[r] = w.unique(called(r, w), ending=ending)
            total[r] = Local(stem[r] + ending, r.dtype)
            if tail:
                w.define(total[r], start, r)
            if vectors:
                names = [f"{stem[r]}_v{u}" if unroll > 1 else f"{stem[r]}_v" for u in range(unroll)]
                vector_acc[r] = [w.declare(name, Splat(start, width), r) for name in names]
            narrow[r] = {lanes: w.declare(f"{stem[r]}_v", Splat(start, lanes), r) for _, _, lanes in ends}
        self.sums = self.long_sums(reductions, width * unroll if vectors else 1, stem, vector_acc, total if tail else {}, narrow)
        with ExitStack() as outer:
            self.along(outer, reductions, roots, unroll, vector_acc, total, narrow)
        for sums in self.sums:
            sums.finish()
        for r in reductions:
            if self.sums and r in vector_acc and adds(r):
                vector_acc[r] = vector_acc[r][:1]            # has what the others had
            self.result(r, stem[r], vector_acc.get(r, []), total[r], tail is not None, narrow[r])

    def long_sums(
        self, reductions: list[Node], step: int, stem: dict[Node, str], vectors: dict[Node, list[Local]], total: dict[Node, Local],
        narrow: dict[Node, dict[int, Local]],
    ) -> list[LongSum]:
        """The sums that take more terms than one accumulator should, of those that a pass has."""
        s = self.shape
        self.steps = -(-(s.length or s.cols[-1]) // step) * s.parts          # of one loop over the last columns
        self.times = prod(s.cols[:-1])
        if not is_long(self.steps * self.times):
            return []
        found = []
        for r in (r for r in reductions if adds(r)):
            each = [vectors[r]] if r in vectors else []
            if self.times > 1 or not each:
                each += [[local] for local in (*narrow[r].values(), *([total[r]] if r in total else ()))]
            found += [LongSum(self.ev, r, accumulators, stem[r], self.steps * self.times) for accumulators in each]
        return found

    def counted(self, var: Var, first: BoundLike, last: BoundLike, step: int, top: int, whole: bool = False) -> Any:
        """A loop over the last columns: block by block, if it is a long one of sums."""
        if not self.sums or not is_long(self.steps) or not is_long((top - var.lo) // step * self.shape.parts):
            return self.writer.loop(var, first, last, step, whole, kept=varies(self.shape.cols[-1]))
        whole = whole or var.lo % step > 0 or top % step > 0
        return in_blocks(self.writer, var, first, last, step, top, self.sums, whole, self.shape.parts)

    def rows_abreast(self, roots: list[Node]) -> None:
        """All elements of as many rows as a vector has lanes, then of what rows are left."""
        s, w, ev = self.shape, self.writer, self.ev
        first, last = bound(0), bound(s.rows)
        if s.block < s.rows:
            first, last = product(self.part, s.block), clipped(product(self.part, s.block, s.block), s.rows, s.block)
        left, some = s.rows % s.width, uneven(s.rows, s.width)
        row = Var("row", s.rows, multiple=s.width)
        with w.loop(row, first, last, s.width, whole=some):
            self.row, ev.lane, ev.width = row.index, row, s.width
            self.bodies(row.index * s.row_size, [], roots, {})
            ev.lane, ev.width = None, 1
        if not some:
            return
        row = Var("row", s.rows) if varies(s.rows) else Var("row", left, s.rows - left)
        start = bound(s.rows - left)
        if s.block < s.rows:                                 # only the last work-item has some
            start = Bound(Infix("-", last.value, Infix("%", last.value, whole(s.width))), first.low, None)
            row = Var("row", s.rows)
        with w.loop(row, start, last, kept=varies(s.rows)):
            self.row = row.index
            self.bodies(row.index * s.row_size, [], roots, {})

    def one_behind_the_other(self, roots: list[Node]) -> None:
        """A loop for each piece of a row; where there are many elements, a work-item does some pieces, or some of a long one."""
        s, w = self.shape, self.writer
        for run in self.runs:
            with ExitStack() as opened:
                if s.length is not None and len(self.runs) > 1:
                    mine = Infix("==", self.part, whole(run.start))
                    if run.stop - run.start > 1:
                        mine = Infix("&&", Infix(">=", self.part, whole(run.start)), Infix("<", self.part, whole(run.stop)))
                    opened.enter_context(w.branch(mine, (("range", self.part.index, run.start, run.stop),)))
                if run.stop - run.start > 1 and s.length is not None:
                    (begin, end), = run.pieces
                    at = self.part.index * s.length + (begin - run.start * s.length)
                    first = w.bounding("first", end, at)
                    last = w.bounding("last", end, clipped_at(first.index + s.length, end, uneven(end - begin, s.length)))
                    self.part_of_piece(roots, begin, end, first, last)
                else:
                    for begin, end in run.pieces:
                        self.piece(roots, begin, end)

    def piece(self, roots: list[Node], begin: int, end: int) -> None:
        """Columns `begin` to `end`: in vectors, then what is left one by one."""
        w, s, width = self.writer, self.shape, self.shape.width
        while width > end - begin:
            width //= 2
        name = "i" if s.rows == 1 else "col"
        middle = end - (end - begin) % width if width > 1 else begin
        if middle > begin:
            col = Var(name, middle - begin, begin, multiple=width if begin % width == 0 else 1)
            with self.iterations(col, begin, middle, width):
                self.columns_at(col, width, roots)
        if end - middle == 1:
            self.body(self.row * s.row_size + middle, [], roots, {})
        elif end > middle:
            col = Var(name, end - middle, middle)
            with w.loop(col, middle, end):
                self.columns_at(col, 1, roots)

    def part_of_piece(self, roots: list[Node], begin: int, end: int, first: Var, last: Var) -> None:
        """Columns `first` to `last` of a piece from `begin` to `end`, which several work-items do."""
        w, s, width = self.writer, self.shape, self.shape.width
        name, tail = "i" if s.rows == 1 else "col", (end - begin) % width
        if width > 1:
            col = Var(name, end - begin, begin, multiple=width if begin % width == 0 else 1)
            with w.loop(col, first, last, width, whole=True):
                self.columns_at(col, width, roots)
        if tail or width == 1:
            upto = w.at(last)
            left = Infix("%", Infix("-", upto, whole(begin)) if begin else upto, whole(width))
            col = Var(name, end - begin, begin)
            with w.loop(col, Bound(Infix("-", upto, left), first.index, None) if width > 1 else first, last):
                self.columns_at(col, 1, roots)

    def columns_at(self, col: Var, width: int, roots: list[Node]) -> None:
        """What is done at `width` columns from `col` on."""
        self.ev.lane, self.ev.width = (col, width) if width > 1 else (None, 1)
        self.body(self.row * self.shape.row_size + col.index, [], roots, {})
        self.ev.lane, self.ev.width = None, 1

    @contextmanager
    def iterations(self, col: Var, begin: int, stop: int, step: int) -> Iterator[None]:
        """The loop over columns `begin` to `stop`, whole steps, or its only iteration."""
        w = self.writer
        if stop - begin > step or varies(self.shape.cols[-1]):
            with self.counted(col, begin, stop, step, stop):
                yield
            return
        with w.block(Block("{", vars=(col,))):
            w.add(Declare(col, f"const {w.index}", w.at(begin), bound=bound(begin)))
            yield

    def in_vectors(self, step: int) -> bool:
        s = self.shape
        return s.width > 1 and min(s.cols[-1], s.length or s.cols[-1]) >= step

    def along(
        self, opened: ExitStack, reductions: list[Node], roots: list[Node], unroll: int, vector_acc: dict[Node, list[Local]],
        total: dict[Node, Local], narrow: dict[Node, dict[int, Local]],
    ) -> None:
        """The loops over the columns: in vectors, then what is left one by one."""
        s, w = self.shape, self.writer
        n, width = s.cols[-1], s.width
        step = width * unroll
        vectors = self.in_vectors(step)
        more, ends, tail = self.left(unroll)
        outer, scale = ZERO, s.row_size
        for d, size in enumerate(s.cols[:-1]):
            scale //= size
            var = Var(w.unique(f"c{d}"), size)
            if d == 0 and self.sums:                         # the others are short, or flush their sums themselves
                each = min(self.steps, tuning().sum_steps) * (self.times // size)
                opened.enter_context(in_blocks(w, var, 0, size, 1, size, self.sums, each=each))
            else:
                opened.enter_context(w.loop(var, 0, size))
            outer = outer + var.index * scale
        name = "i" if s.rows == 1 and len(s.cols) == 1 else "col"
        ranges = [(begin, stop, unroll) for begin, stop in self.peeled(step, self.row * s.row_size + outer)] if vectors else []
        if more is not None:
            ranges.append((*more, 1))
        for begin, stop, times in ranges:
            end = stop if s.length is None else n            # (of chunks any may be the last)
            whole_steps = begin % width == 0 and (s.length or 0) % width == 0
            col = Var(name, max(width, end - begin - (times - 1) * width), begin, multiple=width if whole_steps else 1)
            block = self.iterations(col, begin, stop, width * times)
            if s.length is not None:
                block = self.counted(col, self.first, self.last, step, n, tail is not None)
            with ExitStack() as inner:
                inner.enter_context(block)
                if self.ahead and times == unroll:
                    self.fetch_next_row(col, step)
                if s.across:
                    inner.enter_context(self.each_row())
                self.ev.lane, self.ev.width = col, width
                for u in range(times):
                    at = self.row * s.row_size + outer + (col.index + u * width)
                    self.bodies(at, reductions, roots, {r: names[u] for r, names in vector_acc.items()})
                self.ev.lane, self.ev.width = None, 1
        for begin, stop, lanes in ends:
            col = Var(name, lanes, begin)
            with self.iterations(col, begin, stop, lanes):
                self.ev.lane, self.ev.width = col, lanes
                self.bodies(self.row * s.row_size + outer + col.index, reductions, roots, {r: narrow[r][lanes] for r in reductions})
                self.ev.lane, self.ev.width = None, 1
        if tail == (n - 1, n) and s.length is None and not s.across and not varies(n):
            self.bodies(self.row * s.row_size + outer + (n - 1), reductions, roots, total)
        elif tail is not None:
            col = Var(name, n)
            if s.length is None:
                begin, stop = tail
                col = Var(name, n) if varies(n) else Var(name, n - begin, begin)
                block = w.loop(col, begin, stop, kept=True) if varies(n) and vectors else self.counted(col, begin, stop, 1, n)
            elif vectors:
                last = w.at(self.last)
                rest = Bound(Infix("-", last, Infix("%", last, whole(step))), self.chunk * s.length, None)
                block = w.loop(col, rest, self.last)
            else:
                block = self.counted(col, self.first, self.last, 1, n)
            with ExitStack() as inner:
                inner.enter_context(block)
                if s.across:
                    inner.enter_context(self.each_row())
                self.bodies(self.row * s.row_size + outer + col.index, reductions, roots, total)

    def left(self, unroll: int) -> tuple[tuple[int, int] | None, list[tuple[int, int, int]], tuple[int, int] | None]:
        """What is left of the columns after steps of `unroll` vectors, each as (begin, stop): what is done in whole vectors, in narrower
        ones, with their lanes, and one by one. None: nothing. Where the number of columns varies, all of them are there, perhaps empty."""
        s, n, width = self.shape, self.shape.cols[-1], self.shape.width
        if not self.in_vectors(width * unroll):
            return None, [], (0, n)
        rest, always = n % (width * unroll), varies(n)
        ends, more = list[tuple[int, int, int]](), None

        def part(size: int, lanes: int) -> tuple[int, int]:
            return (begin := n - rest if size else n - lanes), begin + size

        if s.length is None and not s.across:
            whole = rest - rest % width
            if whole or (always and unroll > 1):
                more = part(whole, width)
            rest -= whole
            while width > 4 and (rest >= 4 or always) and self.group.statements <= tuning().tail_statements:
                width //= 2
                size = width if rest >= width else 0
                if size or always:
                    ends.append((*part(size, width), width))
                    rest -= size
        return more, ends, part(rest, 1) if rest or always else None

    def peeled(self, step: int, base: Index) -> list[tuple[int, int]]:
        """The ranges of columns that vectors do; base: the index of column 0."""
        s = self.shape
        n = s.cols[-1]
        most = min(tuning().ranges, tuning().max_statements // max(1, self.group.statements))
        if s.length is not None or s.across or s.parts > 1 or not self.group.positional or most < 3:
            return [(0, n - n % step)]
        col = Var("col", n)
        return peeled(reads(self.group, self.context, base + col.index).guards, col, n, step, most)

    def fetch_next_row(self, col: Var, step: int) -> None:
        """Ask for what the next row's first pass reads, in the pass that has arithmetic to hide it behind.

        Measured on softmax cross-entropy of 8192 x 4096 (a maximum, then a sum of exponentials): 0.75 of the time without. Only where
        clang compiles for the CPU itself, as it does where plain operators are vectorised: by way of SPIR-V, Mesa's driver aborts.
        """
        s, w, group = self.shape, self.writer, self.group
        reads = [d for d, maps in group.reads.items() if IDENTITY in maps and d.aval.size == group.size]
        size = sum(d.aval.nbytes for d in reads)
        if not (w.target.clang_builtins and w.target.plain_math) or s.length is not None or len(s.cols) > 1:
            return
        if size < tuning().fetch_bytes or size // s.rows > w.target.l2_bytes // 4:
            return
        for node in reads:
            stored = self.ev.storage(node)
            if stored is None:
                continue
            pointer = w.buffer(stored.ref, w.base(node), node.dtype, stored.access)
            line = tuning().line_bytes // node.dtype.itemsize
            for i in range(0, step, line):
                at = (self.row + 1) * s.row_size + col.index + i
                w.prefetch(pointer, at, node)

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

    def unroll(self, reductions: list[Node], roots: list[Node]) -> int:
        """Independent accumulators hide the latency of a short body, and take fewer terms each."""
        n, width = min(self.shape.cols[-1], self.shape.length or self.shape.cols[-1]), self.shape.width
        if not reductions or any(x not in self.columns for x in roots) or len(reductions) > 2:
            return 1
        work = max(self.context.schedule.costs.get(r, 1) for r in reductions)
        best = 4 if work <= 6 else 2 if work <= 24 else 1
        while best > 1 and (n < 8 * width * best and n % (width * best) >= width):
            best //= 2
        return best

    def bodies(self, at: Index, reductions: list[Node], roots: list[Node], accumulators: dict[Node, Local]) -> None:
        """What is done at an element, or at the same element of all parts."""
        for part in range(self.shape.parts):
            self.body(at + part * self.shape.cols[-1], reductions, roots, accumulators)

    def body(self, at: Index, reductions: list[Node], roots: list[Node], accumulators: dict[Node, Local]) -> None:
        self.at = at
        for r in reductions:
            self.ev.accumulate(r, accumulators[r], self.ev.value(r.operands[0], at))
        self.add_to_columns(at, [x for x in roots if x in self.columns])
        self.context.store(self.ev, self.group, [x for x in roots if x not in self.columns], at)
        self.keep(at)
        self.at = None

    def result(self, r: Node, stem: str, vectors: list[Local], total: Local, tail: bool, narrow: dict[int, Local]) -> None:
        """Combine the accumulators of one reduction: the row's value, in `total` (which holds that of the tail if there is one)."""
        ev, w = self.ev, self.writer
        if vectors:
            width = self.shape.width
            while len(vectors) > 1:
                half = len(vectors) // 2
                for a, b in zip(vectors[:half], vectors[half:], strict=True):
                    w.assign(a, ev.combined(r, a, b), r)
                vectors = vectors[:half]
            sums = vectors[0]
            for part in ("half", "quarter", "eighth"):
                if width > 2:
                    width //= 2
                    halves = ev.combined(r, Lanes(sums, "lo"), Lanes(sums, "hi"))
                    if width in narrow:
                        halves = ev.combined(r, halves, narrow[width])
                    sums = w.declare(f"{stem}_{part}", halves, r)
            lanes = ev.combined(r, Lanes(sums, "lo"), Lanes(sums, "hi"))
            if tail:
                w.assign(total, ev.combined(r, total, lanes), r)
            else:
                w.define(total, lanes, r)
        if self.group.place[r] is Granularity.CHUNK:
            chunks = r.aval.size // self.shape.rows
            ev.store(self.context.output(self.group, r), r, self.row * chunks + self.chunk, total)
        else:
            ev.put(r, self.row, total)


def called(r: Node, w: Writer) -> str:
    """What an accumulator is called: as a part of a reduction, after that."""
    return w.base(r) if r.fn.family == "reduction" else w.namer(r) or r.attrs["op"].name


def r_identity(r: Node) -> object:
    fn = r.attrs.get("op", r.fn)
    return fn.identity(r.dtype)
