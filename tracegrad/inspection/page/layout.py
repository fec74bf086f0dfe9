"""Where the boxes of a graph's picture stand: rows, and the order in each. Start at `layered` and `folded`.

It is the layered layout of Sugiyama and others (1981): networkx's topological generations are the rows, and a few sweeps put a box at the
mean place of what it is joined with. Graphs of 5,000 nodes take a fraction of a second. A layout library would be another dependency, and
one that is written in Python takes minutes for that many (docs/design.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import networkx as nx

SWEEPS = 4
WIDE = 16                        # boxes of a row; more are several rows


@dataclass(frozen=True)
class Box:
    """Nodes that are drawn as one box until it is opened: those of one key, written or derived.

    nodes: their numbers. inside: the same as rows, for the open box. Data flows upwards through derived ones.
    """

    key: Hashable
    derived: bool
    nodes: list[int]
    inside: list[list[int]]


@dataclass(frozen=True)
class Folding:
    """A picture of boxes: its rows, each the boxes on the left (written) and those on the right (derived)."""

    boxes: list[Box]
    rows: list[tuple[list[int], list[int]]]


def layered(count: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Rows of the items 0 ... count - 1, so that edges lead downwards. Edges from later items to earlier ones do not count."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from((a, b) for a, b in edges if a < b)
    rows = [sorted(row) for row in nx.topological_generations(graph)]
    place = {item: (i + 0.5) / len(row) for row in rows for i, item in enumerate(row)}
    for sweep in range(SWEEPS):
        beside = graph.pred if sweep % 2 == 0 else graph.succ
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            mean = {item: sum(place[o] for o in beside[item]) / len(beside[item]) if beside[item] else place[item] for item in row}
            row.sort(key=lambda item: (mean[item], item))
            place.update({item: (i + 0.5) / len(row) for i, item in enumerate(row)})
    return [row[at:at + WIDE] for row in rows for at in range(0, len(row), WIDE)]


def folded(keys: Sequence[Hashable], derived: Sequence[bool], edges: Sequence[tuple[int, int]]) -> Folding:
    """The boxes of nodes by their keys; the derivative of a box stands beside it. edges: (operand, user), by numbers of nodes."""
    members: dict[tuple[Hashable, bool], list[int]] = defaultdict(list)
    for node, side in enumerate(zip(keys, derived, strict=True)):
        members[side].append(node)
    inner: dict[tuple[Hashable, bool], list[tuple[int, int]]] = defaultdict(list)
    members = dict(sorted(members.items(), key=lambda item: median(item[1])))        # one that is given something early is no early one
    number = {side: i for i, side in enumerate(members)}
    outer = set()
    for a, b in edges:
        sides = (keys[a], derived[a]), (keys[b], derived[b])
        if sides[0] == sides[1]:
            inner[sides[0]].append((a, b))
        else:
            outer.add((number[sides[0]], number[sides[1]]))
    boxes = []
    for side, nodes in members.items():
        local = {node: i for i, node in enumerate(nodes)}
        inside = [[nodes[i] for i in row] for row in layered(len(nodes), [(local[a], local[b]) for a, b in inner[side]])]
        boxes.append(Box(*side, nodes, inside[::-1] if side[1] else inside))
    return Folding(boxes, _rows(boxes, outer))


def _rows(boxes: Sequence[Box], edges: Collection[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    written = [i for i, box in enumerate(boxes) if not box.derived]
    of_key = {boxes[i].key: i for i in written}
    twins = {i: of_key[box.key] for i, box in enumerate(boxes) if box.derived and box.key in of_key}
    alone = [i for i, box in enumerate(boxes) if box.derived and i not in twins]
    rows: list[tuple[list[int], list[int]]] = [([written[i] for i in row], []) for row in _within(written, edges)]
    row_of = {box: row for row in rows for box in row[0]}
    for box, twin in twins.items():
        row_of[twin][1].append(box)
    upwards = _within(alone, edges)                      # what derives no box on the left: beside its last rows, from below
    rows[:0] = [([], []) for _ in range(len(upwards) - len(rows))]
    for row, found in zip(reversed(rows), upwards, strict=False):
        row[1].extend(alone[i] for i in found)
    return rows


def _within(boxes: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    local = {box: i for i, box in enumerate(boxes)}
    return layered(len(boxes), [(local[a], local[b]) for a, b in edges if a in local and b in local])
