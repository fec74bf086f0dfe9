"""Attention and its gradient: as kernels of their own where those pay, else as products and a softmax. Start at `attention`.

Those kernels (lower/attention.py) need more than the operation's operands: the gradient wants the result and the logarithms of the rows'
sums again. So the forward kernel's result is one flat array, these two one after the other, and the gradient's is another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tracegrad.codegen.graph.reductions import rebind, view
from tracegrad.codegen.graph.rewrite import at, op
from tracegrad.codegen.tuning import tuning
from tracegrad.function import REGISTRY, Primitive, bind
from tracegrad.ir import Aval, Graph, Node
from tracegrad.ops.fused_attention import composed, composed_gradient
from tracegrad.plan import Target


class _Flat(Primitive):
    """What a kernel stores: internal to the code generator (it has no name in the registry)."""

    family, differentiable, expensive = "attention", False, True

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def numpy(self, *operands: Any, **attrs: Any) -> Any:
        raise NotImplementedError               # made after whatever is computed at compile time


class _Forward(_Flat):
    """Of q, k, v: the result (B, L, V); with `statistics`, behind it, the logarithm of each row's sum of exponentials (B, L)."""

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        q, _, v = operands
        b, length = q.shape[:2]
        return Aval((b * length * (v.shape[2] + attrs["statistics"]),), q.dtype)


class _Gradient(_Flat):
    """Of q, k, v, what _Forward made of them, and the cotangent: `parts` arrays (B, L, E) to be added up to dq, then dk and dv."""

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        q, k, v, *_ = operands
        return Aval((attrs["parts"] * prod(q.shape) + prod(k.shape) + prod(v.shape),), q.dtype)


FORWARD, BACKWARD = _Forward("attention_forward"), _Gradient("attention_backward")


def attention(graph: Graph, target: Target) -> Graph:
    """The graph with attention as its kernels compute it."""
    found = [node for node in graph if node.fn.family == "attention"]
    if not found:
        return graph
    wanted = {_key(node, node.operands) for node in found if node.fn.name == "attention_gradient" and _suits(node, target)}
    again = {node: _key(node, node.operands) in wanted for node in found}

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        if node.fn.family != "attention":
            return node if operands == node.operands else rebind(node, operands)
        with at(node.loc):
            q, k, v, *g = operands
            scale, causal = node.attrs["scale"], node.attrs["causal"]
            if not _suits(node, target):
                return composed_gradient(q, k, v, g[0], scale, causal, node.attrs["index"]) if g else composed(q, k, v, scale, causal)
            flat = bind(FORWARD, (q, k, v), {"scale": scale, "causal": causal, "statistics": again[node] or bool(g)})
            if not g:
                return _part(flat, 0, node.shape)
            parts = _parts(k, target)
            flat = bind(BACKWARD, (q, k, v, flat, *g), {"scale": scale, "causal": causal, "parts": parts})
            if node.attrs["index"]:
                return _part(flat, parts * q.aval.size + (node.attrs["index"] - 1) * k.aval.size, node.shape)
            dq = _part(flat, 0, (parts, *q.shape))
            return view(op("sum", dq, dim=(0,)), q.shape) if parts > 1 else view(dq, q.shape)

    return graph.rebuilt(replace)


def _key(node: Node, operands: tuple[Node, ...]) -> Any:
    return operands[:3], node.attrs["scale"], node.attrs["causal"]


def _suits(node: Node, target: Target) -> bool:
    """Whether the kernels are right for it, and pay."""
    q, k, v = node.operands[:3]
    rows, keys = q.shape[1], k.shape[1]
    if q.dtype.itemsize < 4 or rows * keys < tuning().attention_scores or max(q.shape[2], v.shape[2]) > tuning().attention_width:
        return False
    return min(q.shape[0], q.shape[2], v.shape[2]) > 0 and (target.kind == "cpu" or (keys > 0 and blocks(node, target) is not None))


@dataclass(frozen=True)
class Blocks:
    """Of a work-group on a GPU: lines of its own, and others at a time; `rows` of its own and four others are a work-item's."""

    own: int
    other: int
    rows: int

    @property
    def across(self) -> int:
        return self.other // 4

    @property
    def down(self) -> int:
        return self.own // self.rows

    def padded(self, size: int) -> int:
        """What a line in local memory holds, at least: the items side by side take four columns each."""
        return -(-size // self.other) * self.other

    def elements(self, size: int, width: int, gradient: bool) -> int:
        """Of local memory, for lines of `size` (of q and k) and of `width` (of v)."""
        a, b = self.padded(size) + 4, self.padded(width) + 4
        lines = self.own * (a + b * gradient) + self.other * (a + b)
        return lines + self.own * (self.other + 4) + (max(2 * self.other, self.own) if gradient else self.own * self.across)


def blocks(node: Node, target: Target) -> Blocks | None:
    """The blocks of an attention or its gradient: the first that fit and fill the device, else those of the most work-items."""
    q, k, v = node.operands[:3]
    gradient = len(node.operands) > 3
    lines = min(q.shape[1], k.shape[1]) if gradient else q.shape[1]
    fit = [b for b in (Blocks(*sizes) for sizes in tuning().attention_groups) if b.across * b.down <= target.max_work_group
           and q.dtype.itemsize * b.elements(q.shape[2], v.shape[2], gradient) <= target.local_memory]

    def items(b: Blocks) -> int:
        return q.shape[0] * -(-lines // b.own) * b.across * b.down

    return next((b for b in fit if items(b) >= 256 * target.cores), max(fit, key=items, default=None))


def _parts(k: Node, target: Target) -> int:
    """Into how many ranges the keys of a head are cut, so that the heads feed all cores."""
    heads, keys, _ = k.shape
    if target.kind == "gpu":                                 # of whose work-groups each has some lines
        return 1
    return max(1, min(-(-2 * target.cores // heads), keys // tuning().attention_keys))


def _part(flat: Node, start: int, shape: tuple[int, ...]) -> Node:
    """The elements from `start` on, in a shape."""
    whole = flat.shape == (prod(shape),)
    piece = flat if whole else bind(REGISTRY["slice"], (flat,), {"start": (start,), "stop": (start + prod(shape),), "step": (1,)})
    return view(piece, shape)
