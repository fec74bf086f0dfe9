"""The derivative of a `while_loop` as loops inside one kernel, in memory of a fixed size. Start at `backward_graph`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.autodiff.derivatives import zeros_like
from tracegrad.control_flow.loop import Body
from tracegrad.control_flow.repeated import Repeated
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.primitive import bind, placeholder
from tracegrad.ops.arrays.indexing import scatter_rows, take_rows
from tracegrad.support import dtypes
from tracegrad.support.dtypes import differentiable

COUNT = Aval((), dtypes.int64)
ROWS, STACK = 1 << 14, 1 << 22          # of a stack of carries in a kernel: at most so many, and bytes


class Inner(Shared):
    """A loop inside the kernel of another one, of `body`'s carries. Results: the last carries and count, and the scratch as it is then."""

    family = "while_loop"

    def __init__(self, kernel: Repeated) -> None:
        super().__init__()
        self.name, self.kernel = "inner_loop", kernel  # type: ignore[misc]

    @property
    def described(self) -> tuple[Any, ...]:
        return self.kernel.described

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(o.aval for o in self.kernel.iteration.outputs[:self.kernel.carries + 1 + self.kernel.scratch])

    def of(self, operands: Sequence[Node]) -> list[Node]:
        """The results for these operands."""
        return [bind(self, tuple(operands), {"index": k}) for k in range(len(self.avals()))]


def backward_graph(body: Body, pull: Body) -> Graph:
    """`Pull` (while_loop.py) as loops that a kernel may hold, in memory of a fixed size.

    The iterations are in segments, of `rows` iterations or as many as it takes for there to be no more than `rows` segments. The first
    loop keeps the carries that each segment begins with. The second one goes through the segments from the last to the first: block by
    block of up to `rows` iterations, it runs the body from the segment's beginning, keeps the carries of the block, and pulls the
    cotangents back. Up to `rows` iterations are one segment, whose beginning is known, so that nothing is computed twice; up to rows ** 2
    a segment is one block, and each iteration is computed once more.
    """
    n = body.carries
    own = [placeholder(p.aval, p.attrs["label"]) for p in body.inputs]
    iterations, first = placeholder(COUNT, "iteration"), [placeholder(p.aval, "ct") for p in pull.inputs[:pull.carries]]
    given = sum(differentiable(p.dtype) for p in body.inputs[:n])
    rows = max(2, min(ROWS, STACK // max(1, sum(p.aval.nbytes for p in own[:n]))))
    rows = 1 << (rows.bit_length() - 1)
    long = ceil_div(iterations, rows).maximum(rows)          # iterations of a segment
    blocks = ceil_div(long, rows)                            # of a segment

    def stacks() -> list[Node]:
        return [placeholder(Aval((rows + 1, *p.shape), p.dtype), "carries") for p in own[:n]]

    def stand_ins(nodes: Sequence[Node]) -> list[Node]:
        return [placeholder(o.aval, str(o.attrs.get("label", ""))) for o in nodes]

    def kept(into: Sequence[Node], row: Node, values: Sequence[Node]) -> list[Node]:
        return [scatter_rows("scatter_set", stack, row, v) for stack, v in zip(into, values, strict=True)]

    # The first loop, of several segments: the row of an iteration inside a segment is the next one's, whose first iteration comes later.
    values, constants, count, into = stand_ins(own[:n]), stand_ins(own[n:]), placeholder(COUNT), stacks()
    length, end = stand_ins([long, iterations])
    several = (length < end) & (count < end)
    begins = Inner(Repeated(values, count, into, [*constants, length, end], body([*values, *constants]),
                            kept(into, ceil_div(count, length), values), several)).of([*own, long, iterations])[n + 1:]

    # One block: from a segment's beginning through `stop` iterations, of which the last ones are kept.
    values, constants, count, into, stop = stand_ins(own[:n]), stand_ins(own[n:]), placeholder(COUNT), stacks(), placeholder(COUNT)
    run = Inner(Repeated(values, count, into, [*constants, stop], body([*values, *constants]),
                         kept(into, count & (rows - 1), values), count < stop))

    # And back from its last iteration, whose carries `run` ends with.
    cts, values, constants, count = stand_ins(first), stand_ins(own[:n]), stand_ins(own[n:]), placeholder(COUNT)
    stack, size = stacks(), placeholder(COUNT)
    before = (size - 2 - count).maximum(0)
    back = Inner(Repeated([*cts, *values], count, (), [*constants, *stack, size], [*pull([*cts, *values, *constants]),
                          *(take_rows(s, before) for s in stack)], (), count < size))

    # The second loop: block by block, from the last.
    cts, constants, count, saved = stand_ins(first), stand_ins(own[n:]), placeholder(COUNT), stacks()
    length, each, end = stand_ins([long, blocks, iterations])
    total = ceil_div(end, length) * each
    at = total - 1 - count
    segment, block = at // each, at % each
    size = ((block + 1) * rows).minimum(length).minimum(end - segment * length) - block * rows
    restored = [take_rows(s, segment) for s in saved]
    ran = run.of([*restored, *constants, block * rows + size - 1])
    pulled = back.of([*cts, *ran[:n], *constants, *ran[n + 1:], size])[:len(cts)]
    outer = Inner(Repeated(cts, count, (), [*constants, *saved, length, each, end], pulled, (), count < total))
    zeros = [zeros_like(p) for p in first[given:]]
    results = outer.of([*first[:given], *zeros, *own[n:], *begins, long, blocks, iterations])[:len(cts)]
    return Graph.capture([*own, iterations, *first[:given]], results)


def ceil_div(a: Node, b: Any) -> Node:
    return (a + (b - 1)) // b  # type: ignore[no-any-return]
