"""Attention that is written out: softmax(q kᵀ scale + masks) v as its operations, found in a graph. Start at `written_out`.

Both the derivative (derivatives.vjp) and the code generator (codegen/graph/attention.py) ask here, so it is matched as it is recorded and
as it is simplified. The walk goes down from the product with v: through the softmax, masks and the scale to the product of q and k.
Leading dimensions may be reshaped on the way, and a product may be the other way round, as einsum has it. What is known to be the causal
mask is found by its values, whatever it was made by: they are computed, where nothing but constants is in them.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np

from tracegrad.graph.ir import Node, topological
from tracegrad.graph.primitive import REGISTRY, bind, cast
from tracegrad.ops.arrays.logical import logical_not
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import swap_last
from tracegrad.support.cache import listed
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.tuning import tuning

KNOWN = 1 << 24                # elements of a mask whose values are computed here, at most
MASKS = 4                      # that are operands, at most
_meanings: weakref.WeakKeyDictionary[Node, dict[Any, str | None]] = listed("meanings of masks", weakref.WeakKeyDictionary())


class _Unlike(Exception):
    """A product of softmax weights that is not attention as the operation has it; says why."""


@dataclass(frozen=True, eq=False)
class Written:
    """What was found. operands: of `dot_product_attention`, with its attributes. inside: the nodes that it consists of, without the last.

    sources: what q, k and v are made of, and whether its last two dimensions are exchanged in them.
    """

    node: Node
    operands: tuple[Node, ...]
    attrs: dict[str, Any]
    inside: dict[Node, None]        # in order: the weights first
    sources: tuple[tuple[Node, bool], ...]
    swapped: bool                   # whether the product is vᵀ weightsᵀ

    @property
    def operation(self) -> Node:
        """It as one operation."""
        return bind(REGISTRY["dot_product_attention"], self.operands, self.attrs)

    def used_elsewhere(self, uses: Mapping[Node, int], within: Container[Node]) -> Node | None:
        """The first of its steps that something else needs, too. uses: how often each is an operand, or a result, `within`."""
        own = Counter(o for n in (self.node, *self.inside) if n in within for o in n.operands)
        return next((n for n in self.inside if uses.get(n, 0) > own[n]), None)

    def arranged(self, y: Node) -> Node:
        """The operation's result as the product's."""
        y = mv.reshape(y, (*self.node.shape[:-2], *y.shape[-2:]))
        return swap_last(y) if self.swapped else y

    def cotangent(self, ct: Node) -> Node:
        """The product's cotangent as the operation's."""
        ct = swap_last(ct) if self.swapped else ct
        return mv.reshape(ct, (self.operands[0].shape[0], *ct.shape[-2:]))

    def back(self, gradients: Sequence[Node]) -> list[tuple[Node, Node]]:
        """(node, cotangent): what the gradients of the operation's q, k and v say of its sources."""
        found = []
        for (node, exchanged), g in zip(self.sources, gradients, strict=True):
            g = mv.reshape(g, (*node.shape[:-2], *g.shape[-2:]))
            found.append((node, swap_last(g) if exchanged else g))
        return found


def too_little(q: Node, k: Node, v: Node) -> str | None:
    """Why kernels of its own do not pay for attention of these, on any device; None where they may."""
    scores, width = tuning().attention_scores, tuning().attention_width
    rows, keys, widest = q.shape[1], k.shape[1], max(q.shape[2], v.shape[2])
    if q.dtype.itemsize < 4:
        return f"it is of {q.dtype}"
    if rows * keys < scores:
        return f"{rows} x {keys} scores are fewer than {scores}"
    return f"rows of {widest} are longer than {width}" if widest > width else None


def _op(x: Node) -> str:
    """The name of the operation; "data" for one that is computed and has let its operands go."""
    return x.fn.name if x.operands or x.fn.family in ("leaf", "index") else "data"


def written_out(node: Node) -> Written | str | None:
    """The attention whose last product `node` is. Why it is none, if it is a softmax's weights times something else; else None."""
    try:
        return _written_out(node)
    except _Unlike as why:
        return str(why)


