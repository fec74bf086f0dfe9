"""Fourier transforms in local memory: a work-group transforms one or several lines. Start at `LineTransforms.kernel`.

The points of a line go through butterflies (butterflies.py) in the registers of its work-items, and between these through local memory, in
Stockham's order (W. Cochran et al., "What is the fast Fourier transform?", 1967): the butterfly number b of r points, behind butterflies
that put L points together, takes points b + k n / r, and its results are points b // L * r L + b % L + k L of the next. So buffers are
read once and written once, by neighbours side by side: of lines that are rows by the items of one, of columns by those of several.
`FourierLines` says which points lines have, `shape_of` how many items and lines a group has.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from math import log2
from typing import NamedTuple

from tracegrad.codegen.graph.complex_pairs import both_parts
from tracegrad.codegen.graph.fourier.lines_gpu import FourierLines, shape_of
from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.expressions import Access, Array, Expression, Infix, Lanes, Load, Vector, element, place
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Store
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.fourier.butterflies import Arithmetic, Complex, butterfly
from tracegrad.codegen.lower.workgroup import WorkGroup
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.errors import CompilerBug
from tracegrad.graph.ir import Node


class _Place(NamedTuple):
    """Where an item works: its number among those of its line, the line's number in the group, and among all lines."""

    item: Index
    lane: Index
    line: Index


