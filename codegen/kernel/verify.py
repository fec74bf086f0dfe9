"""Whether a kernel keeps its promises, proved from the objects it is made of before it runs. Start at `verify_kernel`.

Checked: variables are declared before they are used; the lanes of what a statement reads fit what it makes; every element that is read
or written lies in its buffer, from the ranges of loops and the guards; nothing is written through `const`; all items of a work-group
reach a barrier; no two work-items write one element, nor does one read what another writes, where indices are linear.

Not checked: text that nobody looks into (`Raw`: only what it says that it reads and writes), and elements that only the running program
knows (`Access.at` is None, or an index that was read and brought into range). Of a variable that changes its range is believed; what the
conditions around say of it holds until it changes. `kernel.run` checks all of that while a kernel runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tracegrad.codegen.kernel.expressions import (
    Address,
    At,
    Bits,
    Every,
    Expression,
    Held,
    Infix,
    Joined,
    Lanes,
    Load,
    Number,
    Op,
    Pointer,
    Prefix,
    Select,
    Splat,
    Spread,
    Turned,
    Vector,
    Verbatim,
    Zip,
    nodes,
)
from tracegrad.codegen.kernel.index import Atom, Index, Var, constant
from tracegrad.codegen.kernel.ir import FAULTS, Foreign, Kernel
from tracegrad.codegen.kernel.markup import plain
from tracegrad.codegen.kernel.render import PLAIN
from tracegrad.codegen.kernel.statements import (
    Access,
    Allocate,
    Array,
    Assign,
    Barrier,
    Block,
    Bound,
    Break,
    Buffer,
    Declare,
    If,
    Instruct,
    Item,
    Local,
    Loop,
    Part,
    Raw,
    Repeat,
    Statement,
    Store,
    Update,
    statements_in,
)
from tracegrad.codegen.kernel.types import size_of
from tracegrad.codegen.kernel.vectors import computed_in, ctype
from tracegrad.errors import CompilerBug

Range = tuple[int, int]
_FAR = 1 << 62
_NOT = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_FACTS = {"<": (-_FAR, 0), "<=": (-_FAR, 1), ">": (1, _FAR), ">=": (0, _FAR), "==": (0, 1)}      # of a - b, where a is so to b


def verify_kernel(kernel: Kernel) -> None:
    """Raises CompilerBug if `kernel` is wrong, with the statement and the value it computes."""
    if not isinstance(kernel, Foreign):
        _Check(kernel).run()


class _Check:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.scope: set[object] = set(kernel.parameters)
        self.ranges: dict[Var, Range] = {}                   # what the variables in scope may be
        self.lanes: tuple[Var, int] | None = None            # of the access that is looked at: along what, and how many behind the first
        self.meaning: dict[Var, tuple[Index, int, int]] = {} # a loop's variable: start + step * (0 .. count - 1); a bound: itself
        self.divergent: set[object] = set()                  # what differs between the items of a work-group
        self.items: dict[Var, Item] = {}
        self.touched: dict[Buffer, list[Form | None]] = {}
        self.stops: dict[Var | None, Index] = {}
        self.limits: dict[Var | None, int] = {}              # a bound's that is the less of its meaning and of this
        self.early: dict[Var | None, int] = {}               # by how much that may be less than its meaning
        self.step_of: dict[Var, Var] = {}
        self.known: list[tuple[Any, ...]] = []               # what holds in the open blocks
        self.never = False
        self.loops = 0                                       # how many are open
        self.at: Statement | Block = kernel.body

    def fail(self, what: str) -> CompilerBug:
        statement = self.at
        node = getattr(statement, "node", None)
        text = plain(PLAIN.statement(statement) if isinstance(statement, Statement) else PLAIN.head(statement))
        return CompilerBug(f"verify_kernel: in {self.kernel.entry}, `{text}`{f' (for {node!r})' if node is not None else ''}: {what}")

    def run(self) -> None:
        self.block(self.kernel.body, False)
        if prod(self.kernel.global_size) > 1:
            for buffer, forms in self.touched.items():
                if buffer.access != "const" and buffer.ref is not FAULTS:
                    self.apart(buffer, forms)

    # -- the walk

    def block(self, block: Block, diverges: bool) -> None:
        """All statements of a block, in order; diverges: not all items of a work-group need to be here."""
        before, ranges = set(self.scope), dict(self.ranges)
        for item in block.items:
            self.at = item
            if isinstance(item, Block):
                self.inner(item, diverges)
            else:
                self.statement(item, diverges)
        self.scope, self.ranges = before, ranges

    def inner(self, block: Block, diverges: bool) -> None:
        scope, ranges, known = set(self.scope), dict(self.ranges), len(self.known)
        repeats = isinstance(block, (Loop, Repeat))
        if repeats:
            inside = list(statements_in(block))
            for statement in inside:
                self.changed(statement)
            if any(isinstance(s, Barrier) for s in inside):  # what differs in one turn differs in those before it, too
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
        apart = diverges or any(self.differs(p) for p in block.parts)
        if isinstance(block, (If, Repeat)) and block.condition is not None:
            self.known += facts(block.condition)
        self.enter(block)
        self.loops += repeats
        self.block(block, apart)
        self.loops -= repeats
        if isinstance(block, Repeat) and block.more is not None:
            self.at = block
            self.statement(block.more, apart)
        self.scope, self.ranges = scope, ranges
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
            x is not None and _divides(step, self.expand(x)) for x in (start.low, stop.high)))
        if not whole and start.low is not None and stop.high is not None and not start.low.terms and not stop.high.terms:
            high = low + (high - low) // step * step
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
            self.meaning[var] = start.low, step, max(1, (high - low) // step + 1)
        self.scope.add(var)
        if any(self.differs(p) for p in loop.parts):
            self.divergent.add(var)

    def between(self, var: Var, start: Bound, stop: Bound, step: int = 1, whole: bool = False) -> None:
        """Note that var counts from start to stop, in steps."""
        if start.low is not None and stop.high is not None:
            span, limit = self.expand(stop.high) - self.expand(start.low), self.limit(stop)
            most = span.hi if limit is None else min(span.hi, limit - self.interval(start.low)[0])
            self.meaning[var] = start.low, step, max(1, (most - (step if whole else 1)) // step + 1)
            self.stops[var] = stop.high

    def limit(self, stop: Bound) -> int | None:
        """What a loop's end is not above, beside what it is the less of."""
        high = stop.high
        if high is not None and len(high.terms) == 1 and high.terms[0][1] > 0 and high.terms[0][0].var in self.limits:
            return self.limits[high.terms[0][0].var] * high.terms[0][1] + high.constant
        return stop.limit

    def statement(self, s: Statement, diverges: bool) -> None:
        self.read(s.parts)
        if isinstance(s, Item):
            self.item(s)
        elif isinstance(s, Declare):
            if isinstance(s.symbol, Local):
                self.made(s.symbol, s.value)
            elif isinstance(s.symbol, Pointer):
                self.pointed(s.symbol, s.value)
            self.scope.add(s.symbol)
            if isinstance(s.symbol, Var):
                self.declared(s.symbol, s.bound)
            if any(self.differs(p) for p in s.parts):
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
            if diverges or any(self.differs(p) for p in s.parts):
                self.divergent.add(_changes(s))
            self.changed(s)
        elif isinstance(s, Store):
            self.stored(s)
            self.access(s.access, True)
        elif isinstance(s, Allocate):
            self.scope.add(s.array)
        elif isinstance(s, Break):
            if not self.loops:
                raise self.fail("no loop is around it")
        elif isinstance(s, Barrier):
            if diverges:
                raise self.fail("not all items of the work-group come to this barrier")
        elif isinstance(s, Instruct):
            self.instructed(s, diverges)
        elif isinstance(s, Raw):
            for written in s.writes:
                if isinstance(written, Access):
                    self.access(written, True)
                elif isinstance(written, Buffer) and written.access == "const":
                    raise self.fail(f"{written} is const")
                else:
                    self.use(written)
            self.scope.update(s.defines)

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
        for access in s.writes:
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
        self.scope.add(s.var)
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
            self.meaning[var] = bound.high, 1, 1
            if bound.limit is not None:
                self.limits[var] = bound.limit
                self.early[var] = max(0, self.interval(bound.high, tuple(self.known))[1] - bound.limit)
        if self.ranges[var][0] < var.lo or self.ranges[var][1] > var.hi:
            raise self.fail(f"{var} is taken to be in {var.lo}..{var.hi}, and is in {self.ranges[var][0]}..{self.ranges[var][1]}")

    # -- what a statement reads

    def use(self, symbol: object) -> None:
        if symbol not in self.scope:
            raise self.fail(f"{symbol} is used before it is declared")

    def read(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if isinstance(part, Expression):
                self.expression(part)
            elif isinstance(part, Access):
                self.access(part, False)
            elif isinstance(part, Index):
                for var in part.vars:
                    self.use(var)
            else:
                self.use(part)

    def differs(self, part: Part) -> bool:
        if isinstance(part, Expression):
            return not part.vars.isdisjoint(self.divergent) or any(
                self.differs(p) for x in nodes(part) if isinstance(x, Verbatim) for p in x.reads)
        if isinstance(part, Access):
            return part.at is None or self.differs(part.at)
        if isinstance(part, Index):
            return not part.vars.isdisjoint(self.divergent)
        return part in self.divergent

    # -- types

    def expression(self, x: Expression) -> None:
        """That variables are declared, elements are there, and types agree."""
        known = len(self.known)
        for k, part in enumerate(x.operands):
            if k and x.lanes == 1 and isinstance(x, (Infix, Select)):      # C looks at it only where the first is so
                del self.known[known:]
                if isinstance(x, Select) or x.sign in ("&&", "||"):
                    self.known += facts(x.parts[0], k == 1 if isinstance(x, Select) else x.sign == "&&")
            self.expression(part)
        del self.known[known:]
        if isinstance(x, (Local, Number, Pointer)):
            self.use(x)
        elif isinstance(x, Address):
            self.use(x.memory)
            self.read((x.base,))
        elif isinstance(x, At):
            for var in x.index.vars:
                self.use(var)
        elif isinstance(x, Load):
            self.access(x.access, False)
        elif isinstance(x, Verbatim):
            self.read(x.reads)
        if x.lanes > 1:
            self.vector(x)
        elif not isinstance(x, (Vector, Lanes)) and any(part.lanes > 1 for part in x.operands):
            raise self.fail(f"{x} is one value, of vectors")

    def vector(self, x: Expression) -> None:
        """That a vector's operands are vectors of as many lanes, or single values that become some."""
        wide = [part for part in x.operands if part.lanes > 1]
        for part in wide:
            if part.lanes != (x.lanes // 2 if isinstance(x, (Zip, Joined)) else x.lanes) and not isinstance(x, Lanes):
                raise self.fail(f"{part.lanes} lanes of {part} make {x.lanes}")
        sizes = {_size(part) for part in wide}
        if isinstance(x, Select):
            condition, a, b = x.parts
            if condition.lanes > 1 and _size(condition) != _size(x):
                raise self.fail(f"the mask {condition} has lanes of {_size(condition)} bytes, what it is for of {_size(x)}")
            if a.type != b.type:
                raise self.fail(f"{a} is {a.type}, and {b} is {b.type}")
        elif isinstance(x, (Every, Turned)):
            if len({part.type for part in x.parts}) > 1:
                raise self.fail(f"{x} is made of {', '.join(str(part.type) for part in x.parts)}")
        elif isinstance(x, (Infix, Zip, Joined)):
            a, b = x.parts
            if len(wide) == 2 and a.type != b.type:
                raise self.fail(f"{a} is {a.type}, and {b} is {b.type}")
        elif isinstance(x, Op):
            if len(sizes | {_size(x)}) > 1:
                raise self.fail(f"{x} is of lanes of {', '.join(map(str, sorted(sizes | {_size(x)})))} bytes")
        elif isinstance(x, (Bits, Held)):
            if sizes and sizes != {_size(x)}:
                raise self.fail(f"{x} is {x.type}, made of lanes of {sizes.pop()} bytes")
        elif isinstance(x, (Splat, Spread, Vector)) and wide:
            raise self.fail(f"{x} is made of vectors")

    def pointed(self, pointer: Pointer, value: Expression) -> None:
        """That a pointer points to what it is said to point to."""
        if isinstance(value, Pointer):
            right = set(value.of) <= set(pointer.of) and value.base == pointer.base and value.size >= pointer.size
        else:
            right = isinstance(value, Address) and value.memory in pointer.of and value.base == pointer.base
        if not right:
            raise self.fail(f"{value} is not what {pointer} may point to")

    def made(self, symbol: Local, value: Expression) -> None:
        """That a variable is of the type of its value."""
        if symbol.lanes != value.lanes:
            raise self.fail(f"{value.lanes} lanes of {value} make {symbol.lanes}")
        if symbol.lanes > 1 and symbol.type != value.type:
            raise self.fail(f"{symbol} is {symbol.type}, and its value is {value.type}")

    def stored(self, s: Store) -> None:
        access, value, memory = s.access, s.value, s.access.memory
        lanes = access.lanes * access.each * (memory.lanes if isinstance(memory, Array) else 1)
        if value.lanes not in (1, lanes):
            raise self.fail(f"{value.lanes} lanes are stored as {lanes}")
        if value.lanes > 1:
            wanted = ctype(computed_in(memory.dtype), value.lanes) if isinstance(memory, Buffer) else f"{memory.type}{value.lanes}"
            wanted = memory.type if isinstance(memory, Array) and memory.lanes > 1 else wanted
            if value.type != wanted:
                raise self.fail(f"a {value.type} is stored as {wanted}")

    # -- bounds

    def access(self, access: Access, writes: bool) -> None:
        memory, at = access.memory, access.at
        self.use(memory)
        if writes and access.place is not None:
            self.expression(access.place)
        if isinstance(memory, Pointer):
            for buffer in memory.of:
                self.access(Access(buffer, None if at is None else memory.base + at, guards=access.guards), writes)
            memory = Array(memory.name, "", memory.size, False)          # and it stays where the pointer says
            if at is None:
                return
        if isinstance(memory, Buffer):
            if writes and memory.access == "const":
                raise self.fail(f"{memory} is const")
        if at is None:
            if isinstance(memory, Buffer):
                self.touched.setdefault(memory, []).append(None)
            return
        for var in at.vars:
            self.use(var)
        if isinstance(memory, Buffer):
            self.remember(access, writes)
        held = None
        if access.lane is not None and access.lanes > 1 and access.lane in self.ranges:
            held = low, high = self.ranges[access.lane]
            self.lanes = access.lane, access.lanes - 1
            self.ranges[access.lane] = low, high + access.lanes - 1
            if high + access.lanes - 1 > access.lane.hi:
                raise self.fail(f"the lanes of {access.lane} are taken to be in {access.lane.lo}..{access.lane.hi}, and go to "
                                f"{high + access.lanes - 1}")
        self.never = False
        low, high = self.interval(at, (*access.guards, *self.known))
        high += access.each - 1
        if held is not None and access.lane is not None:
            self.ranges[access.lane], self.lanes = held, None
        if self.never:                                       # the guards do not hold here
            return
        if (low < 0 or (memory.size is not None and high >= memory.size)) and _guarded(at, access.guards):
            low, high = at.lo, at.hi + access.each - 1       # what a guard says of another form of the index: believed
        if low < 0 or (memory.size is not None and high >= memory.size):
            raise self.fail(f"elements {low}..{high} of {memory} are {'written' if writes else 'read'}, of {memory.size} that it has")

    def interval(self, x: Index, guards: tuple[tuple[Any, ...], ...] = ()) -> Range:
        """What x may be, given the ranges of variables, where `guards` hold."""
        low = high = x.constant
        for atom, c in x.terms:
            if atom.var is not None:
                a, b = self.ranges.get(atom.var, (atom.lo, atom.hi))
            else:
                assert atom.base is not None
                a, b = self.interval(atom.base, guards)
                if atom.kind == "div":
                    a, b = a // atom.divisor, b // atom.divisor
                elif atom.kind == "mod":
                    a, b = self.remainder(atom.base, atom.divisor, a, b)
            low, high = low + min(a * c, b * c), high + max(a * c, b * c)
        for kind, g, *rest in guards:
            if kind == "range":
                for times in _times(x, g):                   # x is the sum of what the guard is about, so often, and of the rest
                    below, above = self.interval(x.opened() - g.opened() * times)
                    low, high = max(low, rest[0] * times + below), min(high, (rest[1] - 1) * times + above)
        together = self.together(x, guards)
        if together is not None:
            low, high = max(low, together[0]), min(high, together[1])
        self.never |= low > high
        return low, max(low, high)

    def together(self, x: Index, guards: tuple[tuple[Any, ...], ...]) -> Range | None:
        """What x may be where several guards are about parts of it."""
        rest, low, high, parts = x.opened(), 0, 0, 0
        for kind, g, *ends in guards:
            have, wanted = dict(rest.terms), g.opened()
            (atom, c), *_ = wanted.terms or ((None, 0),)
            times = have[atom] // c if kind == "range" and atom in have else 0
            if times > 0 and all(have.get(a) == k * times for a, k in wanted.terms):
                rest, parts = rest - wanted * times, parts + 1
                low, high = low + ends[0] * times, high + (ends[1] - 1) * times
        if parts < 2:
            return None
        below, above = self.interval(rest)
        return low + below, high + above

    def remainder(self, x: Index, divisor: int, low: int, high: int) -> Range:
        """What x % divisor may be, where x is in low..high."""
        if low // divisor == high // divisor:
            return low % divisor, high % divisor
        if self.lanes is not None:                           # vectors that begin at multiples of the divisor are inside of one
            lane, more = self.lanes
            if x == lane.index + x.constant and lane.multiple % divisor == 0 and x.constant % divisor + more < divisor:
                return x.constant % divisor, x.constant % divisor + more
        return 0, divisor - 1

    # -- work-items apart

    def expand(self, x: Index) -> Index:
        """x in terms of work-items' numbers and of steps of loops; the latter are variables of their own."""
        out = constant(x.constant)
        for atom, c in x.terms:
            if atom.var is None or atom.var not in self.meaning:
                out = out + Index(((atom, 1),), 0) * c
                continue
            start, step, count = self.meaning[atom.var]
            out = out + (self.expand(start) + self.steps(atom.var, count) * step) * c
        return out

    def steps(self, var: Var, count: int) -> Index:
        found = self.step_of.get(var)
        if found is None or found.hi != count - 1:
            found = self.step_of[var] = Var(var.name, count)
        return found.index

    def remember(self, access: Access, writes: bool) -> None:
        """Note which elements of a buffer each work-item touches, where that is linear."""
        assert isinstance(access.memory, Buffer)
        form = self.form(access, writes)
        self.touched.setdefault(access.memory, []).append(form)

    def form(self, access: Access, writes: bool) -> Form | None:
        """The elements as sums (None: not linear in the work-items' numbers)."""
        assert access.at is not None
        alone = frozenset(v for v in self.items if self.ranges[v][0] == self.ranges[v][1])
        form = Form(writes, alone, plain(PLAIN.statement(self.at)) if isinstance(self.at, Statement) else "")
        x = access.at
        for held, factor in x.terms:
            if held.kind != "bounded" or held.base is None or factor < 0 or not self.holds(held.base, held.lo, held.hi, access.guards):
                continue
            # Where a vector begins, if that is known to leave room for the rest of it: what follows adds the rest.
            room = held.hi - (access.each - 1) // factor
            high = room if self.holds(held.base, held.lo, room, access.guards) else held.hi
            among: list[Term] = []                           # terms that a guard bounds all together
            x = x - Index(((held, 1),), 0) * factor
            inner = self.expand(held.base.opened())
            form.constant += factor * inner.constant
            ranges = [self.ranges[part.var] if part.var in self.items and part.var is not None else (part.lo, part.hi)
                      for part, _ in inner.terms]
            least = inner.constant + sum(k * first for (_, k), (first, _) in zip(inner.terms, ranges, strict=True))
            for (part, k), (first, last) in zip(inner.terms, ranges, strict=True):
                if k < 0 or (part.var not in self.items and not part.vars.isdisjoint(self.items)):
                    return None
                form.constant += factor * k * first
                most = min(last - first, max(0, high - least) // k)       # more of it alone would be too much
                if not most and part.var is not None:
                    form.alone |= {part.var}
                among.append(Term(factor * k, most, part.var if part.var in self.items else None))
            form.sums.append(([t for t in among if t.most], factor * (high - held.lo), [], factor * (high - held.lo)))
        x = x.opened()
        form.constant += x.constant
        for atom, c in x.terms:
            lanes = access.lanes if atom.var is not None and atom.var is access.lane else 1
            if access.lane is not None and access.lanes > 1 and access.lane in atom.vars and lanes == 1:
                return None
            low, high = self.ranges.get(atom.var, (atom.lo, atom.hi)) if atom.var is not None else (atom.lo, atom.hi)
            inner = self.expand(Index(((atom, 1),), 0))
            stop = self.expand(self.stops[atom.var]) if atom.var in self.stops else constant(0)
            common = dict(stop.terms)
            shared: list[Term] = []                          # where its part begins; the rest stays below the part's end
            terms = [Term(abs(c), lanes - 1, None)]
            rest_most = abs(c) * (high - low + lanes - 1)
            if stop.terms:
                rest = inner - Index(tuple((a, k) for a, k in inner.terms if common.get(a) == k), 0)
                end = stop - Index(tuple((a, k) for a, k in inner.terms if common.get(a) == k), 0)
                if not end.terms:
                    rest_most = min(rest_most, abs(c) * (end.constant - 1 - rest.constant))
            form.constant += c * inner.constant + min(0, c * (lanes - 1))
            early = self.earlier(atom) if any(part.var in self.items for part, _ in inner.terms) else 0
            if early:                                        # where an item's tile begins that must not go beyond the end
                form.constant -= c * early
                terms.append(Term(abs(c), early, None))
                rest_most += abs(c) * early
            for part, k in inner.terms:
                first, last = self.interval(Index(((part, 1),), 0), (*access.guards, *self.known))
                if part.var in self.items:
                    first, last = self.ranges[part.var]
                elif not part.vars.isdisjoint(self.items) or not self.expanded(part.vars):
                    return None
                form.constant += c * k * first + min(0, c * k * (last - first))
                term = Term(abs(c * k), last - first, part.var if part.var in self.items else None)
                (shared if common.get(part) == k else terms).append(term)
            form.sums.append(([t for t in terms if t.most], rest_most, [t for t in shared if t.most], abs(c) * (high - low + lanes - 1)))
        if access.each > 1:
            form.sums.append(([Term(1, access.each - 1, None)], access.each - 1, [], access.each - 1))
        return form

    def earlier(self, atom: Atom) -> int:
        """By how much a variable may be less than it is taken to mean: 0 where a test tells. (A loop that begins early is empty.)"""
        var = atom.var
        if var is None or not self.early.get(var, 0):
            return 0
        less = var.index - self.meaning[var][0]
        return 0 if any(g[0] == "range" and g[1] == less and g[2:] == (0, 1) for g in self.known) else self.early[var]

    def holds(self, x: Index | None, low: int, high: int, guards: tuple[tuple[Any, ...], ...]) -> bool:
        """Whether x is in low..high where the guards hold."""
        if x is None:
            return False
        never = self.never
        least, most = self.interval(x, (*guards, *self.known))
        self.never = never
        return low <= least and most <= high

    def expanded(self, vars: frozenset[Var]) -> bool:
        """Whether a quotient or remainder of these has nothing to do with the number of the work-item."""
        return all(v not in self.meaning or self.expand(v.index).vars.isdisjoint(self.items) for v in vars)

    def apart(self, buffer: Buffer, forms: list[Form | None]) -> None:
        """That no two work-items meet at an element of a buffer that one of them writes."""
        known = [f for f in forms if f is not None]
        where = f"verify_kernel: in {self.kernel.entry}, "
        if not any(f.writes for f in known):
            return
        several = self.several()
        for f in known:
            if f.writes and any(v not in f.numbers and v not in f.alone for v in several):
                raise CompilerBug(f"{where}`{f.text}`: several work-items write the same element of {buffer}")
        numbers = known[0].numbers
        if not numbers or len(known) < len(forms) or any(f.numbers != numbers for f in known):
            return                                           # not linear, or not of one form: nothing is proved
        for group in _overlapping([(f.reach(1 << 62, []), f) for f in known]):
            self.determined(buffer, group)

    def determined(self, buffer: Buffer, known: list[Form]) -> None:
        """That an element tells which work-item's it is."""
        if not any(f.writes for f in known):
            return
        numbers, where = known[0].numbers, f"verify_kernel: in {self.kernel.entry}, "
        # An element tells which work-item's it is if each step, of work-items or larger, is beyond all smaller ones together.
        least = min(numbers.values())
        steps = {t.step for f in known for t in f.terms if t.step >= least}
        far = sorted(steps - set(numbers.values()), reverse=True)
        for step in steps:
            for near in _overlapping([(f.reach(step + 1, far), f) for f in known]):        # what larger steps keep apart is apart
                ends = [f.reach(step, far) for f in near]
                if step <= max(high for _, high in ends) - min(low for low, _ in ends) or any(f.twice(step) for f in near):
                    texts = ", ".join(dict.fromkeys(f"`{f.text}`" for f in near))
                    raise CompilerBug(f"{where}two work-items may meet at an element of {buffer}: {texts}")

    def several(self) -> list[Var]:
        """The numbers that tell work-items from each other."""
        found = []
        for axis, n in enumerate(self.kernel.global_size):
            if n == 1:
                continue
            local = self.kernel.local_size[axis] if self.kernel.local_size is not None else 1
            wanted = [of for of, count in (("group", n // local), ("local", local)) if count > 1]
            here = {s.of: v for v, s in self.items.items() if s.axis == axis}
            if "global" in here:
                found.append(here["global"])
            elif all(of in here for of in wanted):
                found += [here[of] for of in wanted]
            else:
                raise CompilerBug(f"verify_kernel: {self.kernel.entry} has {n} work-items along dimension {axis}, and none asks which")
        return found


class Term(NamedTuple):
    """0..most times `step` elements; number: the work-item's number that it counts, if any."""

    step: int
    most: int
    number: Var | None


class Form:
    """The elements that a statement touches: a constant and sums of terms, of each of which its range is known, too.

    alone: the numbers of which there is one only where the statement is.
    """

    def __init__(self, writes: bool, alone: frozenset[Var], text: str) -> None:
        self.writes, self.alone, self.text, self.constant = writes, alone, text, 0
        self.sums: list[tuple[list[Term], int, list[Term], int]] = []     # terms, their most; where the part begins; the most of all

    @property
    def terms(self) -> list[Term]:
        return [t for terms, _, shared, _ in self.sums for t in (*terms, *shared)]

    @property
    def numbers(self) -> dict[Var, int]:
        return {t.number: t.step for t in self.terms if t.number is not None}

    def reach(self, step: int, far: list[int]) -> Range:
        """From where to where the terms smaller than `step` go; far: steps that the constant may hold, largest first."""
        first = self.constant
        for other in far:
            if other >= step:
                first %= other
        def below(terms: list[Term]) -> int:
            return sum(t.step * t.most for t in terms if t.step < step)

        return first, first + sum(min(most, min(rest, below(terms)) + below(shared)) for terms, rest, shared, most in self.sums)

    def twice(self, step: int) -> bool:
        """Whether a work-item's number and something else both go in steps of so many."""
        found = [t.number is not None for t in self.terms if t.step == step]
        return len(found) > 1 and any(found)


def _overlapping(reaches: Sequence[tuple[Range, Form]]) -> list[list[Form]]:
    """Those that may touch the same elements, together. reaches: from where to where each goes."""
    groups: list[list[Form]] = []
    end = -1
    for (low, high), form in sorted(reaches, key=lambda reach: reach[0]):
        if not groups or low > end:
            groups.append([])
            end = high
        groups[-1].append(form)
        end = max(end, high)
    return groups


def facts(x: Expression, holds: bool = True) -> list[tuple[Any, ...]]:
    """What a condition says of indices where it holds, or (holds=False) where it does not."""
    if isinstance(x, Prefix) and x.sign == "!":
        return facts(x.parts[0], not holds)
    if not isinstance(x, Infix) or x.lanes > 1:
        return []
    a, b = x.parts
    if x.sign in ("&&", "||"):
        return facts(a, holds) + facts(b, holds) if holds == (x.sign == "&&") else []
    sign = x.sign if holds else _NOT.get(x.sign, "")
    if sign not in _FACTS or not isinstance(a, At) or not isinstance(b, At):
        return []
    return [("range", a.index - b.index, *_FACTS[sign])]


def _changes(s: Statement) -> Any:
    """The variable that a statement changes."""
    symbol = s.symbol if isinstance(s, Assign) else s.of if isinstance(s, Update) else None
    return None if isinstance(symbol, Access) else symbol


def _times(x: Index, g: Index) -> set[int]:
    """How often g may be a part of x."""
    have = dict(x.opened().terms)
    return {1, *(have[a] // c for a, c in g.opened().terms if a in have and have[a] // c > 1 and have[a] % c == 0)}


def _guarded(x: Index, guards: tuple[tuple[Any, ...], ...]) -> bool:
    """Whether guards are about the same variables as all that is said to be in a range."""
    said = [atom.vars for atom in x.atoms() if atom.kind == "bounded"]
    return bool(said) and all(any(not vars.isdisjoint(g[1].vars) for g in guards) for vars in said)


def _divides(step: int, x: Index) -> bool:
    return x.constant % step == 0 and all(c % step == 0 for _, c in x.terms)


def _size(x: Expression) -> int:
    """Bytes of a lane."""
    return x.mask if x.dtype.kind == "b" else computed_in(x.dtype).itemsize
