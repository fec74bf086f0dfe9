"""What a kernel is made of: statements, and blocks of them. Start at `Block`.

`Writer` makes them, `render` prints them, `verify` checks them, and passes over kernels look at them. What a statement computes is a tree
of `expressions`; what it declares, reads and writes are objects. Nothing is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.index.varying import varies
from tracegrad.codegen.kernel.ir.bounds import Bound, BoundLike, bound, clipped, clipped_at, product, rest

from tracegrad.codegen.kernel.ir.expressions import (  # isort: skip
    Access, Array, At, Buffer, Expression, Local, Number, Parameter, Part, Parts, Pointer, Symbol,
)
from tracegrad.codegen.kernel.ir.expressions.printing import Printer, Python
from tracegrad.codegen.kernel.ir.expressions.terms import Term, binary
from tracegrad.codegen.kernel.ir.instructions import Instruction
from tracegrad.codegen.kernel.ir.vectors import ctype
from tracegrad.codegen.kernel.text.markup import used
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import int32, int64, is_half

__all__ = [
    "Access", "Allocate", "Array", "Assign", "Atomic", "Barrier", "Block", "Bound", "BoundLike", "Break", "Buffer", "Declare",
    "If", "Instruct", "Item", "Local", "Loop", "Number", "Parameter", "Part", "Parts", "Pointer", "Prefetch", "Repeat", "Report",
    "Statement", "Store", "Symbol", "Update", "bound", "clipped", "clipped_at", "declared_in", "product", "rest", "statements_in",
]


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

    def c(self, p: Printer) -> str:
        """It as C."""
        raise NotImplementedError

    def python(self, f: Python) -> None:
        """Have `kernel.run` do it: its lines of Python are put into `f`."""
        raise NotImplementedError


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

    def c(self, p: Printer) -> str:
        value = p.bound(self.value) if self.bound is not None and self.type == "const int" else p.top(self.value)
        return f"{self.type}{' ' * (not isinstance(self.symbol, (Pointer, Buffer)))}{p.name(self.symbol)} = {value};"

    def python(self, f: Python) -> None:
        symbol, value = self.symbol, self.value
        if symbol in f.fixed:
            return
        if self.bound is not None and self.type == "const int":
            code = f.bound(value)
        elif isinstance(symbol, (Local, Number)):
            code = value.python(f).as_(symbol.held, symbol.lanes)
        elif isinstance(symbol, Var):
            code = value.python(f).as_(int64 if "long" in self.type else int32, value.lanes)
        else:
            code = f.top(value)                              # a pointer
        f.emit(f"{f.declare(symbol)} = {code}")


class Assign(Statement):
    """A variable's new value."""

    __slots__ = ("symbol", "value")

    def __init__(self, symbol: Local | Var | Pointer | Parameter, value: Expression, node: Node | None = None) -> None:
        self.symbol, self.value, self.node = symbol, value, node

    @property
    def parts(self) -> Parts:
        return (self.value,)

    def c(self, p: Printer) -> str:
        return f"{p.name(self.symbol)} = {p.top(self.value)};"

    def assigned(self, f: Python) -> str:
        symbol, value = self.symbol, self.value.python(f)
        code = value.as_(symbol.held, symbol.lanes) if isinstance(symbol, (Local, Number)) else value.code
        return f"{f.name(symbol)} = {code}"

    def python(self, f: Python) -> None:
        f.emit(self.assigned(f))


class Update(Statement):
    """A variable's, or an element's, new value: `sign` of the one it has and of `value`."""

    __slots__ = ("of", "sign", "value")

    def __init__(self, of: Local | Var | Access, sign: str, value: Expression, node: Node | None = None) -> None:
        self.of, self.sign, self.value, self.node = of, sign, value, node

    @property
    def parts(self) -> Parts:
        return (self.value, self.of)

    def c(self, p: Printer) -> str:
        of = p.element(self.of) if isinstance(self.of, Access) else p.name(self.of)
        if not isinstance(self.of, Access) and self.sign in ("+", "-") and isinstance(self.value, At) and self.value.index == 1:
            return f"{of}{2 * self.sign};"
        return f"{of} {self.sign}= {p.top(self.value)};"

    def assigned(self, f: Python) -> str:
        of = self.of
        if not isinstance(of, Access):
            old = of.python(f) if isinstance(of, Local) else Term(f.name(of), int64 if self.value.dtype == int64 else int32)
            return f"{old.code} = {binary(self.sign, old, self.value.python(f)).as_(*old[1:])}"
        memory, dtype = of.memory, of.held
        if isinstance(memory, Array) and memory.lanes > 1:
            place = f.vector(of)
            old = Term(f"{place}.vector({memory.lanes})", dtype, memory.lanes)
            return f"{place}.put_vector({binary(self.sign, old, self.value.python(f)).code})"
        name, place = f.name(memory), f.place(of)
        old = Term(f"int({name}.load({place}))" if dtype.kind in "iu" else f"{name}.load({place})", dtype)
        return f"{name}.store({place}, {binary(self.sign, old, self.value.python(f)).one(dtype)})"

    def python(self, f: Python) -> None:
        f.emit(self.assigned(f))


