"""Expressions as Python on numpy values, with C's types. Start at `Values.of`: it asks the rule of the expression's kind.

One value is a Python int, or a float of numpy's; a vector is an array. What C does by itself is done here: small integers become ints,
unsigned ones wrap, the lesser of two types becomes the other. The lanes of operands are `verify_kernel`'s to check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.kernel.ir.constant_indices import constants_in
from tracegrad.codegen.kernel.ir.expressions import (
    COMPARISONS,
    Access,
    Address,
    Array,
    At,
    Bits,
    Buffer,
    Call,
    Cast,
    Convert,
    Expression,
    Held,
    Infix,
    Joined,
    Lanes,
    Limit,
    Literal,
    Load,
    Local,
    Number,
    Op,
    Pointer,
    Position,
    Prefix,
    Select,
    Splat,
    Spread,
    Steps,
    StridedLoad,
    Transposed,
    Vector,
    Zeros,
    Zip,
)
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.render import Printer
from tracegrad.codegen.kernel.ir.types import register_dtype
from tracegrad.codegen.kernel.run.formulas import formula
from tracegrad.codegen.kernel.run.functions import functions
from tracegrad.codegen.kernel.run.memory import KernelFault
from tracegrad.codegen.kernel.text.markup import Offset, called, offset, offsets_in, plain, with_offsets
from tracegrad.support.dtypes import DType, float32, float64, int32, int64, is_half, uint8, uint32, uint64

_RANK = (int32, uint32, int64, uint64, float32, float64)           # C computes with the one of two that is further behind
_WRAPPED: dict[DType, Callable[[str], str]] = {
    int32: "_int({})".format, int64: "_checked({})".format, uint32: f"({{}} & {(1 << 32) - 1})".format,
    uint64: f"({{}} & {(1 << 64) - 1})".format}


class Term(NamedTuple):
    """A value as Python text, and its C type."""

    code: str
    dtype: DType
    lanes: int = 1

    @property
    def whole(self) -> bool:
        return self.dtype.kind in "iu"


def register(x: Expression) -> DType:
    """What C has for the dtype of an expression: of bools ints, and masks in vectors; of halves floats."""
    return np.dtype(f"i{x.mask or 4}") if x.dtype.kind == "b" and x.lanes > 1 else register_dtype(x.dtype)


def promoted(dtype: DType) -> DType:
    return int32 if dtype.kind in "iu" and dtype.itemsize < 4 else dtype


def stored(memory: Buffer | Array | Pointer) -> DType:
    """What C has for the elements of a memory, once they are read."""
    if isinstance(memory, Buffer) and is_half(memory.dtype):
        return float32
    return uint8 if memory.dtype.kind == "b" else memory.dtype


class Values:
    """Expressions of a kernel, with the names and numbers that stand in it where the statement is that they are parts of."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.printer = Printer(False, constants_in(kernel.body))             # which numbers stand in place of indices, as in C
        self.scopes: list[dict[str, str]] = [{}]             # what variables are called here, by their names
        self.renamed: dict[str, str] = {}                    # see Block
        self.numbers: Iterator[int] | None = None            # see Block
        self._numbers = None if kernel.numbers is None else iter(kernel.numbers)
        self._arguments = iter(kernel.offsets) if kernel.offsets else None
        self.offsets: list[int] = []                         # the numbers that were marked, in the order of C
        self.constants: dict[str, Any] = {}

    # -- names and numbers

    def name(self, name: str) -> str:
        """What a variable is called here."""
        name = self.renamed.get(name, name)
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise KernelFault(f"{self.kernel.entry}: {name} is not declared")

    def number(self, found: Offset) -> str:
        """What stands in place of a number that is added to an index."""
        number = found.value if self.numbers is None else next(self.numbers)
        number = number if self._numbers is None else next(self._numbers)
        name, more = ("", 0) if self._arguments is None else next(self._arguments)
        if name:
            return f"({self.name(name)} + {more})"
        self.offsets.append(number)
        return str(number)

    def text(self, text: str) -> str:
        """Marked text with the names and numbers of here."""
        if found := offsets_in(text):
            text = with_offsets(text, map(self.number, found).__next__)
        return plain(called(text, self.name))

    def index(self, x: Index, lanes: Any = None) -> str:
        lane = next(iter(lanes), None) if lanes else None
        return self.text(self.printer.given(x, lane).marked(lanes, "//"))

    def constant(self, value: Any) -> str:
        """The name of something that is known now."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    # -- places

    def address(self, access: Access) -> str:
        """A pointer there. (Of what only the running program knows: to the first element.)"""
        memory, at = access.memory, access.at
        name = self.name(memory.name)
        if at is None:
            return name
        at = self.printer.given(at) + access.skip
        if isinstance(memory, Array) and memory.row:
            name, at = f"{name}.moved(({self.index((at // memory.row).opened())}) * {memory.row})", at % memory.row
        at = at.opened()
        place = self.index(at) if at.terms else self.text(offset(at.constant)) if at.constant else ""
        return f"{name}.moved({place})" if place else name

    def element(self, access: Access) -> str:
        """The number of the element there, from where its memory begins."""
        memory, at = access.memory, access.at
        if at is None:
            return "0" if access.place is None else self.of(access.place).code
        at = self.printer.given(at)
        if isinstance(memory, Array) and memory.row:
            row, column = (self.index(x.opened()) for x in (at // memory.row, at % memory.row))
            return f"({row}) * {memory.row} + {column}"
        at = at.opened()
        return self.index(at) if at.terms or not isinstance(memory, Buffer) else self.text(offset(at.constant))

    def vector(self, access: Access) -> str:
        """A pointer to an element that is a vector."""
        assert isinstance(access.memory, Array)
        return f"{self.name(access.memory.name)}.moved(({self.element(access)}) * {access.memory.lanes})"

    def aligned(self, access: Access, lanes: int) -> str:
        """What is asked of the pointer to a vector."""
        memory = access.memory
        checked = memory.shared if isinstance(memory, Array) else isinstance(memory, Buffer) and access.aligned
        return f".aligned({lanes})" * checked

    # -- values

    def of(self, x: Expression) -> Term:
        return _RULES[type(x)](self, x)

    def one(self, t: Term, dtype: DType) -> str:
        """One value as another dtype, as C converts it."""
        if t.dtype == dtype:
            return t.code
        if dtype.kind == "f":
            return f"{dtype.name}({t.code})"
        wider = t.whole and (t.dtype.kind in ("u", dtype.kind)) and t.dtype.itemsize < dtype.itemsize + (t.dtype.kind == dtype.kind)
        return t.code if wider else f"_whole({t.code}, {self.dtype(dtype)})"

    @staticmethod
    def dtype(dtype: DType) -> str:
        return f"d_{dtype.name}"

    def as_(self, t: Term, dtype: DType, lanes: int = 1) -> str:
        """A value where one of this type is wanted."""
        if t.lanes > 1:
            return t.code
        return self.one(t, dtype) if lanes == 1 else f"_lanes_of({t.code}, {lanes}, {self.dtype(dtype)})"

    def common(self, *terms: Term) -> Term:
        """The type in which C computes with several."""
        wide = [t for t in terms if t.lanes > 1]
        return Term("", *(wide[0][1:] if wide else (max([promoted(t.dtype) for t in terms], key=_RANK.index), 1)))

    def binary(self, sign: str, a: Term, b: Term) -> Term:
        """a sign b."""
        if sign in ("&&", "||"):
            return Term(f"int(bool({a.code}) {'and' if sign == '&&' else 'or'} bool({b.code}))", int32)
        _, dtype, lanes = self.common(a, b)
        shifts = sign in ("<<", ">>") and lanes == 1
        dtype = promoted(a.dtype) if shifts else dtype
        x, y = (t.code if shifts else self.as_(t, dtype, lanes) for t in (a, b))
        code = f"({x} {sign} {y})"
        if sign in COMPARISONS:
            mask = np.dtype(f"i{dtype.itemsize}")
            return Term(f"(-{code}.astype({self.dtype(mask)}))", mask, lanes) if lanes > 1 else Term(f"int{code}", int32)
        if dtype.kind in "iu" and sign in "/%":
            divided = f"{'_vector' * (lanes > 1)}_divided({x}, {y})"
            code = divided if sign == "/" else f"({x} - {divided} * {y})" if lanes > 1 else f"_rest({x}, {y})"
        elif dtype.kind in "iu" and lanes == 1 and sign in "+-*":
            code = _WRAPPED[dtype](code)
        elif sign == "<<" and lanes == 1:                    # OpenCL C drops the bits that do not fit, of signed numbers, too
            code = f"_whole({code}, {self.dtype(dtype)})"
        return Term(code, dtype, lanes)

    def call(self, name: str, given: list[Term]) -> Term:
        """A function with numpy's meaning."""
        if name not in functions():
            raise KernelFault(f"{self.kernel.entry}: {name} is not declared")
        _, dtype, lanes = self.common(*given) if len(given) > 1 else given[0]
        codes = [self.as_(t, dtype, lanes) for t in given]
        if lanes == 1 and dtype.kind in "iu":
            codes = [f"np.asarray({code}, {self.dtype(dtype)})" for code in codes]
        code = f"{self.constant(functions()[name])}({', '.join(codes)})"
        if lanes > 1:
            return Term(f"np.asarray({code}, {self.dtype(dtype)})", dtype, lanes)
        return Term(f"{dtype.name if dtype.kind == 'f' else 'int'}({code})", dtype)


