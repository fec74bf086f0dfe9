"""Kernels for GPUs in which the items of a work-group work together through local memory. Start at `WorkGroup`.

Scans, searches, sorting, selection and scatters are of this form. Loads go through the evaluator as everywhere. Where a device has no local
memory, the kernels for owners of parts (serial.py) are its.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, constant
from tracegrad.codegen.kernel.index.varying import any_vary
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Local, Operand
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Array, Bound, BoundLike
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


class Spot(NamedTuple):
    """Where an item works on (outer, n, inner), see `WorkGroup.spot`.

    item: which of the `items` that go along a chunk of n; lane: which of those beside it; chunk, row, column: what it goes along. there:
    what limits row and column, where there are items beyond the last. here: its place in an array with an element for each item of
    the group; first: that of the first item of its chunk, and those of the others are `apart` elements behind each other.
    """

    item: Index
    lane: Index
    chunk: Index
    row: Index
    column: Index
    there: list[tuple[Index, int]]
    here: Index
    first: Index
    apart: int
    items: int


class WorkGroup(KernelBuilder):
    """One kernel while it is written; `node` is what it computes."""

    def spot(self, outer: int, inner: int, items: int, beside: int, chunks: int = 1) -> Spot:
        """The kernel is one of groups of `items` times `beside`: the former go along one of the chunks that n is cut into, the latter
        have columns beside each other, or rows where each is one column.
        """
        w, of_rows = self.writer, inner == 1
        item = w.number("item", items, 0 if of_rows else 1, "local")
        lane = w.number("line", beside, 1, "local") if of_rows else w.number("lane", beside, 0, "local")
        column = w.number("column", inner, 0)
        chunk = w.number("chunk", chunks, 0 if of_rows else 1, "group")
        row = w.number("row", outer, 1 if of_rows else 2, "global" if of_rows and beside > 1 else "group")
        count, number = (outer, row) if of_rows else (inner, column)
        padded = -(-count // beside) * beside
        self.sizes = [chunks * items, padded] if of_rows else [padded, chunks * items, outer]
        self.local = [items, beside] if of_rows else [beside, items, 1]
        first, apart = (lane * items, 1) if of_rows else (lane, beside)
        return Spot(item, lane, chunk, row, column, [(number, count)] * (padded > count), first + item * apart, first, apart, items)

    def tree(self, at: Spot, put: Callable[[Index, Index], None]) -> None:
        """What the items of a chunk have left in local memory is put together, in the first item's place: `put` takes to a place what is
        at another one."""
        self.barrier()
        with self.writer.halving(at.item, at.items) as half_size:
            put(at.here, at.here + half_size * at.apart)

    @contextmanager
    def first_of(self, at: Spot) -> Iterator[None]:
        """Where the item is the first of its chunk, and there is its row and column."""
        first = self.writer.branch(Infix("==", at.item, 0), (("range", at.item, 0, 1),)) if at.item.terms else nullcontext()
        with first, self.where(*at.there):
            yield

    def elements(self, count: int, most: int = 0, name: str = "i") -> tuple[Index, AbstractContextManager[None]]:
        """The kernel is one of an item for each of `count`: its number, and where there is that. most: of a group."""
        local = min(most or self.context.target.group(tuning().group), count)      # as few beyond the last as can be: they may read
        self.sizes, self.local = [-(-count // local) * local], [local]
        i = self.writer.item(name, count, 0).index                  # of one, too: equal kernels become one launch, which has the number
        return i, self.where(*[(i, count)] * (self.sizes[0] > count))

    def shared(self, name: str, type_: str, size: int) -> Array:
        """An array of the work-group."""
        return self.writer.array(name, type_, size, True)

    def barrier(self) -> None:
        self.writer.barrier()

    def value(self, node: Node, at: Index) -> Local:
        """The element `at`, in a variable if it is no other's yet."""
        value = self.ev.value(node, at)
        return value if isinstance(value, Local) else self.writer.declare(self.writer.base(node), value, self.node)

    def ends(self, chunk: Index, length: int, n: int) -> tuple[Index, Index]:
        """Where a chunk of `length` of the n elements of a row begins, and where it ends."""
        if not chunk.terms:
            return ZERO, constant(n)
        end = chunk * length + length
        stop = end
        if n % length or any_vary():
            stop = self.writer.bounding("stop", n, Bound(self.writer.least(end, n), ZERO, end, n)).index
        return chunk * length, stop

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

    def done(self, work: int = 0, bytes_: int = 12, required: bool = True, entry: str = "") -> Kernel:
        """The kernel; work: the elements that it goes over, where they are not the group's, and bytes_ of each."""
        while len(self.sizes) > 1 and self.sizes[-1] == 1:
            del self.sizes[-1], self.local[-1]
        made = self.context.finish(self.group, self.writer, tuple(self.sizes), tuple(self.local), required, entry)
        return replace(made, flops=work, bytes=bytes_ * work) if work else made


def precedes(node: Node, a: Expression, b: Expression) -> Expression:
    """Whether key a must stand before key b, where `node` sorts or selects."""
    descending, is_float = node.attrs["descending"], dtype_kind(node.operands[0].dtype) == "f"
    plain = Infix(">" if descending else "<", a, b)
    nan, other = (a, b) if descending else (b, a)
    return Infix("||", plain, Infix("&&", Infix("!=", nan, nan), Infix("==", other, other))) if is_float else plain
