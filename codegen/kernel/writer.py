"""The text of one kernel while it is written: blocks, names, parameters, statements with their Python lines. Start at `Writer`.

Statements go into nested blocks (loops). A value that does not depend on a loop's variable is placed in front of the loop,
however deep the place is where it was asked for. Every statement knows the node it computes, and the finished text shows
that node's line of the user's program beside it, wherever the line changes.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from os.path import basename
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index import Var
from tracegrad.codegen.kernel.vectors import computed_in, ctype, unwrapped
from tracegrad.dtypes import OPENCL, DType, int32
from tracegrad.ir import Node
from tracegrad.plan import Target

Namer = Callable[[Node], str]

# Words a variable may not be called: keywords, types, and what kernels call or define.
_RESERVED = frozenset("""
    auto break case char const continue default do double else enum extern float for goto half if inline int long register restrict
    return short signed sizeof static struct switch typedef union unsigned void volatile while bool size_t ptrdiff_t global local
    constant private kernel image event_t true false NULL NAN INFINITY LOAD STORE KEPT PREFETCH TG M_PI M_E complex imaginary uniform pipe
    main i r row col part chunk item first last uchar ushort uint ulong
""".split())  # noqa: SIM905 - a list of words reads as words
_BUILTIN = re.compile(
    r"^(tg_|get_|vload|vstore|convert_|as_|native_|half_|atomic|__|LOAD_|STORE_|c\d+$|(uchar|char|ushort|short|uint|int|ulong|long|float|double|half)\d+$)"
)
_FUNCTIONS = frozenset("""
    abs acos acosh all any asin asinh atan atan2 atanh barrier bitselect cbrt ceil clamp copysign cos cosh cross degrees distance
    dot erf erfc exp exp10 exp2 expm1 fabs fdim floor fma fmax fmin fmod fract frexp gamma hypot ilogb isequal isfinite isinf isnan
    isnormal ldexp length lgamma log log10 log1p log2 logb mad mad24 max min mix modf mul24 mul_hi nan nextafter normalize pow pown
    powr prefetch radians remainder remquo rhadd rint rootn rotate round rsqrt select shuffle sign signbit sin sincos sinh sinpi
    smoothstep sqrt step sub_sat add_sat tan tanh tgamma trunc upsample vec_step printf popcount clz ctz y0 y1 yn j0 j1 jn index
