"""What is computed: operators, choices, conversions, ops and functions. Start at `Infix`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir.expressions.base import At, Expression, Literal, Made, Operand, other_bytes, other_types, value
from tracegrad.codegen.kernel.ir.expressions.printing import Printer, Python
from tracegrad.codegen.kernel.ir.expressions.terms import COMPARISONS, Term, binary, common, promoted, single, wrapped
from tracegrad.codegen.kernel.ir.types import register_dtype
from tracegrad.codegen.kernel.text.literals import ATOM, COMPARISON, LOGIC, OPEN, PREFIX, PRODUCT, SUM
from tracegrad.support.dtypes import DType, int32
from tracegrad.support.plan import Plain

_LEVEL = dict.fromkeys(COMPARISONS, COMPARISON) | dict.fromkeys(("&&", "||"), LOGIC) | (
    dict.fromkeys("+-", SUM) | dict.fromkeys("*/%", PRODUCT))
_BOOL = np.dtype(bool)


class Infix(Made):
    """`a sign b`. Comparisons of vectors are masks with lanes as wide as the operands'."""

    __slots__ = ("sign",)

    def __init__(self, sign: str, a: Operand, b: Operand) -> None:
        a, b = value(a, b), value(b, a)
        lanes = max(a.lanes, b.lanes)
        if sign in COMPARISONS:
            dtype, wide = _BOOL, a if a.lanes >= b.lanes else b
            mask = 0 if lanes == 1 else register_dtype(wide.dtype).itemsize if wide.dtype.kind != "b" else wide.mask
        else:
            dtype, mask = (a if a.lanes >= b.lanes else b).dtype, max(a.mask, b.mask)
        super().__init__((a, b), dtype, lanes, mask)
        self.sign = sign

    @property
    def key(self) -> Any:
        return self.sign, self.parts

    def where(self, k: int) -> tuple[Expression, bool] | None:
        return (self.parts[0], self.sign == "&&") if k and self.lanes == 1 and self.sign in ("&&", "||") else None

    def c(self, p: Printer) -> tuple[str, int]:
        a, b = self.parts
        if p.adds_nothing(self):
            return a.c(p)
        level = _LEVEL.get(self.sign, OPEN)
        least = COMPARISON if level == LOGIC else max(level, COMPARISON + 1)
        again = isinstance(a, Infix) and a.sign == self.sign and level < COMPARISON    # a & b & c
        return f"{p.top(a) if again else p.operand(a, least)} {self.sign} {p.operand(b, least + (level >= SUM))}", level

    def python(self, v: Python) -> Term:
        a, b = self.parts
        return a.python(v) if v.adds_nothing(self) else binary(self.sign, a.python(v), b.python(v))

    def misfit(self) -> str:
        return super().misfit() or other_types(*self.parts)


class Prefix(Made):
    """`sign x`."""

    __slots__ = ("sign",)

    def __init__(self, sign: str, x: Expression) -> None:
        super().__init__((x,), x.dtype, x.lanes, x.mask)
        self.sign = sign

    @property
    def key(self) -> Any:
        return self.sign, self.parts

    def c(self, p: Printer) -> tuple[str, int]:
        return f"{self.sign}{p.operand(self.parts[0], PREFIX)}", PREFIX

    def python(self, v: Python) -> Term:
        t = self.parts[0].python(v)
        if self.sign == "!":
            return Term(f"int(not {t.code})", int32)
        dtype = t.dtype if t.lanes > 1 else promoted(t.dtype)
        code = f"({self.sign}{t.as_(dtype, t.lanes)})"
        wraps = t.lanes == 1 and dtype.kind in "iu" and (self.sign == "-" or dtype.kind == "u")
        return Term(wrapped(code, dtype) if wraps else code, dtype, t.lanes)


class Select(Made):
    """`condition ? a : b`, in vectors lane by lane if the condition is a vector."""

    __slots__ = ()

    def __init__(self, condition: Expression, a: Operand, b: Operand) -> None:
        a, b = value(a, b), value(b, a)
        super().__init__((condition, a, b), a.dtype, max(a.lanes, b.lanes), max(a.mask, b.mask))

    def where(self, k: int) -> tuple[Expression, bool] | None:
        return (self.parts[0], k == 1) if k and self.lanes == 1 else None

    def c(self, p: Printer) -> tuple[str, int]:
        condition, a, b = self.parts
        texts = [p.operand(x, OPEN + (isinstance(x, (Literal, Op)) or (x is a and isinstance(a, Select)))) for x in (a, b)]
        return f"{p.operand(condition, LOGIC)} ? {texts[0]} : {texts[1]}", OPEN

    def python(self, v: Python) -> Term:
        test, a, b = (part.python(v) for part in self.parts)
        dtype, lanes = common(a, b)
        lanes = max(lanes, test.lanes)
        a_, b_ = a.as_(dtype, lanes), b.as_(dtype, lanes)
        return Term(f"({a_} if {test.code} else {b_})" if test.lanes == 1 else f"_selected({test.code}, {a_}, {b_})", dtype, lanes)

    def misfit(self) -> str:
        condition, a, b = self.parts
        if (found := super().misfit()) or self.lanes == 1:
            return found
        if condition.lanes > 1 and condition.lane_bytes != self.lane_bytes:
            return f"the mask {condition} has lanes of {condition.lane_bytes} bytes, what it is for of {self.lane_bytes}"
        return f"{a} is {a.type}, and {b} is {b.type}" if a.type != b.type else ""


