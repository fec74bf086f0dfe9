"""Attention and its gradient: as kernels of their own where those pay, else as products and a softmax. Start at `attention`; what users
wrote out becomes the operation by `written`.

Those kernels (lower/attention.py) need more than the operation's operands: the gradient wants the result and the logarithms of the rows'
sums again. So the forward kernel's result is one flat array, these two one after the other, and the gradient's is another. Where they
are operands (`attention_gradient_of_sums`) they are put together anew. Keys and values
that are repeated, for several heads each (grouped queries, Ainslie et al. 2023), they read as they were: those have a divisor of B heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

from tracegrad.codegen.graph.reductions import view
from tracegrad.codegen.graph.rewrite import at, op, uses
from tracegrad.graph.ir import Aval, Graph, Node, topological
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, cast
from tracegrad.graph.substitution import rebound, replaced
from tracegrad.ops.attention.fused import composed, composed_gradient, composed_gradient_of_sums, composed_sums
from tracegrad.ops.attention.written_out import Written, too_little, written_out
from tracegrad.support.dtypes import float32, is_half
from tracegrad.support.plan import Plain, Target
from tracegrad.support.tuning import tuning


class _Flat(Primitive):
    """What a kernel stores: internal to the code generator (it has no name in the registry)."""

    family, differentiable, expensive = "attention", False, True

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def numpy(self, *operands: Any, **attrs: Any) -> Any:
        raise NotImplementedError               # made after whatever is computed at compile time


class _Forward(_Flat):
    """Of q, k, v and masks: the result (B, L, V); behind it, with `statistics` 1, the logarithm of each row's sum of exponentials (B, L).

    With 2, each row's largest score instead, and the logarithm of the sum of exponentials less it: the sum of the two may have lost
    the latter, where masks made scores of -1e9.
    """

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        q, _, v, *_ = operands
        b, length = q.shape[:2]
        return Aval((b * length * (v.shape[2] + attrs["statistics"]),), q.dtype)


class _Gradient(_Flat):
    """Of q, k, v, what _Forward made of them, the cotangent, and masks: `parts` arrays (B, L, E) to be added up to dq, of a range of keys
    each; then `row_parts` of dk (B, S, E), of a range of rows each, and as many of dv.
    """

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        q, k, v, *_ = operands
        b, keys, size = q.shape[0], *k.shape[1:]
        return Aval((attrs["parts"] * prod(q.shape) + attrs["row_parts"] * b * keys * (size + v.shape[2]),), q.dtype)


ATTENTION = REGISTRY["dot_product_attention"]
FORWARD, BACKWARD = _Forward("attention_forward"), _Gradient("attention_backward")


def written(graph: Graph, target: Target) -> Graph:
    """The graph with attention that users wrote out as the operation: where its kernels pay, or the derivative is its already."""
    found = {node: match for node in graph if isinstance(match := written_out(node), Written)}
    if not found:
        return graph
    used = uses(graph)
    derived = {_key(node) for node in graph if node.fn.name == "attention_gradient"}
    new: dict[Node, Node] = {n: n for n in graph.inputs}

    def again(n: Node) -> Node:
        return rebound(n, tuple([new[o] for o in n.operands]))

    def moved(root: Node) -> Node:
        for n in topological([root], new.__contains__):
            if n not in new:
                new[n] = again(n)
        return new[root]

    for node in graph:
        if node in found:
            with at(node.loc):
                made = found[node].operation
                if _key(made) in derived or (_obstacle(made, target) or _others(found[node], graph, used)) is None:
                    new[node] = moved(found[node].arranged(made))
        if node not in new:
            new[node] = again(node)
    return Graph.capture(graph.inputs, [new[o] for o in graph.outputs])


def story(graph: Graph, target: Target) -> list[str]:
    """For each attention of a graph, its line, and what became of it or why it did not."""
    lines, used = [], uses(graph)
    derived = {_key(node) for node in graph if node.fn.name == "attention_gradient"}
    for node in graph:
        match = node if node.fn is ATTENTION else written_out(node)
        if match is None:
            continue
        if isinstance(match, str):
            why: str | None = match
        else:
            with at(node.loc):
                made = match.operation if isinstance(match, Written) else match
            why = _obstacle(made, target)
            if why is None and isinstance(match, Written) and _key(made) not in derived:
                why = _others(match, graph, used)
        lines.append(f"attention at {node.loc}: " + ("kernels of its own" if why is None else f"products and a softmax, because {why}"))
    return list(dict.fromkeys(lines))


def _others(match: Written, graph: Graph, used: Counter[Node]) -> str | None:
    """Why the weights are needed in any case."""
    n = match.used_elsewhere(used, graph)
    if n is None:
        return None
    return f"{n.fn.name}, a step of it, is used elsewhere, too (by {'what is returned' if n in graph.outputs else 'another operation'})"


def attention(graph: Graph, target: Target) -> Graph:
    """The graph with attention as its kernels compute it."""
    found = [node for node in graph if node.fn.family == "attention"]
    wanted = {_key(node) for node in found if node.fn.name in ("attention_gradient", "attention_sums") and _obstacle(node, target) is None}
    again = {node: _key(node) in wanted for node in found}

    def made(node: Node, *operands: Node) -> Node:
        q, k, v, *rest = operands
        g, given = _split(node, rest)
        attrs = _described(node)
        if _obstacle(node, target) is not None:
            q, k, v, *rest = (cast(x, float32) if is_half(x.dtype) else x for x in operands)       # one operation, rounded once
            return cast(_composed(node, q, k, v, rest, attrs), node.dtype)
        sizes = q.aval.size, k.aval.size, v.aval.size
        k, v = _as_they_were(k, v)
        if node.fn.name == "attention_gradient_of_sums":
            flat = op("concat", *[view(x, (x.aval.size,)) for x in rest[1:]], dim=0)
        else:
            flat = bind(FORWARD, (q, k, v, *given), attrs | {"statistics": (1 + bool(given)) * (again[node] or bool(g))})
        if not g:
            return _part(flat, flat.aval.size - node.aval.size if node.fn.name == "attention_sums" else 0, node.shape)
        parts, row_parts = ranges(node, target, False), ranges(node, target, True)
        flat = bind(BACKWARD, (q, k, v, flat, *g, *given), attrs | {"parts": parts, "row_parts": row_parts})
        index, counts = node.attrs["index"], (parts, row_parts, row_parts)
        start = sum(n * size for n, size in zip(counts[:index], sizes, strict=False))
        each = _part(flat, start, (counts[index], *node.shape))
        return view(op("sum", each, dim=(0,)) if counts[index] > 1 else each, node.shape)

    return replaced(graph, again.__contains__, made)


def _composed(node: Node, q: Node, k: Node, v: Node, rest: Sequence[Node], attrs: dict[str, Any]) -> Node:
    """What an operation of attention is, in products and a softmax."""
    g, given = _split(node, rest)
    match node.fn.name:
        case "attention_gradient_of_sums":
            cotangent, y, sums = rest
            return composed_gradient_of_sums(q, k, v, cotangent, y, sums, node.attrs["index"], **attrs)
        case "attention_gradient":
            return composed_gradient(q, k, v, g[0], given, node.attrs["index"], **attrs)
        case "attention_sums":
            return composed_sums(q, k, **attrs)
    return composed(q, k, v, given, **attrs)


def _as_they_were(k: Node, v: Node) -> tuple[Node, Node]:
    """Keys and values before each head of them became several, one after the other: (A, S, E) and (A, S, V), A a divisor of B."""
    found = [_repeated(x) for x in (k, v)]
    if found[0][1] != found[1][1]:
        return k, v
    (k, times), (v, _) = found
    return (k, v) if times == 1 else tuple(view(x, (prod(x.shape[:-2]), *x.shape[-2:])) for x in (k, v))  # type: ignore[return-value]


def _repeated(x: Node) -> tuple[Node, int]:
    """(what `x` (B, S, E) is made of, how often each of its heads is there, one after the other)."""
    inner = x
    while inner.fn.name == "reshape" and inner.shape[-2:] == x.shape[-2:]:
        inner = inner.operands[0]
    if inner.fn.name != "expand" or inner.shape[-2:] != x.shape[-2:]:
        return x, 1
    few = inner.operands[0]
    shape = (1,) * (len(inner.shape) - len(few.shape)) + few.shape
    last = len(shape) - 2
    while last and (shape[last - 1] != inner.shape[last - 1] or inner.shape[last - 1] == 1):
        last -= 1                                             # so many leading dimensions are not expanded
    if shape[-2:] != x.shape[-2:] or shape[:last] != inner.shape[:last]:
        return x, 1
    return view(few, (prod(shape[:last]), *x.shape[-2:])), prod(inner.shape[last:-2])


def _key(node: Node) -> Any:
    """What an attention and its gradient share."""
    q, k, v, *rest = node.operands
    return q, k, v, *_split(node, rest)[1], *_described(node).items()


def _described(node: Node) -> dict[str, Any]:
    """The attributes that an attention and its gradient share."""
    return {name: node.attrs[name] for name in ("scale", "causal", "masks", "zeros")}


def _split(node: Node, rest: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
    """Of the operands behind q, k and v: the cotangent, if it is a gradient, and the masks."""
    match node.fn.name:
        case "attention_gradient":
            return rest[:1], rest[1:]
        case "attention_gradient_of_sums":
            return rest[:1], []
    return [], rest


def _obstacle(node: Node, target: Target) -> str | None:
    """Why the kernels are not right for it, or do not pay; None if they do."""
    q, k, v = node.operands[:3]
    found = too_little(q, k, v)
    if found is not None:
        return found
    if min(q.shape[0], q.shape[2], v.shape[2]) == 0 or (target.traits.row_groups and k.shape[1] == 0):
        return "it is empty"
    return "no block fits into local memory" if target.traits.row_groups and blocks(node, target) is None else None


class Blocks(Plain):
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

    def items(self, heads: int, lines: int) -> int:
        """Work-items for so many own lines of each head."""
        return heads * -(-lines // self.own) * self.across * self.down

    def most_ranges(self, others: int) -> int:
        """Of the others, with two blocks each."""
        return others // (2 * self.other)

    def padded(self, size: int) -> int:
        """What a line in local memory holds, at least: the items side by side take four columns each."""
        return -(-size // self.other) * self.other

    def elements(self, size: int, width: int, gradient: bool, masked: bool) -> int:
        """Of local memory, for lines of `size` (of q and k) and of `width` (of v)."""
        a, b = self.padded(size) + 4, self.padded(width) + 4
        lines = self.own * (a + b * gradient) + self.other * (a + b)
        numbers = max((2 + masked) * self.other, (1 + masked) * self.own) if gradient else self.own * self.across
        return lines + self.own * (self.other + 4) + numbers


def blocks(node: Node, target: Target) -> Blocks | None:
    """The blocks of an attention or its gradient: the first that fit and fill the device, with up to four ranges of the others (`ranges`),
    else those of the most work-items."""
    q, k, v = node.operands[:3]
    gradient = node.fn.name in ("attention_gradient", "attention_gradient_of_sums", "attention_backward")
    lines, others = (min(q.shape[1], k.shape[1]),) * 2 if gradient else (q.shape[1], k.shape[1])
    fit = [b for b in (Blocks(*sizes) for sizes in tuning().attention_groups) if b.across * b.down <= target.max_work_group
           and q.dtype.itemsize * b.elements(q.shape[2], v.shape[2], gradient, bool(node.attrs["masks"])) <= target.local_memory]
    fit = [b for b in fit if b.own < 2 * lines] or [b for b in fit if b.own == min(b.own for b in fit)]
    items = [b.items(q.shape[0], lines) * max(1, min(4, b.most_ranges(others))) for b in fit]
    return next((b for b, n in zip(fit, items, strict=True) if n >= full(target) or n == max(items)), None)


def full(target: Target) -> int:
    """Work-items that a GPU should have at least: 8 warps of a core hide each other's waits."""
    return 256 * target.cores


def ranges(node: Node, target: Target, by_keys: bool) -> int:
    """Into how many ranges the keys of a head are cut, so that all cores have something to do; by_keys: the rows, for keys of owners."""
    (heads, rows, _), (_, keys, _) = node.operands[0].shape, node.operands[1].shape
    if not target.traits.row_groups:
        return 1 if by_keys else max(1, min(-(-2 * target.cores // heads), keys // tuning().attention_keys))
    found = blocks(node, target)
    own, others = (keys, rows) if by_keys else (rows, keys)
    return max(1, min(-(-full(target) // found.items(heads, own)), found.most_ranges(others))) if found else 1


def _part(flat: Node, start: int, shape: tuple[int, ...]) -> Node:
    """The elements from `start` on, in a shape."""
    whole = flat.shape == (prod(shape),)
    piece = flat if whole else bind(REGISTRY["slice"], (flat,), {"start": (start,), "stop": (start + prod(shape),), "step": (1,)})
    return view(piece, shape)
