"""Attention as one program over blocks of rows and keys, with a running softmax. Start at `lower_attention`.

Forward (Milakov & Gimelshein 2018; Dao et al. 2022): a block of rows keeps the rows' maxima, sums and results, goes over blocks of keys,
and where a maximum grows shrinks what it has so far. Backward: the weights are computed again from the scores and the logarithms of the
rows' sums. With the causal mask, blocks that no row sees are left out. No array of all scores exists, and nothing is added atomically.

`Blocks` is what the program is written with. On CPUs a work-item does a block of rows, and backward a range of a head's keys, of which it
makes all three gradients. On GPUs a work-group does a block; backward one kernel goes from rows over keys, for the gradient of q, and one
from keys over rows, for those of k and v. Where these are too few work-groups, the others are cut in ranges (flash-decoding, Dao et al.
2023): what each leaves is put together in order, forward by a kernel of `Ranges`, backward by a sum of the graph's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tracegrad.codegen.graph.attention import blocks, full, ranges
from tracegrad.codegen.kernel.index.index import ZERO, Index, bounded, constant
from tracegrad.codegen.kernel.ir.expressions import Expression, Infix, Load, Select
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Access, Buffer
from tracegrad.codegen.kernel.ir.vectors import ceil_div
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import KernelBuilder
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tile.blocks import Lines, Mask, Side, Tile
from tracegrad.codegen.tile.group_blocks import GroupBlocks, GroupPart
from tracegrad.codegen.tile.item_blocks import ItemBlocks, ItemPart
from tracegrad.support.tuning import tuning

Blocks = ItemBlocks | GroupBlocks               # what the program is written with, see tile/blocks.py
_EXP, _EXP_NONPOSITIVE, _LOG = (f"{name}({{}})".format for name in ("exp", "exp_nonpositive", "log"))


class Attention(KernelBuilder):
    """A kernel of attention while it is written. length, keys, size, width: L, S, E, V. wanted: the operands whose gradients it makes."""

    def __init__(self, group: Group, context: Context, wanted: str = "") -> None:
        super().__init__(group, context)
        self.target, self.wanted, node = context.target, wanted, self.node
        q, k, v = node.operands[:3]
        self.heads, self.length, self.size = q.shape
        self.keys, self.width = k.shape[1], v.shape[2]
        self.dtype = node.dtype
        self.scale, self.causal, self.nothing_is_zero = float(node.attrs["scale"]), node.attrs["causal"], node.attrs["zeros"]
        self.masks: list[Mask] = []
        self.of_rows, self.of_keys = Side(self.length), Side(self.keys, self.heads // k.shape[0])

    # -- buffers and functions

    def operands(self) -> list[Buffer]:
        """Those of the operation, without masks, which become `masks`."""
        described = self.node.attrs["masks"]
        count = len(self.node.operands) - len(described)
        self.masks = [Mask(self.operand_buffer(m), fill, inner, m.shape)
                      for m, (fill, inner) in zip(self.node.operands[count:], described, strict=True)]
        return [self.operand_buffer(x) for x in self.node.operands[:count]]

    def exp(self, x: Expression, nonpositive: bool = False) -> Expression:
        return self.ev.op(_EXP_NONPOSITIVE if nonpositive else _EXP, [x], self.dtype, self.dtype, {})

    def log(self, x: Expression) -> Expression:
        return self.ev.op(_LOG, [x], self.dtype, self.dtype, {})

    def made(self, launch: tuple[tuple[int, ...], tuple[int, ...]], about: str, flops: int) -> Kernel:
        kernel = self.context.finish(self.group, self.writer, *launch, True)
        kernel.comment, kernel.flops = about, flops
        kernel.bytes = sum(n.aval.nbytes for n in (*self.group.reads, *self.group.stored))
        return kernel

    def done(self, t: Blocks, products: int) -> Kernel:
        """The kernel: of `products` products of the scores' size, and 12 for each exponential."""
        of = f"The gradient, of {', '.join(sorted(self.wanted))}, of attention" if self.wanted else "Attention"
        own, other = ("rows", "keys") if t.own is self.of_rows else ("keys", "rows")
        about = (f"{of} of {self.length} rows to {self.keys} keys{', causal' * bool(self.causal)}{', masked' * bool(self.masks)}; "
                 f"{t.who} does {t.own_lines} {own}, {t.other_lines} {other} at a time.")
        seen = self.heads * self.length * self.keys
        seen = seen // 2 if self.causal and self.length == self.keys else seen
        return self.made(t.launch(), about, seen * (products * (self.size + self.width) + 12))

    def blocks(self) -> Blocks:
        """What the program is lowered by, for the device."""
        by_keys = bool(self.wanted) and "q" not in self.wanted
        own, other = (self.of_keys, self.of_rows) if by_keys else (self.of_rows, self.of_keys)
        attrs = self.node.attrs
        parts = attrs["row_parts" if by_keys else "parts"] if self.wanted else ranges(self.node, self.target, False)
        if not self.target.traits.row_groups:
            return ItemBlocks(self.writer, self.dtype, self.heads, own, other, self.causal, parts if self.wanted else 1,
                              tuning().attention_keys, bool(self.wanted))
        b = blocks(self.node, self.target)
        assert b is not None                                     # else the graph would not have the operation
        return GroupBlocks(self.writer, self.dtype, self.heads, own, other, self.of_rows, self.causal, parts,
                           b.across, b.down, b.rows, b.padded)

    # -- masks and rows' numbers

    def masked(self, t: Blocks, scores: ItemPart | GroupPart, masks: Sequence[Tile]) -> None:
        """Scores with their masks."""
        def filled(score: Expression, *found: Expression) -> Expression:
            for mask, x in zip(self.masks, found, strict=True):
                score = Infix("+", score, x) if mask.fill is None else Select(x, score, t.number(mask.fill))
            return score

        if masks:
            scores.map(filled, *masks)

    def based(self, t: Blocks, top: Expression) -> Expression:
        """What is subtracted from a row's scores: where all of them so far are -inf, nothing."""
        return Select(Infix("==", top, t.number(float("-inf"))), t.number(0.0), top)

    def ended(self, t: Blocks, top: Expression, total: Expression) -> tuple[Expression, Expression]:
        """A row's base and sum in the end. Where rows that see nothing are 0, their logarithm makes weights of 0, in the gradient."""
        base, nothing = self.based(t, top), Infix("==", total, t.number(0.0))
        if not self.nothing_is_zero:
            return base, total
        return Select(nothing, t.number(float("inf")), base), Select(nothing, t.number(1.0), total)

    def statistics(self, base: Expression, total: Expression) -> list[Expression]:
        """What the gradient wants to know of a row, behind the result."""
        wanted = self.node.attrs["statistics"]
        return [Infix("+", base, self.log(total))] if wanted == 1 else [base, self.log(total)][:wanted]

    def numbers_start(self, number: int) -> int:
        return self.heads * self.length * (self.width + number)

    # -- the program

    def forward(self) -> list[Kernel]:
        q, k, v = self.operands()
        t, L, E, V = self.blocks(), self.length, self.size, self.width
        elements, rows = t.parts * self.heads * L * V, t.parts * self.heads * L
        in_parts = Temp("parts", self.node, elements + 2 * rows, self.dtype) if t.parts > 1 else None
        out = self.writer.buffer(in_parts, "in_parts", self.dtype, "out") if in_parts else self.output()
        t.start()
        with t.own_blocks():
            of_rows, o = t.load("queries", q, self.of_rows, E, self.scale), t.sum("o", self.of_rows, V, out, 0)
            top, total = t.compute("top", lambda: t.number(float("-inf"))), t.compute("sum", lambda: t.number(0.0))
            with t.other_blocks():
                keys, values = t.load("keys", k, self.of_keys, E), t.load("values", v, self.of_keys, V)
                masks, high = [t.mask(mask) for mask in self.masks], t.compute("high", lambda top: top, top)
                scores = t.product("scores")
                for part in t.dot(scores, of_rows, keys):
                    self.masked(t, part, masks)
                    part.unseen(float("-inf"))
                    part.row_max(high)
                base = t.compute("base", lambda high: self.based(t, high), high)
                shrink = t.compute("shrink", lambda top, base: self.exp(Infix("-", top, base), True), top, base)
                some = t.compute("some", lambda: t.number(0.0))
                for part in t.elements(scores):
                    part.map(lambda x, base: self.exp(Infix("-", x, base), True), base)
                    part.row_sum(some)
                t.change(total, lambda total, shrink, some: Infix("+", Infix("*", total, shrink), some), total, shrink, some)
                t.change(top, lambda high: high, high)
                t.add(o, scores, values, shrink)
            t.totals(total)
            if in_parts:
                t.store(o)
                t.store_numbers(out, [elements, elements + rows], [top, total])
                return [self.done(t, 2), Ranges(self.group, self.context).kernel(in_parts, t.parts)]
            base = t.compute("base", lambda top, total: self.ended(t, top, total)[0], top, total)
            t.change(total, lambda total: self.ended(t, total, total)[1], total)
            t.store(o, lambda o, total: Infix("/", o, total), total)
            found = range(self.node.attrs["statistics"])
            t.store_numbers(out, [self.numbers_start(n) for n in found], [
                t.compute("number", lambda base, total, n=n: self.statistics(base, total)[n], base, total) for n in found])
        return [self.done(t, 2)]

    def gradient(self, deltas: Temp | None) -> Kernel:
        """deltas: of each row what its weights times their gradients add up to: the first kernel leaves them to the second."""
        q, k, v, flat, g = self.operands()
        t, rows, keys, E, V = self.blocks(), self.of_rows, self.of_keys, self.size, self.width
        parts, row_parts = self.node.attrs["parts"], self.node.attrs["row_parts"]
        starts = {"q": 0, "k": parts * self.heads * self.length * E}
        starts["v"] = starts["k"] + row_parts * self.heads * self.keys * E
        sides, out = {"q": (rows, E), "k": (keys, E), "v": (keys, V)}, self.output()
        left = self.writer.buffer(deltas, "row_deltas", self.dtype, "out" if t.own is rows else "const") if deltas else None
        t.start()
        sums = {x: t.sum(f"d{x}", *sides[x], out, starts[x]) for x in self.wanted if sides[x][0] is t.other}
        with t.own_blocks():
            own, own2 = self.loaded(t, t.own, q, k, v, g)
            if t.own is rows:
                numbers, delta = self.row_numbers(t, flat), t.row_dot("delta", flat, g, V)
                if left:
                    t.store_numbers(left, [0], [delta], True)
            sums |= {x: t.sum(f"d{x}", *sides[x], out, starts[x]) for x in self.wanted if x not in sums}
            with t.other_blocks():
                other, other2 = self.loaded(t, t.other, q, k, v, g)
                if t.own is not rows:
                    assert left is not None
                    numbers, delta = self.row_numbers(t, flat), t.row_numbers("delta", left, 0)
                masks = [t.mask(mask) for mask in self.masks]
                weights, slopes = t.product("scores"), t.product("slopes")
                for part in t.dot(weights, own, other):
                    self.masked(t, part, masks)
                    part.map(self.weight, *numbers)
                    part.unseen(0.0)
                for part in t.dot(slopes, own2, other2):
                    part.map(partial(self.slope, t), weights, delta, *masks)
                of = {"q": (slopes, "k"), "k": (slopes, "q"), "v": (weights, "g")}
                lines = dict(zip(("q", "g", "k", "v") if t.own is rows else ("k", "v", "q", "g"), (own, own2, other, other2), strict=True))
                for x in self.wanted:
                    t.add(sums[x], of[x][0], lines[of[x][1]])
            for x in self.wanted:
                t.store(sums[x])
        return self.done(t, 2 + len(self.wanted))

    def loaded(self, t: Blocks, side: Side, q: Buffer, k: Buffer, v: Buffer, g: Buffer) -> tuple[Lines, Lines]:
        """A side's lines of scores, where own ones are scaled, and those of the weights' gradients."""
        (name, x), (name2, y) = (("queries", q), ("cotangents", g)) if side is self.of_rows else (("keys", k), ("values", v))
        return t.load(name, x, side, self.size, self.scale if side is t.own else None), t.load(name2, y, side, self.width)

    def row_numbers(self, t: Blocks, flat: Buffer) -> list[Tile]:
        """What the forward kernel left of rows, which is subtracted from scores."""
        return [t.row_numbers(name, flat, self.numbers_start(n)) for n, name in enumerate(("base", "log") if self.masks else ("log",))]

    def weight(self, score: Expression, *numbers: Expression) -> Expression:
        for x in numbers:
            score = Infix("-", score, x)
        return self.exp(score)

    def slope(self, t: Blocks, product: Expression, weight: Expression, delta: Expression, *masks: Expression) -> Expression:
        """The gradient of a score, of that of its weight: 0 where a mask fills scores in (weights may be NaN)."""
        found: Expression = Infix("*", Infix("*", weight, Infix("-", product, delta)), t.number(self.scale))
        for mask, x in zip(self.masks, masks, strict=True):
            found = found if mask.fill is None else Select(x, found, t.number(0.0))
        return found


