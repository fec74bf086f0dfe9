"""Stable sorting by digits of 4 bits, the lowest first, in three launches a digit. Start at `by_digits`.

A row is cut in chunks. The first launch counts each chunk's digits; the second finds where each chunk's elements of each digit go; in the
third a work-group goes over its chunk in tiles, ranks a tile's elements in local memory, and writes them digit by digit, so that neighbours
write side by side. Nothing depends on the order of work-groups. What is sorted by are unsigned numbers (`Keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.statements import Array, Parts
from tracegrad.codegen.kernel.types import register_dtype, register_type
from tracegrad.codegen.kernel.vectors import Compound, Term, ceil_div, plus
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.workgroup import WorkGroup, put, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.dtypes import int32
from tracegrad.ir import Node

_BITS, _DIGITS = 4, 16
_EACH = 4                               # elements of a tile that are one item's


@dataclass(frozen=True)
class Keys:
    """How an element becomes an unsigned number. bits: how many of it count; text(o, at): C for that of element `at`, after its lines."""

    wide: bool                          # 64 bits
    bits: int
    text: Callable[[WorkGroup, Index], str]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint64 if self.wide else np.uint32)

    @property
    def type(self) -> str:
        return "ulong" if self.wide else "uint"

    @staticmethod
    def of(x: Node, descending: bool) -> Keys:
        """Numbers that stand in the order of x's elements: all zeros are one, and so are all NaNs, behind the others."""
        held = register_dtype(x.dtype)
        wide = held.itemsize == 8
        type_, top = ("ulong", 1 << 63) if wide else ("uint", 1 << 31)
        suffix = "UL" if wide else "u"
        held_in = register_type(x.dtype)

        def text(o: WorkGroup, at: Index) -> str:
            value = o.load(x, at)
            o.lines([f"const {held_in} value = {value};"])
            if held.kind == "f":
                o.lines([
                    f"{type_} key = as_{type_}(value == 0 ? ({held_in})0 : value);",
                    f"key = value != value ? {hex((1 << (64 if wide else 32)) - 1)}{suffix} : key >= {hex(top)}{suffix} ? ~key : "
                    f"key | {hex(top)}{suffix};",
                ])
            else:
                signed = f" ^ {hex(top)}{suffix}" if x.dtype.kind == "i" else ""
                wider = f"({'long' if wide else 'int'})" if x.dtype.kind == "i" else ""
                o.lines([f"{type_} key = ({type_}){wider}value{signed};"])
            if descending:
                o.lines(["key = ~key;"])
            return "key"

        bits = 8 * held.itemsize
        if x.dtype.kind in "bu" and not descending:
            bits = 1 if x.dtype.kind == "b" else 8 * x.dtype.itemsize
        return Keys(wide, bits, text)


