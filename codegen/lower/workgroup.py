"""Kernels for GPUs in which the items of a work-group work together through local memory, written line by line. Start at `WorkGroup`.

Scans, searches, sorting, selection and scatters are of this form. Loads go through the evaluator as everywhere; what lies between them is
text that says which arrays it touches. Where a device has no local memory, the kernels for owners of parts (serial.py) are its.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from tracegrad.codegen.kernel.expressions import Expression, Infix, Local, Operand, Verbatim
from tracegrad.codegen.kernel.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.markup import marked, names_in
from tracegrad.codegen.kernel.names import WORK_GROUPS
from tracegrad.codegen.kernel.statements import Access, Allocate, Array, Block, Bound, BoundLike, Buffer, Declare, Parts
from tracegrad.codegen.kernel.vectors import Term
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.serial import KernelBuilder
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.ir import Node


def room(context: Context, bytes_: int = 0) -> int:
    """Work-items of a group that work together, a power of two; bytes_: of local memory that each needs. Less than 2: they cannot."""
    if not context.target.local_memory:
        return 1
    size = 1 << (min(tuning().group, context.target.max_work_group).bit_length() - 1)
    while size > 1 and size * bytes_ > context.target.local_memory:
        size //= 2
    return size


class WorkGroup(KernelBuilder):
    """One kernel while it is written; `node` is what it computes."""

    def __init__(self, group: Group, context: Context) -> None:
        super().__init__(group, context)
        self.writer.reserve(WORK_GROUPS)
        self.arrays: tuple[Array, ...] = ()
        self.loaded: list[Local] = []                        # those that lines mention are marked there

    def number(self, name: str, count: int, axis: int, of: str) -> Var:
        """The number of the item in its group ("local"), of the group, or of the item in all ("global"), along an axis of the launch."""
        return self.writer.item(name, count, axis, of, "int" if of == "local" else "")

    def shared(self, name: str, type_: str, size: int) -> Array:
        """An array of the work-group."""
        array = Array(name, type_, size, True)
        self.writer.add(Allocate(array))
        self.arrays += (array,)
        return array

    def lines(self, lines: Sequence[str], reads: Parts = (), writes: Sequence[Buffer] = ()) -> None:
        """Lines of C; what they touch of buffers only the running program knows."""
        arrays, names = self.arrays, set(names_in("".join(lines)))
        loaded = (x for x in dict.fromkeys(self.loaded) if x.name in names)
        self.writer.text(lines, self.node, (*reads, *loaded, *arrays), (*arrays, *(Access(b, None) for b in writes)))

    def barrier(self) -> None:
        self.writer.barrier()

    @contextmanager
    def block(self, head: str, *vars: Var, reads: Parts = ()) -> Iterator[None]:
        """A block; vars: what depends on them is computed in it, and they are in their ranges there."""
        with self.writer.block(Block(head, reads, vars, known=tuple(("range", v.index, v.lo, v.hi + 1) for v in vars))):
            yield

    @contextmanager
    def each(self, name: str, size: int, start: str, stop: str, step: int = 1, reads: Parts = ()) -> Iterator[Var]:
        """A loop from start to stop, which lie in 0..size."""
        var = Var(name, size)
        first, end = (Verbatim(text, self.writer.index_dtype, 1, reads) for text in (start, stop))
        with self.writer.loop(var, Bound(first, ZERO, None), Bound(end, None, None, size), step):
            yield var

    def at(self, name: str, size: int, text: str, reads: Parts = ()) -> Var:
        """An index variable: in 0..size-1 wherever something is read or written at it."""
        var = Var(name, size)
        value = Verbatim(text, self.writer.index_dtype, 1, reads)
        self.writer.add(Declare(var, self.writer.index, value, self.node))
        self.writer.bind(var)
        return var

    def output(self) -> Buffer:
        out = self.context.output(self.group, self.node)
        return self.writer.buffer(out.ref, self.writer.base(self.node), self.node.dtype, out.access)

    def temp(self, temp: Temp, name: str, access: str) -> Buffer:
        return self.writer.buffer(temp, name, temp.dtype, access)

    def load(self, node: Node, at: Index) -> str:
        """The element `at`, loaded in the block that is open."""
        local = self.value(node, at)
        self.loaded.append(local)
        return marked(local.name)

    def value(self, node: Node, at: Index) -> Local:
        """The element `at`, in a variable if it is no other's yet."""
        value = self.ev.value(node, at)
        return value if isinstance(value, Local) else self.writer.declare(self.writer.base(node), value, self.node)

    @contextmanager
    def times(self, name: str, count: int, stop: BoundLike | None = None, unrolled: bool = False) -> Iterator[Index]:
        """A loop from 0 to `count`, or `stop`, which is not above it."""
        var = Var(name, count)
        with self.writer.loop(var, 0, count if stop is None else stop, unrolled=unrolled):
            yield var.index

    @contextmanager
    def where(self, *limits: tuple[Index, Operand]) -> Iterator[None]:
        """A block where each of these indices is below its limit; none, if there are no limits."""
        if not limits:
            yield
            return
        condition: Expression = Infix("<", *limits[0])
        for at, limit in limits[1:]:
            condition = Infix("&&", condition, Infix("<", at, limit))
        known = tuple(("range", at, 0, limit) for at, limit in limits if isinstance(limit, int))
        with self.writer.branch(condition, known) as block:
            block.vars.update(*(at.vars for at, _ in limits))    # what depends on them is computed in it
            yield

    def done(self, sizes: Sequence[int], local: Sequence[int], work: int = 0) -> Kernel:
        """The kernel; work: the elements that it goes over, where they are not the group's."""
        made = self.context.finish(self.group, self.writer, tuple(sizes), tuple(local), True)
        return replace(made, flops=work, bytes=12 * work) if work else made


def put(buffer: Buffer, at: Term, value: str) -> str:
    """The line that writes an element."""
    return f"vstore_half({value}, {at}, {buffer});" if buffer.dtype == np.float16 else f"{buffer}[{at}] = {value};"


def precedes(node: Node, a: Expression, b: Expression) -> Expression:
    """Whether key a must stand before key b, where `node` sorts or selects."""
    descending, is_float = node.attrs["descending"], node.operands[0].dtype.kind == "f"
    plain = Infix(">" if descending else "<", a, b)
    nan, other = (a, b) if descending else (b, a)
    return Infix("||", plain, Infix("&&", Infix("!=", nan, nan), Infix("==", other, other))) if is_float else plain
