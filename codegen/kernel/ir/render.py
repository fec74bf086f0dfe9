"""Kernels as OpenCL C: expressions, blocks as indented lines, the user's line that a statement came from. Start at `Printer`, `lines`.

What a statement or an expression is in C, its class says (`c`). Here is what they share: parentheses, names, numbers, places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tracegrad.codegen.kernel.index.index import Index, Mutable, Var
from tracegrad.codegen.kernel.ir.expressions import Access, Array, At, Buffer, Expression, Infix, Pointer, Select
from tracegrad.codegen.kernel.ir.line_comments import line_comment
from tracegrad.codegen.kernel.ir.statements import Allocate, Block, Break, Declare, Item, Loop, Statement, statements_in
from tracegrad.codegen.kernel.text.literals import ATOM, COMPARISON, literal, literal_marked, whole_marked
from tracegrad.codegen.kernel.text.markup import as_extents, called_each, extent, marked, offset, plain, used, with_comment, with_numbers
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import OPENCL, float16
from tracegrad.support.plan import required


class Printer:
    """Prints what kernels are made of, with names marked (see `markup`). clang: whether its builtins are there; fixed: the indices that are
    numbers, which are printed as those; numbers: whether numbers are marked, too, but those that have to be constants.
    """

    def __init__(self, clang: bool, fixed: Mapping[Var, int] | None = None, numbers: bool = False) -> None:
        self.clang, self.fixed = clang, fixed or {}
        self.whole: Callable[[int], str] = whole_marked if numbers else str
        self.literal = literal_marked if numbers else literal
        self.ends: Callable[[str], str] = as_extents if numbers else str

    def given(self, x: Index, lane: Var | None = None) -> Index:
        """An index, with numbers in place of the variables that are fixed; but that of lanes, which has one number each, stays."""
        if lane is not None and lane in self.fixed:
            return x.given({var: n for var, n in self.fixed.items() if var is not lane})
        return x.given(self.fixed) if self.fixed else x

    def adds_nothing(self, x: Infix) -> bool:
        """Whether it is its first operand and an index that is 0."""
        b = x.parts[1]
        index = b.index if isinstance(b, At) and b.each is None and x.sign in ("+", "-") else None
        return bool(self.fixed and index is not None and index.terms and self.given(index) == 0)

    # -- expressions

    def top(self, x: Expression) -> str:
        """An expression that stands for itself."""
        return x.c(self)[0]

    def operand(self, x: Expression, level: int = COMPARISON + 1) -> str:
        """An expression as a part of another, where what is below `level` needs parentheses."""
        text, own = x.c(self)
        return text if own >= level else f"({text})"

    def atom(self, x: Expression) -> str:
        return self.operand(x, ATOM)

    @staticmethod
    def unmarked(x: Expression) -> str:
        """An expression whose numbers no argument can stand for."""
        return x.c(PLAIN)[0]

    def name(self, symbol: Any) -> str:
        return marked(symbol.name)

    def offset(self, number: int) -> str:
        """A number that an argument may take the place of (see `markup`)."""
        return offset(number)

    def extent(self, number: int) -> str:
        """One that says where the elements of a work-item begin, or where they end."""
        return extent(number)

    def index(self, x: Index, names: Mapping[Var, str] | None = None) -> str:
        return x.marked(names, number=self.whole)

    def row(self, name: str, row: str, size: int) -> str:
        """Where a row, of so many, of an array in rows begins."""
        return f"{name}[{row}]"

    def behind(self, name: str, more: str) -> str:
        """What is so many elements behind."""
        return f"{name} + {more}"

    def address(self, access: Access) -> str:
        memory, name, at = access.memory, self.name(access.memory), access.at
        if at is None:
            return self.behind(name, "")
        at = self.given(at) + (access.skip or 0)
        if isinstance(memory, Array) and memory.row:
            name, at = self.row(name, self.index((at // memory.row).opened()), memory.row), at % memory.row
        at = at.opened()
        return self.behind(name, self.index(at) if at.terms else self.offset(at.constant)) if at.terms or at.constant else name

    def place(self, access: Access) -> str:
        if access.at is not None:
            at = self.given(access.at).opened()
            return self.index(at) if at.terms or not isinstance(access.memory, Buffer) else self.offset(at.constant)
        return "" if access.place is None else self.top(access.place)

    def element(self, access: Access) -> str:
        memory, at = access.memory, access.at
        if isinstance(memory, Array) and memory.row and at is not None:
            at = self.given(at)
            row, column = (at // memory.row).opened(), (at % memory.row).opened()
            return f"{self.name(memory)}[{self.index(row)}][{self.index(column)}]"
        return f"{self.name(access.memory)}[{self.place(access)}]"

    @staticmethod
    def reached(memory: Array | Pointer) -> str:
        """The macro that makes a vector of what is at an address: in a work-group's memory, or in an item's."""
        return "LOCAL" if isinstance(memory, Array) and memory.shared else "KEPT"

    @staticmethod
    def moved(how: str, access: Access, lanes: int = 1) -> str:
        """The function that loads or stores elements of 16 bits as floats: OpenCL's for halves, and one like it of ours."""
        width = str(lanes) if lanes > 1 else ""
        name = f"v{how}{'a' * (access.aligned and lanes > 1)}_{OPENCL[access.memory.dtype]}{width}"
        return name if access.memory.dtype == float16 else used(name)

    # -- where loops begin and end

    def bound(self, x: Expression) -> str:
        """Where the elements of a work-item begin (`part * 64`), or end (the less of `first + 64` and how many there are)."""
        if isinstance(x, Select):
            a, b = x.parts[1:]
            if isinstance(a, At) and isinstance(b, At) and not b.index.terms:
                if not self.given(a.index).terms:
                    return self.extent(min(self.given(a.index).constant, b.index.constant))
                if (first := _alone(a.index)) and a.index.terms[0][1] == 1:
                    return self.least(self.name(first), a.index.constant, b.index.constant)
        elif isinstance(x, At) and (part := _alone(self.given(x.index))) is not None and not x.index.constant and (
                c := x.index.terms[0][1]) > 1:
            return f"{self.name(part)} * {self.extent(c)}"
        return self.ends(self.top(x))

    def least(self, first: str, length: int, size: int) -> str:
        """Where a part of so many ends, or all."""
        end = f"{first} + {extent(length)}"
        return f"{end} < {extent(size)} ? {end} : {extent(size)}"


