"""Kernels to be in an order in which each comes after those it needs. Start at `in_order`.

(networkx has this, too, and takes longer to load than most programs to be compiled: 70 ms of a first call.)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from tracegrad.codegen.schedule.grouping import Group
from tracegrad.ir import Node

Before = Mapping[Group, Iterable[Group]]           # each group -> those that run before it


def reading(groups: Iterable[Group], group_of: Mapping[Node, Group], stored: Container[Node]) -> dict[Group, set[Group]]:
    """The groups, each with those whose stored values it reads."""
    return {group: {group_of[node] for node in group.reads if node in stored} - {group} for group in groups}


def in_order(before: Before) -> list[Group]:
    """The groups, each after those before it, else by number."""
    sorter = TopologicalSorter(before)
    sorter.prepare()
    by_number: dict[int, Group] = {}
    ready: list[int] = []

    def add() -> None:
        for group in sorter.get_ready():
            by_number[group.number] = group
            heappush(ready, group.number)

    out = []
    add()
    while ready:
        group = by_number[heappop(ready)]
        out.append(group)
        sorter.done(group)
        add()
    return out


def reaches(before: Before, group: Group, others: Iterable[Group]) -> bool:
    """Whether some of `others` has to run after `group`."""
    todo, seen = list(others), set(others)
    while todo:
        for earlier in before[todo.pop()]:
            if earlier is group:
                return True
            if earlier not in seen:
                seen.add(earlier)
                todo.append(earlier)
    return False
