"""Kernels for GPUs in which the items of a work-group work together through local memory. Start at `WorkGroup`.

Scans, searches, sorting, selection and scatters are of this form. Loads go through the evaluator as everywhere. Where a device has no local
memory, the kernels for owners of parts (serial.py) are its.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Local, Operand
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Array, Bound, BoundLike, Buffer
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.serial import KernelBuilder
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.tuning import tuning


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

    def number(self, name: str, count: int, axis: int, of: str) -> Var:
        """The number of the item in its group ("local"), of the group, or of the item in all ("global"), along an axis of the launch."""
        return self.writer.item(name, count, axis, of, "int" if of == "local" else "")

    def shared(self, name: str, type_: str, size: int) -> Array:
        """An array of the work-group."""
        return self.writer.array(name, type_, size, True)

    def barrier(self) -> None:
        self.writer.barrier()

    def output(self) -> Buffer:
        out = self.context.output(self.group, self.node)
        return self.writer.buffer(out.ref, self.writer.base(self.node), self.node.dtype, out.access)

    def temp(self, temp: Temp, name: str, access: str) -> Buffer:
        return self.writer.buffer(temp, name, temp.dtype, access)

    def value(self, node: Node, at: Index) -> Local:
        """The element `at`, in a variable if it is no other's yet."""
        value = self.ev.value(node, at)
        return value if isinstance(value, Local) else self.writer.declare(self.writer.base(node), value, self.node)

    def ends(self, chunk: Var | None, length: int, n: int) -> tuple[Index, Index]:
        """Where a chunk of `length` of the n elements of a row begins, and where it ends; None: there is but one."""
        if chunk is None:
            return ZERO, constant(n)
        end = chunk.index * length + length
        stop = end if n % length == 0 else self.writer.bounding("stop", n, Bound(self.writer.least(end, n), ZERO, end, n)).index
        return chunk.index * length, stop

    @contextmanager
    def times(self, name: str, count: int, stop: BoundLike | None = None, first: BoundLike = 0, unrolled: bool = False) -> Iterator[Index]:
        """A loop from `first` to `count`, or to `stop`, which is not above it."""
        var = Var(name, count)
        with self.writer.loop(var, first, count if stop is None else stop, unrolled=unrolled):
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
        known = tuple(("range", at, 0, limit if isinstance(limit, int) else limit.constant) for at, limit in limits
                      if isinstance(limit, int) or (isinstance(limit, Index) and not limit.terms))
        with self.only(condition, *(at for at, _ in limits), known=known):
            yield

    @contextmanager
    def only(self, condition: Expression, *of: Index, known: tuple[tuple[Any, ...], ...] = ()) -> Iterator[None]:
        """A block where a condition holds; what depends on the variables of these indices is computed in it. known: see Block."""
        with self.writer.branch(condition, known) as block:
            block.vars.update(*(at.vars for at in of))
            yield

    def done(self, sizes: Sequence[int], local: Sequence[int], work: int = 0, bytes_: int = 12) -> Kernel:
        """The kernel; work: the elements that it goes over, where they are not the group's, and bytes_ of each."""
        made = self.context.finish(self.group, self.writer, tuple(sizes), tuple(local), True)
        return replace(made, flops=work, bytes=bytes_ * work) if work else made


def precedes(node: Node, a: Expression, b: Expression) -> Expression:
    """Whether key a must stand before key b, where `node` sorts or selects."""
    descending, is_float = node.attrs["descending"], dtype_kind(node.operands[0].dtype) == "f"
    plain = Infix(">" if descending else "<", a, b)
    nan, other = (a, b) if descending else (b, a)
    return Infix("||", plain, Infix("&&", Infix("!=", nan, nan), Infix("==", other, other))) if is_float else plain
