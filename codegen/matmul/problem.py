"""What a matrix product is: its operands, its result, and the sums of parts of k. Start at `Product`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.fused import Fused, Map, Strided, statements
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.program import Add, Axis, ElementAt, Load, Loop, Program, Step, Store, Tile, Zeros, summed
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Plain, Target
from tracegrad.support.tuning import tuning


class Operand(Plain):
    """A matrix seen as lines (rows of A, columns of B) along k. where: the element of `node` at (batch, line, k).

    across: neighbouring lines are read side by side rather than neighbours along k. strided: how it lies, if it is stored as it is read.
    batched: whether it depends on the batch.
    """

    node: Node
    where: Map
    across: bool
    strided: Strided | None = None
    batched: bool = True


class Product(Plain):
    """C[b, i, j], the sum over k of A[b, i, k] * B[b, k, j]. where: the element of `result` that is C's.

    begin: declares what there is to know of a batch, and how many k it has, if not always all.
    """

    group: Group
    context: Context
    name: str
    batch: int
    m: int
    n: int
    k: int
    dtype: DType
    a: Operand
    b: Operand
    result: Node
    where: Map
    bytes: int
    begin: Callable[[Fused, Index], Var | None] | None = None

    @property
    def target(self) -> Target:
        return self.context.target

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def statements(self) -> int:
        """That an element of the result takes."""
        return statements(self.group, self.context, self.result, self.where, self.dtype, (self.batch, self.m, self.n))

    def length(self, parts: int, unit: int) -> int:
        """Of each of so many parts of k, in multiples of `unit`."""
        return -(-self.k // (parts * unit)) * unit

    def partial(self, parts: int) -> Temp:
        """The results of parts of k."""
        return Temp(f"{self.name}_partial", self.result, parts * self.batch * self.m * self.n, self.dtype)


def total(
    f: Fused, entry: str, axes: tuple[Axis, ...], local: tuple[int, ...], c: Tile, part: Axis, partial: ElementAt | None, root: ElementAt,
    each: str, of: str = "k", statements: int = 1,
) -> Kernel:
    """The kernel that adds the partial results of a sum in order and runs the epilogue; with none it stores zeros.

    axes: of the program; partial: elements along `part` and the axes of `c`; each: what a work-item does; of: what was cut into parts.
    """
    steps: tuple[Step, ...] = (Zeros(c), Store(c, root, statements))
    if partial is not None:
        value = Tile("value", (part, *c.axes), c.dtype)
        steps = summed(Loop(part, (Load(value, partial), Add(c, value)), steps=tuning().product_blocks), root, statements)
    program = Program(axes, local, steps)
    parts = part.size if partial is not None else 0
    moved = (parts + 1) * prod(axis.size for axis in c.axes)
    about = f"Adds up {parts} partial results, {each}." if parts else "An empty sum: all zeros."
    note = f"adds up {parts} parts of {of}"
    return f.kernel(program, f"{entry}_total" if parts else entry, about, moved, moved * c.dtype.itemsize, note)