# ---------------------------------------------------------------------------------------------------------------------- the rules


def _literal(v: Values, x: Literal) -> Term:
    dtype = register(x)
    if dtype.kind in "iu":
        return Term(str(int(x.value)), dtype)
    return Term(v.constant(dtype.type(float(x.value))), dtype)


def _zeros(v: Values, x: Zeros) -> Term:
    return Term("0", int32) if x.lanes == 1 else Term(v.constant(np.zeros(x.lanes, register(x))), register(x), x.lanes)


def _symbol(v: Values, x: Local | Number | Pointer) -> Term:
    return Term(v.name(x.name), register(x), x.lanes)


def _address(v: Values, x: Address) -> Term:
    code = v.address(Access(x.memory, x.base))
    return Term(code if x.more is None else f"{code}.moved({v.of(x.more).code})", x.dtype)


def _at(v: Values, x: At) -> Term:
    dtype = int64 if x.dtype == int64 else int32             # a number of another dtype is written as an int, too
    code = v.index(x.index, {x.lane: v.of(x.each).code} if x.each is not None else None)
    if not v.printer.given(x.index, x.lane if x.each is not None else None).terms:
        return Term(code, dtype)
    limit = 1 << 8 * dtype.itemsize - 1
    if x.lanes == 1 and not -limit <= x.index.lo <= x.index.hi < limit:
        return Term(_WRAPPED[dtype](f"({code})"), dtype)
    return Term(f"({code})", dtype, x.lanes)


