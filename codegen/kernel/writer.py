"""One kernel while it is written: blocks, names, parameters, statements (see `statements`). Start at `Writer`.

Statements go into nested blocks (loops). A value that does not depend on a loop's variable is placed in front of the loop,
however deep the place is where it was asked for. Every statement knows the node it computes, and the finished text shows
that node's line of the user's program beside it, wherever the line changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index import Var
from tracegrad.codegen.kernel.ir import Temp
from tracegrad.codegen.kernel.statements import (
    Access,
    Allocate,
    Array,
    Assign,
    Barrier,
    Block,
    BoundLike,
    Buffer,
    Declare,
    If,
    Item,
    Local,
    Loop,
    Number,
    Parts,
    Raw,
    Statement,
    Store,
    Symbol,
    bound,
)
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


@lru_cache(4096)
def _possible(base: str) -> str:
    """What a variable may be called, from what it is to be called."""
    base = re.sub(r"\W+", "_", base).strip("_") or "t"
    if base[0].isdigit():
        base = "t" + base
    return "t_" + base if _BUILTIN.match(base) or _BUILTIN.match(f"{base}1") else base     # half_life, half: no number behind it would help


@lru_cache(4096)
def _means_something(name: str) -> bool:
    return name in _RESERVED or name in _FUNCTIONS or _BUILTIN.match(name) is not None


class Writer:
    """Collects one kernel's parameters and statements.

    blocks: the open blocks, outermost first. `declare` puts a statement at a depth and returns the new variable.
    """

    def __init__(self, target: Target, namer: Namer, index: str = "int") -> None:
        self.target, self.namer, self.index = target, namer, index
        self.params: dict[Any, Buffer | Number] = {}         # by what they bind to
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
        base = name = _possible(base)
        n = self._counts.get(base, 0)
        used, held = self.used, () if pointer else self.held
        while name in used or name in held or _means_something(name) or self.reserved(name):
            n += 1
            name = f"{base}_{n}" if base[-1].isdigit() else f"{base}{n}"            # w1_1: w11 would be the eleventh
            if self.reserved(base) or self.reserved(name):
                name = base + "_" * n
        self._counts[base] = n
        self.used.add(name)
        return name

    def rewind(self, names: set[str]) -> None:
        """Free the names that were given since `names` was taken of `used`: their scope is closed. (Parameters stay.)"""
        self.used &= names | {p.name for p in self.params.values()}
        self._counts.clear()

    def base(self, node: Node) -> str:
        """What to call `node`'s value: as the user did, else after its operation."""
        return self.namer(node) or node.attrs.get("label", "") or ("in" if node.fn.family == "leaf" else node.fn.name)

    def buffer(self, storage: Any, base: str, dtype: DType, access: str) -> Buffer:
        """The pointer parameter for `storage` (a Node or a Temp). access: "const", "out" or "inout"."""
        found = self.params.get(storage)
        if not isinstance(found, Buffer):
            size = storage.size or None if isinstance(storage, Temp) else storage.aval.size
            found = self.params[storage] = Buffer(storage, self.unique(base, pointer=True), dtype, size, access)
        return found

    def scalar(self, ref: Any, base: str, type_: str) -> Number:
        """The by-value parameter that binds to `ref`."""
        found = self.params.get(ref)
        if not isinstance(found, Number):
            found = self.params[ref] = Number(ref, self.unique(base), type_)
        return found

    # -- statements and blocks

    @property
    def depth(self) -> int:
        return len(self.blocks) - 1

    def add(self, statement: Statement, depth: int | None = None) -> None:
        """Add a statement to the innermost block, or to the one at `depth`, in front of the inner block that is open in it."""
        self.statements += 1
        if depth is None or depth >= self.depth:
            self.blocks[-1].items.append(statement)
        else:
            items = self.blocks[depth].items
            items.insert(len(items) - 1, statement)

    def declare(self, type_: str, base: str, text: str, node: Node | None = None, depth: int | None = None, parts: Parts = ()) -> Local:
        """A new variable with the value `text`, which reads `parts`."""
        local = Local(self.unique(base), type_)
        self.add(Declare(local, type_, unwrapped(text), node, parts), depth)
        return local

    def computed(self, base: str, size: int, text: str, node: Node | None = None, depth: int | None = None, parts: Parts = (),
                 lanes: int = 1) -> Var:
        """A new index variable, known to be in 0..size-1, that is computed: a row number that was read, say."""
        var = Var(self.unique(base), size)
        self.add(Declare(var, self.index + (str(lanes) if lanes > 1 else ""), text, node, parts), depth)
        self.bind(var, depth)
        return var

    def bounding(self, name: str, size: int, value: BoundLike) -> Var:
        """An index variable, in 0..size, that bounds a loop."""
        var, value = Var(name, size + 1), bound(value)
        self.add(Declare(var, f"const {self.index}", unwrapped(value.text), None, value.parts, value))
        return var

    def bind(self, var: Var, depth: int | None = None) -> None:
        """What depends on `var` is computed in the innermost block, or the one at `depth`."""
        self.blocks[self.depth if depth is None else depth].vars |= {var}

    def item(self, name: str, size: int, axis: int, of: str = "global", type_: str = "") -> Var:
        """The number of the work-item along a dimension of the launch: all there is in the kernel depends on it."""
        var = Var(name, size)
        self.add(Item(var, type_ or self.index, axis, of))
        self.bind(var, 0)
        return var

    def assign(self, to: Local, text: str, node: Node | None = None, parts: Parts = ()) -> None:
        self.add(Assign(to, unwrapped(text), node, parts))

    def store(self, access: Access, text: str, node: Node | None = None, parts: Parts = ()) -> None:
        """`text` writes what `access` says."""
        self.add(Store(access, text, node, parts))

    def array(self, base: str, type_: str, size: int, shared: bool = False, node: Node | None = None) -> Array:
        array = Array(self.unique(base), type_, size, shared)
        self.add(Allocate(array, node))
        return array

    def barrier(self) -> None:
        self.add(Barrier())

    def raw(self, text: str, node: Node | None = None, parts: Parts = (), defines: tuple[Symbol, ...] = (),
            writes: tuple[Symbol | Access, ...] = (), depth: int | None = None) -> None:
        """C text that nobody looks into."""
        self.add(Raw(text, node, parts, defines, writes), depth)

    def text(self, lines: Sequence[str], node: Node | None = None, parts: Parts = (), writes: tuple[Symbol | Access, ...] = ()) -> None:
        """Lines of C that nobody looks into, which belong together."""
        for number, line in enumerate(lines):
            self.raw(line, node, () if number else parts, (), () if number else writes)

    @contextmanager
    def block(self, block: Block) -> Iterator[Block]:
        """What is added inside of `with` goes into it."""
        self.blocks[-1].items.append(block)
        self.blocks.append(block)
        yield block
        self.blocks.pop().memo = {}

    def loop(self, var: Var, start: BoundLike, stop: BoundLike, step: int = 1, whole: bool = False, known: tuple[Any, ...] = (),
             unrolled: bool = False) -> Any:
        """`with w.loop(...)`: for var from start to stop; whole: as long as a whole step fits. known: see Block. unrolled: asked to be."""
        loop = Loop(var, self.index, bound(start), bound(stop), step, whole, known)
        loop.head = "#pragma unroll\n" * unrolled + loop.head
        return self.block(loop)

    def branch(self, condition: str, parts: Parts = (), known: tuple[Any, ...] = ()) -> Any:
        """`with w.branch(...)`: only where the condition holds. known: see Block."""
        return self.block(If(condition, parts, known))

    def helper(self, names: frozenset[str]) -> None:
        self.helpers |= names


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
