"""Kernels as OpenCL C: expressions, blocks as indented lines, the user's line that a statement came from. Start at `Printer`, `lines`.

Parentheses, the spelling of literals and the names of vector accesses and conversions are decided here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tracegrad.codegen.kernel.index.index import Index, Var
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
from tracegrad.codegen.kernel.ir.line_comments import line_comment
from tracegrad.codegen.kernel.ir.statements import (
    Allocate,
    Assign,
    Atomic,
    Barrier,
    Block,
    Break,
    Declare,
    If,
    Instruct,
    Item,
    Loop,
    Prefetch,
    Repeat,
    Report,
    Statement,
    Store,
    Update,
)
from tracegrad.codegen.kernel.ir.vectors import LANES, ctype
from tracegrad.codegen.kernel.text.literals import (
    ATOM,
    COMPARISON,
    LOGIC,
    OPEN,
    PREFIX,
    PRODUCT,
    SUM,
    literal,
    literal_marked,
    whole_marked,
)
from tracegrad.codegen.kernel.text.markup import as_extents, called, extent, marked, offset, plain, used, with_comment, with_numbers
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import OPENCL, float16, is_half
from tracegrad.support.plan import required

_LEVEL = dict.fromkeys(COMPARISONS, COMPARISON) | dict.fromkeys(("&&", "||"), LOGIC) | (
    dict.fromkeys("+-", SUM) | dict.fromkeys("*/%", PRODUCT))


def reached(memory: Array | Pointer) -> str:
    """The macro that makes a vector of what is at an address: in a work-group's memory, or in an item's."""
    return "LOCAL" if isinstance(memory, Array) and memory.shared else "KEPT"


def moved(how: str, access: Access, lanes: int = 1) -> str:
    """The function that loads or stores elements of 16 bits as floats: OpenCL's for halves, and one like it of ours."""
    width = str(lanes) if lanes > 1 else ""
    name = f"v{how}{'a' * (access.aligned and lanes > 1)}_{OPENCL[access.memory.dtype]}{width}"
    return name if access.memory.dtype == float16 else used(name)


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
        return _PRINT[type(x)](self, x)[0]

    def operand(self, x: Expression, level: int = COMPARISON + 1) -> str:
        """An expression as a part of another, where what is below `level` needs parentheses."""
        text, own = _PRINT[type(x)](self, x)
        return text if own >= level else f"({text})"

    def atom(self, x: Expression) -> str:
        return self.operand(x, ATOM)

    def name(self, symbol: Any) -> str:
        return marked(symbol.name)

    def index(self, x: Index) -> str:
        return self.given(x).marked(number=self.whole)

    def address(self, access: Access) -> str:
        name, at = self.name(access.memory), access.at
        if at is None:
            return f"{name} + "
        at = self.given(at) + access.skip
        if isinstance(access.memory, Array) and access.memory.row:
            name, at = f"{name}[{self.index((at // access.memory.row).opened())}]", at % access.memory.row
        at = at.opened()
        if at.terms:
            return f"{name} + {self.index(at)}"
        return f"{name} + {offset(at.constant)}" if at.constant else name

    def place(self, access: Access) -> str:
        if access.at is not None:
            at = self.given(access.at).opened()
            return self.index(at) if at.terms or not isinstance(access.memory, Buffer) else offset(at.constant)
        return "" if access.place is None else self.top(access.place)

    def element(self, access: Access) -> str:
        memory, at = access.memory, access.at
        if isinstance(memory, Array) and memory.row and at is not None:
            at = self.given(at)
            row, column = (at // memory.row).opened(), (at % memory.row).opened()
            return f"{self.name(memory)}[{self.index(row)}][{self.index(column)}]"
        return f"{self.name(access.memory)}[{self.place(access)}]"

    # -- statements

    def statement(self, s: Statement) -> str:
        return _STATEMENT[type(s)](self, s)

    def declare(self, s: Declare) -> str:
        value = self.bound(s.value) if s.bound is not None and s.type == "const int" else self.top(s.value)
        return f"{s.type}{' ' * (not isinstance(s.symbol, (Pointer, Buffer)))}{self.name(s.symbol)} = {value};"

    def update(self, s: Update) -> str:
        of = self.element(s.of) if isinstance(s.of, Access) else self.name(s.of)
        if not isinstance(s.of, Access) and s.sign in ("+", "-") and isinstance(s.value, At) and s.value.index == 1:
            return f"{of}{2 * s.sign};"
        return f"{of} {s.sign}= {self.top(s.value)};"

    def bound(self, x: Expression) -> str:
        """Where the elements of a work-item begin (`part * 64`), or end (the less of `first + 64` and how many there are)."""
        if isinstance(x, Select):
            a, b = x.parts[1:]
            if isinstance(a, At) and isinstance(b, At) and not (self.given(a.index).terms or b.index.terms):
                return extent(min(self.given(a.index).constant, b.index.constant))
            if isinstance(a, At) and isinstance(b, At) and not b.index.terms and (first := _alone(a.index)) and a.index.terms[0][1] == 1:
                end = f"{self.name(first)} + {extent(a.index.constant)}"
                return f"{end} < {extent(b.index.constant)} ? {end} : {extent(b.index.constant)}"
        elif isinstance(x, At) and (part := _alone(self.given(x.index))) is not None and not x.index.constant and (
                c := x.index.terms[0][1]) > 1:
            return f"{self.name(part)} * {extent(c)}"
        return self.top(x)

    def store(self, access: Access, value: str, stride: int) -> str:
        memory, lanes = access.memory, access.lanes * access.each
        if stride != 1:
            return f"{used(f'STORE_STRIDED{lanes}')}({self.address(access)}, {self.whole(stride)}, {value});"
        half = isinstance(memory, Buffer) and is_half(memory.dtype)
        if lanes == 1:
            if half:
                return f"{moved('store', access)}({value}, {self.place(access)}, {self.name(memory)});"
            return f"{self.element(access)} = {value};"
        if half:
            return f"{moved('store', access, lanes)}({value}, 0, {self.address(access)});"
        if isinstance(memory, Buffer):
            return f"{used('STORE_ALIGNED' if access.aligned else 'STORE', ctype(memory.dtype, lanes))}, {self.address(access)}, {value});"
        if isinstance(memory, Array) and memory.lanes == lanes:
            return f"{self.element(access)} = {value};"
        return f"{used(reached(memory), f'{memory.type}{lanes}')}, {self.address(access)}) = {value};"

    def instruct(self, s: Instruct) -> str:
        given = [self.address(x) if isinstance(x, Access) else PLAIN.top(x) for x in s.given]      # some want constants
        return f"{used(s.of.name)}({', '.join(given)});"

    def report(self, s: Report) -> str:
        given = "".join([f"{self.operand(x)}, " for x in s.given])
        return f"{used(s.function)}({given}{self.name(s.faults)} + {self.name(s.place)});"

    def atomic(self, s: Atomic) -> str:
        computed = "" if s.access.place is None else self.operand(s.access.place)
        return f"{s.function}({self.address(s.access)}{computed}, {self.top(s.value)});"

    def head(self, block: Block) -> str:
        """The line that a block begins with."""
        if isinstance(block, Loop) and block.var in self.fixed:
            return "{"
        if isinstance(block, Loop):
            var, step = self.name(block.var), block.step
            start, stop = self.top(block.start.value), self.operand(block.stop.value)
            if block.kept or any(isinstance(b.value, At) and b.value.index.terms for b in (block.start, block.stop)):
                start, stop = self.ends(start), self.ends(stop)
            fits = f"{var} + {self.whole(step)} <= {stop}" if block.whole else f"{var} < {stop}"
            more = f"{var} += {self.whole(step)}" if step > 1 else f"{var}++"
            above = f"#pragma unroll{f' {block.unrolled}' if block.unrolled > 1 else ''}\n" if block.unrolled else ""
            return f"{above}for ({block.type} {var} = {start}; {fits}; {more}) {{"
        if isinstance(block, If):
            return f"{'else ' * block.otherwise}{f'if ({self.top(block.condition)}) ' if block.condition is not None else ''}{{"
        if isinstance(block, Repeat):
            condition = self.top(block.condition)
            if block.first is None and block.more is None:
                return f"while ({condition}) {{"
            first, more = (self.statement(s)[:-1] if s is not None else "" for s in (block.first, block.more))
            return f"for ({first}; {condition}; {more}) {{"
        return block.head


def _alone(index: Index) -> Any:
    """The one variable of an index, if it has one and no other, which may be multiplied."""
    return index.terms[0][0].var if len(index.terms) == 1 else None


def _literal(p: Printer, x: Literal) -> tuple[str, int]:
    return p.literal(x.value, x.dtype)


def _zeros(p: Printer, x: Zeros) -> tuple[str, int]:
    return ("0" if x.lanes == 1 else f"({x.type})(0)"), ATOM


def _symbol(p: Printer, x: Local | Number | Pointer) -> tuple[str, int]:
    return p.name(x), ATOM


def _address(p: Printer, x: Address) -> tuple[str, int]:
    more = "" if x.more is None else f" + {p.operand(x.more, SUM)}"
    return f"{p.address(Access(x.memory, x.base))}{more}", SUM


def _held(p: Printer, x: Held) -> tuple[str, int]:
    return _PRINT[type(x.x)](p, x.x)


def _limit(p: Printer, x: Limit) -> tuple[str, int]:
    n = x.index.constant
    return f"{'-' * (n < 0)}{offset(abs(n))}", ATOM if n >= 0 else SUM


def _at(p: Printer, x: At) -> tuple[str, int]:
    index = p.given(x.index, x.lane if x.each is not None else None)
    names = None if x.each is None or x.lane is None else {x.lane: p.top(x.each)}
    text = index.marked(names, number=p.whole)
    if not index.terms:
        return text, ATOM if index.constant >= 0 else SUM
    (atom, c), *more = index.terms
    if more or index.constant or c != 1 or atom.kind == "bounded":
        return text, SUM
    if atom.var is not None:
        return text, ATOM
    return text, SUM if atom.base is not None and atom.base.lo < 0 else PRODUCT


def _steps(p: Printer, x: Steps) -> tuple[str, int]:
    return f"({x.type})({', '.join(map(str, range(x.lanes)))})", ATOM


def _load(p: Printer, x: Load) -> tuple[str, int]:
    access, memory, lanes = x.access, x.access.memory, x.lanes
    half = isinstance(memory, Buffer) and is_half(memory.dtype)
    if lanes == 1:
        if half and p.place(access):
            return f"{moved('load', access)}({p.place(access)}, {p.name(memory)})", ATOM
        return p.element(access), ATOM
    if isinstance(memory, Buffer):
        type_ = ctype(memory.dtype, lanes)
    elif isinstance(memory, Array) and memory.lanes == lanes:
        return p.element(access), ATOM
    else:
        return f"{used(reached(memory), f'{memory.type}{lanes}')}, {p.address(access)})", ATOM
    if x.places is not None:
        places, only = p.atom(x.places), "" if x.only is None else p.atom(x.only)
        if half:
            each = [f"{moved('load', access)}({places}.s{LANES[i]}, {p.name(memory)})" for i in range(lanes)]
            each = [f"({only}.s{LANES[i]} ? {e} : 0)" if only else e for i, e in enumerate(each)]
            return f"({x.type})({', '.join(each)})", ATOM
        return f"{used(x.macro, type_)}, {p.name(memory)}, {places}{only and f', {only}'})", ATOM
    if half:
        return f"{moved('load', access, lanes)}(0, {p.address(access)})", ATOM
    if x.macro:
        return f"{used(x.macro, type_)}, {p.address(access)}, {p.whole(x.stride)})", ATOM
    return f"{used('LOAD_ALIGNED' if access.aligned else 'LOAD', type_)}, {p.address(access)})", ATOM


def _infix(p: Printer, x: Infix) -> tuple[str, int]:
    a, b = x.parts
    if p.adds_nothing(x):
        return _PRINT[type(a)](p, a)
    level = _LEVEL.get(x.sign, OPEN)
    least = COMPARISON if level == LOGIC else max(level, COMPARISON + 1)
    again = isinstance(a, Infix) and a.sign == x.sign and level < COMPARISON       # a & b & c
    return f"{p.top(a) if again else p.operand(a, least)} {x.sign} {p.operand(b, least + (level >= SUM))}", level


def _prefix(p: Printer, x: Prefix) -> tuple[str, int]:
    return f"{x.sign}{p.operand(x.parts[0], PREFIX)}", PREFIX


def _select(p: Printer, x: Select) -> tuple[str, int]:
    condition, a, b = x.parts
    texts = [p.operand(v, OPEN + (isinstance(v, (Literal, Op)) or (v is a and isinstance(a, Select)))) for v in (a, b)]
    return f"{p.operand(condition, LOGIC)} ? {texts[0]} : {texts[1]}", OPEN


def _cast(p: Printer, x: Cast) -> tuple[str, int]:
    return f"({x.type}){p.operand(x.parts[0], PREFIX)}", PREFIX


def _convert(p: Printer, x: Convert) -> tuple[str, int]:
    given = x.parts[0]
    text = p.operand(given) if isinstance(given, Select) else p.top(given)
    return (f"__builtin_convertvector({text}, {x.type})" if p.clang else f"convert_{x.type}({text})"), ATOM


def _bits(p: Printer, x: Bits) -> tuple[str, int]:
    return f"as_{x.type}({p.top(x.parts[0])})", ATOM


def _splat(p: Printer, x: Splat) -> tuple[str, int]:
    return f"({x.type})({p.top(x.parts[0])})", ATOM


def _spread(p: Printer, x: Spread) -> tuple[str, int]:
    return f"({x.type})(-{p.operand(x.parts[0])})", ATOM


def _lanes(p: Printer, x: Lanes) -> tuple[str, int]:
    which = x.which
    if not isinstance(which, str):
        which = "s" + (LANES[which] if isinstance(which, int) else LANES[which.start:which.stop])
    return f"{p.atom(x.parts[0])}.{which}", ATOM


def _zip(p: Printer, x: Zip) -> tuple[str, int]:
    return f"{used(f'ZIP{x.lanes}', x.type)}, {', '.join(map(p.top, x.parts))})", ATOM


def _joined(p: Printer, x: Joined | Vector) -> tuple[str, int]:
    return f"({x.type})({', '.join(map(p.operand, x.parts))})", ATOM


def _every(p: Printer, x: StridedLoad) -> tuple[str, int]:
    step = len(x.parts)
    return _of_lanes(p, x, [[i for i in range(x.lanes) if (k * x.lanes + i) % step == x.first] for k in range(step)])


def _turned(p: Printer, x: Transposed) -> tuple[str, int]:
    return _of_lanes(p, x, [range(x.first, x.lanes), range(x.first)])


def _of_lanes(p: Printer, x: StridedLoad | Transposed, chosen: Iterable[Iterable[int]]) -> tuple[str, int]:
    """These lanes of each of the parts."""
    pieces = []
    for part, lanes in zip(x.parts, chosen, strict=True):
        left = [LANES[i] for i in lanes]
        for n in (8, 4, 2, 1):                               # what a vector of a vector's lanes may have
            while len(left) >= n:
                pieces.append(f"{p.atom(part)}.s{''.join(left[:n])}")
                left = left[n:]
    return f"({x.type})({', '.join(pieces)})", ATOM


def _op(p: Printer, x: Op) -> tuple[str, int]:
    pieces = [piece if isinstance(piece, str) else p.operand(x.parts[piece]) for piece in x.spelling.pieces]
    return "".join(pieces), OPEN if x.spelling.open else ATOM


def _call(p: Printer, x: Call) -> tuple[str, int]:
    return f"{x.name}({', '.join(map(p.top, x.parts))})", ATOM


def _allocate(p: Printer, x: Array) -> str:
    aligned = f" __attribute__((aligned({x.aligned})))" if x.aligned else ""
    sizes = f"[{x.size // x.row}][{x.row}]" if x.row else f"[{x.size}]"
    return f"{'volatile ' * x.spilled}{'__local ' * x.shared}{x.type} {p.name(x)}{sizes}{aligned}{' = {0}' * x.zeros};"


_PRINT: dict[type[Expression], Callable[[Printer, Any], tuple[str, int]]] = {
    Literal: _literal, Zeros: _zeros, Local: _symbol, Number: _symbol, Pointer: _symbol, Address: _address,
    Held: _held, At: _at, Limit: _limit, Steps: _steps, Load: _load,
    Infix: _infix, Prefix: _prefix, Select: _select, Cast: _cast, Convert: _convert, Position: _convert, Bits: _bits, Splat: _splat,
    Spread: _spread, Vector: _joined, Lanes: _lanes, Op: _op, Call: _call, Zip: _zip, Joined: _joined,
    StridedLoad: _every, Transposed: _turned,
}
_STATEMENT: dict[type[Statement], Callable[[Printer, Any], str]] = {
    Declare: Printer.declare,
    Assign: lambda p, s: f"{p.name(s.symbol)} = {p.top(s.value)};",
    Update: Printer.update,
    Atomic: Printer.atomic,
    Store: lambda p, s: p.store(s.access, p.top(s.value), s.stride),
    Item: lambda p, s: f"const {s.type} {p.name(s.var)} = get_{s.of}_id({s.axis});",
    Allocate: lambda p, s: _allocate(p, s.array),
    Barrier: lambda p, s: "barrier(CLK_LOCAL_MEM_FENCE);",
    Instruct: lambda p, s: p.instruct(s),
    Report: lambda p, s: p.report(s),
    Prefetch: lambda p, s: f"{used('PREFETCH')}({p.address(Access(s.memory, s.at))});",
    Break: lambda p, s: "break;",
}
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
    outer: list[tuple[dict[str, str], Iterator[int] | None]] = []         # the same, in the blocks around

    def add(text: str, comment: str = "") -> None:
        given = names
        text = with_numbers(text, offsets) if offsets is not None else text
        out.append((called(text, lambda name: marked(given.get(name, name))) if given else text, comment))

    def add_statement(pad: str, statement: Statement) -> None:
        nonlocal previous
        comment, previous = line_comment(statement.node, previous, fixed)
        if isinstance(statement, Declare) and statement.said:
            comment, previous = statement.said, None
        add(pad + printer.statement(statement), comment)

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
                outer.append((names, offsets))
                offsets = iter(item.numbers) if item.numbers is not None else offsets
                if item.renamed:
                    names = names | {old: names.get(new, new) for old, new in item.renamed.items()}
                previous = None if item.comment else previous
                head = printer.head(item).replace("\n", f"\n{pad}")
                inner = item.items[0]
                stack.append((block, at, depth))
                if head == "{" and not item.comment and _declares_nothing(item, constants):
                    stack.append((item, 0, depth))
                    break
                if len(item.items) == 1 and isinstance(inner, Statement) and not item.comment and head != "{":
                    add(pad + head[:-2])
                    add_statement(pad + "  ", inner)
                    names, offsets = outer.pop()
                    stack.pop()
                    continue
                add(with_comment(pad + head, item.comment, 0))
                stack.append((item, 0, depth + 1))
                break
            add_statement(pad, item)
        else:
            if stack:
                names, offsets = outer.pop()
                if depth > stack[-1][2]:
                    add(pad[:-2] + "}")
    return out


def _declares_nothing(block: Block, constants: Mapping[Var, int]) -> bool:
    """Whether no variable of a block's own ends with it."""
    return not any(isinstance(item, (Allocate, Item)) or (isinstance(item, Declare) and item.symbol not in constants)
                   for item in block.items)


def head(entry: str, declared: Sequence[str], comments: Sequence[str], group: tuple[int, ...] | None, wide: int) -> str:
    """What a kernel begins with. declared: its parameters, each on a line of its own if they are `wide`; group: work-groups it requires."""
    one = ", ".join(declared)
    joined = one if len(one) + len(entry) < wide else "\n    " + ",\n    ".join(declared)
    above = "".join([*(f"// {comment}\n" for comment in comments if comment), required(group)])
    return f"{above}__kernel void {entry}({joined}) {{\n"
