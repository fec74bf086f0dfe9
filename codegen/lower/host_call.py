"""Python between launches: the groups of `tg.host_call` and of LAPACK's factorisations. One step computes all results of a call."""

from __future__ import annotations

from typing import Any

from tracegrad.codegen.graph.small_matrices import reason
from tracegrad.codegen.kernel.ir.kernel import Temp
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.graph.ir import Node
from tracegrad.support.plan import HostBegin, HostFinish, HostInto, HostOperation, HostStart, HostStep, HostWait


def _call(node: Node) -> dict[str, Any]:
    """The attributes of the call that `node` is one result of."""
    return {k: v for k, v in node.attrs.items() if k != "index"}


def siblings(group: Group, context: Context) -> list[Any] | None:
    """Where each result of the anchor's call goes (a node, or scratch for one that nobody uses); None if it was lowered before."""
    anchor = group.anchor
    attrs = _call(anchor)
    key = (anchor.fn, anchor.operands, tuple(attrs.items()))
    if key in context.called:
        return None
    context.called.add(key)
    places: dict[int, Node] = {}
    for other in context.schedule.groups:
        node = other.roots[0]
        if node.fn is anchor.fn and node.operands == anchor.operands and _call(node) == attrs:
            places[node.attrs["index"]] = node
    avals = anchor.fn.avals(*[o.aval for o in anchor.operands], **attrs)  # type: ignore[attr-defined]
    return [places.get(k) or Temp(f"unused_{k}", key, max(1, aval.size), aval.dtype) for k, aval in enumerate(avals)]


@lowering("host_call")
def lower_host(group: Group, context: Context) -> list[HostStep]:
    outputs = siblings(group, context)
    if outputs is None:
        return []
    fn: Any = group.anchor.fn
    return [host_step(group, context, outputs)] if fn.begin is None else begun(group, context, outputs)


def host_step(group: Group, context: Context, outputs: list[Any]) -> HostStep:
    """The call of a group as a step that the host does; outputs: where its results go."""
    anchor = group.anchor
    step, inputs = _step(anchor, _places(outputs)), _inputs(anchor, context)
    return HostStep(step, inputs, tuple(outputs), anchor.fn.name, _into(anchor), reason(anchor))


def begun(group: Group, context: Context, outputs: list[Any]) -> list[HostStep]:
    """The same as two steps, of which the first begins the call, and the second waits for its results."""
    fn: Any = group.anchor.fn
    *results, token = outputs
    *given, last = _inputs(group.anchor, context)
    shapes = tuple(o.shape for o in group.anchor.operands[:-1])
    return [HostStart(HostBegin(fn, shapes), (*given, last), (token,), fn.name),
            HostWait(HostFinish(fn, _places(results)), (token, *given), tuple(results), f"{fn.name}_wait")]     # until then they are read


def _inputs(anchor: Node, context: Context) -> tuple[Any, ...]:
    """A plan's steps name slots; until `assemble` has numbered those, the nodes that they will hold."""
    return tuple([context.ref(strip(o)) for o in anchor.operands])


def _places(outputs: list[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple([r.shape if isinstance(r, Node) else (r.size,) for r in outputs])


def _step(anchor: Node, places: tuple[tuple[int, ...], ...]) -> HostOperation:
    """The operation on arrays of the operands' shapes; its results in the shapes of the slots they go to."""
    shapes = tuple(o.shape for o in anchor.operands)
    loc = anchor.loc
    return HostOperation(anchor.fn, tuple(_call(anchor).items()), shapes, places, str(loc), loc.who, loc.position)


def _into(anchor: Node) -> HostInto | None:
    """The operation on the buffers' own memory, if it has such a form."""
    fn: Any = anchor.fn
    if fn.into is None:
        return None
    attrs = _call(anchor)
    whole, operands = fn.with_operands([o.aval for o in anchor.operands])
    layouts = [tuple([(a.shape, a.dtype) for a in avals]) for avals in (operands, whole.avals(*operands, **attrs))]
    return HostInto(whole, tuple(attrs.items()), *layouts) if all(0 not in s for each in layouts for s, _ in each) else None
