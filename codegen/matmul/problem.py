"""What a matrix product is: its operands, its result, and the sums of parts of k. Start at `Product`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tracegrad.codegen.kernel.index.index import Index, Var, ravel
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.vectors import computed_in
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.fused import Fused, Map, Strided, as_it_lies, lies_across, plainly, read_for, statements
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.program import Add, Axis, ElementAt, Load, Loop, Program, Tile, summed
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType
from tracegrad.support.plan import Plain, Target
from tracegrad.support.tuning import tuning


class Operand(Plain):
    """A matrix seen as `count` lines (rows of A, columns of B) along k. where: the element of `node` at (batch, line, k).

    across: neighbouring lines are read side by side rather than neighbours along k. strided: how it lies, if it is stored as it is read.
    batched: whether it depends on the batch. packed: the buffer that it was copied to, as elements at (batch, line, k), or, in panels, at
    (batch, panel, place in it, k); lines lie along k there.
    """

    name: str
    count: int
    node: Node
    where: Map
    across: bool
    strided: Strided | None = None
    batched: bool = True
    packed: Callable[[Fused], ElementAt] | None = None
    panels: bool = False

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Of batch, line and k, if it is an array as it is computed with."""
        plain = plainly(self.strided, self.node)
        return None if plain is None or self.packed is not None else plain.strides

    @property
    def along_k(self) -> bool:
        """Whether its lines lie along k, in a buffer."""
        return self.packed is not None or (self.strides is not None and self.strides[2] == 1)

    def source(self, f: Fused) -> ElementAt:
        """Its elements, with all that is computed where they are read."""
        plain = plainly(self.strided, self.node)
        return self.packed(f) if self.packed is not None else f.plain(plain) if plain is not None else f.operand(self.node, self.where)


class Product(Plain):
    """C[b, i, j], the sum over k of A[b, i, k] * B[b, k, j]. where: the element of `result` that is C's.

    begin: declares what there is to know of a batch, and how many k it has, if not always all. turned: A and B have changed places, so that
    vectors along j run down the columns of what is stored.
    """

    group: Group
    context: Context
    name: str
    batch: int
    k: int
    dtype: DType
    a: Operand
    b: Operand
    result: Node
    where: Map
    bytes: int
    begin: Callable[[Fused, Index], Var | None] | None = None
    turned: bool = False

    @classmethod
    def of(cls, group: Group, context: Context) -> Product:
        """The product that the group's anchor is. Fused with it are its operands' casts, transposes and broadcasts, and its epilogue."""
        product = group.anchor
        (x, y), batch = product.operands, prod(product.shape[:-2])
        m, n, k = x.shape[-2], y.shape[-1], x.shape[-1]

        def operand(name: str, node: Node, lines: int, flat: Callable[[Index, Index, Index], Index]) -> Operand:
            vars, read = read_for(group, context, node, (batch, lines, k), flat)
            batched = batch > 1 and any(vars[0] in x.reached() for x in read)
            lies = as_it_lies(group, context, node, (batch, lines, k), flat)
            return Operand(name, lines, node, lambda f, at: (flat(*at), ()), lies_across(vars, read, 1, 2), lies, batched)

        dtype = computed_in(product.dtype)
        return cls(group, context, context.entry(group), batch, k, dtype,
                   operand("a", x, m, lambda b, i, at: ravel((b, i, at), (batch, m, k))),
                   operand("b", y, n, lambda b, j, at: ravel((b, at, j), (batch, k, n))),
                   product, lambda f, at: (ravel(at, (batch, m, n)), ()), batch * (m * k + k * n + m * n) * dtype.itemsize)

    @property
    def m(self) -> int:
        return self.a.count

    @property
    def n(self) -> int:
        return self.b.count

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

    def transposed(self) -> Product:
        """C^T as B^T times A^T."""
        return replace(self, a=self.b, b=self.a, where=lambda f, at: self.where(f, (at[0], at[2], at[1])), turned=not self.turned)

    def length(self, parts: int, unit: int) -> int:
        """Of each of so many parts of k, in multiples of `unit`."""
        return -(-self.k // (parts * unit)) * unit


def partial(f: Fused, entry: str, dtype: DType, shape: tuple[int, ...], access: str = "out") -> ElementAt:
    """The results of parts of a sum, an array of `shape`: of which part, and the indices of its element."""
    return f.scratch(Temp(f"{entry}_partial", f.group.anchor, prod(shape), dtype), "partial", access, shape)


def total(
    f: Fused, entry: str, axes: tuple[Axis, ...], local: tuple[int, ...], dtype: DType, part: Axis, root: ElementAt, each: str,
    of: str = "k", statements: int = 1,
) -> Kernel:
    """The kernel that adds the partial results of a sum in order and runs the epilogue.

    axes: of the result, and behind `part` of the partial results; each: what a work-item does; of: what was cut into parts.
    """
    c, value = Tile("c", axes, dtype), Tile("value", (part, *axes), dtype)
    given = partial(f, entry, dtype, tuple(axis.size for axis in value.axes), "const")
    steps = summed(Loop(part, (Load(value, given), Add(c, value)), steps=tuning().product_blocks), root, statements)
    moved = (part.size + 1) * prod(axis.size for axis in axes)
    about, note = f"Adds up {part.size} partial results, {each}.", f"adds up {part.size} parts of {of}"
    return f.kernel(Program((*axes, part), local, steps), f"{entry}_total", about, moved, moved * dtype.itemsize, note)
