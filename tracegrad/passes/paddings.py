"""Sums of many paddings, which the gradients of slices are: the parts are summed and put together once. Start at `paddings`.

A loop that reads x[0], x[1], ... has as its gradient in x a sum of as many paddings, nearly all of whose elements are zeros. Where they are
along one dimension and mostly apart, the sum is a concatenation: of what falls in each stretch between two of their ends, summed in the
order in which it was. Adding 0.0 changes nothing but the sign of -0.0, so once is enough: to what it was added to at all.

Kernels do this for long sums only (tuning.py), whose parts may overlap. NumPy does it for two paddings and more, if they are apart: the
derivatives of split and chunk are such.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind, const
from tracegrad.ops.primitives.movement import concat, expand, narrow
from tracegrad.passes.constants import constant_of, exactly
from tracegrad.support.dtypes import dtype_kind

_ADD, _PAD = REGISTRY["add"], REGISTRY["pad"]
Parts = dict[int, Node]                 # what is summed up in each stretch, by where that begins; nothing there: 0.0


class Limits(NamedTuple):
    """Which sums are put together: of `least` paddings, cut into at most `pieces` parts each, on average; `most` at a time."""

    least: int
    pieces: int
    most: int


def paddings(graph: Graph, limits: Limits) -> Graph:
    """The graph with such sums as concatenations."""
    if sum(node.fn is _PAD for node in graph) < limits.least:
        return graph
    users: Counter[Node] = Counter([*graph.outputs, *(o for node in graph for o in node.operands)])
    added = {o for node in graph if node.fn is _ADD for o in node.operands if users[o] == 1 and o.shape == node.shape}
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    for node in graph:
        if node in new:
            continue
        operands = tuple([new[o] for o in node.operands])
        with located(node.loc):
            summed = node.fn is _ADD and dtype_kind(node.dtype) in "fiu" and node.dtype.itemsize > 2 and not node.aval.weak
            found = _together(node, added, new, limits) if summed and node not in added else None
            new[node] = found if found is not None else (node if operands == node.operands else bind(node.fn, operands, node.attrs))
    return Graph.capture(graph.inputs, [new[o] for o in graph.outputs])


def _together(root: Node, added: set[Node], new: dict[Node, Node], limits: Limits) -> Node | None:
    """The sum `root` as a concatenation; None if it is no sum of many paddings that are mostly apart."""
    sums: list[Node] = []
    terms: list[Node] = []
    todo = [root]
    while todo:
        sums.append(todo.pop())
        for o in sums[-1].operands:
            (todo if o.fn is _ADD and o in added else terms).append(o)
    placed = [place for o in terms if (place := _place(o)) is not None]
    dims = {dim for dim, _, _ in placed}
    if len(placed) < limits.least or len(dims) > 1 or any(o.dtype != root.dtype or o.aval.weak for o in terms):
        return None
    dim, = dims
    size = root.shape[dim]
    ends = sorted({0, size, *(end for _, *both in placed for end in both)})
    number = {end: i for i, end in enumerate(ends)}
    wide = sum(_place(o) is None for o in terms)
    if sum(number[b] - number[a] for _, a, b in placed) + wide * len(ends) > limits.pieces * len(terms):
        return None
    covered: Counter[int] = Counter()

    def parts(term: Node) -> Parts:
        if term in found:
            return found.pop(term)
        if exactly(constant_of(term), 0):
            return {}
        place = _place(term)
        _, low, high = place or (dim, 0, size)
        x = expand(new[term], root.shape) if place is None else new[term.operands[0]]
        stretches = list(pairwise(ends[number[low]:number[high] + 1]))
        covered.update(a for a, _ in stretches)
        return {a: narrow(x, dim, a - low, b - a) for a, b in stretches}

    found: dict[Node, Parts] = {}
    for node in reversed(sums):                          # operands first
        with located(node.loc):
            first, second = map(parts, node.operands)
            longer = max(first, second, key=len)
            for start, x in (second if longer is first else first).items():
                other = longer.get(start)
                longer[start] = x if other is None else bind(_ADD, (other, x) if longer is first else (x, other), {})
        found[node] = longer
    out: list[Node] = []
    rounded = dtype_kind(root.dtype) == "f"
    alike = rounded and all(covered[a] < len(terms) for a in ends[:-1])
    for low, high in pairwise(ends):
        if low not in found[root]:
            out.append(expand(const(0, root.dtype), (*root.shape[:dim], high - low, *root.shape[dim + 1:])))
            continue
        x = found[root][low]
        out.append(_plus_zero(x) if rounded and not alike and covered[low] < len(terms) else x)
    while len(out) > limits.most:                        # of them are one kernel's: those of a loop's gradient are alike
        out = [concat(out[i:i + limits.most], dim) for i in range(0, len(out), limits.most)]
    whole = concat(out, dim)
    return _plus_zero(whole) if alike else whole


def _plus_zero(x: Node) -> Node:
    """x with 0.0 for -0.0."""
    return bind(_ADD, (x, const(0.0, x.dtype)), {})


def _place(node: Node) -> tuple[int, int, int] | None:
    """Of zeros around a value along one dimension: that, and where the value begins and ends; None of anything else."""
    if node.fn is not _PAD or any(node.attrs["interior"]) or min(*node.attrs["low"], *node.attrs["high"], 0) < 0:
        return None
    x, = node.operands
    dims = [d for d, n in enumerate(node.shape) if n != x.shape[d]]
    if len(dims) != 1 or not exactly(np.asarray(node.attrs["value"]), 0) or x.aval.size == 0:
        return None
    low = node.attrs["low"][dims[0]]
    return dims[0], low, low + x.shape[dims[0]]