""".split())  # noqa: SIM905 - as above


class Block:
    """Lines and inner blocks. `vars`: the index variables it binds; `memo`: the values computed in it."""

    __slots__ = ("head", "items", "memo", "vars")

    def __init__(self, head: str, vars: Sequence[Var] = ()) -> None:
        self.head = head
        self.vars = frozenset(vars)
        self.items: list[tuple[str, Node | None] | Block] = []
        self.memo: dict[Any, Any] = {}


class Writer:
    """Collects one kernel's parameters and statements.

    blocks: the open blocks, outermost first. `declare` puts a statement at a depth and returns the new variable's name.
    """

    def __init__(self, target: Target, namer: Namer, index: str = "int") -> None:
        self.target, self.namer, self.index = target, namer, index
        self.params: dict[Any, tuple[str, str]] = {}         # what it binds to -> (declaration, name)
        self.helpers: set[str] = set()                       # keys of mathlib
        self.macros: set[str] = set()
        self.blocks: list[Block] = [Block("")]
        self.used: set[str] = set()
        self.held: frozenset[str] = frozenset()              # what the buffers are called
        self._counts: dict[str, int] = {}
        self.reserved: Callable[[str], bool] = lambda name: False      # names that another generator uses in the same kernel
        self.statements = 0

    # -- names and parameters

    def unique(self, base: str, pointer: bool = False) -> str:
        """A name not used in this kernel, from `base`; those of `held` are for pointers."""
        base = re.sub(r"\W+", "_", base).strip("_") or "t"
        if base[0].isdigit():
            base = "t" + base
        if _BUILTIN.match(base) or _BUILTIN.match(f"{base}1"):          # half_life, half: no number behind it would help
            base = "t_" + base
        name = base
        n = self._counts.get(base, 0)
        taken = self.used if pointer else self.used | self.held
        while name in taken or name in _RESERVED or name in _FUNCTIONS or _BUILTIN.match(name) or self.reserved(name):
            n += 1
            name = f"{base}_{n}" if base[-1].isdigit() else f"{base}{n}"            # w1_1: w11 would be the eleventh
            if self.reserved(base) or self.reserved(name):
                name = base + "_" * n
        self._counts[base] = n
        self.used.add(name)
        return name

    def rewind(self, names: set[str]) -> None:
        """Free the names that were given since `names` was taken of `used`: their scope is closed. (Parameters stay.)"""
        self.used &= names | {name for _, name in self.params.values()}
        self._counts.clear()

    def base(self, node: Node) -> str:
        """What to call `node`'s value: as the user did, else after its operation."""
        return self.namer(node) or node.attrs.get("label", "") or ("in" if node.fn.family == "leaf" else node.fn.name)

    def buffer(self, storage: Any, base: str, dtype: DType, access: str) -> str:
        """The name of the pointer parameter for `storage` (a Node or a Temp). access: "const", "out" or "inout"."""
        if storage in self.params:
            return self.params[storage][1]
        name = self.unique(base, pointer=True)
        qualifiers = {"const": f"__global const {OPENCL[dtype]} *restrict", "out": f"__global {OPENCL[dtype]} *restrict",
                      "inout": f"__global {OPENCL[dtype]} *"}[access]
        self.params[storage] = (f"{qualifiers} {name}" if qualifiers.endswith("restrict") else qualifiers + name, name)
        return name

    def scalar(self, ref: Any, base: str, text: str) -> str:
        """The name of the by-value parameter that binds to `ref`."""
        if ref not in self.params:
            name = self.unique(base)
            self.params[ref] = (f"const {text} {name}", name)
        return self.params[ref][1]

    # -- statements and blocks

    @property
    def depth(self) -> int:
        return len(self.blocks) - 1

    def line(self, text: str, node: Node | None = None, depth: int | None = None) -> None:
        """Add a statement to the innermost block, or to the one at `depth`, in front of the inner block that is open in it."""
        self.statements += 1
        if depth is None or depth >= self.depth:
            self.blocks[-1].items.append((text, node))
        else:
            items = self.blocks[depth].items
            items.insert(len(items) - 1, (text, node))

    def declare(self, type_: str, base: str, expression: str, node: Node | None = None, depth: int | None = None) -> str:
        name = self.unique(base)
        self.line(f"{type_} {name} = {unwrapped(expression)};", node, depth)
        return name

    def open(self, head: str, vars: Sequence[Var] = ()) -> Block:
        """Open a block, `for (...) {`; `vars` are the variables it binds."""
        block = Block(head, vars)
        self.blocks[-1].items.append(block)
        self.blocks.append(block)
        return block

    def close(self) -> None:
        self.blocks.pop()

    def helper(self, names: frozenset[str]) -> None:
        self.helpers |= names

    # -- the finished text

    def body(self, depth: int = 1) -> list[str]:
        """The lines of the outermost block, indented, with comments."""
        out: list[str] = []
        previous: Any = None
        stack: list[tuple[Block, int]] = [(self.blocks[0], 0)]
        while stack:
            block, at = stack.pop()
            pad = "  " * (depth + len(stack))
            while at < len(block.items):
                item = block.items[at]
                at += 1
                if isinstance(item, Block):
                    if not item.items:
                        continue
                    if len(item.items) == 1 and not isinstance(item.items[0], Block) and item.head:
                        out.append(pad + item.head[:-2])
                        comment, previous = line_comment(item.items[0][1], previous)
                        out.append(with_comment(pad + "  " + item.items[0][0], comment))
                        continue
                    out.append(pad + item.head)
                    stack.append((block, at))
                    stack.append((item, 0))
                    break
                comment, previous = line_comment(item[1], previous)
                out.append(with_comment(pad + item[0], comment))
            else:
                if stack:
                    out.append(pad[:-2] + "}")
        return out

    def kernel(self, entry: str, attribute: str = "") -> str:
        """The whole function."""
        head = (attribute + "\n" if attribute else "") + f"__kernel void {entry}("
        params = [declaration for declaration, _ in self.params.values()]
        one = ", ".join(params)
        joined = one if len(one) + len(entry) < 110 else "\n    " + ",\n    ".join(params)
        return head + joined + ") {\n" + "\n".join(self.body()) + "\n}\n"


