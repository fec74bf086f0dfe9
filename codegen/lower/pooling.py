"""The gradient of max pooling on CPUs: a work-item owns planes, and adds what comes from a window at its place. Start at `lower_pool`.

A plane is small, so it stays in a cache between the zeros and the sums. Where windows do not overlap there is nothing to add up.
"""

from __future__ import annotations

from math import prod

from tracegrad.codegen.kernel.index.index import Index
from tracegrad.codegen.kernel.ir.expressions import Literal, Splat
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.ir.vectors import computed_in
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.serial import KernelBuilder, parts
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.ops.convolution.max_pooling import apart


@lowering("pool")
def lower_pool(group: Group, context: Context) -> list[Kernel]:
    o = KernelBuilder(group, context)
    ev, w, node = o.ev, o.writer, o.node
    given, places = node.operands
    planes, room, windows = node.shape[0], prod(node.attrs["image"]), prod(node.attrs["size"])
    out, zero = context.output(group, node), Literal(0.0, computed_in(node.dtype))
    first, last = o.part("plane", planes, -(-planes // parts(context)))
    with o.loop("plane", planes, first, last) as plane:

        def clear(pixel: Index) -> None:
            ev.store(out, node, plane * room + pixel, zero if ev.width == 1 else Splat(zero, ev.width))

        o.columns("pixel", room, 0, room, clear)
        with o.loop("window", windows) as window:
            to = plane * room + o.clamped(ev.value(places, plane * windows + window), room)
            value = ev.value(given, plane * windows + window)
            if not apart(**node.attrs):
                value = o.add(ev.load(node, out, to, (), written=True), value, w.base(node))
            ev.store(out, node, to, value)
    w.scattered(out.ref)
    return [o.finish()]
