"""Attention on CPUs: tiles of scores that never leave a core's cache, with a running softmax. Start at `lower_on_cpu`.

Forward (Milakov & Gimelshein 2018; Dao et al. 2022): a work-item does a block of rows. It keeps the rows' maxima, sums and results, goes
over blocks of keys, and where a maximum grows shrinks what it has so far. Backward: a work-item does a range of a head's keys; the
weights are computed again from the scores and the logarithms of the rows' sums. With the causal mask, blocks that no row sees are left out.

All arrays of a block have the rows as their last dimension, so that vectors lie along rows: no vector is added up across its lanes.
Products are tiles of accumulators: a scalar of one operand (a key's, a value's) times vectors of the other (`_Tiles.tile`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import At, Expression, Infix, Load, Pointer, Select, Splat, Steps
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.statements import Access, Array, Block, Bound, Buffer, Local, clipped_at
from tracegrad.codegen.kernel.ir.vectors import ceil_div, pieces
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.codegen.tile.blocks import Blocks, Columns, Limit
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import int32, int64
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning


def lower_on_cpu(group: Group, context: Context) -> list[Kernel]:
    assert group.anchor is not None
    tiles = _Tiles(group, context)
    return [tiles.forward() if group.anchor.fn.name == "attention_forward" else tiles.backward()]


class Mask(Plain):
    """A mask operand: bools that keep a score or make it `fill`, or (None) numbers that are added; see ops/attention/fused.py."""

    buffer: Buffer
    fill: float | None
    inner: int
    shape: tuple[int, ...]

    def where(self, heads: int, head: Index, row: Index, key: Index) -> Index:
        """Where the element of a head's row and key is."""
        count, lines, columns = self.shape
        matrix = head // self.inner if count > 1 else ZERO
        matrix = matrix if count * self.inner == heads or count == 1 else matrix % count
        return matrix * (lines * columns) + (row * columns if lines > 1 else 0) + (key if columns > 1 else 0)


