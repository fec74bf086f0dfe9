"""What a kernel is made of: parameters, variables, values, statements. Start at `Block`.

`Writer` makes them, `render` prints them, `verify` checks them, and passes over kernels look at them. The C of a statement is written
once, when it is made; what it declares, reads and writes stands beside it as objects, so that nobody has to read it out of the text.
Index variables (`index.Var`) are among those objects.
"""

from __future__ import annotations

from typing import Any, Union

from tracegrad.codegen.kernel.index import ZERO, Index, Var, constant
from tracegrad.dtypes import OPENCL, DType
from tracegrad.ir import Node

# ---------------------------------------------------------------------------------------------------------- parameters and variables


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
        return f"__global {'const ' * (self.access == 'const')}{OPENCL[self.dtype]} *{'restrict ' * self.restrict}{self.name}"


class Number:
    """A by-value parameter of the C type `type`."""

    __slots__ = ("name", "ref", "type")

    def __init__(self, ref: Any, name: str, type_: str) -> None:
        self.ref, self.name, self.type = ref, name, type_

    def __str__(self) -> str:
        return self.name

    @property
    def declaration(self) -> str:
        return f"const {self.type} {self.name}"


Parameter = Buffer | Number


class Local:
    """A variable of a work-item, of the C type `type`."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type_: str) -> None:
        self.name, self.type = name, type_

    def __str__(self) -> str:
        return self.name


class Array:
    """An array of `size` elements of the C type `type`: a work-item's own, or (shared) a work-group's."""

    __slots__ = ("name", "shared", "size", "type")

    def __init__(self, name: str, type_: str, size: int, shared: bool) -> None:
        self.name, self.type, self.size, self.shared = name, type_, size, shared

    def __str__(self) -> str:
        return self.name


Symbol = Buffer | Number | Local | Array | Var


class Access:
    """Elements that a statement reads or writes: `at`, where `guards` hold; with `lanes` the elements for as many values of `lane`.

    at: None if only the running program knows. It may say that something is in a range (`index.bounded`); what proves it is a guard.
    """

    __slots__ = ("at", "guards", "lane", "lanes", "memory")

    def __init__(
        self, memory: Buffer | Array, at: Index | None, lanes: int = 1, lane: Var | None = None, guards: tuple[Any, ...] = ()
    ) -> None:
        self.memory, self.at, self.lanes, self.lane, self.guards = memory, at, lanes, lane, guards


Part = Union[Symbol, Access, Index, "Value"]
Parts = tuple[Part, ...]


class Value:
    """A C expression: its text, its type, and the `parts` it reads. lanes: 1 if it is the same for all lanes; mask: bytes a lane of a bool
    vector; depth: how deep the innermost block is that it depends on.

    only_if: the condition without which it is 0, if it was loaded under one. narrow: a 64-bit position as a vector of indices, and its
    bound. guards: what is known where it is true.
    """

    __slots__ = ("depth", "dtype", "guards", "lanes", "mask", "narrow", "only_if", "parts", "text")

    def __init__(
        self, text: str, dtype: DType, lanes: int = 1, depth: int = 0, mask: int = 0, parts: Parts = (), only_if: str = "",
        narrow: tuple[Value, int] | None = None,
    ) -> None:
        self.text, self.dtype, self.lanes, self.depth, self.mask = text, dtype, lanes, depth, mask
        self.parts, self.only_if, self.narrow = parts, only_if, narrow
        self.guards: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"Value({self.text!r}, {self.dtype}, {self.lanes} lanes)"


class Bound:
    """Where a loop begins or ends: C text, and the indices that it is not below and not above. None: known when the program runs only."""

    __slots__ = ("high", "limit", "low", "parts", "text")

    def __init__(self, text: str, low: Index | None, high: Index | None, limit: int | None = None, parts: Parts = ()) -> None:
        self.text, self.low, self.high, self.limit = text, low, high, limit      # limit: it is the less of `high` and this
        self.parts = parts or tuple(x for x in (high if high is not None else low,) if x is not None)

    def __str__(self) -> str:
        return self.text


BoundLike = int | Index | Var | Bound


def bound(x: BoundLike) -> Bound:
    if isinstance(x, Bound):
        return x
    if isinstance(x, Var):
        return Bound(x.name, x.index, x.index, parts=(x,))
    at = x if isinstance(x, Index) else constant(x)
    return Bound(at.c(), at, at)


def product(x: Var, factor: int, more: int = 0) -> Bound:
    """x * factor + more, written out: the parts of something begin and end there."""
    text = f"{x} * {factor}" + (f" + {more}" if more else "")
    at = x.index * factor + more
    return Bound(text, at, at, parts=(x,))


def clipped(end: BoundLike, size: int, length: int, form: str = "({0} < {1} ? {0} : {1})") -> Bound:
    """Where a part, of `length`, of 0..size-1 ends: at `end`, but the last one, which may be shorter, at `size`."""
    end = bound(end)
    return end if size % length == 0 else Bound(form.format(end.text, size), ZERO, end.high, size, end.parts)


# ---------------------------------------------------------------------------------------------------------------------- statements


class Statement:
    """One line. node: what it computes, for the Python line beside it; parts: what it reads."""

    __slots__ = ("node", "parts", "text")

    def __init__(self, text: str, node: Node | None = None, parts: Parts = ()) -> None:
        self.text, self.node, self.parts = text, node, parts


class Declare(Statement):
    """A variable and its value; bounds: those of an index."""

    __slots__ = ("bound", "symbol", "value")

    def __init__(
        self, symbol: Local | Var, type_: str, text: str, node: Node | None = None, parts: Parts = (), bound: Bound | None = None
    ) -> None:
        super().__init__(f"{type_} {symbol.name} = {text};", node, parts)
        self.symbol, self.value, self.bound = symbol, text, bound


class Assign(Statement):
    """A variable's new value."""

    __slots__ = ("symbol",)

    def __init__(self, symbol: Local, text: str, node: Node | None = None, parts: Parts = ()) -> None:
        super().__init__(f"{symbol.name} = {text};", node, parts)
        self.symbol = symbol