def with_comment(text: str, comment: str) -> str:
    return f"{text:<70}  // {comment}" if comment else text


def is_fixed(node: Node) -> bool:
    """Whether a value depends on no input, as far as a short look shows: such a node may be another program's, too, with its line."""
    todo, seen = [node], {node}
    while todo and len(seen) < 16:
        node = todo.pop()
        if node.fn.name in ("placeholder", "data") or (not node.operands and node.fn.family not in ("leaf", "index")):
            return False
        fresh = [o for o in node.operands if o not in seen]
        seen.update(fresh)
        todo += fresh
    return not todo


def line_comment(node: Node | None, previous: Any) -> tuple[str, Any]:
    """The Python line that `node` came from if it is another than `previous`, and what to compare the next with."""
    if node is None or node.fn.family == "leaf" or is_fixed(node):
        return "", previous
    loc = node.loc
    key = (loc.filename, loc.line, loc.derived)
    if key == previous:
        return "", previous
    source = linecache.getline(loc.filename, loc.line).strip()
    if len(source) > 80:
        source = source[:77] + "..."
    return f"{basename(loc.filename)}:{loc.line}{' ∂' if loc.derived else ''}  {source}".rstrip().replace("\\", "/"), key


# ------------------------------------------------------------------------------------------------------------ types, literals


def register_type(dtype: DType, width: int = 1) -> str:
    """The type a value of `dtype` has in registers. (Bools: int; halves: float.)"""
    if dtype.kind == "b":
        return "int" if width == 1 else mask_type(4, width)
    return ctype(computed_in(dtype), width)


def register_dtype(dtype: DType) -> DType:
    """The dtype of one value as `register_type` holds it."""
    return int32 if dtype.kind == "b" else computed_in(dtype)


def mask_type(size: int, width: int) -> str:
    """The vector type of a comparison of `width` elements of `size` bytes."""
    return f"{ {1: 'char', 2: 'short', 4: 'int', 8: 'long'}[size] }{width}".replace(" ", "")


def literal(value: Any, dtype: DType) -> str:
    """`value` as a C literal of exactly `dtype`: of another, it would make calls of overloaded functions ambiguous."""
    if dtype.kind == "b":
        return "1" if value else "0"
    if dtype.kind in "iu":
        v = int(value)
        if dtype.itemsize < 4:
            return f"({OPENCL[dtype]}){v}" if v >= 0 else f"({OPENCL[dtype]})({v})"
        suffix = {"int64": "L", "uint32": "u", "uint64": "UL"}.get(dtype.name, "")
        if v == -(1 << 63):
            return "(-9223372036854775807L - 1)"
        if v == -(1 << 31) and not suffix:
            return "(-2147483647 - 1)"
        return f"({v}{suffix})" if v < 0 else f"{v}{suffix}"
    x = float(value)
    suffix = "" if dtype == np.float64 else "f"
    if x != x or x in (float("inf"), float("-inf")):
        text = "NAN" if x != x else "INFINITY" if x > 0 else "(-INFINITY)"
        return f"(double){text}" if dtype == np.float64 else text
    text = repr(x) if dtype == np.float64 else str(np.float32(x))
    if "." not in text and "e" not in text:
        text += ".0"
    return f"({text}{suffix})" if text.startswith("-") else text + suffix