def _written_out(node: Node) -> Written | None:
    if _op(node) != "matmul" or dtype_kind(node.dtype) != "f":
        return None
    a, b = node.operands
    for x, other, wanted in ((a, b, False), (b, a, True)):
        weights, swapped, moved = _peeled(x)
        if weights is not None and swapped == wanted and _op(weights) == "div":
            found = _softmax(weights)
            if found is not None:
                scores, zeros, inside = found
                return _attention(node, scores, other, zeros, [*moved, *inside], wanted)
        if weights is not None and _op(weights) == "where":
            for branch in weights.operands[1:]:
                if _op(branch) == "mul" and any(_op(o) == "div" and _softmax(o) is not None for o in branch.operands):
                    raise _Unlike("its weights go through dropout, whose random numbers are an array of all weights")
    return None


def _attention(node: Node, scores: Node, other: Node, zeros: bool, inside: list[Node], swapped: bool) -> Written:
    shape = scores.shape[-2:]
    masks: list[tuple[float | None, Node, tuple[int, ...]]] = []
    causal, scale = False, 1.0
    x = scores
    while True:
        core, turned, moved = _peeled(x)
        if core is None:
            raise _Unlike("its scores are rearranged")
        inside += moved
        x = core
        inside.append(x)
        if _op(x) == "matmul":
            break
        if turned:
            raise _Unlike("its scores are transposed")
        found = _scaled(x)
        if found is not None:
            x, factor = found
            scale *= factor
            continue
        if scale != 1.0:
            raise _Unlike("its scores are scaled after a mask")
        lead = x.shape[:-2]
        x, fill, mask = _masked(x)
        meaning = _meaning(mask, fill, shape)
        if meaning is not None:
            causal |= meaning == "causal"
            continue
        if mask.needs_grad:
            raise _Unlike("its mask has a gradient")
        if len(masks) == MASKS:
            raise _Unlike(f"it has more than {MASKS} masks")
        masks.append((fill, mask, lead))
    if not isfinite(scale):
        raise _Unlike(f"its scale is {scale}")
    a, b = x.operands
    sources = (b, True) if turned else (a, False), (a, False) if turned else (b, True), (other, swapped)
    heads = prod(a.shape[:-2])
    if prod(other.shape[:-2]) != heads or any(y.dtype != node.dtype for y, _ in sources):
        raise _Unlike("its operands differ in dtypes")
    operands = [mv.reshape(z, (heads, *z.shape[-2:])) for z in (swap_last(y) if exchanged else y for y, exchanged in sources)]
    described = []
    for fill, mask, lead in reversed(masks):
        flat, inner = _flat_mask(mask, lead, heads)
        operands.append(flat if fill is not None else cast(flat, node.dtype))
        described.append((fill, inner))
    attrs = {"scale": scale, "causal": causal, "masks": tuple(described), "zeros": zeros and bool(masks)}
    return Written(node, tuple(operands), attrs, dict.fromkeys(inside), sources, swapped)


def _flat_mask(mask: Node, lead: tuple[int, ...], heads: int) -> tuple[Node, int]:
    """The mask as (A, L or 1, S or 1), and how many heads one after the other share one of its A matrices (of which A take turns)."""
    while _op(mask) == "expand":
        mask = mask.operands[0]
    shape = (1,) * (len(lead) + 2 - len(mask.shape)) + mask.shape
    if prod(lead) != heads or len(shape) != len(lead) + 2:
        raise _Unlike("its mask has dimensions of its own")
    own = [i for i, n in enumerate(shape[:-2]) if n != 1]
    if not own:
        return mv.reshape(mask, (1, *shape[-2:])), heads
    first, last = own[0], own[-1] + 1
    whole = (*shape[:first], *lead[first:last], *shape[last:])
    mask = mv.expand(mv.reshape(mask, shape), whole)
    return mv.reshape(mask, (prod(lead[first:last]), *shape[-2:])), prod(lead[last:])


