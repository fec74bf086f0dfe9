"""That no two work-items meet at an element that one of them writes. Start at `Races.apart`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tracegrad.codegen.kernel.checks.proof import Proof, Range
from tracegrad.codegen.kernel.index.index import Atom, Index, Var, constant
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.render import PLAIN
from tracegrad.codegen.kernel.ir.statements import Access, Block, Buffer, Statement
from tracegrad.codegen.kernel.text.markup import plain
from tracegrad.errors import CompilerBug


class Term(NamedTuple):
    """0..most times `step` elements; number: the work-item's number that it counts, if any."""

    step: int
    most: int
    number: Var | None


class Form:
    """The elements that a statement touches: a constant and sums of terms, of each of which its range is known, too.

    alone: the numbers of which there is one only where the statement is.
    """

    def __init__(self, writes: bool, alone: frozenset[Var], at: Statement | Block) -> None:
        self.writes, self.alone, self.at, self.constant = writes, alone, at, 0
        self.sums: list[tuple[list[Term], int, list[Term], int]] = []     # terms, their most; where the part begins; the most of all

    @property
    def text(self) -> str:
        """The statement, for who fails."""
        return plain(self.at.c(PLAIN)) if isinstance(self.at, Statement) else ""

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


class Races(Proof):
    """Which elements of a buffer each work-item touches, where that is linear in its number."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.touched: dict[Buffer, list[Form | None]] = {}
        self.atomics: set[Buffer] = set()                    # what work-items may change together
        self.several_items = prod(kernel.global_size) > 1

    def remember(self, access: Access, writes: bool) -> None:
        """Note which elements of a buffer each work-item touches, where that is linear. (Of what all only read, nothing is asked.)"""
        memory = access.memory
        assert isinstance(memory, Buffer)
        asked = self.several_items and memory.access != "const"
        if not asked and memory in self.touched:
            return
        for kind, x, *rest in self.known:
            if kind == "range" and self.outside(x, *rest):
                return                                       # behind a test that fails: nobody comes here
        self.touched.setdefault(memory, []).append(self.form(access, writes) if asked else None)

    def outside(self, x: Index, low: int, stop: int) -> bool:
        """Whether what a test asks to be in low ... stop - 1 never is, by the ranges of its variables."""
        least = most = x.constant
        for atom, c in x.terms:
            ends = self.ranges.get(atom.var, (atom.lo, atom.hi)) if atom.var is not None else (atom.lo, atom.hi)
            least, most = least + min(c * e for e in ends), most + max(c * e for e in ends)
        return least >= stop or most < low

    def form(self, access: Access, writes: bool) -> Form | None:
        """The elements as sums (None: not linear in the work-items' numbers)."""
        assert access.at is not None
        alone = frozenset(v for v in self.items if self.ranges[v][0] == self.ranges[v][1])
        form = Form(writes, alone, self.at)
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
            most = factor * max(0, high - least)
            form.sums.append(([t for t in among if t.most], most, [], most))
        x, known = x.opened(), (*access.guards, *self.known)
        form.constant += x.constant
        for atom, c in x.terms:
            lanes = access.lanes if atom.var is not None and atom.var is access.lane else 1
            if access.lane is not None and access.lanes > 1 and access.lane in atom.vars and lanes == 1:
                return None
            low, high = self.ranges.get(atom.var, (atom.lo, atom.hi)) if atom.var is not None else (atom.lo, atom.hi)
            inner = self.meant.get(atom.var) or self.expand(Index(((atom, 1),), 0))
            stop = self.expand(self.stops[atom.var]) if atom.var in self.stops else constant(0)
            common = dict(stop.terms)
            shared: list[Term] = []                          # where its part begins; the rest stays below the part's end
            terms = [Term(abs(c), lanes - 1, None)]
            begin = c * inner.constant
            early = self.earlier(atom) if any(part.var in self.items for part, _ in inner.terms) else 0
            if early:                                        # where an item's tile begins that must not go beyond the end
                begin += min(0, -c * early)
                terms.append(Term(abs(c), early, None))
            for part, k in inner.terms:
                if part.var in self.items and part.var is not None:
                    first, last = self.ranges[part.var]
                elif part.vars.isdisjoint(self.items) and self.expanded(part.vars):
                    first, last = self.interval(Index(((part, 1),), 0), known)
                else:
                    return None
                begin += c * k * first + min(0, c * k * (last - first))
                term = Term(abs(c * k), last - first, part.var if part.var in self.items else None)
                (shared if common.get(part) == k else terms).append(term)
            most = max(0, max(c * low, c * high) - begin + abs(c) * (lanes - 1))          # the variable goes no further than it does
            rest_most = most
            if stop.terms:
                rest = inner - Index(tuple((a, k) for a, k in inner.terms if common.get(a) == k), 0)
                end = stop - Index(tuple((a, k) for a, k in inner.terms if common.get(a) == k), 0)
                if not end.terms:
                    rest_most = min(most, abs(c) * (end.constant - 1 - rest.constant + early))
            form.constant += begin + min(0, c * (lanes - 1))
            form.sums.append(([t for t in terms if t.most], rest_most, [t for t in shared if t.most], most))
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
        groups = [known]
        for step in sorted(steps, reverse=True):
            groups = [near for group in groups for near in _overlapping([(f.reach(step + 1, far), f) for f in group])]
            for near in groups:                              # what larger steps keep apart is apart
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
