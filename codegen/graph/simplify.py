"""Algebraic simplification, graph -> graph. Start at `RULES`: one function per kind of op, first match wins, until none applies.

Only rewrites that keep the value: x + 0.0 stays (it turns -0.0 into 0.0), x * 0 stays (NaN, infinities). Sums may be
reassociated where they are sums of equal terms (the sum of n copies is n times the value), pow with a small constant exponent
becomes multiplications as in torch. Iterative; each node is visited once per round, and there are at most `ROUNDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tracegrad.codegen.graph.bit_widths import short_index
from tracegrad.codegen.graph.rewrite import at, op
from tracegrad.errors import CompilerBug, ShapeError
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.primitive import bind, cast, const
from tracegrad.passes.constants import constant_of, exactly
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind, is_float, is_half, is_int

ROUNDS = 4
FEW = 4                                     # terms of a product that are multiplied and added up where they are needed
Rule = Callable[[Node], Node | None]


def simplify(graph: Graph, settled: set[Node] | None = None) -> Graph:
    """The graph after all rules, dead code gone. settled: nodes that no rule applies to, whatever became of others; more are added."""
    settled = set() if settled is None else settled
    for _ in range(ROUNDS):
        changed = False
        new: dict[Node, Node] = {n: n for n in graph.inputs}
        with at(None) as line:
            for node in graph:
                if node in new:
                    continue
                operands = tuple([new[o] for o in node.operands])
                same = operands == node.operands
                if same and node in settled:
                    new[node] = node
                    continue
                line.location = node.loc
                result = node if same else bind(node.fn, operands, node.attrs)
                for _ in range(20):
                    better = None if result in settled else _apply(result)
                    if better is None or better is result:
                        settled.add(result)
                        break
                    result = better
                    changed = True
                new[node] = result
        if not changed:
            break
        graph = Graph.capture(graph.inputs, [new[o] for o in graph.outputs])
    return graph


def _apply(node: Node) -> Node | None:
    if not node.operands and node.fn.family != "elementwise":
        return None
    for rule in RULES.get(node.fn.name, ()):
        found = rule(node)
        if found is not None:
            if found.aval.shape != node.aval.shape or found.dtype != node.dtype:
                raise CompilerBug(f"simplify: {rule.__name__} turned {node!r}, computed at {node.loc}, into {found!r}")
            return found
    for rule in FAMILY_RULES.get(node.fn.family, ()):
        found = rule(node)
        if found is not None:
            return found
    return None


# ------------------------------------------------------------------------------------------------------------------- helpers


def filled(value: Any, like: Node) -> Node:
    """`value` in the shape and dtype of `like`."""
    c = const(value, like.dtype)
    return c if like.shape == () else op("expand", c, shape=like.shape)


def broadcast(x: Node, like: Node) -> Node:
    """x in the shape of `like`."""
    return x if x.shape == like.shape else op("expand", x, shape=like.shape)


def scalar_source(x: Node) -> Node | None:
    """The one-element node that x repeats, as a 0-d node; None if x has other elements."""
    while x.fn.name in ("expand", "reshape") and x.operands[0].aval.size >= 1:
        x = x.operands[0]
    if x.aval.size != 1 or x.aval.weak:
        return None
    return x if x.shape == () else op("reshape", x, shape=())


# --------------------------------------------------------------------------------------------------------------- elementwise


def identity(node: Node) -> Node:
    return node.operands[0]


def stored_already(node: Node) -> Node | None:
    """What is given to a program lies in memory, and what was stored once need not be again."""
    x, = node.operands
    return x if x.fn.stored or (x.fn.family == "leaf" and not x.fn.number) else None


def expanded_operands(node: Node) -> Node | None:
    """Operands broadcast implicitly: an expand in front of an elementwise op is dropped where the others still make the shape."""
    operands = list(node.operands)
    changed = False
    for i, o in enumerate(operands):
        if o.fn.name != "expand":
            continue
        trial = [o.operands[0] if j == i else x for j, x in enumerate(operands)]
        try:
            fits = broadcast_shapes("", [x.shape for x in trial]) == node.shape
        except ShapeError:
            fits = False
        if fits:
            operands, changed = trial, True
    return bind(node.fn, tuple(operands), node.attrs) if changed else None


def outward(node: Node) -> Node | None:
    """An op of nothing but repeated scalars is computed once, and its result repeated."""
    if node.shape == () or node.aval.size == 0:
        return None
    if node.fn.name in ("variable", "copy", "detach", "overwritten", "refilled") or node.fn.stored:
        return None
    sources = []
    for o in node.operands:
        source = o if o.shape == () else scalar_source(o) if o.fn.name in ("expand", "reshape") else None
        if source is None:
            return None
        sources.append(source)
    if not sources:
        return None
    return op("expand", bind(node.fn, tuple(sources), node.attrs), shape=node.shape)


def fold(node: Node) -> Node | None:
    """Arithmetic on constants, by the ops' numpy rules."""
    for o in node.operands:
        if o.fn.name != "const":
            return None
    if node.aval.weak or node.fn.reports or not node.fn.foldable:
        return None
    with np.errstate(all="ignore"):
        value = node.fn.computed([np.asarray(o.attrs["value"]) for o in node.operands], node.attrs, node.dtype)
    return const(np.asarray(value).astype(node.dtype)[()], node.dtype)