class Attention:
    """A kernel of attention while it is written. length, keys, size, width: L, S, E, V."""

    def __init__(self, group: Group, context: Context) -> None:
        node = group.anchor
        assert node is not None
        self.group, self.context, self.node, self.target = group, context, node, context.target
        q, k, v = node.operands[:3]
        self.heads, self.length, self.size = q.shape
        self.keys, self.width = k.shape[1], v.shape[2]
        self.times = self.heads // k.shape[0]                   # so many heads have keys and values in common
        self.dtype = node.dtype
        self.scale, self.causal, self.nothing_is_zero = float(node.attrs["scale"]), node.attrs["causal"], node.attrs["zeros"]
        self.masks: list[Mask] = []
        self.writer = context.writer(group)
        self.ev = context.evaluator(group, self.writer)

    # -- buffers and functions

    def operand(self, node: Node) -> Buffer:
        found = self.context.storage(self.group)(strip(node))
        assert found is not None                                 # the schedule stores what it reads
        return self.writer.buffer(found.ref, self.writer.base(strip(node)), node.dtype, found.access)

    def operands(self) -> list[Buffer]:
        """Those of the operation, without masks, which become `masks`."""
        described = self.node.attrs["masks"]
        count = len(self.node.operands) - len(described)
        self.masks = [Mask(self.operand(m), fill, inner, m.shape)
                      for m, (fill, inner) in zip(self.node.operands[count:], described, strict=True)]
        return [self.operand(x) for x in self.node.operands[:count]]

    @property
    def kinds(self) -> str:
        """What a comment says of masks."""
        return ", causal" * bool(self.causal) + ", masked" * bool(self.masks)

    def result(self) -> Buffer:
        stored = self.context.output(self.group, self.node)
        return self.writer.buffer(stored.ref, self.writer.base(self.node), self.dtype, stored.access)

    def exp(self, x: Expression, weaker: bool = False) -> Expression:
        return self.ev.op(_exp_nonpositive if weaker else _exp, [x], self.dtype, self.dtype, {})

    def log(self, x: Expression) -> Expression:
        return self.ev.op(_log, [x], self.dtype, self.dtype, {})

    def finish(self, launched: tuple[int, ...], local: tuple[int, ...], about: str, products: int) -> Kernel:
        made = self.context.finish(self.group, self.writer, launched, local, True)
        made.comment, made.flops = about, self.work(products)
        made.bytes = sum(n.aval.nbytes for n in (*self.group.reads, *self.group.stored))
        return made

    def work(self, products: int) -> int:
        """Arithmetic of `products` products of the scores' size, and 12 for each exponential."""
        seen = self.heads * self.length * self.keys
        return (seen // 2 if self.causal and self.length == self.keys else seen) * (products * (self.size + self.width) + 12)


class _Tiles(Attention):
    """One kernel for a CPU while it is written. step: keys of a block; kept: the masks of a block of rows and keys.

    A block of rows begins at `i0` and has `rows`; numbers: these rows, if the mask is causal. One of keys begins at `j0` and has `n`; the
    work-item's keys are the `share` from `first` on.
    """

    head: Index
    i0: Index
    rows: Index
    j0: Index
    n: Index

    def __init__(self, group: Group, context: Context) -> None:
        super().__init__(group, context)
        self.t = Blocks(self.writer, self.dtype, 2)
        self.step = max(1, min(tuning().attention_keys, self.keys))
        self.first, self.share = ZERO, self.keys
        self.numbers: list[Local] = []
        self.kept: list[Array] = []

    # -- values

    def item(self, name: str, count: int, axis: int) -> Index:
        return self.writer.item(self.writer.own(name), count, axis).index if count > 1 else ZERO

    # -- places

    def row(self, i: Index) -> Index:
        """Row number i of the block; one beyond the last is it once more: nobody stores what comes of it."""
        return self.writer.at_most("row", self.i0 + i, self.length - 1)

    def of_row(self, buffer: Buffer, row: Index, e: Index, size: int) -> Load:
        """Element e of a head's row."""
        return Load(Access(buffer, (self.head * self.length + row) * size + e), self.dtype)

    def line(self, buffer: Buffer, size: int, factor: float | None, i: Index) -> Callable[[Index], Expression]:
        """The elements of row number i of the block."""
        row = self.row(i)

        def element(e: Index) -> Expression:
            found = self.of_row(buffer, row, e, size)
            return found if factor is None else Infix("*", found, self.t.number(factor))

        return element

    def at_row(self, buffer: Buffer, size: int, start: Index | int, i: Index, e: Index) -> Access:
        """The same to write, of row number i of the block, which is there."""
        return Access(buffer, (self.head * self.length + bounded(self.i0 + i, 0, self.length)) * size + e + start)

    def key(self, j: Index | int) -> Index:
        """Key number j of the block."""
        return self.first + bounded(self.j0 - self.first + j, 0, self.share)

    def of_key(self, block: Pointer, size: int, j: Index, r: int, e: Index) -> Load:
        """Element e of the key number j + r of the block."""
        return Load(Access(block, (j + r) * size + e), self.dtype)

    def of_value(self, block: Pointer, size: int, e: Index, r: int, j: Index) -> Load:
        """Element e + r of the key number j of the block."""
        return Load(Access(block, j * size + e + r), self.dtype)

    @property
    def limits(self) -> list[Limit]:
        """What the number of a key in the block is within."""
        return [(self.j0, self.keys), *[(self.j0 - self.first, self.share)] * bool(self.first.terms)]

    # -- what both kernels do

    def begin_rows(self, i0: Index) -> None:
        """A block of rows."""
        t, self.i0 = self.t, i0
        self.rows = t.left("rows", -i0 + self.length, t.columns)
        dtype = int64 if self.dtype.itemsize == 8 else int32
        for p in range(t.vectors if self.causal else 0):
            first = At(i0 + p * t.lanes, dtype)
            self.numbers.append(t.let(f"row{p}", Infix("+", Splat(first, t.lanes), Steps(dtype, t.lanes)) if t.lanes > 1 else first))

    @contextmanager
    def blocks_of_keys(self, last: Index, k: Buffer, v: Buffer) -> Iterator[tuple[Pointer, Pointer]]:
        """The loop over blocks of keys up to `last`, as far as the block's rows see them. Yields where those of k and v begin."""
        w, t = self.writer, self.t
        stop = last
        if self.causal:
            least = min(self.keys, self.length) if not last.terms else self.keys
            end = self.i0 + t.columns
            found = Bound(w.least(end, last if last.terms else least), ZERO, end, least)
            stop = w.bounding(w.own("stop"), least, found).index
            w.bind(next(iter(stop.vars)))
        var = Var(w.own("j0"), self.keys)
        with w.loop(var, self.first, stop, self.step):
            self.j0 = var.index
            self.n = t.left("n", stop - self.j0, self.step) if stop.terms or stop.constant % self.step else constant(self.step)
            start = self.head // self.times * self.keys + self.j0
            blocks = [w.pointer(w.own(name), x, (), start * size, self.step * size)
                      for name, x, size in (("keys", k, self.size), ("values", v, self.width))]
            for number, mask in enumerate(self.masks):
                t.gather(self.kept[number], self.n, partial(self.masked, mask), self.limits)
            yield blocks[0], blocks[1]

    def masked(self, mask: Mask, i: Index) -> Callable[[Index], Expression]:
        """A mask's numbers, of a row of the block, by keys."""
        row = self.row(i) if mask.shape[1] > 1 else ZERO

        def value(j: Index) -> Expression:
            found = Load(Access(mask.buffer, mask.where(self.heads, self.head, row, self.key(j))), mask.buffer.dtype)
            return found if mask.fill is None else Select(found, self.t.number(1.0), self.t.number(0.0))

        return value

    def keeps(self, number: int, line: Index, p: int) -> Expression:
        """Whether a bool mask keeps scores."""
        return Infix("!=", self.t.read(self.kept[number], line, p), self.t.splat(0.0))

    def scores(self, k: Pointer, qt: Array, j: Index, rows: int) -> list[list[Local]]:
        """A tile of scores, of keys j ... of the block and its rows; what the causal mask leaves out is -inf."""
        w, t = self.writer, self.t
        found = t.dot(rows, "e", constant(self.size), partial(self.of_key, k, self.size, j), t.of(qt))
        for number, mask in enumerate(self.masks):
            for r, p, c in _each(found):
                if mask.fill is None:
                    w.update(c, "+", t.read(self.kept[number], j + r, p))
                else:
                    w.assign(c, Select(self.keeps(number, j + r, p), c, t.splat(mask.fill)))
        if self.causal:
            with w.branch(Infix(">", w.at(self.j0 + j + (rows - 1)), w.at(self.i0))):
                for r, p, c in _each(found):
                    key = t.splat(At(self.j0 + j + r, self.numbers[p].dtype))
                    w.assign(c, Select(Infix(">=", self.numbers[p], key), c, t.splat(float("-inf"))))
        return found

    def add(self, to: Array, size: int, source: Pointer, weights: Array, shrink: list[Local] | None = None) -> None:
        """to += source weights, of the block's keys: (size, rows), (keys, size) and (keys, rows). shrink: `to` is that much of itself.

        Of very many keys a block's sum is made apart, so that no accumulator adds up all of them. (With 16 registers: 1.05 of the time.)
        """
        t, apart = self.t, self.keys > tuning().attention_long
        for e, rows in t.lines("e", constant(size)):
            old = partial(self.shrunk, to, e, shrink)
            value = partial(self.of_value, source, size, e)
            for r, p, c in _each(t.dot(rows, "i", self.n, value, t.of(weights), self.limits, None if apart else old)):
                self.writer.store(t.at(to, e + r, p), Infix("+", old(r, p), c) if apart else c)

    def shrunk(self, block: Array, line: Index, shrink: list[Local] | None, r: int, p: int) -> Expression:
        found = self.t.read(block, line + r, p)
        return Infix("*", found, shrink[p]) if shrink else found

    # -- the kernels

    def forward(self) -> Kernel:
        q, k, v = self.operands()
        w, t, out, statistics = self.writer, self.t, self.result(), self.node.attrs["statistics"]
        L, S, E, V, B = self.length, self.keys, self.size, self.width, self.t.columns
        block, self.head = self.item("row_block", ceil_div(L, B), 0), self.item("head", self.heads, 1)
        self.begin_rows(w.indexed("i0", block * B))
        qt, st, ot = t.keep("qt", E), t.keep("st", self.step), t.keep("ot", V)
        self.kept = [t.keep("mt", self.step) for _ in self.masks]
        t.gather(qt, constant(E), partial(self.line, q, E, self.scale))
        t.fill(ot, t.number(0.0))
        zero, least = t.splat(0.0), t.splat(float("-inf"))
        top = t.values("top", lambda p: least, changes=True)
        total, base = (t.values(name, lambda p: zero, changes=True) for name in ("sum", "base"))
        if S:
            with w.scope(), self.blocks_of_keys(constant(S), k, v) as (keys, values):
                high = t.values("high", lambda p: top[p], changes=True)
                for j, rows in t.lines("j", self.n, self.limits):
                    for r, p, c in _each(self.scores(keys, qt, j, rows)):
                        w.store(t.at(st, j + r, p), c)
                        w.assign(high[p], t.larger(c, high[p]))
                for p in range(t.vectors):                       # where all scores so far are -inf, nothing is subtracted from them
                    w.assign(base[p], Select(Infix("==", high[p], least), zero, high[p]))
                shrink = t.values("shrink", lambda p: self.exp(Infix("-", top[p], base[p]), True))
                some = t.values("some", lambda p: zero, changes=True)
                with w.scope(), t.counted("j", self.n) as j:
                    for p in range(t.vectors):
                        x = t.let(f"x{p}", self.exp(Infix("-", t.read(st, j, p), base[p]), True))
                        w.store(t.at(st, j, p), x)
                        w.update(some[p], "+", x)
                for p in range(t.vectors):
                    w.assign(total[p], Infix("+", Infix("*", total[p], shrink[p]), some[p]))
                    w.assign(top[p], high[p])
                self.add(ot, V, values, st, shrink)
        for p in range(t.vectors if self.nothing_is_zero else 0):       # the logarithm makes weights of 0, in the gradient
            nothing = Infix("==", total[p], zero)
            w.assign(base[p], Select(nothing, t.splat(float("inf")), base[p]))
            w.assign(total[p], Select(nothing, t.splat(1.0), total[p]))
        with w.scope(), t.counted("e", constant(V)) as e:
            for p in range(t.vectors):
                w.store(t.at(ot, e, p), Infix("/", t.read(ot, e, p), total[p]))
        within = self.i0, L
        t.scatter(ot, V, self.rows, within, partial(self.at_row, out, V, 0))
        for number in range(statistics):
            for p in range(t.vectors):
                value = [base[p], self.log(total[p])]
                w.store(t.at(st, 0, p), Infix("+", *value) if statistics == 1 else value[number])
            t.scatter(st, 1, self.rows, within, partial(self.at_row, out, 1, self.heads * L * (V + number)))
        about = f"Attention of {L} rows to {S} keys{self.kinds}; a work-item does {B} rows, {self.step} keys at a time."
        return self.finish((ceil_div(L, B), self.heads), (1, 1), about, 2)

    def backward(self) -> Kernel:
        q, k, v, flat, g = self.operands()
        w, t, out, parts = self.writer, self.t, self.result(), self.node.attrs["parts"]
        L, S, E, V, B, H = self.length, self.keys, self.size, self.width, self.t.columns, self.heads
        self.head, part, last = self.item("head", H, 0), self.item("part", parts, 1), constant(S)
        if parts > 1:
            self.share = ceil_div(S, parts)
            self.first = w.indexed("first", part * self.share)
            last = w.bounding(w.own("last"), S, clipped_at(self.first + self.share, S, True)).index
            w.bind(next(iter(last.vars)))
        start = parts * H * L * E
        dk, dv = _Slopes(out, start, E), _Slopes(out, start + H * S * E, V)
        for slopes in (dk, dv):
            with w.scope(), t.counted("e", last * slopes.size, self.first * slopes.size) as e:
                w.store(Access(out, self.head * (S * slopes.size) + e + slopes.start), t.number(0.0))
        qt, gt, dqt = t.keep("qt", E), t.keep("gt", V), t.keep("dqt", E)
        st, dt, deltas = t.keep("st", self.step), t.keep("dt", self.step), t.keep("deltas", 1)
        numbers = [t.keep(name, 1) for name in (("tops", "logs") if self.masks else ("logs",))]
        self.kept = [t.keep("mt", self.step) for _ in self.masks]
        i0 = Var(w.own("i0"), L)
        with w.loop(i0, 0, L, B):
            self.begin_rows(i0.index)
            t.gather(qt, constant(E), partial(self.line, q, E, self.scale))
            t.gather(gt, constant(V), partial(self.line, g, V, None))
            self.of_rows(flat, g, numbers, deltas)
            t.fill(dqt, t.number(0.0))
            delta = t.values("d", partial(t.read, deltas, 0))
            names = ("base", "log")[-len(numbers):]
            less = [t.values(name, partial(t.read, block, 0)) for name, block in zip(names, numbers, strict=True)]
            with w.scope(), self.blocks_of_keys(last, k, v) as (keys, values):
                for j, rows in t.lines("j", self.n, self.limits):
                    for r, p, c in _each(self.scores(keys, qt, j, rows)):
                        score: Expression = c
                        for numbers_ in less:
                            score = Infix("-", score, numbers_[p])
                        w.store(t.at(st, j + r, p), self.exp(score))
                for j, rows in t.lines("j", self.n, self.limits):
                    for r, p, c in _each(t.dot(rows, "e", constant(V), partial(self.of_key, values, V, j), t.of(gt))):
                        slope: Expression = Infix("*", t.read(st, j + r, p), Infix("-", c, delta[p]))
                        slope = Infix("*", slope, t.splat(self.scale))
                        for number, mask in enumerate(self.masks):
                            if mask.fill is not None:
                                slope = Select(self.keeps(number, j + r, p), slope, t.splat(0.0))
                        w.store(t.at(dt, j + r, p), slope)
                self.add(dqt, E, keys, dt)
                self.add_to_keys(dv, g, st)
                self.add_to_keys(dk, q, dt)
            t.scatter(dqt, E, self.rows, (self.i0, L), partial(self.at_row, out, E, part * (H * L * E)))
        part_of = "a head" if parts == 1 else f"one of {parts} ranges of a head's keys"
        share = f"a work-item does {part_of}, {B} rows and {self.step} keys at a time."
        about = f"The gradient of attention of {L} rows to {S} keys{self.kinds}; {share}"
        return self.finish((H, parts) if parts > 1 else (H,), (1, 1) if parts > 1 else (1,), about, 5)

    def of_rows(self, flat: Buffer, g: Buffer, numbers: Sequence[Array], deltas: Array) -> None:
        """What the forward kernel left of the block's rows, and what their weights times these' gradients add up to."""
        w, t, V, behind = self.writer, self.t, self.width, self.heads * self.length
        with w.scope(), t.counted("i", constant(t.columns)) as i:
            row = self.row(i)
            for number, block in enumerate(numbers):
                w.store(Access(block, i), self.of_row(flat, row, constant(behind * (V + number)), 1))
            delta = t.let("delta", t.number(0.0), changes=True)
            with w.scope(), t.counted("e", constant(V)) as e:
                w.update(delta, "+", Infix("*", self.of_row(g, row, e, V), self.of_row(flat, row, e, V)))
            w.store(Access(deltas, i), delta)

    def add_to_keys(self, to: _Slopes, source: Buffer, weights: Array) -> None:
        """The block's keys (keys, size) += weights (keys, rows) source (rows, size): vectors along `size`."""
        w, t, size = self.writer, self.t, to.size
        found = [(start + at, width) for start in range(0, size, t.lanes) for at, width in pieces(0, min(t.lanes, size - start))]

        def columns(at: int, width: int) -> Columns:
            return width, lambda i: Load(Access(source, (self.head * self.length + self.i0 + i) * size + at, each=width), self.dtype, width)

        for j, rows in t.lines("j", self.n, self.limits):
            for chosen in (found[i:i + t.vectors] for i in range(0, len(found), t.vectors)):
                with w.scope(), w.block(Block("{")):
                    sums = t.dot(rows, "i", self.rows, partial(t.element, weights, j), [columns(*piece) for piece in chosen],
                                 [(self.i0, self.length)])
                    for r, p, c in _each(sums):
                        at, width = chosen[p]
                        place = Access(to.buffer, (self.head * self.keys + self.key(j + r)) * size + (at + to.start), each=width)
                        w.store(place, Infix("+", Load(place, self.dtype, width), c))


class _Slopes(Plain):
    """A gradient of keys or values: from `start` on in a buffer, in rows of `size`."""

    buffer: Buffer
    start: int
    size: int


def _each(tile: Sequence[Sequence[Local]]) -> Iterator[tuple[int, int, Local]]:
    """The accumulators of a tile, each with its line and the number of its vector."""
    return ((r, p, c) for r, row in enumerate(tile) for p, c in enumerate(row))


def _exp(x: str) -> str:
    return f"exp({x})"


def _exp_nonpositive(x: str) -> str:
    return f"exp_nonpositive({x})"


def _log(x: str) -> str:
    return f"log({x})"