class Cast(Made):
    """One value as another dtype, as C converts it."""

    __slots__ = ()

    def __init__(self, x: Expression, dtype: DType) -> None:
        super().__init__((x,), dtype, 1)

    def c(self, p: Printer) -> tuple[str, int]:
        return f"({self.type}){p.operand(self.parts[0], PREFIX)}", PREFIX

    def python(self, v: Python) -> Term:
        return Term(self.parts[0].python(v).one(self.held), self.held)


class Convert(Made):
    """A vector as one of another dtype."""

    __slots__ = ()

    def __init__(self, x: Expression, dtype: DType, mask: int = 0) -> None:
        super().__init__((x,), dtype, x.lanes, mask)

    def c(self, p: Printer) -> tuple[str, int]:
        given = self.parts[0]
        text = p.operand(given) if isinstance(given, Select) else p.top(given)
        return (f"__builtin_convertvector({text}, {self.type})" if p.clang else f"convert_{self.type}({text})"), ATOM

    def python(self, v: Python) -> Term:
        return Term(f"{self.parts[0].python(v).code}.astype(d_{self.held.name})", self.held, self.lanes)


class Position(Convert):
    """A 64-bit position below `size`, a vector of indices until it is one."""

    __slots__ = ("size",)

    def __init__(self, x: Expression, dtype: DType, size: int) -> None:
        super().__init__(x, dtype)
        self.size = size


class Bits(Made):
    """The bits of `x` as another dtype of the same size."""

    __slots__ = ()

    def __init__(self, x: Expression, dtype: DType) -> None:
        super().__init__((x,), dtype, x.lanes)

    def c(self, p: Printer) -> tuple[str, int]:
        return f"as_{self.type}({p.top(self.parts[0])})", ATOM

    def python(self, v: Python) -> Term:
        t = self.parts[0].python(v)
        code = f"np.asarray({t.code}, d_{t.dtype.name}).view(d_{self.held.name})"
        return Term(single(code, self.held) if t.lanes == 1 else code, self.held, t.lanes)

    def misfit(self) -> str:
        return super().misfit() or other_bytes(self, *self.parts)


class Spelling(Plain):
    """How an op is written for a target: C around its operands, and whether that is an operand only in parentheses.

    pieces: text, the number of an operand, text, ...; helpers: the library functions that it calls. arguments: the pieces that are operands
    with nothing else in their parentheses, or between commas.
    """

    pieces: tuple[str | int, ...]
    open: bool
    helpers: frozenset[str] = frozenset()
    arguments: frozenset[int] = frozenset()


class Op(Made):
    """An op of its operands, as it spells itself."""

    __slots__ = ("spelling",)

    def __init__(self, spelling: Spelling, parts: tuple[Expression, ...], dtype: DType, lanes: int, mask: int = 0) -> None:
        super().__init__(parts, dtype, lanes, mask)
        self.spelling = spelling

    @property
    def key(self) -> Any:
        return self.spelling, self.parts

    def c(self, p: Printer) -> tuple[str, int]:
        of = self.spelling
        pieces = [piece if isinstance(piece, str) else p.operand(self.parts[piece], OPEN if k in of.arguments else COMPARISON + 1)
                  for k, piece in enumerate(of.pieces)]
        return "".join(pieces), OPEN if of.open else ATOM

    def python(self, v: Python) -> Term:
        return v.formula(self).python(v)  # type: ignore[no-any-return]

    def misfit(self) -> str:
        return super().misfit() or other_bytes(self, *self.parts)


class Call(Made):
    """A function of the language's own."""

    __slots__ = ("name",)

    def __init__(self, name: str, *given: Operand) -> None:
        parts = tuple([value(x, given[0]) for x in given])
        super().__init__(parts, parts[0].dtype, parts[0].lanes)
        self.name = name

    @property
    def key(self) -> Any:
        return self.name, self.parts

    def c(self, p: Printer) -> tuple[str, int]:
        given = [p.top(x) for x in self.parts]
        if self.name == "min":                              # of indices the last there is: where the last tile begins
            given = [p.ends(text) if isinstance(x, At) and not x.index.terms else text for x, text in zip(self.parts, given, strict=True)]
        return f"{self.name}({', '.join(given)})", ATOM

    def python(self, v: Python) -> Term:
        terms = [part.python(v) for part in self.parts]
        dtype, lanes = common(*terms) if len(terms) > 1 else terms[0][1:]
        codes = [t.as_(dtype, lanes) for t in terms]
        if lanes == 1 and dtype.kind in "iu":
            codes = [f"np.asarray({code}, d_{dtype.name})" for code in codes]
        code = f"{v.function(self.name)}({', '.join(codes)})"
        return Term(f"np.asarray({code}, d_{dtype.name})" if lanes > 1 else single(code, dtype), dtype, lanes)

    def misfit(self) -> str:
        return super().misfit() or other_types(*self.parts)


def combined(sign: str, tests: Sequence[Expression | None]) -> Expression | None:
    """Tests as one, if there are any."""
    found: Expression | None = None
    for test in tests:
        found = test if found is None else found if test is None else Infix(sign, found, test)
    return found
