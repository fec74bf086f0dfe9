"""Choices by one condition as branches: in a kernel of one work-item only the branch that is taken is computed. Start at `outlined`.

`tg.cond` is recorded as two branches and selects between their results, which is right where many work-items compute them. `outlined` finds
the selects by one condition again, and what nobody needs but them, and makes a `Branch` of it, which is written as an `if`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tracegrad.codegen.graph.rewrite import at
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.primitive import bind, placeholder
from tracegrad.graph.substitution import replaced
from tracegrad.ops.primitives.movement import expand, reshape
from tracegrad.support.tuning import tuning


class Branch(Shared):
    """The results of one graph or of another. Operands: the condition, and the inputs of both. It is only in graphs that are lowered."""

    family = "branch"

    def __init__(self, yes: Graph, no: Graph) -> None:
        super().__init__()
        self.name, self.yes, self.no = "cond", yes, no  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(o.aval for o in self.yes.outputs)


def outlined(graph: Graph) -> Graph:
    """The graph with branches instead of selects, where a branch is work that is worth an `if`; itself if there is none.

    Or where the condition is long in coming, and what is selected is few numbers: an `if` goes on with what it guesses, a select waits.
    """
    while True:
        waits = _waits(graph)
        sides = [(_exclusive(graph, group), group) for group in _groups(graph)]
        found = max((f for f in sides if _is_worth_it(*f, waits)), key=lambda f: _work(f[0]), default=None)
        if found is None:
            return graph
        graph = _with_branch(graph, *found)


def _is_worth_it(side: dict[Node, int], group: Sequence[Node], waits: dict[Node, float]) -> bool:
    few = all(node.aval.size <= tuning().register_elements for node in group)
    return _work(side) >= tuning().branch_work or (few and waits[_condition(group[0])] >= tuning().branch_wait)


def _waits(graph: Graph) -> dict[Node, float]:
    """For each node the flops that come one after the other before it is there."""
    found: dict[Node, float] = {}
    for node in graph:
        fn: Any = node.fn
        own = fn.flops if fn.family == "elementwise" else _work([node]) / max(1, node.aval.size)
        found[node] = own + max((found.get(o, 0.0) for o in node.operands), default=0.0)
    return found


def _condition(node: Node) -> Node:
    """The one value that decides at all elements."""
    c = node.operands[0]
    while c.fn.name in ("reshape", "expand"):
        c = c.operands[0]
    return c


def _groups(graph: Graph) -> list[list[Node]]:
    """Selects by one condition, none of which depends on another."""
    found: dict[tuple[Node, int], list[Node]] = {}
    conditions = dict.fromkeys(c for n in graph if n.fn.name == "where" and (c := _condition(n)).aval.size == 1)
    for condition in conditions:
        depth: dict[Node, int] = {}
        for node in graph:
            depth[node] = max((depth.get(o, 0) for o in node.operands), default=0)
            if node.fn.name == "where" and _condition(node) is condition:
                found.setdefault((condition, depth[node]), []).append(node)
                depth[node] += 1
    return list(found.values())


def _exclusive(graph: Graph, group: Sequence[Node]) -> dict[Node, int]:
    """The nodes that nothing needs but one operand (1 or 2) of the selects, and which. Results that are computed together stay together."""
    calls: dict[Any, list[Node]] = {}
    for node in graph:
        if isinstance(node.fn, Shared):
            calls.setdefault((node.fn, node.operands), []).append(node)
    outside: set[Node] = set()
    while True:
        side = _sides(graph, group, outside)
        torn = {n for results in calls.values() if len({side.get(n) for n in results}) > 1 for n in results}
        if torn <= outside:
            return side
        outside |= torn


def _sides(graph: Graph, group: Sequence[Node], outside: Collection[Node]) -> dict[Node, int]:
    """The nodes that nothing needs but one operand of the selects, and which, where those `outside` are none."""
    users: dict[Node, set[int]] = {o: {0} for o in graph.outputs}
    side: dict[Node, int] = {}
    selects, inputs = set(group), set(graph.inputs)
    for node in reversed(list(graph)):
        uses = users.get(node, set())
        if node not in selects and node not in inputs and node not in outside and node.operands and len(uses) == 1 and 0 not in uses:
            side[node], = uses
        for k, o in enumerate(node.operands):
            users.setdefault(o, set()).add(k if node in selects else side.get(node, 0))
    return side


def _work(nodes: Iterable[Node]) -> float:
    """About the flops of nodes."""
    total = 0.0
    for node in nodes:
        fn: Any = node.fn
        if fn.family == "loop":
            total += fn.length * _work(fn.graph)
        elif fn.family == "while_loop":
            total += tuning().branch_work
        elif fn.family == "elementwise":
            total += fn.flops * node.aval.size
        elif node.operands and fn.family != "movement":
            total += fn.work(node.aval, *[o.aval for o in node.operands], **node.attrs)
    return total


def _with_branch(graph: Graph, side: dict[Node, int], group: Sequence[Node]) -> Graph:
    inputs = set(graph.inputs)
    edges = [o for n in graph if n in side for o in n.operands] + [o for n in group for o in n.operands[1:]]
    given = [o for o in dict.fromkeys(edges) if o not in side and (o.operands or o in inputs)]
    stand_ins: dict[Node, Node] = {o: placeholder(Aval(o.shape, o.dtype), str(o.attrs.get("label", ""))) for o in given}
    new = dict(stand_ins)
    for node in graph:
        if node in side:
            with at(node.loc):
                new[node] = bind(node.fn, tuple([new.get(o, o) for o in node.operands]), node.attrs)

    def branch(k: int) -> Graph:
        values = []
        for node in group:
            with at(node.loc):
                x = new.get(node.operands[k], node.operands[k])
                padded = reshape(x, (*[1] * (len(node.shape) - len(x.shape)), *x.shape))
                values.append(padded if padded.shape == node.shape else expand(padded, node.shape))
        return Graph.capture(list(stand_ins.values()), values)

    fn = Branch(branch(1), branch(2))
    operands = (_condition(group[0]), *given)
    made: dict[Node, Node] = {}
    for k, node in enumerate(group):
        with at(node.loc):
            made[node] = bind(fn, operands, {"index": k})
    return replaced(graph, made.__contains__, lambda node, *_: made[node])
