"""A kernel's statements as a Python function, which runs one work-item. Start at `compiled`: it asks the rule of each statement's kind.

The function is a generator, which yields where work-items wait for each other. Each statement is a line of it, by which faults are located.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.kernel.ir.expressions import Access, Array, At, Expression, Select
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.render import PLAIN
from tracegrad.codegen.kernel.ir.statements import (
    Allocate,
    Assign,
    Atomic,
    Barrier,
    Block,
    Break,
    Buffer,
    Declare,
    If,
    Instruct,
    Item,
    Local,
    Loop,
    Number,
    Prefetch,
    Repeat,
    Report,
    Statement,
    Store,
    Update,
)
from tracegrad.codegen.kernel.run import memory
from tracegrad.codegen.kernel.run.expressions import Term, Values, register, stored
from tracegrad.codegen.kernel.run.instructed import alone, together
from tracegrad.codegen.kernel.run.memory import KernelFault
from tracegrad.codegen.kernel.text.markup import extent, offsets_in, plain
from tracegrad.errors import CompilerBug
from tracegrad.support.cache import memoize
from tracegrad.support.dtypes import OPENCL, float32, float64, int32, int64, is_half

_GLOBALS: dict[str, Any] = {
    **vars(memory), **{f"d_{d.name}": d for d in OPENCL}, "np": np, "float32": float32.type, "float64": float64.type, "_together": together,
    "_alone": alone,
}


class Compiled:
    """A kernel as a Python function of (state, arguments), a generator that yields at barriers."""

    def __init__(self, kernel: Kernel) -> None:
        self.name, self.parameters, self.local_size = kernel.entry, kernel.parameters, kernel.group
        translated = _Function(kernel)
        self.barriers, self._at = translated.barriers, translated.lines
        space = _GLOBALS | translated.constants
        exec(_code("\n".join(translated.out), f"<{self.name}>"), space)
        self.run: Callable[..., Any] = space["kernel"]

    def line(self, number: int) -> str:
        """The C of the statement that is at a line of the function."""
        at = self._at[number - 1] if 0 < number <= len(self._at) else None
        return "?" if at is None else plain(PLAIN.head(at) if isinstance(at, Block) else PLAIN.statement(at))


@memoize(1024)
def _code(text: str, name: str) -> Any:
    """(Programs for several devices have equal kernels.)"""
    return compile(text, name, "exec")


class _Function(Values):
    """The function while it is written. out: its lines; lines: what each of them is of."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.barriers, self.count = False, 0
        self.lines: list[Statement | Block | None] = [None]
        self.at: Statement | Block | None = None
        given = [self.declare(p) for p in kernel.parameters]
        self.out = [f"def kernel(S, {', '.join(given)}):"]
        self.depth = 1
        self.block(kernel.body)
        self.emit("return")
        self.emit("yield")                                   # a generator also without barriers
        wanted = [found.value for found in offsets_in("\n".join(kernel.bare))]
        if self.offsets != wanted:
            raise CompilerBug(f"kernel.run: {kernel.entry} has the offsets {wanted} in its text, and {self.offsets} as it is run")

    def emit(self, code: str) -> None:
        self.out.append("    " * self.depth + code)
        self.lines.append(self.at)

    def declare(self, symbol: Any) -> str:
        """A new variable of the innermost scope."""
        if symbol.name in self.scopes[-1]:
            raise KernelFault(f"{self.kernel.entry}: {symbol.name} is declared twice")
        self.count += 1
        name = self.scopes[-1][symbol.name] = f"{symbol.name}_{self.count}"
        return name

    # -- blocks

    def block(self, block: Block) -> None:
        self.scopes.append({})
        for item in block.items:
            if isinstance(item, Block):
                if item.items:
                    self.inner(item)
            else:
                self.at = item
                _RULES[type(item)](self, item)
        self.scopes.pop()

    def inner(self, block: Block) -> None:
        outer = self.renamed, self.numbers
        self.numbers = self.numbers if block.numbers is None else iter(block.numbers)
        self.renamed = self.renamed | {old: self.renamed.get(new, new) for old, new in block.renamed.items()}
        self.at, after = block, ""
        self.scopes.append({})
        if isinstance(block, Loop) and block.var in self.printer.fixed:
            self.emit("if True:")
        elif isinstance(block, Loop):
            start, var = self.of(block.start.value).code, self.declare(block.var)
            self.emit(f"{var} = {start}")
            fits = f"{var} + {block.step} <=" if block.whole else f"{var} <"
            self.emit(f"while {fits} {self.of(block.stop.value).code}:")
            after = f"{var} += {block.step}"
        elif isinstance(block, Repeat):
            if block.first is not None:
                _RULES[type(block.first)](self, block.first)
            self.emit(f"while {self.of(block.condition).code}:")
            if block.more is not None:
                after = self.update(block.more) if isinstance(block.more, Update) else self.assign(block.more)
        else:
            word = "if" if not isinstance(block, If) or not block.otherwise else "elif"
            condition = block.condition if isinstance(block, If) else None
            self.emit(f"{word} {self.of(condition).code}:" if condition is not None else "else:" if word == "elif" else "if True:")
        self.depth += 1
        self.emit("pass")
        self.block(block)
        if after:
            self.emit(after)
        self.depth -= 1
        self.scopes.pop()
        self.renamed, self.numbers = outer

    # -- statements

    def bound(self, x: Expression) -> str:
        """Where the elements of a work-item begin or end: the numbers in it are marked as `Printer.bound` marks them."""
        if isinstance(x, Select):
            a, b = x.parts[1:]
            if isinstance(a, At) and isinstance(b, At) and not (self.printer.given(a.index).terms or b.index.terms):
                return self.text(extent(min(self.printer.given(a.index).constant, b.index.constant)))
            if isinstance(a, At) and isinstance(b, At) and not b.index.terms and (first := _alone(a.index)) and a.index.terms[0][1] == 1:
                ends = [self.text(extent(n)) for n in (a.index.constant, b.index.constant) * 2]
                return f"min({self.name(first.name)} + {ends[0]}, {ends[1]})"
        elif isinstance(x, At) and (part := _alone(self.printer.given(x.index))) is not None and not x.index.constant and (
                c := x.index.terms[0][1]) > 1:
            return f"{self.name(part.name)} * {self.text(extent(c))}"
        return self.of(x).code

    def declared(self, s: Declare) -> None:
        symbol = s.symbol
        if symbol in self.printer.fixed:
            return
        if s.bound is not None and s.type == "const int":
            code = self.bound(s.value)
        elif isinstance(symbol, (Local, Number)):
            code = self.as_(self.of(s.value), register(symbol), symbol.lanes)
        elif isinstance(symbol, (Buffer, Expression)):
            code = self.of(s.value).code                     # a pointer
        else:
            code = self.as_(self.of(s.value), int64 if "long" in s.type else int32, s.value.lanes)
        self.emit(f"{self.declare(symbol)} = {code}")

    def assign(self, s: Assign) -> str:
        symbol, value = s.symbol, self.of(s.value)
        code = self.as_(value, register(symbol), symbol.lanes) if isinstance(symbol, (Local, Number)) else value.code
        return f"{self.name(symbol.name)} = {code}"

    def update(self, s: Update) -> str:
        if not isinstance(s.of, Access):
            name, whole = self.name(s.of.name), int64 if s.value.dtype == int64 else int32
            old = Term(name, register(s.of), s.of.lanes) if isinstance(s.of, Local) else Term(name, whole)
            return f"{name} = {self.as_(self.binary(s.sign, old, self.of(s.value)), *old[1:])}"
        array, dtype = s.of.memory, stored(s.of.memory)
        if isinstance(array, Array) and array.lanes > 1:
            place = self.vector(s.of)
            old = Term(f"{place}.vector({array.lanes})", dtype, array.lanes)
            return f"{place}.put_vector({self.binary(s.sign, old, self.of(s.value)).code})"
        name, element = self.name(array.name), self.element(s.of)
        old = Term(f"int({name}.load({element}))" if dtype.kind in "iu" else f"{name}.load({element})", dtype)
        return f"{name}.store({element}, {self.one(self.binary(s.sign, old, self.of(s.value)), dtype)})"

    def store(self, s: Store) -> None:
        access, array = s.access, s.access.memory
        lanes, dtype, vectors = access.lanes * access.each, stored(array), isinstance(array, Array) and array.lanes > 1
        half = isinstance(array, Buffer) and is_half(array.dtype)
        value = self.of(s.value) if half and s.stride == 1 else None         # in the order of C
        if isinstance(array, Array) and vectors and lanes in (1, array.lanes):
            self.emit(f"{self.vector(access)}.put_vector({self.as_(self.of(s.value), dtype, array.lanes)})")
        elif lanes == 1:
            name, element = self.name(array.name), self.element(access)
            self.emit(f"{name}.store({element}, {self.one(value or self.of(s.value), dtype)})")
        else:
            address = self.address(access)
            code = self.as_(value or self.of(s.value), dtype, lanes)
            if s.stride != 1:
                self.emit(f"{address}.put_apart({s.stride}, {code})")
            else:
                code = f"{code}.astype({self.dtype(array.dtype)})" if value else code
                self.emit(f"{address}{self.aligned(access, lanes)}.put_vector({code})")

    def atomic(self, s: Atomic) -> None:
        address = self.address(s.access)
        if s.access.place is not None:
            address = f"{address}.moved({self.of(s.access.place).code})"
        self.emit(f"{address}.atomic({s.sign!r}, {self.one(self.of(s.value), s.access.memory.dtype)})")

    def allocate(self, s: Allocate) -> None:
        array = s.array
        make = "_group_array" if array.shared else "_array"
        given = f"{array.name!r}, {array.size * array.lanes}, {self.dtype(array.dtype)}, {array.zeros}"
        self.emit(f"{self.declare(array)} = {make}(S, {given})")

    def wait(self, s: Barrier) -> None:
        self.barriers = True
        self.emit("yield")

    def instruct(self, s: Instruct) -> None:
        self.barriers |= s.of.lanes > 1
        given = ", ".join([self.address(x) if isinstance(x, Access) else self.of(x).code for x in s.given])
        call = f"(S, {self.constant(s.of)}, {given})"
        self.emit(f"yield from _together{call}" if s.of.lanes > 1 else f"_alone{call}")

    def report(self, s: Report) -> None:
        given = [self.of(x).code for x in s.given]
        place = f"{self.name(s.faults.name)}.moved({self.name(s.place.name)})"
        if len(given) == 4:
            given = ["None", *given]                         # one value has no mask
        self.emit(f"{'_report' if len(given) == 5 else '_note'}({', '.join(given)}, {place})")

    def prefetch(self, s: Prefetch) -> None:
        self.address(Access(s.memory, s.at))                 # which may be beyond its end: nothing is read
        self.emit("pass")


def _alone(index: Index) -> Any:
    """The one variable of an index, if it has one and no other, which may be multiplied."""
    return index.terms[0][0].var if len(index.terms) == 1 else None


_RULES: dict[type[Statement], Callable[[_Function, Any], None]] = {
    Declare: _Function.declared, Assign: lambda f, s: f.emit(f.assign(s)), Update: lambda f, s: f.emit(f.update(s)), Store: _Function.store,
    Item: lambda f, s: f.emit(f"{f.declare(s.var)} = S.{s.of}_id[{s.axis}]"),
    Atomic: _Function.atomic, Allocate: _Function.allocate, Barrier: _Function.wait, Instruct: _Function.instruct,
    Report: _Function.report, Prefetch: _Function.prefetch, Break: lambda f, s: f.emit("break"),
}
