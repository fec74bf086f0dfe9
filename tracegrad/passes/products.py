"""Many small products with a matrix in common as one: what a loop written out has of its weights. Start at `products`.

A recurrent cell called for each row of a sequence multiplies each x[i] by the same weights, which is one product of all of x; and the
gradient of the weights is a sum of as many products of few rows, which is one of all of those rows, one below the other. Each small one
takes a launch, reads the weights or writes their gradient, and fills no tile. Terms are added up in another order than they were written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind
from tracegrad.ops.primitives.contraction import matmul, swap_last
from tracegrad.ops.primitives.movement import concat, narrow, reshape
from tracegrad.support.dtypes import dtype_kind

_ADD, _MATMUL = REGISTRY["add"], REGISTRY["matmul"]


class Limits(NamedTuple):
    """Which products become one: `least` of them, of at most `rows` rows each; so many values are put together at a time as `most` says."""

    least: int
    rows: int
    most: int


class _Rows(NamedTuple):
    """Rows of a matrix that an array is when its first dimensions are one."""

    array: Node
    start: int
    length: int


def products(graph: Graph, limits: Limits) -> Graph:
    """The graph with such products as one."""
    small = [node for node in graph if node.fn is _MATMUL and len(node.shape) == 2 and _is_float(node) and node.aval.size]
    if len(small) < limits.least:
        return graph
    parts = _parts(small, limits)
    sums = _sums(graph, {*small}, limits)
    if not parts and not sums:
        return graph
    number = {node: k for k, node in enumerate(graph)}
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    wholes: dict[tuple[Node, Node], Node] = {}
    for node in graph:
        if node in new:
            continue
        operands = tuple([new[o] for o in node.operands])
        with located(node.loc):
            if node in parts:
                rows, second = parts[node], node.operands[1]
                if (rows.array, second) not in wholes:
                    flat = reshape(new[rows.array], (rows.array.aval.size // second.shape[0], second.shape[0]))
                    wholes[rows.array, second] = matmul(flat, operands[1])
                new[node] = narrow(wholes[rows.array, second], 0, rows.start, rows.length)
            elif node in sums:
                summed, others = sums[node]
                total = _product([tuple(new[x] for x in o.operands) for o in sorted(summed, key=lambda o: number[o.operands[1]])], limits)
                for o in others:
                    total = bind(_ADD, (total, new[o]), {})
                new[node] = total
            else:
                new[node] = node if operands == node.operands else bind(node.fn, operands, node.attrs)
    return Graph.capture(graph.inputs, [new[o] for o in graph.outputs])


def _parts(small: Sequence[Node], limits: Limits) -> dict[Node, _Rows]:
    """Products of rows of one array with the same matrix, where there are many and most of the array's rows are among them."""
    found: dict[tuple[Node, Node], dict[Node, _Rows]] = {}
    for node in small:
        first, second = node.operands
        rows = _rows(first)
        if rows is not None and rows.length <= limits.rows:
            found.setdefault((rows.array, second), {})[node] = rows
    kept: dict[Node, _Rows] = {}
    for (array, second), group in found.items():
        distinct = {(rows.start, rows.length) for rows in group.values()}
        if len(distinct) >= limits.least and 2 * sum(n for _, n in distinct) * second.shape[0] >= array.aval.size:
            kept |= group
    return kept


def _rows(x: Node) -> _Rows | None:
    """What a matrix is rows of, if it is cut out of an array along the first dimension."""
    size, cut = x.shape[1], x
    while cut.fn.name == "reshape":
        cut, = cut.operands
    if cut.fn.name != "slice":
        return None
    array, = cut.operands
    whole = cut.shape[1:] == array.shape[1:] and cut.attrs["step"][0] == 1
    each = prod(array.shape[1:])
    if not whole or array.shape[-1] != size or len(array.shape) < 2:
        return None
    return _Rows(array, cut.attrs["start"][0] * each // size, x.shape[0])


def _sums(graph: Graph, small: set[Node], limits: Limits) -> dict[Node, tuple[list[Node], list[Node]]]:
    """Sums of many products that are of few terms each: those products, and what else is added up."""
    users: Counter[Node] = Counter([*graph.outputs, *(o for node in graph for o in node.operands)])
    inner = {o for node in graph if node.fn is _ADD for o in node.operands if o.fn is _ADD and users[o] == 1 and o.shape == node.shape}
    found = {}
    for root in graph:
        if root.fn is not _ADD or root in inner or len(root.shape) != 2:
            continue
        terms, todo = list[Node](), [root]
        while todo:
            for o in todo.pop().operands:
                (todo if o in inner else terms).append(o)
        summed = [o for o in terms if o in small and users[o] == 1 and o.shape == root.shape and _is_thin(o, limits)]
        if len(summed) >= limits.least:
            found[root] = summed, [o for o in terms if o not in {*summed}]
    return found


def _is_float(node: Node) -> bool:
    """Whether sums may be of any order: those of halves are rounded at each step, as written."""
    return all(dtype_kind(o.dtype) == "f" and o.dtype.itemsize >= 4 for o in node.operands)


def _is_thin(product: Node, limits: Limits) -> bool:
    """Whether it takes longer to write a product and read it again than to copy its operands."""
    (m, k), n = product.operands[0].shape, product.shape[1]
    return k <= limits.rows and k * (m + n) < m * n


def _product(pairs: Sequence[tuple[Node, ...]], limits: Limits) -> Node:
    """The sum of the products of pairs."""
    return matmul(_stacked([a for a, _ in pairs], 1, limits), _stacked([b for _, b in pairs], 0, limits))


def _stacked(matrices: Sequence[Node], dim: int, limits: Limits) -> Node:
    """Matrices put together along a dimension: as they lie in memory, if all are transposed."""
    if all(x.fn.name == "permute" and x.attrs["dims"] == (1, 0) for x in matrices):
        return swap_last(_joined([x.operands[0] for x in matrices], 1 - dim, limits))
    return _joined(matrices, dim, limits)


def _joined(matrices: Sequence[Node], dim: int, limits: Limits) -> Node:
    out = [*matrices]
    while len(out) > limits.most:
        out = [concat(out[i:i + limits.most], dim) for i in range(0, len(out), limits.most)]
    return concat(out, dim)