def cast_chain(node: Node) -> Node | None:
    x, = node.operands
    if x.dtype == node.dtype and not x.aval.weak:
        return x
    if x.fn.name == "const" and not node.aval.weak:
        return cast(x, node.dtype)
    if x.fn.name == "cast" and not x.aval.weak:
        source = x.operands[0]
        if not source.aval.weak and (np.can_cast(source.dtype, x.dtype, "safe") or (node.dtype.kind == "b" and x.dtype.kind == "b")):
            return cast(source, node.dtype)
    return None


def add_zero(node: Node) -> Node | None:
    a, b = node.operands
    for x, other in ((a, b), (b, a)):
        c = constant_of(other)
        if c is not None and c == 0 and (is_int(node.dtype) or (is_float(node.dtype) and np.signbit(c))) and not node.aval.weak:
            return broadcast(x, node)
    return None


def add_negative(node: Node) -> Node | None:
    a, b = node.operands
    if b.fn.name == "neg" and dtype_kind(node.dtype) == "f":
        return op("sub", a, b.operands[0])
    if a.fn.name == "neg" and dtype_kind(node.dtype) == "f":
        return op("sub", b, a.operands[0])
    return None


def sub_zero(node: Node) -> Node | None:
    a, b = node.operands
    if exactly(constant_of(b), 0) and not node.aval.weak:
        return broadcast(a, node)
    if b.fn.name == "neg" and dtype_kind(node.dtype) == "f":
        return op("add", a, b.operands[0])
    return None


def mul_one(node: Node) -> Node | None:
    a, b = node.operands
    if node.aval.weak or node.dtype.kind == "b":
        return None
    for x, other in ((a, b), (b, a)):
        c = constant_of(other)
        if exactly(c, 1):
            return broadcast(x, node)
        if exactly(c, -1) and dtype_kind(node.dtype) in "if":
            return broadcast(op("neg", x), node)
    return None


def div_constant(node: Node) -> Node | None:
    a, b = node.operands
    c = constant_of(b)
    if c is None or node.aval.weak:
        return None
    if c == 1:
        return broadcast(a, node)
    mantissa, exponent = np.frexp(c)
    if abs(mantissa) == 0.5 and abs(int(exponent)) < 100 and not is_half(node.dtype):      # a power of two: exact
        return op("mul", a, broadcast(const(1 / c, node.dtype), b))
    return None


def neg_neg(node: Node) -> Node | None:
    x, = node.operands
    return x.operands[0] if x.fn.name == "neg" else None


