"""Whether a kernel keeps its promises, proved from the objects it is made of before it runs. Start at `verify_kernel`.

Checked: variables are declared before they are used; the lanes of what a statement reads fit what it makes; every element that is read
or written lies in its buffer, from the ranges of loops and the guards; nothing is written through `const`; all items of a work-group
reach a barrier; no two work-items write one element, nor does one read what another writes, where indices are linear.

Not checked: elements that only the running program knows (`Access.at` is None, or an index that was read and brought into range). Of a
variable that changes its range is believed; what the conditions around say of it holds until it changes. `kernel.run` checks all of that
while a kernel runs.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tracegrad.codegen.kernel.checks.operands import Operands
from tracegrad.codegen.kernel.checks.proof import divides, facts
from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.expressions import Expression, Pointer
from tracegrad.codegen.kernel.ir.kernel import FAULTS, Foreign, Kernel
from tracegrad.codegen.kernel.ir.statements import (
    Access,
    Allocate,
    Array,
    Assign,
    Atomic,
    Barrier,
    Block,
    Bound,
    Break,
    Declare,
    If,
    Instruct,
    Item,
    Local,
    Loop,
    Repeat,
    Statement,
    Store,
    Update,
    statements_in,
)
from tracegrad.codegen.kernel.ir.types import size_of
from tracegrad.codegen.kernel.ir.vectors import ctype
from tracegrad.errors import CompilerBug


def verify_kernel(kernel: Kernel) -> None:
    """Raises CompilerBug if `kernel` is wrong, with the statement and the value it computes."""
    if not isinstance(kernel, Foreign):
        _Check(kernel).run()


class _Check(Operands):
    """The walk over a kernel's blocks."""

    def run(self) -> None:
        self.block(self.kernel.body, False)
        for buffer in self.atomics:
            if buffer in self.touched:
                raise CompilerBug(f"verify_kernel: in {self.kernel.entry}, {buffer} is changed by atomics, and read or written otherwise")
        if self.several_items:
            for buffer, forms in self.touched.items():
                if buffer.access != "const" and buffer.ref is not FAULTS:
                    self.apart(buffer, forms)

    def block(self, block: Block, diverges: bool) -> None:
        """All statements of a block, in order; diverges: not all items of a work-group need to be here. The scope stays the block's."""
        for item in block.items:
            self.at = item
            if isinstance(item, Block):
                self.inner(item, diverges)
            else:
                self.statement(item, diverges)

    def inner(self, block: Block, diverges: bool) -> None:
        scope, called, ranges, known = set(self.scope), dict(self.called), dict(self.ranges), len(self.known)
        repeats = isinstance(block, (Loop, Repeat))
        if repeats:
            inside = statements_in(block)
            for statement in inside:
                if isinstance(statement, (Assign, Update)):
                    self.changed(statement)
            if self.kernel.cooperates and any(isinstance(s, Barrier) for s in inside):
                # What differs in one iteration differs in those before it, too.
                while self.spread(block, diverges):
                    pass
                if any(isinstance(s, Break) for s in inside):
                    raise self.fail("a loop with a barrier in it is left from the middle")
        if isinstance(block, Repeat):
            if block.first is not None:
                self.statement(block.first, diverges)
            self.expression(block.condition)
        else:
            self.read(block.parts)
        apart = diverges or (self.meets and any(self.differs(p) for p in block.parts))
        if isinstance(block, (If, Repeat)) and block.condition is not None:
            self.known += facts(block.condition)
        self.enter(block)
        more = block.more if isinstance(block, Repeat) else None
        own = (set(self.scope), dict(self.called), dict(self.ranges)) if more is not None else None
        self.loops += repeats
        self.block(block, apart)
        self.loops -= repeats
        if more is not None and own is not None:             # what the block declares is not there any more
            self.scope, self.called, self.ranges = own
            self.at = block
            self.statement(more, apart)
        self.scope, self.called, self.ranges = scope, called, ranges
        del self.known[known:]

    def spread(self, block: Block, diverges: bool) -> bool:
        """Note what differs between items by what is assigned in a loop; whether that was not known."""
        before, apart = len(self.divergent), diverges or any(self.differs(p) for p in block.parts)
        mores = [block.first, block.more] if isinstance(block, Repeat) else []
        for s in (*block.items, *mores):
            if isinstance(s, Block):
                self.spread(s, apart)
            elif isinstance(s, (Declare, Assign, Update)) and (apart or any(self.differs(p) for p in s.parts)):
                self.divergent.add(s.symbol if isinstance(s, Declare) else _changes(s))
        return len(self.divergent) > before

    def changed(self, s: Statement) -> None:
        """What was known of a variable is no longer known."""
        symbol = _changes(s)
        if isinstance(symbol, Var):
            self.known = [("forgotten", *g[1:]) if symbol in g[1].vars else g for g in self.known]

    def enter(self, block: Block) -> None:
        if isinstance(block, Loop):
            self.loop(block)
        if isinstance(block, If) and block.condition is not None:
            for _, x, _, end in facts(block.condition):
                self.come_in(self.expand(x), end)
        for kind, x, *rest in block.known:
            var = next(iter(x.vars), None)
            if kind == "range" and var is not None and x == var.index:
                low, high = self.ranges[var]
                self.ranges[var] = max(low, rest[0]), min(high, rest[1] - 1)
            elif kind == "between" and var is not None:
                self.between(var, *rest)
        self.known += block.known

    def come_in(self, x: Index, end: int) -> None:
        """Note which items are in a block where x < end."""
        for atom, c in x.terms:
            if atom.var in self.items and c > 0:
                first, last = self.ranges[atom.var]
                least, _ = self.interval(x - atom.var.index * c)
                self.ranges[atom.var] = first, max(first, min(last, (end - 1 - least) // c))

    def loop(self, loop: Loop) -> None:
        var, start, stop, step = loop.var, loop.start, loop.stop, loop.step
        low = self.interval(start.low)[0] if start.low is not None else var.lo
        ends = [self.interval(stop.high)[1]] if stop.high is not None else []
        ends += [stop.limit] if stop.limit is not None else []
        high = min(ends) - 1 if ends else var.hi
        limit = self.limit(stop)
        whole = loop.whole or step == 1 or ((limit or 0) % step == 0 and all(
            x is not None and divides(step, self.expand(x)) for x in (start.low, stop.high)))
        if not whole and start.low is not None and stop.high is not None:
            length = self.expand(stop.high) - self.expand(start.low)
            if not start.low.terms and not stop.high.terms:
                high = low + (high - low) // step * step
            elif limit is None and not length.terms:         # as many steps, wherever it begins
                high = min(high, self.interval(start.low)[1] + max(0, length.constant - 1) // step * step)
        elif whole:
            high -= step - 1
        self.ranges[var] = low, max(low, high)
        item = start.low.terms[0][0].var if start.low is not None and len(start.low.terms) == 1 else None
        if item in self.items and start.low == item.index and ends:            # the others do not come in
            first, last = self.ranges[item]
            self.ranges[item] = first, max(first, min(last, min(ends) - 1))
        if low < var.lo or high > var.hi:
            raise self.fail(f"{var} is taken to be in {var.lo}..{var.hi}, and is in {low}..{high}")
        if start.low is not None and stop.high is not None:
            self.between(var, start, stop, step, whole)
        elif start.low is not None:
            self.means(var, start.low, step, max(1, (high - low) // step + 1))
        self.declare(var)
        if self.meets and any(self.differs(p) for p in loop.parts):
            self.divergent.add(var)

    def between(self, var: Var, start: Bound, stop: Bound, step: int = 1, whole: bool = False) -> None:
        """Note that var counts from start to stop, in steps."""
        if start.low is not None and stop.high is not None:
            span, limit = self.expand(stop.high) - self.expand(start.low), self.limit(stop)
            most = span.hi if limit is None else min(span.hi, limit - self.interval(start.low)[0])
            self.means(var, start.low, step, max(1, (most - (step if whole else 1)) // step + 1))
            self.stops[var] = stop.high

    def limit(self, stop: Bound) -> int | None:
        """What a loop's end is not above, beside what it is the less of."""
        high = stop.high
        if high is not None and len(high.terms) == 1 and high.terms[0][1] > 0 and high.terms[0][0].var in self.limits:
            return self.limits[high.terms[0][0].var] * high.terms[0][1] + high.constant
        return stop.limit

    def statement(self, s: Statement, diverges: bool) -> None:
        self.read(s.parts)
        if isinstance(s, Declare):                           # as most
            if isinstance(s.symbol, Local):
                self.made(s.symbol, s.value)
            elif isinstance(s.symbol, Pointer):
                self.pointed(s.symbol, s.value)
            self.declare(s.symbol)
            if isinstance(s.symbol, Var):
                self.declared(s.symbol, s.bound)
            if self.meets and any(self.differs(p) for p in s.parts):
                self.divergent.add(s.symbol)
        elif isinstance(s, (Assign, Update)):
            if isinstance(s, Update):
                if isinstance(s.of, Access):
                    self.access(s.of, True)
            else:
                self.use(s.symbol)
                if isinstance(s.symbol, Local):
                    self.made(s.symbol, s.value)
                elif isinstance(s.symbol, Pointer):
                    self.pointed(s.symbol, s.value)
            if self.meets and (diverges or any(self.differs(p) for p in s.parts)):
                self.divergent.add(_changes(s))
            self.changed(s)
        elif isinstance(s, Store):
            self.stored(s)
            self.access(s.access, True)
        elif isinstance(s, Item):
            self.item(s)
        elif isinstance(s, Atomic):
            self.atomic(s)
        elif isinstance(s, Allocate):
            self.declare(s.array)
        elif isinstance(s, Break):
            if not self.loops:
                raise self.fail("no loop is around it")
        elif isinstance(s, Barrier):
            if diverges:
                raise self.fail("not all items of the work-group come to this barrier")
        elif isinstance(s, Instruct):
            self.instructed(s, diverges)

    def instructed(self, s: Instruct, diverges: bool) -> None:
        """That an instruction is given what it takes, where all items that do it together come."""
        if diverges and s.of.lanes > 1:
            raise self.fail(f"not all of the {s.of.lanes} work-items that do this together come here")
        for x, wanted in zip(s.given, s.of.given, strict=True):
            if isinstance(x, Expression):
                if wanted.count or x.type != wanted.type:
                    raise self.fail(f"{x} is {x.type}, not {wanted.type}")
                continue
            type_ = x.memory.type if isinstance(x.memory, Array) else ctype(x.memory.dtype)
            count = wanted.count if wanted.type else 16 // size_of(type_)
            if type_ != (wanted.type or type_) or x.each != count or not wanted.count:
                raise self.fail(f"{x.each} elements of {x.memory}, a {type_}, are given, not {count} of {wanted.type or 'any type'}")
        for access in s.places:
            self.access(access, True)

    def item(self, s: Item) -> None:
        kernel, axis = self.kernel, s.axis
        if kernel.group is not None and prod(kernel.group) == 1 and all(s is not other for other in kernel.body.items):
            raise self.fail("it stands within a block, where a kernel that this one becomes part of does not replace it")
        count = kernel.global_size[axis] if axis < len(kernel.global_size) else 1
        if s.of != "global":
            if kernel.local_size is None:
                raise self.fail("the work-group's size is not known")
            local = kernel.local_size[axis] if axis < len(kernel.local_size) else 1
            count = local if s.of == "local" else count // local
        self.declare(s.var)
        self.ranges[s.var] = 0, count - 1
        self.items[s.var] = s
        if s.of != "group":
            self.divergent.add(s.var)

    def declared(self, var: Var, bound: Bound | None) -> None:
        self.ranges[var] = var.lo, var.hi
        if bound is not None and bound.low is not None and bound.high is not None:
            known = tuple(self.known)
            low, high = self.interval(bound.low, known)[0], self.interval(bound.high, known)[1]
            self.ranges[var] = low, high if bound.limit is None else min(high, bound.limit)
        if bound is not None and bound.high is not None:
            self.means(var, bound.high, 1, 1)
            if bound.limit is not None:
                self.limits[var] = bound.limit
                self.early[var] = max(0, self.interval(bound.high, tuple(self.known))[1] - bound.limit)
        if self.ranges[var][0] < var.lo or self.ranges[var][1] > var.hi:
            raise self.fail(f"{var} is taken to be in {var.lo}..{var.hi}, and is in {self.ranges[var][0]}..{self.ranges[var][1]}")


def _changes(s: Statement) -> Any:
    """The variable that a statement changes."""
    symbol = s.symbol if isinstance(s, Assign) else s.of if isinstance(s, Update) else None
    return None if isinstance(symbol, Access) else symbol
