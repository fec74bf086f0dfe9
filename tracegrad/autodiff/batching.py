"""Batching, graph to graph: `batch` maps a graph over a new leading dimension. One rule per op *family*, none per op.

A node that depends on no mapped input stays as it is. A mapped node's batched twin has one more dimension, in front. What has
no rule here (a custom Function's call, a convolution with mapped weights) is unrolled: applied to each slice, and stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracegrad.graph.ir import Node, topological
from tracegrad.graph.leaf_operations import Bundle, CustomCall, Shared
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind, const, iota
from tracegrad.ops.primitives.movement import concat, expand, narrow, permute, reshape

Rule = Callable[[Node, list[Node], list[bool], int], Node]


def batch(outputs: Sequence[Node], mapped: Mapping[Node, Node], size: int) -> list[Node]:
    """`outputs` with each node of `mapped` replaced by its value, whose first dimension (of `size`) is the batch.

    Every result has the batch dimension in front, broadcast there if it depends on no mapped node.
    """
    order = topological(outputs, mapped.__contains__)
    new: dict[Node, Any] = dict(mapped)
    depends = set(mapped)
    for node in order:
        if node in depends:
            continue
        flags = [o in depends for o in node.operands]
        if not any(flags):
            continue
        depends.add(node)
        operands = [new.get(o, o) for o in node.operands]
        with located(node.loc):
            if node.fn is REGISTRY["output"] and isinstance(operands[0], tuple):
                new[node] = operands[0][node.attrs["index"]]
            elif isinstance(node.fn, CustomCall) and node.fn.batched is not None:
                given = (operands, flags) if node.fn.partial else (_all_mapped(operands, flags, size),)
                new[node] = tuple(node.fn.batched(*given, size))
            elif node.fn.family in ("loop", "while_loop"):
                new[node] = node.fn.batched_result(node, operands, flags, size)  # type: ignore[attr-defined]
            elif node.fn is REGISTRY["output"] and isinstance(operands[0], list):
                new[node] = _stack([bind(node.fn, (call,), node.attrs) for call in operands[0]])
            elif isinstance(node.fn, Bundle):
                new[node] = [bind(node.fn, slices, node.attrs) for slices in _slices(operands, flags, size)]
            else:
                new[node] = FAMILIES.get(node.fn.family, _unrolled)(node, operands, flags, size)
    return [new[o] if o in depends else spread(o, size) for o in outputs]


def spread(x: Node, size: int) -> Node:
    """x repeated along a new first dimension."""
    return expand(reshape(x, (1, *x.shape)), (size, *x.shape))


def _all_mapped(operands: list[Node], flags: list[bool], size: int) -> list[Node]:
    return [o if f else spread(o, size) for o, f in zip(operands, flags, strict=True)]


def _slices(operands: list[Node], flags: list[bool], size: int) -> list[tuple[Node, ...]]:
    return [tuple(reshape(narrow(o, 0, b, 1), o.shape[1:]) if f else o for o, f in zip(operands, flags, strict=True)) for b in range(size)]


def _stack(parts: list[Node]) -> Node:
    return concat([reshape(p, (1, *p.shape)) for p in parts], 0)


def _unrolled(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    return _stack([bind(node.fn, slices, node.attrs) for slices in _slices(operands, flags, size)])


def _elementwise(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    """Operands broadcast from the right, so mapped ones of fewer dimensions get ones behind the batch dimension."""
    if node.fn.boundary and len(operands) > 1:              # what a tensor is and what it was: of one shape
        return bind(node.fn, tuple(_all_mapped(operands, flags, size)), node.attrs)
    rank = len(node.shape)
    aligned = [reshape(o, (size, *[1] * (rank + 1 - len(o.shape)), *o.shape[1:])) if f else o for o, f in zip(operands, flags, strict=True)]
    if "uid" in node.attrs:
        return aligned[0]  # a variable inside: what it stands for is mapped
    return bind(node.fn, tuple(aligned), node.attrs)


def _movement(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    operands = _all_mapped(operands, flags, size)
    attrs = dict(node.attrs)
    name = node.fn.name
    if name == "expand":
        x = operands[0]
        padded = (size, *[1] * (len(node.shape) + 1 - len(x.shape)), *x.shape[1:])
        return expand(reshape(x, padded), (size, *node.shape))
    if name == "reshape":
        return reshape(operands[0], (size, *node.shape))
    if name == "permute":
        return permute(operands[0], (0, *(d + 1 for d in attrs["dims"])))
    if name == "slice":
        attrs = {"start": (0, *attrs["start"]), "stop": (size, *attrs["stop"]), "step": (1, *attrs["step"])}
    elif name == "pad":
        attrs.update(low=(0, *attrs["low"]), high=(0, *attrs["high"]), interior=(0, *attrs["interior"]))
    elif name == "concat":
        attrs = {"dim": attrs["dim"] + 1}
    elif name == "flip":
        attrs = {"dims": tuple(d + 1 for d in attrs["dims"])}
    elif name in ("view_as_real", "view_as_complex"):
        pass  # along the last dimension
    elif "dim" in attrs:  # unfold and whatever else moves along one dimension
        attrs["dim"] += 1
    else:
        return _unrolled(node, operands, [True] * len(operands), size)
    return bind(node.fn, tuple(operands), attrs)


def _placed(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    """The same part of each."""
    if any(flags[1:]):
        return _unrolled(node, operands, flags, size)
    attrs, whole = node.attrs, "size" if "size" in node.attrs else "shape"
    attrs = {"start": (0, *attrs["start"]), whole: (size, *attrs[whole]), "step": (1, *attrs["step"]),
             "dims": tuple(d + 1 for d in attrs["dims"])}
    return bind(node.fn, tuple(operands), attrs)


def _reduction(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    return bind(node.fn, tuple(operands), {**node.attrs, "dim": tuple(d + 1 for d in node.attrs["dim"])})


def _along_one(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    return bind(node.fn, tuple(operands), {**node.attrs, "dim": node.attrs["dim"] + 1})


def _recurrence(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    return bind(node.fn, tuple(_all_mapped(operands, flags, size)), {"dim": node.attrs["dim"] + 1})


def _last(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    return bind(node.fn, tuple(operands), node.attrs)


def _contraction(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    a, b = operands
    if flags[0] and not flags[1] and len(node.shape) == 2:  # (B, M, K) @ (K, N) is one product of B * M rows
        return reshape(bind(node.fn, (reshape(a, (size * a.shape[1], a.shape[2])), b), node.attrs), (size, a.shape[1], b.shape[1]))
    return bind(node.fn, tuple(_all_mapped(operands, flags, size)), node.attrs)


def _gather(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    x, index = operands
    if not flags[0]:
        return bind(node.fn, (x, index), {})
    index = index if flags[1] else spread(index, size)
    return bind(node.fn, (reshape(x, (size * x.shape[1], *x.shape[2:])), _offset(index, x.shape[1])), {})


def _scatter(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    base, index, src = _all_mapped(operands, flags, size)
    flat = reshape(base, (size * base.shape[1], *base.shape[2:]))
    return reshape(bind(node.fn, (flat, _offset(index, base.shape[1]), src), node.attrs), base.shape)


def _offset(index: Node, rows: int) -> Node:
    """Row numbers within each batch entry -> row numbers within all of them (clamped first, as the ops clamp)."""
    low, high = const(0, index.dtype), const(max(0, rows - 1), index.dtype)
    clamped = REGISTRY["minimum"](REGISTRY["maximum"](index, low), high)
    return clamped + iota(index.shape, 0, index.dtype) * rows  # type: ignore[no-any-return]


def _conv(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    """Mapped images and shared weights: the batch joins the images' own."""
    if node.fn.name != "conv2d" or flags[1]:
        return _unrolled(node, operands, flags, size)
    x, w = operands
    y = bind(node.fn, (reshape(x, (size * x.shape[1], *x.shape[2:])), w), node.attrs)
    return reshape(y, (size, y.shape[0] // size, *y.shape[1:]))


def _attention(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    """The batch joins the heads. Masks that all share stay: heads take turns with their matrices."""
    masks = node.attrs["masks"]
    count = len(operands) - len(masks)
    joined = [reshape(o, (o.shape[0] * o.shape[1], *o.shape[2:])) for o in _all_mapped(operands[:count], flags[:count], size)]
    for m, mapped, (_, inner) in zip(operands[count:], flags[count:], masks, strict=True):
        if mapped:
            turns = node.operands[0].shape[0] // (m.shape[1] * inner)
            m = expand(reshape(m, (size, 1, *m.shape[1:])), (size, turns, *m.shape[1:]))
            m = reshape(m, (size * turns * m.shape[2], *m.shape[3:]))
        joined.append(m)
    return reshape(bind(node.fn, tuple(joined), node.attrs), (size, *node.shape))


def _joined(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    """The batch joins the first dimension: heads, planes."""
    mapped = [reshape(o, (o.shape[0] * o.shape[1], *o.shape[2:])) for o in _all_mapped(operands, flags, size)]
    return reshape(bind(node.fn, tuple(mapped), node.attrs), (size, *node.shape))


def _host(node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
    if isinstance(node.fn, Shared) and node.fn.batches:
        return bind(node.fn, tuple(_all_mapped(operands, flags, size)), node.attrs)
    return _unrolled(node, operands, flags, size)


FAMILIES: dict[str, Rule] = {
    "elementwise": _elementwise,
    "movement": _movement,
    "dynamic_slice": _placed,
    "reduction": _reduction,
    "arg_reduction": _along_one,
    "scan": _along_one,
    "recurrence": _recurrence,
    "sort": _last,
    "selection": _last,
    "contraction": _contraction,
    "gather": _gather,
    "scatter": _scatter,
    "conv": _conv,
    "host_call": _host,
    "attention": _attention,
    "pool": _joined,
    "transfer": _last,
}
