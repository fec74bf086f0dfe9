"""Differentiation, graph to graph: `vjp` (reverse mode) and `jvp` (forward mode). Start at `vjp`: the loop is the whole idea.

Each node's derivative rule is symbolic: it takes and returns Nodes. So the result of differentiating is more graph, which
can be differentiated again, simplified, fused and compiled like any other. Rules never sum over broadcast dimensions; that
happens here, in `conform`.

The cotangent of a complex z is dL/d(re z) + i dL/d(im z), as in torch: what is subtracted to make L smaller. A holomorphic f then takes ct
to ct * conj(f'), where the rules say ct * f'; `pull_back` conjugates. Tangents are the derivatives themselves.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from tracegrad.errors import AutogradError
from tracegrad.graph.ir import Node, topological
from tracegrad.graph.leaf_operations import Bundle, CustomCall
from tracegrad.graph.locations import on_behalf_of
from tracegrad.graph.operation_families import Elementwise, by_parts
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, placeholder, unique
from tracegrad.graph.substitution import HOOKS, substituted, that_matter
from tracegrad.ops.attention.written_out import Written, too_little, written_out
from tracegrad.ops.primitives.movement import expand
from tracegrad.ops.primitives.reduction import sum_to
from tracegrad.support.cache import listed
from tracegrad.support.dtypes import float32, is_half
from tracegrad.support.modes import state

_CONJ, _CAST, _OUTPUT, _MUL = REGISTRY["conj"], REGISTRY["cast"], REGISTRY["output"], REGISTRY["mul"]
_MATMUL, _ATTENTION_GRADIENT = REGISTRY["matmul"], REGISTRY["attention_gradient"]


def vjp(outputs: Sequence[Node], inputs: Sequence[Node], cotangents: Sequence[Node | None],
        older: Container[Node] = (), arrived: Callable[[Node, Node], None] | None = None) -> list[Node | None]:
    """Cotangents of `inputs`, given those of `outputs`: one reverse walk over the nodes between them.

    Every result has the shape and dtype of its input; None where no differentiable path leads from it to an output.
    older: nodes that were there before the inputs, behind which nobody need look for a path. arrived(input, its cotangent) is called on the
    way, of a variable as soon as nothing more is added.
    """
    order = dependents(outputs, inputs, older)
    live = set(order)
    if not HOOKS:
        return _walked(order, live, outputs, inputs, cotangents, arrived)
    before = vars(HOOKS.walk).copy()
    HOOKS.walk.live, HOOKS.walk.notes = live, {}
    try:
        return _walked(order, live, outputs, inputs, cotangents, arrived)
    finally:
        HOOKS.walk.live, HOOKS.walk.notes = before.get("live", frozenset()), before.get("notes")


def _walked(order: Sequence[Node], live: set[Node], outputs: Sequence[Node], inputs: Sequence[Node],
            cotangents: Sequence[Node | None], arrived: Callable[[Node, Node], None] | None) -> list[Node | None]:
    """`vjp` over the nodes between, in topological order."""
    adjoint: dict[Node, Any] = {}
    for out, given in zip(outputs, cotangents, strict=True):
        if given is not None and out in live:
            accumulate(adjoint, out, given)
    wanted = set(inputs)
    result: dict[Node, Node] = {}
    uses: dict[Node, int] = {}
    missing = Counter(o for n in order for o in n.operands if o in wanted and o.fn.name == "variable") if arrived is not None else None

    def complete(node: Node, ct: Any) -> Any:
        ct = HOOKS.arriving(node, ct) if HOOKS else ct
        if node in wanted:
            result[node] = ct
            if arrived is not None:
                arrived(node, ct)
        return ct

    for node in reversed(order):
        ct = adjoint.pop(node, None)
        if ct is None:
            continue
        ct = complete(node, ct)
        reaches = [o in live for o in node.operands]
        if True not in reaches:
            continue
        with on_behalf_of(node.loc):
            written = _attention(node, live, wanted, uses) if node.fn is _MATMUL and state.anomaly is None else None
            if written is not None:
                ct, attrs = written.cotangent(ct), written.attrs
                q, k, v, *masks = written.operands
                gradients = [bind(_ATTENTION_GRADIENT, (q, k, v, ct, *masks), attrs | {"index": i}) for i in range(3)]
                pairs: list[tuple[Node, Any]] = [*written.back(gradients)]
            else:
                contributions = pull_back(node, ct, reaches) if not HOOKS else _watched(node, ct, reaches)
                if state.anomaly is not None:
                    state.anomaly(node, [c if goes_on else None for c, goes_on in zip(contributions, reaches, strict=True)])
                pairs = list(zip(node.operands, contributions, strict=True))
            for operand, contribution in pairs:
                if contribution is not None and operand in live:
                    accumulate(adjoint, operand, contribution)
        for operand in node.operands if missing else ():
            missing[operand] -= 1                               # type: ignore[index]
            if not missing[operand] and operand in adjoint:     # type: ignore[index]
                complete(operand, adjoint.pop(operand))
    return [result.get(i) for i in inputs]


def _watched(node: Node, ct: Any, reaches: Sequence[bool]) -> tuple[Any, ...]:
    """`pull_back` between the hooks of the node's step: the cotangents are those that these leave."""
    hooks = HOOKS.of_step(node)
    for hook in hooks:
        ct = hook.call(ct) if hook.before and ct is not None else ct
    if ct is None:                                          # a hook left no gradient
        return (None,) * len(reaches)
    contributions = pull_back(HOOKS.restored(node), ct, reaches)
    for hook in hooks:
        contributions = contributions if hook.before else hook.call(contributions, ct, reaches)
    return contributions


