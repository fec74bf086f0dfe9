"""What a kernel is made of: statements, and blocks of them. Start at `Block`.

`Writer` makes them, `render` prints them, `verify` checks them, and passes over kernels look at them. What a statement computes is a tree
of `expressions`; what it declares, reads and writes are objects. Nothing is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, constant
from tracegrad.codegen.kernel.index.varying import any_vary, varies
from tracegrad.codegen.kernel.ir.expressions import (
    Access,
    Array,
    At,
    Buffer,
    Call,
    Expression,
    Infix,
    Local,
    Number,
    Parameter,
    Part,
    Parts,
    Pointer,
    Select,
    Symbol,
    whole,
)
from tracegrad.codegen.kernel.ir.instructions import Instruction
from tracegrad.graph.ir import Node

__all__ = [
    "Access", "Allocate", "Array", "Assign", "Atomic", "Barrier", "Block", "Bound", "BoundLike", "Break", "Buffer", "Declare",
    "If", "Instruct", "Item", "Local", "Loop", "Number", "Parameter", "Part", "Parts", "Pointer", "Prefetch", "Repeat", "Report",
    "Statement", "Store", "Symbol", "Update", "bound", "clipped", "clipped_at", "product", "statements_in",
]


class Bound:
    """Where a loop begins or ends: its value, and the indices that it is not below and not above. None: known when the program runs only.

    limit: it is the less of `high` and this.
    """

    __slots__ = ("high", "limit", "low", "value")

    def __init__(self, value: Expression, low: Index | None, high: Index | None, limit: int | None = None) -> None:
        self.value, self.low, self.high, self.limit = value, low, high, limit

    def __str__(self) -> str:
        return str(self.value)


BoundLike = int | Index | Var | Bound


def bound(x: BoundLike) -> Bound:
    if isinstance(x, Bound):
        return x
    at = x if isinstance(x, Index) else x.index if isinstance(x, Var) else constant(x)
    return Bound(At(at), at, at)


def product(x: Var, factor: int, more: int = 0) -> Bound:
    """x * factor + more: the parts of something begin and end there."""
    return bound(x.index * factor + more)


def clipped(end: BoundLike, size: int, length: int, function: str = "") -> Bound:
    """Where a part, of `length`, of 0..size-1 ends: at `end`, but the last one, which may be shorter, at `size`.

    function: what tells the less of the two, if not a comparison.
    """
    return clipped_at(end, size, size % length > 0 or any_vary(), function)


def clipped_at(end: BoundLike, size: int, shorter: bool, function: str = "") -> Bound:
    """The less of `end` and `size`; shorter: whether that may be the latter."""
    end = bound(end)
    if not shorter:
        return end
    a, b = end.value, whole(size)
    return Bound(Call(function, a, b) if function else Select(Infix("<", a, b), a, b), ZERO, end.high, size)


# ---------------------------------------------------------------------------------------------------------------------- statements


class Statement:
    """One line. node: what it computes, for the Python line beside it."""

    __slots__ = ("node",)

    def __init__(self, node: Node | None = None) -> None:
        self.node = node

    @property
    def parts(self) -> Parts:
        """What it reads."""
        return ()


class Declare(Statement):
    """A variable and its value; bound: that of an index; said: what stands beside it.

    A parameter of a kernel that becomes part of another one may be such a variable, too.
    """

    __slots__ = ("bound", "said", "symbol", "type", "value")

    def __init__(self, symbol: Local | Var | Pointer | Parameter, type_: str, value: Expression, node: Node | None = None,
                 bound: Bound | None = None, said: str = "") -> None:
        self.symbol, self.type, self.value, self.node, self.bound, self.said = symbol, type_, value, node, bound, said

    @property
    def parts(self) -> Parts:
        return (self.value,)


class Assign(Statement):
    """A variable's new value."""

    __slots__ = ("symbol", "value")

    def __init__(self, symbol: Local | Var | Pointer | Parameter, value: Expression, node: Node | None = None) -> None:
        self.symbol, self.value, self.node = symbol, value, node

    @property
    def parts(self) -> Parts:
        return (self.value,)


class Update(Statement):
    """A variable's, or an element's, new value: `sign` of the one it has and of `value`."""

    __slots__ = ("of", "sign", "value")

    def __init__(self, of: Local | Var | Access, sign: str, value: Expression, node: Node | None = None) -> None:
        self.of, self.sign, self.value, self.node = of, sign, value, node

    @property
    def parts(self) -> Parts:
        return (self.value, self.of)


class Store(Statement):
    """Element(s) written: `value`, as a `dtype` of memory; of a vector `stride` elements apart."""

    __slots__ = ("access", "stride", "value")

    def __init__(self, access: Access, value: Expression, node: Node | None = None, stride: int = 1) -> None:
        self.access, self.value, self.node, self.stride = access, value, node, stride

    @property
    def parts(self) -> Parts:
        return (self.value,)


class Atomic(Statement):
    """An integer in memory becomes the sum, or the least or largest, of it and `value`: in one step, whichever work-items do so together.

    The order of steps does not matter to the result. sign: "add", "min" or "max".
    """

    __slots__ = ("access", "sign", "value")

    def __init__(self, access: Access, sign: str, value: Expression, node: Node | None = None) -> None:
        self.access, self.sign, self.value, self.node = access, sign, value, node

    @property
    def function(self) -> str:
        """What does it in C: of 64 bits an extension's."""
        return f"{'atom' if self.access.memory.dtype.itemsize == 8 else 'atomic'}_{self.sign}"

    @property
    def parts(self) -> Parts:
        return (self.value,)