def power_constant(node: Node) -> Node | None:
    x, exponent = node.operands
    c = constant_of(exponent)
    if c is None or node.aval.weak:
        return None
    x = broadcast(x, node)
    if c == 1:
        return x
    if c == 2:
        return op("mul", x, x)
    if c == 3:
        return op("mul", op("mul", x, x), x)
    if c == 4:
        square = op("mul", x, x)
        return op("mul", square, square)
    if dtype_kind(node.dtype) != "f":
        return None
    if c == 0:
        return filled(1, node)
    if c == 0.5:
        return op("sqrt", x)
    if c == -0.5:
        return op("rsqrt", x)
    if c == -1:
        return op("div", const(1, node.dtype), x)
    if c == -2:
        return op("div", const(1, node.dtype), op("mul", x, x))
    return None


def where_constant(node: Node) -> Node | None:
    condition, a, b = node.operands
    c = constant_of(condition)
    if c is not None and not node.aval.weak:
        return broadcast(a if c else b, node)
    return broadcast(a, node) if a is b and not node.aval.weak else None


def logic(node: Node) -> Node | None:
    """Arithmetic and comparisons of bools are logic: registers hold them as 0/1 or as lane masks."""
    fn: Any = node.fn
    if fn.logic is None:
        return None
    for o in node.operands:
        if o.aval.dtype.kind != "b":
            return None
    found: Node = fn.logic(*node.operands)
    return found


# ------------------------------------------------------------------------------------------------------------------ movement


def moved_scalar(node: Node) -> Node | None:
    """Any rearrangement of one repeated value is that value repeated."""
    x = node.operands[0]
    if x.aval.size == 0 or (x.fn.name != "expand" and x.shape != ()):
        return None
    if node.fn.name == "expand" and x.fn.name != "expand":
        return None
    if node.fn.name == "reshape" and x.shape == ():
        return None
    source = scalar_source(x)
    if source is None:
        return None
    return op("expand", source, shape=node.shape) if node.shape != () else source


def reshape_chain(node: Node) -> Node | None:
    x, = node.operands
    if x.shape == node.shape:
        return x
    if x.fn.name == "reshape":
        return op("reshape", x.operands[0], shape=node.shape)
    return None


def expand_chain(node: Node) -> Node | None:
    x, = node.operands
    if x.shape == node.shape:
        return x
    if x.fn.name == "expand":
        return op("expand", x.operands[0], shape=node.shape)
    if x.fn.name == "reshape" and x.aval.size == 1:
        return op("expand", op("reshape", x.operands[0], shape=()) if x.operands[0].shape != () else x.operands[0], shape=node.shape)
    if x.aval.size == node.aval.size:
        return op("reshape", x, shape=node.shape)
    return None


def permute_chain(node: Node) -> Node | None:
    x, = node.operands
    dims = node.attrs["dims"]
    if dims == tuple(range(len(dims))):
        return x
    real = [d for d in dims if x.shape[d] != 1]
    if real == sorted(real):
        return op("reshape", x, shape=node.shape)
    if x.fn.name == "permute":
        inner = x.attrs["dims"]
        return op("permute", x.operands[0], dims=tuple(inner[d] for d in dims))
    return None


def slice_chain(node: Node) -> Node | None:
    x, = node.operands
    start, stop, step = node.attrs["start"], node.attrs["stop"], node.attrs["step"]
    if node.shape == x.shape:
        return x
    if x.fn.name == "slice":
        a, k = x.attrs["start"], x.attrs["step"]
        return op("slice", x.operands[0], start=tuple(i + s * j for i, s, j in zip(a, start, k, strict=True)),
                  stop=tuple(i + (t - 1) * j + 1 for i, t, j in zip(a, stop, k, strict=True)),
                  step=tuple(s * j for s, j in zip(step, k, strict=True))) if node.aval.size else None
    if x.fn.name == "pad" and not any(x.attrs["interior"]) and node.aval.size:
        low, inner = x.attrs["low"], x.operands[0]
        if all(s >= a and t <= a + n for s, t, a, n in zip(start, stop, low, inner.shape, strict=True)):
            return op("slice", inner, start=tuple(s - a for s, a in zip(start, low, strict=True)),
                      stop=tuple(t - a for t, a in zip(stop, low, strict=True)), step=step)
    return None


