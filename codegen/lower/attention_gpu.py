"""Attention on GPUs: tiles of scores in registers, their operands in local memory. Start at `lower_on_gpu`.

A work-group has a block of lines of its own and goes over blocks of the others (Dao et al. 2022). Forward: rows, over keys, with a running
softmax. Backward, without atomics: a kernel of rows, over keys, for the gradient of q, which leaves each row's sum of weights times their
gradients behind; and one of keys, over rows, for those of k and v. Both compute the weights again from the logarithms of the rows' sums.

Where these are too few work-groups, the others are cut in ranges (flash-decoding, Dao et al. 2023): a work-group does one of them, and
what it leaves is put together in order, by a kernel of `_Ranges` forward and by a sum of the graph's backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tracegrad.codegen.graph.attention import blocks, full, ranges
from tracegrad.codegen.kernel.index.index import ZERO, Index, Var, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import Access, Array, Buffer, Expression, Infix, Load, Local, Prefix, Select, Splat, combined
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Bound
from tracegrad.codegen.kernel.ir.vectors import ceil_div
from tracegrad.codegen.lower.attention import Attention
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.group_blocks import OTHERS, PAD, GroupBlocks
from tracegrad.errors import CompilerBug
from tracegrad.support.tuning import tuning


def lower_on_gpu(group: Group, context: Context) -> list[Kernel]:
    node = group.anchor
    assert node is not None
    if node.fn.name == "attention_forward":
        return _Groups(group, context, False).forward()
    found = _Groups(group, context, False), _Groups(group, context, True)
    deltas = Temp("deltas", node, found[0].heads * found[0].length, node.dtype)
    return [found[0].backward(deltas), found[1].backward(deltas)]


class _OnGPU(Attention):
    """What the kernels do with rows' numbers."""

    t: GroupBlocks

    def nothing(self, top: Access | Local, total: Access | Local) -> None:
        """Where rows that see nothing are 0: the logarithm of such a row's sum makes weights of 0, in the gradient."""
        w, t = self.writer, self.t
        if self.nothing_is_zero:
            a, b = (x if isinstance(x, Local) else Load(x, self.dtype) for x in (top, total))
            for to, old, new in ((top, a, float("inf")), (total, b, 1.0)):
                found = Select(Infix("==", b, t.literal(0.0)), t.literal(new), old)
                w.assign(to, found) if isinstance(to, Local) else w.store(to, found)

    def rows_numbers(self, out: Buffer, test: Expression | None, row: Index, top: Expression, total: Expression) -> None:
        """What the gradient wants to know of a row, behind the result."""
        w, t, statistics = self.writer, self.t, self.node.attrs["statistics"]
        if statistics:
            base: Expression = t.let("base", Select(Infix("==", top, t.literal(float("-inf"))), t.literal(0.0), top))
            logarithm = self.log(total)
            with t.only(test):
                for number, x in enumerate((Infix("+", base, logarithm),) if statistics == 1 else (base, logarithm)):
                    w.store(Access(out, row + self.heads * self.length * (self.width + number)), x)


