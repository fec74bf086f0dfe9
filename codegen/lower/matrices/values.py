"""Numbers in algorithms about matrices: real or complex, with Python's operators. Start at `Value`, then `Numbers`.

A number has one part, or two: those of a complex number, whose arithmetic it has. So real and complex matrices share their algorithms.
Each part is a vector with a lane for each matrix, where there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import add, mul, sub, truediv
from typing import TYPE_CHECKING, Union

from tracegrad.codegen.kernel.index.index import Index, constant
from tracegrad.codegen.kernel.ir.expressions import Access, Array, At, Expression, Infix, Literal, Load, Local, Prefix, nodes, whole
from tracegrad.support.dtypes import DType, dtype_kind, int32

if TYPE_CHECKING:
    from tracegrad.codegen.lower.matrices.kernel import Matrices

Like = Union["Value", Index, int, float]
IndexLike = Index | int


def _operator(sign: str) -> Callable[[Value, Like], Value]:
    """A Python operator."""
    return lambda self, other: self._each(sign, other)


def _reflected(operator: Callable[[Value, Value], Value]) -> Callable[[Value, Like], Value]:
    """The same, of a number on its right."""
    return lambda self, other: operator(Value(*parts_beside(other, self.parts[0])), self)


def _in_place(sign: str) -> Callable[[Variable, Like], Variable]:
    return lambda self, other: self._update(sign, other)


class Value:
    """A number of one part or of two, or what is known of one of a part (a mask)."""

    __slots__ = ("parts",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, *parts: Expression) -> None:
        self.parts = parts

    @property
    def real(self) -> Value:
        return Value(self.parts[0])

    @property
    def imag(self) -> Value:
        return Value(self.parts[1])

    @property
    def conj(self) -> Value:
        return Value(self.parts[0], *(Prefix("-", part) for part in self.parts[1:]))

    @property
    def squared(self) -> Value:
        """The sum of its parts' squares."""
        return squares(self)

    def _each(self, sign: str, other: Like) -> Value:
        """The sign between the parts. One part goes with each, or is added to the first."""
        parts = parts_beside(other, self.parts[0])
        many = max(len(self.parts), len(parts))
        if sign in ("+", "-") and len(parts) < len(self.parts):
            return Value(Infix(sign, self.parts[0], parts[0]), *self.parts[1:])
        mine, theirs = (x * (many // len(x)) for x in (self.parts, parts))
        return Value(*(Infix(sign, a, b) for a, b in zip(mine, theirs, strict=True)))

    __add__, __sub__, __truediv__ = _operator("+"), _operator("-"), _operator("/")
    __and__, __or__ = _operator("&"), _operator("|")
    __lt__, __le__, __gt__, __ge__ = _operator("<"), _operator("<="), _operator(">"), _operator(">=")
    __eq__, __ne__ = _operator("=="), _operator("!=")  # type: ignore[assignment]

    def __mul__(self, other: Like) -> Value:
        x, y = self.parts, parts_beside(other, self.parts[0])
        if len(x) < 2 or len(y) < 2:
            return self._each("*", other)
        return Value(_total((x[0], y[0], 1), (x[1], y[1], -1)), _total((x[0], y[1], 1), (x[1], y[0], 1)))

    __radd__, __rsub__, __rmul__, __rtruediv__ = _reflected(add), _reflected(sub), _reflected(mul), _reflected(truediv)

    def __neg__(self) -> Value:
        return Value(*(Prefix("-", part) for part in self.parts))

    def __invert__(self) -> Value:
        return self == 0


class Variable(Value):
    """A variable that changes, or an element: `x += y` is a statement."""

    __slots__ = ("k", "of")

    def __init__(self, k: Matrices, of: tuple[Local | Access, ...], parts: tuple[Expression, ...]) -> None:
        super().__init__(*parts)
        self.k, self.of = k, of

    def _update(self, sign: str, other: Like) -> Variable:
        parts = self.k.parts_of(other, self)
        many = 1 if sign in ("+", "-") else len(self.of) // len(parts)
        for of, part in zip(self.of, parts * many, strict=False):
            self.k.writer.update(of, sign, part, self.k.node)
        return self

    __iadd__, __isub__, __imul__, __itruediv__ = _in_place("+"), _in_place("-"), _in_place("*"), _in_place("/")
    __ior__, __iand__ = _in_place("|"), _in_place("&")

    def assign(self, value: Like) -> None:
        for of, part in zip(self.of, self.k.parts_of(value, self), strict=True):
            self.k.writer.assign(of, part, self.k.node)


class Numbers:
    """Numbers in a work-item's memory, in rows of so many: an array for each part."""

    __slots__ = ("arrays", "columns", "dtype", "k")

    def __init__(self, k: Matrices, arrays: list[Array], dtype: DType, columns: int) -> None:
        self.k, self.arrays, self.dtype, self.columns = k, arrays, dtype, columns

    @property
    def real(self) -> Numbers:
        return Numbers(self.k, self.arrays[:1], self.dtype, self.columns)

    @property
    def imag(self) -> Numbers:
        return Numbers(self.k, self.arrays[1:], self.dtype, self.columns)

    def row(self, r: IndexLike) -> Callable[[IndexLike], Variable]:
        return lambda c: self[r, c]

    def column(self, c: IndexLike) -> Callable[[IndexLike], Variable]:
        return lambda r: self[r, c]

    def __getitem__(self, at: IndexLike | tuple[IndexLike, IndexLike]) -> Variable:
        flat = at[0] * self.columns + at[1] if isinstance(at, tuple) else at
        places = tuple([Access(x, flat if isinstance(flat, Index) else constant(flat)) for x in self.arrays])
        return Variable(self.k, places, tuple([Load(place, self.dtype, self.k.lanes) for place in places]))

    def __setitem__(self, at: IndexLike | tuple[IndexLike, IndexLike], value: Like) -> None:
        if not isinstance(value, Variable) or not self._at(value, at):       # (what was updated is there)
            self[at].assign(value)

    def _at(self, value: Variable, at: IndexLike | tuple[IndexLike, IndexLike]) -> bool:
        return all(isinstance(x, Access) and x.memory is y.memory and x.at == y.at  # type: ignore[union-attr]
                   for x, y in zip(value.of, self[at].of, strict=True))


def sum_of(values: Iterable[Value]) -> Value:
    return reduce(Value.__add__, values)


def pair(real: Value, imag: Value) -> Value:
    """The complex number of two real ones."""
    return Value(*real.parts, *imag.parts)


def squares(*values: Value) -> Value:
    """The sum of all parts' squares."""
    return sum_of(Value(part) * Value(part) for x in values for part in x.parts)


def index_of(x: IndexLike) -> Index:
    return x if isinstance(x, Index) else constant(x)


def parts_beside(x: Like, beside: Expression) -> tuple[Expression, ...]:
    """The parts of what stands beside a number."""
    if isinstance(x, Value):
        return x.parts
    if isinstance(x, Index):
        return (At(x),)
    if dtype_kind(beside.dtype) == "f":
        return (Literal(float(x), beside.dtype),)
    return (whole(int(x), int32 if beside.lanes == 1 or beside.dtype.kind == "b" else beside.dtype),)


def _total(*terms: tuple[Expression, Expression, int]) -> Expression:
    """The sum of products, each with a sign: those that are added first, for nothing has to be negated then."""
    signed = []
    for x, y, sign in terms:
        for part in (x, y):
            sign = -sign if isinstance(part, Prefix) else sign
        a, b = (part.parts[0] if isinstance(part, Prefix) else part for part in (x, y))
        signed.append((sign, Infix("*", a, b)))
    signed.sort(key=lambda term: -term[0])
    (sign, found), *more = signed
    total: Expression = found if sign > 0 else Prefix("-", found)
    for sign, term in more:
        total = Infix("+" if sign > 0 else "-", total, term)
    return total


def reads(x: Expression, place: Local | Access) -> bool:
    """Whether an expression reads a variable, or anything of a place's array."""
    if isinstance(place, Local):
        return place in x.vars
    return any(isinstance(part, Load) and part.access.memory is place.memory for part in nodes(x))
