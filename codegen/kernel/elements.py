"""Elements of buffers: when they are read, and how: one, a vector of neighbours, or lane by lane. Start at `Elements.load`."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import numpy as np

from tracegrad.codegen.kernel.index.guards import Guard, Guards
from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.kernel.ir.expressions import (
    Access,
    At,
    Buffer,
    Convert,
    Expression,
    Held,
    Infix,
    Joined,
    Lanes,
    Limit,
    Load,
    Local,
    Select,
    Splat,
    Spread,
    StridedLoad,
    Zeros,
    Zip,
    whole,
)
from tracegrad.codegen.kernel.ir.vectors import turns
from tracegrad.codegen.kernel.lanes import Vectors, is_name
from tracegrad.codegen.kernel.writer import Writer
from tracegrad.errors import CompilerBug
from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import int32, is_half, uint8
from tracegrad.support.plan import Plain


class Storage(Plain):
    """Where a node's elements lie: what the parameter binds to (an in-place output: its input), and how the kernel may use it."""

    ref: Any
    access: str


class Condition(NamedTuple):
    """Whether guards hold, and what is known where they do."""

    test: Local
    holds: Guards


def _in_groups(flat: Index, n: int, size: int | None) -> bool:
    """Whether the elements around every n-th one are there that make it a group of n: the parts of a complex number, coordinates."""
    start = flat - flat.constant % n
    return size is not None and all(c % n == 0 for _, c in flat.terms) and start.lo >= 0 and start.hi + n - 1 < size


def _limit(limit: int, more: int, dtype: np.dtype[Any]) -> At:
    """What an index less `more` is compared with, where the index is compared with `limit`."""
    return Limit(limit - more, dtype) if more else whole(limit, dtype)