def _alone(index: Index) -> Any:
    """The one variable of an index, if it has one and no other, which may be multiplied."""
    return index.terms[0][0].var if len(index.terms) == 1 else None


PLAIN = Printer(False)


Expression.shown = staticmethod(lambda x: plain(PLAIN.operand(x)))


def lines(body: Block, clang: bool, numbers: bool = False) -> list[tuple[str, str]]:
    """The lines of a kernel's body, indented, with names marked; and what is said beside each. numbers: as `Printer` has it."""
    out: list[tuple[str, str]] = []
    previous: Any = None
    constants = constants_in(body)
    printer = Printer(clang, constants, numbers)
    fixed: dict[Node, bool] = {}
    names: dict[str, str] = {}                               # of a merged kernel's parts: what their parameters are called now
    offsets: Iterator[int] | None = None                     # and what offsets they have
    outer: list[tuple[int, dict[str, str], Iterator[int] | None]] = []    # the same, in the blocks around, and where those in them begin

    def add(text: str, comment: str = "") -> None:
        out.append((with_numbers(text, offsets) if offsets is not None else text, comment))

    def close() -> None:
        """A block ends. (Its names are replaced at once: line by line that takes ten times as long.)"""
        nonlocal names, offsets
        given = names
        start, names, offsets = outer.pop()
        if given is not names:
            texts = called_each([text for text, _ in out[start:]], lambda name: marked(given.get(name, name)))
            out[start:] = [(text, comment) for text, (_, comment) in zip(texts, out[start:], strict=True)]

    def add_statement(pad: str, statement: Statement) -> None:
        nonlocal previous
        comment, previous = line_comment(statement.node, previous, fixed)
        if isinstance(statement, Declare) and statement.said:
            comment, previous = statement.said, None
        add(pad + statement.c(printer), comment)

    stack: list[tuple[Block, int, int]] = [(body, 0, 1)]
    while stack:
        block, at, depth = stack.pop()
        pad = "  " * depth
        while at < len(block.items):
            item = block.items[at]
            at += 1
            if isinstance(item, Declare) and item.symbol in constants:
                continue
            if isinstance(item, Block):
                if not item.items:
                    continue
                outer.append((len(out), names, offsets))
                offsets = iter(item.numbers) if item.numbers is not None else offsets
                if item.renamed:
                    names = item.renamed
                previous = None if item.comment else previous
                head = item.c(printer).replace("\n", f"\n{pad}")
                inner = item.items[0]
                stack.append((block, at, depth))
                if head == "{" and not item.comment and _declares_nothing(item, constants):
                    stack.append((item, 0, depth))
                    break
                if len(item.items) == 1 and isinstance(inner, Statement) and not item.comment and head != "{":
                    add(pad + head[:-2])
                    add_statement(pad + "  ", inner)
                    close()
                    stack.pop()
                    continue
                add(with_comment(pad + head, item.comment, 0))
                stack.append((item, 0, depth + 1))
                break
            add_statement(pad, item)
        else:
            if stack:
                close()
                if depth > stack[-1][2]:
                    add(pad[:-2] + "}")
    return out


