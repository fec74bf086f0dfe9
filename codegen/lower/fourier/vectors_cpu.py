"""Fourier transforms by vectors, each by one work-item. Start at `VectorTransforms.kernel`.

Stockham's order, decimated in frequency (W. Cochran et al., "What is the fast Fourier transform?", 1967): butterfly p of m, behind stages
whose radices have the product s, takes points q + s (p + k m), q < s, multiplies result k by exp(-2 pi i p k / (r m)) and puts it at
q + s (r p + k). So points beside each other stay beside each other, and a vector is one of q: its factors are numbers. Where there are
columns, vectors are of these. The first stage of a row has s = 1: there a vector is one of p, and its results are interleaved.

The parts of numbers are two arrays of the work-item's between the stages: each reads one pair and writes another. The first reads the
operand, with what is fused into it, the last writes the result. Real numbers are transformed as half as many complex ones; a pass
behind the stages (or in front, of spectra) puts together k and n - k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from math import log2
from typing import Any, NamedTuple

from tracegrad.codegen.graph.fourier.vectors_cpu import FEW_COLUMNS, stages
from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions import Access, Array, Expression, Lanes, Literal, Load, Prefix, Splat, Vector, Zip
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Bound, Declare, bound, rest
from tracegrad.codegen.kernel.ir.types import register_type
from tracegrad.codegen.kernel.ir.vectors import bit_floor, lanes
from tracegrad.codegen.kernel.lanes import is_name
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.fourier.butterflies import Arithmetic, Complex, butterfly
from tracegrad.codegen.lower.serial import KernelBuilder, column_part, parts
from tracegrad.codegen.schedule.grouping import Group


class _Stage(NamedTuple):
    """One stage: radix r, m butterflies for each of s points beside each other; table: where its factors begin."""

    r: int
    m: int
    s: int
    table: int


class VectorTransforms(KernelBuilder):
    """The kernel, while it is written."""

    def __init__(self, group: Group, context: Context) -> None:
        super().__init__(group, context)
        attrs = self.node.attrs
        self.n, self.of, self.scale, self.backwards = attrs["n"], attrs["of"], attrs["scale"], attrs["backwards"]
        self.dtype, self.math = self.node.dtype, Arithmetic(self.writer)
        self.outer, self.given, self.inner = self.node.operands[0].shape
        self.rows = self.inner == 1
        most = lanes(self.dtype, context.target)
        self.width = most if self.rows else min(most, bit_floor(self.inner))       # lanes of a vector, at most
        self.unit = 1 if self.rows else self.width                                 # elements of the arrays for a point
        self.stages, self.table = self.planned(stages(self.n, self.rows) or ())
        self.row, self.column = ZERO, ZERO
        self.arrays: list[tuple[Array, Array]] = []
        self.written = 0                                                           # times, so far, of one transform

    def planned(self, radices: Sequence[int]) -> tuple[list[_Stage], int]:
        """The stages, and where the factors of real numbers begin."""
        found, s, table = [], 1, 0
        for r in radices:
            m = self.n // (r * s)
            found.append(_Stage(r, m, s, table))
            table += 2 * (r - 1) * m if m > 1 else 0
            s *= r
        return found, table

    def kernel(self) -> Kernel:
        passes = len(self.stages) + (self.of != "complex")
        type_ = register_type(self.dtype)
        for k in range(min(2, passes - 1)):
            re, im = (self.writer.array(f"{name}{k}", type_, self.n * self.unit, node=self.node) for name in ("re", "im"))
            self.arrays.append((re, im))
        each = parts(self.context)
        first, last = self.part("row", self.outer, -(-self.outer // each))
        if self.rows:
            with self.loop("row", self.outer, first, last) as self.row:
                self.transform()
        else:
            self.columns_of(first, last)
        points = self.n * self.outer * self.inner
        return replace(self.finish(), flops=int(5 * points * log2(self.n)), bytes=4 * points * self.dtype.itemsize)

    def columns_of(self, first: Any, last: Any) -> None:
        """All columns, a vector of them at a time."""
        w, left = self.writer, self.inner % self.width
        if left > FEW_COLUMNS or self.inner < 2 * self.width:                      # the last vector begins where it fits
            with self.loop("row", self.outer, first, last) as self.row, self.blocks("column", self.inner, self.width) as column:
                self.along_columns(column, self.width)
            return
        low, high = column_part(self, self.inner, min(self.outer, parts(self.context)), self.width)
        with self.loop("row", self.outer, first, last) as self.row:
            column = Var("column", self.inner)
            with w.loop(column, low, high, self.width, whole=True):
                self.along_columns(column, self.width)
            if left:                                                               # one by one: work-items have columns of their own
                column = Var("column", self.inner)
                with w.loop(column, rest(low, high, self.width), high):
                    self.along_columns(column, 1)

    def along_columns(self, column: Var, width: int) -> None:
        self.unit = self.width = width
        with self.writer.scope(), self.ev.along(column, width):
            self.column = column.index
            self.transform()

    # -- loops

    @contextmanager
    def blocks(self, name: str, size: int, width: int) -> Iterator[Var]:
        """Vectors of `width` of 0..size-1, which is no less; the last one begins where it fits, so that some are computed twice."""
        w = self.writer
        if size % width == 0:
            var = Var(name, size)
            with w.loop(var, 0, size, width):
                yield var
            return
        number = Var(f"{name}_block", -(-size // width))
        with w.loop(number, 0, -(-size // width)):
            first = number.index * width
            yield self.computed(name, size, Bound(w.least(first, size - width), ZERO, first, size - width))

    def computed(self, name: str, size: int, value: Bound) -> Var:
        """An index whose vectors are in 0..size-1."""
        w = self.writer
        var = Var(name, size)
        w.add(Declare(var, f"const {w.index}", value.value, self.node, value))
        w.bind(var)
        return var

    # -- stages

    def transform(self) -> None:
        """One transform, or one of each lane."""
        self.written = 0
        if self.of == "half":
            self.spectrum_folded()
        for stage in self.stages:
            with self.writer.scope():
                (self.first_of_row if self.rows and stage.s == 1 else self.stage)(stage)
            self.written += 1
        if self.of == "real":
            self.spectrum_unfolded()

    def first_of_row(self, stage: _Stage) -> None:
        """A vector is one of butterflies; their results go where those of one are beside each other."""
        r, m, width = stage.r, stage.m, min(self.width, bit_floor(stage.m))
        with self.blocks("p", m, width) as p, self.ev.along(p, width):
            x = butterfly(self.math, [self.point(stage, p.index + k * m, width) for k in range(r)])
            x = [x[0], *(self.math.times(x[k], self.factor(p.index + (stage.table + 2 * (k - 1) * m), m, width)) for k in range(1, r))]
            for part in (0, 1):
                for k, z in enumerate(self.in_turn([self.vector(z[part], width) for z in x])):
                    self.keep(part, p.index * r + k * width, z)

    def in_turn(self, x: Sequence[Expression]) -> list[Expression]:
        """Lane 0 of each, then lane 1 of each, and so on, in as many vectors. There is a power of two of them."""
        if len(x) == 1:
            return list(x)
        w, width = self.writer, x[0].lanes
        found: list[Expression] = []
        for a, b in zip(self.in_turn(x[0::2]), self.in_turn(x[1::2]), strict=True):
            found += [w.declare("v", Zip(Lanes(a, half), Lanes(b, half)) if width > 2 else Vector((Lanes(a, k), Lanes(b, k))))
                      for k, half in enumerate(("lo", "hi"))]
        return found

    def stage(self, stage: _Stage) -> None:
        """A vector is one of points beside each other."""
        r, m, s, _ = stage
        with self.loop("p", m) as p:
            turns = [self.factor(p * (2 * (r - 1)) + (stage.table + 2 * (k - 1)), 1) for k in range(1, r)] if m > 1 else []
            if not self.rows:
                with self.loop("q", s) as q:
                    self.butterflies(stage, turns, p, q, self.width)
                return
            width = min(self.width, bit_floor(s))
            with self.blocks("q", s, width) as lane, self.ev.along(lane, width):
                self.butterflies(stage, turns, p, lane.index, width)

    def butterflies(self, stage: _Stage, turns: Sequence[Complex], p: Index, q: Index, width: int) -> None:
        r, m, s, _ = stage
        x = butterfly(self.math, [self.point(stage, (p + k * m) * s + q, width) for k in range(r)])
        for k, z in enumerate(x):
            z = self.math.times(z, turns[k - 1]) if k and turns else z
            to = (p * r + k) * s + q
            if m > 1 or self.of == "real":
                for part in (0, 1):
                    self.keep(part, to * self.unit, self.vector(z[part], width))
            else:
                self.put(to, z, self.scale)

    # -- numbers

    def vector(self, x: Expression, width: int) -> Expression:
        """A named vector of a part, which may be 0."""
        x = x if x.lanes == width else Splat(x, width)
        return x if is_name(x) else self.writer.declare("v", x)

    def point(self, stage: _Stage, k: Index, width: int) -> Complex:
        """What a stage reads."""
        if stage.s == 1 and self.of != "half":
            return self.swap(self.operand(k))
        re, im = (self.kept(part, k * self.unit, width) for part in (0, 1))
        return re, im

    def swap(self, z: Complex) -> Complex:
        """exp(+2 pi i j k / n) instead of exp(-2 pi i j k / n): with the parts exchanged, before and after."""
        return (z[1], z[0]) if self.backwards else z

    def operand(self, k: Index) -> Complex:
        re, im = (self.ev.value(x, (self.row * self.given + k) * self.inner + self.column) for x in self.node.operands[:2])
        return re, im

    def factor(self, at: Index, apart: int, width: int = 1) -> Complex:
        """One of the table's, or a vector of them; the other part is so many elements behind."""
        memory = self.operand_buffer(self.node.operands[2], "factors")
        re, im = (self.writer.declare("w", Load(Access(memory, at + part * apart, each=width), self.dtype, width)) for part in (0, 1))
        return re, im

    def kept(self, part: int, at: Index, width: int) -> Expression:
        """A part of points that the pass before has left."""
        array = self.arrays[(self.written - 1) % len(self.arrays)][part]
        return self.writer.declare("v", Load(Access(array, at, each=width), self.dtype, width))

    def keep(self, part: int, at: Index, x: Expression) -> None:
        """Leave a part of points to the next pass."""
        self.writer.store(Access(self.arrays[self.written % len(self.arrays)][part], at, each=x.lanes), x, self.node)

    def put(self, k: Index, z: Complex, scale: float) -> None:
        """Write number k of the result."""
        re, im = self.math.scaled(self.swap(z), scale) if scale != 1.0 else self.swap(z)
        out, node, n = self.context.output(self.group, self.node), self.node, self.n
        if self.of != "half":
            self.ev.store_pair(out, node, (self.row * (n + (self.of == "real")) + k) * self.inner + self.column, re, im)
        elif self.rows:
            self.ev.store_pair(out, node, self.row * n + k, re, im)
        else:
            for part, x in enumerate((re, im)):
                self.ev.store(out, node, (self.row * (2 * n) + k * 2 + part) * self.inner + self.column, x)

    # -- real numbers

    @contextmanager
    def pairs(self) -> Iterator[tuple[Index, Index, int, Callable[[bool], AbstractContextManager[None]]]]:
        """All 0 < k <= n / 2: k, n - k of a vector's last lane, lanes, and along which of both results go (mirrored: along the latter)."""
        count = self.n // 2
        if not self.rows:
            with self.loop("k", count + 1, 1) as k:
                yield k, self.n - k, self.width, lambda mirrored: nullcontext()
            return
        width = min(self.width, bit_floor(count))
        with self.blocks("pair", count, width) as pair:
            mirror = self.computed("mirror", self.n, bound(self.n - width - pair.index))
            yield pair.index + 1, mirror.index, width, lambda mirrored: self.ev.along(mirror if mirrored else pair, width)

    def mirrored(self, x: Expression, width: int) -> Expression:
        """The vector of n - k for each k."""
        x = self.vector(x, width)
        return self.writer.declare("v", Lanes(x, range(width - 1, -1, -1))) if self.rows else x

    def spectrum_unfolded(self) -> None:
        """The transform of 2 n real numbers: with Z that of the complex ones, E = Z[k] + Z[n-k]*, D = Z[k] - Z[n-k]* and
        T = -i exp(-pi i k / n) D, it is (E + T) / 2 at k, and (E - T)* / 2 at n - k.
        """
        re, im = (self.kept(part, ZERO, self.unit) for part in (0, 1))
        none = Literal(0.0, self.dtype)
        self.put(ZERO, (self.math.plus(re, im), none), self.scale)
        self.put(constant(self.n), (self.math.minus(re, im), none), self.scale)
        with self.pairs() as (k, mirror, width, along):
            a, b = ([self.kept(part, at * self.unit, width) for part in (0, 1)] for at in (k, mirror))
            e, d = self.sum_and_difference((a[0], a[1]), (self.mirrored(b[0], width), self.mirrored(b[1], width)))
            w = self.factor(k + self.table, self.n + 1, width if self.rows else 1)
            t = self.math.times((d[1], self.math.named(Prefix("-", d[0]))), w)
            with along(False):
                self.put(k, self.math.add(e, t), self.scale / 2)
            re, im = self.math.sub(e, t)
            with along(True):
                self.put(mirror, (self.mirrored(re, width), self.mirrored(self.math.named(Prefix("-", im)), width)), self.scale / 2)

    def spectrum_folded(self) -> None:
        """The other way round, times two: E = X[k] + X[n-k]*, D = X[k] - X[n-k]*, T = i exp(pi i k / n) D; E + T at k, (E - T)* at n - k.
        The parts are kept exchanged.
        """
        first, last = (self.operand(constant(k))[0] for k in (0, self.n))
        for part, x in enumerate((self.math.minus(first, last), self.math.plus(first, last))):
            self.keep(part, ZERO, self.vector(x, self.unit))
        with self.pairs() as (k, mirror, width, along):
            with along(False):
                a = self.operand(k)
            with along(True):
                b = self.operand(mirror)
            a, b = ((self.vector(re, width), self.vector(im, width)) for re, im in (a, b))
            e, d = self.sum_and_difference(a, (self.mirrored(b[0], width), self.mirrored(b[1], width)))
            w = self.factor(k + self.table, self.n + 1, width if self.rows else 1)
            # i conj(w) D: the parts exchanged of conj(i w* D) = -i w D*, so of w (-i D*)
            t = self.math.times((self.math.named(Prefix("-", d[1])), self.math.named(Prefix("-", d[0]))), w)
            t = t[0], self.math.named(Prefix("-", t[1]))
            for at, (re, im), turn in ((k, self.math.add(e, t), False), (mirror, self.math.sub(e, t), True)):
                if turn:
                    re, im = self.mirrored(re, width), self.mirrored(self.math.named(Prefix("-", im)), width)
                self.keep(0, at * self.unit, im)
                self.keep(1, at * self.unit, re)
        self.written += 1

    def sum_and_difference(self, a: Complex, b: Complex) -> tuple[Complex, Complex]:
        """a + b* and a - b*."""
        return ((self.math.plus(a[0], b[0]), self.math.minus(a[1], b[1])), (self.math.minus(a[0], b[0]), self.math.plus(a[1], b[1])))
