"""Kernels by the owner-computes rule: a work-item owns a part of the result and fills it by serial loops. Start at `KernelBuilder`.

Scatters, scans, searches for the first extremum and sorting are of this form on every target: the order of their steps is fixed,
so results are deterministic. A target differs in how many parts there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from math import prod

import numpy as np

from tracegrad.codegen.kernel.evaluator import Evaluator
from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.index.varying import varies
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Local, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Bound, BoundLike, Buffer, clipped, rest
from tracegrad.codegen.kernel.ir.vectors import bit_floor, computed_in
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows.shape import vector_width
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType
from tracegrad.support.tuning import tuning


def parts(context: Context) -> int:
    """Into how many parts to cut the work, at most."""
    return context.target.parts


def cut(n: int, chunks: int, *most: int) -> tuple[int, int]:
    """How many chunks n is cut into, about `chunks` but at most so many, none of them empty; and the length of all but the last."""
    length = -(-n // max(1, min(chunks, *most)))
    return -(-n // length), length


class KernelBuilder:
    """A kernel, while it is written, whose work-items own parts of the result."""

    def __init__(self, group: Group, context: Context) -> None:
        self.group, self.context = group, context
        self.writer: Writer = context.writer(group)
        self.ev: Evaluator = context.evaluator(group, self.writer)
        self.sizes: list[int] = []
        self.local: list[int] = []                               # of a work-group, where items are many
        self.inside = ExitStack()                                # the guards that keep out items beyond the last

    @cached_property
    def node(self) -> Node:
        """What it computes, of an anchored group."""
        return self.group.anchor

    def item(self, name: str, count: int) -> Index:
        """The number of the work-item along a new dimension of the launch, as variable `name`."""
        if count <= 1:
            return constant(0)
        w, axis = self.writer, len(self.sizes)
        if self.context.target.traits.long_items:
            self.sizes.append(count)
            return w.item(name, count, axis).index
        left = min(tuning().owners, self.context.target.max_work_group) // prod(self.local)
        self.local.append(min(left, 1 << (count - 1).bit_length()))
        self.sizes.append(-(-count // self.local[-1]) * self.local[-1])
        var = w.item(name, count, axis)
        if self.sizes[-1] > count:
            self.inside.enter_context(w.branch(Infix("<", w.at(var), whole(count)), (("range", var.index, 0, count),)))
            w.bind(var)
        return var.index

    def part(self, name: str, size: int, length: int) -> tuple[BoundLike, BoundLike]:
        """The range of 0..size-1 that this work-item owns, `length` each; name: what is counted."""
        if length >= size:
            return 0, size
        w = self.writer
        item = self.item(f"{name}_part", -(-size // length))
        first = w.bounding(f"{name}_first", size, item * length)
        end = Bound(w.at(first.index + length), None, item * length + length)
        return first, w.bounding(f"{name}_last", size, clipped(end, size, length))

    @contextmanager
    def loop(self, name: str, size: int, first: BoundLike = 0, last: BoundLike | None = None) -> Iterator[Index]:
        """`for (name = first; name < last; name++)`; first 1 is known to the index arithmetic."""
        if size == 1 and first == 0:
            yield constant(0)
            return
        var = Var(name, size - 1, 1) if first == 1 and size > 1 else Var(name, size)
        with self.writer.loop(var, first, size if last is None else last):
            yield var.index

    def vectors(self, name: str, size: int, width: int, body: Callable[[Index], None]) -> None:
        """body for every one of 0..size-1: in vectors of `width`, what is left in a narrower one and one by one."""
        kept = varies(size)
        for lanes, low, high in self.pieces(size, width):
            if high > low or kept:
                var, low = Var(name, size), min(low, size - lanes)
                with self.writer.loop(var, low, max(low, high), lanes, kept=kept), self.ev.along(var, lanes):
                    body(var.index)

    def pieces(self, size: int, width: int) -> list[tuple[int, int, int]]:
        """(lanes, begin, end): whole vectors, then a narrower one of 4 lanes at least, if that is known to fit, then single elements."""
        whole = size - size % width
        few = size - whole
        narrow = bit_floor(few) if few >= 4 and not varies(size) and self.group.statements <= tuning().tail_statements else 0
        narrower = [(narrow, whole, whole + narrow)] if narrow else []
        return [(width, 0, whole), *narrower, (1, whole + narrow, size)]

    def columns(
        self, name: str, size: int, first: BoundLike, last: BoundLike, body: Callable[[Index], None], most: int = 16
    ) -> None:
        """body for every column from first to last: in vectors of `most` lanes at most, what is left in a narrower one, if all are done,
        and one by one."""
        w, ev = self.writer, self.ev
        vectors = self.context.target.traits.vectors and self.node.dtype.kind != "b"
        width = min(most, vector_width(self.group, self.context)) if vectors else 1
        if size == 1:
            body(constant(0))
            return
        if first == 0 and last == size:
            for lanes, low, high in self.pieces(size, width) if width > 1 else [(1, 0, size)]:
                if high > low:
                    var = Var(name, size)
                    with w.loop(var, low, high, lanes), ev.along(var, lanes):
                        body(var.index)
            return
        if size < width:
            width = 1
        if width > 1:
            var = Var(name, size)
            with w.loop(var, first, last, width, whole=True), ev.along(var, width):
                body(var.index)
        var = Var(name, size)
        with w.loop(var, first if width == 1 else rest(first, last, width), last):
            body(var.index)

    def add(self, a: Expression, b: Expression, name: str) -> Local:
        """a + b in a new variable (of bools: or)."""
        if max(a.lanes, b.lanes) > 1:
            a, b = self.ev.vector(a), self.ev.vector(b)
        return self.writer.declare(name, Infix("|" if a.dtype.kind == "b" else "+", a, b), self.node)

    def clamped(self, index: Expression, count: int) -> Index:
        """A row number that was read, brought into range: negative ones are 0, those beyond the end the last."""
        if count == 1:
            return constant(0)
        return self.writer.computed("at", count, self.ev.clamped(index, count - 1), self.node).index

    def finish(self) -> Kernel:
        self.inside.close()
        if not self.context.target.traits.long_items:
            return self.context.finish(self.group, self.writer, tuple(self.sizes) or (1,), tuple(self.local) or (1,))
        return self.context.finish(self.group, self.writer, tuple(self.sizes) or (1,), (1,) * max(1, len(self.sizes)), True)

    def operand_buffer(self, node: Node, name: str = "") -> Buffer:
        """The buffer that has a node which is not computed here."""
        node = strip(node)
        stored = self.ev.storage(node)
        assert stored is not None                                # the schedule stores what an anchor reads
        return self.writer.buffer(stored.ref, name or self.writer.base(node), node.dtype, stored.access)

    def output(self, node: Node | None = None) -> Buffer:
        """The buffer that a node is written to: the anchor, if none is given."""
        node = node or self.node
        out = self.context.output(self.group, node)
        return self.writer.buffer(out.ref, self.writer.base(node), node.dtype, out.access)

    def temp(self, temp: Temp, name: str, access: str) -> Buffer:
        return self.writer.buffer(temp, name, temp.dtype, access)


def column_part(o: KernelBuilder, inner: int, rows: int, least: int = 16) -> tuple[BoundLike, BoundLike]:
    """The columns that a work-item does: all, if the rows and chunks are enough work for every core. On a CPU: multiples of `least`."""
    length = -(-inner // max(1, parts(o.context) // rows))
    return o.part("column", inner, -(-length // least) * least if o.context.target.traits.vectors else length)


def scratch(dtype: DType) -> DType:
    """The dtype in which values of `dtype` lie in scratch buffers: one that every device loads and stores plainly."""
    return np.dtype(np.uint8) if dtype.kind == "b" else computed_in(dtype)


def view(node: Node, dim: int) -> tuple[int, int, int]:
    """(outer, n, inner) of a node around its dimension `dim`."""
    outer = inner = 1
    for d, size in enumerate(node.shape):
        outer *= size if d < dim else 1
        inner *= size if d > dim else 1
    return outer, node.shape[dim], inner