def by_digits(group: Group, context: Context, rows: int, n: int, keys: Keys, result: bool) -> tuple[list[Kernel], Temp, Temp] | None:
    """The kernels that sort rows of n, and the buffers of the sorted keys and of where each came from; None where that cannot be done.

    result: where they came from is the node's value, and that is all that is wanted.
    """
    node = group.anchor
    size = room(context, 17 * 4 + _EACH * (keys.dtype.itemsize + 4) + 8)
    if size < _DIGITS:
        return None
    tile = size * _EACH
    chunks = max(1, min(ceil_div(context.target.groups(size), rows), ceil_div(n, tile)))
    length = ceil_div(ceil_div(n, chunks), tile) * tile
    chunks = -(-n // length)
    sides = [(Temp(f"sorted_keys_{s}", node, rows * n, keys.dtype), Temp(f"sorted_order_{s}", node, rows * n, int32)) for s in "ab"]
    counts = Temp("digit_counts", node, rows * _DIGITS * chunks, int32)
    kernels: list[Kernel] = []
    source: tuple[Temp, Temp] | None = None
    passes = max(1, -(-keys.bits // _BITS))
    for number in range(passes):
        p = _Pass(group, context, rows, n, size, chunks, length, keys, _BITS * number, source, counts)
        into = sides[number % 2]
        kernels += [p.count(), p.places(), p.move(into, result and number == passes - 1)]
        source = into
    assert source is not None
    return kernels, *source


@dataclass(frozen=True)
class _Pass:
    """One digit. source: keys and places as the digit before left them; None for the first."""

    group: Group
    context: Context
    rows: int
    n: int
    size: int
    chunks: int
    length: int
    keys: Keys
    shift: int
    source: tuple[Temp, Temp] | None
    counts: Temp

    def numbers(self, o: WorkGroup) -> tuple[Var, Var | None, Index]:
        """The item in its group, its chunk, its row."""
        item = o.number("item", self.size, 0, "local")
        chunk = o.number("chunk", self.chunks, 0, "group") if self.chunks > 1 else None
        row = o.number("row", self.rows, 1, "group").index if self.rows > 1 else ZERO
        index = o.writer.index
        stop = f"min(first + {self.length}, {self.n})"
        o.lines([f"const {index} first = {f'chunk * {self.length}' if chunk is not None else '0'};", f"const {index} stop = {stop};"],
                () if chunk is None else (chunk,))
        return item, chunk, row

    def key(self, o: WorkGroup, row: Index, i: Var) -> str:
        """The key of element i of the row."""
        if self.source is None:
            return self.keys.text(o, row * self.n + i.index)
        pointer = o.temp(self.source[0], "keys_in", "const")
        o.lines([f"const {self.keys.type} key = {pointer}[{(row * self.n + i.index).c()}];"], (pointer,))
        return "key"

    def digit(self, key: str) -> str:
        return f"(int)(({key} >> {self.shift}) & {_DIGITS - 1})" if self.shift else f"(int)({key} & {_DIGITS - 1})"

    def at_count(self, row: Index, chunk: Var | None, digit: str) -> Term:
        return plus(row * (_DIGITS * self.chunks) + (chunk.index if chunk is not None else 0), (digit, self.chunks))

    def count(self) -> Kernel:
        """How many of each digit a chunk has."""
        o = WorkGroup(self.group, self.context)
        counts = o.shared("counts", "int", _DIGITS * self.size)
        item, chunk, row = self.numbers(o)
        out = o.temp(self.counts, "digit_counts", "out")
        o.lines([f"for (int e = 0; e < {_DIGITS}; e++) {counts}[e * {self.size} + item] = 0;"], (item,))
        with o.each("i", self.n, "first + item", "stop", self.size, (item,)) as i:
            o.lines([f"{counts}[{self.digit(self.key(o, row, i))} * {self.size} + item] += 1;"], (item,))
        o.barrier()
        with o.block(f"for (int half_size = {self.size // 2}; half_size > 0; half_size /= 2) {{"):
            o.lines([
                f"if (item < half_size) for (int e = 0; e < {_DIGITS}; e++) "
                f"{counts}[e * {self.size} + item] += {counts}[e * {self.size} + item + half_size];"], (item,))
            o.barrier()
        o.lines([f"if (item < {_DIGITS}) {put(out, self.at_count(row, chunk, 'item'), f'{counts}[item * {self.size}]')}"], (item,), (out,))
        return o.done((self.chunks * self.size, self.rows), (self.size, 1), self.rows * self.n)

    def places(self) -> Kernel:
        """Counts become where the first of each goes: those of lower digits, and of the same digit in earlier chunks, are before it."""
        o = WorkGroup(self.group, self.context)
        total, size = _DIGITS * self.chunks, min(self.size, 64 if self.chunks <= 256 else 256)
        each = -(-total // size)
        scratch = o.shared("scratch", "int", size)
        item = o.number("item", size, 0, "local")
        row = o.number("row", self.rows, 1, "group").index if self.rows > 1 else ZERO
        out = o.temp(self.counts, "digit_counts", "inout")
        here = f"{out}[{plus(row * total, 'e')}]"
        o.lines([
            f"const int begin = min({plus(('item', each))}, {total}), end = min(begin + {each}, {total});",
            "int share = 0;",
            f"for (int e = begin; e < end; e++) share += {here};",
            f"{scratch}[item] = share;",
        ], (item, row, out))
        o.barrier()
        o.lines([
            "int carry = 0;",
            f"for (int e = 0; e < item; e++) carry += {scratch}[e];",
            "for (int e = begin; e < end; e++) {",
            f"  const int count = {here};",
            f"  {here} = carry;",
            "  carry += count;",
            "}",
        ], (item, row), (out,))
        return o.done((size, self.rows), (size, 1), self.counts.size)

    def move(self, into: tuple[Temp, Temp], last: bool) -> Kernel:
        """Each element goes to its place; last: only where it came from is written, as the result."""
        o = WorkGroup(self.group, self.context)
        size, tile, type_ = self.size, self.size * _EACH, self.keys.type
        keys, order = o.shared("keys", type_, tile + tile // 32), o.shared("order", "int", tile + tile // 32)
        ranks = o.shared("counts", "int", 17 * size)         # of (digit, item), a gap after every 16: those are one item's to add up
        group = 1 << ((size.bit_length() - 1) // 2)           # what items in front have is added up in two levels
        totals = o.shared("scratch", "int", size + size // group)
        base, begins = o.shared("base", "int", _DIGITS), o.shared("begin", "int", _DIGITS + 1)
        item, chunk, row = self.numbers(o)
        starts = o.temp(self.counts, "digit_counts", "const")
        pointers = [] if last else [o.temp(t, name, "out") for t, name in zip(into, ("keys_out", "order_out"), strict=True)]
        out = o.output() if last else pointers[1]
        index = o.writer.index
        o.lines([f"if (item < {_DIGITS}) {base}[item] = {starts}[{self.at_count(row, chunk, 'item')}];"], (item, starts))
        held = f"e + item * {_EACH}"

        def of(array: Array, text: str) -> str:
            return f"{array}[{text} + {text} / 32]"              # a gap after every 32, as items lie apart

        def place(text: str) -> str:
            return f"{ranks}[{text} + {text} / {_DIGITS}]"

        with o.block(f"for ({index} tile = first; tile < stop; tile += {tile}) {{"):
            o.lines([f"const int count = (int)min(stop - tile, ({index}){tile});"])
            with o.block(f"for (int e = item; e < {tile}; e += {size}) {{"):
                i = o.at("i", self.n, "tile + e", (item,))
                with o.block("if (i < stop) {", i):
                    key = self.key(o, row, i)
                    number = "(int)i"
                    reads: Parts = (item,)
                    if self.source is not None:
                        pointer = o.temp(self.source[1], "order_in", "const")
                        number, reads = f"{pointer}[{(row * self.n + i.index).c()}]", (item, pointer)
                    o.lines([f"{of(keys, 'e')} = {key};", f"{of(order, 'e')} = {number};"], reads)
            o.lines([f"for (int e = 0; e < {_DIGITS}; e++) {place(f'(e * {size} + item)')} = 0;"], (item,))
            o.barrier()
            o.lines([
                f"{type_} key[{_EACH}];",
                f"int number[{_EACH}];",
                "#pragma unroll",                                # key and number stay in registers
                f"for (int e = 0; e < {_EACH}; e++) if ({held} < count) {{",
                f"  key[e] = {of(keys, f'({held})')};",
                f"  number[e] = {of(order, f'({held})')};",
                f"  const int digit = {self.digit('key[e]')};",
                f"  {place(f'(digit * {size} + item)')} += 1;",
                "}",
            ], (item,))
            o.barrier()
            o.lines([
                "int share = 0;",
                f"for (int e = 0; e < {_DIGITS}; e++) share += {ranks}[item * {_DIGITS + 1} + e];",
                f"{totals}[item + item / {group}] = share;",
            ], (item,))
            o.barrier()
            o.lines([f"if (item < {size // group}) {{", "  int all = 0;",
                     f"  for (int e = 0; e < {group}; e++) all += {totals}[item * {group + 1} + e];",
                     f"  {keys}[item] = ({type_})all;", "}"], (item,))
            o.barrier()
            o.lines([
                "int carry = 0;",
                f"for (int e = 0; e < item / {group}; e++) carry += (int){keys}[e];",
                f"for (int e = item / {group} * {group}; e < item; e++) carry += {totals}[e + item / {group}];",
                f"for (int e = 0; e < {_DIGITS}; e++) {{",
                f"  const int here = {ranks}[item * {_DIGITS + 1} + e];",
                f"  {ranks}[item * {_DIGITS + 1} + e] = carry;",
                f"  if ((item * {_DIGITS} + e) % {size} == 0) {begins}[(item * {_DIGITS} + e) / {size}] = carry;",
                "  carry += here;",
                "}",
                f"if (item == {size - 1}) {begins}[{_DIGITS}] = carry;",
            ], (item,))
            o.barrier()
            o.lines([
                "#pragma unroll",                                # key and number stay in registers
                f"for (int e = 0; e < {_EACH}; e++) if ({held} < count) {{",
                f"  const int digit = {self.digit('key[e]')};",
                f"  const int to = {place(f'(digit * {size} + item)')};",
                f"  {place(f'(digit * {size} + item)')} = to + 1;",
                f"  {of(keys, 'to')} = key[e];",
                f"  {of(order, 'to')} = number[e];",
                "}",
            ], (item,))
            o.barrier()
            o.lines([
                f"for (int e = item; e < count; e += {size}) {{",
                f"  const int digit = {self.digit(of(keys, 'e'))};",
                f"  const {index} to = {plus(row * self.n, Compound(f'{base}[digit]'))} + e - {begins}[digit];",
                *([] if last else [f"  {put(pointers[0], 'to', of(keys, 'e'))}"]),
                f"  {put(out, 'to', of(order, 'e'))}",
                "}",
            ], (item, row), (out, *pointers[:1]))
            o.barrier()
            o.lines([f"if (item < {_DIGITS}) {base}[item] += {begins}[item + 1] - {begins}[item];"], (item,))
            o.barrier()
        return o.done((self.chunks * size, self.rows), (size, 1), self.rows * self.n)