def pad_nothing(node: Node) -> Node | None:
    x, = node.operands
    return x if x.shape == node.shape and not any(node.attrs["low"]) and not any(node.attrs["interior"]) else None


# ---------------------------------------------------------------------------------------------------------------- reductions


def reduction_of_nothing(node: Node) -> Node | None:
    """An empty sum is 0, an empty product 1; over dims of size 1, a reduction is a reshape."""
    x, = node.operands
    fn: Any = node.fn
    if x.aval.size == 0 and node.aval.size:
        return filled(fn.identity(node.dtype), node)
    if all(x.shape[d] == 1 for d in node.attrs["dim"]):
        return x if x.shape == node.shape else op("reshape", x, shape=node.shape)
    return None


def product_of_nothing(node: Node) -> Node | None:
    """A matrix product or convolution that adds up nothing is zeros."""
    return filled(0, node) if node.aval.size and any(x.aval.size == 0 for x in node.operands) else None


def product_of_few(node: Node) -> Node | None:
    """Products of one term each, and short sums that are one number a matrix: a kernel of their own would be mostly reading and writing."""
    x, y = node.operands
    terms = x.shape[-1]
    if node.dtype not in (np.float32, np.float64) or not (terms == 1 or (node.shape[-2:] == (1, 1) and terms <= FEW)):
        return None
    x, y = cast(x, node.dtype), cast(y, node.dtype)
    if terms == 1:
        return op("mul", x, y)
    return op("reshape", op("sum", op("mul", x, op("reshape", y, shape=x.shape)), dim=(len(x.shape) - 1,)), shape=node.shape)


def gradient_of_nothing(node: Node) -> Node | None:
    """The gradient by an image of which no window sees a pixel is zeros."""
    g, w = node.operands
    axes = zip(node.attrs["size"], g.shape[2:], w.shape[2:], *(node.attrs[x] for x in ("stride", "dilation", "padding")), strict=True)
    seen = (any(0 <= i * stride + k * dilation - low < size for i in range(out) for k in range(taps))
            for size, out, taps, stride, dilation, (low, _) in axes)
    return filled(0, node) if node.aval.size and not all(seen) else None


def reduction_of_bools(node: Node) -> Node | None:
    """All, any: computed on bytes."""
    x, = node.operands
    if x.dtype.kind != "b":
        return None
    name = {"sum": "amax", "prod": "amin"}.get(node.fn.name, node.fn.name)
    return cast(op(name, cast(x, dtypes.uint8), dim=node.attrs["dim"]), dtypes.bool_)


def reduction_of_expand(node: Node) -> Node | None:
    """Repeated values are reduced once: their sum is n times the value."""
    x, = node.operands
    if x.fn.name != "expand" or node.dtype.kind == "b":
        return None
    source = x.operands[0]
    lead = len(x.shape) - len(source.shape)
    repeated = [d for d in node.attrs["dim"] if (d < lead or source.shape[d - lead] == 1) and x.shape[d] != 1]
    if not repeated:
        return None
    times = prod(x.shape[d] for d in repeated)
    if node.fn.name == "prod":
        return None
    shrunk = tuple(1 if d in repeated else n for d, n in enumerate(x.shape))
    if prod(source.shape) == prod(shrunk):
        y = source if source.shape == shrunk else op("reshape", source, shape=shrunk)
    else:
        y = op("expand", source, shape=shrunk)
    y = bind(node.fn, (y,), node.attrs)
    return op("mul", y, const(times, node.dtype)) if node.fn.name == "sum" else y