class _Groups(_OnGPU):
    """One kernel while it is written. by_keys: its own lines are keys, the others rows; else the other way."""

    head: Index
    i0: Index
    j0: Index

    def __init__(self, group: Group, context: Context, by_keys: bool) -> None:
        super().__init__(group, context)
        self.by_keys = by_keys
        found = blocks(self.node, self.target)
        if found is None:
            raise CompilerBug(f"codegen: {self.node!r}, computed at {self.node.loc}, does not fit into local memory")
        self.own, self.other, self.rows = found.own, found.other, found.rows
        self.t = GroupBlocks(self.writer, self.dtype, found.across, found.down, found.rows, found.padded)
        attrs = self.node.attrs
        given = attrs["row_parts" if by_keys else "parts"] if "parts" in attrs else ranges(self.node, self.target, by_keys)
        self.parts: int = given                                 # that the others are cut in
        self.lines, self.others = (self.keys, self.length) if by_keys else (self.length, self.keys)
        self.apart = self.others > tuning().attention_long

    # -- what is written

    def begin(self) -> None:
        t = self.t
        t.start()
        self.head = t.number("head", self.heads, 1, "group")
        block = t.number("block", ceil_div(self.lines, self.own), 0, "group")
        self.part = t.number("part", self.parts, 2, "group")
        first = self.writer.indexed("j0" if self.by_keys else "i0", block * self.own)
        self.i0, self.j0 = (ZERO, first) if self.by_keys else (first, ZERO)

    def at(self, r: Index, n: Index) -> tuple[Index, Index]:
        """The row and the key of a score of an item."""
        own, other = self.t.line(r), self.t.column(n)
        return (self.i0 + other, self.j0 + own) if self.by_keys else (self.i0 + own, self.j0 + other)

    def outside(self, row: Index, key: Index) -> Expression | None:
        """The test whether there is no such row or key, or the row does not see the key."""
        w, other = self.writer, row if self.by_keys else key
        return combined("||", [Infix(">=", w.at(other), self.others) if self.others % self.other else None,
                             Infix(">", w.at(key), w.at(row)) if self.causal else None])

    def masked(self, scores: Array, at: Index, row: Index, key: Index, slope: Local | None = None) -> None:
        """A score with its masks; slope: what becomes 0 where a score is filled in."""
        w, t = self.writer, self.t
        if self.masks:
            row, key = w.at_most("row", row, self.length - 1), w.at_most("key", key, self.keys - 1)
        for mask in self.masks:
            found = Load(Access(mask.buffer, mask.where(self.heads, self.head, row, key)), mask.buffer.dtype)
            if mask.fill is None:
                t.update(scores, at, "+", found)
                continue
            with w.branch(Prefix("!", found)):
                t.set(scores, at, t.literal(mask.fill))
                if slope is not None:
                    w.assign(slope, t.literal(0.0))

    @contextmanager
    def blocks(self, begin: Index, stop: Index) -> Iterator[None]:
        """The loop over the blocks of the others from `begin` on, or over the group's part of them."""
        w, name = self.writer, "i0" if self.by_keys else "j0"
        if self.parts > 1:
            share = w.indexed("share", (stop - begin + (self.other * self.parts - 1)) // (self.other * self.parts) * self.other)
            if share.terms:                                      # only the running program knows it
                first = w.known(w.own("start"), self.others, Infix("+", w.at(begin), Infix("*", w.at(self.part), w.at(share)))).index
            else:
                first = w.indexed("start", begin + self.part * share)
            least = w.least(stop, first + share)
            end = w.bounding(w.own("end"), self.others, Bound(least, ZERO, first + share, self.others))
            w.bind(end)
            begin, stop = first, end.index
        var = Var(w.own(name), self.others)
        with w.scope(), w.loop(var, begin, stop, self.other):
            if self.by_keys:
                self.i0 = var.index
            else:
                self.j0 = var.index
            yield

    def last(self) -> Index:
        """Where the others that the group's lines see end."""
        w = self.writer
        if self.by_keys or not self.causal:
            return constant(self.others)
        found = w.bounding(w.own("stop"), self.keys, Bound(w.least(self.i0 + self.own, self.keys), ZERO, self.i0 + self.own, self.keys))
        w.bind(found)
        return found.index

    def place(self, total: int, size: int, start: int = 0) -> Callable[[Index], Index]:
        """Where a line of a head's `total` begins, in a part of a result."""
        return lambda line: ((self.part * self.heads + self.head) * total + line) * size + start

    def done(self, about: str, products: int) -> Kernel:
        t, heads = self.t, self.heads
        size, local = (ceil_div(self.lines, self.own) * t.X, heads * t.Y), (t.X, t.Y)
        return self.finish((*size, self.parts) if self.parts > 1 else size, (*local, 1) if self.parts > 1 else local, about, products)

    # -- the kernels

    def forward(self) -> list[Kernel]:
        w, t, (q, k, v) = self.writer, self.t, self.operands()
        L, S, E, V, H = self.length, self.keys, self.size, self.width, self.heads
        given = Temp("parts", self.node, self.parts * H * L * (V + 2), self.dtype)
        out = w.buffer(given, "in_parts", self.dtype, "out") if self.parts > 1 else self.result()
        own, others, others2 = t.local("own", self.own * t.pitch(E)), t.local("others", self.other * t.pitch(E)), t.local(
            "others2", self.other * t.pitch(V))
        weights, tops = t.local("weights", self.own * (self.other + PAD)), t.local("tops", self.own * t.X)
        self.begin()
        t.fetch(own, q, self.own, self.i0, self.head, L, E, self.scale)
        o, chunks = t.filled("o", self.rows * t.chunks(V), 0.0, OTHERS), t.chunks(V)
        top, total = t.filled("top", self.rows, float("-inf")), t.filled("sum", self.rows, 0.0)
        with self.blocks(ZERO, self.last()):
            t.fetch(others, k, self.other, self.j0, self.head // self.times, S, E)
            t.fetch(others2, v, self.other, self.j0, self.head // self.times, S, V)
            w.barrier()
            scores = t.dots("s", own, others, E)
            self.weighted(scores, weights, tops, top, total, o, chunks)
            t.add(o, weights, others2, V, self.apart)
            w.barrier()
        with t.each(r=self.rows) as (r,):
            w.store(Access(weights, t.line(r) * (self.other + PAD) + t.x), t.at(total, r))
        w.barrier()
        with t.each(r=self.rows) as (r,):
            t.across(weights, self.other + PAD, r, t.literal(0.0), lambda share, sum_: Infix("+", sum_, share), total)
        about = f"Attention of {L} rows to {S} keys{self.kinds}; a work-group does {self.own} rows, {self.other} keys at a time."
        if self.parts == 1:
            with t.each(r=self.rows) as (r,):
                self.nothing(Access(top, r), Access(total, r))
            t.store(out, self.place(L, V), self.i0, L, V, lambda r, at: Infix("/", t.at(o, at), Splat(t.at(total, r), OTHERS)))
            with t.each(r=self.rows) as (r,):
                row = w.indexed("row", self.i0 + t.line(r))
                self.rows_numbers(out, self.first(row), self.head * L + bounded(row, 0, L), t.at(top, r), t.at(total, r))
            return [self.done(about, 2)]
        t.store(out, self.place(L, V), self.i0, L, V, lambda r, at: t.at(o, at))
        with t.each(r=self.rows) as (r,):
            row = w.indexed("row", self.i0 + t.line(r))
            with t.only(self.first(row)):
                for number, x in enumerate((top, total)):
                    place = self.place(L, 1, self.parts * H * L * (V + number))(bounded(row, 0, L))
                    w.store(Access(out, place), t.at(x, r))
        return [self.done(about, 2), _Ranges(self.group, self.context).kernel(given, self.parts)]

    def first(self, row: Index) -> Expression | None:
        """The test whether the item is the first of its row's, and there is the row."""
        return combined("&&", [Infix("==", self.writer.at(self.t.x), 0) if self.t.x.terms else None, self.t.less(row, self.length)])

    def weighted(self, scores: Array, weights: Array, tops: Array, top: Array, total: Array, o: Array, chunks: int) -> None:
        """The weights of a block of keys; what the rows have so far, `top`, `total` and `o`, becomes what goes with them."""
        w, t, least = self.writer, self.t, self.t.literal(float("-inf"))
        with t.each(r=self.rows) as (r,):
            high = t.let("high", least, changes=True)
            with t.each(n=OTHERS) as (n,):
                at, (row, key) = r * OTHERS + n, self.at(r, n)
                self.masked(scores, at, row, key)
                if (test := self.outside(row, key)) is not None:
                    with t.only(test):
                        t.set(scores, at, least)
                w.assign(high, Select(Infix(">", t.at(scores, at), high), t.at(scores, at), high))
            w.store(Access(tops, t.line(r) * t.X + t.x), high)
        w.barrier()
        highs = t.registers("highs", self.rows)
        with t.each(r=self.rows) as (r,):
            t.across(tops, t.X, r, t.at(top, r), lambda share, high: Select(Infix(">", share, high), share, high), highs)
        with t.each(r=self.rows) as (r,):                        # where all scores so far are -inf, nothing is subtracted from them
            base = t.let("base", Select(Infix("==", t.at(highs, r), least), t.literal(0.0), t.at(highs, r)))
            shrink = t.let("shrink", self.exp(Infix("-", t.at(top, r), base)))
            t.set(top, r, t.at(highs, r))
            t.update(total, r, "*", shrink)
            with t.each(n=chunks) as (n,):
                t.update(o, r * chunks + n, "*", Splat(shrink, OTHERS))
            some = t.let("some", t.literal(0.0), changes=True)
            with t.each(n=OTHERS) as (n,):
                p = t.let("p", self.exp(Infix("-", t.at(scores, r * OTHERS + n), base)))
                w.update(some, "+", p)
                w.store(Access(weights, t.line(r) * (self.other + PAD) + t.column(n)), p)
            t.update(total, r, "+", some)
        w.barrier()

    def backward(self, temp: Temp) -> Kernel:
        w, t, (q, k, v, flat, g) = self.writer, self.t, self.operands()
        out, L, S, E, V, H = self.result(), self.length, self.keys, self.size, self.width, self.heads
        given = w.buffer(temp, "row_deltas", self.dtype, "const" if self.by_keys else "out")
        own, own2, others, others2 = (t.local(name, lines * t.pitch(size)) for name, lines, size in (
            ("own", self.own, E), ("own2", self.own, V), ("others", self.other, E), ("others2", self.other, V)))
        weights = t.local("weights", self.own * (self.other + PAD))
        rows = self.other if self.by_keys else self.own                        # all items of a row read its numbers
        numbers = [t.local(name, rows) for name in (("tops", "logs") if self.masks else ("logs",))]
        deltas = t.local("deltas", rows) if self.by_keys else t.registers("delta", self.rows)
        self.begin()
        own_head, other_head = (self.head // self.times, self.head) if self.by_keys else (self.head, self.head // self.times)
        first = self.j0 if self.by_keys else self.i0
        for to, source, size in ((own, k if self.by_keys else q, E), (own2, v if self.by_keys else g, V)):
            t.fetch(to, source, self.own, first, own_head, self.lines, size)
        if not self.by_keys:
            self.row_values(flat, g, given, weights, numbers, deltas)
        o = t.filled("o", self.rows * t.chunks(E), 0.0, OTHERS)
        o2 = t.filled("o2", self.rows * t.chunks(V), 0.0, OTHERS) if self.by_keys else o
        begin = self.j0 // self.other * self.other if self.by_keys and self.causal else ZERO
        with self.blocks(begin, self.last()):
            other = self.i0 if self.by_keys else self.j0
            for to, source, size in ((others, q if self.by_keys else k, E), (others2, g if self.by_keys else v, V)):
                t.fetch(to, source, self.other, other, other_head, self.others, size)
            if self.by_keys:
                with t.loop("unit", t.item, self.other, t.X * t.Y) as unit:
                    row = self.head * L + w.at_most("row", self.i0 + unit, L - 1)
                    for number, array in enumerate(numbers):
                        w.store(Access(array, unit), Load(Access(flat, row + H * L * (V + number)), self.dtype))
                    w.store(Access(deltas, unit), Load(Access(given, row), self.dtype))
            w.barrier()
            s, d = t.dots("s", own, others, E), t.dots("d", own2, others2, V)
            with t.each(r=self.rows, n=OTHERS) as (r, n):
                self.slope(s, d, r, n, numbers, deltas)
            if self.by_keys:
                t.put(weights, s)
                t.add(o2, weights, others2, V, self.apart)
                w.barrier()
            t.put(weights, d)
            t.add(o, weights, others, E, self.apart)
            w.barrier()
        start = self.node.attrs["parts"] * H * L * E if self.by_keys else 0
        t.store(out, self.place(self.lines, E, start), first, self.lines, E, lambda r, at: t.at(o, at))
        if self.by_keys:
            t.store(out, self.place(S, V, start + self.parts * H * S * E), first, S, V, lambda r, at: t.at(o2, at))
        what = f"k and v by {self.own} keys, {self.other} rows" if self.by_keys else f"q by {self.own} rows, {self.other} keys"
        return self.done(f"The gradient of attention of {L} rows to {S} keys{self.kinds}: that of {what} at a time.",
                         4 if self.by_keys else 3)

    def slope(self, s: Array, d: Array, r: Index, n: Index, numbers: list[Array], deltas: Array) -> None:
        """A score becomes its weight, and the weight's gradient the score's."""
        t, zero = self.t, self.t.literal(0.0)
        at, (row, key), line = r * OTHERS + n, self.at(r, n), self.t.column(n) if self.by_keys else self.t.line(r)
        scale, slope = t.literal(self.scale), None
        if self.masks:
            t.update(s, at, "*", scale)
            if any(mask.fill is not None for mask in self.masks):
                slope = t.let("slope", scale, changes=True)
            self.masked(s, at, row, key, slope)
        score: Expression = t.at(s, at) if self.masks else Infix("*", t.at(s, at), scale)
        for array in numbers:
            score = Infix("-", score, Load(Access(array, line), self.dtype))
        t.set(s, at, self.exp(score))
        if (test := self.outside(row, key)) is not None:
            with t.only(test):
                t.set(s, at, zero)
        delta = Load(Access(deltas, line if self.by_keys else r), self.dtype)
        found = Infix("*", Infix("*", t.at(s, at), Infix("-", t.at(d, at), delta)), slope or scale)
        t.set(d, at, found if slope is None else Select(Infix("==", slope, zero), zero, found))      # (weights may be NaN)

    def row_values(self, flat: Buffer, g: Buffer, given: Buffer, weights: Array, numbers: list[Array], deltas: Array) -> None:
        """The rows' numbers that the forward kernel left, and what a row's weights times their gradients add up to: products of result
        and cotangent."""
        w, t, L, V = self.writer, self.t, self.length, self.width
        pitch = self.other + PAD
        with t.each(r=self.rows) as (r,):
            row = w.indexed("row", self.head * L + w.at_most("line", self.i0 + t.line(r), L - 1))
            p = t.let("p", t.literal(0.0), changes=True)
            with t.loop("e", t.x, V, t.X) as e:
                w.update(p, "+", Infix("*", *(Load(Access(x, row * V + e), self.dtype) for x in (flat, g))))
            w.store(Access(weights, t.line(r) * pitch + t.x), p)
            with t.only(Infix("==", w.at(t.x), 0)):
                for number, array in enumerate(numbers):
                    w.store(Access(array, t.line(r)), Load(Access(flat, row + self.heads * L * (V + number)), self.dtype))
        w.barrier()
        with t.each(r=self.rows) as (r,):
            t.across(weights, pitch, r, t.literal(0.0), lambda share, sum_: Infix("+", sum_, share), deltas)
            row = self.i0 + t.line(r)
            with t.only(self.first(row), Infix("==", w.at(self.part), 0) if self.part.terms else None):
                w.store(Access(given, self.head * L + bounded(row, 0, L)), t.at(deltas, r))
        w.barrier()


class _Ranges(_OnGPU):
    """What the parts of the keys left, put together in order: (x, y) items do element x, and where these are few every Yth part."""

    def kernel(self, given: Temp, parts: int) -> Kernel:
        elements, rows = self.heads * self.length * self.width, self.heads * self.length
        size, down = self.target.group(tuning().group), 8
        if elements >= full(self.target) or parts < down or size < 4 * down:
            down = 1
        w, across = self.writer, size // down
        t = self.t = GroupBlocks(w, self.dtype, across, down, 1, lambda size: size)
        source, result = w.buffer(given, "in_parts", self.dtype, "const"), self.result()
        shares = [t.local(name, across * down) for name in ("tops", "weights")] if down > 1 else []
        t.start()
        unit = t.number("unit", ceil_div(elements, across) * across, 0, "global")
        at = w.at_most("at", unit, elements - 1)
        row = w.indexed("row", at // self.width)
        zero, least = t.literal(0.0), t.literal(float("-inf"))
        top, total, o = (t.let(name, x, changes=True) for name, x in (("top", least), ("sum", zero), ("o", zero)))

        def of_part(part: Index, number: int) -> Load:
            return Load(Access(source, part * rows + row + parts * (elements + number * rows)), self.dtype)

        with t.loop("part", ZERO, parts, 1) as part:
            w.assign(top, Select(Infix(">", of_part(part, 0), top), of_part(part, 0), top))
        high = t.let("high", Select(Infix("==", top, least), zero, top))
        with t.loop("part", t.y, parts, down) as part:
            p = t.let("p", self.exp(Infix("-", of_part(part, 0), high)))
            w.update(total, "+", Infix("*", p, of_part(part, 1)))
            w.update(o, "+", Infix("*", p, Load(Access(source, part * elements + at), self.dtype)))
        if down > 1:
            for x, share in zip((total, o), shares, strict=True):
                w.store(Access(share, t.y * across + t.x), x)
            w.barrier()
            for x, share in zip((total, o), shares, strict=True):
                w.assign(x, Load(Access(share, t.x), self.dtype))
            with t.loop("r", constant(1), down, 1) as r:
                for x, share in zip((total, o), shares, strict=True):
                    w.update(x, "+", Load(Access(share, r * across + t.x), self.dtype))
        self.nothing(top, total)
        with t.only(Infix("==", w.at(t.y), 0) if down > 1 else None, t.less(unit, elements)):
            place = bounded(unit, 0, elements)                  # not `at`, which several items may have
            w.store(Access(result, place), Infix("/", o, total))
            self.rows_numbers(result, Infix("==", w.at(place % self.width), 0), place // self.width, top, total)
        made = self.finish((ceil_div(elements, across) * across, down), (across, down), f"Puts {parts} ranges of the keys together.", 0)
        made.flops, made.bytes = 4 * parts * elements, (parts + 1) * (elements + 2 * rows) * self.dtype.itemsize
        return made
