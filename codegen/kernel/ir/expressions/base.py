"""What expressions are, and the simplest: numbers, variables, indices. Start at `Expression`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.ir.expressions.printing import Printer, Python
from tracegrad.codegen.kernel.ir.expressions.terms import Term, wrapped
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.kernel.ir.vectors import computed_in
from tracegrad.codegen.kernel.text.literals import ATOM, PRODUCT, SUM
from tracegrad.codegen.kernel.text.markup import marked
from tracegrad.support import plan
from tracegrad.support.dtypes import DType, bool_, int32, int64


class Expression:
    """A value of a kernel. lanes: 1 if it is the same for all lanes; mask: bytes a lane of a vector of bools; vars: the variables that it
    depends on, wherever they stand in it. Expressions do not change once they are made.

    A class says all of what it is: `c` and `python` print it, `misfit` is the rule for vectors.
    """

    __slots__ = ("dtype", "lanes", "mask", "vars")
    shown: ClassVar[Any]                    # how it is printed as an operand: set by `render`

    def __init__(self, dtype: DType, lanes: int = 1, mask: int = 0, vars: frozenset[Any] = frozenset()) -> None:
        self.dtype, self.lanes, self.mask, self.vars = dtype, lanes, mask, vars

    def c(self, p: Printer) -> tuple[str, int]:
        """It as C, and how tightly that holds together (see `literals`)."""
        raise NotImplementedError

    def python(self, v: Python) -> Term:
        """It as Python on numpy's values, for `kernel.run`."""
        raise NotImplementedError

    def misfit(self) -> str:
        """Why its operands do not make what it is ("": they do). Vectors are of as many lanes; one value is made of none."""
        for part in self.operands:
            if part.lanes not in (1, self.lanes):
                return f"{self} is one value, of vectors" if self.lanes == 1 else f"{part.lanes} lanes of {part} make {self.lanes}"
        return ""

    @property
    def type(self) -> str:
        """Its C type."""
        return register_type(self.dtype, self.lanes, self.mask)

    @property
    def held(self) -> DType:
        """What C has for its dtype: of bools ints, and masks in vectors; of halves floats."""
        return np.dtype(f"i{self.mask or 4}") if self.dtype.kind == "b" and self.lanes > 1 else register_dtype(self.dtype)

    @property
    def lane_bytes(self) -> int:
        """Bytes of a lane."""
        return self.mask if self.dtype.kind == "b" else computed_in(self.dtype).itemsize

    @property
    def operands(self) -> tuple[Expression, ...]:
        return ()

    def where(self, k: int) -> tuple[Expression, bool] | None:
        """The condition without which C does not look at operand k, and what it is where it does."""
        return None

    @property
    def key(self) -> Any:
        """What two expressions of a class have in common if they are the same. A variable is only itself."""
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return str(self.shown(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown(self)}: {self.type})"


class Literal(Expression):
    """A number that is known now."""

    __slots__ = ("value",)

    def __init__(self, value: Any, dtype: DType) -> None:
        super().__init__(dtype)
        self.value = value

    @property
    def key(self) -> Any:
        return self.dtype, np.asarray(self.value).astype(self.dtype).tobytes()      # of -0.0 and 0.0, too

    def c(self, p: Printer) -> tuple[str, int]:
        return p.literal(self.value, self.dtype)

    def python(self, v: Python) -> Term:
        whole = self.held.kind in "iu"
        return Term(str(int(self.value)) if whole else v.constant(self.held.type(float(self.value))), self.held)