class _Into(Statement):
    """What puts `value` into memory."""

    __slots__ = ("access", "value")
    access: Access
    value: Expression

    @property
    def parts(self) -> Parts:
        return (self.value,)

    @property
    def places(self) -> tuple[Access, ...]:
        return (self.access,)


class Store(_Into):
    """Element(s) written: `value`, as a `dtype` of memory; of a vector `stride` elements apart."""

    __slots__ = ("stride",)

    def __init__(self, access: Access, value: Expression, node: Node | None = None, stride: int = 1) -> None:
        self.access, self.value, self.node, self.stride = access, value, node, stride

    def c(self, p: Printer) -> str:
        access, memory, value, lanes = self.access, self.access.memory, p.top(self.value), self.access.count
        if self.stride != 1:
            return f"{used(f'STORE_STRIDED{lanes}')}({p.address(access)}, {p.whole(self.stride)}, {value});"
        half = isinstance(memory, Buffer) and is_half(memory.dtype)
        if lanes == 1:
            if half:
                return f"{p.moved('store', access)}({value}, {p.place(access)}, {p.name(memory)});"
            return f"{p.element(access)} = {value};"
        if half:
            return f"{p.moved('store', access, lanes)}({value}, 0, {p.address(access)});"
        if isinstance(memory, Buffer):
            return f"{used('STORE_ALIGNED' if access.aligned else 'STORE', ctype(memory.dtype, lanes))}, {p.address(access)}, {value});"
        if isinstance(memory, Array) and memory.lanes == lanes:
            return f"{p.element(access)} = {value};"
        return f"{used(p.reached(memory), f'{memory.type}{lanes}')}, {p.address(access)}) = {value};"

    def python(self, f: Python) -> None:
        access, memory, dtype, lanes = self.access, self.access.memory, self.access.held, self.access.count
        half = isinstance(memory, Buffer) and is_half(memory.dtype)
        value = self.value.python(f) if half and self.stride == 1 else None          # in the order of C
        if isinstance(memory, Array) and memory.lanes > 1 and lanes in (1, memory.lanes):
            f.emit(f"{f.vector(access)}.put_vector({self.value.python(f).as_(dtype, memory.lanes)})")
        elif lanes == 1:
            f.emit(f"{f.name(memory)}.store({f.place(access)}, {(value or self.value.python(f)).one(dtype)})")
        else:
            address = f.address(access)
            code = (value or self.value.python(f)).as_(dtype, lanes)
            if self.stride != 1:
                f.emit(f"{address}.put_apart({self.stride}, {code})")
            else:
                code = f"{code}.astype(d_{memory.dtype.name})" if value else code
                f.emit(f"{address}{f.aligned(access, lanes)}.put_vector({code})")


class Atomic(_Into):
    """An integer in memory becomes the sum, or the least or largest, of it and `value`: in one step, whichever work-items do so together.

    The order of steps does not matter to the result. sign: "add", "min" or "max".
    """

    __slots__ = ("sign",)

    def __init__(self, access: Access, sign: str, value: Expression, node: Node | None = None) -> None:
        self.access, self.sign, self.value, self.node = access, sign, value, node

    def c(self, p: Printer) -> str:
        function = f"{'atom' if self.access.memory.dtype.itemsize == 8 else 'atomic'}_{self.sign}"       # of 64 bits: an extension's
        computed = "" if self.access.place is None else p.operand(self.access.place)
        return f"{function}({p.address(self.access)}{computed}, {p.top(self.value)});"

    def python(self, f: Python) -> None:
        place = f"{f.address(self.access)}{'' if self.access.place is None else f'.moved({f.top(self.access.place)})'}"
        f.emit(f"{place}.atomic({self.sign!r}, {self.value.python(f).one(self.access.memory.dtype)})")


