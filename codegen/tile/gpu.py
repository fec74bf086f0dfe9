"""Tile programs on GPUs: registers of a work-group's items, local memory, the next blocks fetched while these are used. Start at `Items`.

A staged tile has two places in local memory: what is fetched to registers while one is read goes to the other, so there is one barrier a
step. All that is written are statements: what a tile is loaded from and stored to adds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded, constant, ravel, unravel
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Lanes, Literal, Local, Operand, Splat, combined
from tracegrad.codegen.kernel.ir.expressions import Load as Read
from tracegrad.codegen.kernel.ir.statements import Access, Array, Block, BoundLike, Declare, clipped
from tracegrad.codegen.kernel.ir.vectors import ceil_div, ctype
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.program import Add, Axis, Dot, Element, Fold, Held, Load, Loop, Program, Store, Tile, Zeros
from tracegrad.support.dtypes import DType, dtype_kind
from tracegrad.support.tuning import tuning

VECTOR = 4                    # registers side by side that are read from local memory together
CHUNK = 16                    # bytes that are fetched together
PAD = 4                       # elements behind a line of a staged tile, so that the lines' beginnings are in different banks
FEW = 16                      # registers of a tile, at most, that leave room for as many more to which they are added now and then
Registers = Mapping[tuple[Axis, int], Index]


def staged_bytes(block: int, depth: int, dtype: DType) -> int:
    """Local memory of a staged tile of so many lines."""
    return 2 * depth * (block + PAD) * dtype.itemsize


def levels(steps: int, dtype: DType) -> list[int]:
    """The lengths of the blocks of a loop of so many steps, the longest first: no accumulator takes many terms. None of a short one."""
    found, length = list[int](), tuning().product_steps
    while dtype_kind(dtype) == "f" and steps > length:
        found.insert(0, length)
        length *= tuning().product_blocks
    return found


class Items:
    """One kernel while it is written. fixed: the indices along axes that have no registers; tested: those that are known to be inside."""

    def __init__(self, w: Writer, program: Program) -> None:
        self.w, self.program = w, program
        self.registers: dict[Tile, Array | Expression] = {}  # of tiles of which an item has elements in registers
        self.numbers: dict[tuple[Axis, int], Index] = {}     # the digits that are numbers of groups and items
        self.fixed: dict[Axis, Index] = {}
        self.tested: set[Axis] = set()
        self.staged: dict[Tile, Array] = {}
        self.folded: dict[Tile, Array] = {}
        self.first: list[Expression] = []                    # what holds for the items that have what was folded
        self.unit = ZERO                                     # the number of the item in its group

    def run(self) -> None:
        self.count_items()
        for step in self.program.steps:
            if isinstance(step, Zeros):
                self.registers[step.tile] = self.zeros(step.tile, step.tile.name)
            elif isinstance(step, Fold):
                self.fold(step)
            elif isinstance(step, Store):
                self.store(step)
            elif isinstance(step, Loop):
                (self.pipeline if step.loads[0].tile.staged else self.loop)(step)

    def count_items(self) -> None:
        """Declare the numbers of groups and items."""
        steps = [s for s in self.program.steps if isinstance(s, Loop)]
        for held in (Held.GROUP, Held.GLOBAL, Held.ITEM):
            for dim in range(len(self.program.local)):
                digits, count = self.program.digits(held, dim), self.program.count(held, dim)
                number = constant(0)
                if count > 1:
                    (axis, _), *more = [(a, n) for a, n in digits if a.digits[n].count > 1]
                    alone = sum(d.held is not Held.REGISTER for d in axis.digits) == len(axis.digits) == 1
                    base = "xyz"[dim] if held is Held.ITEM else "group" if more else axis.name if alone else f"{axis.name}_block"
                    type_ = "int" if held is Held.ITEM else ""
                    number = self.w.item(base, count, dim, held.value, type_).index
                    if held is Held.ITEM:
                        self.unit = self.unit + number * prod(self.program.local[:dim])
                self.numbers.update(zip(digits, unravel(number, [a.digits[n].count for a, n in digits]), strict=True))
        for axis in self.program.axes:
            if axis.registers == 1 and all(axis is not s.axis for s in steps):
                self.fixed[axis] = self.w.indexed(axis.name, self.index(axis, {}))

    # -- names, indices

    def index(self, axis: Axis, registers: Registers) -> Index:
        """The index along an axis, of these registers."""
        return self.fixed[axis] if axis in self.fixed else self.start(axis) + self.within(axis, registers)

    def start(self, axis: Axis) -> Index:
        """Where the work-group's block begins."""
        return self.sum_of(axis, {}, lambda _, held: held is Held.GROUP)

    def within(self, axis: Axis, registers: Registers) -> Index:
        """The index in it."""
        return self.sum_of(axis, registers, lambda _, held: held is not Held.GROUP)

    def sum_of(self, axis: Axis, registers: Registers, counts: Callable[[int, Held], bool]) -> Index:
        """The sum of those digits of an axis that count."""
        found, step = ZERO, 1
        for n, digit in reversed(list(enumerate(axis.digits))):
            if counts(n, digit.held):
                found = found + (registers.get((axis, n), ZERO) if digit.held is Held.REGISTER else self.numbers[axis, n]) * step
            step *= digit.count
        return found

    def test(self, tests: Sequence[Expression]) -> ExitStack:
        """`with`: only where all the tests hold; what depends on what they are about is computed in it."""
        inside = ExitStack()
        all_ = combined("&&", tests)
        if all_ is not None:
            inside.enter_context(self.w.branch(all_))
            for var in all_.vars:
                self.w.bind(var)
        return inside

    def outside(self, axes: Sequence[Axis], at: Sequence[Index], limits: Mapping[Axis, Operand]) -> list[Expression]:
        """What has to be tested for the indices to be within their axes. limits: how many there are, if not always all."""
        return [Infix("<", self.w.at(x), limits.get(axis, axis.size)) for axis, x in zip(axes, at, strict=True)
                if axis not in self.tested and (axis in limits or x.hi >= axis.size)]

    @contextmanager
    def counted(self, *loops: tuple[str, int], unrolled: int = 8) -> Iterator[list[Index]]:
        """`with`: loops, one in the other, of so many iterations; the compiler is asked to write out the innermost `unrolled` of them."""
        with self.w.scope(), ExitStack() as inside:
            found = [Var(name, count) for name, count in loops]
            for left, var in zip(reversed(range(len(loops))), found, strict=True):
                inside.enter_context(self.w.loop(var, 0, var.hi + 1, unrolled=left < unrolled) if var.hi else self.w.block(Block("{")))
            yield [var.index for var in found]

    # -- registers: arrays whose indices are known where they are written out

    @contextmanager
    def spread(self, axes: Sequence[Axis]) -> Iterator[dict[tuple[Axis, int], Index]]:
        """Loops over the registers along these axes. Asked to be unrolled: what is indexed by a number that is known is in a register."""
        digits = {(axis, n): d.count for axis in axes for n, d in enumerate(axis.digits) if d.held is Held.REGISTER and d.count > 1}
        with self.w.unrolled(**{f"{axis.name}{n}": count for (axis, n), count in digits.items()}) as found:
            yield dict(zip(digits, found, strict=True))

    def register(self, axes: Sequence[Axis], registers: Registers) -> Index:
        """The number of a register of a tile."""
        digits = [(axis, n) for axis in axes for n, d in enumerate(axis.digits) if d.held is Held.REGISTER]
        return ravel([registers.get(d, ZERO) for d in digits], [axis.digits[n].count for axis, n in digits])

    def held(self, tile: Tile, name: str, axes: Sequence[Axis]) -> Array:
        """Registers for the elements along these axes."""
        return self.w.array(name, ctype(tile.dtype), prod(axis.registers for axis in axes))

    def value(self, tile: Tile, registers: Registers, without: Axis | None = None, held: Array | Expression | None = None) -> Expression:
        """An element of the tile, of which an item has those in `held`."""
        held = self.registers[tile] if held is None else held
        if isinstance(held, Expression):
            return held
        axes = [axis for axis in tile.axes if axis is not without]
        return Read(Access(held, self.register(axes, registers)), tile.dtype)

    def zeros(self, tile: Tile, name: str) -> Array | Expression:
        """Registers for a tile, that are 0."""
        if prod(axis.registers for axis in tile.axes) == 1:
            return self.w.let(name, Literal(0, tile.dtype), changes=True)
        array = self.held(tile, name, tile.axes)
        array.zeros = True
        return array

    def accumulate(self, step: Dot | Add, axis: Axis) -> None:
        """into += a * b, or x, for all registers of the tile."""
        into = self.registers[step.into]
        with self.spread(step.into.axes) as registers:
            if isinstance(step, Dot):
                value: Expression = Infix("*", self.value(step.a, registers, axis), self.value(step.b, registers, axis))
            else:
                value = self.value(step.x, registers, axis)
            self.w.update(self.slot(into, step.into, registers), "+", value)

    def slot(self, held: Array | Expression, tile: Tile, registers: Registers) -> Access | Local:
        """Where a tile's registers have one of it."""
        if isinstance(held, Array):
            return Access(held, self.register(tile.axes, registers))
        assert isinstance(held, Local)
        return held

    @contextmanager
    def in_levels(self, axis: Axis, into: Tile, steps: int, first: Index, last: Index, size: int, unit: int, each: int = 1
                  ) -> Iterator[tuple[Index, BoundLike]]:
        """Loops over blocks of an axis, `unit` of it counted as one: each adds what its accumulators have to those of the level above.

        steps: the terms that an accumulator would take without them; each: how many units an iteration takes. Given are where the loop for
        one accumulator begins and ends. In the end `into` has what the highest level has.
        """
        lengths, below = levels(steps, into.dtype), self.registers[into]
        totals = [self.zeros(into, f"{into.name}_sum") for _ in lengths]
        for total in totals:
            if isinstance(total, Array):
                total.spilled = total.size > FEW
        blocks = [(ceil_div(length, unit) * each, partial(self.flush, into, total, of))
                  for length, total, of in zip(lengths, totals, [*totals, below][1:], strict=True)]
        with ExitStack() as inside:
            yield self.w.in_blocks(inside, f"{axis.name}_sum", f"{axis.name}_end", blocks, first, last, size)
        if totals:
            with self.spread(into.axes) as registers:
                self.w.assign(self.slot(below, into, registers), self.value(into, registers, held=totals[0]))

    def flush(self, tile: Tile, total: Array | Expression, below: Array | Expression) -> None:
        """A block ends: its accumulators are added to those above, and start anew."""
        with self.spread(tile.axes) as registers:
            self.w.update(self.slot(total, tile, registers), "+", self.value(tile, registers, held=below))
            self.w.assign(self.slot(below, tile, registers), Literal(0, tile.dtype))

    # -- elements

    def element(self, load: Load, at: Sequence[Index], limits: Mapping[Axis, Operand], stored: bool) -> Expression:
        """What is loaded from there; 0 outside. stored: the caller stores it where it is read, so that it needs no variable."""
        w, axes = self.w, load.tile.axes
        at = [self.w.indexed(axis.name, x) for axis, x in zip(axes, at, strict=True)]
        tests = self.outside(axes, at, limits)
        inside = [bounded(x, 0, axis.size) for axis, x in zip(axes, at, strict=True)]
        found: Element | None = None
        if not tests:
            found = load.source(*inside)
            if not found.tests:
                return self.taken(found) if stored else found.read()
        value = w.declare("value", Literal(0, load.tile.dtype))
        with self.test(tests):
            found = found or load.source(*inside)
            with self.test(found.tests):
                w.assign(value, self.taken(found))
        return value

    def taken(self, found: Element) -> Expression:
        """What is read. If it is a variable that was just declared, its value: there is no need for the variable."""
        value, items = found.read(), self.w.blocks[-1].items
        if items and isinstance(items[-1], Declare) and items[-1].symbol is value and isinstance(value, Local):
            for block in self.w.blocks:
                block.memo = {key: kept for key, kept in block.memo.items() if kept is not value}
            self.w.used.discard(value.name)
            declared = items.pop()
            assert isinstance(declared, Declare)
            return declared.value
        return value

    # -- loops

    def part(self, loop: Loop, unit: int) -> tuple[Index, Index, Mapping[Axis, Operand]]:
        """Where an item's part of the loop begins and ends, in units of so many, and how many there are if that has to be tested."""
        axis, w = loop.axis, self.w
        count = ceil_div(axis.size, unit)
        limit = None if loop.count is None else loop.count(*[self.index(a, {}) for a in loop.of])
        limits: Mapping[Axis, Operand] = {} if limit is None else {axis: limit}
        if loop.part is None:
            return ZERO, constant(count) if limit is None else (limit.index + (unit - 1)) // unit, limits
        length = loop.length // unit
        first = self.index(loop.part, {}) * length
        end = first + length
        if limit is None:
            return first, w.bounded_by("last", count, clipped(end, count, length)), limits
        return first, w.known("last", count + 1, w.least(end, (limit.index + (unit - 1)) // unit)).index, limits

    def loop(self, loop: Loop) -> None:
        """Items read what they need where they need it."""
        w, axis = self.w, loop.axis
        with self.w.scope():
            first, last, _ = self.part(loop, 1)
            around = [a for a in self.fixed if any(a in load.tile.axes for load in loop.loads)]
            tests = self.outside(around, [self.fixed[a] for a in around], {})
            with self.test(tests):
                tested, self.tested = self.tested, self.tested | set(around)
                var, once, own = Var(axis.name, axis.size), axis.size == 1, self.index(axis, {})
                steps = ceil_div(loop.length if loop.part else axis.size, axis.block)
                with self.in_levels(axis, loop.sums[0].into, steps, first, last, axis.size, 1, axis.block) as (begin, stop), (
                        w.block(Block("{")) if once else w.loop(var, begin + own, stop, axis.block, unrolled=loop.unrolled)):
                    for load in loop.loads:
                        self.load(load, axis, var.index)
                    for step in loop.sums:
                        self.accumulate(step, axis)
                self.tested = tested

    def load(self, load: Load, axis: Axis, at: Index) -> None:
        """The tile at an index of the loop, to registers."""
        tile = load.tile
        axes = [a for a in tile.axes if a is not axis]
        if prod(a.registers for a in axes) == 1:
            self.registers[tile] = self.element(load, [at if a is axis else self.index(a, {}) for a in tile.axes], {}, False)
            return
        self.registers[tile] = array = self.held(tile, tile.name, axes)
        with self.spread(axes) as registers:
            value = self.element(load, [at if a is axis else self.index(a, registers) for a in tile.axes], {}, True)
            self.w.store(Access(array, self.register(axes, registers)), value)

    def pipeline(self, loop: Loop) -> None:
        """The tiles come through local memory, block after block of the loop's axis."""
        w, axis = self.w, loop.axis
        fetched, loads = {}, loop.loads
        for load in loads:
            row = self.line(load.tile, axis).block + PAD
            array = w.array(f"{load.tile.name}_block", ctype(load.tile.dtype), 2 * axis.block * row, True)
            array.aligned, array.row = VECTOR * load.tile.dtype.itemsize, row
            self.staged[load.tile] = array
        first, last, limits = self.part(loop, axis.block)
        for load in loads:
            together = self.together(load, axis)
            each = ceil_div(self.line(load.tile, axis).block * axis.block // together, prod(self.program.local))
            fetched[load.tile] = w.array(f"{load.tile.name}_next", ctype(load.tile.dtype, together), each)
        for load in loads:
            self.fetch(load, loop, first, limits, fetched[load.tile])
        for load in loads:
            self.put(load, axis, first, fetched[load.tile])
        w.barrier()
        count = ceil_div(axis.size, axis.block)
        if count == 1:
            self.block(loop, ZERO)
            return
        step = Var("step", count)
        following = bounded(step.index + 1, 0, count)        # where there are more
        more, terms = Infix("<", w.at(step.index + 1), w.at(last)), loop.length if loop.part else axis.size
        with self.in_levels(axis, loop.sums[0].into, terms, first, last, count, axis.block) as (begin, stop), w.loop(step, begin, stop):
            with self.w.scope(), w.branch(more):
                for load in loads:
                    self.fetch(load, loop, following, limits, fetched[load.tile])
            self.block(loop, step.index)
            with self.w.scope(), w.branch(more):
                for load in loads:
                    self.put(load, axis, following, fetched[load.tile])
            w.barrier()

    def block(self, loop: Loop, step: Index) -> None:
        """What is done with one block of staged tiles."""
        with self.spread((loop.axis,)) as registers:
            for load in loop.loads:
                self.fragment(load.tile, loop.axis, step, registers)
            for sum_ in loop.sums:
                self.accumulate(sum_, loop.axis)

    def line(self, tile: Tile, axis: Axis) -> Axis:
        """The axis of a staged tile, beside the loop's, along which a block has several elements."""
        return max((a for a in tile.axes if a is not axis), key=lambda a: a.block)

    def indices(self, tile: Tile, axis: Axis, along: Index, down: Index) -> list[Index]:
        """Those of an element of a staged tile: `along` the loop's axis, the place of its line in the block."""
        line = self.line(tile, axis)
        return [along if a is axis else self.start(a) + down if a is line else self.index(a, {}) for a in tile.axes]

    def together(self, load: Load, axis: Axis) -> int:
        """How many elements that lie side by side an item fetches together: 16 bytes, where they may be copied."""
        each = CHUNK // load.tile.dtype.itemsize
        line = self.line(load.tile, axis)
        return each if load.copied is not None and (line.block if load.across else axis.block) % each == 0 else 1

    @contextmanager
    def share(self, load: Load, axis: Axis, together: int) -> Iterator[tuple[Index, Index, Index]]:
        """The elements of a block that are an item's to fetch: the register, the index in the block along the axis, that along the line.

        What items side by side fetch lies side by side.
        """
        line, items = self.line(load.tile, axis).block, prod(self.program.local)
        total = line * axis.block // together
        with self.counted(("at", ceil_div(total, items))) as (at,):
            unit = self.w.indexed("unit", at * items + self.unit)
            inner = (line if load.across else axis.block) // together
            with self.test([Infix("<", self.w.at(unit), total)] if total % items else []):
                unit = bounded(unit, 0, total)
                found = unit % inner * together, unit // inner
                yield at, *(found[::-1] if load.across else found)

    def fetch(self, load: Load, loop: Loop, step: Index, limits: Mapping[Axis, Operand], to: Array) -> None:
        """An item's share of the block at a step, to its registers. Of elements that are fetched together all are there, or none."""
        w, axis, dtype = self.w, loop.axis, load.tile.dtype
        line, together = self.line(load.tile, axis), self.together(load, axis)
        with self.share(load, axis, together) as (at, along, down):
            indices = self.indices(load.tile, axis, step * axis.block + along, down)
            if together == 1:
                w.store(Access(to, at), self.element(load, indices, limits, True))
                return
            tests, chunk = self.chunk(load, indices, line if load.across else axis, together, limits)
            if tests:
                w.store(Access(to, at), Splat(Literal(0, dtype), together))
            with self.test(tests):
                w.store(Access(to, at), Read(chunk(), dtype, together))

    def chunk(
        self, load: Load, at: Sequence[Index], along: Axis, count: int, limits: Mapping[Axis, Operand]
    ) -> tuple[list[Expression], Callable[[], Access]]:
        """`count` elements side by side along an axis, all of which are there, or none: what has to hold for that, and where they lie."""
        axes, copied = load.tile.axes, load.copied
        assert copied is not None
        at = [self.w.indexed(axis.name, x) for axis, x in zip(axes, at, strict=True)]
        ends = [axis.size - (count - 1) * (axis is along) for axis in axes]
        reached = {axis: end for axis, x, end in zip(axes, at, ends, strict=True) if x.hi >= axis.size}
        tests = self.outside(axes, at, reached | dict(limits))
        return tests, lambda: copied(*[bounded(x, 0, end) for x, end in zip(at, ends, strict=True)])

    def put(self, load: Load, axis: Axis, step: Index, fetched: Array) -> None:
        """The same, from there to local memory."""
        together, staged, dtype = self.together(load, axis), self.staged[load.tile], load.tile.dtype
        with self.share(load, axis, together) as (at, along, down):
            value = Read(Access(fetched, at), dtype, together)
            if together == 1 or load.across:
                self.w.store(Access(staged, self.place(load.tile, axis, step, along, down), each=together), value)
                return
            for lane in range(together):
                self.w.store(Access(staged, self.place(load.tile, axis, step, along + lane, down)), Lanes(value, lane))

    def place(self, tile: Tile, axis: Axis, step: Index, along: Index, down: Index) -> Index:
        """Where an element of a staged tile is: every second block is put into the same place."""
        pitch = self.line(tile, axis).block + PAD
        return step % 2 * (axis.block * pitch) + along * pitch + down

    def fragment(self, tile: Tile, axis: Axis, step: Index, registers: Registers) -> None:
        """The item's elements of a staged tile at an index of the block, those side by side as one vector."""
        w, line, array = self.w, self.line(tile, axis), self.staged[tile]
        along = self.within(axis, registers)

        def at(more: Registers) -> Index:
            return self.place(tile, axis, step, along, self.within(line, more))

        if line.registers == 1:
            self.registers[tile] = w.let(tile.name, Read(Access(array, at({})), tile.dtype), changes=True)
            return
        self.registers[tile] = to = self.held(tile, tile.name, (line,))
        wide = line.digits[-1].held is Held.REGISTER and line.digits[-1].count == VECTOR
        outer = Axis(line.name, line.size, line.digits[:-1]) if wide else line
        with self.spread((outer,)) as inner:
            own = {(line, n): x for (_, n), x in inner.items()}
            if not wide:
                w.store(Access(to, self.register((line,), own)), Read(Access(array, at(own)), tile.dtype))
                return
            several = w.declare(f"{tile.name}{VECTOR}", Read(Access(array, at(own), each=VECTOR), tile.dtype, VECTOR))
            for lane in range(VECTOR):
                w.store(Access(to, self.register((line,), own) + lane), Lanes(several, lane))

    # -- results

    def fold(self, fold: Fold) -> None:
        """Halves of the items along the axis are added up, and halves of these, in local memory."""
        w, tile, axis = self.w, fold.tile, fold.axis
        digit, = (d for d in axis.digits if d.held is Held.ITEM)
        items, step, lane = prod(self.program.local), prod(self.program.local[:digit.dim]), self.index(axis, {})
        registers = prod(a.registers for a in tile.axes)
        sums = self.folded[tile] = w.array(f"{tile.name}_sums", ctype(tile.dtype), registers * items, True)
        sums.row = items * (registers > 1)
        with self.spread(tile.axes) as own:
            w.store(Access(sums, self.sums_at(tile, own)), self.value(tile, own))
        w.barrier()
        with w.halving(lane, digit.count) as half, self.spread(tile.axes) as own:
            at = self.sums_at(tile, own)
            other = at + (bounded(lane + half, 0, digit.count) - lane) * step
            w.update(Access(sums, at), "+", Read(Access(sums, other), tile.dtype))
        self.first.append(Infix("==", w.at(lane), 0))

    def sums_at(self, tile: Tile, registers: Registers) -> Index:
        return self.register(tile.axes, registers) * prod(self.program.local) + self.unit

    def store(self, store: Store) -> None:
        tile = store.tile
        with self.spread(tile.axes) as registers:
            sums = self.folded.get(tile)
            value = self.value(tile, registers) if sums is None else Read(Access(sums, self.sums_at(tile, registers)), tile.dtype)
            self.store_element(store, [self.index(axis, registers) for axis in tile.axes], value)

    def store_element(self, store: Store, indices: Sequence[Index], value: Expression) -> None:
        """Where there is the element, and for one item of those that share it."""
        axes = store.tile.axes
        at = [self.w.indexed(axis.name, x) for axis, x in zip(axes, indices, strict=True)]
        with self.test([*self.first, *self.outside(axes, at, {})]):
            found = store.root(*[bounded(x, 0, axis.size) for axis, x in zip(axes, at, strict=True)])
            with self.test(found.tests):
                found.write(value)
