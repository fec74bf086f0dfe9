"""Sums of many terms that keep their digits, in every schedule. Start at `LongSum`.

One float32 accumulator loses a digit for every ten times as many terms, and takes no more of them at all from 2^24 times one on. So a loop
of many steps goes block by block (`in_blocks`): after each, what its accumulators have is added to another, and they start from 0 again.
After a few blocks this one is added to two numbers, the sum and what rounding lost of it (Neumaier 1974). A step costs what it did, a block
one operation more. `LongSum` has its accumulators in registers, `ColumnSums` in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tracegrad.codegen.kernel.elements import Storage
from tracegrad.codegen.kernel.evaluator import Evaluator
from tracegrad.codegen.kernel.index.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Lanes, Literal, Local, Splat, Vector, whole
from tracegrad.codegen.kernel.ir.kernel import Temp
from tracegrad.codegen.kernel.ir.statements import Bound, BoundLike, bound
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import DType, dtype_kind, float32, float64
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning


def adds(r: Node) -> bool:
    """Whether a reduction or a scan rounds: sums of floats do, integers wrap, extrema pick."""
    fn: Any = r.attrs.get("op", r.fn)
    return bool(fn.linear) and dtype_kind(r.dtype) == "f"


_FEW = 8             # blocks whose sums are added up as they are: equal ones are off by 5e-8 then


def is_long(steps: int) -> bool:
    """Whether a loop of so many steps goes block by block, where its accumulators are sums."""
    return steps > tuning().sum_steps


def _plus(*operands: str) -> str:
    return f"tg_pair_plus({', '.join(operands)})"


def _plus_low(*operands: str) -> str:
    return f"tg_pair_plus_low({', '.join(operands)})"


def _times(*operands: str) -> str:
    return f"tg_pair_times({', '.join(operands)})"


def _times_low(*operands: str) -> str:
    return f"tg_pair_times_low({', '.join(operands)})"


_ADD, _MULTIPLY = (_plus, _plus_low), (_times, _times_low)


def into_pair(ev: Evaluator, r: Node, total: Local, low: Local, *more: Expression) -> None:
    """Statements by which the pair (total, low), which has the digits of two numbers, takes in a number more, or a pair, as r does."""
    _to_pair(ev, r, total, low, more, _ADD if adds(r) else _MULTIPLY)


def of_pairs(ev: Evaluator, r: Node, name: str, a: Sequence[Expression], b: Sequence[Expression]) -> tuple[Local, Local]:
    """The pair that two make, in new variables."""
    spells = _ADD if adds(r) else _MULTIPLY
    number, low = (ev.writer.declare(f"{name}{end}", ev.op(spell, [*a, *b], r.dtype, r.dtype, {}), r)
                   for spell, end in zip(spells, ("", "_low"), strict=True))
    return number, low


def _to_pair(ev: Evaluator, r: Node, total: Local, low: Local, more: Sequence[Expression], by: tuple[Callable[..., str], ...]) -> None:
    given: list[Expression] = [total, low]
    given += [x if isinstance(x, (Local, Literal)) else ev.writer.declare(f"{total.name}_more", x, r) for x in more]
    number, rest = (ev.op(spell, given, r.dtype, r.dtype, {}) for spell in by)
    both = ev.writer.declare(f"{total.name}_next", number, r)
    ev.writer.assign(low, rest, r)
    ev.writer.assign(total, both, r)


def _lost(a: str, b: str) -> str:
    return f"tg_sum_lost({a}, {b})"


def _whole(a: str, low: str) -> str:
    return f"tg_sum_whole({a}, {low})"


def _added(ev: Evaluator, r: Node, total: Local, low: Expression, more: Expression) -> tuple[Expression, Expression]:
    """The sum with one more number, and what its rounding has lost so far."""
    return Infix("+", total, more), Infix("+", low, ev.op(_lost, [total, more], r.dtype, r.dtype, {}))


class LongSum:
    """What the accumulators of one sum make together, block after block, of so many steps. They have as many lanes each."""

    def __init__(self, ev: Evaluator, r: Node, accumulators: list[Local], stem: str, steps: int) -> None:
        self.ev, self.r, self.accumulators = ev, r, accumulators
        lanes, w = accumulators[0].lanes, ev.writer
        zero = Literal(0, r.dtype)
        self.start: Expression = Splat(zero, lanes) if lanes > 1 else zero
        self.blocks = w.declare(f"{stem}_blocks", self.start, r)
        self.whole: tuple[Local, Local] | None = None
        if steps > _FEW * tuning().sum_steps:
            self.whole = w.declare(f"{stem}_sum", self.start, r), w.declare(f"{stem}_low", self.start, r)

    def flush(self) -> None:
        """A block ends: the accumulators start anew."""
        self._add_block()
        for accumulator in self.accumulators:
            self.ev.writer.assign(accumulator, self.start, self.r)

    def flush_blocks(self) -> None:
        """A few blocks end."""
        self._add_blocks()
        self.ev.writer.assign(self.blocks, self.start, self.r)

    def finish(self) -> None:
        """The first accumulator has all of it."""
        self._add_block()
        found: Expression = self.blocks
        if self.whole is not None:
            self._add_blocks()
            found = self.ev.op(_whole, list(self.whole), self.r.dtype, self.r.dtype, {})
        self.ev.writer.assign(self.accumulators[0], found, self.r)

    def _add_block(self) -> None:
        level = list[Expression](self.accumulators)
        while len(level) > 1:
            level = [Infix("+", a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        self.ev.writer.assign(self.blocks, Infix("+", self.blocks, level[0]), self.r)

    def _add_blocks(self) -> None:
        assert self.whole is not None
        for local, value in zip(reversed(self.whole), reversed(_added(self.ev, self.r, *self.whole, self.blocks)), strict=True):
            self.ev.writer.assign(local, value, self.r)


class ColumnSums:
    """Sums over columns that memory holds, element by element: of long ones, what they have of a block, and before it.

    blocks: how many there are. Of few the sums are added up as they are, of many to what rounding lost as well.
    """

    def __init__(self, ev: Evaluator, r: Node, here: Storage, blocks: int) -> None:
        self.ev, self.r, self.here = ev, r, here
        names = ("sums", "sums_low")[:1 + (blocks > _FEW)] if blocks > 1 and adds(r) else ()
        self.before = [Storage(Temp(name, r, r.aval.size, r.dtype), "out") for name in names]

    def begin(self, at: Index, value: Expression) -> None:
        """What the first row makes, or nothing yet."""
        self.ev.store(self.here, self.r, at, value)
        for each in self.before:
            self.ev.store(each, self.r, at, Literal(0, self.r.dtype))

    def add(self, at: Index, value: Expression) -> None:
        """One more value, of one or several rows."""
        self.ev.store(self.here, self.r, at, self.ev.fold(self.r, [self._load(self.here, at), value]))

    def flush(self, at: Index) -> None:
        """A block ends: the next starts anew."""
        if self.before:
            for each, value in zip(self.before, self._added(at), strict=True):
                self.ev.store(each, self.r, at, value)
            self.ev.store(self.here, self.r, at, Literal(0, self.r.dtype))

    def finish(self, at: Index) -> None:
        """All of it."""
        if self.before:
            found = self._added(at)
            whole = self.ev.op(_whole, found, self.r.dtype, self.r.dtype, {}) if len(found) > 1 else found[0]
            self.ev.store(self.here, self.r, at, whole)

    def _added(self, at: Index) -> list[Expression]:
        total, *low = [self._load(each, at) for each in self.before]
        more = self._load(self.here, at)
        return list(_added(self.ev, self.r, total, low[0], more)) if low else [Infix("+", total, more)]

    def _load(self, stored: Storage, at: Index) -> Local:
        return self.ev.load(self.r, stored, at, (), written=True)


@contextmanager
def in_blocks(
    w: Writer, var: Var, first: BoundLike, last: BoundLike, step: int, top: int, sums: Sequence[LongSum], whole: bool = False,
    each: int = 1, offset: Index = ZERO,
) -> Iterator[None]:
    """The loop over `var` from first to last, which is not above `top`, block by block, for these sums.

    each: the terms of a step. offset: where from the beginning of a block a work-item begins.
    """
    length, end, start, stop = max(1, tuning().sum_steps // each) * step, bound(last), first, last
    begin = bound(first)                                     # what is known of it: it goes from first to last
    known = () if begin.low is None else (("between", var.index, bound(begin.low + offset), end, step, whole),)
    deep = [one for one in sums if one.whole is not None]
    at: Index = ZERO
    with ExitStack() as loops:
        for many, flush, of in ((_FEW * length, LongSum.flush_blocks, deep), (length, LongSum.flush, sums)):
            if not of:
                continue
            block = Var("block", top - var.lo, var.lo, multiple=var.multiple)
            loops.enter_context(w.loop(block, start, stop, many))
            for one in of:
                loops.callback(flush, one)
            stop = w.block_end("block_end", block, many, start, stop, top)
            start = at = block.index
        with w.loop(var, at + offset, stop, step, whole, known):
            yield


@contextmanager
def each_block(w: Writer, done: Index, length: int, step: int = 1) -> Iterator[None]:
    """What is done after every block of the innermost loop, whose position goes from `done` on by `step`.

    (Drivers make worse code of loops over columns in a loop over rows in one over blocks of rows: up to 1.1 of the time.)
    """
    with w.branch(Infix("==", Infix("%", w.at(done), whole(length)), whole(length - step))):
        yield


@contextmanager
def strided(
    ev: Evaluator, var: Var, first: Index, last: Bound, step: int, steps: int, item: Index, accumulators: dict[Node, Local]
) -> Iterator[None]:
    """The loop of a work-item, which does one of every `step` elements from first to last, `item` from the first on, and its sums."""
    sums = [LongSum(ev, r, [local], local.name, steps) for r, local in accumulators.items() if is_long(steps) and adds(r)]

    if sums:
        with in_blocks(ev.writer, var, first, last, step, var.hi + 1, sums, offset=item):
            yield
        for each in sums:
            each.finish()
    else:
        with ev.writer.loop(var, first + item, last, step):
            yield


class Running:
    """What the terms of a scan make so far, and of a recurrence. parts: a number, and what rounding lost of it, if that is kept."""

    def __init__(self, ev: Evaluator, node: Node, name: str, start: Sequence[Expression]) -> None:
        self.ev, self.node, self.dtype = ev, node, start[0].dtype
        self.parts = [ev.writer.let(each, x, node, True) for each, x in zip((name, f"{name}_low"), start, strict=False)]
        self.total, self.low = self.parts[0], self.parts[1] if len(start) > 1 else None

    @classmethod
    def of(cls, ev: Evaluator, node: Node, name: str, start: Expression) -> Running:
        """In float64, or as a pair where a device has none, if it is of float32."""
        dtype, zero = running_dtype(node, ev.writer.target), Literal(0, float32)
        low = [Splat(zero, start.lanes) if start.lanes > 1 else zero] * in_pairs(node, ev.writer.target)
        return cls(ev, node, name, [start if start.dtype == dtype or dtype == node.dtype else ev.cast(start, dtype), *low])

    def take(self, value: Expression, *low: Expression) -> None:
        """One more term, by the rule of the scan, or `parts` of what some make."""
        if self.low is not None:
            into_pair(self.ev, self.node, self.total, self.low, value, *low)
        else:
            self.ev.writer.assign(self.total, self._both(self.total, self._wide(value)), self.node)

    def take_all(self, terms: Local) -> None:
        """What the lanes of a vector make, which are of the dtype that it goes on in."""
        while terms.lanes > 1:
            terms = self._named(self._both(Lanes(terms, "lo"), Lanes(terms, "hi")))
        self.ev.writer.assign(self.total, self._both(self.total, terms), self.node)

    def take_each(self, terms: Expression) -> Expression:
        """The same terms, and what each of them makes with all before it, rounded.

        Step by step a lane knows twice as many lanes: the upper half of each block takes in all that the lower half makes
        (J. Sklansky, Conditional-sum addition logic, 1960). So sums of what is not negative never fall, as those made one by one do
        not: where a lane rounds, it has rounded what the lane before it has. The next vector waits for one operation of these.
        """
        fn: Any = self.node.fn
        nothing, wide, half = Literal(fn.identity(self.dtype), self.dtype), self._wide(terms), 1
        found = wide if isinstance(wide, Local) else self._named(wide)
        while half < found.lanes:
            last = [lane // half * half - 1 if lane & half else lane for lane in range(found.lanes)]
            lower = Vector(tuple(Lanes(found, at) if at < lane else nothing for lane, at in enumerate(last)))
            found = self._named(self._both(Lanes(found, last) if fn.selects_elements else lower, found))
            half *= 2
        each = self._named(self._both(Splat(self.total, found.lanes), found))
        self.ev.writer.assign(self.total, self._both(self.total, Lanes(found, found.lanes - 1)), self.node)
        return self._rounded(each)

    def _both(self, a: Expression, b: Expression) -> Expression:
        if self.dtype == self.node.dtype:
            return self.ev.joined(self.node, a, b)
        fn: Any = self.node.fn
        return self.ev.op(fn.combine, [a, b], self.dtype, self.dtype, {})

    def _named(self, x: Expression) -> Local:
        return self.ev.writer.declare("so_far", x, self.node)

    def step(self, factor: Expression, term: Expression) -> None:
        """It becomes `factor` times it, and `term`."""
        if self.low is not None:
            for x, by in ((factor, _MULTIPLY), (term, _ADD)):
                _to_pair(self.ev, self.node, self.total, self.low, [x], by)
        else:
            made = Infix("+", Infix("*", self._wide(factor), self.total), self._wide(term))
            self.ev.writer.assign(self.total, made, self.node)

    @property
    def value(self) -> Expression:
        """What it is, rounded."""
        return self._rounded(self.total)

    def _rounded(self, x: Expression) -> Expression:
        return x if self.dtype == self.node.dtype else self.ev.cast(x, self.node.dtype)

    def _wide(self, x: Expression) -> Expression:
        return x if x.dtype == self.dtype or self.dtype == self.node.dtype else self.ev.cast(x, self.dtype)


def running_dtype(node: Node, target: Target) -> DType:
    """The dtype in which a scan or a recurrence goes on: wide enough for sums, and that of the elements for extremes."""
    return float64 if _loses(node) and target.fp64 else node.operands[0].dtype


def in_pairs(node: Node, target: Target) -> bool:
    """Whether it goes on in pairs, as the device has no wider dtype."""
    return _loses(node) and not target.fp64


def _loses(node: Node) -> bool:
    return node.dtype == float32 and not node.fn.selects_elements
