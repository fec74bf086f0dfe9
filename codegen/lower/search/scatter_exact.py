"""Scatters that add scalars, or short rows, on GPUs with atomics of 64 bits: no order of terms changes their sums. Start at `adds_exactly`.

A float32 is an integer of 24 bits, moved by its exponent. An element of the result has a sum as wide as all of these: `limbs`, integers
of 64 bits of which each stands for some of the sum's bits, with room for the carries of all terms. A launch sets them to 0; in the next an
item adds its term to the one or two limbs that the term's bits are in; in the last one an element's limbs become a float32. So the sum is
rounded in the end only, and does not depend on the order in which items come. (Kulisch's accumulator; infinities and NaN are counted in a
limb of their own.)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.index import Index, constant
from tracegrad.codegen.kernel.ir.expressions import Bits, Cast, Expression, Infix, Literal, Load, Prefix, Select, place, whole
from tracegrad.codegen.kernel.ir.kernel import Kernel, Temp
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.workgroup import WorkGroup
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.support.dtypes import float32, int32, int64, uint32
from tracegrad.support.plan import Plain
from tracegrad.support.tuning import tuning

_LOWEST = -149          # the exponent of a float32's least bit,
_BITS = 278             # and how many bits there are from there to its highest
_MIDDLE = 112           # one that a limb begins with: what numbers near 1 have then lies in one


class _Limbs(Plain):
    """How a sum is cut. bits: of a limb, below the room for carries; moved: of the lowest limb that stand below a float32's least bit."""

    bits: int
    moved: int
    count: int          # without that of infinities

    def exponent(self, limb: int) -> int:
        """Of a limb's least bit."""
        return self.bits * limb - self.moved + _LOWEST


