"""Values of nodes as statements of a kernel: the heart of fusion. Start at `Evaluator.value`.

`value(node, flat)` makes the statements that compute element `flat` of `node`: loads of what is stored, arithmetic of what
is fused, index arithmetic for movement ops. A value is a scalar, or a vector of lanes along the lane variable. Everything is
remembered by (node, index), in the loop where it was computed, so nothing is computed twice. Iterative: any depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.facts import never_positive, operand_index
from tracegrad.codegen.kernel.guards import Guard, Guards, branches, reduced_indices
from tracegrad.codegen.kernel.index import Index, Var, ravel, unravel
from tracegrad.codegen.kernel.ir import FAULTS, RuntimeScalar
from tracegrad.codegen.kernel.statements import Access, Local, Part, Parts, Value
from tracegrad.codegen.kernel.vectors import LANES, computed_in, ctype, splat, unwrapped
from tracegrad.codegen.kernel.writer import Writer, literal, mask_type, register_dtype, register_type
from tracegrad.codegen.mathlib import library as mathlib
from tracegrad.codegen.tuning import tuning
from tracegrad.dtypes import DType, int32
from tracegrad.errors import CompilerBug
from tracegrad.ir import Node
from tracegrad.ops.ranges import may_wrap
from tracegrad.plan import Fault

_MIXES = frozenset(("float32", "float64", "int32", "int64"))      # scalars of these mix with vectors of the same


@dataclass(frozen=True)
class Storage:
    """Where a node's elements lie: what the parameter binds to (an in-place output: its input), and how the kernel may use it."""

    ref: Any
    access: str