def _limit(v: Values, x: Limit) -> Term:
    n = x.index.constant
    return Term(f"{'-' * (n < 0)}{v.text(offset(abs(n)))}", int64 if x.dtype == int64 else int32)


def _steps(v: Values, x: Steps) -> Term:
    return Term(v.constant(np.arange(x.lanes, dtype=x.dtype)), x.dtype, x.lanes)


def _load(v: Values, x: Load) -> Term:
    access, memory, lanes, dtype = x.access, x.access.memory, x.lanes, stored(x.access.memory)
    if isinstance(memory, Array) and memory.lanes > 1 and lanes in (1, memory.lanes):
        return Term(f"{v.vector(access)}.vector({memory.lanes})", dtype, memory.lanes)
    if lanes == 1:
        code = f"{v.name(memory.name)}.load({v.element(access)})"
        return Term(f"int({code})" if dtype.kind in "iu" else f"{dtype.name}({code})" if dtype != memory.dtype else code, dtype)
    if x.places is not None:
        given = ", ".join([v.of(p).code for p in (x.places, x.only) if p is not None])
        code = f"{v.name(memory.name)}.picked({given})"
    elif x.stride != 1:
        code = f"{v.address(access)}.picked({v.constant(np.arange(lanes) * x.stride)})"
    else:
        code = f"{v.address(access)}{v.aligned(access, lanes)}.vector({lanes})"
    return Term(f"{code}.astype({v.dtype(dtype)})" if dtype != memory.dtype else code, dtype, lanes)


def _infix(v: Values, x: Infix) -> Term:
    a, b = x.parts
    return v.of(a) if v.printer.adds_nothing(x) else v.binary(x.sign, v.of(a), v.of(b))


def _prefix(v: Values, x: Prefix) -> Term:
    t = v.of(x.parts[0])
    dtype = t.dtype if t.lanes > 1 else promoted(t.dtype)
    if x.sign == "!":
        return Term(f"int(not {t.code})", int32)
    code = f"({x.sign}{v.as_(t, dtype, t.lanes)})"
    wraps = t.lanes == 1 and dtype.kind in "iu" and (x.sign == "-" or dtype.kind == "u")
    return Term(_WRAPPED[dtype](code) if wraps else code, dtype, t.lanes)


