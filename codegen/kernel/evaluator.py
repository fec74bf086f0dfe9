"""Values of nodes as statements of a kernel: the heart of fusion. Start at `Evaluator.value`.

`value(node, flat)` makes the statements that compute element `flat` of `node`: loads of what is stored (`elements`), arithmetic of what
is fused, index arithmetic for movement ops. A value is a scalar, or a vector of lanes along the lane variable (`lanes`). Each is computed
once, in the outermost loop that it can be (`numbering`). Iterative: any depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.elements import Condition, Elements, Storage
from tracegrad.codegen.kernel.index.facts import DIVIDES, MAY_WRAP, NARROW_ANGLE, NEVER_POSITIVE, operand_index
from tracegrad.codegen.kernel.index.guards import Guards, branches, needed, reduced_indices
from tracegrad.codegen.kernel.index.index import Index, Var, ravel, strides, unravel
from tracegrad.codegen.kernel.ir.expressions import (
    At,
    Bits,
    Cast,
    Convert,
    Expression,
    Held,
    Infix,
    Lanes,
    Literal,
    Local,
    Op,
    Position,
    Prefix,
    Select,
    Splat,
    Transposed,
    Vector,
    Zeros,
    is_zero,
    whole,
)
from tracegrad.codegen.kernel.ir.kernel import FAULTS, RuntimeScalar
from tracegrad.codegen.kernel.ir.spelling import spelling
from tracegrad.codegen.kernel.ir.types import register_dtype, register_type
from tracegrad.codegen.kernel.ir.vectors import computed_in
from tracegrad.codegen.kernel.lanes import is_name
from tracegrad.codegen.kernel.statement_passes import ROUNDING
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.errors import CompilerBug
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, dtype_kind, float32, float64, int32, int64, is_half, uint32
from tracegrad.support.plan import Fault
from tracegrad.support.tuning import tuning

_MIXES = frozenset((float32, float64, int32, int64))      # scalars of these mix with vectors of the same
Request = tuple[Node, Index, Guards]
Needed = list[Request]                                   # elements that have to be computed first


class Evaluator(Elements):
    """Evaluates nodes within one kernel.

    storage(node): where a node that is not computed here is stored (None: compute it); scalars: run-time scalars by node.
    """

    def __init__(self, writer: Writer, storage: Callable[[Node], Storage | None], scalars: dict[Node, RuntimeScalar]) -> None:
        super().__init__(writer)
        self.storage, self.scalars = storage, scalars
        self.given: Callable[[Node, Index], Expression | None] = lambda node, flat: None     # values that come from elsewhere
        self.rolled: dict[Var | None, tuple[Index, int, int]] = {}      # computed by `around`: from where, by how much, of how many
        self.stored: frozenset[Node] = frozenset()           # results of this kernel: their pointers bear the plain names
        self.fault: Callable[[Node], Fault]                  # the place in FAULTS of an op that reports (set by whoever makes this)

    def name(self, node: Node) -> str:
        """What to call a value: a result after its pointer; a derivative's step, which is no variable of the user's, by its operation."""
        base = self.writer.base(node)
        if node in self.stored:
            return f"{base}_i"
        name = node.fn.name if node.loc.derived else base
        return node.fn.makes or name if name == node.fn.name else name

    # -- the walk

    def value(self, node: Node, flat: Index, guards: Guards = ()) -> Expression:
        """The value of element `flat` of `node` (where `guards` hold; elsewhere anything)."""
        stack = [(node, flat, guards)]
        while True:
            request = stack[-1]
            found = self.find(*request)
            if found is None:
                needed = self.step(*request)
                if needed:
                    stack.extend(reversed(needed))
                    continue
                found = self.find(*request)
                if found is None:
                    raise CompilerBug(f"codegen: {request[0]!r}, computed at {request[0].loc}, could not be evaluated")
            stack.pop()
            if not stack:
                return found

    def key(self, node: Node, flat: Index, guards: Guards) -> Any:
        return (node, flat.key, *[(g[0], g[1].key, *g[2:]) for g in guards]) if needed(flat, guards) else (node, flat.key)

    def find(self, node: Node, flat: Index, guards: Guards = ()) -> Expression | None:
        if node.fn.name == "const":
            return Literal(node.attrs["value"], node.dtype)
        alone = (node, flat.key)
        found = self.recall(alone if not guards else self.key(node, flat, guards))
        if found is None and guards:                         # a value that was computed unconditionally
            found = self.recall(alone)
        return found  # type: ignore[no-any-return]

    def put(self, node: Node, flat: Index, value: Expression, guards: Guards = ()) -> None:
        """Remember a value in the block where it and what identifies it are bound, and from there inwards."""
        self.remember(self.key(node, flat, guards), value, value.vars.union(flat.vars, *(g[1].vars for g in guards)))

    def step(self, node: Node, flat: Index, guards: Guards) -> Needed:
        """Compute `node` if its operands are known, else return what is needed first."""
        guards = needed(flat, guards)
        if node in self.scalars:
            ref = self.scalars[node]
            held = register_dtype(ref.dtype)
            number = node
            while self.writer.base(number) == number.fn.name:            # nobody named it: after what the host makes it of
                made_of = [o for o in number.operands if o in self.scalars]
                if len(made_of) != 1:
                    break
                number, = made_of
            given = self.writer.scalar(replace(ref, dtype=held), self.writer.base(number), held)
            self.put(node, flat, given if given.dtype == node.dtype else Held(given, node.dtype), guards)
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

    # -- arithmetic

    def elementwise(self, node: Node, flat: Index, guards: Guards) -> Needed:
        requests = [(o, operand_index(o, node, flat), guards) for o in node.operands]
        values = [self.find(*r) for r in requests]
        missing = [r for r, v in zip(requests, values, strict=True) if v is None]
        if missing:
            return missing
        known = [v for v in values if v is not None]
        if node.fn.reports:
            self.report(node, known[0], guards)
        value = self.computed(node, known)
        if is_half(node.dtype) and not (node.fn.exact or node.fn.name == "cast"):
            value = self.rounded(value, node.dtype)
        if value is not known[0] and not is_name(value):     # (no copy of what is there)
            value = self.let(self.name(node), value, node)
        self.put(node, flat, value, guards)
        return []

    def computed(self, node: Node, values: list[Expression]) -> Expression:
        """What an elementwise node makes of its operands."""
        fn: Any = node.fn
        name, dtype = fn.name, node.operands[-1].dtype
        lanes = max(v.lanes for v in values)
        if name == "cast":
            if is_half(node.dtype) and not np.can_cast(dtype, node.dtype):
                return self.rounded(self.cast(values[0], float32), node.dtype)
            return self.cast(values[0], node.dtype)
        wraps = bool(MAY_WRAP(node))
        spell = fn.opencl
        if self.writer.target.plain_math and NEVER_POSITIVE(node):
            spell = _exp_nonpositive
        if self.writer.target.plain_math and dtype == np.float32 and NARROW_ANGLE(node):
            spell = _cos_narrow
        if DIVIDES.concerns(node):
            spell = (spell, *_DIVIDES[name])[DIVIDES(node)]
        if lanes == 1:
            wraps |= dtype == np.uint16 and name == "mul"    # a product of two ushort is an int, and may overflow
            if name == "bitwise_not" and dtype.kind == "b":
                return Prefix("!", values[0])
            if not wraps:
                return self.op(spell, values, dtype, node.dtype, node.attrs)
            wide = uint32 if dtype.itemsize < 4 else np.dtype(f"u{dtype.name}")
            return Cast(self.op(spell, [Cast(v, wide) for v in values], dtype, wide, node.attrs), dtype)
        if name in ("eq", "ne") and dtype == np.int64:
            for x, other in (values, values[::-1]):
                if isinstance(x, Position) and other.lanes == 1:
                    return self.equals_position(x, other, "==" if name == "eq" else "!=")
        size = computed_in(dtype).itemsize if dtype.kind != "b" else max((v.mask for v in values if v.dtype.kind == "b"), default=0) or 4
        if name == "where" and values[0].lanes == 1:         # one condition for all lanes
            return Select(values[0], self.vector(values[1], size), self.vector(values[2], size))
        if getattr(fn, "lanewise", False):                   # a user's expression: any C will do, so scalars only
            each = [[v if v.lanes == 1 else Lanes(v, k) for v in values] for k in range(lanes)]
            parts: list[Expression] = [self.op(spell, given, dtype, node.dtype, node.attrs) for given in each]
            return Vector(tuple(Prefix("-", p) for p in parts), size) if node.dtype.kind == "b" else Vector(tuple(parts))
        mixes = fn.mixes and dtype in _MIXES
        single = [mixes and v.lanes == 1 and v.dtype.kind != "b" for v in values]
        single[0] &= not all(single)
        values = [v if alone else self.vector(v, size) for v, alone in zip(values, single, strict=True)]
        if not wraps:
            return self.op(spell, values, dtype, node.dtype, node.attrs, size if node.dtype.kind == "b" else 0)
        wide = np.dtype(f"u{dtype.name}")
        values = [Cast(v, wide) if alone else Bits(v, wide) for v, alone in zip(values, single, strict=True)]
        return Bits(self.op(spell, values, dtype, wide, node.attrs), dtype)

    def rounded(self, x: Expression, dtype: DType) -> Expression:
        """A float32 as a float16 or bfloat16. Registers hold these as floats, so each result is rounded where it is made, as if stored."""
        return Held(self.op(_ROUND[dtype], [x], float32, float32, {}), dtype)

    def op(self, spell: Callable[..., str], values: list[Expression], of: DType, dtype: DType, attrs: dict[str, Any], mask: int = 0
           ) -> Expression:
        """An op of operands of dtype `of`."""
        lanes = max(v.lanes for v in values)
        type_ = register_type(of, lanes) if of.kind != "b" else "int"
        found = spelling(spell, len(values), attrs, type_, self.writer.target)
        if found.pieces == (0,):                             # nothing is done
            return values[0]
        self.writer.helper(found.helpers)
        return Op(found, tuple(values), dtype, lanes, mask)

    def cast(self, x: Expression, dtype: DType) -> Expression:
        narrow = dtype_kind(x.dtype) == "f" and dtype.kind in "iu" and dtype.itemsize < 4          # through int: -1.0 is 255, as in numpy
        if x.lanes == 1:
            if dtype.kind == "b":
                return Held(x, dtype) if x.dtype.kind == "b" else Infix("!=", x, whole(0))
            if dtype_kind(dtype) == "f" and computed_in(x.dtype) == computed_in(dtype):
                return Held(x, dtype)
            return Cast(Cast(x, int32) if narrow else x, dtype)
        if x.dtype.kind == "b":
            if dtype.kind == "b":
                return Infix("!=", x, Zeros(int32, x.lanes))
            return Select(self.vector(x, computed_in(dtype).itemsize), Splat(whole(1, dtype), x.lanes), Zeros(dtype, x.lanes))
        if dtype.kind == "b":
            return Infix("!=", x, whole(0, x.dtype) if x.dtype in _MIXES else Zeros(x.dtype, x.lanes))
        if computed_in(x.dtype) == computed_in(dtype):
            return Held(x, dtype)
        return Convert(Convert(x, int32) if narrow else x, dtype)

    def equals_position(self, x: Position, other: Expression, sign: str) -> Expression:
        """A position compared with a 64-bit number (labels, mostly): in the width of indices, with -1 for what is out of range."""
        key = ("narrow", other, x.size)
        place = self.recall(key)
        if place is None:
            dtype = self.writer.index_dtype
            inside = Infix("&&", Infix(">=", other, whole(0)), Infix("<", other, whole(x.size)))
            place = self.let("at", Select(inside, Cast(other, dtype), whole(-1, dtype)))
            self.remember(key, place, other.vars)
        return Infix(sign, x.parts[0], place)

    def report(self, node: Node, x: Expression, guards: Guards) -> None:
        """A statement that notes which elements of an index are out of range (where `guards` hold)."""
        check, condition = node.fn.check(node), self.condition(guards)  # type: ignore[attr-defined]
        low, high = Literal(check.low, x.dtype), Literal(check.high, x.dtype)
        if condition is not None:                            # elsewhere the value may be anything
            x = self.select(node, condition, x, high)
        w = self.writer
        function, depth = "IN_RANGE", w.depth_of(x.vars)
        outside: list[Expression] = []
        if x.lanes > 1:
            function = f"IN_RANGE{x.lanes}"
            outside = [w.declare("outside", Infix("|", Infix("<", x, low), Infix(">", x, high)), node, depth)]
        ignore = high if check.ignore is None else Literal(check.ignore, x.dtype)
        faults, place = w.buffer(FAULTS, "faults", FAULTS.dtype, "inout"), w.scalar(self.fault(node), "fault", int32)
        w.report(function, (*outside, x, low, high, ignore), faults, place, node, depth)

    # -- positions, movement

    def iota(self, node: Node, flat: Index) -> Expression:
        index, dtype = unravel(flat, node.shape)[node.attrs["dim"]], node.dtype
        same = register_type(dtype) == self.writer.index
        if not self.varies(index):
            if not index.terms:
                return Literal(index.constant, dtype)
            value: Expression = At(index, dtype) if same else Cast(At(index, self.writer.index_dtype), dtype)
        else:
            value = self.lanes_of(index)
            if not same:
                return Position(value, dtype, node.shape[node.attrs["dim"]])
        return value if is_name(value) else self.let("iota", value, node)

    def move(self, node: Node, flat: Index, guards: Guards) -> Needed:
        if node.fn.name == "reshape":
            request = (node.operands[0], flat, guards)
            known = self.find(*request)
            if known is None:
                return [request]
            self.put(node, flat, known, guards)
            return []
        found, exhaustive = branches(node, flat, guards)
        if node.fn.name == "roll" and len(found) > 1:
            if not guards and (ends := self.ends(node, flat)):
                requests, first = ends
                parts = [self.find(*r) for r in requests]
                missing = [r for r, part in zip(requests, parts, strict=True) if part is None]
                if not missing:
                    a, b = (x if is_name(x) else self.let(self.writer.base(node), x) for x in map(self.vector, filter(None, parts)))
                    self.put(node, flat, self.let(self.writer.base(node), Transposed(a, b, first), node))
                return missing
            one = self.around(node, flat, guards)
            found = found if one is None else [(one, ())]
        missing = [r for r, _ in found if self.find(*r) is None]
        if missing:
            return missing
        result: Expression = Literal(node.dtype.type(node.attrs.get("value", 0)), node.dtype)
        if exhaustive:
            last = self.find(*found.pop()[0])
            assert last is not None
            result = last
        for request, tests in reversed(found):
            value, condition = self.find(*request), self.condition(tests)
            assert value is not None
            result = value if condition is None else self.select(node, condition, value, result)
        self.put(node, flat, result, guards)
        return []

    def ends(self, node: Node, flat: Index) -> tuple[tuple[Request, Request], int] | None:
        """What elements `flat` of a roll along rows are made of, where they are one vector that goes around the end: the last vector of
        the row, its first, and which lane of the last comes first. None elsewhere.
        """
        x, = node.operands
        dim, shift, n = node.attrs["dim"], node.attrs["shift"], node.shape[node.attrs["dim"]]
        lane, width, at = self.lane, self.width, unravel(flat, node.shape)
        if lane is None or lane.hi - lane.lo != width - 1 or n < width or strides(x.shape)[dim] != 1 or node.dtype.kind == "b":
            return None
        more = at[dim].opened() - lane.index
        if more.vars or any(self.varies(i) for d, i in enumerate(at) if d != dim):
            return None
        over = n - (lane.lo + more.constant - shift) % n       # so many lanes are before the end
        if over >= width:
            return None
        begin = lane.index - lane.lo
        last, first = ((x, ravel((*at[:dim], begin + start, *at[dim + 1:]), x.shape), ()) for start in (n - width, 0))
        return (last, first), width - over

    def around(self, node: Node, flat: Index, guards: Guards) -> tuple[Node, Index, Guards] | None:
        """Where element `flat` of a roll is, around the end: one place, or one a lane. None where it may not be there at all.

        Two rolls one behind the other go around once: a neighbour's neighbour may be the element itself, which is known.
        """
        x, = node.operands
        dim, shift, n = node.attrs["dim"], node.attrs["shift"], node.shape[node.attrs["dim"]]
        at = unravel(flat, node.shape)
        start, opened = at[dim], at[dim].opened()
        if opened.lo < 0 or opened.hi >= n:
            return None
        if len(start.terms) == 1 and not start.constant and start.terms[0][1] == 1 and start.terms[0][0].var in self.rolled:
            row, (start, before, size) = start.terms[0][0].var, self.rolled[start.terms[0][0].var]
            if size == n and row is not None:
                self.writer.doubtful.append(row)
                if row in self.vector_vars and self.lane is not None and self.lane in start.vars:
                    self.writer.doubtful.append(self.lane_numbers(self.lane))
                shift = (shift + before) % n
            else:
                start = at[dim]
        place = start
        if shift:
            lanes = self.width if self.varies(start) else 1
            key = ("rolled", start.key, shift, n, lanes)
            row = self.recall(key)
            if row is None:
                i, limit = (self.writer.at, whole(shift, self.writer.index_dtype)) if lanes == 1 else (
                    self.lanes_of, Splat(whole(shift, self.writer.index_dtype), lanes))
                value = Select(Infix("<", i(start), limit), i(start + (n - shift)), i(start - shift))
                row = self.writer.computed("at", n, value, node, self.writer.depth_of(start.vars))
                self.remember(key, row, start.vars)
                self.rolled[row] = start, shift, n
                if lanes > 1:
                    self.vector_vars |= {row}
            place = row.index
        return x, ravel((*at[:dim], place, *at[dim + 1:]), x.shape), guards

    def select(self, node: Node, condition: Condition, a: Expression, b: Expression) -> Expression:
        """a where the condition holds, else b."""
        test, dtype = condition.test, node.dtype
        if a == b:
            return a
        if dtype.kind == "b" and isinstance(a, Literal) and isinstance(b, Literal):
            if a.value and not b.value:
                return test
        if isinstance(a, Local) and a.only_if is test and is_zero(b):           # padding with what the load gives there
            return a
        if max(test.lanes, a.lanes, b.lanes) == 1:
            return self.let(self.name(node), Select(test, a, b), node)
        size = 4 if dtype.kind == "b" else computed_in(dtype).itemsize
        mask = test if test.lanes == 1 else self.vector(test, size)             # one for all lanes: C selects a whole vector
        return self.let(self.name(node), Select(mask, self.vector(a, size), self.vector(b, size)), node)

    def gather(self, node: Node, flat: Index, guards: Guards) -> Needed:
        """take(x, index): x[index] along the first axis."""
        x, index = node.operands
        at = unravel(flat, node.shape)
        n = len(index.shape)
        where = (index, ravel(at[:n], index.shape), guards)
        known = self.find(*where)
        if known is None:
            return [where]
        top = x.shape[0] - 1
        key = ("gathered", known, top)                       # tables of two sizes may be read with the same index
        row = self.recall(key)
        if row is None:
            row = self.writer.computed("at", x.shape[0], self.clamped(known, top), node, self.writer.depth_of(known.vars))
            self.remember(key, row, known.vars)
            if known.lanes > 1:
                self.vector_vars |= {row}
        request = (x, ravel((row.index, *at[n:]), x.shape), guards)
        found = self.find(*request)
        if found is None:
            return [request]
        self.put(node, flat, found, guards)
        return []

    def clamped(self, x: Expression, top: int) -> Expression:
        """A row that was read, brought into 0..top: clamped first, made an index then, as it may not fit one."""
        dtype, lanes = self.writer.index_dtype, x.lanes
        low: Expression = Zeros(x.dtype, lanes)
        high: Expression = whole(top, x.dtype) if lanes == 1 else Splat(whole(top, x.dtype), lanes)
        found = Select(Infix("<", x, low), low, Select(Infix(">", x, high), high, x))
        if lanes == 1:
            return Cast(found, dtype)
        return found if x.dtype == dtype else Convert(found, dtype)

    # -- reductions

    def unrolled(self, node: Node, flat: Index, guards: Guards) -> Needed:
        """A reduction over few elements, written out."""
        x, = node.operands
        requests = [(x, at, guards) for at in reduced_indices(node, flat)]
        missing = [r for r in requests if self.find(*r) is None]
        if missing:
            return missing
        self.put(node, flat, self.fold(node, [v for r in requests if (v := self.find(*r)) is not None]), guards)
        return []

    def fold(self, node: Node, values: list[Expression]) -> Local:
        """All values combined by a reduction's rule, pairwise."""
        lanes = max(v.lanes for v in values)
        level = [self.vector(v) if lanes > 1 else v for v in values]
        depth = self.writer.depth_of(frozenset().union(*(v.vars for v in level)))
        halved = 0
        while len(level) > 1:
            odd = level[-1:] if len(level) % 2 else []
            level = [self.combined(node, a, b) for a, b in zip(level[::2], level[1::2], strict=False)] + odd
            halved += 1
            if len(level) > 1 and halved % 2 == 0:           # four a line
                level = [t if isinstance(t, Local) else self.let(self.name(node), t, node, depth) for t in level]
        found = level[0]
        return found if isinstance(found, Local) else self.let(self.name(node), found, node)

    def accumulate(self, r: Node, total: Local, value: Expression) -> None:
        """A statement that combines a running total with a value."""
        self.writer.assign(total, self.combined(r, total, self.vector(value) if self.width > 1 else value), r)

    def joined(self, r: Node, a: Expression, b: Expression) -> Expression:
        """Two values by the rule of a scan, or of a scatter that is not a sum; bools by C's operator."""
        fn: Any = r.fn
        return Infix(fn.bools, a, b) if r.dtype.kind == "b" else self.combined(r, a, b)

    def combined(self, r: Node, a: Expression, b: Expression) -> Expression:
        """Two values by a reduction's rule."""
        fn: Any = r.attrs.get("op", r.fn)
        mask = max(a.mask, b.mask)
        if not fn.wraps or r.dtype.kind != "i":
            return self.op(fn.combine, [a, b], r.dtype, r.dtype, {}, mask)
        wide = np.dtype(f"u{r.dtype.name}")
        as_ = Bits if max(a.lanes, b.lanes) > 1 else Cast
        return as_(self.op(fn.combine, [as_(a, wide), as_(b, wide)], r.dtype, wide, {}, mask), r.dtype)


_ROUND: dict[DType, Callable[..., str]] = {dtype: (f"{name}({{}})").format for dtype, name in ROUNDING.items()}


def _exp_nonpositive(x: str) -> str:
    return f"exp_nonpositive({x})"


def _cos_narrow(x: str) -> str:
    return f"cos_narrow({x})"


_DIVIDES: dict[str, tuple[Callable[..., str], Callable[..., str]]] = {         # by what is positive; of what is not negative, too
    "remainder": (lambda a, b: f"tg_remainder_by({a}, {b})", lambda a, b: f"({a} % {b})"),
    "floor_divide": (lambda a, b: f"tg_floordiv_by({a}, {b})", lambda a, b: f"({a} / {b})"),
}
