"""Max pooling: of windows and elementwise operations, and its gradient as a kernel of its own where that pays. Start at `pooling`."""

from __future__ import annotations

from math import prod
from typing import Any

from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.substitution import replaced
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning


def pooling(graph: Graph, target: Target) -> Graph:
    """The graph without max pooling, except the gradients that are computed plane by plane (lower/pooling.py)."""
    def composed(node: Node, *operands: Node) -> Node:
        fn: Any = node.fn
        found: Node = fn.composed(*operands, **node.attrs)
        return found

    return replaced(graph, lambda node: node.fn.family == "pool" and not _suits(node, target), composed)


def _suits(node: Node, target: Target) -> bool:
    """Whether it is a gradient whose planes, one a work-item, are enough for the cores."""
    enough = node.shape[0] * tuning().pool_cores >= target.cores and prod(node.attrs["size"]) > 0
    return node.fn.name == "max_pool_gradient" and target.traits.long_items and enough
