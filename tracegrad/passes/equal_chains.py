"""Equal chains of operations on many small arrays as one chain, on these arrays end to end: an optimizer's step. Start at `chains`.

NumPy takes as long to be called as to compute a thousand elements, and an optimizer does the same dozen operations with each parameter.

A chain is what is computed element by element of some inputs, and of numbers that may be anything: those of all chains that become one are
the same. So one of these chains depends on another by such a number alone, which both need before they go on.
Its operations are `placeless`: NumPy computes the last elements of an array, which fill no vector, in a loop of their own, where exp may be
rounded otherwise, and max(0.0, -0.0) be the other one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind
from tracegrad.ops.primitives.movement import concat, expand, narrow, reshape
from tracegrad.support.dtypes import dtype_kind

_EXPAND = REGISTRY["expand"]
Chain = list[Node]                              # its inputs, each ahead of what reads it first, and its operations, in order


class Limits(NamedTuple):
    """Which chains become one: `least` of them, on arrays of at most `part` bytes each and `whole` bytes together."""

    least: int
    part: int
    whole: int


def chains(graph: Graph, limits: Limits) -> Graph:
    """The graph, whose inputs have no operands, with such chains as one."""
    chain = _found(graph, limits)
    wanted = {*graph.outputs, *(o for node in graph if node not in chain for o in node.operands)}
    joined = [_Joined(run) for alike in _alike(graph, chain, wanted) for run in _runs(alike, limits)]
    if not joined:
        return graph
    within = {node: (one, i, k) for one in joined for i, part in enumerate(one.chains) for k, node in enumerate(part)}
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    for node in graph:
        if node in new:
            continue
        with located(node.loc):
            if node in within:
                one, i, k = within[node]
                whole = one.whole(k, new)
                if node in wanted:
                    new[node] = reshape(narrow(whole, 0, one.starts[i], node.aval.size), node.shape)
                continue
            operands = tuple([new[o] for o in node.operands])
            new[node] = node if operands == node.operands else bind(node.fn, operands, node.attrs)
    return Graph.capture(graph.inputs, [new[o] for o in graph.outputs])


def may_be(order: Sequence[Node], limits: Limits) -> bool:
    """Whether there may be such chains among operations: what each begins with reads an input."""
    begun = Counter([n.fn for n in order if n.fn.placeless and any(o.shape == n.shape and not o.operands for o in n.operands)])
    return any(count >= limits.least for count in begun.values())


class _Joined:
    """Chains that become one. starts: where each one's elements begin; number: of a chain's nodes, in the first one."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = chains
        *self.starts, self.size = accumulate([chain[0].aval.size for chain in chains], initial=0)
        self._number = {node: k for k, node in enumerate(chains[0])}
        self._wholes: dict[int, Node] = {}

    def whole(self, k: int, new: dict[Node, Node]) -> Node:
        """What the nodes of number k become, once what is ahead of one of them has become something."""
        if k not in self._wholes:
            node = self.chains[0][k]
            if not node.operands:
                self._wholes[k] = concat([reshape(chain[k], (chain[k].aval.size,)) for chain in self.chains], 0)
            else:
                operands = [self.whole(self._number[o], new) if (number := _number(o)) is None else expand(new[number], (self.size,))
                            for o in node.operands]
                self._wholes[k] = bind(node.fn, tuple(operands), node.attrs)
        return self._wholes[k]


def _number(node: Node) -> Node | None:
    """The number that a node is, wherever it has elements; None of one that is more."""
    source = node.operands[0] if node.fn is _EXPAND else node
    return None if source.shape else source


def _found(graph: Graph, limits: Limits) -> dict[Node, Chain]:
    """By node, what it is a part of: operations and inputs, in any order."""
    inputs, chain = set(graph.inputs), dict[Node, Chain]()

    def fits(node: Node) -> bool:
        aval = node.aval
        return bool(aval.shape and 0 < aval.nbytes <= limits.part and not aval.weak and dtype_kind(aval.dtype) != "c")

    for node in graph:
        if not node.fn.placeless or not fits(node):
            continue
        parts = [o for o in node.operands if _number(o) is None]
        if parts and all(o.shape == node.shape and (o in chain or (o in inputs and fits(o))) for o in parts):
            mine: Chain = [node]
            for o in parts:
                other = chain.setdefault(o, [o])
                if other is not mine:
                    mine, other = (mine, other) if len(mine) > len(other) else (other, mine)
                    mine += other
                    chain.update(dict.fromkeys(other, mine))
            chain[node] = mine
    return chain


def _alike(graph: Graph, chain: dict[Node, Chain], wanted: set[Node]) -> Iterator[list[Chain]]:
    """Chains that differ in inputs and sizes alone, in which there is more to compute than to take apart."""
    place = {node: k for k, node in enumerate(graph)}
    found: dict[Any, list[Chain]] = {}
    for nodes in {id(c): c for c in chain.values()}.values():
        number: dict[Node, int] = {}
        key: list[Any] = []
        for node in sorted([n for n in nodes if n.operands], key=place.__getitem__):
            key += (node.fn, node.aval.dtype, node in wanted, *node.attrs.items())
            for o in node.operands:
                shared = _number(o)
                if shared is None and o not in number:
                    number[o] = len(number)
                    key.append(o.aval.dtype)
                key.append(number[o] if shared is None else shared)
            number[node] = len(number)
        if 2 * sum(n in wanted for n in number) < len(number):
            found.setdefault(tuple(key), []).append([*number])
    yield from found.values()


def _runs(chains: Sequence[Chain], limits: Limits) -> Iterator[list[Chain]]:
    """The chains, as many at a time as may be put together."""
    run, size = list[Chain](), 0
    for chain in chains:
        nbytes = max(node.aval.nbytes for node in chain)
        if size + nbytes > limits.whole:
            if len(run) >= limits.least:
                yield run
            run, size = [], 0
        run.append(chain)
        size += nbytes
    if len(run) >= limits.least:
        yield run
