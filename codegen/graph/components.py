"""Elements of a few components: what is computed for each of them, of arrays whose last dimension is short. Start at `Components`.

Coordinates, colours, the parts of a small system: scientists write them as a last dimension of 2, 3 or 4. Along it no vector fits, and a
vector over it and the dimension before has each of the components' common values several times. So on CPUs a reduction that keeps such a
dimension is one for each component, side by side; what only such reductions need is computed component by component; and a sum over
the components themselves (a squared distance) is a sum of what is there already. Measured on the energy of 2,000 particles and their
forces, of arrays (2000, 3): one pass over the pairs instead of three, and whole vectors instead of gathers and loops of three iterations.
"""

from __future__ import annotations

from math import prod

import networkx as nx
import numpy as np

from tracegrad.codegen.graph.rewrite import op
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import bind
from tracegrad.support.plan import Target
from tracegrad.support.tuning import tuning

_ADDED = frozenset(("float32", "float64", "int32", "int64"))          # dtypes whose sums are what `add` gives


class Components:
    """What of a graph is done component by component.

    reduced: reductions that keep a short last dimension; folded: sums over one; through: elementwise work that only they need.
    """

    def __init__(self, graph: Graph, target: Target) -> None:
        self.reduced: set[Node] = set()
        self.folded: set[Node] = set()
        self.through: set[Node] = set()
        self.made: dict[Node, tuple[Node, ...]] = {}                  # new nodes of `through` -> their components
        if target.traits.vectors:
            self.reduced = {n for n in graph if n.fn.family == "reduction" and _kept(n)}
        if self.reduced:
            self.extend(graph)

    def extend(self, graph: Graph) -> None:
        """Find what the reductions need, and nobody else."""
        near: nx.Graph[Node] = nx.Graph()
        near.add_nodes_from(self.reduced)
        outputs = set(graph.outputs)
        sums = {n for n in graph if _adds_up(n) and n not in self.reduced}
        for node in reversed(list(graph)):
            if node in outputs or not _passes(node):
                continue
            by = graph.users(node)
            if all(u in self.through or u in self.reduced or u in sums for u in by):
                self.through.add(node)
                near.add_edges_from((node, u) for u in by)
        for part in list(nx.connected_components(near)):
            if part.isdisjoint(self.reduced):
                self.through -= part
            else:
                self.folded |= part & sums

    def of(self, x: Node) -> tuple[Node, ...]:
        """The components of `x`."""
        found = self.made.get(x)
        if found is not None:
            return found
        lead, n = x.shape[:-1], x.shape[-1]
        out = []
        for k in range(n):
            one = op("slice", x, start=(*(0,) * len(lead), k), stop=(*lead, k + 1), step=(1,) * len(x.shape)) if n > 1 else x
            out.append(op("reshape", one, shape=lead))
        return tuple(out)

    def make(self, old: Node, new: Node) -> None:
        """Make the components of `new`, which `old` of the graph became, of its operands' components."""
        if old not in self.through:
            return
        n, attrs = new.shape[-1], new.attrs
        if new.fn.name == "expand":
            attrs = {"shape": new.shape[:-1]}
        parts = [self.of(o) if o.shape else (o,) for o in new.operands]
        made = []
        for k in range(n):
            operands = tuple(part[k if len(part) > 1 else 0] for part in parts)
            plain = new.fn.name == "expand" and operands[0].shape == attrs["shape"]
            made.append(operands[0] if plain else bind(new.fn, operands, attrs))
        self.made[new] = tuple(made)

    def folds(self, old: Node, operand: Node) -> Node | None:
        """The sum `old` over the components of `operand`, if they are there."""
        if old not in self.folded or operand not in self.made:
            return None
        level = list(self.made[operand])
        while len(level) > 1:                                          # as a kernel adds few elements (Evaluator.fold)
            odd = level[-1:] if len(level) % 2 else []
            level = [op("add", a, b) for a, b in zip(level[::2], level[1::2], strict=False)] + odd
        return level[0] if level[0].shape == old.shape else op("reshape", level[0], shape=old.shape)


def _short(x: Node) -> bool:
    return bool(x.shape) and 2 <= x.shape[-1] <= tuning().components and x.aval.size > 0


def _kept(node: Node) -> bool:
    """Whether a reduction over many elements keeps a short last dimension along which there is something to gain.

    There is if what lies side by side in memory is the components alone, or if they have a value in common.
    """
    x, dims = node.operands[0], node.attrs["dim"]
    last = len(x.shape) - 1
    if not _short(x) or last in dims or x.aval.size < tuning().few_components or prod(x.shape[d] for d in dims) <= tuning().unrolled:
        return False
    before = next((i for i in reversed(range(last)) if x.shape[i] > 1), None)
    return before is not None and (before in dims or _shared(x, before))


def _shared(x: Node, before: int) -> bool:
    """Whether elements of x that differ in the last dimension only are computed of one that differs along the dimension `before`."""
    todo, seen = [x], {x}
    while todo:
        node = todo.pop()
        if node.shape != x.shape or not (node.fn.family == "elementwise" or node.fn.name == "expand"):
            continue
        for o in node.operands:
            lead = len(x.shape) - len(o.shape)
            if o.shape and o.shape[-1] == 1 and before >= lead and o.shape[before - lead] > 1:
                return True
        todo += [o for o in node.operands if o not in seen]
        seen.update(node.operands)
    return False


def _passes(node: Node) -> bool:
    """Whether components of a value can be made of its operands' components."""
    if not _short(node) or node.fn.expensive or node.fn.reports:
        return False
    return node.fn.name == "expand" or (node.fn.family == "elementwise" and np.result_type(node.dtype).kind != "c")


def _adds_up(node: Node) -> bool:
    if node.fn.name != "sum" or not _short(node.operands[0]) or node.dtype.name not in _ADDED:
        return False
    return tuple(node.attrs["dim"]) == (len(node.operands[0].shape) - 1,) and node.operands[0].dtype == node.dtype