class Item(Statement):
    """The number of the work-item along dimension `axis`: of all ("global"), of its group, or in it ("local")."""

    __slots__ = ("axis", "of", "type", "var")

    def __init__(self, var: Var, type_: str, axis: int, of: str) -> None:
        self.var, self.type, self.axis, self.of, self.node = var, type_, axis, of, None

    def c(self, p: Printer) -> str:
        return f"const {self.type} {p.name(self.var)} = get_{self.of}_id({self.axis});"

    def python(self, f: Python) -> None:
        f.emit(f"{f.declare(self.var)} = S.{self.of}_id[{self.axis}]")


class Allocate(Statement):
    """An array."""

    __slots__ = ("array",)

    def __init__(self, array: Array, node: Node | None = None) -> None:
        self.array, self.node = array, node

    def c(self, p: Printer) -> str:
        x = self.array
        aligned = f" __attribute__((aligned({x.aligned})))" if x.aligned else ""
        sizes = f"[{x.size // x.row}][{x.row}]" if x.row else f"[{x.size}]"
        return f"{'volatile ' * x.spilled}{'__local ' * x.shared}{x.type} {p.name(x)}{sizes}{aligned}{' = {0}' * x.zeros};"

    def python(self, f: Python) -> None:
        x, make = self.array, "_group_array" if self.array.shared else "_array"
        f.emit(f"{f.declare(x)} = {make}(S, {x.name!r}, {x.size * x.lanes}, d_{x.dtype.name}, {x.zeros})")


class Barrier(Statement):
    """All items of a work-group come here before any goes on."""

    __slots__ = ()

    def c(self, p: Printer) -> str:
        return "barrier(CLK_LOCAL_MEM_FENCE);"

    def python(self, f: Python) -> None:
        f.emit("yield")


class Instruct(Statement):
    """An instruction of the device on what is given: places, and numbers."""

    __slots__ = ("given", "of")

    def __init__(self, of: Instruction, given: tuple[Access | Expression, ...] = (), node: Node | None = None) -> None:
        self.of, self.given, self.node = of, given, node

    @property
    def parts(self) -> Parts:
        return tuple([x for x, wanted in zip(self.given, self.of.given, strict=True) if wanted.reads])

    @property
    def places(self) -> tuple[Access, ...]:
        """The places that are written."""
        return tuple([x for x, wanted in zip(self.given, self.of.given, strict=True) if wanted.writes and isinstance(x, Access)])

    def c(self, p: Printer) -> str:
        given = [p.address(x) if isinstance(x, Access) else p.unmarked(x) for x in self.given]       # some want constants
        return f"{used(self.of.name)}({', '.join(given)});"

    def python(self, f: Python) -> None:
        given = ", ".join([f.address(x) if isinstance(x, Access) else f.top(x) for x in self.given])
        f.emit(f"{'yield from _together' if self.of.lanes > 1 else '_alone'}(S, {f.constant(self.of)}, {given})")


class Report(Statement):
    """What is wrong with an index that was read, or with a matrix, noted in `faults` from `place` on by a function of ours."""

    __slots__ = ("faults", "function", "given", "place")

    def __init__(self, function: str, given: tuple[Expression, ...], faults: Buffer, place: Number, node: Node | None = None) -> None:
        self.function, self.given, self.faults, self.place, self.node = function, given, faults, place, node

    @property
    def parts(self) -> Parts:
        return (*self.given, self.place, self.faults)

    def c(self, p: Printer) -> str:
        given = "".join([f"{p.operand(x)}, " for x in self.given])
        return f"{used(self.function)}({given}{p.name(self.faults)} + {p.name(self.place)});"

    def python(self, f: Python) -> None:
        given = ["None"] * (len(self.given) == 4) + [f.top(x) for x in self.given]      # one value has no mask
        f.emit(f"{'_report' if len(given) == 5 else '_note'}({', '.join(given)}, {f.name(self.faults)}.moved({f.name(self.place)}))")


class Prefetch(Statement):
    """A hint that `at` of a buffer, which may be beyond its end, is read soon."""

    __slots__ = ("at", "memory")

    def __init__(self, memory: Buffer, at: Index, node: Node | None = None) -> None:
        self.memory, self.at, self.node = memory, at, node

    @property
    def parts(self) -> Parts:
        return (self.memory, self.at)

    def c(self, p: Printer) -> str:
        return f"{used('PREFETCH')}({p.address(Access(self.memory, self.at))});"

    def python(self, f: Python) -> None:
        f.address(Access(self.memory, self.at))              # which may be beyond its end: nothing is read


