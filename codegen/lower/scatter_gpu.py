"""scatter_add and scatter_set on GPUs: the indices are sorted, then each element of the result adds up its own. Start at `scatters`.

Sorting is stable (radix.py), so equal indices stay in order, and results do not depend on that of work-items: no atomics. An item finds
where its row begins among the sorted indices, and goes on as long as they are its row's. Where very many could be (a word of each sentence,
a histogram of few bins), the sorted ones are cut in parts, and a work-group adds up those that are all one row's; an item takes such a sum
in one step. What is set is the last of a row's. Of few indices each item looks at all.
"""

from __future__ import annotations

import numpy as np

from tracegrad.codegen.kernel.expressions import Cast, Expression
from tracegrad.codegen.kernel.index import ZERO, Index
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.types import register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.radix import Keys, by_digits
from tracegrad.codegen.lower.serial import scratch
from tracegrad.codegen.lower.workgroup import WorkGroup, put, room
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning


def scatters(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a scatter; None where they are those of parts' owners."""
    node = group.anchor
    base, index, _ = node.operands
    rows, count = base.shape[0], index.aval.size
    if count <= tuning().scatter_few:
        return [_rows(group, context, None, None, None, 1)]
    if count >= 1 << 31 or rows >= 1 << 31:
        return None

    def row(o: WorkGroup, at: Index) -> Expression:
        return o.writer.let("key", Cast(o.ev.clamped(o.value(index, at), rows - 1), np.dtype(np.uint32)), node)

    found = by_digits(group, context, 1, count, Keys(False, max(1, (rows - 1).bit_length()), row), False)
    if found is None:
        return None
    kernels, keys, order = found
    # The parts of a row's n indices, and what is left of them at both ends, are least where a part has about the root of n.
    part = max(tuning().scatter_part, 1 << (count.bit_length() // 2))
    sums = None
    if node.fn.name == "scatter_add" and count >= 8 * part:
        sums = Temp("part_sums", node, count // part * (base.aval.size // rows), scratch(node.dtype))
        kernels.append(_sums(group, context, keys, order, sums, part))
    return [*kernels, _rows(group, context, keys, order, sums, part)]


def _plus(o: WorkGroup, a: str, b: str) -> str:
    return f"{a} {'|' if o.node.dtype.kind == 'b' else '+'} {b}"


def _nothing(o: WorkGroup) -> str:
    """What changes nothing that it is added to, not even -0.0."""
    return "0" if o.node.dtype.kind != "f" else "-0.0" if o.node.dtype.itemsize == 8 else "-0.0f"


def _sums(group: Group, context: Context, keys: Temp, order: Temp, sums: Temp, part: int) -> Kernel:
    """What the parts of the sorted indices that are all one row's add up: a part and some columns a work-group, with a tree at the end."""
    o = WorkGroup(group, context)
    node = o.node
    base, index, source = node.operands
    rest, count = base.aval.size // base.shape[0], index.aval.size
    type_ = register_type(node.dtype)
    size = room(context, 8)
    across = min(32, size, 1 << (rest - 1).bit_length())
    lines = min(size // across, 1 << (part.bit_length() - 1))
    array = o.shared("tile", type_, across * lines)
    lane = o.number("lane", across, 0, "local") if across > 1 else None
    line = o.number("line", lines, 1, "local")
    column = o.number("column", rest, 0, "global") if rest > 1 else None
    number = o.number("part", count // part, 1, "group")
    sorted_, places, out = (o.temp(t, name, how) for t, name, how in
                            ((keys, "sorted_keys", "const"), (order, "sorted_order", "const"), (sums, "part_sums", "out")))
    column_at = column.index if column is not None else ZERO
    there = f"column < {rest} && " if column is not None and rest % across else ""
    o.lines([
        f"const int first = part * {part};",
        f"const int all = {there}{sorted_}[first] == {sorted_}[first + {part - 1}];",
        f"{type_} total = {_nothing(o)};",
    ], (number, sorted_, *(() if column is None else (column,))))
    bound_ = (column,) if column is not None else ()
    with o.block("if (all) {", *bound_), o.each("e", count, "first + line", f"first + {part}", lines, (line,)):
        at = o.at("number", count, f"{places}[e]", (places,))
        o.lines([f"total = {_plus(o, 'total', o.load(source, at.index * rest + column_at))};"])
    place = "line" if lane is None else f"line * {across} + lane"
    other = "line + half_size" if lane is None else f"(line + half_size) * {across} + lane"
    o.lines([f"{array}[{place}] = total;"], (line,))
    o.barrier()
    with o.block(f"for (int half_size = {lines // 2}; half_size > 0; half_size /= 2) {{"):
        o.lines([f"if (line < half_size) {array}[{place}] = {_plus(o, f'{array}[{place}]', f'{array}[{other}]')};"], (line,))
        o.barrier()
    line_ = put(out, (number.index * rest + column_at).c(), f"{array}[{'0' if lane is None else 'lane'}]")
    o.lines([f"if (all && line == 0) {line_}"], (number, *bound_), (out,))
    return o.done((-(-rest // across) * across, count // part * lines), (across, lines), source.aval.size)


def _rows(group: Group, context: Context, keys: Temp | None, order: Temp | None, sums: Temp | None, part: int) -> Kernel:
    """An element of the result an item, neighbours side by side in a row; of few elements several items, which add up in local memory.

    sums: of parts of the sorted indices.
    """
    o = WorkGroup(group, context)
    node, w, ev = o.node, o.writer, o.ev
    base, index, source = node.operands
    rows, count, size = base.shape[0], index.aval.size, base.aval.size
    rest = size // rows
    type_, adds = register_type(node.dtype), node.fn.name == "scatter_add"
    most, lines = room(context, 8), 1
    if adds and keys is not None:
        while lines < 32 and 8 * lines < most and 2 * lines * size <= context.target.items and lines * rows < count:
            lines *= 2
    across = min(most // lines, 1 << (size - 1).bit_length()) if lines > 1 else min(tuning().owners, context.target.max_work_group)
    items = -(-size // across) * across
    array = o.shared("tile", type_, across * lines) if lines > 1 else None
    i = o.number("i", size, 0, "global")
    lane, line = (o.number("lane", across, 0, "local"), o.number("line", lines, 1, "local")) if lines > 1 else (None, None)
    row, column = i.index // rest, i.index % rest
    in_place = context.ref(node) is base
    found = ["found = 1;"] if in_place and lines == 1 else []                  # an element that no index names stays as it is
    there = f"if (i < {size}) {{" if items > size else "{"
    pointer = o.output()

    def start() -> str:
        if not in_place:
            return o.load(base, i.index)
        o.loaded.append(ev.load(node, context.output(group, node), i.index, (), written=True))
        return o.loaded[-1].name

    def add(number: Index) -> list[str]:
        value = o.load(source, number * rest + column)
        return [f"total = {_plus(o, 'total', value) if adds else value};", *found]

    def sorted_ones() -> None:
        assert keys is not None
        assert order is not None
        sorted_, places = o.temp(keys, "sorted_keys", "const"), o.temp(order, "sorted_order", "const")

        def search(name: str, sign: str) -> list[str]:
            return [f"int {name} = 0, {name}_end = {count};", f"while ({name} < {name}_end) {{",
                    f"  const int middle = {name} + ({name}_end - {name}) / 2;",
                    f"  if ((long){sorted_}[middle] {sign} to) {name} = middle + 1; else {name}_end = middle;", "}"]

        o.lines([*(search("low", "<") if adds else ()), *search("high", "<=")], (sorted_,))       # where the row's begin and end
        if not adds:
            with o.block(f"if (high > 0 && (long){sorted_}[high - 1] == to) {{", reads=(sorted_,)):
                number = o.at("number", count, f"{places}[high - 1]", (places,))
                o.lines(add(number.index), (number,))
            return
        first, step = ("low", "e++") if line is None else ("low + line", f"e += {lines}")
        if sums is None:
            with o.block(f"for (int e = {first}; e < high; {step}) {{"):
                number = o.at("number", count, f"{places}[e]", (places,))
                o.lines(add(number.index), (number,))
            return
        begin = "begin" if line is None else "begin + line"
        o.lines([                                            # what is in whole parts, and what is before and behind
            f"const int begin = (low + {part - 1}) / {part}, end = max(begin, high / {part});",
            f"const int before = min(begin * {part}, high), skipped = end * {part} - before;",
            "const int all = end > begin ? high - skipped : high;",
        ])
        summed = o.temp(sums, "part_sums", "const")
        at_sum = f"e * {rest} + {column.c()}" if rest > 1 else "e"
        with o.block(f"for (int e = {begin}; e < end; {step}) {{", reads=() if line is None else (line,)):
            o.lines([f"total = {_plus(o, 'total', f'{summed}[{at_sum}]')};", *found], (summed, column))
        with o.block(f"for (int e = {first}; e < all; {step}) {{"):
            number = o.at("number", count, f"{places}[end > begin && e >= before ? e + skipped : e]", (places,))
            o.lines(add(number.index), (number,))

    if array is None:
        with o.block(there, i):
            o.lines([f"const {w.index} to = {row.c()};", *(["int found = 0;"] if found else [])], (row,))
            o.lines([f"{type_} total = {start()};"])
            if keys is None:
                with o.each("e", count, "0", str(count)) as e:
                    at = o.load(index, e.index)
                    o.lines([f"const int mine = ({at} < 0 ? 0 : {at} > {rows - 1} ? {rows - 1} : {at}) == to;"])
                    with o.block("if (mine) {", e):
                        o.lines(add(e.index), (e,))
            else:
                sorted_ones()
            stored = put(pointer, i.index.c(), "total")
            o.lines([f"if (found) {stored}" if found else stored], (i,), (pointer,))
        return o.done((items,), (across,))
    assert lane is not None
    assert line is not None
    place, other = f"line * {across} + lane", f"(line + half_size) * {across} + lane"
    o.lines([f"{type_} total = {_nothing(o)};"])
    with o.block(there, i):
        o.lines([f"const {w.index} to = {row.c()};"], (row,))
        sorted_ones()
    o.lines([f"{array}[{place}] = total;"], (line,))
    o.barrier()
    with o.block(f"for (int half_size = {lines // 2}; half_size > 0; half_size /= 2) {{"):
        o.lines([f"if (line < half_size) {array}[{place}] = {_plus(o, f'{array}[{place}]', f'{array}[{other}]')};"], (line,))
        o.barrier()
    with o.block(f"if (line == 0 && i < {size}) {{" if items > size else "if (line == 0) {", i):
        given = start()
        o.lines([put(pointer, i.index.c(), _plus(o, given, f"{array}[lane]"))], (i,), (pointer,))
    share = min(source.aval.size, 2 * part * size) + (0 if sums is None else sums.size)
    return o.done((items, lines), (across, lines), share)
