"""Which passes untraced work goes through, which is a list of operations, before NumPy computes it: `simplified`.

Most of it stays as it is: to make a graph of it takes longer than one run by NumPy. So a graph is made where a pass has something to do.
No pass that changes bits is one of them: the first use of a structure goes through the operations as they were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.graph.canonical import Places, is_number
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import REGISTRY
from tracegrad.passes.equal_chains import Limits as ChainLimits
from tracegrad.passes.equal_chains import chains, may_be
from tracegrad.passes.loops import shortened
from tracegrad.passes.paddings import Limits, paddings

_PAD = REGISTRY["pad"]
PADDINGS = Limits(least=2, pieces=1, most=1 << 30)                # NumPy puts any number together in one call
CHAINS = ChainLimits(least=4, part=1 << 14, whole=1 << 16)        # longer arrays take as long one after the other
ROW, WHOLE = 1 << 14, 1 << 20       # bytes, of an iteration and of all: larger arrays take no less time together than one after the other


def _early(node: Node, length: int) -> bool:
    """Whether an operation on rows is better done for all `length` iterations together."""
    return node.aval.nbytes <= ROW and length * node.aval.nbytes <= WHOLE and node.fn.family in ("elementwise", "movement")


def _is_part(node: Node) -> bool:
    """Whether a node shows elements of what a placeless operation computes."""
    moved = node.fn.family == "movement"
    while node.fn.family == "movement" and len(node.operands) == 1:
        node, = node.operands
    return moved and node.fn.placeless


def simplified(order: Sequence[Node], places: Sequence[Places], ends: Places
               ) -> tuple[Sequence[Node], Sequence[Places], Places, list[int], frozenset[int]]:
    """The list after the passes that pay for NumPy, with the places of its results, and of its numbers in the order that they had; and the

    positions of results that are now parts of one array, the others of which are results, too (see passes/equal_chains.py).
    """
    numbers = [i for i, node in enumerate(order) if is_number(node)]
    pads = sum(node.fn is _PAD for node in order)
    if not (pads >= PADDINGS.least or any(node.fn.family == "loop" for node in order) or may_be(order, CHAINS)):
        return order, places, ends, numbers, frozenset()
    leaves = {p: o for node, operands in zip(order, places, strict=True) for p, o in zip(operands, node.operands, strict=True) if p < 0}
    inputs = dict.fromkeys([*(order[i] for i in numbers), *leaves.values()])
    # What reports comes first, so that its order stays.
    kept = [i for i, node in enumerate(order) if node.fn.reports] + [i for i in ends if i >= 0]
    changed = chains(shortened(paddings(Graph.capture([*inputs], [order[i] for i in kept]), PADDINGS), _early), CHAINS)
    nodes = [*(order[i] for i in numbers), *(node for node in changed if node not in inputs)]
    place = {node: p for p, node in leaves.items()} | {node: i for i, node in enumerate(nodes)}
    found = {i: place[node] for i, node in zip(kept, changed.outputs, strict=True)}
    targets = tuple([found.get(i, i) for i in ends])
    computed = [k for k, i in enumerate(ends) if i >= 0 and order[i].fn.placeless]
    joined = frozenset([k for k in computed if targets[k] >= 0 and _is_part(nodes[targets[k]])])
    return nodes, [tuple([place[o] for o in node.operands]) for node in nodes], targets, list(range(len(numbers))), joined