class Break(Statement):
    """The innermost loop ends here."""

    __slots__ = ()

    def c(self, p: Printer) -> str:
        return "break;"

    def python(self, f: Python) -> None:
        f.emit("break")


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

    def c(self, p: Printer) -> str:
        """The line that it begins with, as C."""
        return self.head

    def python(self, f: Python) -> str:
        """Put the line that it begins with into `f`. What is returned is done at the end of each iteration."""
        f.emit("if True:")
        return ""


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

    def c(self, p: Printer) -> str:
        if self.var in p.fixed:
            return "{"
        var, step, start, stop = p.name(self.var), self.step, p.top(self.start.value), p.operand(self.stop.value)
        if self.kept or any(isinstance(b.value, At) and b.value.index.terms for b in (self.start, self.stop)):
            start, stop = p.ends(start), p.ends(stop)
        fits = f"{var} + {p.whole(step)} <= {stop}" if self.whole else f"{var} < {stop}"
        more = f"{var} += {p.whole(step)}" if step > 1 else f"{var}++"
        above = f"#pragma unroll{f' {self.unrolled}' if self.unrolled > 1 else ''}\n" if self.unrolled else ""
        return f"{above}for ({self.type} {var} = {start}; {fits}; {more}) {{"

    def python(self, f: Python) -> str:
        if self.var in f.fixed:
            return super().python(f)
        start, var = f.top(self.start.value), f.declare(self.var)
        f.emit(f"{var} = {start}")
        f.emit(f"while {var}{f' + {self.step} <=' if self.whole else ' <'} {f.top(self.stop.value)}:")
        return f"{var} += {self.step}"


class Repeat(Block):
    """`while (condition)`, or `for (first; condition; more)`: as often as the condition holds, which only the running program knows."""

    __slots__ = ("condition", "first", "more")

    def __init__(self, condition: Expression, first: Declare | None = None, more: Assign | Update | None = None,
                 known: tuple[Any, ...] = ()) -> None:
        parts = [s.parts for s in (first, more) if s is not None]
        symbol = first.symbol if first is not None else None
        super().__init__("", (condition, *(p for each in parts for p in each)), (symbol,) if isinstance(symbol, Var) else (), known)
        self.condition, self.first, self.more = condition, first, more

    def c(self, p: Printer) -> str:
        condition = p.top(self.condition)
        if self.first is None and self.more is None:
            return f"while ({condition}) {{"
        first, more = (s.c(p)[:-1] if s is not None else "" for s in (self.first, self.more))
        return f"for ({first}; {condition}; {more}) {{"

    def python(self, f: Python) -> str:
        if self.first is not None:
            self.first.python(f)
        f.emit(f"while {f.top(self.condition)}:")
        return "" if self.more is None else self.more.assigned(f)


class If(Block):
    """What is done only where the condition holds (None: always); otherwise: where that of the `If` in front did not hold, too."""

    __slots__ = ("condition", "otherwise")

    def __init__(self, condition: Expression | None, known: tuple[Any, ...] = (), otherwise: bool = False) -> None:
        super().__init__("", () if condition is None else (condition,), (), known)
        self.condition, self.otherwise = condition, otherwise

    def c(self, p: Printer) -> str:
        return f"{'else ' * self.otherwise}{f'if ({p.top(self.condition)}) ' if self.condition is not None else ''}{{"

    def python(self, f: Python) -> str:
        word = "elif" if self.otherwise else "if"
        f.emit(f"{word} {f.top(self.condition)}:" if self.condition is not None else "else:" if self.otherwise else "if True:")
        return ""


def declared_in(block: Block) -> Iterator[Symbol]:
    """The variables and arrays whose scope is a block: what its head counts, and what its own statements declare, in order."""
    if isinstance(block, Loop):
        yield block.var
    if isinstance(block, Repeat) and block.first is not None:
        yield block.first.symbol
    for item in block.items:
        if isinstance(item, Declare):
            yield item.symbol
        elif isinstance(item, Item):
            yield item.var
        elif isinstance(item, Allocate):
            yield item.array


def statements_in(block: Block) -> list[Statement]:
    """All statements of a block, of those in it, and of the heads of loops (`Repeat`), in order."""
    found: list[Statement] = []
    _add_statements(block, found)
    return found


def _add_statements(block: Block, found: list[Statement]) -> None:
    if isinstance(block, Repeat) and block.first is not None:
        found.append(block.first)
    for item in block.items:
        if isinstance(item, Block):
            _add_statements(item, found)
        else:
            found.append(item)
    if isinstance(block, Repeat) and block.more is not None:
        found.append(block.more)
