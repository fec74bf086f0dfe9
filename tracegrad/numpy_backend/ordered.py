"""The list of operations that NumPy goes through, after the passes that pay there. Start at `ordered`.

Untraced work comes as a list already (see graph/canonical.py), and most of it stays as it is: to make a graph of it takes longer than one
run by NumPy. So a graph is made where a pass has something to do. No pass that changes bits is one of them: the first use of a structure
goes through the operations as they were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, sub
from typing import Any, NamedTuple

from tracegrad.graph.canonical import Places, is_number
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.locations import Location, located
from tracegrad.graph.primitive import REGISTRY, placeholder
from tracegrad.passes.paddings import Limits, put_together

_PAD = REGISTRY["pad"]
NOWHERE = Location("", 0, "")
LIMITS = Limits(least=2, pieces=1, most=1 << 30)                # NumPy puts any number together in one call


class Ordered(NamedTuple):
    """Operations, operands first, with the places of their operands and those of the results (`ends`).

    constants: the places of the numbers, in the caller's order. origin: of each operation, its position in the caller's list.
    """

    nodes: Sequence[Any]
    places: Sequence[Places]
    ends: Places
    constants: list[int]
    origin: Sequence[int]


def ordered(order: Sequence[Any], places: Sequence[Places], ends: Sequence[int]) -> Ordered:
    """The list to go through for `order`, of nodes or what is like them (cached_calls.Call)."""
    numbers = [i for i, node in enumerate(order) if is_number(node)]
    given = Ordered(order, places, tuple(ends), numbers, range(len(order)))
    if sum(node.fn is _PAD for node in order) < LIMITS.least:
        return given
    with located(NOWHERE):                                      # to find the user's line takes longer than to make a node
        graph, at = _graph(given)
    new = put_together(graph, LIMITS, _node)
    if not new:
        return given
    changed = Graph.capture(graph.inputs, [new.get(o, o) for o in graph.outputs])
    origin = {new.get(node, node): place for place, node in at.items() if place >= 0}
    for node in reversed([*changed]):                           # what a pass made belongs to what it is for
        for o in node.operands:
            if o not in origin or o not in graph:
                origin[o] = min(origin[node], origin.get(o, origin[node]))
    inputs, fixed = set(graph.inputs), [at[i] for i in numbers]
    nodes = [*fixed, *sorted([node for node in changed if node not in inputs], key=origin.__getitem__)]      # reports keep their order
    place = {node: k for k, node in at.items() if k < 0} | {node: i for i, node in enumerate(nodes)}
    return Ordered(nodes, [() if i < len(fixed) else tuple([place[o] for o in node.operands]) for i, node in enumerate(nodes)],
                   tuple([place[o] for o in changed.outputs[:len(given.ends)]]), list(range(len(fixed))), [origin[node] for node in nodes])


def _graph(given: Ordered) -> tuple[Graph, dict[int, Node]]:
    """The list as a graph, and its nodes by place. Leaves and numbers are inputs; results are those of the list, and what reports.

    Of a leaf that is padded the shape is known. Calls do not tell more, nor do nodes of a freed history, and no pass asks for more.
    """
    at: dict[int, Node] = {end: placeholder(Aval((), given.nodes[0].aval.dtype)) for end in given.ends if end < 0}
    for node, operands in zip(given.nodes, given.places, strict=True):
        dtypes = node.given if len(node.given) == len(operands) else [node.aval.dtype] * len(operands)       # of a freed history
        for o, dtype in zip(operands, dtypes, strict=True):
            if o < 0 and node.fn is _PAD:
                at[o] = placeholder(Aval(tuple(map(sub, node.aval.shape, map(add, node.attrs["low"], node.attrs["high"]))), dtype))
            elif o < 0:
                at.setdefault(o, placeholder(Aval((), dtype)))
    leaves = list(at.values())
    for i, (node, operands) in enumerate(zip(given.nodes, given.places, strict=True)):
        at[i] = placeholder(node.aval) if is_number(node) else _node(node, tuple([at[o] for o in operands]))
    results = [*given.ends, *(i for i, node in enumerate(given.nodes) if node.fn.reports)]
    return Graph.capture([*leaves, *(at[i] for i in given.constants)], [at[i] for i in results]), at


def _node(like: Any, operands: tuple[Node, ...]) -> Node:
    """A node of a graph of its own, which nobody else shares: it needs no check and no place among the nodes that are alive."""
    made = Node(like.fn, operands, like.attrs, like.aval, False)
    if isinstance(like, Node):
        made.loc = like.loc
    return made
