"""Under which conditions an element is read: decided by the ranges of indices, and found before a kernel is written. Start at `Reads`.

`branches` says where an element of a movement op comes from, and what has to be tested for it; `Reads` follows a value's elements to
what is stored. `peeling` cuts loops by what is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Any

from tracegrad.codegen.kernel.index.facts import operand_index
from tracegrad.codegen.kernel.index.index import Index, Var, bounded, constant, ravel, unravel
from tracegrad.graph.ir import Node

Guard = tuple[Any, ...]                    # ("range", Index, low, high) or ("multiple", Index, k)
Guards = tuple[Guard, ...]
Request = tuple[Node, Index, Guards]       # an element, and what holds where it is wanted


def needed(flat: Index, guards: Guards) -> Guards:
    """The guards under which element `flat` is computed. One element, always the same, is there in any case: it needs none, and what is

    computed of it is the same in all branches (the numbers that a Python loop has put into a list, and stacked).
    """
    return guards if flat.vars else ()


def branches(node: Node, flat: Index, guards: Guards) -> tuple[list[tuple[Request, Guards]], bool]:
    """Where element `flat` of a movement op may come from, each with the tests that tell, and whether the last needs none.

    What the ranges of indices rule out is not among them, and what they imply is not tested.
    """
    index = unravel(flat, node.shape)
    fn: Any = node.fn
    found: list[tuple[Request, Guards]] = []
    for operand, at, conditions in fn.locate(index, *[o.aval for o in node.operands], **node.attrs):
        x = node.operands[operand]
        own: list[Guard] = []
        impossible = False
        for kind, expression, *rest in conditions:
            expression = expression if isinstance(expression, Index) else constant(expression)
            if kind == "range":
                low, high = rest
                if expression.hi < low or expression.lo >= high:
                    impossible = True
                elif not (expression.lo >= low and expression.hi < high):
                    own.append((kind, expression, low, high))
            elif expression % rest[0] != 0:
                own.append((kind, expression, rest[0]))
        if impossible or x.aval.size == 0:
            continue
        fixed = tuple(bounded(i if isinstance(i, Index) else constant(i), 0, n) for i, n in zip(at, x.shape, strict=True))
        found.append(((x, ravel(fixed, x.shape), (*guards, *own)), tuple(own)))
        if not own:
            return found, True
    return found, False


def reduced_indices(node: Node, flat: Index) -> Iterator[Index]:
    """The flat indices of the operand elements that element `flat` of a reduction combines."""
    x, = node.operands
    dims = node.attrs["dim"]
    kept = iter(unravel(flat, node.shape))
    template: list[Index | None] = [None if d in dims else next(kept) for d in range(len(x.shape))]
    for choice in product(*(range(x.shape[d]) for d in dims)):
        pick = iter(choice)
        yield ravel([constant(next(pick)) if i is None else i for i in template], x.shape)


class Reads:
    """What is read for the elements of some values: all indices, those of guards too, and all guards.

    stored: whether a node is read rather than computed; known: nodes that come from elsewhere.
    """

    def __init__(self, stored: Callable[[Node], object | None], known: Collection[Node]) -> None:
        self.stored, self.known = stored, known
        self.indices: list[Index] = []
        self.guards: list[Guard] = []
        self._seen: set[Any] = set()
        self._rows: dict[Any, Var] = {}

    def add(self, node: Node, flat: Index) -> None:
        """Follow element `flat` of `node`."""
        todo: list[Request] = [(node, flat, ())]
        while todo:
            node, flat, guards = todo.pop()
            guards = needed(flat, guards)
            key = (node, flat.key, *[(g[0], g[1].key, *g[2:]) for g in guards])
            if key not in self._seen:
                self._seen.add(key)
                todo += self._next(node, flat, guards)

    def _next(self, node: Node, flat: Index, guards: Guards) -> list[Request]:
        """What element `flat` of `node` is computed from."""
        if node.fn.name == "const" or node in self.known:
            return []
        family = node.fn.family
        if self.stored(node) is not None:
            self.indices.append(flat.opened())
            self._test(guards)
            return []
        if node.fn.name == "reshape":
            return [(node.operands[0], flat, guards)]
        if family == "movement":
            found, _ = branches(node, flat, guards)
            for _, own in found:
                self._test(own)
            return [request for request, _ in found]
        if family == "elementwise":
            if node.fn.reports:
                self._test(guards)
            return [(o, operand_index(o, node, flat), guards) for o in node.operands]
        if family == "pair":
            return [(o, flat, guards) for o in node.operands]
        if family == "reduction":
            return [(node.operands[0], at, guards) for at in reduced_indices(node, flat)]
        if family == "index":
            self.indices.append(unravel(flat, node.shape)[node.attrs["dim"]])
        if family == "gather":
            x, index = node.operands
            at = unravel(flat, node.shape)
            n = len(index.shape)
            where = ravel(at[:n], index.shape)
            row = self._rows.setdefault((index, where.key, x.shape[0]), Var("at", x.shape[0]))
            return [(index, where, guards), (x, ravel((row.index, *at[n:]), x.shape), guards)]
        return []

    def _test(self, guards: Guards) -> None:
        self.guards += guards
        self.indices += [x for _, x, *_ in guards]
