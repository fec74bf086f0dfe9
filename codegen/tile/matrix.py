"""Tile programs by matrix instructions: fragments of local memory, several blocks of k on their way. Start at `written`, `Blocks`.

A work-group's block of C is cut into parts of warps, and these into the tiles of the instruction, whose registers hold C all through the
loop. Blocks of A and B are put into local memory, `stages` - 1 steps before they are used: copied there while the group works on others,
where the device copies 16 bytes as they lie, through registers elsewhere. What lies side by side in memory does so in local memory, in
lines whose chunks are moved around so that no two work-items read one bank at a time. Fragments may be read while those before are
multiplied (`ahead`).

A fragment is read by ldmatrix, which transposes 16-bit numbers on the way, or as 16 bytes for each work-item. These are two k or several
lines, and not the ones that the instruction has at that place: which k it adds up first is no matter, if A and B agree, and neither is
which line of C is called which, if C's registers are stored accordingly (`lines`).

C goes through local memory to where it is stored, so that neighbours store what lies side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded, constant, ravel
from tracegrad.codegen.kernel.ir.expressions import Access, Bits, Expression, Infix, Lanes, Literal, Operand, Select, whole
from tracegrad.codegen.kernel.ir.expressions import Load as Read
from tracegrad.codegen.kernel.ir.statements import Array, Instruct
from tracegrad.codegen.kernel.ir.vectors import ceil_div, ctype
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.codegen.tile.gpu import CHUNK, Items, Registers
from tracegrad.codegen.tile.instructions import CLEAR, COMMIT, COPY, LDMATRIX, LDMATRIX_ACROSS, PACK, WAIT, WARP, MatrixInstruction
from tracegrad.codegen.tile.program import Axis, Digit, Dot, Held, Load, Loop, Program, Store, Tile
from tracegrad.support.dtypes import float32, uint32
from tracegrad.support.plan import Plain

PAD = 8                       # words behind a line of C in local memory
WARPS, PARTS = 1, 2           # places of digits, see `lines`
NEARER = 1.0 + 2.0 ** -11 * 0.6931          # 1 / (2 ln 2) of what TF32's last digit is: half of it, where leading digits are as they are


def written(w: Writer, program: Program) -> None:
    """Writes the program's statements."""
    found = [(loop, step) for loop in program.loops for step in loop.sums if isinstance(step, Dot) and step.by is not None]
    (MatrixItems(w, program, *found[0]) if found else Items(w, program)).run()