class Evaluator:
    """Evaluates nodes within one kernel.

    storage(node): where a node that is not computed here is stored (None: compute it); scalars: run-time scalars by node.
    lane: the variable along which values are vectors of `width` (None in scalar code).
    """

    def __init__(self, writer: Writer, storage: Callable[[Node], Storage | None], scalars: dict[Node, RuntimeScalar]) -> None:
        self.writer, self.storage, self.scalars = writer, storage, scalars
        self.lane: Var | None = None
        self.width = 1
        self.vector_vars: frozenset[Var] = frozenset()       # opaque variables that are vectors (gathered indices)
        self.given: Callable[[Node, Index], Value | None] = lambda node, flat: None     # values that come from elsewhere
        self.stored: frozenset[Node] = frozenset()           # results of this kernel: their pointers bear the plain names
        self.indices: list[Index] = []                       # of every load and guard: products and convolutions look at it
        self.fault: Callable[[Node], Fault]                  # the place in FAULTS of an op that reports (set by whoever makes this)

    def name(self, node: Node) -> str:
        """What to call a value: a result after its pointer; a derivative's step, which is no variable of the user's, by its operation."""
        base = self.writer.base(node)
        return f"{base}_i" if node in self.stored else node.fn.name if node.loc.derived else base

    # -- the walk

    def value(self, node: Node, flat: Index, guards: Guards = ()) -> Value:
        """The value of element `flat` of `node` (where `guards` hold; elsewhere anything)."""
        stack = [(node, flat, guards)]
        while True:
            request = stack[-1]
            if self.find(*request) is not None:
                stack.pop()
                if not stack:
                    break
                continue
            needed = self.step(*request)
            if needed:
                stack.extend(reversed(needed))
            elif self.find(*request) is None:
                raise CompilerBug(f"codegen: {request[0]!r}, computed at {request[0].loc}, could not be evaluated")
        found = self.find(node, flat, guards)
        assert found is not None
        return found

    def key(self, node: Node, flat: Index, guards: Guards) -> Any:
        return (node, flat.key, *[(g[0], g[1].key, *g[2:]) for g in guards]) if guards else (node, flat.key)

    def find(self, node: Node, flat: Index, guards: Guards = ()) -> Value | None:
        if node.fn.name == "const":
            return Value(literal(node.attrs["value"], node.dtype), node.dtype)
        key = self.key(node, flat, guards)
        for block in reversed(self.writer.blocks):
            if key in block.memo:
                return block.memo[key]  # type: ignore[no-any-return]
        if guards:                                           # a value that was computed unconditionally
            key = (node, flat.key)
            for block in reversed(self.writer.blocks):
                if key in block.memo:
                    return block.memo[key]  # type: ignore[no-any-return]
        return None

    def put(self, node: Node, flat: Index, value: Value, guards: Guards = (), depth: int | None = None) -> None:
        """Remember a value in the block where what identifies it is bound, and from there inwards."""
        depth = max(value.depth if depth is None else depth, self.depth_of(flat.vars.union(*(g[1].vars for g in guards))))
        self.writer.blocks[depth].memo[self.key(node, flat, guards)] = value

    def step(self, node: Node, flat: Index, guards: Guards) -> list[tuple[Node, Index, Guards]]:
        """Compute `node` if its operands are known, else return what is needed first."""
        if node in self.scalars:
            ref = self.scalars[node]
            held = register_dtype(ref.dtype)
            number = node
            while number.fn.name == "cast":
                number = number.operands[0]
            given = self.writer.scalar(replace(ref, dtype=held), self.writer.base(number), register_type(ref.dtype))
            self.put(node, flat, Value(given.name, node.dtype, parts=(given,)), guards)
            return []
        known = self.given(node, flat)
        if known is not None:
            self.put(node, flat, known, guards)
            return []
        stored = self.storage(node)
        if stored is not None:
            self.put(node, flat, self.load(node, stored, flat, guards), guards)
            return []
        family = node.fn.family
        if family == "movement":
            return self.move(node, flat, guards)
        if family == "elementwise":
            return self.elementwise(node, flat, guards)
        if family == "reduction" and node.operands[0].aval.size <= tuning().unrolled * node.aval.size:
            return self.unrolled(node, flat, guards)
        if family == "index":
            self.put(node, flat, self.iota(node, flat), guards)
            return []
        if family == "gather":
            return self.gather(node, flat, guards)
        raise CompilerBug(f"codegen: {node!r}, computed at {node.loc}, cannot be computed inside a kernel of another node")

    # -- index arithmetic as text

    def depth_of(self, vars: frozenset[Var]) -> int:
        """The depth of the innermost block that binds one of `vars`."""
        for depth in range(len(self.writer.blocks) - 1, 0, -1):
            if not vars.isdisjoint(self.writer.blocks[depth].vars):
                return depth
        return 0

    def varies(self, vars: frozenset[Var]) -> bool:
        """Whether an index over `vars` differs between lanes."""
        return self.width > 1 and (self.lane in vars or not vars.isdisjoint(self.vector_vars))

    def lanes_text(self, x: Index) -> tuple[str, Parts]:
        """x as a vector, one index a lane, and what that reads."""
        names = {}
        parts: Parts = (x,)
        if self.lane is not None and self.lane in x.vars:
            key = ("lanes", self.lane, self.width)
            depth = self.depth_of(frozenset((self.lane,)))
            block = self.writer.blocks[depth]
            if key not in block.memo:
                kind = f"{self.writer.index}{self.width}"
                lanes = ", ".join(map(str, range(self.width)))
                base = self.lane.name if self.lane.name.isidentifier() else "lane"
                block.memo[key] = self.writer.declare(kind, base + "s", f"{self.lane} + ({kind})({lanes})", depth=depth, parts=(self.lane,))
            names[self.lane] = block.memo[key].name
            parts = (x, block.memo[key])
        return x.c(names), parts

    def condition(self, guards: Guards) -> Value | None:
        """Whether all guards hold, as a bool; None if there is nothing to check."""
        tests: list[tuple[str, bool]] = []
        keys: list[Any] = []
        holds: list[Guard] = []                              # what is tested, and what is known without
        parts: Parts = ()
        vars: frozenset[Var] = frozenset()
        varying = any(self.varies(g[1].vars) for g in guards)
        for kind, x, *rest in guards:
            self.indices.append(x)
            wide = varying and self.varies(x.vars)
            text, reads = self.lanes_text(x) if wide else (x.c(), (x,))
            vars |= x.vars
            parts += reads
            there = x.opened().key
            if kind == "range":
                low, high = rest
                from_, to = x.lo, x.hi + 1
                if x.lo < low:
                    tests.append((f"({text} >= {low})", wide))
                    keys.append((there, ">=", low))
                    from_ = low
                if x.hi >= high:
                    tests.append((f"({text} < {high})", wide))
                    keys.append((there, "<", high))
                    to = high
                holds.append(("range", x, from_, to))
            else:
                k, = rest
                if (x % k).key != "0":
                    shift = -(x.lo // k) * k if x.lo < 0 else 0
                    tests.append((f"(({text}{f' + {shift}' if shift else ''}) % {k} == 0)", wide))
                    keys.append((there, "%", k))
        if not tests:
            return None
        varying = any(wide for _, wide in tests)
        key = ("guard", *keys, self.width if varying else 1)
        for block in reversed(self.writer.blocks):
            if key in block.memo:
                return block.memo[key]  # type: ignore[no-any-return]
        depth = self.depth_of(vars)
        index_size = 4 if self.writer.index == "int" else 8
        if varying:
            type_ = mask_type(index_size, self.width)
            text = " & ".join(t if wide else f"({type_})(-{t})" for t, wide in tests)
            value = self.declared(np.dtype(bool), type_, "inside", text, None, depth, parts, self.width, index_size)
        else:
            value = self.declared(np.dtype(bool), "int", "inside", " & ".join(t for t, _ in tests), None, depth, parts)
        value.guards = tuple(holds)
        self.writer.blocks[depth].memo[key] = value
        return value

    def declared(
        self, dtype: DType, type_: str, base: str, text: str, node: Node | None, depth: int, parts: Parts, lanes: int = 1, mask: int = 0,
        only_if: str = "",
    ) -> Value:
        """The value of a new variable."""
        local = self.writer.declare(type_, base, text, node, depth, parts)
        return Value(local.name, dtype, lanes, depth, mask, (local,), only_if)

    # -- loads and stores

    def load(self, node: Node, stored: Storage, flat: Index, guards: Guards, written: bool = False) -> Value:
        """The element `flat` of a buffer. written: this kernel writes it, too, so it is read here and not before a loop."""
        w = self.writer
        dtype = node.dtype
        where, flat = flat, flat.opened()
        self.indices.append(flat)
        condition = self.condition(guards)
        vars = flat.vars
        depth = w.depth if written else self.depth_of(vars)
        pointer = w.buffer(stored.ref, w.base(node), dtype, stored.access)
        half = dtype == np.float16
        wide = self.varies(vars) or (condition is not None and condition.lanes > 1)
        only_if, guards = "", ()
        given: Parts = ()
        if condition is not None:
            depth, only_if, given, guards = max(depth, condition.depth), condition.text, (condition,), condition.guards
        base = w.base(node) + ("_i" if vars else "_0")
        if not wide:
            text = f"vload_half({flat.c()}, {pointer})" if half else f"{pointer}[{flat.c()}]"
            if condition is not None:
                text = f"{condition.text} ? {text} : 0"
            parts: Parts = (Access(pointer, where, guards=guards), *given)
            return self.declared(dtype, register_type(dtype), base, text, None, depth, parts, only_if=only_if)
        width = self.width
        memory = ctype(dtype, width)
        uniform = condition is None or condition.lanes == 1
        stride = flat.stride(self.lane) if self.lane is not None and vars.isdisjoint(self.vector_vars) else None
        scattered = Access(pointer, where, width, self.lane, guards)
        if half:
            if stride == 1 and uniform:
                text = f"vload_half{width}(0, {pointer} + {flat.c()})"
                parts = (Access(pointer, where, width, self.lane, guards), *given)
            else:
                at = self.lanes_name(flat, depth)
                each = [f"vload_half({at.text}.s{LANES[i]}, {pointer})" for i in range(width)]
                if condition is not None and not uniform:
                    each = [f"({condition.text}.s{LANES[i]} ? {p} : 0)" for i, p in enumerate(each)]
                text = f"(float{width})({', '.join(each)})"
                parts = (scattered, *at.parts, *given)
            if condition is not None and uniform:
                text = f"{condition.text} ? {text} : (float{width})(0)"
            return self.declared(dtype, f"float{width}", base, text, None, depth, parts, width, only_if=only_if)
        if stride == 1 and uniform:
            text = f"LOAD({memory}, {pointer} + {flat.c()})" if flat.key != "0" else f"LOAD({memory}, {pointer})"
            parts = (Access(pointer, where, width, self.lane, guards), *given)
        elif stride is not None and uniform:
            w.macros.add(f"STRIDED{width}")
            text = f"STRIDED{width}({memory}, {pointer} + {flat.c()}, {stride})"
            parts = (Access(pointer, where, width, self.lane, guards), *given)
        else:
            at = self.lanes_name(flat, depth)
            parts = (scattered, *at.parts, *given)
            if condition is None or uniform:
                w.macros.add(f"GATHER{width}")
                text = f"GATHER{width}({memory}, {pointer}, {at.text})"
            else:
                w.macros.add(f"GATHER{width}_IF")
                text = f"GATHER{width}_IF({memory}, {pointer}, {at.text}, {condition.text})"
        if condition is not None and uniform:
            text = f"({condition.text} ? {text} : ({memory})(0))"
        if dtype.kind == "b":
            type_ = mask_type(4, width)
            return self.declared(dtype, type_, base, f"{self.convert(text, type_)} != 0", None, depth, parts, width, 4, only_if)
        return self.declared(dtype, memory, base, text, None, depth, parts, width, only_if=only_if)

    def lanes_name(self, flat: Index, depth: int) -> Value:
        """The variable that is the vector of indices `flat`."""
        type_ = f"{self.writer.index}{self.width}"
        text, parts = self.lanes_text(flat) if self.varies(flat.vars) else (splat(type_, flat.c()), (flat,))
        if text.isidentifier():
            return Value(text, int32, self.width, depth, parts=parts)
        memo = self.writer.blocks[depth].memo
        key = ("indices", flat.key, self.width)
        if key not in memo:
            memo[key] = self.declared(int32, type_, "at", text, None, depth, parts, self.width)
        return memo[key]  # type: ignore[no-any-return]

    def store(self, stored: Storage, node: Node, flat: Index, value: Value) -> None:
        """Write `value` as element(s) `flat` of `node`; in vector code the lanes follow one another."""
        w, dtype = self.writer, node.dtype
        pointer = w.buffer(stored.ref, w.base(node), dtype, stored.access)
        half = dtype == np.float16
        where, flat = flat, flat.opened()
        if self.width == 1 or not self.varies(flat.vars):
            text = f"vstore_half({value.text}, {flat.c()}, {pointer});" if half else f"{pointer}[{flat.c()}] = {value.text};"
            w.store(Access(pointer, where), text, node, (value,))
            return
        width = self.width
        memory = ctype(dtype, width)
        text = self.vector(value).text
        if dtype.kind == "b":
            text = self.convert(f"{text} & 1", memory) if value.lanes > 1 else splat(memory, value.text)
        address = f"{pointer} + {flat.c()}" if flat.key != "0" else pointer.name
        line = f"vstore_half{width}({text}, 0, {address});" if half else f"STORE({memory}, {address}, {text});"
        w.store(Access(pointer, where, width, self.lane), line, node, (value,))

    # -- vectors

    def vector(self, value: Value, mask: int = 4) -> Value:
        """The value as a vector (a bool: as lane masks of `mask` bytes)."""
        if value.dtype.kind == "b":
            if value.lanes > 1 and value.mask == mask:
                return value
            type_ = mask_type(mask, self.width)
            if value.lanes == 1:
                text = f"({type_})(-{value.text})"
            else:
                text = self.convert(value.text, type_)
                text = f"({text} != 0)" if mask > value.mask else text  # Mesa (22.3) takes the sign of a widened mask to be 0
            return Value(text, value.dtype, self.width, value.depth, mask, value.parts)
        if value.lanes > 1:
            return value
        return Value(splat(register_type(value.dtype, self.width), value.text), value.dtype, self.width, value.depth, parts=value.parts)

    def convert(self, text: str, type_: str) -> str:
        return f"__builtin_convertvector({text}, {type_})" if self.writer.target.clang_builtins else f"convert_{type_}({text})"

    def translate(self, expression: str, dtype: DType, lanes: int) -> str:
        """`expression` with the math library's functions for operands of `dtype`."""
        if expression.find("(", 1) < 0:                      # (a + b): no function is called
            return expression
        type_ = register_type(dtype, lanes) if dtype.kind != "b" else "int"
        text, names = mathlib.translate(expression, self.writer.target, type_)
        self.writer.helper(names)
        return text

    # -- families

    def elementwise(self, node: Node, flat: Index, guards: Guards) -> list[tuple[Node, Index, Guards]]:
        requests = [(o, operand_index(o, node, flat), guards) for o in node.operands]
        values = [self.find(*r) for r in requests]
        missing = [r for r, v in zip(requests, values, strict=True) if v is None]
        if missing:
            return missing
        known = [v for v in values if v is not None]
        lanes = max(v.lanes for v in known)
        depth = max((v.depth for v in known), default=0)
        if node.fn.reports:
            depth = self.report(node, known[0], guards)
        expression, mask, parts = self.render(node, known, lanes)
        if node.fn.reports and expression == known[0].text:
            self.put(node, flat, known[0], guards, depth)
            return []
        type_ = register_type(node.dtype, lanes)
        if node.dtype.kind == "b" and lanes > 1:
            type_ = mask_type(mask, lanes)
        self.put(node, flat, self.declared(node.dtype, type_, self.name(node), expression, node, depth, parts, lanes, mask), guards)
        return []

    def report(self, node: Node, x: Value, guards: Guards) -> int:
        """A statement that notes which elements of an index are out of range (where `guards` hold), and the depth at which it stands."""
        check, condition = node.fn.check(node), self.condition(guards)  # type: ignore[attr-defined]
        low, high = literal(check.low, x.dtype), literal(check.high, x.dtype)
        if condition is not None:                            # elsewhere the value may be anything
            x = self.select(node, condition, x, Value(high, x.dtype))
        w = self.writer
        macro, outside = "IN_RANGE", ""
        given: Parts = ()
        if x.lanes > 1:
            macro = f"IN_RANGE{x.lanes}"
            mask = mask_type(x.dtype.itemsize, x.lanes)
            made = w.declare(mask, "outside", f"({x.text} < {low}) | ({x.text} > {high})", node, x.depth, (x,))
            outside, given = f"{made}, ", (made,)
        w.macros.add(macro)
        ignore = high if check.ignore is None else literal(check.ignore, x.dtype)
        faults, place = w.buffer(FAULTS, "faults", FAULTS.dtype, "inout"), w.scalar(self.fault(node), "fault", "int")
        w.raw(f"{macro}({outside}{x.text}, {low}, {high}, {ignore}, {faults} + {place});", node, (x, *given, place), writes=(faults,),
              depth=x.depth)
        return x.depth

    def render(self, node: Node, values: list[Value], lanes: int) -> tuple[str, int, Parts]:
        """The expression of an elementwise node, the bytes of a lane of its mask if it is a bool vector, and its operands."""
        fn: Any = node.fn
        name, dtype = fn.name, node.operands[-1].dtype
        if name == "cast":
            x = values[0]
            if lanes > 1 and x.dtype.kind == "b" and node.dtype.kind != "b":
                x = self.vector(x, computed_in(node.dtype).itemsize)
            return (*self.cast(x, node.dtype, lanes), (x,))
        spell = fn.opencl
        wraps = dtype.kind == "i" and fn.wraps and may_wrap(node)
        if name == "exp" and self.writer.target.plain_math and never_positive(node.operands[0]):
            spell = "exp_nonpositive({})".format
        if lanes == 1:
            wide = "uint" if dtype.itemsize < 4 else f"u{ctype(dtype)}"        # a product of two ushort is an int, and may overflow
            wraps |= dtype == np.uint16 and name == "mul"
            texts = [f"({wide}){v.text}" if wraps else v.text for v in values]
            if name == "bitwise_not" and dtype.kind == "b":
                return f"!{texts[0]}", 0, tuple(values)
            text = unwrapped(self.translate(spell(*texts, **node.attrs), dtype, 1))
            return f"({ctype(dtype)})({text})" if wraps else text, 0, tuple(values)
        if name in ("eq", "ne") and dtype == np.int64:
            for x, other in (values, values[::-1]):
                if x.narrow is not None and other.lanes == 1:
                    return self.equals_position(x.narrow, other, "==" if name == "eq" else "!=")
        size = computed_in(dtype).itemsize if dtype.kind != "b" else max((v.mask for v in values if v.dtype.kind == "b"), default=4)
        if getattr(fn, "lanewise", False):                   # a user's expression: any C will do, so scalars only
            parts = [fn.opencl(*(v.text if v.lanes == 1 else f"{v.text}.s{LANES[k]}" for v in values)) for k in range(lanes)]
            type_ = mask_type(size, lanes) if node.dtype.kind == "b" else register_type(node.dtype, lanes)
            minus = "-" if node.dtype.kind == "b" else ""
            return f"({type_})({', '.join(minus + self.translate(p, dtype, 1) for p in parts)})", size, tuple(values)
        mixes = fn.mixes and dtype.name in _MIXES
        single = [mixes and v.lanes == 1 and v.dtype.kind != "b" for v in values]
        single[0] &= not all(single)
        values = [v if alone else self.vector(v, size) for v, alone in zip(values, single, strict=True)]
        texts = [v.text for v in values]
        if wraps:
            scalar, vector = ctype(dtype), ctype(dtype, lanes)
            texts = [f"(u{scalar}){t}" if alone else f"as_u{vector}({t})" for t, alone in zip(texts, single, strict=True)]
        text = unwrapped(self.translate(spell(*texts, **node.attrs), dtype, lanes))
        return f"as_{ctype(dtype, lanes)}({text})" if wraps else text, size, tuple(values)

    def equals_position(self, narrow: tuple[Value, int], other: Value, sign: str) -> tuple[str, int, Parts]:
        """A position compared with a 64-bit number (labels, mostly): in the width of indices, with -1 for what is out of range."""
        lanes, size = narrow
        key = ("narrow", other.text, size)
        block = self.writer.blocks[other.depth]
        if key not in block.memo:
            kind, y = self.writer.index, other.text
            block.memo[key] = self.writer.declare(kind, "at", f"{y} >= 0 && {y} < {size} ? ({kind}){y} : -1", depth=other.depth,
                                                  parts=(other,))
        left = lanes.text if lanes.text.isidentifier() else f"({lanes.text})"
        return f"{left} {sign} {block.memo[key]}", 4 if self.writer.index == "int" else 8, (lanes, block.memo[key])

    def cast(self, x: Value, dtype: DType, lanes: int) -> tuple[str, int]:
        narrow = x.dtype.kind == "f" and dtype.kind in "iu" and dtype.itemsize < 4          # through int: -1.0 is 255, as in numpy
        if lanes == 1:
            if dtype.kind == "b":
                return (x.text if x.dtype.kind == "b" else f"({x.text} != 0)"), 0
            return f"({register_type(dtype)}){'(int)' * narrow}{x.text}", 0
        if dtype.kind == "b":
            zero = "0" if x.dtype.name in _MIXES else f"({register_type(x.dtype, lanes)})(0)"
            return f"({x.text} != {zero})", computed_in(x.dtype).itemsize
        type_ = register_type(dtype, lanes)
        if x.dtype.kind == "b":
            return f"{x.text} ? ({type_})(1) : ({type_})(0)", 0
        if register_type(x.dtype, lanes) == type_:
            return x.text, 0
        return self.convert(self.convert(x.text, f"int{lanes}") if narrow else x.text, type_), 0

    def iota(self, node: Node, flat: Index) -> Value:
        index = unravel(flat, node.shape)[node.attrs["dim"]]
        self.indices.append(index)
        depth = self.depth_of(index.vars)
        type_ = register_type(node.dtype)
        if not self.varies(index.vars):
            if not index.terms:
                return Value(literal(index.constant, node.dtype), node.dtype)
            text = index.c() if type_ == self.writer.index else splat(type_, index.c())
            if text.isidentifier():
                return Value(text, node.dtype, 1, depth, parts=(index,))
            return self.declared(node.dtype, type_, "iota", text, node, depth, (index,))
        wide = register_type(node.dtype, self.width)
        text, parts = self.lanes_text(index)
        if wide != f"{self.writer.index}{self.width}":
            narrow = Value(text, int32, self.width, depth, parts=parts)
            return Value(self.convert(text, wide), node.dtype, self.width, depth, 0, parts, "", (narrow, node.shape[node.attrs["dim"]]))
        if text.isidentifier():
            return Value(text, node.dtype, self.width, depth, parts=parts)
        return self.declared(node.dtype, wide, "iota", text, node, depth, parts, self.width)

    def move(self, node: Node, flat: Index, guards: Guards) -> list[tuple[Node, Index, Guards]]:
        if node.fn.name == "reshape":
            request = (node.operands[0], flat, guards)
            known = self.find(*request)
            if known is None:
                return [request]
            self.put(node, flat, known, guards)
            return []
        found, exhaustive = branches(node, flat, guards)
        missing = [r for r, _ in found if self.find(*r) is None]
        if missing:
            return missing
        fill = node.attrs.get("value", 0)
        result = Value(literal(node.dtype.type(fill), node.dtype), node.dtype)
        if exhaustive:
            last = self.find(*found.pop()[0])
            assert last is not None
            result = last
        for request, tests in reversed(found):
            x_value, condition = self.find(*request), self.condition(tests)
            assert x_value is not None
            if condition is None:
                result = x_value
                continue
            result = self.select(node, condition, x_value, result)
        self.put(node, flat, result, guards)
        return []

    def select(self, node: Node, condition: Value, a: Value, b: Value) -> Value:
        lanes = max(condition.lanes, a.lanes, b.lanes)
        depth = max(condition.depth, a.depth, b.depth)
        dtype = node.dtype
        if a.text == b.text and a.lanes == b.lanes:
            return a
        if dtype.kind == "b" and (a.text, b.text) == ("1", "0"):
            return condition
        if a.only_if == condition.text and b.text == literal(0, dtype):         # padding with what the load gives there
            return a
        if lanes == 1:
            text = f"{condition.text} ? {a.text} : {b.text}"
            return self.declared(dtype, register_type(dtype), self.name(node), text, node, depth, (condition, a, b))
        size = 4 if dtype.kind == "b" else computed_in(dtype).itemsize
        type_ = mask_type(size, lanes) if dtype.kind == "b" else register_type(dtype, lanes)
        condition, a, b = (self.vector(x, size) for x in (condition, a, b))
        text = f"{condition.text} ? {a.text} : {b.text}"
        mask = size if dtype.kind == "b" else 0
        return self.declared(dtype, type_, self.name(node), text, node, depth, (condition, a, b), lanes, mask)

    def unrolled(self, node: Node, flat: Index, guards: Guards) -> list[tuple[Node, Index, Guards]]:
        """A reduction over few elements, written out."""
        x, = node.operands
        requests = [(x, at, guards) for at in reduced_indices(node, flat)]
        missing = [r for r in requests if self.find(*r) is None]
        if missing:
            return missing
        values = [v for r in requests if (v := self.find(*r)) is not None]
        lanes, depth = max(v.lanes for v in values), max(v.depth for v in values)
        result = self.fold(node, values, lanes, depth)
        self.put(node, flat, result, guards)
        return []

    def fold(self, node: Node, values: list[Value], lanes: int, depth: int) -> Value:
        """All values combined by a reduction's rule, pairwise."""
        type_ = register_type(node.dtype, lanes)
        values = [self.vector(v) if lanes > 1 else v for v in values]
        level, parts = [v.text for v in values], tuple[Part, ...](values)
        halved = 0
        while len(level) > 1:
            odd = level[-1:] if len(level) % 2 else []
            pairs = zip(level[::2], level[1::2], strict=False)
            level = [self.translate(self.combiner(node)(a, b), node.dtype, lanes) for a, b in pairs] + odd
            halved += 1
            if len(level) > 1 and halved % 2 == 0:           # four a line
                made = [self.writer.declare(type_, self.name(node), t, node, depth, parts) for t in level]
                level, parts = [v.name for v in made], tuple(made)
        return self.declared(node.dtype, type_, self.name(node), level[0], node, depth, parts, lanes)

    def accumulate(self, r: Node, total: Local, value: Value) -> None:
        """A statement that combines a running total with a value."""
        value = self.vector(value) if self.width > 1 else value
        text = self.translate(self.combiner(r)(total.name, value.text), r.dtype, self.width)
        self.writer.assign(total, text, r, (total, value))

    def combiner(self, node: Node) -> Callable[[str, str], str]:
        fn: Any = node.attrs.get("op", node.fn)
        return fn.combine  # type: ignore[no-any-return]

    def gather(self, node: Node, flat: Index, guards: Guards) -> list[tuple[Node, Index, Guards]]:
        """take(x, index): x[index] along the first axis."""
        x, index = node.operands
        at = unravel(flat, node.shape)
        n = len(index.shape)
        where = (index, ravel(at[:n], index.shape), guards)
        known = self.find(*where)
        if known is None:
            return [where]
        lanes, top = known.lanes, x.shape[0] - 1
        key = ("gathered", known.text, top)                              # tables of two sizes may be read with the same index
        block = self.writer.blocks[known.depth]
        if key not in block.memo:                                        # clamped first, made an index then: it may not fit one
            type_ = self.writer.index + (str(lanes) if lanes > 1 else "")
            wide = register_type(index.dtype, lanes) if lanes > 1 else ""
            low, high = (f"({wide})(0)", f"({wide})({top})") if lanes > 1 else ("0", str(top))
            clamped = f"{known.text} < {low} ? {low} : {known.text} > {high} ? {high} : {known.text}"
            expression = clamped if wide == type_ else self.convert(f"({clamped})", type_) if lanes > 1 else f"({type_})({clamped})"
            var = block.memo[key] = self.writer.computed("at", x.shape[0], unwrapped(expression), node, known.depth, (known,), lanes)
            if known.lanes > 1:
                self.vector_vars |= {var}
        request = (x, ravel((block.memo[key].index, *at[n:]), x.shape), guards)
        found = self.find(*request)
        if found is None:
            return [request]
        self.put(node, flat, found, guards)
        return []