def _select(v: Values, x: Select) -> Term:
    test, a, b = (v.of(p) for p in x.parts)
    _, dtype, lanes = v.common(a, b)
    if test.lanes == 1:
        return Term(f"({v.as_(a, dtype, lanes)} if {test.code} else {v.as_(b, dtype, lanes)})", dtype, lanes)
    return Term(f"_selected({test.code}, {v.as_(a, dtype, test.lanes)}, {v.as_(b, dtype, test.lanes)})", dtype, test.lanes)


def _cast(v: Values, x: Cast) -> Term:
    return Term(v.one(v.of(x.parts[0]), register(x)), register(x))


def _convert(v: Values, x: Convert) -> Term:
    t = v.of(x.parts[0])
    return Term(f"{t.code}.astype({v.dtype(register(x))})", register(x), t.lanes)


def _bits(v: Values, x: Bits) -> Term:
    t = v.of(x.parts[0])
    code = f"np.asarray({t.code}, {v.dtype(t.dtype)}).view({v.dtype(register(x))})"
    one = t.lanes == 1
    return Term(f"{'int' if x.dtype.kind in 'iu' else x.dtype.name}({code})" if one else code, register(x), t.lanes)


def _splat(v: Values, x: Splat) -> Term:
    part, dtype = x.parts[0], register(x)
    if isinstance(part, Literal) or (isinstance(part, At) and not part.index.terms):
        return Term(v.constant(np.full(x.lanes, part.value if isinstance(part, Literal) else part.index.constant, dtype)), dtype, x.lanes)
    return Term(f"_lanes_of({v.one(v.of(part), dtype)}, {x.lanes}, {v.dtype(dtype)})", dtype, x.lanes)


def _spread(v: Values, x: Spread) -> Term:
    return Term(f"_lanes_of(-{v.of(x.parts[0]).code}, {x.lanes}, {v.dtype(register(x))})", register(x), x.lanes)


def _vector(v: Values, x: Vector) -> Term:
    parts = ", ".join([v.one(v.of(p), register(x)) for p in x.parts])
    return Term(f"np.array([{parts}], {v.dtype(register(x))})", register(x), x.lanes)


def _lanes(v: Values, x: Lanes) -> Term:
    t = v.of(x.parts[0])
    lanes = range(t.lanes)
    halves = {"lo": lanes[:t.lanes // 2], "hi": lanes[t.lanes // 2:], "even": lanes[::2], "odd": lanes[1::2]}
    which = halves[x.which] if isinstance(x.which, str) else range(x.which, x.which + 1) if isinstance(x.which, int) else x.which
    if len(which) > 1:
        return Term(f"{t.code}[{which.start}:{which.stop}:{which.step}]", t.dtype, x.lanes)
    return Term(f"int({t.code}[{which[0]}])" if t.whole else f"{t.code}[{which[0]}]", t.dtype)


def _zip(v: Values, x: Zip) -> Term:
    a, b = (v.of(p) for p in x.parts)
    return Term(f"np.stack([{a.code}, {b.code}], -1).reshape(-1)", a.dtype, x.lanes)


def _joined(v: Values, x: Joined | StridedLoad | Transposed) -> Term:
    """Vectors end to end, and some lanes of that."""
    terms = [v.of(p) for p in x.parts]
    part = (f"[{x.first}::{len(terms)}]" if isinstance(x, StridedLoad)
            else f"[{x.first}:{x.first + x.lanes}]" if isinstance(x, Transposed) else "")
    return Term(f"np.concatenate([{', '.join([t.code for t in terms])}]){part}", terms[0].dtype, x.lanes)


_RULES: dict[type[Expression], Callable[[Values, Any], Term]] = {
    Literal: _literal, Zeros: _zeros, Local: _symbol, Number: _symbol, Pointer: _symbol, Address: _address,
    Held: lambda v, x: v.of(x.x), At: _at, Limit: _limit, Steps: _steps, Load: _load,
    Infix: _infix, Prefix: _prefix, Select: _select, Cast: _cast, Convert: _convert, Position: _convert, Bits: _bits, Splat: _splat,
    Spread: _spread, Vector: _vector, Lanes: _lanes, Zip: _zip, Joined: _joined, StridedLoad: _joined, Transposed: _joined,
    Op: lambda v, x: v.of(formula(x.spelling, x.parts)), Call: lambda v, x: v.call(x.name, [v.of(p) for p in x.parts]),
}
