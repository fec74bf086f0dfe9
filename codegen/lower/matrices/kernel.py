"""A kernel of many small matrices: which a work-item has, how they are read and stored, and what algorithms are written in.

An algorithm is a Python function that writes the statements of a kernel while it runs, as short as in a textbook: `for i in k.range("i",
j + 1, n)` is a loop, `a[i, c] -= factor * a[j, c]` an update, `k.let` a constant, `k.variable` what changes, `k.where` a selection (see
values.py). Start at `Matrices`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from tracegrad.codegen.graph.small_matrices import InParts
from tracegrad.codegen.kernel.index.index import Index, Mutable, Var, constant
from tracegrad.codegen.kernel.ir import expressions as ir
from tracegrad.codegen.kernel.ir.expressions import Access, At, Cast, Convert, Expression, Infix, Lanes, Literal, Load, Local, Select
from tracegrad.codegen.kernel.ir.kernel import FAULTS, Kernel
from tracegrad.codegen.kernel.ir.spelling import spelling
from tracegrad.codegen.kernel.ir.statements import BoundLike
from tracegrad.codegen.kernel.ir.types import mask_type
from tracegrad.codegen.kernel.ir.vectors import bit_floor, ctype
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.matrices.values import IndexLike, Like, Numbers, Value, Variable, index_of, parts_beside, reads, sum_of
from tracegrad.codegen.lower.serial import KernelBuilder, parts
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, bool_, dtype_kind, float64, int32
from tracegrad.support.plan import MatrixCheck

_CALLS = {name: f"{name}({', '.join(['{}'] * count)})".format for name, count in (
    ("fabs", 1), ("sqrt", 1), ("exp", 1), ("log", 1), ("copysign", 2), ("hypot", 2))}


class Matrices(KernelBuilder):
    """One kernel while it is written. results: where each result of the call goes; Temps are not wanted.

    lanes: how many matrices a part of a number has numbers of; dtype: what is computed in; parts: those of the matrices' numbers.
    """

    info: Numbers                                            # of `note`: which pivot (from 1) is the first that is not there; 0

    def __init__(self, group: Group, context: Context, results: list[Any]) -> None:
        super().__init__(group, context)
        fn = self.node.fn
        self.name: str = fn.name
        self.parts = fn.parts if isinstance(fn, InParts) else 1
        self.results = _grouped(self.node, [r if isinstance(r, Node) else None for r in results])
        self.attrs = self.node.attrs
        self.shapes = [o.shape[-2:] for o in self.node.operands[::self.parts]]
        self.m, self.n = self.shapes[0]
        self.batch = prod(self.node.operands[0].shape[:-2])
        self.target, dtype = context.target, self.node.operands[0].dtype
        wide = self.target.traits.quick_float64 and self.target.fp64 and dtype_kind(dtype) == "f" and not self.name.endswith("lu_factor")
        self.dtype = float64 if wide else dtype
        self.lanes = bit_floor(min(16, self.target.simd_bytes // self.dtype.itemsize, self.batch)) if self.target.traits.vectors else 1
        self.noted = False

    def kernel(self, algorithm: Callable[[Matrices], None]) -> Kernel:
        for matrix in self.matrices():
            self.matrix = matrix
            algorithm(self)
        return self.finish()

    def matrices(self) -> Iterator[Index]:
        """The loop over the matrices of a work-item: the first of each vector."""
        w, lanes, batch = self.writer, self.lanes, self.batch
        if not self.target.traits.long_items or batch == 1:
            yield self.item("matrix", batch)
            return
        length = max(lanes, batch // parts(self.context) // lanes * lanes)
        if batch % lanes == 0:
            low, high = self.part("matrix", batch, length)
            each = Var("matrix", batch)
        else:
            low, high = self.parts_of_batch(length)
            each = Var("next_matrix", batch)
        with w.loop(each, low, high, lanes):
            if batch % lanes == 0:
                yield each.index
            else:                                            # the last vector of matrices may do some again
                last = (high.index if isinstance(high, Var) else constant(batch)) - lanes
                yield w.computed("matrix", batch - lanes + 1, w.least(each, last), self.node).index

    def parts_of_batch(self, length: int) -> tuple[BoundLike, BoundLike]:
        """The range of matrices that this work-item owns: the last one, what is left, too, for no part is to be less than a vector."""
        w, batch, count = self.writer, self.batch, self.batch // length
        if count == 1:
            return 0, batch
        part = self.item("matrix_part", count)
        first = w.bounding("matrix_first", batch, part * length)
        end = Select(Infix("==", w.at(part), count - 1), w.at(batch), w.at(first.index + length))
        return first, w.known("matrix_last", batch + 1, end, node=self.node)

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
            found = [ir.Call(function, a, b) for a, b in zip(found[::2], found[1::2], strict=True)]
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
        return ir.Spread(x, lanes, self.dtype.itemsize) if x.dtype.kind == "b" else ir.Splat(x, lanes)

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
        return Value(ir.Op(found, parts, self.dtype, max(x.lanes for x in parts)))

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
        return Value(ir.Bits(Infix("&", ir.Bits(x.parts[0], whole_), self.wide(exponent)), self.dtype))

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

    # -- between buffers and arrays

    def load(self, number: int, base: str, transposed: bool = False, room: int = 0) -> Numbers:
        """The matrices of an operand, in an array with room for so many numbers."""
        w, lanes = self.writer, self.lanes
        rows, columns = self.shapes[number]
        size, made = rows * columns, self.array(base, *((columns, rows) if transposed else (rows, columns)), self.parts, room=room)
        for part, array in enumerate(made.arrays):
            given = self.node.operands[number * self.parts + part]
            pointer = self.operand_buffer(given)
            for e, place in self.elements(rows, columns, transposed):
                vector = Access(pointer, self.matrix * size + e, each=(lanes - 1) * size + 1)
                x: Expression = Load(vector, given.dtype, lanes, size)
                w.store(Access(array, place), Convert(x, self.dtype) if lanes > 1 and given.dtype != self.dtype else x, self.node)
        return made

    def elements(self, rows: int, columns: int, transposed: bool) -> Iterator[tuple[Index, Index]]:
        """A loop over the elements of matrices: where they are, and where in arrays, which may hold the matrices transposed."""
        if transposed:
            for r, c in self.pairs(rows, columns):
                yield r * columns + c, c * rows + r
        else:
            for e in self.range("e", rows * columns):
                yield e, e

    def wanted(self, index: int) -> bool:
        return any(r is not None for r in self.results[index])

    def store(self, index: int, numbers: Numbers | None, transposed: tuple[int, int] | None = None) -> None:
        """The numbers as result `index`, if it is wanted. transposed: its rows and columns, if they have its columns as rows."""
        for part, node in enumerate(self.results[index]):
            if node is None:
                continue
            assert numbers is not None
            size = node.aval.size // self.batch
            for e, place in self.elements(*(transposed or (1, size)), transposed is not None):
                self._store(node, e, Load(Access(numbers.arrays[part], place), numbers.dtype, self.lanes))

    def store_number(self, index: int, value: Value) -> None:
        """One number of each matrix as result `index`, if it is wanted."""
        if self.wanted(index):
            for node, part in zip(self.results[index], self.let("result", value).parts, strict=True):
                if node is not None:
                    self._store(node, constant(0), part)

    def _store(self, node: Node, e: Index, x: Expression) -> None:
        """Element e of a result of each matrix."""
        pointer, size = self.output(node), node.aval.size // self.batch
        for lane in range(self.lanes):
            value = Lanes(x, lane) if self.lanes > 1 else x
            at = (self.matrix + lane) * size + e
            # Work-items' matrices are apart where the last vector of one does some again, too, which the index does not show.
            place = Access(pointer, at) if self.batch % self.lanes == 0 else Access(pointer, None, place=self.writer.at(at))
            self.writer.store(place, value if x.type == ctype(node.dtype, self.lanes) else Cast(value, node.dtype), node)

    # -- what is impossible

    def note(self) -> Numbers:
        """`info`, of zeros."""
        self.info, self.noted = self.array("info", 1, whole=True), True
        self.info[0] = self.whole(0)
        return self.info

    def note_pivot(self, j: Index, bad: Value) -> None:
        """Note pivot j, the first that is `bad`."""
        self.info[0] = self.where((self.info[0] == 0) & bad, self.whole(j + 1), self.info[0])

    def report(self) -> None:
        """Note the first matrix that is impossible: the largest note is kept."""
        w, faults = self.writer, self.writer.buffer(FAULTS, "faults", FAULTS.dtype, "inout")
        place = w.scalar(self.context.fault(self.node), "fault", int32)
        first = w.at((self.batch - self.matrix) * MatrixCheck.PIVOTS)
        w.report(f"IMPOSSIBLE{self.lanes if self.lanes > 1 else ''}", (self.info[0].parts[0], first, w.at(MatrixCheck.PIVOTS)),
                 faults, place, self.node)


def _grouped(node: Node, results: list[Node | None]) -> list[list[Node | None]]:
    """The results, each with as many as it has parts."""
    if not isinstance(node.fn, InParts):
        return [[r] for r in results]
    attrs = {name: x for name, x in node.attrs.items() if name != "index"}
    left = iter(results)
    return [[next(left) for _ in range(2 if a.dtype.kind == "c" else 1)]
            for a in node.fn.whole([o.aval for o in node.operands], attrs)]