def reduction_of_permute(node: Node) -> Node | None:
    """Reduce in the order of the memory, then rearrange the (smaller) result."""
    x, = node.operands
    if x.fn.name != "permute":
        return None
    order = x.attrs["dims"]
    y = bind(node.fn, (x.operands[0],), {"dim": tuple(sorted(order[d] for d in node.attrs["dim"]))})
    kept = [order[d] for d in range(len(order)) if d not in node.attrs["dim"]]
    rank = {d: i for i, d in enumerate(sorted(kept))}
    dims = tuple(rank[d] for d in kept)
    return y if dims == tuple(range(len(dims))) else op("permute", y, dims=dims)


def reduction_of_reshape(node: Node) -> Node | None:
    """A sum over all elements does not care for their shape."""
    x, = node.operands
    if node.shape == () and x.fn.name in ("reshape", "permute", "flip"):
        inner = x.operands[0]
        return bind(node.fn, (inner,), {"dim": tuple(range(len(inner.shape)))}) if inner.shape else None
    return None


def roll_chain(node: Node) -> Node | None:
    """Around twice is around once."""
    x, dim, n = node.operands[0], node.attrs["dim"], node.shape[node.attrs["dim"]]
    if x.fn.name != "roll" or x.attrs["dim"] != dim:
        return None
    shift = (node.attrs["shift"] + x.attrs["shift"]) % n
    return op("roll", x.operands[0], shift=shift, dim=dim) if shift else x.operands[0]


def rotation(node: Node) -> Node | None:
    """The end of x in front of its beginning is x rolled: one index, and no choice of an operand for each element."""
    dim = node.attrs["dim"]
    if len(node.operands) != 2 or any(o.fn.name != "slice" for o in node.operands):
        return None
    end, begin = node.operands
    x, at = end.operands[0], end.attrs["start"][dim]
    n = x.shape[dim]
    spans = [[(a, b, s) for d, (a, b, s) in enumerate(zip(o.attrs["start"], o.attrs["stop"], o.attrs["step"], strict=True))
              if (d == dim or (a, b, s) != (0, x.shape[d], 1))] for o in node.operands]
    if begin.operands[0] is not x or not 0 < at < n or spans != [[(at, n, 1)], [(0, at, 1)]]:
        return None
    return op("roll", x, shift=n - at, dim=dim)


def scatter_of_nothing(node: Node) -> Node | None:
    """A base that nothing is put into."""
    base, _, source = node.operands
    return None if source.aval.size else base


RULES: dict[str, tuple[Rule, ...]] = {
    "copy": (identity,), "detach": (identity,), "variable": (identity,),
    "cast": (cast_chain,), "materialize": (stored_already,),
    "add": (add_zero, add_negative), "sub": (sub_zero,), "mul": (mul_one,), "div": (div_constant,), "neg": (neg_neg,),
    "pow": (power_constant,), "where": (where_constant,),
    "reshape": (reshape_chain, moved_scalar), "expand": (expand_chain, moved_scalar), "permute": (permute_chain, moved_scalar),
    "concat": (rotation,), "conv2d_input_grad": (gradient_of_nothing,),
    "slice": (slice_chain, moved_scalar), "flip": (moved_scalar,), "roll": (roll_chain, moved_scalar), "pad": (pad_nothing,),
    "take": (short_index,),
    **dict.fromkeys(("scatter_add", "scatter_set", "scatter_max", "scatter_min"), (scatter_of_nothing, short_index)),
}
FAMILY_RULES: dict[str, tuple[Rule, ...]] = {
    "elementwise": (logic, fold, expanded_operands, outward),
    "contraction": (product_of_nothing, product_of_few), "conv": (product_of_nothing,),
    "reduction": (reduction_of_nothing, reduction_of_bools, reduction_of_expand, reduction_of_reshape, reduction_of_permute),
}

