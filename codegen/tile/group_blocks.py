"""Blocks that a work-group keeps in local memory, and products of them in registers: attention on GPUs. Start at `GroupBlocks`.

Item (x, y) of X * Y has of a product of two blocks the group's own lines y, y + Y, ... by the others x, x + X, ...: neighbours in local
memory, in lines of four elements more than a multiple of 32 banks, so that vectors of four come without conflicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Lanes, Literal, Load, Local, Select, Splat, combined
from tracegrad.codegen.kernel.ir.statements import Access, Allocate, Array, Block, Buffer
from tracegrad.codegen.kernel.ir.vectors import ceil_div, ctype
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.support.dtypes import DType

OTHERS = 4                    # lines of the others that an item has: a vector
PAD = 4                       # elements behind a line in local memory, so that the lines' beginnings are in different banks


class GroupBlocks:
    """One kernel while it is written. rows: own lines that an item has; padded: what a line in local memory holds, for its size."""

    def __init__(self, w: Writer, dtype: DType, across: int, down: int, rows: int, padded: Callable[[int], int]) -> None:
        self.w, self.dtype, self.rows, self.padded = w, dtype, rows, padded
        self.X, self.Y, self.own, self.other = across, down, down * rows, across * OTHERS

    def start(self) -> None:
        """Declare the item's numbers."""
        self.x, self.y = (self.number(name, n, dim, "local") for dim, (name, n) in enumerate((("x", self.X), ("y", self.Y))))
        self.item = self.w.indexed("item", self.y * self.X + self.x)

    def number(self, name: str, count: int, dim: int, of: str) -> Index:
        """The number of an item in its group, of a group, or of an item among all."""
        return self.w.item(self.w.own(name), count, dim, of, "int" if of == "local" else "").index if count > 1 else ZERO

    # -- small things

    def literal(self, x: float) -> Literal:
        return Literal(x, self.dtype)

    def let(self, name: str, x: Expression, changes: bool = False) -> Local:
        return self.w.let(self.w.own(name), x, changes=changes)

    def local(self, name: str, size: int) -> Array:
        """An array of the group's."""
        array = Array(self.w.own(name), ctype(self.dtype), size, True, aligned=32)
        self.w.add(Allocate(array))
        return array

    def registers(self, name: str, n: int, lanes: int = 1) -> Array:
        """An array of the item's, which is in registers: it is indexed in loops that are written out."""
        return self.w.array(self.w.own(name), ctype(self.dtype, lanes), n, reserved=True)

    def filled(self, name: str, n: int, x: float, lanes: int = 1) -> Array:
        made = self.registers(name, n, lanes)
        with self.each(n=n) as (at,):
            self.set(made, at, Splat(self.literal(x), lanes) if lanes > 1 else self.literal(x))
        return made

    def at(self, array: Array, at: Index | int) -> Load:
        """An element of an item's array."""
        return Load(Access(array, ZERO + at), self.dtype, array.lanes)

    def set(self, array: Array, at: Index | int, x: Expression) -> None:
        self.w.store(Access(array, ZERO + at), x)

    def update(self, array: Array, at: Index | int, sign: str, x: Expression) -> None:
        self.w.update(Access(array, ZERO + at), sign, x)

    def vector(self, array: Array, at: Index) -> Load:
        """Four elements of local memory."""
        return Load(Access(array, at, each=OTHERS), self.dtype, OTHERS)

    @contextmanager
    def each(self, **counts: int) -> Iterator[list[Index]]:
        """Loops over an item's registers that are written out, or just a block where all have one iteration."""
        with self.w.scope(), ExitStack() as inside:
            found = []
            for name, n in counts.items():
                found.append(ZERO)
                if n > 1:
                    var = Var(self.w.own(name), n)
                    inside.enter_context(self.w.loop(var, 0, n, unrolled=1))
                    found[-1] = var.index
            if max(counts.values()) == 1:
                inside.enter_context(self.w.block(Block("{")))
            yield found

    @contextmanager
    def loop(self, name: str, first: Index, stop: int, step: int) -> Iterator[Index]:
        """A loop from `first` to `stop`, in steps."""
        with self.w.scope():
            var = Var(self.w.own(name), stop)
            with self.w.loop(var, first, stop, step):
                yield var.index

    @contextmanager
    def only(self, *tests: Expression | None) -> Iterator[None]:
        """Where all of these hold that are tests at all."""
        test = combined("&&", tests)
        with ExitStack() as inside:
            if test is not None:
                inside.enter_context(self.w.branch(test))
            yield

    def less(self, x: Index, size: int) -> Infix | None:
        """The test that x is less, if it has to be tested."""
        return Infix("<", self.w.at(x), size) if x.hi >= size else None

    # -- lines

    def line(self, r: Index) -> Index:
        """The own line number r of an item, in the block."""
        return self.y + r * self.Y

    def column(self, n: Index) -> Index:
        """The other line number n of an item, in the block."""
        return self.x + n * self.X

    def pitch(self, size: int) -> int:
        return self.padded(size) + PAD

    def chunks(self, size: int) -> int:
        """How many vectors of a line of a result are an item's."""
        return self.padded(size) // (OTHERS * self.X)

    def fetch(self, to: Array, source: Buffer, lines: int, first: Index, head: Index, total: int, size: int, factor: float | None = None
              ) -> None:
        """The block of lines from `first` on of a head's `total`, each of `size`; zeros where there is nothing."""
        w, padded = self.w, self.padded(size)
        with self.loop("unit", self.item, lines * padded, self.X * self.Y) as unit:
            line, e = w.indexed("line", unit // padded), w.indexed("e", unit % padded)
            tests = [self.less(first + line, total), Infix("<", w.at(e), size) if size < padded else None]
            place = (head * total + bounded(first + line, 0, total)) * size + bounded(e, 0, size)
            x: Expression = Load(Access(source, place), self.dtype)
            x = x if factor is None else Infix("*", x, self.literal(factor))
            test = combined("&&", tests)
            w.store(Access(to, line * self.pitch(size) + e), x if test is None else Select(test, x, self.literal(0.0)))

    def dots(self, name: str, own: Array, other: Array, size: int) -> Array:
        """[r * 4 + n]: the products of own lines and the others."""
        pitch, to = self.pitch(size), self.filled(name, self.rows * OTHERS, 0.0)
        with self.loop("e", ZERO, ceil_div(size, OTHERS) * OTHERS, OTHERS) as e:
            a, b = self.registers("a", self.rows, OTHERS), self.registers("b", OTHERS, OTHERS)
            with self.each(r=self.rows) as (r,):
                self.set(a, r, self.vector(own, self.line(r) * pitch + e))
            with self.each(n=OTHERS) as (n,):
                self.set(b, n, self.vector(other, self.column(n) * pitch + e))
            with self.each(r=self.rows, n=OTHERS) as (r, n):
                for lane in range(OTHERS):
                    self.update(to, r * OTHERS + n, "+", Infix("*", Lanes(self.at(a, r), lane), Lanes(self.at(b, n), lane)))
        return to

    def put(self, to: Array, values: Array) -> None:
        """What an item has of a product into local memory, for all to see: own lines of all others."""
        with self.each(r=self.rows, n=OTHERS) as (r, n):
            self.w.store(Access(to, self.line(r) * (self.other + PAD) + self.column(n)), self.at(values, r * OTHERS + n))
        self.w.barrier()

    def add(self, to: Array, weights: Array, values: Array, size: int, apart: bool) -> None:
        """to[r * chunks + n] += weights values, of the own lines and of the columns (x + X n) * 4 and the three behind.

        apart: the block's sum is made first, so that no accumulator adds up very many.
        """
        w, chunks, pitch = self.w, self.chunks(size), self.pitch(size)
        with w.scope(), w.block(Block("{")) if apart else ExitStack():
            into = self.filled("some", to.size, 0.0, OTHERS) if apart else to
            with self.loop("j", ZERO, self.other, OTHERS) as j:
                a = self.registers("a", self.rows, OTHERS)
                with self.each(r=self.rows) as (r,):
                    self.set(a, r, self.vector(weights, self.line(r) * (self.other + PAD) + j))
                with self.each(n=chunks) as (n,):
                    for lane in range(OTHERS):
                        b = self.let(f"b{lane}", self.vector(values, (j + lane) * pitch + self.column(n) * OTHERS))
                        with self.each(r=self.rows) as (r,):
                            self.update(into, r * chunks + n, "+", Infix("*", Lanes(self.at(a, r), lane), b))
            if apart:
                with self.each(n=to.size) as (n,):
                    self.update(to, n, "+", self.at(into, n))

    def store(self, to: Buffer, place: Callable[[Index], Index], first: Index, total: int, size: int,
              value: Callable[[Index, Index], Expression]) -> None:
        """Own lines of a result, at place(line): value(r, r * chunks + n), columns as in `add`."""
        w, chunks = self.w, self.chunks(size)
        with self.each(r=self.rows) as (r,):
            line = w.indexed("line", first + self.line(r))
            with self.only(self.less(line, total)), self.each(n=chunks) as (n,):
                e, start = w.indexed("e", self.column(n) * OTHERS), place(bounded(line, 0, total))
                some = self.let("some", value(r, r * chunks + n))
                if size % OTHERS == 0:
                    with self.only(self.less(e, size - OTHERS + 1)):
                        w.store(Access(to, start + bounded(e, 0, size - OTHERS + 1), each=OTHERS), some)
                for lane in range(min(OTHERS, size) if size % OTHERS else 0):
                    with self.only(self.less(e + lane, size)):
                        w.store(Access(to, start + bounded(e + lane, 0, size)), Lanes(some, lane))

    def across(self, shares: Array, pitch: int, r: Index, start: Expression, put: Callable[[Expression, Expression], Expression], to: Array
               ) -> None:
        """to[r]: what the items of a row have left in local memory, put together."""
        self.set(to, r, start)
        with self.each(n=self.X) as (n,):
            self.set(to, r, put(Load(Access(shares, self.line(r) * pitch + n), self.dtype), self.at(to, r)))
