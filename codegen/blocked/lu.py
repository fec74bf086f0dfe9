"""LU with partial pivoting of large matrices: columns by columns. Start at `lu`.

Each step takes the next columns, as many as a block has. One work-group eliminates them in a copy: an item has every so many-th row to
itself, the pivots' rows go round in local memory, and rows stay where they are (implicit pivoting). Then the rows of all other columns are
exchanged, and those right of the block solved for U, a column an item; the block is put in place, in the order of its pivots; and what
is right of it and below becomes A22 - L21 U12 by a product. (J. Dongarra, P. Luszczek, A. Petitet, "The LINPACK benchmark", 2003.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.codegen.blocked.parts import Blocked, Factorization, Held, Part
from tracegrad.codegen.graph.large_matrices import items_of
from tracegrad.codegen.kernel.index.index import Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import (
    Array,
    Buffer,
    Call,
    Expression,
    Infix,
    Literal,
    Local,
    Prefix,
    Select,
    element,
    place,
    whole,
)
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.kernel.ir.vectors import bit_ceil, bit_floor
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group


def lu(group: Group, context: Context, out: Held, pivots: Held, order: Held) -> list[Kernel]:
    """The kernels, in launch order: four for each block of columns."""
    of = _Elimination(group, context, out, pivots, order)
    kernels = [of.copied()]
    for start in range(0, of.k, of.width):
        kernels += [of.panel(start), of.exchanged(start), of.placed(start)]
        if (end := start + of.width) < min(of.m, of.n):      # A22 - L21 U12
            parts = (Part(out, of.m, of.n, down, right) for down, right in ((of.width, 0), (0, of.width), (of.width, of.width)))
            kernels.append(of.updated(start, of.k, of.m - end, of.n - end, *parts))
    return [*kernels, of.ordered()]


class _Elimination(Factorization):
    """Of (batch, m, n). panel: the columns of a step, one behind the other."""

    def __init__(self, group: Group, context: Context, out: Held, pivots: Held, order: Held) -> None:
        x = group.anchor.operands[0]
        self.m, self.n = x.shape[-2:]
        super().__init__(group, context, out, x.aval.size // (self.m * self.n), "trailing")
        self.k, self.pivots, self.order = min(self.m, self.n), pivots, order
        self.columns = Temp("panel", self.node, self.batch * self.width * self.m, self.dtype)

    def panel(self, start: int) -> Kernel:
        """The step's columns in `columns`, each row where it was; pivots, as LAPACK counts them."""
        o = self.builder()
        items = min(bit_floor(items_of(self.target)), bit_ceil(self.m))
        _Panel(self, o, items, start).written()
        return self.step(o, self.m - start, 2, f"{self.width} columns by {items} items of one work-group")

    @property
    def reports(self) -> bool:
        """Whether a pivot that is 0 is an error."""
        fn: Any = self.group.anchor.fn
        return bool(fn.reporting)

    def source(self, o: Blocked, name: str, row: Expression, first: Index, swaps: Array | Buffer, base: Index, count: int, shift: int
               ) -> Local:
        """Which row stands in `row` after the block's exchanges."""
        w = o.writer
        now, t = w.let(name, row, changes=True), Var("t", count)
        with w.loop(t, 0, count):
            back = first + (count - 1) - t.index
            with o.only(Infix("<", w.at(back), self.k)):
                other = element(swaps, w.at(base + (count - 1) - t.index))
                _exchange(o, now, back, Infix("-", other, shift) if shift else other)
        return now

    # -- the other columns

    def exchanged(self, start: int) -> Kernel:
        """The rows of all other columns as the block's pivots have it; of those right of it, the block's rows of U."""
        o = self.builder()
        w, m, n, width, dtype, pitch, many = o.writer, self.m, self.n, self.width, self.dtype, self.width + 1, 2 * self.width
        items = self.items(self.target.local_memory - width * pitch * dtype.itemsize - 5 * width * 4, 2 * width * dtype.itemsize)
        item, block, matrix = o.places(items, -(-n // items))
        first = o.begin(start, self.k)
        memory, kept, pivots = o.held(self.out, "out"), o.held(self.columns, "panel", "const"), o.held(self.pivots, "pivots", "const")
        tile, values = o.shared("tile", register_type(dtype), width * pitch), o.shared("values", register_type(dtype), many * items)
        swaps, to, of = (o.shared(name, "int", size) for name, size in (("scratch", width), ("to", many), ("of_tile", many)))
        with o.each("e", width, item) as e:
            step = o.row("row", first + e)
            value = w.let("value", whole(0), changes=True)
            with o.where((step, self.k)):
                w.assign(value, Infix("-", element(pivots, matrix * self.k + bounded(step, 0, self.k)), 1))
            w.store(place(swaps, e), value)
        o.barrier()
        with o.each("e", many, item) as e:                        # the rows of the block, then those of its pivots, each once
            own = w.let("low", w.at(first + e), changes=True)
            with o.only(Infix(">=", w.at(e), width)):
                w.assign(own, element(swaps, w.at(e - width)))
                again, t = w.let("again", Infix("<", own, w.at(first + width)), changes=True), Var("t", width)
                with w.loop(t, 0, width):
                    later = Infix("&&", Infix(">", w.at(t.index + width), w.at(e)), Infix("==", element(swaps, t), own))
                    w.assign(again, Infix("||", again, later))
                w.assign(own, Select(Infix("||", again, Infix(">=", w.at(first + e - width), self.k)), whole(-1), own))
            with o.only(Infix(">=", own, m)):
                w.assign(own, whole(-1))
            w.store(place(to, e), own)
            w.store(place(of, e), self.source(o, "from", own, first, swaps, first * 0, width, 0))
        o.barrier()
        with o.each("e", width * width, item) as e:               # L of the block, ones on its diagonal
            i, j = w.at(e // width), w.at(e % width)
            value = w.let("value", Literal(0.0, dtype), changes=True)
            row = w.let("row", element(of, e // width))
            with o.only(Infix("&&", Infix("<", j, i), Infix(">=", element(to, e // width), 0))):
                at = Infix("+", w.at((matrix * width + e % width) * m), row)
                w.assign(value, element(kept, at))
            w.store(place(tile, e // width * pitch + e % width), value)
        o.barrier()
        column = o.row("x", block * items + item)
        inside = Infix("||", Infix("<", column, first), Infix(">=", column, first + width))
        with o.where((column, n)), o.only(inside):
            q = Var("q", many)
            with w.loop(q, 0, many):
                row = w.let("row", element(of, q))
                value = w.let("value", Literal(0.0, dtype), changes=True)
                with o.only(Infix(">=", row, 0)):
                    w.assign(value, element(memory, self.at(o, matrix, row, column)))
                w.store(place(values, q.index * items + item), value)
            with o.only(Infix(">=", column, first + width)):
                o.substituted(tile, values, lambda c: c * items + item, lambda total, c: total)
            with w.loop(q, 0, many):
                row = w.let("row", element(to, q))
                with o.only(Infix(">=", row, 0)):
                    w.store(place(memory, self.at(o, matrix, row, column)), element(values, q.index * items + item), o.node)
        return self.step(o, n, 4, f"{width} rows, {items} columns a work-group")

    def at(self, o: Blocked, matrix: Index, row: Expression, column: Index) -> Expression:
        """Where an element of a row is that was read."""
        return Infix("+", Infix("*", row, self.n), o.writer.at(matrix * (self.m * self.n) + column))

    def placed(self, start: int) -> Kernel:
        """The block's columns, in the order of its pivots."""
        m, n, width = self.m, self.n, self.width

        def body(o: Blocked, at: Index) -> None:
            w, first = o.writer, o.begin(start, self.k)
            memory, kept, pivots = o.held(self.out, "out"), o.held(self.columns, "panel", "const"), o.held(self.pivots, "pivots", "const")
            matrix, c, row = at // (m * width), at // m % width, at % m
            column = o.row("column", first + c)
            with o.where((column, n)), o.only(Infix(">=", w.at(row), w.at(first))):
                source = self.source(o, "from", w.at(row), first, pivots, matrix * self.k + first, width, 1)
                value = element(kept, Infix("+", w.at((matrix * width + c) * m), source))
                o.put(memory, (matrix * m + row) * n + bounded(column, 0, n), value)

        return self.elements(self.batch * m * width, body)

    def ordered(self) -> Kernel:
        """Which row stands where after all exchanges."""
        def body(o: Blocked, at: Index) -> None:
            order, pivots = o.held(self.order, "order", "out"), o.held(self.pivots, "pivots", "const")
            o.put(order, at, self.source(o, "from", o.writer.at(at % self.m), at * 0, pivots, at // self.m * self.k, self.k, 1))

        return self.elements(self.batch * self.m, body)


class _Panel:
    """The kernel of a step's columns while it is written: one after the other is eliminated, by `items` of which each has rows of its own.

    kept: the columns, one behind the other; u: the pivot's row; swaps: the pivots; done: which of the item's rows have been pivots, a bit
    each; largest, where: the largest number of the item's others in the next column, and its row.
    """

    def __init__(self, of: _Elimination, o: Blocked, items: int, start: int) -> None:
        self.of, self.o, self.w, self.m, self.width, self.dtype, self.items = of, o, o.writer, of.m, of.width, of.dtype, items
        self.own = -(-self.m // items)
        self.item, _, self.matrix = o.places(items)
        self.first = o.begin(start, of.k)
        self.memory, self.kept, self.pivots = o.held(of.out, "out"), o.held(of.columns, "panel"), o.held(of.pivots, "pivots")
        type_ = register_type(of.dtype)
        self.best, self.rows = o.shared("best", type_, items), o.shared("place", "int", items)
        self.u, self.swaps = o.shared("values", type_, of.width), o.shared("scratch", "int", of.width)
        self.done = self.w.let("done", whole(0), changes=True)
        self.largest = self.w.let("larger", Literal(-1.0, of.dtype), changes=True)
        self.where = self.w.let("here", whole(0), changes=True)

    def written(self) -> None:
        self.each_row(self.begin)
        j = Var("j", self.width)
        with self.w.loop(j, 0, self.width):
            self.column(j)

    def at(self, column: Index, row: Index) -> Expression:
        """Where an element of the columns is."""
        return self.w.at((self.matrix * self.width + column) * self.m + bounded(row, 0, self.m))

    def each_row(self, body: Callable[[Index], None]) -> None:
        """What is done with each of the item's rows that have not been pivots."""
        o, q = self.o, Var("q", self.own)
        with self.w.loop(q, 0, self.own):
            row = o.row("row", q.index * self.items + self.item)
            free = Infix("==", Infix("&", Infix(">>", self.done, self.w.at(q)), 1), 0)
            with o.where((row, self.m)), o.only(Infix("&&", Infix(">=", row, self.first), free)):
                body(row)

    def compare(self, value: Expression, row: Index) -> None:
        size = self.w.let("size", Call("fabs", value))
        with self.o.only(Infix(">", size, self.largest)):
            self.w.assign(self.largest, size)
            self.w.assign(self.where, self.w.at(row))

    def begin(self, row: Index) -> None:
        """The elements of a row, from where they are."""
        w, n, c = self.w, self.of.n, Var("c", self.width)
        with w.loop(c, 0, self.width):
            column = self.o.row("column", self.first + c.index)
            value = w.let("value", Literal(0.0, self.dtype), changes=True)
            with self.o.where((column, n)):
                w.assign(value, element(self.memory, (self.matrix * self.m + bounded(row, 0, self.m)) * n + bounded(column, 0, n)))
            w.store(place(self.kept, self.at(c.index, row)), value)
        self.compare(element(self.kept, self.at(self.first * 0, row)), row)

    def column(self, j: Var) -> None:
        """The pivot, and its row to all; what is right of it in each row, less its multiple."""
        o, w, of, item, step = self.o, self.w, self.of, self.item, self.first + j.index
        self.search()
        chosen = w.let("pivot", element(self.rows, 0))
        there = Infix("<", w.at(step), of.k)
        with o.only(Infix("&&", there, Infix("==", Infix("%", chosen, self.items), item))):              # its row is this item's
            c = Var("c", self.width)
            pivot_row = w.computed("from", self.m, chosen, of.group.anchor).index
            with w.loop(c, 0, self.width):
                w.store(place(self.u, c), element(self.kept, self.at(c.index, pivot_row)))
            w.update(self.done, "|", Infix("<<", whole(1), Infix("/", chosen, self.items)))
        with o.only(Infix("&&", Infix("==", item, 0), there)):
            self.note(chosen, j)
        o.barrier()
        head = w.let("head", element(self.u, j))
        if of.reports:
            bad = Prefix("!", Infix(">", Call("fabs", head), Literal(0.0, self.dtype)))
            with o.only(Infix("&&", Infix("&&", Infix("==", item, 0), there), bad)):
                o.report(self.matrix, w.at(step + 1))
        by = w.let("by", Select(Infix("==", head, Literal(0.0, self.dtype)), Literal(1.0, self.dtype), head))
        w.assign(self.largest, Literal(-1.0, self.dtype))
        w.assign(self.where, whole(0))

        def eliminate(row: Index) -> None:
            factor = w.let("factor", Infix("/", element(self.kept, self.at(j.index, row)), by))
            w.store(place(self.kept, self.at(j.index, row)), factor)
            c = Var("c", self.width)
            with w.loop(c, j.index + 1, self.width, unrolled=4):
                less = Infix("-", element(self.kept, self.at(c.index, row)), Infix("*", factor, element(self.u, c)))
                value = w.let("value", less)
                w.store(place(self.kept, self.at(c.index, row)), value)
                with o.only(Infix("==", c, j.index + 1)):
                    self.compare(value, row)

        with o.only(there):
            self.each_row(eliminate)

    def search(self) -> None:
        """The item's largest number, and its row, become the group's, which are the first of `best` and `rows`; of equal ones the first."""
        w, item, best, rows = self.w, self.item, self.best, self.rows
        w.store(place(best, item), self.largest)
        w.store(place(rows, item), self.where)
        self.o.barrier()
        with w.halving(item, self.items) as half:
            mine, other = (w.let(name, element(best, i)) for name, i in (("mine", item), ("other", item + half)))
            row, below = (w.let(name, element(rows, i)) for name, i in (("up", item), ("to", item + half)))
            with self.o.only(Infix("||", Infix(">", other, mine), Infix("&&", Infix("==", other, mine), Infix("<", below, row)))):
                w.store(place(best, item), other)
                w.store(place(rows, item), below)

    def note(self, chosen: Expression, j: Var) -> None:
        """The pivot's row as LAPACK has it: where the exchanges of this block before have put it."""
        w = self.w
        now, t = w.let("low", chosen, changes=True), Var("t", self.width)
        with w.loop(t, 0, j.index):
            _exchange(self.o, now, self.first + t.index, element(self.swaps, t))
        w.store(place(self.swaps, j), now)
        w.store(place(self.pivots, w.at(self.matrix * self.of.k + bounded(self.first + j.index, 0, self.of.k))), Infix("+", now, 1))


def _exchange(o: Blocked, now: Local, one: Index, other: Expression) -> None:
    """Row `now` is the other one, if it is one of these two."""
    w = o.writer
    one_ = w.at(one)
    w.assign(now, Select(Infix("==", now, one_), other, Select(Infix("==", now, other), one_, now)))