def _declares_nothing(block: Block, constants: Mapping[Var, int]) -> bool:
    """Whether no variable of a block's own ends with it."""
    return not any(isinstance(item, (Allocate, Item)) or (isinstance(item, Declare) and item.symbol not in constants)
                   for item in block.items)


def _only_iteration(loop: Loop) -> int | None:
    """The index of a loop that has one iteration, whatever the program's numbers are."""
    start, stop = loop.start.value, loop.stop.value
    if loop.kept or not isinstance(start, At) or not isinstance(stop, At) or start.index.terms or stop.index.terms:
        return None
    first, end = start.index.constant, stop.index.constant - (loop.step - 1) * loop.whole
    once = first < end <= first + loop.step
    return first if once and not any(isinstance(s, Break) for s in statements_in(loop)) else None


def constants_in(body: Block) -> dict[Var, int]:
    """The indices of a kernel that are declared as a number, and never as another."""
    found: dict[Var, set[int]] = {}
    others: set[Var] = set()
    todo = [body]
    while todo:
        for item in todo.pop().items:
            if type(item) is Declare:                        # as most
                symbol, value = item.symbol, item.value
                if not isinstance(symbol, Var) or isinstance(symbol, Mutable):
                    continue
                if isinstance(value, At) and value.each is None and not value.index.terms:
                    found.setdefault(symbol, set()).add(value.index.constant)
                else:
                    others.add(symbol)
            elif isinstance(item, Block):
                todo.append(item)
                if isinstance(item, Loop):
                    only = _only_iteration(item)
                    if only is not None:
                        found.setdefault(item.var, set()).add(only)
                    else:
                        others.add(item.var)
            elif isinstance(item, Item):
                others.add(item.var)
    return {var: next(iter(values)) for var, values in found.items() if len(values) == 1 and var not in others}


def head(entry: str, declared: Sequence[str], comments: Sequence[str], group: tuple[int, ...] | None, wide: int) -> str:
    """What a kernel begins with. declared: its parameters, each on a line of its own if they are `wide`; group: work-groups it requires."""
    one = ", ".join(declared)
    joined = one if len(one) + len(entry) < wide else "\n    " + ",\n    ".join(declared)
    above = "".join([*(f"// {comment}\n" for comment in comments if comment), required(group)])
    return f"{above}__kernel void {entry}({joined}) {{\n"