def _limbs(terms: int) -> _Limbs:
    bits = 62 - terms.bit_length()
    moved = -_MIDDLE % bits
    return _Limbs(bits, moved, -(-(_BITS + moved) // bits))


def adds_exactly(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of such a scatter; None where it is no such one, or where sorting moves less memory."""
    node = group.anchor
    base, index, source = node.operands
    fn: Any = node.fn
    rest = base.aval.size // base.shape[0]
    if fn.name != "scatter_add" or node.dtype != float32 or not context.target.atomics64 or rest > tuning().exact_columns:
        return None
    limbs = _limbs(index.aval.size)
    if limbs.bits < 24 or base.aval.size > tuning().exact_spread * source.aval.size:
        return None
    sums = Temp("limbs", node, (limbs.count + 1) * base.aval.size, int64)
    return [_zeros(group, context, sums), _terms(group, context, sums, limbs), _rounded(group, context, sums, limbs)]


def in_place(o: WorkGroup) -> bool:
    """Whether the place of what is added to is the result's."""
    return o.context.ref(o.node) is o.context.ref(strip(o.node.operands[0]))


def old(o: WorkGroup, i: Index) -> Expression:
    """What element i is before anything is added to it."""
    return o.ev.load(o.node, o.context.output(o.group, o.node), i, (), written=True) if in_place(o) else o.value(o.node.operands[0], i)


def _zeros(group: Group, context: Context, sums: Temp) -> Kernel:
    o = WorkGroup(group, context)
    out = o.temp(sums, "limbs", "out")
    i, inside = o.elements(sums.size)
    with inside:
        o.writer.store(place(out, i), Literal(0, int64))
    return o.done(sums.size)


def _terms(group: Group, context: Context, sums: Temp, limbs: _Limbs) -> Kernel:
    """Each term is added to its element's limbs."""
    o = WorkGroup(group, context)
    w, node = o.writer, o.node
    base, index, source = node.operands
    size, rows, count = base.aval.size, base.shape[0], source.aval.size
    rest = size // rows
    out = o.temp(sums, "limbs", "inout")
    i, inside = o.elements(count)
    with inside:
        to = w.known("to", rows, o.ev.clamped(o.value(index, i // rest), rows - 1))
        bits = w.let("bits", Bits(o.value(source, i), uint32), node)
        up = w.known("up", 256, Cast(Infix("&", Infix(">>", bits, whole(23)), Literal(255, uint32)), int32))
        low = Cast(Infix("&", bits, Literal((1 << 23) - 1, uint32)), int64)
        digits = w.let("digit", Infix("|", low, Select(Infix("!=", up, 0), Literal(1 << 23, int64), Literal(0, int64))))
        negative = w.let("swap", Infix(">>", bits, whole(31)))
        at = w.known("at", limbs.bits * limbs.count, Infix("+", Select(Infix(">", up, 0), up.index - 1, 0), limbs.moved))
        limb = w.known("place", limbs.count, Infix("/", at, limbs.bits))
        shift = w.known("shift", limbs.bits, Infix("%", at, limbs.bits))

        def add(limb: Index, x: Expression) -> None:
            w.atomic(place(out, limb * size + to.index * rest + i % rest), "add", x, node)

        def signed(x: Expression) -> Expression:
            return Select(Infix("!=", negative, Literal(0, uint32)), Prefix("-", x), x)

        with w.branch(Infix("==", up, 255)):                 # infinities are counted: positive ones, negative ones, and NaN as both
            positive, other = Literal(1, int64), Literal(1 << 31, int64)
            one = Select(Infix("!=", negative, Literal(0, uint32)), other, positive)
            add(constant(limbs.count), Select(Infix("!=", low, Literal(0, int64)), Literal((1 << 31) + 1, int64), one))
        with w.otherwise():
            fits = Infix("-", limbs.bits, shift)             # bits that this limb takes; of 24, a number has no more
            taken = Infix("&", digits, Infix("-", Infix("<<", Literal(1, int64), fits), Literal(1, int64)))
            below = w.let("low", Infix("<<", taken, shift))
            above = w.let("high", Infix(">>", digits, fits))
            with w.branch(Infix("!=", below, Literal(0, int64))):
                add(limb.index, signed(below))
            with w.branch(Infix("!=", above, Literal(0, int64))):
                following = w.known("following", limbs.count, Infix("+", limb, 1))
                add(following.index, signed(above))
    return o.done(count)


def _rounded(group: Group, context: Context, sums: Temp, limbs: _Limbs) -> Kernel:
    """An element's sum as a float32, added to what was there."""
    o = WorkGroup(group, context)
    w, node = o.writer, o.node
    base = node.operands[0]
    size = base.aval.size
    found, out = o.temp(sums, "limbs", "const"), o.output()
    i, inside = o.elements(size)
    one, mask = Literal(1, int64), Literal((1 << limbs.bits) - 1, int64)
    with inside:
        before = old(o, i)
        parts = [w.declare("limb", Load(place(found, i + k * size), int64)) for k in range(limbs.count)]
        special = w.declare("limb", Load(place(found, i + limbs.count * size), int64))
        for part, above in pairwise(parts):                  # carries go up; all but the highest are not negative then
            w.update(above, "+", Infix(">>", part, whole(limbs.bits)))
            w.update(part, "&", mask)
        negative = w.let("swap", Infix("<", parts[-1], Literal(0, int64)))
        with w.branch(negative):                             # its size: the complement, and one
            for part in parts[:-1]:
                w.assign(part, Infix("-", mask, part))
            w.assign(parts[-1], Infix("-", Prefix("-", parts[-1]), one))
            w.update(parts[0], "+", one)
        total = w.let("total", Literal(0.0, float32), node, changes=True)
        for k, part in enumerate(parts):
            scaled: Expression = Cast(part, float32)
            exponent = limbs.exponent(k)
            for step in (-(-exponent // 2), exponent // 2):  # 2 ** exponent may be no float32
                scaled = Infix("*", scaled, Literal(float(np.ldexp(1.0, step)), float32))
            w.assign(total, Infix("+", total, scaled), node)
        w.assign(total, Select(negative, Prefix("-", total), total), node)
        nothing = Infix("==", total, Literal(0.0, float32))
        w.assign(total, Select(nothing, Literal(-0.0, float32), total), node)            # what changes nothing, not even -0.0
        with w.branch(Infix("!=", special, Literal(0, int64))):
            up, down = (Infix("!=", x, Literal(0, int64)) for x in (Infix("&", special, Literal((1 << 31) - 1, int64)),
                                                                      Infix(">>", special, whole(31))))
            infinity = Select(up, Literal(np.inf, float32), Literal(-np.inf, float32))
            w.assign(total, Select(Infix("&&", up, down), Literal(np.nan, float32), infinity), node)
        w.store(place(out, i), Infix("+", before, total), node)
    return o.done(sums.size)