def _peeled(x: Node) -> tuple[Node | None, bool, list[Node]]:
    """(what x is a rearrangement of, whether its last two dimensions are exchanged, the nodes on the way); None if it is another one."""
    swapped, moved = False, []
    while True:
        name = _op(x)
        if name in ("copy", "detach", "variable") or (name == "cast" and x.operands[0].dtype == x.dtype and not x.operands[0].aval.weak):
            if name != "cast":
                break
            inner = x.operands[0]
        elif name == "expand" and x.operands[0].shape == x.shape:
            inner = x.operands[0]
        elif name == "reshape":
            inner = x.operands[0]
            if len(inner.shape) < 2 or inner.shape[-2:] != x.shape[-2:]:
                return None, False, []
        elif name == "permute":
            dims, inner = x.attrs["dims"], x.operands[0]
            while _op(inner) == "permute":
                moved.append(inner)
                dims, inner = tuple(inner.attrs["dims"][d] for d in dims), inner.operands[0]
            n = len(dims)
            real = [d for d in dims[:-2] if inner.shape[d] != 1]
            if n < 2 or set(dims[-2:]) != {n - 2, n - 1} or real != sorted(real):
                return None, False, []
            swapped ^= dims[-1] != n - 1
        else:
            break
        moved.append(x)
        x = inner
    return x, swapped, moved


def _softmax(weights: Node) -> tuple[Node, bool, list[Node]] | None:
    """(scores, whether rows that see nothing are zeros, the nodes between) if `weights` are the scores' softmax along the last dim."""
    e, total = weights.operands
    inside = [weights, e]
    if _op(e) != "exp" or len(e.shape) < 2:
        return None
    parts, way = _column(total, e.shape)
    zeros = False
    if parts is not None and _op(parts) == "where":                # where(sum == 0, 1, sum)
        test, one, kept = parts.operands
        if _op(test) != "eq" or number(one) != 1.0 or number(test.operands[1]) != 0.0 or test.operands[0] is not kept:
            return None
        way += [parts, test]
        parts, more = _column(kept, e.shape)
        way += more
        zeros = True
    if parts is None or _op(parts) != "sum" or parts.operands[0] is not e or parts.attrs["dim"] != (len(e.shape) - 1,):
        return None
    shifted = e.operands[0]
    if _op(shifted) != "sub":
        return None
    scores, top = shifted.operands
    inside += [*way, parts, shifted]
    highest, way = _column(top, e.shape)
    if highest is not None and zeros and _op(highest) == "where":   # where(top == -inf, 0, top)
        test, nothing, kept = highest.operands
        if _op(test) != "eq" or number(nothing) != 0.0 or number(test.operands[1]) != -np.inf or test.operands[0] is not kept:
            return None
        inside += [highest, test]
        highest, more = _column(kept, e.shape)
        way += more
    elif zeros:
        return None
    if highest is None or _op(highest) != "amax" or highest.operands[0] is not scores or highest.attrs["dim"] != (len(e.shape) - 1,):
        return None
    return scores, zeros, [*inside, *way, highest]


def _column(x: Node, shape: tuple[int, ...]) -> tuple[Node | None, list[Node]]:
    """What x, one number for each row of `shape`, is made of by reshapes; None if it is not one for each row."""
    way = []
    if _op(x) == "expand" and x.shape == shape:
        way.append(x)
        x = x.operands[0]
    if x.shape != (*shape[:-1], 1):
        return None, []
    while _op(x) in ("reshape", "detach"):
        way.append(x)
        x = x.operands[0]
    return x, way


def _scaled(x: Node) -> tuple[Node, float] | None:
    """(what is scaled, by what) of a product with a number, or a quotient."""
    if _op(x) not in ("mul", "div"):
        return None
    a, b = x.operands
    c = number(b)
    if c is not None and a.shape == x.shape:
        return (a, c) if _op(x) == "mul" else (a, 1 / c if c else np.inf)
    c = number(a)
    return (b, c) if c is not None and _op(x) == "mul" and b.shape == x.shape else None