class Item(Statement):
    """The number of the work-item along dimension `axis`: of all ("global"), of its group, or in it ("local")."""

    __slots__ = ("axis", "of", "type", "var")

    def __init__(self, var: Var, type_: str, axis: int, of: str) -> None:
        self.var, self.type, self.axis, self.of, self.node = var, type_, axis, of, None


class Allocate(Statement):
    """An array."""

    __slots__ = ("array",)

    def __init__(self, array: Array, node: Node | None = None) -> None:
        self.array, self.node = array, node


class Barrier(Statement):
    """All items of a work-group come here before any goes on."""

    __slots__ = ()


class Instruct(Statement):
    """An instruction of the device on what is given: places, and numbers."""

    __slots__ = ("given", "of")

    def __init__(self, of: Instruction, given: tuple[Access | Expression, ...] = (), node: Node | None = None) -> None:
        self.of, self.given, self.node = of, given, node

    @property
    def parts(self) -> Parts:
        return tuple([x for x, wanted in zip(self.given, self.of.given, strict=True) if wanted.reads])

    @property
    def writes(self) -> tuple[Access, ...]:
        """The places that are written."""
        return tuple([x for x, wanted in zip(self.given, self.of.given, strict=True) if wanted.writes and isinstance(x, Access)])


class Report(Statement):
    """What is wrong with an index that was read, or with a matrix, noted in `faults` from `place` on by a function of ours."""

    __slots__ = ("faults", "function", "given", "place")

    def __init__(self, function: str, given: tuple[Expression, ...], faults: Buffer, place: Number, node: Node | None = None) -> None:
        self.function, self.given, self.faults, self.place, self.node = function, given, faults, place, node

    @property
    def parts(self) -> Parts:
        return (*self.given, self.place, self.faults)


class Prefetch(Statement):
    """A hint that `at` of a buffer, which may be beyond its end, is read soon."""

    __slots__ = ("at", "memory")

    def __init__(self, memory: Buffer, at: Index, node: Node | None = None) -> None:
        self.memory, self.at, self.node = memory, at, node

    @property
    def parts(self) -> Parts:
        return (self.memory, self.at)


class Break(Statement):
    """The innermost loop ends here."""

    __slots__ = ()


class Block:
    """Statements and inner blocks after `head` (none: just one after the other), which is text, or what the block's class says.

    vars: the variables it binds; memo: the values that were computed in it, while it is written; comment: what is said beside the head;
    known: what holds in it, though the ranges of its variables do not show it: ("range", Index, low, high) or ("between", Index, Bound,
    Bound), perhaps with a step and whether it is whole. Of a merged kernel's part: renamed, the parameters that are called otherwise than
    in the texts in it; numbers, what stands in place of those that may be offsets (see markup), in order.
    """

    __slots__ = ("comment", "head", "items", "known", "memo", "numbers", "parts", "renamed", "vars")

    def __init__(self, head: str, parts: Parts = (), vars: tuple[Var, ...] = (), known: tuple[Any, ...] = ()) -> None:
        self.head, self.parts, self.known = head, parts, known
        self.vars: set[Var | Local] = set(vars)
        self.items: list[Statement | Block] = []
        self.memo: dict[Any, Any] = {}
        self.comment = ""
        self.renamed: dict[str, str] = {}
        self.numbers: tuple[int, ...] | None = None


class Loop(Block):
    """`for (var = start; var < stop; var += step)`; whole: only as long as a whole step fits.

    unrolled: the compiler is asked to write it out, by so many steps if it is a number above 1. kept: it stays a loop where it has one
    iteration, since its beginning or its end varies.
    """

    __slots__ = ("kept", "start", "step", "stop", "type", "unrolled", "var", "whole")

    def __init__(self, var: Var, type_: str, start: Bound, stop: Bound, step: int = 1, whole: bool = False,
                 known: tuple[Any, ...] = (), unrolled: int = 0, kept: bool = False) -> None:
        super().__init__("", (start.value, stop.value), (var,), known)
        self.var, self.type, self.start, self.stop, self.step, self.whole = var, type_, start, stop, step, whole
        self.unrolled = unrolled
        ends = [b.value.index.constant for b in (start, stop) if isinstance(b.value, At) and not b.value.index.terms]
        self.kept = kept or any(map(varies, ends))


class Repeat(Block):
    """`while (condition)`, or `for (first; condition; more)`: as often as the condition holds, which only the running program knows."""

    __slots__ = ("condition", "first", "more")

    def __init__(self, condition: Expression, first: Declare | None = None, more: Assign | Update | None = None,
                 known: tuple[Any, ...] = ()) -> None:
        parts = [s.parts for s in (first, more) if s is not None]
        symbol = first.symbol if first is not None else None
        super().__init__("", (condition, *(p for each in parts for p in each)), (symbol,) if isinstance(symbol, Var) else (), known)
        self.condition, self.first, self.more = condition, first, more


class If(Block):
    """What is done only where the condition holds (None: always); otherwise: where that of the `If` in front did not hold, too."""

    __slots__ = ("condition", "otherwise")

    def __init__(self, condition: Expression | None, known: tuple[Any, ...] = (), otherwise: bool = False) -> None:
        super().__init__("", () if condition is None else (condition,), (), known)
        self.condition, self.otherwise = condition, otherwise


def statements_in(block: Block) -> Iterator[Statement]:
    """All statements of a block, of those in it, and of the heads of loops (`Repeat`), in order."""
    if isinstance(block, Repeat) and block.first is not None:
        yield block.first
    for item in block.items:
        if isinstance(item, Block):
            yield from statements_in(item)
        else:
            yield item
    if isinstance(block, Repeat) and block.more is not None:
        yield block.more