class Zeros(Expression):
    """No matter of which dtype: as what is read where nothing is."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        return self.dtype, self.lanes

    def c(self, p: Printer) -> tuple[str, int]:
        return ("0" if self.lanes == 1 else f"({self.type})(0)"), ATOM

    def python(self, v: Python) -> Term:
        return Term("0", int32) if self.lanes == 1 else Term(v.constant(np.zeros(self.lanes, self.held)), self.held, self.lanes)


class Named(Expression):
    """What has a name. It is itself and no other, whatever it is called."""

    __slots__ = ("name",)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def c(self, p: Printer) -> tuple[str, int]:
        return p.name(self), ATOM

    def python(self, v: Python) -> Term:
        return Term(v.name(self), self.held, self.lanes)


class Local(Named):
    """A variable of a work-item. only_if: the condition without which it is 0, if it was loaded under one."""

    __slots__ = ("only_if",)

    def __init__(self, name: str, dtype: DType, lanes: int = 1, mask: int = 0, only_if: Expression | None = None) -> None:
        self.dtype, self.lanes, self.mask, self.name, self.only_if = dtype, lanes, mask, name, only_if

    @property
    def vars(self) -> frozenset[Any]:  # type: ignore[override]
        """Itself. (Kept here, it would be a cycle: see `Var`.)"""
        return frozenset((self,))


class Number(Named):
    """A by-value parameter."""

    __slots__ = ("ref",)

    def __init__(self, ref: Any, name: str, dtype: DType) -> None:
        super().__init__(dtype)
        self.ref, self.name = ref, name

    @property
    def declaration(self) -> str:
        return self.plain(marked(self.name)).declaration

    def plain(self, name: str) -> plan.Parameter:
        """It as a plan has it, called so."""
        return plan.Parameter(self.type, name)


class Held(Expression):
    """`x` as it is, taken to be of another dtype: an int as a bool, a float as a half; of what type it is, where it stands tells C."""

    __slots__ = ("x",)

    def __init__(self, x: Expression, dtype: DType) -> None:
        super().__init__(dtype, x.lanes, x.mask or 4 * (dtype.kind == "b" and x.lanes > 1), x.vars)
        self.x = x

    @property
    def operands(self) -> tuple[Expression, ...]:
        return (self.x,)

    @property
    def key(self) -> Any:
        return self.dtype, self.x

    def c(self, p: Printer) -> tuple[str, int]:
        return self.x.c(p)

    def python(self, v: Python) -> Term:
        return self.x.python(v)

    def misfit(self) -> str:
        return super().misfit() or other_bytes(self, self.x)


class At(Expression):
    """An index as a number. With lanes: one index each, where `lane` stands for the variable whose lanes are in `each`."""

    __slots__ = ("each", "index", "lane")

    def __init__(self, index: Index, dtype: DType = int32, lanes: int = 1, lane: Var | None = None, each: Expression | None = None) -> None:
        vars: frozenset[Any] = index.vars
        super().__init__(dtype, lanes, 0, vars | each.vars if each is not None else vars)
        self.index, self.lane, self.each = index, lane, each

    @property
    def operands(self) -> tuple[Expression, ...]:
        return () if self.each is None else (self.each,)

    @property
    def key(self) -> Any:
        return self.index.key, self.dtype, self.lanes

    def c(self, p: Printer) -> tuple[str, int]:
        index = p.given(self.index, self.lane if self.each is not None else None)
        names = None if self.each is None or self.lane is None else {self.lane: p.top(self.each)}
        text = p.index(index, names)
        if not index.terms:
            return text, ATOM if index.constant >= 0 else SUM
        (atom, c), *more = index.terms
        if more or index.constant or c != 1 or atom.kind == "bounded":
            return text, SUM
        if atom.var is not None:
            return text, ATOM
        return text, SUM if atom.base is not None and atom.base.lo < 0 else PRODUCT

    def python(self, v: Python) -> Term:
        held = int64 if self.dtype == int64 else int32       # a number of another dtype is written as an int, too
        index = v.given(self.index, self.lane if self.each is not None else None)
        names = None if self.each is None or self.lane is None else {self.lane: self.each.python(v).code}
        code, limit = v.index(index, names), 1 << 8 * held.itemsize - 1
        if not index.terms:
            return Term(code, held)
        if self.lanes == 1 and not -limit <= self.index.lo <= self.index.hi < limit:
            return Term(wrapped(f"({code})", held), held)
        return Term(f"({code})", held, self.lanes)


class Limit(At):
    """A number that an index is compared with, where what is added to the index has been taken from it: an offset as that would be."""

    __slots__ = ()

    def __init__(self, limit: int, dtype: DType = int32) -> None:
        super().__init__(constant(limit), dtype)

    def c(self, p: Printer) -> tuple[str, int]:
        n = self.index.constant
        return f"{'-' * (n < 0)}{p.offset(abs(n))}", ATOM if n >= 0 else SUM

    def python(self, v: Python) -> Term:
        return Term(self.c(v)[0], int64 if self.dtype == int64 else int32)


class Made(Expression):
    """What is made of operands."""

    __slots__ = ("parts",)
    parts: tuple[Expression, ...]

    def __init__(self, parts: tuple[Expression, ...], dtype: DType, lanes: int, mask: int = 0) -> None:
        vars = parts[0].vars
        for p in parts[1:]:
            if p.vars:
                vars = vars | p.vars
        super().__init__(dtype, lanes, mask, vars)
        self.parts = parts

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self.parts

    @property
    def key(self) -> Any:
        return self.dtype, self.lanes, self.mask, self.parts


Operand = Expression | Index | Var | int
_WHOLE = frozenset((int32, int64, bool_))


def whole(n: int, dtype: DType = int32) -> At:
    """A number of the kernel's own: a size, a bound."""
    return At(constant(n), dtype)


def value(x: Operand, beside: Operand = 0) -> Expression:
    """An index, or a number, as what expressions are made of; beside: a number is of its dtype."""
    if isinstance(x, Expression):
        return x
    if isinstance(x, int):
        dtype = beside.dtype if isinstance(beside, Expression) else int32
        return whole(x, dtype) if dtype in _WHOLE else Literal(x, dtype)
    return At(x.index if isinstance(x, Var) else x)


def is_zero(x: Expression) -> bool:
    """Whether it is 0, and not -0.0."""
    return isinstance(x, Literal) and x == Literal(0, x.dtype)


def nodes(x: Expression) -> Iterator[Expression]:
    """x and all it is made of."""
    todo = [x]
    while todo:
        x = todo.pop()
        yield x
        todo += x.operands


def other_bytes(x: Expression, *parts: Expression) -> str:
    """That lanes of vectors, which stay what they are, are of other sizes ("": they are not)."""
    sizes = {part.lane_bytes for part in parts if part.lanes > 1}
    if x.lanes > 1 and sizes - {x.lane_bytes}:
        return f"{x} is {x.type}, made of lanes of {', '.join(map(str, sorted(sizes)))} bytes"
    return ""


def other_types(*parts: Expression) -> str:
    """That vectors which have to be of one type are not ("": they are)."""
    wide = [part for part in parts if part.lanes > 1]
    return "".join([f"{wide[0]} is {wide[0].type}, and {b} is {b.type}" for b in wide[1:] if b.type != wide[0].type][:1])
