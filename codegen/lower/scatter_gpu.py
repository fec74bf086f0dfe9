"""scatter_add and scatter_set on GPUs: the indices are sorted, then each element of the result adds up its own. Start at `scatters`.

Sorting is stable (radix.py), so equal indices stay in order, and results do not depend on that of work-items: no atomics. An item finds
where its row begins among the sorted indices, and goes on as long as they are its row's. Of few indices each item looks at all.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.index import Index
from tracegrad.codegen.kernel.ir import Kernel, Temp
from tracegrad.codegen.kernel.types import register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.radix import Keys, by_digits
from tracegrad.codegen.lower.workgroup import WorkGroup, put
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning


def scatters(group: Group, context: Context) -> list[Kernel] | None:
    """The kernels of a scatter; None where they are those of parts' owners."""
    node = group.anchor
    base, index, _ = node.operands
    rows, count = base.shape[0], index.aval.size
    if count <= tuning().scatter_few:
        return [_rows(group, context, None, None)]
    if count >= 1 << 31 or rows >= 1 << 31:
        return None

    def text(o: WorkGroup, at: Index) -> str:
        value = o.load(index, at)
        o.lines([f"const uint key = (uint)({value} < 0 ? 0 : {value} > {rows - 1} ? {rows - 1} : {value});"])
        return "key"

    found = by_digits(group, context, 1, count, Keys(False, max(1, (rows - 1).bit_length()), text), False)
    if found is None:
        return None
    kernels, keys, order = found
    return [*kernels, _rows(group, context, keys, order)]


def _rows(group: Group, context: Context, keys: Temp | None, order: Temp | None) -> Kernel:
    """An element of the result an item, neighbours side by side in a row."""
    o = WorkGroup(group, context)
    node, w, ev = o.node, o.writer, o.ev
    base, index, source = node.operands
    rows, count = base.shape[0], index.aval.size
    rest = base.aval.size // rows
    # One dimension: rows may be of any length.
    size = min(tuning().owners, context.target.max_work_group)
    items = -(-base.aval.size // size) * size
    i = o.number("i", base.aval.size, 0, "global")
    type_, adds = register_type(node.dtype), node.fn.name == "scatter_add"
    in_place = context.ref(node) is base
    with o.block(f"if (i < {base.aval.size}) {{" if items > base.aval.size else "{", i):
        row, column = i.index // rest, i.index % rest
        out = context.output(group, node)
        pointer = o.output()
        where = row.c()
        o.lines([f"const {w.index} to = {where};", "int found = 0;"], (row,))
        start = ev.load(node, out, i.index, (), written=True) if in_place else None
        o.lines([f"{type_} total = {start.name if start is not None else o.load(base, i.index)};"], () if start is None else (start,))

        def add(number: Index) -> list[str]:
            value = o.load(source, number * rest + column)
            sign = "|" if node.dtype.kind == "b" else "+"
            return [f"total = total {sign} {value};" if adds else f"total = {value};", "found = 1;"]

        if keys is None or order is None:
            with o.each("e", count, "0", str(count)) as e:
                at = o.load(index, e.index)
                o.lines([f"const int mine = ({at} < 0 ? 0 : {at} > {rows - 1} ? {rows - 1} : {at}) == to;"])
                with o.block("if (mine) {", e):
                    o.lines(add(e.index), (e,))
        else:
            sorted_, places = o.temp(keys, "sorted_keys", "const"), o.temp(order, "sorted_order", "const")
            o.lines([
                f"int low = 0, high = {count};",
                "while (low < high) {",
                "  const int middle = (low + high) / 2;",
                f"  if ((long){sorted_}[middle] < to) low = middle + 1; else high = middle;",
                "}",
            ], (sorted_,))
            with o.block(f"for (int e = low; e < {count} && (long){sorted_}[e] == to; e++) {{", reads=(sorted_,)):
                number = o.at("number", count, f"{places}[e]", (places,))
                o.lines(add(number.index), (number,))
        line = put(pointer, i.index.c(), "total")
        o.lines([f"if (found) {line}" if in_place else line], (i,), (pointer,))
    return o.done((items,), (size,))
