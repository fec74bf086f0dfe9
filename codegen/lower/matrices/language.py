"""A small language for algorithms about matrices, in which they are as short as in a textbook. Start at `Language`.

An algorithm is a Python function that writes the statements of a kernel while it runs: `for i in k.range("i", j + 1, n)` is a loop,
`a[i, c] -= factor * a[j, c]` an update, `k.let` a constant, `k.variable` what changes, `k.where` a selection (see values.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import Index, Mutable, Var
from tracegrad.codegen.kernel.ir.expressions import (
    At,
    Bits,
    Call,
    Cast,
    Expression,
    Infix,
    Lanes,
    Literal,
    Local,
    Op,
    Select,
    Splat,
    Spread,
)
from tracegrad.codegen.kernel.ir.spelling import spelling
from tracegrad.codegen.kernel.ir.types import mask_type
from tracegrad.codegen.kernel.ir.vectors import ctype
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.lower.matrices.values import IndexLike, Like, Numbers, Value, Variable, index_of, parts_beside, reads, sum_of
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, bool_, int32
from tracegrad.support.plan import Target

_CALLS = {name: f"{name}({', '.join(['{}'] * count)})".format for name, count in (
    ("fabs", 1), ("sqrt", 1), ("exp", 1), ("log", 1), ("copysign", 2), ("hypot", 2))}


class Language:
    """What algorithms are written in.

    lanes: how many matrices a part has numbers of; dtype: what is computed in; parts: those of the matrices' numbers.
    """

    writer: Writer
    target: Target
    dtype: DType
    lanes: int
    parts: int

    @property
    def node(self) -> Node:
        """What the kernel computes."""
        raise NotImplementedError

    # -- loops and branches

    def range(self, name: str, start: IndexLike, stop: IndexLike | None = None, down: bool = False) -> Iterator[Index]:
        """`for i in k.range("i", start, stop)`: a loop. Of one iteration it is what that does, and of none nothing.

        Of `start` alone: from 0 to it. down: from stop - 1 down to start.
        """
        w = self.writer
        first, last = map(index_of, (0, start) if stop is None else (start, stop))
        if last.hi <= first.lo:
            return
        if not first.terms and last == first + 1:
            yield first
            return
        if down:
            lower = Mutable(name, last.hi)
            with w.scope(), w.counting(lower, last - 1, Infix(">=", lower, first), "-", 1):
                yield lower.index
        else:
            var = Var(name, last.hi - first.lo, first.lo)
            with w.scope(), w.loop(var, first, last):
                yield var.index

    def times(self, name: str, most: int) -> Iterator[None]:
        """So many iterations, at most: see `leave`."""
        with self.writer.scope(), self.writer.loop(Var(name, most), 0, most):
            yield

    def pairs(self, rows: IndexLike, columns: IndexLike) -> Iterator[tuple[Index, Index]]:
        """Two loops, one in the other."""
        for r in self.range("r", rows):
            for c in self.range("c", columns):
                yield r, c

    def when(self, condition: Value) -> Any:
        """`with`: what is done where it holds: something about indices, which is the same for all matrices."""
        return self.writer.branch(condition.parts[0])

    def where_any(self, mask: Value) -> Any:
        """`with`: what is done if it holds of any of the matrices."""
        return self.writer.branch(self.any(mask))

    def leave(self, mask: Value) -> None:
        """Leave the loop, but if it holds of any of the matrices."""
        with self.writer.branch(Infix("==", self.any(mask), 0)):
            self.writer.leave()

    def any(self, mask: Value) -> Expression:
        """Whether it holds of any of the matrices."""
        return reduce(lambda a, b: Infix("|", a, b), self._apart(mask))

    def across(self, function: str, x: Value) -> Expression:
        """The least ("min") or the largest ("max") of the matrices' integers."""
        found = self._apart(x)
        while len(found) > 1:
            found = [Call(function, a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
        return Cast(found[0], int32) if self.lanes > 1 else found[0]

    def _apart(self, x: Value) -> list[Expression]:
        part, = x.parts
        return [Lanes(part, lane) for lane in range(self.lanes)] if self.lanes > 1 else [part]

    # -- values

    @property
    def limits(self) -> Any:
        """Of the numbers that are computed with."""
        return np.finfo(self.dtype)

    @property
    def whole_dtype(self) -> DType:
        return np.dtype(f"i{self.dtype.itemsize}") if self.lanes > 1 else int32

    def wide(self, x: Expression, lanes: int = 0) -> Expression:
        """The same for all matrices."""
        lanes = lanes or self.lanes
        if lanes == 1 or x.lanes > 1:
            return x
        return Spread(x, lanes, self.dtype.itemsize) if x.dtype.kind == "b" else Splat(x, lanes)

    def number(self, x: float) -> Value:
        return Value(self.wide(Literal(x, self.dtype)))

    def whole(self, x: IndexLike) -> Value:
        return Value(self.wide(At(index_of(x), self.whole_dtype)))

    def truth(self, x: bool) -> Value:
        return Value(self.wide(Literal(x, bool_)))

    def at(self, x: IndexLike) -> Value:
        """An index, the same for all matrices."""
        return Value(self.writer.at(x))

    def chosen(self, name: str, size: int, condition: Value, x: IndexLike, y: IndexLike) -> Index:
        """An index in 0..size-1: x where the condition holds, else y."""
        return self.known(name, size, Select(condition.parts[0], self.writer.at(x), self.writer.at(y)))

    def known(self, name: str, size: int, value: Expression) -> Index:
        """An index in 0..size-1 that is computed."""
        return self.writer.known(name, size, value, node=self.node).index

    def let(self, name: str, value: Value) -> Value:
        """A constant of that name."""
        return Value(*self._declared(name, value, True))

    def variable(self, name: str, value: Value) -> Variable:
        parts = self._declared(name, value, False)
        return Variable(self, parts, parts)

    def total(self, name: str, terms: Iterable[Value], start: Value | None = None) -> Variable:
        """A variable to which numbers are added: `k.total("norm", (a[i].squared for i in k.range("i", n)))`. start: what it is before."""
        found = self.variable(name, self.number(0) if start is None else start)
        for term in terms:
            found += term
        return found

    def _declared(self, name: str, value: Value, const: bool) -> tuple[Local, ...]:
        w, made = self.writer, []
        for number, part in enumerate(map(self.wide, value.parts)):
            made.append(Local(f"{name}{'_i' * number}", part.dtype, part.lanes, part.mask))
            w.define(made[-1], part, self.node, const=const)
        return tuple(made)

    def parts_of(self, value: Like, to: Variable) -> tuple[Expression, ...]:
        """What a variable gets. A part that is computed of the part that is written before it is computed first."""
        parts = parts_beside(value, to.parts[0])
        if len(parts) > 1 and reads(parts[1], to.of[0]):
            parts = self.let("next", Value(*parts)).parts
        return tuple(map(self.wide, parts))

    def zero(self, parts: int) -> Value:
        return Value(*(self.number(0).parts * parts))

    def where(self, mask: Value, x: Like, y: Like) -> Value:
        """x where it holds, else y. A Python number beside a complex number is one for each part."""
        beside = next((v.parts[0] for v in (x, y) if isinstance(v, Value)), self.number(0).parts[0])
        test, = mask.parts
        xs, ys = (parts_beside(v, beside) for v in (x, y))
        many, lanes = max(len(xs), len(ys)), max(test.lanes, *(part.lanes for part in (*xs, *ys)))
        each = [tuple(self.wide(part, lanes) for part in parts * (many // len(parts))) for parts in (xs, ys)]
        return Value(*(Select(test, a, b) for a, b in zip(*each, strict=True)))

    def call(self, name: str, *given: Value) -> Value:
        """A function of the math library's."""
        parts = tuple(x.parts[0] for x in given)
        found = spelling(_CALLS[name], len(parts), {}, ctype(self.dtype, max(x.lanes for x in parts)), self.target)
        self.writer.helper(found.helpers)
        return Value(Op(found, parts, self.dtype, max(x.lanes for x in parts)))

    def fabs(self, x: Value) -> Value:
        return self.call("fabs", x)

    def sqrt(self, x: Value) -> Value:
        return self.call("sqrt", x)

    def size(self, *numbers: Value) -> Value:
        """The sum of the parts' absolute values, by which LAPACK compares complex numbers."""
        return sum_of(self.absolutes(*numbers))

    def absolutes(self, *numbers: Value) -> list[Value]:
        return [self.fabs(Value(part)) for x in numbers for part in x.parts]

    def most(self, best: Variable, x: Value) -> None:
        """best becomes x where that is larger."""
        best.assign(self.where(x > best, x, best))

    def division(self, x: Value, size: Value | None = None, flat: Value | None = None) -> Callable[[Value], Value]:
        """What divides by x, of that size; by 1 where `flat`, for 0. (The size goes first: products may be too large.)"""
        if len(x.parts) == 1:
            pivot = self.let("pivot", x if flat is None else self.where(flat, 1, x))
            return lambda number: number / pivot
        size = self.size(x) if size is None else size
        norm = self.let("norm", size if flat is None else self.where(flat, 1, size))
        unit = x / norm
        u = self.let("u", unit if flat is None else Value(*self.where(flat, norm, unit.real).parts, *unit.imag.parts))
        square = self.let("square", u.squared)
        return lambda number: self.let("x", number / norm) * u.conj / square

    def power(self, x: Value) -> Value:
        """The power of two that is in x."""
        whole_ = np.dtype(f"i{self.dtype.itemsize}")
        exponent = Literal(((1 << self.limits.nexp) - 1) << self.limits.nmant, whole_)
        return Value(Bits(Infix("&", Bits(x.parts[0], whole_), self.wide(exponent)), self.dtype))

    def complex(self, x: Value) -> Value:
        """A real number as one of the matrices'."""
        return Value(*x.parts, *self.zero(self.parts - 1).parts)

    # -- arrays

    def array(self, base: str, rows: int, columns: int = 1, parts: int = 1, whole: bool = False, room: int = 0) -> Numbers:
        """Arrays of numbers (whole: of integers) of every matrix."""
        mask = mask_type(self.dtype.itemsize, self.lanes) if self.lanes > 1 else "int"
        type_ = mask if whole else ctype(self.dtype, self.lanes)
        arrays = [self.writer.array(f"{base}{'_i' * part}", type_, max(rows * columns, room), node=self.node) for part in range(parts)]
        return Numbers(self, arrays, self.whole_dtype if whole else self.dtype, columns)

    def unit(self, base: str, rows: int, columns: int) -> Numbers:
        """Unit matrices."""
        made = self.array(base, rows, columns, self.parts)
        for r, c in self.pairs(rows, columns):
            made[r, c] = self.complex(self.where(self.at(c) == r, 1, 0))
        return made

    def zeros(self, base: str, rows: int, columns: int = 1, parts: int = 1) -> Numbers:
        made = self.array(base, rows, columns, parts)
        for e in self.range("e", rows * columns):
            made[e] = self.zero(parts)
        return made

    def row_numbers(self, count: int) -> Numbers:
        order = self.array("order", count, whole=True)
        for i in self.range("i", count):
            order[i] = self.whole(i)
        return order

    def swap(self, here: Value, a: Numbers, i: Index, j: Index, columns: int, first: IndexLike = 0) -> None:
        """Exchange rows i and j from a column on, where `here`."""
        for c in self.range("c", first, columns):
            self.exchange(here, a[i, c], a[j, c])

    def exchange(self, here: Value, mine: Variable, other: Variable) -> None:
        x, y = self.let("x", mine), self.let("y", other)
        mine.assign(self.where(here, y, x))
        other.assign(self.where(here, x, y))
