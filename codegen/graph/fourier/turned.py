"""Transforms of the host that read or write permuted arrays as they lie: no kernel moves numbers across memory. Start at `turned`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind
from tracegrad.graph.substitution import replaced

_TURNED = REGISTRY["turned_dft"]
_SEEN = 200                                 # nodes that are looked at around a transform


def turned(graph: Graph, transforms: Container[Any]) -> Graph:
    """The graph where these transforms of the host take permutations into themselves: of what they read, and of a result that is only
    read in one other order.

    Not where what is around is permuted once more: it is in the transform's own order there, perhaps.
    """
    found = [node for node in graph if node.fn in transforms and node.aval.size]
    given: dict[Node, tuple[int, ...]] = {}
    for node in found:
        users = graph.users(node)
        orders = {user.attrs["dims"] if user.fn.name == "permute" else None for user in users}
        dims = orders.pop() if len(orders) == 1 else None
        if dims is not None and node not in graph.outputs and _one_order(users, graph.users):
            given[node] = dims
    taken = {node for node in found if (x := node.operands[0]).fn.name == "permute" and x.operands[0] not in given
             and _one_order([x], lambda n: n.operands)}
    ordered = {node for node in graph if node.fn.name == "permute" and node.operands[0] in given}

    def made(node: Node, x: Node) -> Node:
        if node in ordered:
            return x
        order = tuple(range(len(node.shape)))
        x, reads = (x.operands[0], x.attrs["dims"]) if node in taken else (x, order)
        attrs = {"of": node.fn.name, "taken": reads, "given": given.get(node, order)}
        return bind(_TURNED, (x,), attrs | dict(node.attrs))

    return replaced(graph, (ordered | taken | given.keys()).__contains__, made)


def _one_order(permutes: list[Node], others: Callable[[Node], Iterable[Node]]) -> bool:
    """Whether no more permutations are between these and what is stored, on one side: that of `others`."""
    seen, todo = set(permutes), list(permutes)
    while todo:
        for node in others(todo.pop()):
            if node.fn.name == "permute" or len(seen) > _SEEN:
                return False
            if node not in seen and node.fn.family in ("elementwise", "movement"):
                seen.add(node)
                todo.append(node)
    return True
