"""What a kernel computes, as trees of typed expressions, and the variables and elements they are made of. Start at `Expression`.

An expression knows its dtype, its lanes and the variables it depends on; `render` makes it text when the kernel is printed, `verify` looks
at its types, and nobody else looks into text to learn something. Trees are small: what an op computes is a variable of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from tracegrad.codegen.kernel.index.index import Index, Var, constant
from tracegrad.codegen.kernel.ir.types import dtype_of, lanes_of, register_dtype, register_type
from tracegrad.codegen.kernel.text.markup import marked
from tracegrad.support import plan
from tracegrad.support.dtypes import OPENCL, DType, bool_, int32, int64, is_half
from tracegrad.support.plan import Plain

# ------------------------------------------------------------------------------------------------------------------- memory


class Buffer:
    """A pointer parameter. ref: what it binds to; size: elements (None: not known); access: "const", "out" or "inout"."""

    __slots__ = ("access", "dtype", "name", "ref", "restrict", "size")

    def __init__(self, ref: Any, name: str, dtype: DType, size: int | None, access: str) -> None:
        self.ref, self.name, self.dtype, self.size, self.access = ref, name, dtype, size, access
        self.restrict = access != "inout"                    # what is updated in place may be read by another name

    def __str__(self) -> str:
        return self.name

    @property
    def declaration(self) -> str:
        return self.plain(marked(self.name)).declaration

    def plain(self, name: str) -> plan.Parameter:
        """It as a plan has it, called so."""
        return plan.Parameter(OPENCL[self.dtype], name, True, self.access == "const", self.restrict)


class Array:
    """An array of `size` elements of the C type `type`: a work-item's own, or (shared) a work-group's.

    aligned: it begins at a multiple of so many bytes, if not 0; zeros: that is what it holds at first. row: it is in rows of so many,
    if not 0. (PoCL makes vectors of a work-group's items where indices tell that rows do not overlap: 0.2 of the time.)
    spilled: it is to be in memory, not in registers.
    """

    __slots__ = ("aligned", "name", "row", "shared", "size", "spilled", "type", "zeros")

    def __init__(self, name: str, type_: str, size: int, shared: bool, aligned: int = 0, zeros: bool = False, row: int = 0) -> None:
        self.name, self.type, self.size, self.shared = name, type_, size, shared
        self.aligned, self.zeros, self.row, self.spilled = aligned, zeros, row, False

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> DType:
        """That of an element, or of its lanes."""
        return dtype_of(self.type)

    @property
    def lanes(self) -> int:
        """Of an element that is a vector."""
        return lanes_of(self.type)


class Access:
    """Elements that a statement reads or writes: `at`, where `guards` hold; with `lanes` the elements for as many values of `lane`.

    each: so many from there on, for every lane: the parts of a complex number are two. skip: where among these a vector that has not all
    of them begins. whole: it begins at a multiple of its size, as
    who makes it knows, in one of the device's own buffers.

    at: None if only the running program knows. It may say that something is in a range (`index.bounded`); what proves it is a guard.
    place: what computes it then, if that is no text.
    """

    __slots__ = ("at", "each", "guards", "lane", "lanes", "memory", "place", "skip", "whole")

    def __init__(
        self, memory: Buffer | Array | Pointer, at: Index | None, lanes: int = 1, lane: Var | None = None, guards: tuple[Any, ...] = (),
        each: int = 1, skip: int = 0, place: Expression | None = None, whole: bool = False,
    ) -> None:
        self.memory, self.at, self.lanes, self.lane, self.guards, self.each = memory, at, lanes, lane, guards, each
        self.skip, self.place, self.whole = skip, place, whole

    @property
    def aligned(self) -> bool:
        """Whether what a vector reads or writes begins at a multiple of its size, for certain.

        (The device's own buffers begin at one of 128 bytes; arrays of the host's, which CPUs work on, may begin anywhere.)
        """
        if self.at is None or self.lane is None or not self.lane.aligned:
            return self.whole
        return self.at.opened().multiple % (self.lanes * self.each) == 0


# -------------------------------------------------------------------------------------------------------------- expressions


class Expression:
    """A value of a kernel. lanes: 1 if it is the same for all lanes; mask: bytes a lane of a vector of bools; vars: the variables that it
    depends on, wherever they stand in it. Expressions do not change once they are made.
    """

    __slots__ = ("dtype", "lanes", "mask", "vars")
    shown: ClassVar[Any]                    # how it is printed as an operand: set by `render`

    def __init__(self, dtype: DType, lanes: int = 1, mask: int = 0, vars: frozenset[Any] = frozenset()) -> None:
        self.dtype, self.lanes, self.mask, self.vars = dtype, lanes, mask, vars

    @property
    def type(self) -> str:
        """Its C type."""
        return register_type(self.dtype, self.lanes, self.mask)

    @property
    def operands(self) -> tuple[Expression, ...]:
        return ()

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


class Zeros(Expression):
    """No matter of which dtype: as what is read where nothing is."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        return self.dtype, self.lanes


class Local(Expression):
    """A variable of a work-item. only_if: the condition without which it is 0, if it was loaded under one."""

    __slots__ = ("name", "only_if")

    def __init__(self, name: str, dtype: DType, lanes: int = 1, mask: int = 0, only_if: Expression | None = None) -> None:
        super().__init__(dtype, lanes, mask, frozenset((self,)))
        self.name, self.only_if = name, only_if

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Number(Expression):
    """A by-value parameter."""

    __slots__ = ("name", "ref")

    def __init__(self, ref: Any, name: str, dtype: DType) -> None:
        super().__init__(dtype)
        self.ref, self.name = ref, name

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def declaration(self) -> str:
        return self.plain(marked(self.name)).declaration

    def plain(self, name: str) -> plan.Parameter:
        """It as a plan has it, called so."""
        return plan.Parameter(self.type, name)


class Pointer(Expression):
    """A variable of a work-item that points to elements `base` to `base + size - 1` of one of the buffers `of`."""

    __slots__ = ("base", "name", "of", "size")

    def __init__(self, name: str, of: tuple[Buffer, ...], base: Index, size: int) -> None:
        super().__init__(of[0].dtype, 1, 0, frozenset((self,)))
        self.name, self.of, self.base, self.size = name, of, base, size

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def type(self) -> str:
        return f"__global {'const ' * all(b.access == 'const' for b in self.of)}{OPENCL[self.dtype]} *"


class Address(Expression):
    """Where element `base` of a buffer is, or the one that is `more` elements behind it."""

    __slots__ = ("base", "memory", "more")

    def __init__(self, memory: Buffer, base: Index, more: Expression | None = None) -> None:
        vars: frozenset[Any] = base.vars
        super().__init__(memory.dtype, 1, 0, vars if more is None else vars | more.vars)
        self.memory, self.base, self.more = memory, base, more

    @property
    def operands(self) -> tuple[Expression, ...]:
        return () if self.more is None else (self.more,)

    @property
    def key(self) -> Any:
        return id(self.memory), self.base.key, self.more


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


class Limit(At):
    """A number that an index is compared with, where what is added to the index has been taken from it: an offset as that would be."""

    __slots__ = ()

    def __init__(self, limit: int, dtype: DType = int32) -> None:
        super().__init__(constant(limit), dtype)


class Steps(Expression):
    """0, 1, 2, ... in a vector."""

    __slots__ = ()

    @property
    def key(self) -> Any:
        return self.dtype, self.lanes


class Load(Expression):
    """Elements that are read. A vector: `stride` elements apart, or at the indices `places`, and 0 where the mask `only` is not."""

    __slots__ = ("access", "only", "places", "stride")

    def __init__(
        self, access: Access, dtype: DType, lanes: int = 1, stride: int = 1, places: Expression | None = None,
        only: Expression | None = None,
    ) -> None:
        vars: frozenset[Any] = access.at.vars if access.at is not None else frozenset()
        for x in (places, only, access.place):
            if x is not None:
                vars |= x.vars
        super().__init__(dtype, lanes, 0, vars)
        self.access, self.stride, self.places, self.only = access, stride, places, only

    @property
    def macro(self) -> str:
        """The function that reads a vector of what does not lie together."""
        if self.lanes == 1 or is_half(self.dtype) or not isinstance(self.access.memory, Buffer):
            return ""
        if self.places is not None:
            return f"GATHER{self.lanes}{'_IF' * (self.only is not None)}"
        return f"STRIDED{self.lanes}" * (self.stride != 1)

    @property
    def operands(self) -> tuple[Expression, ...]:
        return tuple([x for x in (self.places, self.only, self.access.place) if x is not None])


class _Of(Expression):
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


COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!=", "&&", "||"))


class Infix(_Of):
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


class Prefix(_Of):
    """`sign x`."""

    __slots__ = ("sign",)

    def __init__(self, sign: str, x: Expression) -> None:
        super().__init__((x,), x.dtype, x.lanes, x.mask)
        self.sign = sign

    @property
    def key(self) -> Any:
        return self.sign, self.parts


class Select(_Of):
    """`condition ? a : b`, in vectors lane by lane if the condition is a vector."""

    __slots__ = ()

    def __init__(self, condition: Expression, a: Operand, b: Operand) -> None:
        a, b = value(a, b), value(b, a)
        super().__init__((condition, a, b), a.dtype, max(a.lanes, b.lanes), max(a.mask, b.mask))


class Cast(_Of):
    """One value as another dtype, as C converts it."""

    __slots__ = ()

    def __init__(self, x: Expression, dtype: DType) -> None:
        super().__init__((x,), dtype, 1)


class Convert(_Of):
    """A vector as one of another dtype."""

    __slots__ = ()

    def __init__(self, x: Expression, dtype: DType, mask: int = 0) -> None:
        super().__init__((x,), dtype, x.lanes, mask)


class Position(Convert):
    """A 64-bit position below `size`, a vector of indices until it is one."""

    __slots__ = ("size",)

    def __init__(self, x: Expression, dtype: DType, size: int) -> None:
        super().__init__(x, dtype)
        self.size = size


class Bits(_Of):
    """The bits of `x` as another dtype of the same size."""

    __slots__ = ()

    def __init__(self, x: Expression, dtype: DType) -> None:
        super().__init__((x,), dtype, x.lanes)


class Splat(_Of):
    """The vector whose lanes are all `x`."""

    __slots__ = ()

    def __init__(self, x: Expression, lanes: int) -> None:
        super().__init__((x,), x.dtype, lanes)


class Spread(_Of):
    """The mask whose lanes are all the bool `x`."""

    __slots__ = ()

    def __init__(self, x: Expression, lanes: int, mask: int) -> None:
        super().__init__((x,), x.dtype, lanes, mask)


class Vector(_Of):
    """The vector of its operands."""

    __slots__ = ()

    def __init__(self, parts: tuple[Expression, ...], mask: int = 0) -> None:
        super().__init__(parts, parts[0].dtype, len(parts), mask)


class Lanes(_Of):
    """Some lanes of a vector: `which` is "lo", "hi", "even", "odd", the number of one, or a range of numbers: 2, 4 or 8 of them."""

    __slots__ = ("which",)

    def __init__(self, x: Expression, which: str | int | range) -> None:
        lanes = 1 if isinstance(which, int) else len(which) if isinstance(which, range) else x.lanes // 2
        super().__init__((x,), x.dtype, lanes, x.mask if lanes > 1 else 0)
        self.which = which

    @property
    def key(self) -> Any:
        return self.which, self.parts


class Zip(_Of):
    """The lanes of two vectors in turn."""

    __slots__ = ()

    def __init__(self, a: Expression, b: Expression) -> None:
        super().__init__((a, b), a.dtype, 2 * a.lanes)


class Joined(_Of):
    """The lanes of a vector, then those of another."""

    __slots__ = ()

    def __init__(self, a: Expression, b: Expression) -> None:
        super().__init__((a, b), a.dtype, 2 * a.lanes)


class StridedLoad(_Of):
    """Of vectors laid end to end, as many lanes as one has: each that is `first` more than a multiple of their number."""

    __slots__ = ("first",)

    def __init__(self, parts: tuple[Expression, ...], first: int) -> None:
        super().__init__(parts, parts[0].dtype, parts[0].lanes)
        self.first = first

    @property
    def key(self) -> Any:
        return self.first, self.parts


class Transposed(_Of):
    """Of two vectors laid end to end, as many lanes as one has, from lane `first` on."""

    __slots__ = ("first",)

    def __init__(self, a: Expression, b: Expression, first: int) -> None:
        super().__init__((a, b), a.dtype, a.lanes)
        self.first = first

    @property
    def key(self) -> Any:
        return self.first, self.parts


class Spelling(Plain):
    """How an op is written for a target: C around its operands, and whether that is an operand only in parentheses.

    pieces: text, the number of an operand, text, ...; helpers: the library functions that it calls.
    """

    pieces: tuple[str | int, ...]
    open: bool
    helpers: frozenset[str] = frozenset()


class Op(_Of):
    """An op of its operands, as it spells itself."""

    __slots__ = ("spelling",)

    def __init__(self, spelling: Spelling, parts: tuple[Expression, ...], dtype: DType, lanes: int, mask: int = 0) -> None:
        super().__init__(parts, dtype, lanes, mask)
        self.spelling = spelling

    @property
    def key(self) -> Any:
        return self.spelling, self.parts


class Call(_Of):
    """A function of the language's own."""

    __slots__ = ("name",)

    def __init__(self, name: str, *given: Operand) -> None:
        parts = tuple([value(x, given[0]) for x in given])
        super().__init__(parts, parts[0].dtype, parts[0].lanes)
        self.name = name

    @property
    def key(self) -> Any:
        return self.name, self.parts


_BOOL = np.dtype(bool)
Parameter = Buffer | Number
Symbol = Buffer | Number | Local | Array | Pointer | Var
Part = Symbol | Access | Index | Expression
Parts = tuple[Part, ...]
Operand = Expression | Index | Var | int


def whole(n: int, dtype: DType = int32) -> At:
    """A number of the kernel's own: a size, a bound."""
    return At(constant(n), dtype)


_WHOLE = frozenset((int32, int64, bool_))


def value(x: Operand, beside: Operand = 0) -> Expression:
    """An index, or a number, as what expressions are made of; beside: a number is of its dtype."""
    if isinstance(x, Expression):
        return x
    if isinstance(x, int):
        dtype = beside.dtype if isinstance(beside, Expression) else int32
        return whole(x, dtype) if dtype in _WHOLE else Literal(x, dtype)
    return At(x.index if isinstance(x, Var) else x)


def place(memory: Buffer | Array | Pointer, at: Operand) -> Access:
    """One element. At an index: proved to be there; at what another expression computes: the running program's to know."""
    if isinstance(at, Expression):
        return Access(memory, None, place=at)
    return Access(memory, at.index if isinstance(at, Var) else at if isinstance(at, Index) else constant(at))


def element(memory: Buffer | Array | Pointer, at: Operand) -> Load:
    """What is there (see `place`)."""
    return Load(place(memory, at), memory.dtype)


def types_of(parts: Iterable[Part]) -> set[tuple[DType, int]]:
    """The types that expressions have in registers: of one lane, and how many."""
    found = {(x.dtype, x.lanes, x.mask) for part in parts if isinstance(part, Expression) for x in nodes(part)}
    return {(np.dtype(f"i{mask or 4}") if dtype.kind == "b" and n > 1 else register_dtype(dtype), n) for dtype, n, mask in found}


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


def combined(sign: str, tests: Sequence[Expression | None]) -> Expression | None:
    """Tests as one, if there are any."""
    found: Expression | None = None
    for test in tests:
        found = test if found is None else found if test is None else Infix(sign, found, test)
    return found
