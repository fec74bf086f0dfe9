"""torch.fx.subgraph_rewriter: operations of a graph that are like a pattern, replaced by others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tracegrad.nn.module import Module
from tracegrad.torch_api.names.fx._symbolic_trace import symbolic_trace
from tracegrad.torch_api.names.fx.graph import Graph
from tracegrad.torch_api.names.fx.graph_module import GraphModule, _copy_attr
from tracegrad.torch_api.names.fx.node import Node

__all__ = ["Match", "replace_pattern"]


class Match(NamedTuple):
    """anchor: the node in which the pattern ends. nodes_map: the pattern's nodes, and which they are in the graph."""

    anchor: Node
    nodes_map: dict[Node, Node]


def _graph(of: Any) -> Graph:
    return of if isinstance(of, Graph) else of.graph if isinstance(of, GraphModule) else symbolic_trace(of).graph


def _matches(pattern: Any, found: Any, nodes: dict[Node, Any]) -> bool:
    """Whether an argument is like the pattern's; `nodes` gets which nodes those of the pattern are."""
    if isinstance(pattern, Node):
        if pattern in nodes:
            return nodes[pattern] is found
        if pattern.op == "placeholder":
            nodes[pattern] = found
            return True
        if not isinstance(found, Node) or (pattern.op, pattern.target) != (found.op, found.target):
            return False
        nodes[pattern] = found
        return _matches(pattern.args, found.args, nodes) and _matches(pattern.kwargs, found.kwargs, nodes)
    if isinstance(pattern, (list, tuple)):
        return isinstance(found, (list, tuple)) and len(pattern) == len(found) and all(
            _matches(p, f, nodes) for p, f in zip(pattern, found, strict=True))
    if isinstance(pattern, dict):
        return isinstance(found, dict) and pattern.keys() == found.keys() and all(_matches(p, found[k], nodes) for k, p in pattern.items())
    return type(pattern) is type(found) and bool(pattern == found)


def replace_pattern(gm: GraphModule, pattern: Callable[..., Any] | GraphModule,
                    replacement: Callable[..., Any] | GraphModule) -> list[Match]:
    """Replace operations that are like those of `pattern`, which do not overlap, and whose values within are not used elsewhere.

    pattern, replacement: functions of the same arguments, in the same order. Returns what was found. Raises RuntimeError where the pattern
    returns nothing or several values.
    """
    wanted, made = _graph(pattern), _graph(replacement)
    last = wanted.output_node().args[0]
    if not isinstance(last, Node):
        raise RuntimeError("replace_pattern: the pattern returns several values or none; return one")
    arguments = [n for n in wanted.nodes if n.op == "placeholder"]
    taken: set[Node] = set()
    matches: list[Match] = []
    for node in list(gm.graph.nodes):
        nodes: dict[Node, Any] = {}
        if not _matches(last, node, nodes):
            continue
        within = {found for n, found in nodes.items() if n.op not in ("placeholder", "get_attr")}
        if within & taken or any(set(n.users) - within for n in within if n is not node):
            continue
        taken |= within
        matches.append(Match(node, nodes))
    replaced: dict[Node, Node] = {}
    for anchor, nodes in matches:
        with gm.graph.inserting_before(anchor):
            given = [replaced.get(nodes[n], nodes[n]) if isinstance(nodes[n], Node) else nodes[n] for n in arguments]
            values = dict(zip((n for n in made.nodes if n.op == "placeholder"), given, strict=True))
            new = gm.graph.graph_copy(made, values)
        anchor.replace_all_uses_with(new)
        replaced[anchor] = new
        for n in reversed(wanted.nodes):
            if n in nodes and n.op != "placeholder" and not nodes[n].users:
                gm.graph.erase_node(nodes[n])
    if isinstance(replacement, Module):
        for node in made.nodes:
            if node.op in ("call_module", "get_attr") and not _has(gm, str(node.target)):
                _copy_attr(replacement, gm, str(node.target))
    gm.recompile()
    return matches


def _has(owner: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True
