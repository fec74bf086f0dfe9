"""Work of several devices, cut at its transfers into subgraphs of one device each. Start at `Partition`.

The subgraphs are computed one after the other, by stages: stage 0 needs nothing that is sent, stage n needs what was computed before it and
sent. A model that goes from one device to another and back has three stages, and its backward pass two more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracegrad.graph.ir import Node, topological
from tracegrad.graph.operation_families import Movement
from tracegrad.ops.primitives.transfer import TRANSFER

Seen = Callable[[Node], Node]           # canonical.resolve: the node that holds a value, behind what only differentiation cares about
Test = Callable[[Node], bool]


def _valued(node: Node) -> bool:
    return node.value is not None


def moves(node: Node) -> bool:
    """Whether it is a movement."""
    return isinstance(node.fn, Movement)


class Partition:
    """How to compute `wanted`, by device nodes without values (resolved ones).

    transfers: by stage, the nodes that receive a value before anything else of the stage. computed: by stage and device, the nodes to
    compute. kept: those whose values a later stage reads. Nothing is computed twice, so nothing is rounded in two ways.

    known(node): whether it needs no computing. again(node): whether it is made again in each stage that reads it, as movements are. last:
    what nothing that is sent is made of is computed in a stage of its own, after all others, so that no transfer waits for it.
    """

    def __init__(self, wanted: Mapping[Any, Sequence[Node]], resolve: Seen, known: Test = _valued, again: Test = moves,
                 last: bool = False) -> None:
        def operands(node: Node) -> tuple[Node, ...]:
            return tuple([resolve(o) for o in node.operands])

        order = [n for n in topological([n for nodes in wanted.values() for n in nodes], known, operands) if not known(n)]
        stage: dict[Node, int] = {}
        for node in order:
            before = [stage[o] for o in operands(node) if o in stage]
            stage[node] = max(before, default=-1 if node.fn is TRANSFER else 0) + (node.fn is TRANSFER)
        count = max(stage.values(), default=0) + 1
        if last:
            for node in _unsent(order, known):
                stage[node] = count
            count += 1
        self.transfers: list[list[Node]] = [[] for _ in range(count)]
        self.computed: list[dict[Any, list[Node]]] = [{} for _ in range(count)]
        for node in order:
            if node.fn is TRANSFER:
                self.transfers[stage[node]].append(node)
                source = resolve(node.operands[0])
                if source.constant:                     # other devices have it, too: the value is one of its own
                    source = source.twin()
                    node.operands = (source,)
                    stage[source] = 0
                if not known(source) and source.fn is not TRANSFER:
                    self.computed[stage[source]].setdefault(node.attrs["source"], []).append(source)
        for device, nodes in wanted.items():
            for node in nodes:
                if node.fn is not TRANSFER and not known(node):
                    self.computed[stage[node]].setdefault(device, []).append(node)
        self.kept = self._kept(order, stage, operands, again)

    def _kept(self, order: Sequence[Node], stage: Mapping[Node, int], operands: Callable[[Node], tuple[Node, ...]], again: Test
              ) -> set[Node]:
        """What is read in a later stage than the one it is computed in. Not what is made again: its operands, then."""
        computed = {node for by_device in self.computed for nodes in by_device.values() for node in nodes}
        kept: set[Node] = set()
        moved: dict[Node, int] = {}             # what is made again: the last stage that reads it
        for node in reversed(order):
            if node.fn is TRANSFER:
                continue
            used = max(stage[node], moved.get(node, 0))
            for o in operands(node):
                if o not in stage or o in computed or o.fn is TRANSFER or stage[o] >= used or o.constant or not o.operands:
                    continue
                if again(o):
                    moved[o] = max(used, moved.get(o, 0))
                else:
                    kept.add(o)
        return kept


def _unsent(order: Sequence[Node], known: Test) -> list[Node]:
    """What nothing that is sent is made of. Not a result of a call (a loop, host code) that another result of is sent: it is one call."""
    sent = set(topological([n.operands[0] for n in order if n.fn is TRANSFER], known))
    calls = {call_of(n) for n in order if n in sent and "index" in n.attrs}
    return [n for n in order if n not in sent and n.fn is not TRANSFER and not ("index" in n.attrs and call_of(n) in calls)]


def call_of(node: Node) -> Any:
    """What the results of one call (a loop, host code) have in common."""
    return node.fn, node.operands


def device_of(node: Node) -> Any:
    """The device that a node's value lies on, or will; None where nothing tells: it is made of constants, or of what stands for values."""
    starts = topological([node], lambda n: n.value is not None or n.fn is TRANSFER)
    return next((n.attrs["target"] if n.fn is TRANSFER else n.value.device for n in starts
                 if n.fn is TRANSFER or hasattr(n.value, "device")), None)