def _attention(node: Node, live: set[Node], wanted: set[Node], uses: dict[Node, int]) -> Written | None:
    """The attention that is written out behind `node`, if its gradient can be taken as that of one operation.

    It cannot where somebody sees what lies between (by a hook, as an input of the derivative), and had better not where that was computed
    already, or has other users that are derived. uses: of each node by others; counted when it is first asked for.
    """
    written = written_out(node)
    if not isinstance(written, Written) or too_little(*written.operands[:3]) is not None:
        return None
    if any(n in wanted or n.value is not None or n in HOOKS for n in written.inside) or HOOKS.of_step(node):
        return None
    if not uses:
        uses.update(Counter(o for n in live for o in n.operands))
    return written if written.used_elsewhere(uses, live) is None else None


def dependents(outputs: Sequence[Node], inputs: Sequence[Node], older: Container[Node] = ()) -> list[Node]:
    """The nodes on differentiable paths from `inputs` to `outputs`, in topological order. older: as vjp has it."""
    reached = set(inputs)
    order = []
    for node in topological(outputs, lambda n: not n.needs_grad or n in older):
        if node.needs_grad and (node in reached or any(o in reached for o in node.operands)):
            reached.add(node)
            order.append(node)
    return order


def pull_back(node: Node, ct: Any, wanted: Sequence[bool]) -> tuple[Any, ...]:
    """The cotangents of a node's operands (those wanted, others may be None) by its own rule. Results of a bundle are collected first."""
    if node.fn is _OUTPUT:
        return ({node.attrs["index"]: ct},)
    if isinstance(ct, dict):
        count = len(node.fn.avals(*[o.aval for o in node.operands], **node.attrs))  # type: ignore[attr-defined]
        ct = [ct.get(i) for i in range(count)]
    if node.fn.holomorphic and node.dtype.kind == "c":
        parts = node.fn.vjp(conj(ct), node, *node.operands, **node.attrs)
        return tuple([conj(p) if isinstance(p, Node) else p for p in parts])
    if isinstance(node.fn, CustomCall) and node.fn.selects:
        return node.fn.vjp(ct, node, *node.operands, wanted=wanted)
    return by_rule(node, ct)


