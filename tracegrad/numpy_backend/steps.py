"""Operations as a list that NumPy goes through: `Steps`, each a rule and the places that it reads and writes.

Untraced work comes as a list already (see graph/canonical.py); passes/untraced.py says which passes it goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tracegrad.graph.canonical import Places
from tracegrad.graph.ir import Node
from tracegrad.passes.liveness import last_uses
from tracegrad.passes.untraced import simplified


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
        order, places, self.targets, self.constants, self.joined = simplified(order, places, tuple(ends))
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
