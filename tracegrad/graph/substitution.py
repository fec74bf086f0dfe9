"""Nodes put in the place of others (`substituted`; in a graph `replaced`), and the hooks of nodes, which go along."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracegrad.graph.ir import Graph, Node, topological
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind


class Walk(threading.local):
    """The reverse walk that calls hooks: the nodes that it reaches, and what hooks note until it ends."""

    live: frozenset[Node] | set[Node] = frozenset()
    notes: Any = None


class StepHook:
    """A hook of the step that a derivative makes at a node, of those among the node's hooks (`grad_fn.register_hook`).

    before: it is called with the node's cotangent, and gives the one that the rule gets. Else it is called with what the rule made, of
    which cotangent and which operands' are wanted, and gives what the operands get.
    """

    __slots__ = ("before", "call")

    def __init__(self, before: bool, call: Callable[..., Any]) -> None:
        self.before, self.call = before, call


class Hooks:
    """node -> hooks that see, and may replace, its cotangent (Tensor.register_hook), or what its step makes of it (`StepHook`).

    Kept by the nodes themselves: hooks often know the tensor that they belong to, and nothing else shall keep that alive.
    """

    UNPACK = -1                                         # the hook of this number makes the node anew of what was packed: see `restored`

    def __init__(self) -> None:
        self._nodes: weakref.WeakSet[Node] = weakref.WeakSet()
        self.walk = Walk()

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def __getitem__(self, node: Node) -> dict[int, Any]:
        return node.hooks

    def __setitem__(self, node: Node, hooks: dict[int, Any]) -> None:
        node.hooks = hooks
        self._nodes.add(node)

    def arriving(self, node: Node, ct: Any) -> Any:
        """The cotangent of a node as its hooks leave it, which are not those of its step."""
        for key, hook in list(node.hooks.items()) if node in self else ():
            ct = ct if key == self.UNPACK or isinstance(hook, StepHook) else hook(ct)
        return ct

    def of_step(self, node: Node) -> list[StepHook]:
        """The hooks of the node's step, in their order."""
        return [hook for hook in node.hooks.values() if isinstance(hook, StepHook)] if node in self else []

    def restored(self, node: Node) -> Node:
        """The node that the derivative's rule is given in the place of `node`: one of what was unpacked, if its operands were packed."""
        unpack = node.hooks.get(self.UNPACK) if node in self else None
        return node if unpack is None else unpack(node)

    def let_go(self, nodes: Sequence[Node]) -> None:
        """Forget what was packed for nodes that a backward has freed."""
        for node in nodes if self else ():
            if node in self:
                node.hooks.pop(self.UNPACK, None)

    def setdefault(self, node: Node) -> dict[int, Any]:
        """The node's hooks, none if it had none."""
        if node not in self:
            self[node] = {}
        return node.hooks


HOOKS = Hooks()


def that_matter(node: Node) -> tuple[Node, ...]:
    """The operands that a node's value depends on: of a loop's, one result's."""
    source, fn = node, node.fn
    if fn is REGISTRY["output"]:
        source = node.operands[0]
        fn = source.fn
    elif fn.family != "loop":
        return node.operands
    relevant = getattr(fn, "relevant", None)
    return node.operands if relevant is None else tuple(source.operands[i] for i in relevant(node.attrs["index"]))


def substituted(outs: Sequence[Node], given: Mapping[Node, Node]) -> list[Node]:
    """outs with nodes replaced; what does not depend on those stays as it is. Hooks go along."""
    new = dict(given)
    for node in topological(outs, given.__contains__):
        if node in new:
            continue
        if not any(new[o] is not o for o in node.operands):
            new[node] = node
        elif node.fn is REGISTRY["variable"]:
            new[node] = new[node.operands[0]]
        else:
            with located(node.loc):
                new[node] = bind(node.fn, tuple(new[o] for o in node.operands), node.attrs)
            if HOOKS and node in HOOKS:
                new[node] = new[node].twin()
                HOOKS[new[node]] = HOOKS[node]
    return [new[o] for o in outs]


def rebound(node: Node, operands: tuple[Node, ...]) -> Node:
    """The node's operation on other operands, at its line; the node itself where they are its own."""
    if operands == node.operands:
        return node
    with located(node.loc):
        return bind(node.fn, operands, node.attrs)


def replaced(graph: Graph, applies: Callable[[Node], bool], made: Callable[..., Node]) -> Graph:
    """The graph in which each node that `applies` holds of is made(node, *its new operands), at its line. Most passes are this."""
    found = {node for node in graph if applies(node)}
    if not found:
        return graph

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        if node not in found:
            return rebound(node, operands)
        with located(node.loc):
            return made(node, *operands)

    return graph.rebuilt(replace)
