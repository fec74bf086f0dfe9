"""A graph as a drawing: `f.graph` in a notebook. Start at `svg`."""

from __future__ import annotations

from html import escape
from os.path import basename
from typing import Any

from networkx import MultiDiGraph

from tracegrad.errors import printable
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.printing import aval_text
from tracegrad.inspection.page.layout import Folding, folded

MOST = 400                       # nodes that are drawn one by one; of more, a box for each line
HEIGHT, GAP, WIDTH = 24, 18, 7   # of a box, between boxes, of a letter
_STYLE = ("svg.tg{font:12px sans-serif;color:#222}svg.tg rect{fill:#e8f0fe;stroke:#6b8fd6}svg.tg .derived rect{fill:#fdeee0;stroke:#d69a5a}"
          "svg.tg path{fill:none;stroke:#999}svg.tg text{fill:currentColor;text-anchor:middle}")


class Network(MultiDiGraph):  # type: ignore[misc]  # networkx has no types
    """The network of a captured program, as `f.graph` gives it: a networkx.MultiDiGraph, which notebooks draw."""

    inputs: list[Node]
    outputs: list[Node]

    @classmethod
    def of(cls, graph: Graph) -> Network:
        """A network of its own: the user may change it."""
        network = cls(graph.network)
        network.inputs, network.outputs = graph.inputs, graph.outputs
        return network

    def _repr_svg_(self) -> str:
        return svg(self)


def svg(network: Any) -> str:
    """A network of nodes as a drawing: data flows down through what was written, on the left, and up through derivatives, on the right."""
    nodes = list(network)
    number = {node: i for i, node in enumerate(nodes)}
    edges = [(number[a], number[b]) for a, b in network.edges()]
    lines = len(nodes) > MOST
    keys = [(node.loc.filename, node.loc.line) if lines else i for i, node in enumerate(nodes)]
    folding = folded(keys, [node.loc.derived for node in nodes], edges)
    labels = [_label([nodes[i] for i in box.nodes]) for box in folding.boxes]
    box_of = {node: i for i, box in enumerate(folding.boxes) for node in box.nodes}
    joined = dict.fromkeys((box_of[a], box_of[b]) for a, b in edges if box_of[a] != box_of[b])
    return _drawing(folding, labels, list(joined))


def _label(nodes: list[Node]) -> str:
    node = nodes[0]
    if len(nodes) == 1:
        name = str(node.attrs.get("label") or node.fn.name)
        return printable(f"{name} {aval_text(node.aval)}")
    return printable(f"{basename(node.loc.filename)}:{node.loc.line}{' ∂' * node.loc.derived} ({len(nodes)})")


def _drawing(folding: Folding, labels: list[str], edges: list[tuple[int, int]]) -> str:
    widths = [WIDTH * len(label) + 16 for label in labels]
    middle = max((sum(widths[i] + GAP for i in left) for left, _ in folding.rows), default=0)
    right = max((sum(widths[i] + GAP for i in row[1]) for row in folding.rows), default=0)
    places: dict[int, tuple[float, float]] = {}
    for number, row in enumerate(folding.rows):
        for boxes, start, room in ((row[0], 0, middle), (row[1], middle + GAP, right)):
            x = start + (room - sum(widths[i] + GAP for i in boxes)) / 2 + GAP / 2
            for i in boxes:
                places[i] = x + widths[i] / 2, GAP + number * (HEIGHT + 2 * GAP)
                x += widths[i] + GAP
    paths, drawn = [], []
    for a, b in edges:
        (x, y), (u, v) = places[a], places[b]
        down = v >= y
        y, v = y + (HEIGHT if down else 0), v + (0 if down else HEIGHT)
        bend = GAP if down else -GAP
        paths.append(f'<path d="M{x:.0f} {y} C{x:.0f} {y + bend} {u:.0f} {v - bend} {u:.0f} {v}"/>')
    for i, (x, y) in sorted(places.items()):
        kind = ' class="derived"' if folding.boxes[i].derived else ""
        drawn.append(f'<g{kind}><rect x="{x - widths[i] / 2:.0f}" y="{y}" width="{widths[i]}" height="{HEIGHT}" rx="4"/>'
                     f'<text x="{x:.0f}" y="{y + 16}">{escape(labels[i])}</text></g>')
    size = f'width="{middle + right + 2 * GAP}" height="{2 * GAP + len(folding.rows) * (HEIGHT + 2 * GAP)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="tg" {size}><style>{_STYLE}</style>{"".join(paths)}{"".join(drawn)}</svg>'
