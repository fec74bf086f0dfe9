"""Kernels in which every work-item owns a part of the result and fills it by serial loops. Start at `Owner`.

Scatters, scans, searches for the first extremum and sorting are of this form on every target: the order of their steps is fixed,
so results are deterministic. A target differs in how many parts there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tracegrad.codegen.kernel.expressions import Evaluator, Value
from tracegrad.codegen.kernel.index import Index, Var, constant
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.vectors import computed_in
from tracegrad.codegen.kernel.writer import Writer, register_type
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.lower.rows_cpu import SINGLE, vector_width
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.dtypes import DType
from tracegrad.ir import Node

# What the loops of these kernels call their own variables: no value may be called so.
NAMES = frozenset((
    "row", "column", "result", "chunk", "run", "part", "k", "i", "j", "before", "keys", "order", "place", "length", "first", "last",
    "start", "middle", "stop", "done", "low", "high", "probe", "mine", "other", "left", "right", "to", "from_right", "at", "key",
    "child", "from",
    "key_a", "key_b", "from_a", "from_b", "start", "part_part", "part_first", "part_last",
    *(f"{name}_{end}" for name in ("row", "column", "result") for end in ("part", "first", "last")),
))


def parts(context: Context) -> int:
    """Into how many parts to cut the work, at most."""
    return 4 * context.target.cores if context.target.kind == "cpu" else 1024 * context.target.cores


class Owner:
    """One kernel while it is written; `node` is what it computes."""

    def __init__(self, group: Group, context: Context) -> None:
        assert group.anchor is not None
        self.group, self.context, self.node = group, context, group.anchor
        self.writer: Writer = context.writer(group)
        self.writer.used |= NAMES
        self.ev: Evaluator = context.evaluator(group, self.writer)
        self.sizes: list[int] = []

    def item(self, name: str, count: int) -> Index:
        """The number of the work-item along a new dimension of the launch, as variable `name`."""
        var = Var(name, count)
        if count > 1:
            self.writer.line(f"const {self.writer.index} {name} = get_global_id({len(self.sizes)});")
            self.writer.blocks[0].vars |= {var}
            self.sizes.append(count)
        return var.index

    def part(self, name: str, size: int, length: int) -> tuple[str, str]:
        """C texts of the range of 0..size-1 that this work-item owns, `length` each; name: what is counted."""
        if length >= size:
            return "0", str(size)
        w = self.writer
        item = self.item(f"{name}_part", -(-size // length))
        w.line(f"const {w.index} {name}_first = {(item * length).c()};")
        end = f"{name}_first + {length}"
        stop = end if size % length == 0 else f"{end} < {size} ? {end} : {size}"
        w.line(f"const {w.index} {name}_last = {stop};")
        return f"{name}_first", f"{name}_last"

    @contextmanager
    def loop(self, name: str, size: int, first: str = "0", last: str = "") -> Iterator[Index]:
        """`for (name = first; name < last; name++)`; first 1 is known to the index arithmetic."""
        w = self.writer
        if (size, first) == (1, "0"):
            yield constant(0)
            return
        var = Var(name, size - 1, 1) if first == "1" and size > 1 else Var(name, size)
        w.open(f"for ({w.index} {name} = {first}; {name} < {last or size}; {name}++) {{", (var,))
        yield var.index
        w.close()

    def columns(self, name: str, size: int, first: str, last: str, body: Callable[[Index], None]) -> None:
        """body for every column from first to last: in vectors, what is left one by one."""
        w, ev = self.writer, self.ev
        width = vector_width(self.group, self.context) if self.context.target.kind == "cpu" and self.node.dtype.kind != "b" else 1
        if size < width or size == 1:
            width = 1
        known = first == "0" and last == str(size)
        if width > 1:
            var = Var(name, size)
            w.open(f"for ({w.index} {name} = {first}; {name} + {width} <= {last}; {name} += {width}) {{", (var,))
            ev.lane, ev.width = var, width
            body(var.index)
            ev.lane, ev.width = None, 1
            w.close()
        if width > 1 and known and size % width == 0:
            return
        if size == 1:
            body(constant(0))
            return
        start = first if width == 1 else str(size - size % width) if known else f"{last} - ({last} - {first}) % {width}"
        var = Var(name, size)
        w.open(f"for ({w.index} {name} = {start}; {name} < {last}; {name}++) {{", (var,))
        body(var.index)
        w.close()

    def add(self, a: Value, b: Value, name: str, depth: int | None = None) -> Value:
        """a + b in a new variable (of bools: or)."""
        lanes, dtype, w = max(a.lanes, b.lanes), a.dtype, self.writer
        left, right = (self.ev.vector(v) if lanes > 1 else v.text for v in (a, b))
        found = w.declare(register_type(dtype, lanes), name, f"{left} {'|' if dtype.kind == 'b' else '+'} {right}", self.node)
        return Value(found, dtype, lanes, w.depth if depth is None else depth)

    def clamped(self, index: Value, count: int) -> Index:
        """A row number that was read, brought into range: negative ones are 0, those beyond the end the last."""
        w = self.writer
        if count == 1:
            return constant(0)
        text = index.text
        name = w.declare(w.index, "at", f"({w.index})({text} < 0 ? 0 : {text} > {count - 1} ? {count - 1} : {text})", self.node)
        var = Var(name, count)
        w.blocks[-1].vars |= {var}
        return var.index

    def finish(self) -> Kernel:
        if self.context.target.kind == "gpu":
            return self.context.finish(self.group, self.writer, tuple(self.sizes) or (1,), None)
        return self.context.finish(self.group, self.writer, tuple(self.sizes) or (1,), (1,) * max(1, len(self.sizes)), SINGLE)


def scratch(dtype: DType) -> DType:
    """The dtype in which values of `dtype` lie in scratch buffers: one that every device loads and stores plainly."""
    return np.dtype(np.uint8) if dtype.kind == "b" else computed_in(dtype)


def view(node: Node, dim: int) -> tuple[int, int, int]:
    """(outer, n, inner) of a node around its dimension `dim`."""
    outer = inner = 1
    for d, size in enumerate(node.shape):
        outer *= size if d < dim else 1
        inner *= size if d > dim else 1
    return outer, node.shape[dim], inner
