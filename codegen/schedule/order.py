"""The graph of kernels to be: an edge leads from each group to a group that runs after it. Start at `reading`."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import networkx as nx

from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node


def reading(groups: Iterable[Group], group_of: Mapping[Node, Group], stored: Container[Node]) -> nx.DiGraph[Group]:
    """The groups; each comes after those whose stored values it reads."""
    graph: nx.DiGraph[Group] = nx.DiGraph()
    graph.add_nodes_from(groups)
    graph.add_edges_from((earlier, group) for group in groups for node in group.reads
                         if node in stored and (earlier := group_of[node]) is not group)
    return graph


def in_order(graph: nx.DiGraph[Group]) -> list[Group]:
    """The groups, each after those before it, else by number."""
    return list(nx.lexicographical_topological_sort(graph, key=lambda group: group.number))


def reaches(graph: nx.DiGraph[Group], group: Group, others: Iterable[Group]) -> bool:
    """Whether some of `others` has to run after `group`."""
    return not nx.descendants(graph, group).isdisjoint(others)
