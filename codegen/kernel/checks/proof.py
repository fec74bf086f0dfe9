"""What is known of a kernel at a statement: its variables, their ranges, the conditions around. Start at `Proof.interval`."""

from __future__ import annotations

from math import gcd
from typing import Any

from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.codegen.kernel.ir.expressions import At, Expression, Infix, Prefix
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.render import PLAIN
from tracegrad.codegen.kernel.ir.statements import Block, Item, Statement
from tracegrad.codegen.kernel.text.markup import plain
from tracegrad.errors import CompilerBug

Range = tuple[int, int]
_FAR = 1 << 62
_NOT = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_FACTS = {"<": (-_FAR, 0), "<=": (-_FAR, 1), ">": (1, _FAR), ">=": (0, _FAR), "==": (0, 1)}      # of a - b, where a is so to b


class Proof:
    """The state of a proof. `fail` makes the error that says where it ends."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.scope: set[object] = set(kernel.parameters)
        self.called: dict[str, object] = {p.name: p for p in kernel.parameters}      # which of them a name means here
        self.ranges: dict[Var | None, Range] = {}            # what the variables in scope may be
        self.lanes: tuple[Var, int] | None = None            # of the access that is looked at: along what, and how many behind the first
        self.meaning: dict[Var, tuple[Index, int, int]] = {} # a loop's variable: start + step * (0 .. count - 1); a bound: itself
        self.meant: dict[Var | None, Index] = {}             # what `expand` has found of these, until one of them means something else
        self.meets = kernel.meets                            # else nobody asks what is divergent
        self.divergent: set[object] = set()                  # what differs between the items of a work-group
        self.items: dict[Var, Item] = {}
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
        text = plain(statement.c(PLAIN))
        return CompilerBug(f"verify_kernel: in {self.kernel.entry}, `{text}`{f' (for {node!r})' if node is not None else ''}: {what}")

    def interval(self, x: Index, guards: tuple[tuple[Any, ...], ...] = (), enough: Range | None = None) -> Range:
        """What x may be, given the ranges of variables, where `guards` hold; looked at no further where it is known to be in `enough`."""
        low = high = x.constant
        linear = True
        for atom, c in x.terms:
            if atom.var is not None:
                a, b = self.ranges.get(atom.var, (atom.lo, atom.hi))
            else:
                linear = False
                assert atom.base is not None
                a, b = self.interval(atom.base, guards)
                if atom.kind == "div":
                    a, b = a // atom.divisor, b // atom.divisor
                elif atom.kind == "mod":
                    a, b = self.remainder(atom.base, atom.divisor, a, b)
            a, b = a * c, b * c
            low, high = (low + a, high + b) if a <= b else (low + b, high + a)
        if not guards or (enough is not None and enough[0] <= low <= high <= enough[1]):
            if low > high:
                self.never, high = True, low
            return low, high
        opened = x.opened()
        alone = (low, max(low, high)) if linear else self.interval(opened)           # where no guard is known
        for kind, g, *rest in guards:
            if kind != "range":
                continue
            wanted = g.opened()
            if wanted.vars.isdisjoint(opened.vars):          # the same as below, without a difference to be made
                least, most = self.interval(wanted)
                if (below := rest[0] + alone[0] - most) > low:
                    low = below
                if (above := rest[1] - 1 + alone[1] - least) < high:
                    high = above
                continue
            plain = linear and all(atom.var is not None for atom, _ in wanted.terms)
            for times in _times(opened, wanted):             # x is the sum of what the guard is about, so often, and of the rest
                below, above = self.difference(opened, wanted, times) if plain else self.interval(opened - wanted * times)
                low, high = max(low, rest[0] * times + below), min(high, (rest[1] - 1) * times + above)
            if enough is not None and enough[0] <= low <= high <= enough[1]:
                return low, high
        if len(guards) > 1 and (together := self.together(x, guards)) is not None:
            low, high = max(low, together[0]), min(high, together[1])
        self.never |= low > high
        return low, max(low, high)

    def difference(self, x: Index, y: Index, times: int) -> Range:
        """What x - y * times may be, both sums of variables."""
        sums = dict(x.terms)
        for atom, c in y.terms:
            sums[atom] = sums.get(atom, 0) - c * times
        low = high = x.constant - y.constant * times
        for atom, c in sums.items():
            a, b = self.ranges.get(atom.var, (atom.lo, atom.hi))
            low, high = (low + a * c, high + b * c) if c >= 0 else (low + b * c, high + a * c)
        return low, high

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
        lane, more = self.lanes or (None, 0)
        if lane is None or lane not in x.vars:
            more = 0
        elif x != lane.index + x.constant:
            return 0, divisor - 1
        elif lane.multiple % divisor == 0 and x.constant % divisor + more < divisor:
            return x.constant % divisor, x.constant % divisor + more             # vectors that begin at multiples of it are inside of one
        first = self.expand(x)                               # of a loop in steps, which leave out some
        step = gcd(divisor, (first - first.constant).multiple)
        least = first.constant % step
        return (least, divisor - step + least + more) if least + more < step else (0, divisor - 1)

    def holds(self, x: Index | None, low: int, high: int, guards: tuple[tuple[Any, ...], ...]) -> bool:
        """Whether x is in low..high where the guards hold."""
        if x is None:
            return False
        never = self.never
        least, most = self.interval(x, (*guards, *self.known), (low, high))
        self.never = never
        return low <= least and most <= high

    def expand(self, x: Index) -> Index:
        """x in terms of work-items' numbers and of steps of loops; the latter are variables of their own."""
        meaning = self.meaning
        meant = [(atom.var, c) for atom, c in x.terms if atom.var is not None and atom.var in meaning]
        if not meant:
            return x
        out = Index(tuple([(atom, c) for atom, c in x.terms if atom.var is None or atom.var not in meaning]), x.constant)
        for var, c in meant:
            found = self.meant.get(var)
            if found is None:
                start, step, count = meaning[var]
                found = self.meant[var] = self.expand(start) + self.steps(var, count) * step
            out = out + found * c
        return out

    def means(self, var: Var, start: Index, step: int, count: int) -> None:
        """Note what a variable means from here on."""
        self.meaning[var] = start, step, count
        self.meant.clear()

    def steps(self, var: Var, count: int) -> Index:
        found = self.step_of.get(var)
        if found is None or found.hi != count - 1:
            found = self.step_of[var] = Var(var.name, count)
        return found.index

    def expanded(self, vars: frozenset[Var]) -> bool:
        """Whether a quotient or remainder of these has nothing to do with the number of the work-item."""
        return all(v not in self.meaning or self.expand(v.index).vars.isdisjoint(self.items) for v in vars)


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


def _times(x: Index, g: Index) -> set[int]:
    """How often g may be a part of x."""
    have = dict(x.terms)
    return {1, *[have[a] // c for a, c in g.terms if a in have and have[a] // c > 1 and have[a] % c == 0]}


def guarded(x: Index, guards: tuple[tuple[Any, ...], ...]) -> bool:
    """Whether guards are about the same variables as all that is said to be in a range."""
    said = [atom.vars for atom in x.atoms() if atom.kind == "bounded"]
    return bool(said) and all(any(not vars.isdisjoint(g[1].vars) for g in guards) for vars in said)


def divides(step: int, x: Index) -> bool:
    """Whether an index is a multiple of `step`, term by term."""
    return x.constant % step == 0 and all(c % step == 0 for _, c in x.terms)
