"""A loop whose number of iterations only the running program knows, as the code generator takes it: `Repeated`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.execute.compile import executable_graph
from tracegrad.graph.ir import Graph, Node, topological
from tracegrad.graph.primitive import placeholder
from tracegrad.graph.substitution import substituted
from tracegrad.passes.loops import reaching


class Repeated:
    """A loop as a graph of one iteration, for the code generator.

    inputs: the carries, a count of the iterations, scratch, what is shared, the constants. outs: the new carries, count, scratch and what
    is shared, each for its input, and whether there is another iteration; begins: whether there is a first one, and what is shared there.
    scratch: none, or a stack for each carry, which an iteration writes rows of: the first carries are its first row, and nothing is in
    the others. shared: what the condition computes of the carries and the body reads, too, and is slow to compute again.
    """

    def __init__(self, carries: Sequence[Node], count: Node, scratch: Sequence[Node], constants: Sequence[Node], outs: Sequence[Node],
                 kept: Sequence[Node], test: Node) -> None:
        """outs, kept: the new carries and scratch. test: of the inputs."""
        self.carries, self.scratch = len(carries), len(scratch)
        own = [*carries, count, *scratch]
        graph = executable_graph(Graph.capture([*own, *constants], [*outs, count + 1, *kept, test]))
        *made, test = graph.outputs
        shared = _shared(test, made, own)
        self.shared = len(shared)
        before = {x: placeholder(x.aval, x.fn.name) for x in shared}
        made = substituted(made, before)
        again, *after = substituted([test, *shared], dict(zip(own, made, strict=True)))
        self.begins = Graph.capture([*own, *before.values(), *constants], [test, *shared])
        self.iteration = Graph.capture([*own, *before.values(), *constants], [*made, *after, again])

    @property
    def described(self) -> tuple[Any, ...]:
        return self.carries, self.scratch, self.shared, self.begins, self.iteration


_SLOW = 4                               # flops an element, of what is carried on sooner than computed again


def _shared(test: Node, made: Sequence[Node], own: Sequence[Node]) -> list[Node]:
    """What `test` and `made` both compute of the loop's own inputs, as far as they have it in common, if it is slow."""
    stop = set(own)
    moves = reaching([test, *made], own)
    conditions, body = topological([test], stop.__contains__), topological(made, stop.__contains__)
    both = (set(conditions) & set(body) & moves) - stop
    slow = {x for x in both if x.fn.expensive or x.fn.flops >= _SLOW}
    costs = reaching([x for x in conditions if x in both], list(slow))
    users = {o: None for x in dict.fromkeys((*conditions, *body)) if x not in both for o in x.operands} | dict.fromkeys([test, *made])
    most = max((x.aval.size for x in own), default=0)
    return [x for x in users if x in both and x in costs and x.aval.size <= most]
