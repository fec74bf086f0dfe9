"""What is computed of halves in several steps, and rounded once: sums, products, powers, scatters that add. Start at `halves`.

A kernel rounds the result of every operation on halves (`Evaluator.rounded`). What becomes several operations (a long row its partial sums,
a power its products) is an operation of float32 here, whose result is cast.
"""

from __future__ import annotations

from tracegrad.codegen.graph.reductions import rebind
from tracegrad.codegen.graph.rewrite import at
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import cast
from tracegrad.support import dtypes


def halves(graph: Graph) -> Graph:
    """The graph with these operations as float32 ones between casts."""
    if not any(_in_steps(node) for node in graph):
        return graph

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        if not _in_steps(node):
            return node if operands == node.operands else rebind(node, operands)
        with at(node.loc):
            return cast(rebind(node, tuple([cast(o, dtypes.float32) if dtypes.is_half(o.dtype) else o for o in operands])), node.dtype)

    return graph.rebuilt(replace)


def _in_steps(node: Node) -> bool:
    return dtypes.is_half(node.dtype) and node.fn.in_steps
