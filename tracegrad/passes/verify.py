"""The graph checker: shapes, dtypes, arity, order. Run after every pass with TRACEGRAD_CHECK=1. Start at `verify`."""

from __future__ import annotations

from tracegrad.errors import GraphError, TracegradError
from tracegrad.graph.ir import Graph, Node


def verify(graph: Graph, after: str) -> Graph:
    """`graph` itself if it is well-formed; else a GraphError that shows the node, its neighbours, and the pass that made it."""
    seen: set[Node] = set()
    inputs = set(graph.inputs)
    for node in graph:
        if node not in inputs:
            for i, operand in enumerate(node.operands):
                if operand not in seen:
                    where = "comes after it: there is a cycle, or the order is wrong" if operand in graph else "is not in the graph"
                    raise GraphError(_message(graph, node, after, f"operand {i} {where}"))
            if node.operands or node.fn.family == "elementwise":
                try:
                    expected = node.fn.aval(*[o.aval for o in node.operands], **node.attrs)
                except (TracegradError, TypeError, ValueError, IndexError) as error:
                    raise GraphError(_message(graph, node, after, f"its rule refuses these operands: {error}")) from error
                if (expected.shape, expected.dtype) != (node.shape, node.dtype):
                    raise GraphError(_message(graph, node, after, f"its rule gives {expected}"))
        seen.add(node)
    for i, output in enumerate(graph.outputs):
        if output not in seen:
            raise GraphError(f"after {after}: output {i}, {output!r}, is not in the graph")
    return graph


def _message(graph: Graph, node: Node, after: str, problem: str) -> str:
    lines = [f"after {after}: {problem}", f"  {node!r}  from {node.loc}"]
    lines += [f"    operand {i}: {o!r}" for i, o in enumerate(node.operands)]
    if node in graph:
        lines += [f"    used by: {user!r}" for user in list(dict.fromkeys(graph.users(node)))[:4]]
    return "\n".join(lines)