def _masked(x: Node) -> tuple[Node, float | None, Node]:
    """(scores, number, where they are kept) of scores that are a number elsewhere; (scores, None, what is added) of a sum."""
    if _op(x) == "where":
        test, a, b = x.operands
        for scores, other, seen in ((b, a, False), (a, b, True)):
            fill = number(other)
            if fill is not None and not np.isnan(fill) and fill < np.inf and scores.shape == x.shape and _op(scores) != "const":
                return scores, fill, test if seen else logical_not(test)
    elif _op(x) in ("add", "sub"):
        a, b = x.operands
        pairs = [(a, b), (b, a)] if _op(x) == "add" else [(a, bind(REGISTRY["neg"], (b,), {}))]
        fitting = [(s, m) for s, m in pairs if s.shape == x.shape and _is_scores(s)]
        if fitting:
            return fitting[0][0], None, fitting[0][1]
    raise _Unlike("its scores are no product of queries and keys with masks that are added or filled in")


def _is_scores(x: Node) -> bool:
    """Whether a product of queries and keys is behind masks, scales and reshapes."""
    for _ in range(64):
        core, _, _ = _peeled(x)
        if core is None:
            return False
        if _op(core) == "matmul":
            return True
        if _op(core) not in ("mul", "div", "where", "add", "sub"):
            return False
        floats = [o for o in core.operands if o.shape == core.shape and dtype_kind(o.dtype) == "f"]
        scores = [o for o in floats if _op(o) != "const" and number(o) is None]
        if not scores:
            return False
        x = scores[0] if len(scores) == 1 else next((s for s in scores if _is_scores(s)), scores[0])
    return False


def number(x: Node) -> float | None:
    """The number that every element of x is, if it is known; else None."""
    casts = []
    while _op(x) in ("expand", "reshape", "cast"):
        if _op(x) == "cast":
            casts.append(x.dtype)
        x = x.operands[0]
    if _op(x) != "const" or dtype_kind(x.dtype) not in "fiub":
        return None
    value = np.asarray(x.attrs["value"])
    with np.errstate(all="ignore"):
        for dtype in reversed(casts):
            value = value.astype(dtype)
    return float(value)


def _meaning(mask: Node, fill: float | None, shape: tuple[int, ...]) -> str | None:
    """"causal" or "nothing", if all values of a mask are known and say so. (Remembered: layer after layer asks for the same.)"""
    inverted = _op(mask) == "bitwise_not"                # made anew for each layer
    meanings, key = _meanings.setdefault(mask.operands[0] if inverted else mask, {}), (fill, shape, inverted)
    if key not in meanings:
        meanings[key] = None
        known = _values(mask)
        if known is not None:
            known = np.broadcast_to(known, (*known.shape[:-2], *shape))
            seen = known if fill is not None else known == 0
            least = fill == -np.inf if fill is not None else bool((seen | (known == -np.inf)).all())
            if seen.all():
                meanings[key] = "nothing"
            elif least and (seen == (np.tri(shape[0], shape[1]) > 0)).all():
                meanings[key] = "causal"
    return meanings[key]


def _values(x: Node) -> Any:
    """The values of a node that is made of nothing but constants, if they are not too many; else None."""
    found: dict[Node, Any] = {}
    order = topological([x], lambda n: _op(n) not in ("const", "iota") and n.fn.family not in ("elementwise", "movement"))
    fits = all((n.operands or _op(n) in ("const", "iota")) and n.fn.family in ("elementwise", "movement", "leaf", "index")
               and n.aval.size <= KNOWN and not n.fn.reports and n.fn.foldable and not n.aval.weak for n in order)
    for n in order if fits else ():
        if _op(n) == "const":
            found[n] = np.asarray(n.attrs["value"], n.dtype)
        else:
            with np.errstate(all="ignore"):
                found[n] = np.asarray(n.fn.computed([found[o] for o in n.operands], n.attrs, n.dtype)).astype(n.dtype, copy=False)
    return found.get(x)
