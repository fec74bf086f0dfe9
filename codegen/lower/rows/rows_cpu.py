"""Kernels over (rows, cols): elementwise groups, row reductions, several passes over a row; on CPUs. Start at `lower_loops`.

What they compute, passes.py says; how the domain is cut, shape.py. A work-item is one thread's loop: over rows, over a row or a chunk of
it, with explicit vectors along the last dimension and a scalar loop for what remains. The second pass fetches the next row. What does not
change along a loop is computed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var
from tracegrad.codegen.kernel.index.peeling import peeled
from tracegrad.codegen.kernel.index.varying import room, uneven, varies
from tracegrad.codegen.kernel.ir.expressions import Infix, Lanes, Literal, Splat, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import (
    Access,
    Block,
    Bound,
    BoundLike,
    Declare,
    Local,
    bound,
    clipped,
    clipped_at,
    product,
    rest,
)
from tracegrad.codegen.kernel.statement_passes import side_by_side
from tracegrad.codegen.lower.context import Context, computed
from tracegrad.codegen.lower.rows.row_program import Pass, RowProgram, called, r_identity
from tracegrad.codegen.lower.rows.shape import Shape, reads, runs, shape_of
from tracegrad.codegen.lower.sums import ColumnSums, LongSum, adds, each_block, in_blocks, is_long
from tracegrad.codegen.schedule.access_maps import IDENTITY
from tracegrad.codegen.schedule.grouping import Group, cost
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.tuning import tuning


def lower_loops(group: Group, context: Context) -> list[Kernel]:
    """The kernel of an elementwise group or of row reductions."""
    return [RowKernel(group, context, shape_of(group, context)).finished()]


class RowKernel(RowProgram):
    """Rows by work-items that each do some, or a part of one."""

    def __init__(self, group: Group, context: Context, shape: Shape) -> None:
        super().__init__(group, context, shape)
        self.rows_chunk = ZERO
        self.sums: list[LongSum] = []                        # of a pass
        self.column_sums: dict[Node, ColumnSums] = {}

    def kernel(self) -> Kernel:
        sizes, row = self.begun()
        with row or ExitStack():
            self.over_row(room(self.shape.row_size))
        self.end_columns(ColumnSums.finish)
        return self.context.finish(self.group, self.writer, tuple(sizes) or (1,), (1,) * max(1, len(sizes)), True)

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
        def body(col: Index) -> None:
            for each in sums:
                step(each, self.rows_chunk * self.shape.row_size + col)

        if sums:
            self.o.vectors("col", self.shape.row_size, self.shape.width, body)

    def add_to_columns(self, at: Index, columns: list[Node]) -> None:
        """Combine the element(s) at hand with what their columns have so far."""
        where = at - self.row * self.shape.row_size + self.rows_chunk * self.shape.row_size
        values = [self.ev.value(r.operands[0], at) for r in columns]
        for r, value in zip(columns, values, strict=True):
            self.column_sums[r].add(where, value)

    def own_rows(self) -> tuple[Bound, Bound]:
        """Where the rows of a work-item begin and end."""
        s = self.shape
        if s.block >= s.rows:
            return bound(0), bound(s.rows)
        return product(self.part, s.block), clipped(product(self.part, s.block, s.block), s.rows, s.block)

    @contextmanager
    def each_row(self) -> Iterator[None]:
        """The loop over the rows of a work-item. Sums over columns start anew after a block of them."""
        row = Var("row", self.shape.rows)
        self.row = row.index
        with self.writer.loop(row, *self.own_rows()):
            yield
            if any(each.before for each in self.column_sums.values()):
                with each_block(self.writer, row.index, tuning().sum_rows):
                    self.end_columns(ColumnSums.flush)

    def costly(self) -> dict[Node, int]:
        """What is in a private array: floats that take long to compute."""
        def worth(node: Node) -> bool:
            return cost(node) >= tuning().costly and dtype_kind(node.dtype) == "f" and not self.ev.storage(node)

        kept = self.needed_again(worth) if self.shape.length is None else {}
        return kept if sum(node.dtype.itemsize for node in kept) * self.shape.row_size <= tuning().private_bytes else {}

    def place_of(self, node: Node, at: Index) -> Access:
        return Access(self.arrays[node], at - self.row * self.shape.row_size, self.ev.width, self.ev.lane)

    # -- one pass over a row

    def loops(self, step: Pass) -> None:
        s, w = self.shape, self.writer
        reductions, roots = list(step.reductions), step.roots
        looping = [each for each in self.passes if each.loops]
        self.ahead = len(looping) > 1 and step is looping[1]
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
            w.given.add(total[r])
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
        s, w = self.shape, self.writer
        first, last = self.own_rows()
        left, some = s.rows % s.width, uneven(s.rows, s.width)
        row = Var("row", s.rows, multiple=s.width)
        self.row = row.index
        with w.loop(row, first, last, s.width, whole=some), self.ev.along(row, s.width):
            self.bodies(row.index * s.row_size, [], roots, {})
        if not some:
            return
        row = Var("row", s.rows) if varies(s.rows) else Var("row", left, s.rows - left)
        start = bound(s.rows - left)
        if s.block < s.rows:                                 # only the last work-item has some
            start, row = Bound(rest(0, last, s.width).value, first.low, None), Var("row", s.rows)
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
            col = Var(name, end - begin, begin)
            with w.loop(col, Bound(rest(begin, last, width).value, first.index, None) if width > 1 else first, last):
                self.columns_at(col, 1, roots)

    def columns_at(self, col: Var, width: int, roots: list[Node]) -> None:
        """What is done at `width` columns from `col` on."""
        with self.ev.along(col, width):
            self.body(self.row * self.shape.row_size + col.index, [], roots, {})

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
            var = Var(f"c{d}", size)
            if d == 0 and self.sums:                         # the others are short, or flush their sums themselves
                each = min(self.steps, tuning().sum_steps) * (self.times // size)
                opened.enter_context(in_blocks(w, var, 0, size, 1, size, self.sums, each=each))
            else:
                opened.enter_context(w.loop(var, 0, size))
            outer = outer + var.index * scale
        name = "i" if s.rows == 1 and len(s.cols) == 1 else "col"
        own = [{r: names[u] for r, names in vector_acc.items()} for u in range(unroll)]        # of each vector of a step
        ranges = [(begin, stop, width, own) for begin, stop in self.peeled(step, self.row * s.row_size + outer)] if vectors else []
        if more is not None:
            ranges.append((*more, width, own[:1]))
        ranges += [(begin, stop, lanes, [{r: narrow[r][lanes] for r in reductions}]) for begin, stop, lanes in ends]
        for begin, stop, lanes, accumulators in ranges:
            end, times = stop if s.length is None else n, len(accumulators)                    # (of chunks any may be the last)
            whole_steps = begin % lanes == 0 and (s.length or 0) % lanes == 0
            col = Var(name, max(lanes, end - begin - (times - 1) * lanes), begin, multiple=lanes if whole_steps else 1)
            block = self.iterations(col, begin, stop, lanes * times)
            if s.length is not None:
                block = self.counted(col, self.first, self.last, step, n, tail is not None)
            with ExitStack() as inner:
                inner.enter_context(block)
                if self.ahead and lanes * times == step:
                    self.fetch_next_row(col, step)
                if s.across:
                    inner.enter_context(self.each_row())
                inner.enter_context(self.ev.along(col, lanes))
                items, starts = self.writer.blocks[-1].items, list[int]()
                for u, accumulator in enumerate(accumulators):
                    starts.append(len(items))
                    at = self.row * s.row_size + outer + (col.index + u * lanes)
                    self.bodies(at, reductions, roots, accumulator)
                if not self.writer.updates:
                    side_by_side(items, starts)
        if tail == (n - 1, n) and s.length is None and not s.across and not varies(n):
            self.bodies(self.row * s.row_size + outer + (n - 1), reductions, roots, total)
        elif tail is not None:
            col = Var(name, n)
            if s.length is None:
                begin, stop = tail
                col = Var(name, n) if varies(n) else Var(name, n - begin, begin)
                block = w.loop(col, begin, stop, kept=True) if varies(n) and vectors else self.counted(col, begin, stop, 1, n)
            elif vectors:
                block = w.loop(col, Bound(rest(0, self.last, step).value, self.chunk * s.length, None), self.last)
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

    def unroll(self, reductions: list[Node], roots: list[Node]) -> int:
        """Independent accumulators hide the latency of a short body, and take fewer terms each. Long ones go side by side, unless they
        test an index: see `side_by_side` (sums of 16 rows of a table: 1.3 of the time with twice the tests). Where results are written on
        the way, sums of columns among them, there is enough to do (sums of rows and of columns: 1.3 of the time with four vectors)."""
        n, width = min(self.shape.cols[-1], self.shape.length or self.shape.cols[-1]), self.shape.width
        flops = sum(self.context.schedule.costs.get(r, 1) for r in (*reductions, *roots))
        long = flops >= tuning().side_by_side and self.writer.target.registers >= 32
        if long and len(self.passes) == 1 and n >= 8 * width and n % (2 * width) < width:
            if not any(node.fn.reports for node in computed(self.group, self.context)):
                return 2
        if not reductions or roots or len(reductions) > 2:
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
        self.reduced(r, total)