def by_rule(node: Node, ct: Any) -> tuple[Any, ...]:
    """What a node's rule makes of a cotangent. Of 16 bits it is computed in float32 and rounded once, as torch's kernels do it."""
    fn = node.fn
    if not is_half(node.dtype) or not isinstance(fn, Elementwise) or not fn.registered or fn.exact or not fn.saves or fn is _MUL:
        return fn.vjp(ct, node, *node.operands, **node.attrs)
    ct, y, *operands = (cast(x, float32) if is_half(x.dtype) else x for x in (ct, node, *node.operands))
    found = fn.vjp(ct, y, *operands, **node.attrs)
    return tuple([cast(x, node.dtype) if isinstance(x, Node) and x.dtype == float32 else x for x in found])


def conj(x: Node) -> Node:
    """The conjugate; x itself if it is real."""
    if x.dtype.kind != "c":
        return x
    return x.operands[0] if x.fn is _CONJ and x.operands else bind(_CONJ, (x,), {})


def accumulate(adjoint: dict[Node, Any], node: Node, ct: Any) -> None:
    """Add a contribution to the cotangent of `node`."""
    present = adjoint.get(node)
    if isinstance(ct, dict):
        merged = dict(present or {})
        for i, part in ct.items():
            merged[i] = merged[i] + part if i in merged else part
        adjoint[node] = merged
    else:
        ct = conform(ct, node)
        adjoint[node] = ct if present is None else present + ct


def conform(ct: Any, primal: Node) -> Node:
    """`ct` with the primal's shape and dtype: sums over what was broadcast, spreads what a rule left smaller."""
    if not isinstance(ct, Node):
        ct = const(ct, primal.dtype)
    if ct.aval.dtype != primal.aval.dtype or ct.aval.weak:
        ct = cast(ct, primal.dtype)
    if ct.aval.shape == primal.aval.shape:
        return ct  # type: ignore[no-any-return]
    if len(ct.shape) <= len(primal.shape) and all(a in (1, b) for a, b in zip(reversed(ct.shape), reversed(primal.shape), strict=False)):
        return expand(ct, primal.shape)
    return sum_to(ct, primal.shape)


def jvp(outputs: Sequence[Node], inputs: Sequence[Node], tangents: Sequence[Node]) -> list[Node | None]:
    """Tangents of `outputs`, given those of `inputs`: one forward walk. None where an output does not depend on them.

    An elementwise rule, fed the tangent of one operand, gives that operand's share of the result's tangent (its Jacobian is
    diagonal); movement and sums apply to tangents as they are; everything else is its vjp rule transposed once more.
    """
    tangent: dict[Node, Any] = dict(zip(inputs, tangents, strict=True))
    order = dependents(outputs, inputs)
    needed = set(outputs)
    for node in reversed(order):
        if node in needed:
            needed.update(node.fn.tracked(node.operands) if isinstance(node.fn, CustomCall) else node.operands)
    for node in order:
        if node in needed and node not in tangent:
            with on_behalf_of(node.loc):
                out = push_forward(node, [tangent.get(o) for o in node.operands])
            if out is not None:
                tangent[node] = out
    return [tangent.get(o) for o in outputs]


def push_forward(node: Node, tangents: list[Any]) -> Any:
    """The tangent of `node` from those of its operands (None: zero)."""
    fn, operands, attrs = node.fn, node.operands, node.attrs
    if fn is REGISTRY["output"]:
        return None if tangents[0] is None else tangents[0].get(attrs["index"])
    if isinstance(fn, CustomCall) and fn.pushes:
        return fn.push(node, operands, tangents)
    total = None
    if (isinstance(fn, Elementwise) and _proportional(node)) or fn is _CAST:
        for k, t in enumerate(tangents):
            if t is not None:
                part = by_rule(node, expand(t, node.shape))[k]
                if part is not None:
                    part = conform(part, node)
                    total = part if total is None else total + part
        return total
    if fn.linear:
        if all(t is None for t in tangents):
            return None
        if "value" in attrs:
            attrs = {**attrs, "value": 0}
        filled = tuple(zeros_like(o) if t is None else t for o, t in zip(operands, tangents, strict=True))
        return bind(fn, filled, attrs)
    return transpose_twice(node, tangents)


