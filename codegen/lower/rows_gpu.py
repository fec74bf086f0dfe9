"""The same groups on devices with many small work-items: one element each, rows by work-groups. Start at `loops`, `columns`.

A reduction over a row is a work-group's: its items stride along the row, then add up in a tree in local memory, always in the
same order. Where local memory is not real (or rows are short) an item does a row by itself.
"""

from __future__ import annotations

from tracegrad.codegen.kernel.expressions import Value
from tracegrad.codegen.kernel.index import ZERO, Index, Var
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.vectors import unwrapped
from tracegrad.codegen.kernel.writer import literal, register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows_cpu import Rows, Shape, r_identity
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.codegen.tuning import tuning
from tracegrad.ir import Node


def loops(group: Group, context: Context) -> list[Kernel]:
    """Elementwise groups, row reductions, and chunks of them."""
    if group.cols is None:
        return [_elementwise(group, context)]
    rows = group.size // group.cols
    shape = Shape(rows, (group.cols,), 1, 1, group.length)
    if group.cols <= tuning().short_row or not context.target.local_memory:
        return [Rows(group, context, shape).kernel()]
    return [Team(group, context, shape).kernel()]


def _elementwise(group: Group, context: Context) -> Kernel:
    w = context.writer(group)
    ev = context.evaluator(group, w)
    n = group.size
    local = min(tuning().group, context.target.max_work_group, n)         # no item without an element: it would read what the others write
    w.line(f"const {w.index} i = get_global_id(0);")
    i = Var("i", n)
    if n % local:
        w.open(f"if (i < {n}) {{", (i,))
    else:
        w.blocks[0].vars |= {i}
    at = i.index
    values = [ev.value(sink, at) for sink in group.stored]
    for sink, value in zip(group.stored, values, strict=True):
        ev.store(context.output(group, sink), sink, at, value)
    if n % local:
        w.close()
    return context.finish(group, w, (-(-n // local) * local,), (local,))


class Team(Rows):
    """A kernel in which a work-group does a row, or a chunk of one."""

    def kernel(self) -> Kernel:
        s, w = self.shape, self.writer
        self.size = 1
        while self.size < min(tuning().group, self.context.target.max_work_group) and self.size < (s.length or s.cols[0]):
            self.size *= 2
        self.kept = {}
        self.scratch: dict[str, str] = {}
        for r in self.reductions:
            type_ = register_type(r.dtype)
            if type_ not in self.scratch:
                self.scratch[type_] = w.unique(f"scratch_{type_}")
                w.line(f"__local {type_} {self.scratch[type_]}[{self.size}];")
        w.line("const int item = get_local_id(0);")
        sizes = [self.size]
        local = [self.size]
        if s.length is not None:
            end = f"chunk * {s.length} + {s.length}"
            w.line(f"const {w.index} chunk = get_group_id(0);")
            self.chunk = Var("chunk", -(-s.cols[0] // s.length)).index
            w.line(f"const {w.index} last = {end if s.cols[0] % s.length == 0 else f'min({end}, {s.cols[0]})'};")
            sizes[0] *= -(-s.cols[0] // s.length)
        if s.rows > 1:
            axis = 0 if s.length is None else 1
            w.line(f"const {w.index} row = get_group_id({axis});")
            row = Var("row", s.rows)
            w.blocks[0].vars |= {row}
            self.row = row.index
            if axis:
                sizes.append(s.rows)
                local.append(1)
            else:
                sizes[0] *= s.rows
        self.depth = w.depth
        self.passes()
        sinks = [x for x in self.group.stored if self.group.place[x] == "row"]
        if sinks:
            w.open("if (item == 0) {", ())
            self.store(sinks, self.row)
            w.close()
        attribute = f"__attribute__((reqd_work_group_size({', '.join(map(str, (local + [1, 1])[:3]))})))"
        return self.context.finish(self.group, w, tuple(sizes), tuple(local), attribute)

    def loops(self, reductions: list[Node], sinks: list[Node]) -> None:
        s, w = self.shape, self.writer
        accumulators = {r: w.declare(register_type(r.dtype), w.base(r), literal(r_identity(r), r.dtype), r) for r in reductions}
        start, stop = ("item", str(s.cols[0])) if s.length is None else (f"chunk * {s.length} + item", "last")
        col = Var("col", s.cols[0])
        w.open(f"for ({w.index} col = {start}; col < {stop}; col += {self.size}) {{", (col,))
        self.body(self.row * s.cols[0] + col.index, reductions, sinks, accumulators)
        w.close()
        for r in reductions:
            self.tree(r, accumulators[r])

    def tree(self, r: Node, accumulator: str) -> None:
        """Combine the items' accumulators in local memory."""
        w, ev = self.writer, self.ev
        scratch = self.scratch[register_type(r.dtype)]
        w.line(f"{scratch}[item] = {accumulator};", r)
        w.line("barrier(CLK_LOCAL_MEM_FENCE);")
        w.open(f"for (int half_size = {self.size // 2}; half_size > 0; half_size /= 2) {{")
        text = ev.translate(ev.combiner(r)(f"{scratch}[item]", f"{scratch}[item + half_size]"), r.dtype, 1)
        w.line(f"if (item < half_size) {scratch}[item] = {unwrapped(text)};", r)
        w.line("barrier(CLK_LOCAL_MEM_FENCE);")
        w.close()
        w.line(f"{accumulator} = {scratch}[0];", r)
        w.line("barrier(CLK_LOCAL_MEM_FENCE);")
        value = Value(accumulator, r.dtype, 1, self.depth)
        if r.fn.family == "partial":
            chunks = r.aval.size // self.shape.rows
            w.open("if (item == 0) {")
            ev.store(self.context.output(self.group, r), r, self.row * chunks + self.chunk, value)
            w.close()
        else:
            ev.put(r, self.row, value)


def columns(group: Group, context: Context) -> list[Kernel]:
    """A work-item adds up one column of one chunk; neighbours read neighbouring columns."""
    assert group.view is not None
    assert group.length is not None
    outer, middle, inner = group.view
    chunks = -(-middle // group.length)
    w = context.writer(group)
    ev = context.evaluator(group, w)
    local = min(64, context.target.max_work_group)
    a: Index = ZERO
    part: Index = ZERO
    w.line(f"const {w.index} col = get_global_id(0);")
    w.line(f"const {w.index} chunk = get_global_id(1);")
    col, chunk = Var("col", inner), Var("chunk", chunks)
    if chunks > 1:
        part = chunk.index
    if outer > 1:
        w.line(f"const {w.index} row = get_global_id(2);")
        row = Var("row", outer)
        w.blocks[0].vars |= {row}
        a = row.index
    w.open(f"if (col < {inner}) {{", (col, chunk))
    reductions = [s for s in group.stored if s.fn.family == "partial"]
    sinks = [s for s in group.stored if s.fn.family != "partial"]
    accumulators = {r: w.declare(register_type(r.dtype), w.base(r), literal(r_identity(r), r.dtype), r) for r in reductions}
    end = (part * group.length + group.length).c() if chunks > 1 else str(middle)
    stop = end if middle % group.length == 0 or chunks == 1 else f"min({end}, {middle})"
    each = Var("r", middle)
    w.open(f"for ({w.index} r = {(part * group.length).c()}; r < {stop}; r++) {{", (each,))
    at = (a * middle + each.index) * inner + col.index
    for r in reductions:
        value = ev.value(r.operands[0], at)
        w.line(f"{accumulators[r]} = {unwrapped(ev.translate(ev.combiner(r)(accumulators[r], value.text), r.dtype, 1))};", r)
    values = [ev.value(sink, at) for sink in sinks]
    for sink, value in zip(sinks, values, strict=True):
        ev.store(context.output(group, sink), sink, at, value)
    w.close()
    for r in reductions:
        ev.store(context.output(group, r), r, (a * chunks + part) * inner + col.index, Value(accumulators[r], r.dtype))
    w.close()
    return [context.finish(group, w, (-(-inner // local) * local, chunks, outer), (local, 1, 1))]
