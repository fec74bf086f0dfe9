"""A kernel's statements as a Python function, which runs one work-item. Start at `Compiled`.

What a statement or an expression does, its class says (`python`, beside its C), and `ir/expressions/terms.py` what C does by itself. Here
are names and places. The function is a generator, which yields where work-items wait for each other. Each statement is a line of it, by
which faults are located. The lanes of operands are `verify_kernel`'s to check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.expressions import Access, Array, Buffer, Expression, Op
from tracegrad.codegen.kernel.ir.expressions.terms import NAMES
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.render import PLAIN, Printer, constants_in
from tracegrad.codegen.kernel.ir.spelling import Unreadable, formula
from tracegrad.codegen.kernel.ir.statements import Block, Statement
from tracegrad.codegen.kernel.run import memory
from tracegrad.codegen.kernel.run.instructed import alone, together
from tracegrad.codegen.kernel.run.memory import KernelFault
from tracegrad.codegen.kernel.text.markup import Offset, called, extent, offset, offsets_in, plain, with_offsets
from tracegrad.codegen.mathlib.builtins import meaning
from tracegrad.errors import CompilerBug
from tracegrad.support.cache import memoize

_GLOBALS = {**NAMES, **vars(memory), "_together": together, "_alone": alone}


class Function(Printer):
    """The function while it is written, with the names and numbers of the statement it is at. out: its lines; lines: what each is of."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(False, constants_in(kernel.body))
        self.kernel = kernel
        self.scopes: list[dict[str, str]] = [{}]             # what variables are called here, by their names
        self.renamed: dict[str, str] = {}                    # see Block
        self.numbers: Iterator[int] | None = None            # see Block
        self._numbers = None if kernel.numbers is None else iter(kernel.numbers)
        self._arguments = iter(kernel.offsets) if kernel.offsets else None
        self.offsets: list[int] = []                         # the numbers that were marked, in the order of C
        self.constants: dict[str, Any] = {}
        self.count, self.depth = 0, 0
        self.out: list[str] = []
        self.lines: list[Statement | Block | None] = []
        self.at: Statement | Block | None = None
        given = [self.declare(p) for p in kernel.parameters]
        self.emit(f"def kernel(S, {', '.join(given)}):")
        self.depth = 1
        self.block(kernel.body)
        self.emit("return")
        self.emit("yield")                                   # a generator also without barriers
        wanted = [found.value for found in offsets_in("\n".join(kernel.bare))]
        if self.offsets != wanted:
            raise CompilerBug(f"kernel.run: {kernel.entry} has the offsets {wanted} in its text, and {self.offsets} as it is run")

    def fault(self, what: str) -> KernelFault:
        return KernelFault(f"{self.kernel.entry}: {what}")

    def constant(self, value: Any) -> str:
        """The name of something that is known now."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    # -- names and numbers

    def called(self, name: str) -> str:
        """What a variable is called here."""
        name = self.renamed.get(name, name)
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise self.fault(f"{name} is not declared")

    def name(self, symbol: Any) -> str:
        return self.called(symbol.name)

    def numbered(self, found: Offset) -> str:
        """What stands in place of a number that is added to an index."""
        number = found.value if self.numbers is None else next(self.numbers)
        number = number if self._numbers is None else next(self._numbers)
        name, more = ("", 0) if self._arguments is None else next(self._arguments)
        if name:
            return f"({self.called(name)} + {more})"
        self.offsets.append(number)
        return str(number)

    def text(self, text: str) -> str:
        """Marked text with the names and numbers of here."""
        if found := offsets_in(text):
            text = with_offsets(text, map(self.numbered, found).__next__)
        return plain(called(text, self.called))

    def offset(self, number: int) -> str:
        return self.text(offset(number))

    def extent(self, number: int) -> str:
        return self.text(extent(number))

    def index(self, x: Index, names: Mapping[Var, str] | None = None) -> str:
        return self.text(x.marked(names, "//"))

    def least(self, first: str, length: int, size: int) -> str:
        ends = [self.extent(n) for n in (length, size) * 2]  # C has each twice
        return f"min({first} + {ends[0]}, {ends[1]})"

    # -- places

    def row(self, name: str, row: str, size: int) -> str:
        return f"{name}.moved(({row}) * {size})"

    def behind(self, name: str, more: str) -> str:
        return f"{name}.moved({more})" if more else name     # (of what only the running program knows: the first element)

    def place(self, access: Access) -> str:
        """The number of the element there, from where its memory begins."""
        array, at = access.memory, access.at
        if at is None or not isinstance(array, Array) or not array.row:
            return super().place(access) or "0"
        row, column = (self.index(x.opened()) for x in (self.given(at) // array.row, self.given(at) % array.row))
        return f"({row}) * {array.row} + {column}"

    def vector(self, access: Access) -> str:
        """A pointer to an element that is a vector."""
        assert isinstance(access.memory, Array)
        return f"{self.name(access.memory)}.moved(({self.place(access)}) * {access.memory.lanes})"

    def aligned(self, access: Access, lanes: int) -> str:
        """What is asked of the pointer to a vector."""
        array = access.memory
        return f".aligned({lanes})" * (array.shared if isinstance(array, Array) else isinstance(array, Buffer) and access.aligned)

    # -- values

    def top(self, x: Expression) -> str:
        return x.python(self).code

    def function(self, name: str) -> str:
        """One that kernels call, with numpy's meaning."""
        means = meaning(name)
        if means is None:
            raise self.fault(f"{name} is not declared")
        return self.constant(means)

    def formula(self, x: Op) -> Expression:
        """What an op is of its operands."""
        try:
            return formula(x.spelling, x.parts)
        except Unreadable as error:
            raise self.fault(f"{error} that is run without a driver") from None

    # -- lines

    def emit(self, code: str) -> None:
        self.out.append("    " * self.depth + code)
        self.lines.append(self.at)

    def declare(self, symbol: Any) -> str:
        """A new variable of the innermost scope."""
        if symbol.name in self.scopes[-1]:
            raise self.fault(f"{symbol.name} is declared twice")
        self.count += 1
        name = self.scopes[-1][symbol.name] = f"{symbol.name}_{self.count}"
        return name

    def block(self, block: Block) -> None:
        self.scopes.append({})
        for item in block.items:
            if isinstance(item, Statement):
                self.at = item
                item.python(self)
            elif item.items:
                self.inner(item)
        self.scopes.pop()

    def inner(self, block: Block) -> None:
        outer = self.renamed, self.numbers
        self.numbers = self.numbers if block.numbers is None else iter(block.numbers)
        self.renamed = self.renamed | {old: self.renamed.get(new, new) for old, new in block.renamed.items()}
        self.at = block
        self.scopes.append({})
        after = block.python(self)
        self.depth += 1
        self.emit("pass")
        self.block(block)
        if after:
            self.emit(after)
        self.depth -= 1
        self.scopes.pop()
        self.renamed, self.numbers = outer


class Compiled:
    """A kernel as a Python function of (state, arguments), a generator that yields at barriers."""

    def __init__(self, kernel: Kernel) -> None:
        self.name, self.parameters, self.local_size = kernel.entry, kernel.parameters, kernel.group
        function = Function(kernel)
        self._lines = function.lines
        space = _GLOBALS | function.constants
        exec(_code("\n".join(function.out), f"<{self.name}>"), space)
        self.run: Callable[..., Any] = space["kernel"]

    def line(self, number: int) -> str:
        """The C of the statement that is at a line of the function."""
        at = self._lines[number - 1] if 0 < number <= len(self._lines) else None
        return "?" if at is None else plain(at.c(PLAIN))


@memoize(1024)
def _code(text: str, name: str) -> Any:
    """(Programs for several devices have equal kernels.)"""
    return compile(text, name, "exec")