def _proportional(node: Node) -> bool:
    """Whether the rule of an elementwise node multiplies by the derivative: all do so on real numbers."""
    if node.fn.holomorphic or type(node.fn).pair is by_parts:
        return True
    return node.dtype.kind != "c" and all(o.dtype.kind != "c" for o in node.operands)


def transpose_twice(node: Node, tangents: list[Any]) -> Any:
    """The tangent by transposing the (linear) vjp rule: <vjp(u), t> = <u, jvp(t)> for every u."""
    bundle = isinstance(node.fn, Bundle)
    avals = node.fn.avals(*[o.aval for o in node.operands], **node.attrs) if isinstance(node.fn, Bundle) else (node.aval,)
    probes = [stand_in(placeholder(aval, "probe")) for aval in avals]
    pulled = pull_back(node, dict(enumerate(probes)) if bundle else probes[0], [t is not None for t in tangents])
    pairs = [(conform(p, o), t) for p, o, t in zip(pulled, node.operands, tangents, strict=True) if p is not None and t is not None]
    if not pairs:
        return None
    # What was there before the probes does not depend on them. The walks end there (rules look one node behind their operands at most, but
    # for attention's), or each would go through the whole history, at every node that is transposed.
    near = {node, *node.operands, *[t for _, t in pairs]}
    older = near.union(*[n.operands for n in near])
    out = vjp([p for p, _ in pairs], probes, [t for _, t in pairs], older)
    # A linear map's transpose does not depend on where it is taken: a probe that survives means the rule was not linear in ct.
    starts = {probe.operands[0] for probe in probes}
    found = [o for o in out if o is not None]
    if starts.intersection(topological(found, older.__contains__, that_matter)):
        raise AutogradError(
            f"jvp: the backward rule of {node.fn.name} is not linear in its cotangent; forward mode cannot be derived from it"
        )
    if starts.intersection(topological(found, older.__contains__)):                # what a loop computes besides
        zeros = dict(zip(found, substituted(found, {p: zeros_like(p) for p in starts}), strict=True))
        out = [None if o is None else zeros[o] for o in out]
    return dict(enumerate(out)) if bundle else out[0]


def variable(x: Node) -> Node:
    """x as a new thing to differentiate with respect to."""
    node = bind(REGISTRY["variable"], (x,), {"uid": unique()})
    node.needs_grad, node.constant = True, False            # also of a constant: what it is made of may be another node's, it is not
    return node


# The variables that somebody else waits for when a transform is done: those of the transforms around it, and those that stand for values
# while the body of a loop or a branch is recorded. What depends on one keeps its history.
awaited: weakref.WeakSet[Node] = listed("awaited nodes", weakref.WeakSet())


def recorded(nodes: Sequence[Node], own: Container[Node] = ()) -> bool:
    """Whether nodes depend on a leaf, held or not, or on a variable that is awaited, but for `own`."""
    order = topological(nodes, lambda n: not n.needs_grad)
    return any(n.fn is REGISTRY["variable"] and n not in own and (n in awaited or n.attrs["uid"] < 0) for n in order)


def stand_in(x: Node) -> Node:
    """A variable for x in a body that is being recorded."""
    node = variable(x)
    awaited.add(node)
    return node


def zeros_like(x: Node) -> Node:
    """Zeros of x's shape and dtype."""
    return expand(const(0, x.dtype), x.shape)


def dense(found: Iterable[Node | None], of: Iterable[Node]) -> list[Node]:
    """Derivatives with zeros for None, which says that there is no way from one to the other; of: whose shapes they have."""
    return [zeros_like(x) if d is None else d for d, x in zip(found, of, strict=True)]


def ones_like(x: Node) -> Node:
    """Ones of x's shape and dtype."""
    return expand(const(1, x.dtype), x.shape)
