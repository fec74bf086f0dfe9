"""Operations as a list that NumPy goes through: `Steps`, each a rule and the places that it reads and writes.

Untraced work comes as a list already (see graph/canonical.py), and most of it stays as it is: to make a graph of it takes longer than one
run by NumPy. So a graph is made where a pass has something to do. No pass that changes bits is one of them: the first use of a structure
goes through the operations as they were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tracegrad.graph.canonical import Places, is_number
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import REGISTRY
from tracegrad.passes import chains
from tracegrad.passes.liveness import last_uses
from tracegrad.passes.loops import shortened
from tracegrad.passes.paddings import Limits, paddings

_PAD = REGISTRY["pad"]
LIMITS = Limits(least=2, pieces=1, most=1 << 30)                # NumPy puts any number together in one call
CHAINS = chains.Limits(least=4, part=1 << 14, whole=1 << 16)        # longer arrays take as long one after the other
ROW, WHOLE = 1 << 14, 1 << 20       # bytes, of an iteration and of all: larger arrays take no less time together than one after the other


class Step(NamedTuple):
    """One call. arity: how many operands. dtype: of the result; None for those of a loop, all together. node: the operation. dead: places

    that nobody reads after it.
    """

    rule: Callable[..., Any]
    operands: Places
    arity: int
    place: int
    dtype: Any
    reports: bool
    node: Any
    dead: Places = ()


class Steps:
    """The NumPy rules of a structure, ready to be called one after the other, and the places of what they read and write.

    Values have places (see graph/canonical.py): those of `size` operations, then those of the results of each of `loops` loops, which are
    computed together, then those of leaves, the last one first. constants: the places of numbers that a call brings. fixed: places and
    values of what depends on nothing. targets: the places of the results. avals: of the operations. joined: the positions of results that
    are parts of one array, the others of which are results, too.
    """

    __slots__ = ("avals", "constants", "fixed", "joined", "loops", "size", "steps", "targets")

    def __init__(self, order: Sequence[Node], places: Sequence[Places], ends: Sequence[int], loop_rule: Callable[..., Any]) -> None:
        """order: operations; places, ends: see `canonical`.

        loop_rule(loop): what computes, of arrays of a loop's operands, its results.
        """
        computed = [k for k, i in enumerate(ends) if i >= 0 and order[i].fn in chains.EXACT]
        order, places, self.targets, self.constants = _simplified(order, places, tuple(ends))
        self.joined = frozenset([k for k in computed if order[self.targets[k]].fn.family == "movement"])
        self.size = len(order)
        self.avals = [node.aval for node in order]
        self.fixed: list[tuple[int, Any]] = []
        results: dict[Any, list[int]] = {}
        for i, (node, operands) in enumerate(zip(order, places, strict=True)):
            if node.fn.family == "loop":
                results.setdefault((node.fn, operands), []).append(i)
        self.loops = len(results)
        together = {key: self.size + k for k, key in enumerate(results)}
        numbers, steps = set(self.constants), list[Step]()
        for i, (node, operands) in enumerate(zip(order, places, strict=True)):
            fn, dtype = node.fn, node.aval.dtype
            if i in numbers:
                continue
            if not operands:
                self.fixed.append((i, np.asarray(fn.computed((), node.attrs, dtype), dtype)))
            elif fn.family == "loop":
                at, own = together[fn, operands], results[fn, operands]
                if i == own[0]:
                    steps.append(Step(loop_rule(fn), operands, -1, at, None, False, node))
                steps.append(Step(itemgetter(node.attrs["index"]), (at,), 1, i, dtype, False, node))
            else:
                rule = fn.rule(node.attrs, dtype, node.given)
                steps.append(Step(rule, operands, len(operands), i, dtype, fn.reports, node))
        self.steps = with_last_uses(steps, {*self.targets, *self.constants, *(i for i, _ in self.fixed)})


def with_last_uses(steps: Sequence[Step], kept: Iterable[int]) -> list[Step]:
    """The steps, each with the places whose last use it is. kept: those that are needed after all steps."""
    dead = last_uses([step.operands for step in steps], kept)
    return [Step._make((*step[:-1], d)) for step, d in zip(steps, dead, strict=True)]             # a fifth of _replace's time


def _early(node: Node, length: int) -> bool:
    """Whether an operation on rows is better done for all `length` iterations together."""
    return node.aval.nbytes <= ROW and length * node.aval.nbytes <= WHOLE and node.fn.family in ("elementwise", "movement")


def _simplified(order: Sequence[Node], places: Sequence[Places], ends: Places
                ) -> tuple[Sequence[Node], Sequence[Places], Places, list[int]]:
    """The list after the passes that pay for NumPy, with the places of its results, and of its numbers in the order that they had."""
    numbers = [i for i, node in enumerate(order) if is_number(node)]
    pads = sum(node.fn is _PAD for node in order)
    if not (pads >= LIMITS.least or any(node.fn.family == "loop" for node in order) or chains.may_be(order, CHAINS)):
        return order, places, ends, numbers
    leaves = {p: o for node, operands in zip(order, places, strict=True) for p, o in zip(operands, node.operands, strict=True) if p < 0}
    inputs = dict.fromkeys([*(order[i] for i in numbers), *leaves.values()])
    # What reports comes first, so that its order stays.
    kept = [i for i, node in enumerate(order) if node.fn.reports] + [i for i in ends if i >= 0]
    changed = chains.chains(shortened(paddings(Graph.capture([*inputs], [order[i] for i in kept]), LIMITS), _early), CHAINS)
    nodes = [*(order[i] for i in numbers), *(node for node in changed if node not in inputs)]
    place = {node: p for p, node in leaves.items()} | {node: i for i, node in enumerate(nodes)}
    found = {i: place[node] for i, node in zip(kept, changed.outputs, strict=True)}
    return (nodes, [tuple([place[o] for o in node.operands]) for node in nodes], tuple([found.get(i, i) for i in ends]),
            list(range(len(numbers))))
