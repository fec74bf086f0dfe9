"""Products of what is put together of single columns, with a vector: sums of terms. Start at `stacked_terms`.

`stack([f(t), g(t), ...], -1) @ weights` and `vander(t, n) @ weights` are functions of t, in one loop over its elements: the matrix is never
stored. (The powers of 10,000 numbers, 128 of each: 0.1 of the time.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tracegrad.codegen.graph.reductions import rebind
from tracegrad.codegen.graph.rewrite import at, op
from tracegrad.codegen.schedule.grouping import strip
from tracegrad.graph.ir import Graph, Node
from tracegrad.ops.primitives.movement import narrow

_MOST = 256                                  # terms that are added up one after the other


def stacked_terms(graph: Graph) -> Graph:
    """The graph with these products as sums."""
    products = [node for node in graph if node.fn.name == "matmul" and _suits(node)]
    if not products:
        return graph
    used = _uses(graph)
    numbers = {node: n for n, node in enumerate(graph)}
    found = {node for node in products if all(used[n] == 1 for n in _moves(node.operands[0]))}

    def replace(node: Node, operands: tuple[Node, ...]) -> Node:
        if node not in found:
            return node if operands == node.operands else rebind(node, operands)
        with at(node.loc):
            return _sum(*operands, sorted(range(node.operands[0].shape[-1]), key=_number_of(node, numbers)))

    return graph.rebuilt(replace) if found else graph


def _suits(product: Node) -> bool:
    x, y = product.operands
    columns = strip(x)
    if columns.fn.name != "concat" or y.shape[-1] != 1 or product.dtype not in (np.float32, np.float64):
        return False
    single = columns.attrs["dim"] == len(columns.shape) - 1 and all(o.shape[-1] == 1 for o in columns.operands)
    return single and columns.shape[-1] == x.shape[-1] <= _MOST


def _moves(x: Node) -> Iterable[Node]:
    """The reshapes down to what is put together, and that."""
    while x.fn.name == "reshape":
        yield x
        x = x.operands[0]
    yield x


def _uses(graph: Graph) -> Mapping[Node, int]:
    found = dict.fromkeys(graph, 0)
    for node in (*(o for n in graph for o in n.operands), *graph.outputs):
        found[node] = found.get(node, 0) + 1
    return found


def _number_of(product: Node, numbers: Mapping[Node, int]) -> Callable[[int], int]:
    """For each column when it is computed: added up in that order, few of those that are made of each other wait for their turn."""
    columns = strip(product.operands[0]).operands
    return lambda n: numbers[strip(columns[n])]


def _sum(x: Node, y: Node, order: Sequence[int]) -> Node:
    columns, shape = strip(x).operands, (*x.shape[:-1], 1)
    total: Node | None = None
    for n in order:
        weight = op("expand", narrow(y, len(y.shape) - 2, n, 1), shape=shape)
        term = op("mul", op("reshape", columns[n], shape=shape), weight)
        total = term if total is None else op("add", total, term)
    assert total is not None
    return total