class LineTransforms(WorkGroup):
    """The kernel, while it is written."""

    def __init__(self, group: Group, context: Context) -> None:
        super().__init__(group, context)
        attrs, x = self.node.attrs, self.node.operands[0]
        self.n, self.read, self.write, self.most = (int(attrs[name]) for name in ("n", "read", "write", "most"))
        self.dtype, self.count = self.node.dtype, x.aval.size // self.n
        shape = shape_of(self.n, self.read > 1 or self.write > 1, self.count, self.dtype, context.target)
        shape = shape or shape_of(self.n, False, self.count, self.dtype, context.target)
        if shape is None or not isinstance(self.node.fn, FourierLines):
            raise CompilerBug(f"codegen: no work-group holds {self.n} points of {self.node!r}, computed at {self.node.loc}")
        self.shape, self.math = shape, Arithmetic(self.writer)
        self.pairs = Var("pairs", 1, aligned=True)           # what vectors of both parts of a number are said to go along
        self.arrays: list[Array] = []

    def kernel(self) -> Kernel:
        radices, start = self.shape.radices, self.places()
        where, behind = start, 1
        x = self.first(start)
        for stage, r in enumerate(radices):
            if stage:
                last = stage == len(radices) - 1
                there = self.at_last(start) if last else start
                x = self.exchanged(x, where, there, radices[stage - 1], behind // radices[stage - 1], r, last)
                where = there
            x = [butterfly(self.math, self.with_factors(points, where, u, r, behind)) for u, points in enumerate(x)]
            behind *= r
        self.last(x, where)
        groups, lines, items = -(-self.count // self.shape.lines), self.shape.lines, self.shape.items
        sizes, local = [groups * lines, items], [lines, items]
        self.sizes, self.local = (sizes, local) if self.read > 1 else (sizes[::-1], local[::-1])
        return replace(self.done(), flops=int(5 * self.node.aval.size / 2 * log2(self.n)))

    # -- items, lines and butterflies

    def places(self) -> _Place:
        """Neighbours are of one line where its points lie side by side, else of several lines."""
        lines, items = self.shape.lines, self.shape.items
        of_lines, of_items = (0, 1) if self.read > 1 else (1, 0)
        w, count = self.writer, -(-self.count // lines) * lines
        return _Place(w.number("item", items, of_items, "local"), w.number("lane", lines, of_lines, "local"),
                      w.number("line", count, of_lines))

    def at_last(self, start: _Place) -> _Place:
        """Where the results are computed: other items' if points of one line lay side by side and results do not."""
        lines, items = self.shape.lines, self.shape.items
        if self.read > 1 or self.write == 1 or lines == 1:
            return start
        turned = start.lane * items + start.item
        lane = self.writer.indexed("to_lane", turned % lines)
        block = self.writer.number("block", -(-self.count // lines), 1, "group")
        line = self.writer.indexed("to_line", block * lines + lane)
        return _Place(self.writer.indexed("to_item", turned // lines), lane, line)

    def butterflies(self, r: int) -> int:
        """Of an item."""
        return -(-self.n // (r * self.shape.items))

    def number_of(self, where: _Place, u: int, r: int) -> tuple[Index, bool]:
        """Which of the line's butterflies of r points the item's number u is; whether there may be no such one."""
        b = where.item + u * self.shape.items
        return b, b.hi >= self.n // r

    def taken(self, where: _Place, u: int, r: int) -> Index:
        """The same, brought into range: an item that has none does the last one again, and stores nothing."""
        b, _ = self.number_of(where, u, r)
        return self.writer.at_most("butterfly", b, self.n // r - 1)

    # -- numbers in memory

    def first(self, where: _Place) -> list[list[Complex]]:
        """The points of the item's first butterflies."""
        r = self.shape.radices[0]
        line = self.writer.at_most("line_read", where.line, self.count - 1)
        start, rest = line // self.read * (self.n * self.read), line % self.read
        found = []
        for u in range(self.butterflies(r)):
            b = self.taken(where, u, r)
            found.append([self.point(start + (b + k * (self.n // r)) * self.read + rest) for k in range(r)])
        return found

    def point(self, at: Index) -> Complex:
        """A number of the operand."""
        re, im = self.node.operands[:2]
        both = both_parts(re, im)
        if both is not None and self.context.storage(self.group)(strip(both)) is not None:
            x, y = self.numbers(strip(both), at)
        else:
            x, y = self.ev.value(re, at), self.ev.value(im, at)
        return (y, x) if self.node.attrs["backwards"] else (x, y)

    def numbers(self, of: Node, at: Index) -> Complex:
        """Both parts of number `at` of an array (*, 2) that is stored."""
        stored = self.context.storage(self.group)(of)
        assert stored is not None
        memory = self.writer.buffer(stored.ref, self.writer.base(of), self.dtype, stored.access)
        if self.context.target.host_memory:                  # which may begin anywhere
            x, y = (self.writer.declare("z", Load(Access(memory, at * 2 + k), self.dtype)) for k in (0, 1))
            return x, y
        z = self.writer.declare("z", Load(Access(memory, at * 2, 1, self.pairs, (), 2), self.dtype, 2))
        return Lanes(z, 0), Lanes(z, 1)

    def last(self, x: list[list[Complex]], where: _Place) -> None:
        """Write the results."""
        r, most, write = self.shape.radices[-1], self.most, self.write
        start, rest = where.line // write * most, where.line % write
        for u, points in enumerate(x):
            b, doubtful = self.number_of(where, u, r)
            if self.node.attrs["whole"]:
                points = self.step_factors(points, where, self.taken(where, u, r), self.n // r)
            there = [(b, self.n // r)] * doubtful + [(where.line, self.count)] * (where.line.hi >= self.count)
            with self.where(*there):
                for k, (re, im) in enumerate(points):
                    to = (b + k * (self.n // r)) * write + rest
                    if (k * (self.n // r)) * write >= most:
                        continue
                    with ExitStack() as inside:
                        if (self.n // r * (k + 1)) * write > most:
                            inside.enter_context(self.where((to, most)))
                        self.put(start + to, re, im)

    def put(self, at: Index, re: Expression, im: Expression) -> None:
        attrs, w = self.node.attrs, self.writer
        if attrs["backwards"]:
            re, im = im, re
        if attrs["scale"] != 1.0:
            re, im = self.math.scaled((re, im), attrs["scale"])
        out = self.output()
        if attrs["real"]:
            w.store(place(out, at), re, self.node)
        elif self.context.target.host_memory:
            for k, part in enumerate((re, im)):
                w.store(place(out, at * 2 + k), part, self.node)
        else:
            w.add(Store(Access(out, at * 2, 1, self.pairs, (), 2), Vector((re, im)), self.node))

    # -- factors

    def with_factors(self, x: list[Complex], where: _Place, u: int, r: int, behind: int) -> list[Complex]:
        """The points of a butterfly, times exp(-2 pi i k l / (r behind)), where its number is l more than a multiple of `behind`."""
        if behind == 1:
            return x
        l = self.taken(where, u, r) % behind
        found: dict[int, Complex] = {}
        for k in range(1, r):
            if k & (k - 1) == 0:
                found[k] = self.numbers(self.node.operands[2], l * (k * (self.n // (r * behind))))
            else:                            # of two that are there: the product of four at most
                high = 1 << (k.bit_length() - 1)
                found[k] = self.math.times(found[high], found[k - high])
        return [x[0], *(self.math.times(x[k], found[k]) for k in range(1, r))]

    def step_factors(self, x: list[Complex], where: _Place, b: Index, apart: int) -> list[Complex]:
        """The results of butterfly b, times exp(-2 pi i k m / whole)."""
        w, whole, near, far = self.writer, self.node.attrs["whole"], *self.node.operands[3:]
        m = w.indexed("column", self.writer.at_most("line_done", where.line, self.count - 1) % self.read // self.node.attrs["apart"])
        found = []
        for k, z in enumerate(x):
            t = w.computed("turn", whole, Infix("*", w.at(m), w.at(b + k * apart)), self.node)
            size = near.shape[0]
            found.append(self.math.times(z, self.math.times(self.numbers(near, t.index % size), self.numbers(far, t.index // size))))
        return found

    # -- local memory

    def exchanged(self, x: list[list[Complex]], here: _Place, there: _Place, r: int, behind: int, after: int, last: bool
                  ) -> list[list[Complex]]:
        """The points of butterflies of `after`, of what those of r left, behind those that put `behind` together."""
        w, shape = self.writer, self.shape
        if not self.arrays:
            type_ = register_type(self.dtype)
            self.arrays = [w.array(name, type_, shape.pitch * shape.lines, True) for name in ("re", "im")[:shape.arrays]]
        else:
            self.barrier()                                   # all have read what was there
        read: list[list[list[Expression]]] = [[], []]
        for parts in ((0, 1),) if shape.arrays == 2 else ((0,), (1,)):
            if parts == (1,):
                self.barrier()
            for u, points in enumerate(x):
                b, doubtful = self.number_of(here, u, r)
                with self.where(*[(b, self.n // r)] * doubtful):
                    first = b // behind * (r * behind) + b % behind
                    for k, z in enumerate(points):
                        for part in parts:
                            w.store(place(self.arrays[part % shape.arrays], self.slot(here, first + k * behind)), z[part], self.node)
            self.barrier()
            for part in parts:
                for u in range(self.butterflies(after)):
                    b = self.taken(there, u, after)
                    at = [self.slot(there, b + k * (self.n // after)) for k in range(after)]
                    read[part].append([w.declare("v", element(self.arrays[part % shape.arrays], i)) for i in at])
        return [list(zip(re, im, strict=True)) for re, im in zip(*read, strict=True)]

    def slot(self, where: _Place, at: Index) -> Index:
        return where.lane * self.shape.pitch + at + at // (128 // self.dtype.itemsize)