class Elements(Vectors):
    """Reads and writes elements of nodes."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.vectors: list[Load] = []                   # vectors that are read: what chooses a width looks at them

    def condition(self, guards: Guards) -> Condition | None:
        """Whether all guards hold; None if there is nothing to check."""
        if not guards:
            return None
        tests: list[tuple[Expression, bool]] = []
        keys: list[Any] = []
        holds: list[Guard] = []                              # what is tested, and what is known without
        dtype = self.writer.index_dtype
        varying = any(self.varies(g[1].opened()) for g in guards)
        for kind, x, *rest in guards:
            # What is remembered is right wherever it is found again: the index without what holds only where it was asked for.
            opened = x.opened()
            wide = varying and self.varies(opened)
            if kind == "range":
                low, high = rest
                from_, to = x.lo, x.hi + 1
                more = opened.constant if opened.terms else 0            # i - 3 >= 0 is i >= 3
                plain = opened - more
                for sign, limit, needed in ((">=", low, x.lo < low), ("<", high, x.hi >= high)):
                    if needed:
                        one = self._on_one_side(plain, limit - more) if wide else plain
                        at = self.lanes_of(plain) if one is None else At(one, dtype)
                        tests.append((Infix(sign, at, _limit(limit, more, dtype)), one is None))
                        keys.append(((plain if one is None else one).key, sign, limit - more))
                        from_, to = (low, to) if sign == ">=" else (from_, high)
                holds.append(("range", x, from_, to))
            else:
                k, = rest
                if x % k != 0:
                    opened = opened + (-(opened.lo // k) * k if opened.lo < 0 else 0)
                    at = self.lanes_of(opened) if wide else At(opened, dtype)
                    tests.append((Infix("==", Infix("%", at, whole(k, dtype)), whole(0, dtype)), wide))
                    keys.append((opened.key, "%", k))
        if not tests:
            return None
        varying = any(wide for _, wide in tests)
        key = ("guard", *keys, self.width if varying else 1)
        found = self.recall(key)
        if found is None:
            each = [t if wide or not varying else Spread(t, self.width, dtype.itemsize) for t, wide in tests]
            all_ = each[0]
            for t in each[1:]:
                all_ = Infix("&", all_, t)
            found = Condition(self.let("inside", all_), tuple(holds))
            self.remember(key, found, all_.vars)
        return found  # type: ignore[no-any-return]

    def _on_one_side(self, x: Index, limit: int) -> Index | None:
        """An index, the same in all lanes, that is below `limit` where x is; None where lanes may differ.

        Parts that are put side by side often meet between two vectors, or between two rows: then one test tells for all lanes.
        """
        lane = self.lane
        if lane is None or not self.vector_vars.isdisjoint(x.vars):
            return None
        if limit % self.width == 0 and x.starts(lane, self.width):
            return x
        row = Index(tuple([(atom, c) for atom, c in x.terms if lane not in atom.vars]), 0)
        column = x - row
        return row if row.terms and column.lo >= 0 and column.hi < gcd(limit, *[c for _, c in row.terms]) else None

    def load(self, node: Node, stored: Storage, flat: Index, guards: Guards, written: bool = False) -> Local:
        """The element `flat` of a buffer. written: this kernel writes it, too, so it is read here and not before a loop."""
        w, dtype, width = self.writer, node.dtype, self.width
        where, flat = flat, flat.opened()
        condition = self.condition(guards)
        pointer = w.buffer(stored.ref, w.base(node), dtype, stored.access)
        test, holds = condition or (None, ())
        depth = w.depth if written else 0
        base = w.base(node) + ("_i" if flat.vars else "_0")
        uniform = test is None or test.lanes == 1
        if uniform and not self.varies(flat):
            one = Load(Access(pointer, where, guards=holds), dtype)
            return self.let(base, one if test is None else Select(test, one, Zeros(dtype)), None, depth, test)
        stride = flat.stride_of(self.lane, width) if self.lane is not None and self.vector_vars.isdisjoint(flat.vars) else None
        access = Access(pointer, where, width, self.lane, holds)
        memory = uint8 if dtype.kind == "b" else dtype
        half = is_half(dtype)
        if uniform and stride == 2 and not written and dtype.kind != "b" and not half and _in_groups(flat, 2, pointer.size):
            return self.let(base, self.part_of_pairs(node, pointer, flat, condition), None, depth, test)
        apart = 3 <= (stride or 0) <= turns(w.target)
        if uniform and stride and apart and not written and not half and _in_groups(flat, stride, pointer.size):
            parts = self.groups(node, pointer, flat, stride, memory, condition)
            chosen: Expression = StridedLoad(parts, flat.constant % stride)
            if dtype.kind == "b":
                chosen = Infix("!=", Convert(chosen, int32), whole(0))
            return self.let(base, chosen, None, depth, test)
        if uniform and (stride == 1 or (stride is not None and not half)):
            read = Load(access, memory, width, stride)
        else:
            read = Load(access, memory, width, 1, self.places(flat), None if uniform else test, stride == 1)
        self.vectors.append(read)
        value = read if test is None or not uniform else Select(test, read, Zeros(memory, width))
        if dtype.kind == "b":
            return self.let(base, Infix("!=", Convert(value, int32), whole(0)), None, depth, test)
        return self.let(base, value, None, depth, test)

    def part_of_pairs(self, node: Node, pointer: Buffer, flat: Index, condition: Condition | None) -> Expression:
        """Every second element from `flat` on: of vectors that have the others, too, which are asked for next, mostly (complex numbers)."""
        width, start = self.width, flat - flat.constant % 2
        test, holds = condition or (None, ())
        key = ("pairs", pointer, start.key, width, test)
        found = self.recall(key)
        if found is None:
            lanes = min(16, 2 * width)
            made = []
            for first in range(0, 2 * width, lanes):
                read = Load(Access(pointer, start + first, lanes // 2, self.lane, holds, 2), node.dtype, lanes)
                self.vectors.append(read)
                value = read if test is None else Select(test, read, Zeros(node.dtype, lanes))
                made.append(self.let(f"{self.writer.base(node)}_pairs", value))
            found = tuple(made)
            self.remember(key, found, frozenset(found))
        parts = [Lanes(x, "odd" if flat.constant % 2 else "even") for x in found]
        return parts[0] if len(parts) == 1 else Joined(*parts)

    def groups(self, node: Node, pointer: Buffer, flat: Index, n: int, memory: np.dtype[Any], condition: Condition | None
               ) -> tuple[Expression, ...]:
        """The vectors that hold every n-th element from `flat` on, and those between them, which are asked for next, mostly."""
        width, start = self.width, flat - flat.constant % n
        test, holds = condition or (None, ())
        key = ("groups", pointer, start.key, n, width, test)
        found = self.recall(key)
        if found is None:
            made = []
            for skip in range(0, n * width, width):
                read = Load(Access(pointer, start, width, self.lane, holds, n, skip), memory, width)
                self.vectors.append(read)
                value = read if test is None else Select(test, read, Zeros(memory, width))
                made.append(self.let(f"{self.writer.base(node)}_groups", value))
            found = tuple(made)
            self.remember(key, found, frozenset(found))
        return found  # type: ignore[no-any-return]

    def store_pair(self, stored: Storage, node: Node, flat: Index, re: Expression, im: Expression) -> None:
        """Write the parts of complex number(s) `flat` one beside the other."""
        w, dtype, width = self.writer, node.dtype, self.width
        pointer = w.buffer(stored.ref, w.base(node), dtype, stored.access)
        if width == 1 or not self.varies(flat.opened()):
            for k, part in enumerate((re, im)):
                w.store(Access(pointer, flat * 2 + k), part, node)
            return
        re, im = self.vector(re), self.vector(im)
        lanes = min(16, 2 * width)
        halves = [(re, im)] if lanes == 2 * width else [(Lanes(re, which), Lanes(im, which)) for which in ("lo", "hi")]
        for k, (a, b) in enumerate(halves):
            w.store(Access(pointer, flat * 2 + k * lanes, lanes // 2, self.lane, (), 2), Zip(a, b), node)

    def store(self, stored: Storage, node: Node, flat: Index, value: Expression) -> None:
        """Write `value` as element(s) `flat` of `node`; in vector code those of all lanes."""
        w, dtype, width = self.writer, node.dtype, self.width
        pointer = w.buffer(stored.ref, w.base(node), dtype, stored.access)
        if width == 1 or not self.varies(flat.opened()):
            w.store(Access(pointer, flat), value, node)
            return
        if dtype.kind == "b":
            wide = value.lanes > 1
            value = Convert(Infix("&", self.vector(value), whole(1)), uint8) if wide else Splat(Held(value, uint8), width)
        else:
            value = self.vector(value)
        stride = flat.opened().stride_of(self.lane, width) if self.lane is not None else 1
        if stride is None or (stride != 1 and is_half(dtype)):
            raise CompilerBug(f"codegen: a vector of {node!r}, computed at {node.loc}, is written to {flat}, not at even distances")
        if stride != 1 and not is_name(value):
            value = self.let(w.base(node), value, node)
        w.store(Access(pointer, flat, width, self.lane), value, node, stride)
