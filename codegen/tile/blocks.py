"""Blocks that a work-item of a CPU keeps between one product and the next, where there are several: attention. Start at `Blocks`.

A block is an array of the work-item's own. All of a kernel's blocks have the same columns, which are vectors, and lines of their own: a
product's accumulators are a tile of lines by columns, and what is computed of columns (the largest, sums) needs no lanes added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Literal, Load, Local, Select, Splat, Zeros
from tracegrad.codegen.kernel.ir.statements import Access, Array, Block, clipped_at
from tracegrad.codegen.kernel.ir.vectors import ctype, lanes
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.support.dtypes import DType

Limit = tuple[Index, int]                     # this and the number of a line together are less than that
Columns = tuple[int, Callable[[Index], Expression]]          # lanes, and what they are at an index along what is added up


class Blocks:
    """One kernel while it is written. columns: of a block, `vectors` vectors; tall: the lines of a tile of accumulators."""

    def __init__(self, w: Writer, dtype: DType, vectors: int) -> None:
        self.w, self.dtype, self.vectors = w, dtype, vectors
        self.lanes = lanes(dtype, w.target)
        self.columns = vectors * self.lanes
        self.tall = max(1, min(12, (w.target.registers - vectors - 1) // vectors))

    # -- values

    def number(self, x: float) -> Literal:
        return Literal(x, self.dtype)

    def splat(self, x: Expression | float) -> Expression:
        """A vector with the number in all lanes."""
        value = x if isinstance(x, Expression) else self.number(x)
        return Splat(value, self.lanes) if self.lanes > 1 else value

    def let(self, name: str, value: Expression, changes: bool = False) -> Local:
        return self.w.let(self.w.own(name), value, changes=changes)

    def values(self, name: str, of: Callable[[int], Expression], changes: bool = False) -> list[Local]:
        """A value of each column: a variable for each vector."""
        return [self.let(f"{name}{p}", of(p), changes) for p in range(self.vectors)]

    def left(self, name: str, x: Index, size: int) -> Index:
        """How many of `size` lines or columns there are, where x are left in all."""
        if not x.terms and x.constant >= size:
            return constant(size)
        var = self.w.bounding(self.w.own(name), size, clipped_at(x, size, True))
        self.w.bind(var)
        return var.index

    # -- blocks

    def keep(self, name: str, lines: int) -> Array:
        return self.w.array(self.w.own(name), ctype(self.dtype), lines * self.columns, reserved=True)

    def at(self, block: Array, line: Index | int, p: int) -> Access:
        """Vector number p of a line."""
        return Access(block, constant(0) + line * self.columns + p * self.lanes, each=self.lanes)

    def read(self, block: Array, line: Index | int, p: int) -> Load:
        return Load(self.at(block, line, p), self.dtype, self.lanes)

    def element(self, block: Array, line: Index, r: int, column: Index) -> Load:
        """One element of line r behind one."""
        return Load(Access(block, (line + r) * self.columns + column), self.dtype)

    def fill(self, block: Array, value: Expression) -> None:
        with self.w.scope(), self.counted("e", constant(block.size)) as e:
            self.w.store(Access(block, e), value)

    def gather(self, block: Array, lines: Index, source: Callable[[Index], Callable[[Index], Expression]], limits: Sequence[Limit] = ()
               ) -> None:
        """The block is what `source` has, of the number of a column, of that of a line."""
        with self.w.scope(), self.counted("i", constant(self.columns)) as i:
            found = source(i)
            with self.counted("e", lines, limits=limits) as e:
                self.w.store(Access(block, e * self.columns + i), found(e))

    def scatter(self, block: Array, lines: int, columns: Index, limit: Limit, root: Callable[[Index, Index], Access]) -> None:
        """The first columns of the block go where `root` says for the number of a column and that of a line."""
        with self.w.scope(), self.counted("i", columns, limits=(limit,)) as i, self.counted("e", constant(lines)) as e:
            self.w.store(root(i, e), Load(Access(block, e * self.columns + i), self.dtype))

    # -- products

    @contextmanager
    def counted(self, name: str, stop: Index, first: Index = ZERO, rows: int = 1, limits: Sequence[Limit] = ()) -> Iterator[Index]:
        """A loop over lines, `rows` in each iteration; of one turn it is none."""
        if not stop.terms and not first.terms and first.constant + rows >= stop.constant > first.constant:
            with self.w.block(Block("{")):
                yield first
            return
        var = Var(self.w.own(name), stop.hi)
        known = tuple([("range", base + var.index, 0, size - rows + 1) for base, size in limits])
        with self.w.loop(var, first, stop, rows, whole=rows > 1, known=known):
            yield var.index

    def lines(self, name: str, stop: Index, limits: Sequence[Limit] = ()) -> Iterator[tuple[Index, int]]:
        """Loops over tiles of lines: each with where a tile begins, and of how many it is."""
        whole, rest = stop // self.tall * self.tall, self.tall if stop.terms else stop.constant % self.tall
        if stop.hi >= self.tall:
            with self.w.scope(), self.counted(name, stop, rows=self.tall, limits=limits) as line:
                yield line, self.tall
        if stop.terms:
            with self.w.scope(), self.counted(name, stop, whole, limits=limits) as line:
                yield line, 1
        elif rest:
            with self.w.scope(), self.counted(name, stop, whole, rest, limits) as line:
                yield line, rest

    def dot(
        self, rows: int, name: str, stop: Index, a: Callable[[int, Index], Expression], columns: Sequence[Columns],
        limits: Sequence[Limit] = (), begin: Callable[[int, int], Expression] | None = None,
    ) -> list[list[Local]]:
        """A tile of accumulators: the sums of a(row, k) times each of the columns at k, for k from 0 to `stop`.

        begin: what they are before, of a row and the number of its vector, if not 0.
        """
        into = [[self.let(f"c{r}_{p}", begin(r, p) if begin else Zeros(self.dtype, n), changes=True) for p, (n, _) in enumerate(columns)]
                for r in range(rows)]
        with self.w.scope(), self.counted(name, stop, limits=limits) as k:
            right = [self.let(f"b{p}", read(k)) for p, (_, read) in enumerate(columns)]
            for r, row in enumerate(into):
                left = self.let(f"a{r}", a(r, k))
                for c, x in zip(row, right, strict=True):
                    self.w.update(c, "+", Infix("*", left, x))
        return into

    def vector(self, block: Array, p: int) -> Columns:
        """Vector number p of a block, where its lines are added up."""
        return self.lanes, lambda k: self.read(block, k, p)

    def of(self, block: Array) -> list[Columns]:
        return [self.vector(block, p) for p in range(self.vectors)]

    def larger(self, a: Expression, b: Expression) -> Select:
        """The larger of two numbers; b if a is none."""
        return Select(Infix(">", a, b), a, b)
