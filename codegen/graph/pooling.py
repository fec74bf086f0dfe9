"""Max pooling: of windows and elementwise operations, and its gradient as a kernel of its own where that pays. Start at `pooling`."""

from __future__ import annotations

from math import prod
from typing import Any

from tracegrad.codegen.graph.reductions import rebind
from tracegrad.codegen.graph.rewrite import at
from tracegrad.graph.ir import Graph, Node
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning


def pooling(graph: Graph, target: Target) -> Graph:
    """The graph without max pooling, except the gradients that are computed plane by plane (lower/pooling.py)."""
    if not any(node.fn.family == "pool" for node in graph):
        return graph

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        if node.fn.family != "pool" or _suits(node, target):
            return node if operands == node.operands else rebind(node, operands)
        with at(node.loc):
            fn: Any = node.fn
            composed: Node = fn.composed(*operands, **node.attrs)
            return composed

    return graph.rebuilt(replace)


def _suits(node: Node, target: Target) -> bool:
    """Whether it is a gradient whose planes, one a work-item, are enough for the cores."""
    enough = node.shape[0] * tuning().pool_cores >= target.cores and prod(node.attrs["size"]) > 0
    return node.fn.name == "max_pool_gradient" and target.traits.long_items and enough