class Store(Statement):
    """Element(s) written."""

    __slots__ = ("access",)

    def __init__(self, access: Access, text: str, node: Node | None = None, parts: Parts = ()) -> None:
        super().__init__(text, node, parts)
        self.access = access


class Item(Statement):
    """The number of the work-item along dimension `axis`: of all ("global"), of its group, or in it ("local")."""

    __slots__ = ("axis", "of", "type", "var")

    def __init__(self, var: Var, type_: str, axis: int, of: str) -> None:
        super().__init__(f"const {type_} {var.name} = get_{of}_id({axis});")
        self.var, self.type, self.axis, self.of = var, type_, axis, of


class Allocate(Statement):
    """An array."""

    __slots__ = ("array",)

    def __init__(self, array: Array, node: Node | None = None) -> None:
        super().__init__(f"{'__local ' * array.shared}{array.type} {array.name}[{array.size}];", node)
        self.array = array


class Barrier(Statement):
    """All items of a work-group come here before any goes on."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("barrier(CLK_LOCAL_MEM_FENCE);")


class Raw(Statement):
    """C text that nobody looks into: it reads its parts, makes `defines` and `writes`; cooperates: with other items of the work-group."""

    __slots__ = ("cooperates", "defines", "writes")

    def __init__(
        self, text: str, node: Node | None = None, parts: Parts = (), defines: tuple[Symbol, ...] = (),
        writes: tuple[Symbol | Access, ...] = (), cooperates: bool = False,
    ) -> None:
        super().__init__(text, node, parts)
        self.defines, self.writes, self.cooperates = defines, writes, cooperates


class Block:
    """Statements and inner blocks after `head` (none: just one after the other). vars: the index variables it binds; memo: the values
    that were computed in it, while it is written; comment: what is said beside the head; known: what holds in it, ("range", Index, low,
    high) or ("between", Index, Bound, Bound), though the ranges of its variables do not show it."""

    __slots__ = ("comment", "head", "items", "known", "memo", "parts", "renamed", "vars")

    def __init__(self, head: str, parts: Parts = (), vars: tuple[Var, ...] = (), known: tuple[Any, ...] = ()) -> None:
        self.head, self.parts, self.known = head, parts, known
        self.vars = frozenset(vars)
        self.items: list[Statement | Block] = []
        self.memo: dict[Any, Any] = {}
        self.comment = ""
        self.renamed: dict[str, str] = {}                    # parameters that are called otherwise than in the texts in it


class Loop(Block):
    """`for (var = start; var < stop; var += step)`; whole: only as long as a whole step fits."""

    __slots__ = ("start", "step", "stop", "var", "whole")

    def __init__(self, var: Var, type_: str, start: Bound, stop: Bound, step: int = 1, whole: bool = False,
                 known: tuple[Any, ...] = ()) -> None:
        more = f"{var} += {step}" if step > 1 else f"{var}++"
        fits = f"{var} + {step} <= {stop}" if whole else f"{var} < {stop}"
        super().__init__(f"for ({type_} {var} = {start}; {fits}; {more}) {{", (*start.parts, *stop.parts), (var,), known)
        self.var, self.start, self.stop, self.step, self.whole = var, start, stop, step, whole


class If(Block):
    """What is done only where the condition holds."""

    __slots__ = ()

    def __init__(self, condition: str, parts: Parts = (), known: tuple[Any, ...] = ()) -> None:
        super().__init__(f"if ({condition}) {{", parts, (), known)
