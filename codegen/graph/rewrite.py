"""Making nodes in passes: they carry the location of the node they replace (`at`). And how often nodes are used."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind

at = located


def op(name: str, *operands: Node, **attrs: Any) -> Node:
    """The node that applies the op called `name`."""
    return bind(REGISTRY[name], operands, attrs)


def uses(graph: Graph) -> Counter[Node]:
    """How often each node is an operand or a result."""
    return Counter([*graph.outputs, *(o for node in graph for o in node.operands)])
