"""Iterations of a loop whose samples have nothing to do with each other: the body for a part of the batch. Start at `of_part`.

The rows of a recurrence's batch meet nowhere: what an iteration makes of one depends on that row of the carries and of what is scanned,
and on constants. Then a part of the batch can go through all iterations without waiting for the others. The body is made anew for the
smaller batch; an operation whose rule does not stand here, or which mixes the samples, makes an end of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import bind, placeholder


class _Mixed(Exception):
    """The samples of the batch do not stay apart."""


def parts_of(graph: Graph, own: int, cores: int) -> int:
    """Into how many equal parts, up to `cores`, the batch can be cut: the first dimension of all carries and rows (the first `own` inputs).

    1 if there is no such dimension, or more than half of the cores would have nothing to do.
    """
    if not own:
        return 1
    moving = [*graph.inputs[:own], *graph.outputs]
    sizes = {n.shape[0] if n.shape else 1 for n in moving}
    if len(sizes) != 1:
        return 1
    size, = sizes
    found = max((p for p in range(1, cores + 1) if size % p == 0), default=1)
    return found if 2 * found > cores else 1


def of_part(graph: Graph, own: int, parts: int) -> Graph | None:
    """The body for one of equal parts of the batch; None if its samples do not stay apart."""
    size = graph.inputs[0].shape[0]
    part = size // parts
    new: dict[Node, Node] = {}
    at: dict[Node, int] = {}                                 # where the batch is, counted from the last dimension (which is 1)
    for p in graph.inputs[:own]:
        new[p], at[p] = placeholder(Aval((part, *p.shape[1:]), p.dtype), p.attrs["label"]), len(p.shape)
    try:
        for node in graph:
            if node not in new:
                found = [at[o] for o in node.operands if o in at]
                if not found:
                    new[node] = node
                    continue
                with located(node.loc):
                    new[node], at[node] = _smaller(node, [new[o] for o in node.operands], [at.get(o) for o in node.operands], size, part)
        if any(at.get(o) != len(o.shape) for o in graph.outputs):
            return None
    except _Mixed:
        return None
    return Graph.capture([new[p] for p in graph.inputs], [new[o] for o in graph.outputs])


def _smaller(node: Node, operands: list[Node], at: list[int | None], size: int, part: int) -> tuple[Node, int]:
    """The node of a part of the batch, and where the batch is."""
    fn, name, attrs = node.fn, node.fn.name, dict(node.attrs)
    first, *more = {a for a in at if a is not None}
    if fn.reports or more:
        raise _Mixed
    rank = len(node.shape)
    x = node.operands[0]
    dim = len(x.shape) - first                               # of the first operand, if it has the batch
    if fn.family == "elementwise":
        made = [o if a is not None else _shrunk(o, first, size, part) for o, a in zip(operands, at, strict=True)]
        return bind(fn, tuple(made), attrs), first
    if name == "matmul":
        if at[0] is not None and at[1] is not None and first <= 2:
            raise _Mixed
        if (at[0], at[1]) not in ((2, None), (None, 1)) and None in at:
            raise _Mixed
        return bind(fn, tuple(operands), attrs), first
    if name == "concat":
        if node.attrs["dim"] == dim:
            raise _Mixed
        made = [o if a is not None else _shrunk(o, first, size, part) for o, a in zip(operands, at, strict=True)]
        return bind(fn, tuple(made), attrs), first
    if name == "permute":
        return bind(fn, tuple(operands), attrs), rank - node.attrs["dims"].index(dim)
    if name == "reshape":
        before = prod(x.shape[:dim])
        for d, n in enumerate(node.shape):
            if n == size and prod(node.shape[:d]) == before:
                return bind(fn, tuple(operands), {"shape": _with(node.shape, d, part)}), rank - d
        raise _Mixed
    if name == "expand":
        return bind(fn, tuple(operands), {"shape": _with(node.shape, rank - first, part)}), first
    if name == "slice":
        if (attrs["start"][dim], attrs["stop"][dim], attrs["step"][dim]) != (0, size, 1):
            raise _Mixed
        return bind(fn, tuple(operands), attrs | {"stop": _with(attrs["stop"], dim, part)}), first
    if name == "pad":
        if attrs["low"][dim] or attrs["high"][dim] or attrs["interior"][dim]:
            raise _Mixed
        return bind(fn, tuple(operands), attrs), first
    if fn.family == "reduction" and set(attrs) == {"dim"} and dim not in attrs["dim"]:
        return bind(fn, tuple(operands), attrs), first - sum(d > dim for d in attrs["dim"])
    raise _Mixed


def _shrunk(x: Node, at: int, size: int, part: int) -> Node:
    """A value that all samples have in common, where it stands beside those of a part: as large as that, if it was repeated for all."""
    d = len(x.shape) - at
    if d < 0 or x.shape[d] == 1 or size == 1:
        return x
    if x.fn.name == "expand":
        inner = x.operands[0]
        if len(inner.shape) < at or inner.shape[len(inner.shape) - at] == 1:
            return bind(x.fn, (inner,), {"shape": _with(x.shape, d, part)})
    elif x.fn.family == "elementwise" and not x.fn.reports:
        return bind(x.fn, tuple(_shrunk(o, at, size, part) for o in x.operands), x.attrs)
    raise _Mixed


def _with(sizes: Sequence[int], d: int, n: int) -> tuple[int, ...]:
    return (*sizes[:d], n, *sizes[d + 1:])