class Blocks(Plain):
    """How a group's block of C is shared: `warps` of them along rows and columns, each with so many `tiles` of the instruction; `depth` of
    k in a block, of which there is room for `stages`. ahead: fragments are read while those before are multiplied (k in a block are then an
    even number of the instruction's). Columns are a multiple of 32, and a warp's rows in a tile one of the number of warps.
    """

    warps: tuple[int, int]
    tiles: tuple[int, int]
    depth: int
    stages: int
    ahead: bool = False

    def rows(self, by: MatrixInstruction) -> int:
        return self.warps[0] * self.tiles[0] * by.m

    def columns(self, by: MatrixInstruction) -> int:
        return self.warps[1] * self.tiles[1] * by.n

    @property
    def local(self) -> tuple[int, int, int]:
        """The sizes of a work-group: items of a warp, warps."""
        return WARP, prod(self.warps), 1

    def registers(self, by: MatrixInstruction, a_through: bool, b_through: bool) -> int:
        """Words that an item holds: of C, of fragments, of the share of A or B that goes through registers to local memory."""
        into, of = by.into.itemsize // 4, by.word.itemsize // 4
        held = prod(self.tiles) * by.c.registers * into + 2 * of * (self.tiles[0] * by.a.registers + self.tiles[1] * by.b.registers)
        lines = self.rows(by) * a_through + self.columns(by) * b_through
        return held + ceil_div(lines * self.depth, prod(self.local)) * into

    def bytes(self, by: MatrixInstruction) -> int:
        """Of local memory: of the stages, or of the lines of C that are there at a time, if these are more."""
        stages = self.stages * (self.rows(by) + self.columns(by)) * self.depth * by.of.itemsize
        lines = self.warps[0] * 8 * max(by.m // 8, CHUNK // by.of.itemsize if by.of.itemsize > 2 else 0)       # at most: see `lines`
        return max(stages, lines * (self.columns(by) + PAD) * by.word.itemsize)


def lines(by: MatrixInstruction, blocks: Blocks, of_a: bool, groups: int, across: bool) -> tuple[Digit, ...]:
    """The digits of the rows (of_a) or columns of C: which work-item and register has which. across: the operand lies along them.

    The digits are that of the group, that of the warp (WARPS), several parts in registers (PARTS), and those of items and registers in one.
    """
    side = 0 if of_a else 1
    tiles = blocks.tiles[side]
    first = Digit(Held.GROUP, groups, 1 - side), Digit(Held.ITEM, blocks.warps[side], 1)
    own = (Digit(Held.ITEM, 8),) if of_a else (Digit(Held.ITEM, 4), Digit(Held.REGISTER, 2))
    several = by.m // 8 if of_a else 1                       # lines of an item in a tile
    if across and by.of.itemsize > 2:
        chunk = CHUNK // by.of.itemsize
        return *first, Digit(Held.REGISTER, tiles * several // chunk), *own, Digit(Held.REGISTER, chunk)
    return *first, Digit(Held.REGISTER, tiles), *(Digit(Held.REGISTER, several),) * of_a, *own


class _Staged(Plain):
    """An operand in local memory: `load`, from word `start` of a stage on, in rows of `chunks` 16-byte chunks.

    A chunk is at the place of the one `turn` further for every `every` rows.
    """

    load: Load
    line: Axis
    start: int
    rows: int
    chunks: int
    every: int
    turn: int
    of_a: bool


class MatrixItems(Items):
    """One kernel while it is written, whose dots are by matrix instructions."""

    def __init__(self, w: Writer, program: Program, loop: Loop, dot: Dot) -> None:
        super().__init__(w, program)
        assert dot.by is not None
        self.by, self.dot, self.around = dot.by, dot, loop
        self.each = CHUNK // self.by.of.itemsize             # elements of a chunk,
        self.words = CHUNK // self.by.word.itemsize          # and words
        self.rows, self.columns = dot.into.axes[-2:]
        self.operands: list[_Staged] = []
        self.blocks: Array                                   # the stages, and later C
        self.stage = 0                                       # words of a stage

    # -- C

    def tiles(self, axis: Axis) -> int:
        """How many of the instruction a warp has along rows or columns."""
        return axis.registers // 2

    def register_of(self, registers: Registers) -> Index:
        """Where an element of C is among a work-item's registers, those of an instruction side by side."""
        a, b = (self.tile_of(axis, registers) for axis in (self.rows, self.columns))
        return (a[0] * self.tiles(self.columns) + b[0]) * self.by.c.registers + a[1] * 2 + b[1]

    def tile_of(self, axis: Axis, registers: Registers) -> tuple[Index, Index]:
        """The tile, and which of the two lines in it that are a work-item's."""
        found = [(n, d.count) for n, d in enumerate(axis.digits) if d.held is Held.REGISTER]
        at = [registers.get((axis, n), ZERO) for n, _ in found]
        if axis is self.rows:                                # the tiles, the two lines; or several chunks, lines in a chunk
            count = found[-1][1]
            flat = at[0] * count + at[1]
            return flat // 2, flat % 2
        if len(at) == 2:
            return at[0], at[1]
        return at[0] * found[2][1] + at[2], at[1]

    # -- the loop

    def pipeline(self, loop: Loop) -> None:
        w, axis, stages, items = self.w, loop.axis, loop.stages, prod(self.program.local)
        self.stage_operands()
        first, last, limits = self.part(loop, axis.block)
        count = ceil_div(axis.size, axis.block)
        kept = {x.load.tile: w.array(f"{x.load.tile.name}_next", ctype(self.dot.into.dtype), x.rows * x.chunks // items * self.each)
                for x in self.operands if x.load.copied is None}
        for ahead in range(stages - 1):                      # a group of copies for each, be it empty: they are counted
            if ahead < count:
                with w.scope(), self.where(first + ahead, last, ahead > 0):
                    at = bounded(first + ahead, 0, count)
                    self.fetch_blocks(at, limits, kept)
                    self.put_blocks(at, kept)
            w.add(Instruct(COMMIT))
        deep, fragments = axis.block // self.by.k, self.fragments()
        if loop.ahead:
            self.arrived(stages)
            self.read(fragments, first, 0)
        step = Var("step", count)
        after, more = step.index + (stages - 1), count > stages - 1
        ahead_at = bounded(after, 0, count)
        with w.loop(step, first, last), self.w.scope():
            if not loop.ahead:
                self.arrived(stages)
            if more:
                with w.scope(), self.where(after, last):
                    self.fetch_blocks(ahead_at, limits, kept)
            w.add(Instruct(COMMIT))
            for k in range(deep):                            # ahead: what is multiplied next is read before this is
                if not loop.ahead:
                    self.read(fragments, step.index, k)
                elif k < deep - 1:
                    self.read(fragments, step.index, k + 1)
                if k == deep - 1 and more and kept:
                    with w.scope(), self.where(after, last):
                        self.put_blocks(ahead_at, kept)
                if loop.ahead and k == deep - 1 and count > 1:
                    self.arrived(stages)
                    beyond = Infix("<", w.at(step.index + 1), w.at(last))
                    following = w.known("following", count, Select(beyond, w.at(step.index + 1), w.at(step)))       # or any
                    self.read(fragments, following.index, 0)
                self.multiply(fragments, k % 2)

    def arrived(self, stages: int) -> None:
        """Wait until the next block is there, and all have read the one before."""
        self.w.add(Instruct(WAIT, (whole(stages - 2),)))
        self.w.barrier()

    def where(self, x: Index, last: Index, tested: bool = True) -> ExitStack:
        """`with`: only where x < last, unless that is known (or is not `tested`)."""
        known = not tested or (not x.terms and not last.terms)
        assert not known or not tested or x.constant < last.constant
        return self.test([] if known else [Infix("<", self.w.at(x), self.w.at(last))])

    def stage_operands(self) -> None:
        """Find the places of A and B in local memory."""
        start, loop = 0, self.around
        for load in loop.loads:
            line, of_a = self.line(load.tile, loop.axis), load.tile is self.dot.a
            rows, along = (loop.axis.block, line.block) if load.across else (line.block, loop.axis.block)
            every, turn = self.turned(load.across, along // self.each)
            self.operands.append(_Staged(load, line, start, rows, along // self.each, every, turn, of_a))
            start += rows * along // self.each * self.words
        self.stage = start
        high, warps, pitch = self.parts()
        size = max(loop.stages * start, warps * high * pitch)
        self.blocks = self.w.array("blocks", ctype(self.by.word), size, True)
        self.blocks.aligned = 128

    def turned(self, across: bool, chunks: int) -> tuple[int, int]:
        """For every how many lines by how many chunks these are turned, so that all banks are read.

        Eight work-items read 16 bytes each at a time. ldmatrix: the same chunk of eight lines. Others: two chunks of four lines, which are
        neighbours or every second one, or four chunks of two lines.
        """
        if self.by_matrices(across):
            return max(1, 8 // chunks), 1
        return (self.by.of.itemsize // 4, 2) if across else (1, chunks // 8 * 4)

    def place_of(self, x: _Staged, step: Index, k: Index, line: Index) -> Index:
        """The word, in the stage of a step, where the chunk is that the element there begins."""
        row, chunk = (k, line // self.each) if x.load.across else (line, k // self.each)
        turned = (chunk + row // x.every * x.turn) % x.chunks if x.turn else chunk
        return step % self.around.stages * self.stage + (x.start + row * (x.chunks * self.words)) + turned * self.words

    # -- from global memory

    @contextmanager
    def chunks(self, x: _Staged) -> Iterator[tuple[Index, Index, Index]]:
        """The chunks of a block that are an item's: the number of each, and k and line where it begins."""
        items = prod(self.program.local)
        with self.counted(("part", x.rows * x.chunks // items)) as (number,):
            unit = number * items + self.unit
            row, along = unit // x.chunks, unit % x.chunks * self.each
            yield number, *((row, along) if x.load.across else (along, row))

    def fetch_blocks(self, step: Index, limits: Mapping[Axis, Operand], kept: dict[Tile, Array]) -> None:
        """An item's share of the blocks at a step: copied, or to registers."""
        w, axis, element = self.w, self.around.axis, Var("element", self.each)
        for x in self.operands:
            load, first = x.load, step * axis.block
            with self.chunks(x) as (number, k, line):
                if load.tile not in kept:
                    self.copy(x, self.indices(load.tile, axis, first + k, line), self.place_of(x, step, k, line))
                    continue
                with w.loop(element, 0, self.each, unrolled=True):
                    k, line = (k, line + element.index) if load.across else (k + element.index, line)
                    value = self.element(load, self.indices(load.tile, axis, first + k, line), limits, True)
                    w.store(Access(kept[load.tile], number * self.each + element.index), value)

    def copy(self, x: _Staged, at: Sequence[Index], to: Index) -> None:
        """Copy a chunk; what is outside is 0."""
        w = self.w
        place = Access(self.blocks, w.indexed("to", to), each=self.words)
        tests, chunk = self.chunk(x.load, at, x.line if x.load.across else self.around.axis, self.each, {})
        with self.test(tests):
            w.add(Instruct(COPY, (place, chunk())))
        if tests:
            with w.otherwise():
                w.add(Instruct(CLEAR[self.blocks.type], (place,)))

    def put_blocks(self, step: Index, kept: dict[Tile, Array]) -> None:
        """What went to registers, to local memory."""
        w, dtype, several = self.w, self.dot.into.dtype, self.each // self.words
        for x in self.operands:
            if x.load.tile not in kept:
                continue
            with self.chunks(x) as (number, k, line):
                to = w.indexed("to", self.place_of(x, step, k, line))
                for word in range(self.words):
                    first = number * self.each + word * several
                    values = [Read(Access(kept[x.load.tile], first + n), dtype) for n in range(several)]
                    if several == 1:
                        w.store(Access(self.blocks, to + word), values[0])
                    else:
                        w.add(Instruct(PACK[self.by.of.name], (Access(self.blocks, to + word), *values)))

    # -- fragments

    def fragments(self) -> list[tuple[_Staged, Array, int]]:
        """Registers for the fragments of A and of B, twice, and how many an item has of each."""
        found = []
        operands = sorted(self.operands, key=lambda x: not x.of_a)
        for x, layout, axis in zip(operands, (self.by.a, self.by.b), (self.rows, self.columns), strict=True):
            count = self.tiles(axis) * layout.registers
            found.append((x, self.w.array(x.load.tile.name, layout.type, 2 * count), count))
        return found

    def read(self, fragments: Sequence[tuple[_Staged, Array, int]], step: Index, k: int) -> None:
        """The fragments of a block for the instructions number `k` along k."""
        for x, to, count in fragments:
            read = self.matrices if self.by_matrices(x.load.across) else self.vectors
            read(x, to, k % 2 * count, count, step, k * self.by.k)

    def multiply(self, fragments: Sequence[tuple[_Staged, Array, int]], which: int) -> None:
        """C += the product of the fragments; which: of the two."""
        w, by, into = self.w, self.by, self.registers[self.dot.into]
        assert isinstance(into, Array)
        (_, a, of_a), (_, b, of_b) = fragments
        with self.counted(("tile", self.tiles(self.rows)), ("tile", self.tiles(self.columns))) as (i, j):
            c = (i * self.tiles(self.columns) + j) * by.c.registers
            places = (into, c, by.c), (a, i * by.a.registers + which * of_a, by.a), (b, j * by.b.registers + which * of_b, by.b)
            w.add(Instruct(by.multiply, tuple([Access(array, at, each=x.registers) for array, at, x in places])))

    def by_matrices(self, across: bool) -> bool:
        """Whether an operand's fragments are read by ldmatrix: it has 16-bit numbers transposed, and others as they lie."""
        return self.by.of.itemsize == 2 or (self.by.of.itemsize == 4 and not across)

    @property
    def lane(self) -> Index:
        """The number of the item in its warp."""
        high, low = self.program.digits(Held.ITEM, 0)
        return self.numbers[high] * 4 + self.numbers[low]

    def first_line(self, x: _Staged) -> Index:
        """Where the warp's lines begin in a block."""
        return self.numbers[x.line, WARPS] * self.of_warp(x.line)

    def matrices(self, x: _Staged, to: Array, start: int, count: int, step: Index, k: int) -> None:
        """Fragments by ldmatrix: four matrices of 8 rows of 16 bytes, of which each item says where a row is.

        A's are 8 lines and the next 8, then the same of the next k; B's two k of 8 lines, then of the next 8.
        """
        w, lane, each = self.w, self.lane, self.each
        matrix, row = lane // 8, lane % 8
        line, more = (matrix % 2 * 8, matrix // 2) if x.of_a else (matrix // 2 * 8, matrix % 2)
        with self.counted(("tile", count // 4)) as (number,):
            at, along = self.first_line(x) + number * 16 + line, more * each + k
            given = Access(self.blocks, self.place_of(x, step, *((along + row, at) if x.load.across else (along, at + row))), each=4)
            own = Access(to, number * 4 + start, each=4)
            if to.type == "uint":
                w.add(Instruct(LDMATRIX_ACROSS if x.load.across else LDMATRIX, (own, given)))
                return
            bits = w.array("bits", "uint", 4)
            w.add(Instruct(LDMATRIX, (Access(bits, ZERO, each=4), given)))
            for n in range(4):
                value = Bits(Read(Access(bits, constant(n)), uint32), self.by.of)
                w.store(Access(to, number * 4 + (start + n)), self.rounded(value))

    def vectors(self, x: _Staged, to: Array, start: int, count: int, step: Index, k: int) -> None:
        """Fragments of 16 bytes a read, along the lines or, of numbers of 64 bits, along k."""
        w, each, lane = self.w, self.each, self.lane
        group, own = lane // 4, lane % 4                     # the item's line of eight, and its k of four
        layout, several = (self.by.a, self.by.m // 8) if x.of_a else (self.by.b, self.by.n // 8)

        def put(vector: Expression, element: int, line: Index, second: Index) -> None:
            """line: which of the item's; second: of its two k."""
            at = line // several * layout.registers + line % several + second * several + start
            w.store(Access(to, at), self.rounded(Lanes(vector, element)))

        def read(place: Index) -> Expression:
            return w.declare("several", Read(Access(self.blocks, place, each=each), self.by.of, each))

        if x.load.across:
            with self.counted(("second", 2), ("chunk", count // (2 * each))) as (second, chunk):
                row = own + second * 4 if self.by.of.itemsize == 4 else own * 2 + second
                vector = read(self.place_of(x, step, row + k, self.first_line(x) + (chunk * 8 + group) * each))
                for element in range(each):
                    put(vector, element, chunk * each + element, second)
            return
        with self.counted(("line", count // 2)) as (line,):
            vector = read(self.place_of(x, step, own * each + k, self.first_line(x) + line * 8 + group))
            for element in range(each):
                put(vector, element, line, constant(element))

    def rounded(self, x: Expression) -> Expression:
        """A number as the instruction takes it, which cuts off what TF32 does not have: made longer by half of what that is on average.

        (Numbers that TF32 has stay what they are. To round to the nearest takes two instructions more, and one for NaN.)
        """
        return x if self.by.of != float32 else Infix("*", x, Literal(NEARER, float32))

    # -- results

    def store(self, store: Store) -> None:
        """C's registers go to local memory, those of a few lines at a time, and from there to where they belong, row by row."""
        w, tile, rows, columns = self.w, store.tile, self.rows, self.columns
        high, warps, pitch = self.parts()
        into = self.registers[tile]
        assert isinstance(into, Array)
        with self.counted(("part", rows.digits[PARTS].count)) as (part,):
            w.barrier()
            inner = Axis(rows.name, rows.size, rows.digits[PARTS + 1:])
            with self.spread((inner, columns)) as found:
                registers = {(rows, n + PARTS + 1) if axis is inner else (axis, n): x for (axis, n), x in found.items()}
                registers[rows, PARTS] = part
                line = self.numbers[rows, WARPS] * high + self.sum_of(rows, registers, lambda n, _: n > PARTS)
                value: Expression = Read(Access(into, self.register_of(registers)), self.by.into)
                value = value if self.by.word == self.by.into else Bits(value, self.by.word)
                w.store(Access(self.blocks, line * pitch + self.within(columns, registers)), value)
            w.barrier()
            self.store_lines(store, part, warps, high, pitch)

    def parts(self) -> tuple[int, int, int]:
        """How C goes through local memory, part by part of the rows: lines of a warp in one, warps, words of a line."""
        digits = self.rows.digits
        return prod(d.count for d in digits[PARTS + 1:]), digits[WARPS].count, self.columns.block + PAD

    def store_lines(self, store: Store, part: Index, warps: int, high: int, pitch: int) -> None:
        """The lines in local memory, each by a warp, 32 elements at a time."""
        tile, rows, columns = store.tile, self.rows, self.columns
        groups, lane = self.program.local[1], self.lane
        with self.counted(("warp", warps), ("line", high // groups), ("at", columns.block // WARP), unrolled=1) as (warp, line, column):
            own = line * groups + self.of_group
            i = self.start(rows) + warp * self.of_warp(rows) + part * high + own
            j = self.start(columns) + column * WARP + lane
            place = Access(self.blocks, (warp * high + own) * pitch + column * WARP + lane)
            value: Expression = Read(place, tile.dtype) if self.by.word == self.by.into else Bits(Read(place, self.by.word), tile.dtype)
            self.store_element(store, [i if a is rows else j if a is columns else self.index(a, {}) for a in tile.axes], value)

    def of_warp(self, axis: Axis) -> int:
        """How many lines a warp has."""
        return prod(d.count for d in axis.digits[WARPS + 1:])

    @property
    def of_group(self) -> Index:
        """The number of the warp in its group."""
        found = self.program.digits(Held.ITEM, 1)
        return ravel([self.numbers[d] for d in found], [axis.digits[n].count for axis, n in found])