@lowering("attention")
def lower_attention(group: Group, context: Context) -> list[Kernel]:
    """A work-item's kernel of the gradient adds to both sides, a work-group's to its own lines alone: so these are two."""
    node = group.anchor
    if node.fn.name == "attention_forward":
        return Attention(group, context).forward()
    gradients = ("q", "vk") if context.target.traits.row_groups else ("qvk",)
    heads, length, _ = node.operands[0].shape
    deltas = Temp("deltas", node, heads * length, node.dtype) if len(gradients) > 1 else None
    return [Attention(group, context, wanted).gradient(deltas) for wanted in gradients]


class Ranges(Attention):
    """What the parts of the keys left, put together in order: (x, y) items do element x, and where these are few every Yth part."""

    def kernel(self, given: Temp, parts: int) -> Kernel:
        elements, rows = self.heads * self.length * self.width, self.heads * self.length
        size, down = self.target.group(tuning().group), 8
        if elements >= full(self.target) or parts < down or size < 4 * down:
            down = 1
        w, across = self.writer, size // down
        t = GroupBlocks(w, self.dtype, self.heads, self.of_rows, self.of_keys, self.of_rows, False, 1, across, down, 1, lambda size: size)
        source, result = w.buffer(given, "in_parts", self.dtype, "const"), self.output()
        shares = [t.local(name, across * down) for name in ("tops", "weights")] if down > 1 else []
        t.start_items()
        unit = w.number("unit", ceil_div(elements, across) * across, 0)
        at = w.at_most("at", unit, elements - 1)
        row = w.indexed("row", at // self.width)
        zero, least = t.literal(0.0), t.literal(float("-inf"))
        top, total, o = (t.let(name, x, changes=True) for name, x in (("top", least), ("sum", zero), ("o", zero)))

        def of_part(part: Index, number: int) -> Load:
            return Load(Access(source, part * rows + row + parts * (elements + number * rows)), self.dtype)

        with t.loop("part", ZERO, parts, 1) as part:
            w.assign(top, t.larger(of_part(part, 0), top))
        high = t.let("high", self.based(t, top))
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
        base, whole = self.ended(t, top, total)
        with t.only(Infix("==", w.at(t.y), 0) if down > 1 else None, t.less(unit, elements)):
            place = bounded(unit, 0, elements)                  # not `at`, which several items may have
            w.store(Access(result, place), Infix("/", o, whole))
            with t.only(Infix("==", w.at(place % self.width), 0) if self.node.attrs["statistics"] else None):
                for n, number in enumerate(self.statistics(base, whole)):
                    w.store(Access(result, place // self.width + self.numbers_start(n)), number)
        size = ceil_div(elements, across) * across
        made = self.made(((size, down), (across, down)), f"Puts {parts} ranges of the keys together.", 4 * parts * elements)
        made.bytes = (parts + 1) * (elements + 2 * rows) * self.dtype.itemsize
        return made
