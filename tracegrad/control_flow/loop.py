"""A loop of a known length as one operation: `Loop`, what `tg.scan` records and what runs (see scan.py).

A loop's body is recorded once, as a closed graph (`Body`): carries, rows of what is scanned and constants in, new carries and rows of
results out. A `Loop` has several results, a node each, like a factorization: the last carries and the stacked rows. What nobody reads of
them is never computed (`Loop.trimmed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tracegrad.autodiff.batching import batch, spread
from tracegrad.autodiff.derivatives import stand_in
from tracegrad.execute.compile import executable_graph
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.graph.substitution import substituted
from tracegrad.numpy_backend.interpreter import run_loop
from tracegrad.ops.primitives.movement import narrow, permute, reshape
from tracegrad.passes.loops import reached, reaching
from tracegrad.support.dtypes import differentiable
from tracegrad.support.plan import Check

_VARIABLE, _DETACH = REGISTRY["variable"], REGISTRY["detach"]


class Body:
    """One iteration of a loop, as a graph of its own. inputs: placeholders of `carries` carries, then of `rows` rows, then of constants;

    outs: the new carries, then the rows of the results.
    """

    def __init__(self, inputs: Sequence[Node], outs: Sequence[Node], carries: int, rows: int) -> None:
        self.inputs, self.outs, self.carries, self.rows = list(inputs), list(outs), carries, rows

    def __call__(self, values: Sequence[Node]) -> list[Node]:
        return substituted(self.outs, dict(zip(self.inputs, values, strict=True)))

    @property
    def graph(self) -> Graph:
        return Graph.capture(self.inputs, self.outs)

    def batched(self, flags: Sequence[bool], size: int) -> tuple[Body, list[bool], list[bool]]:
        """The body over a batch of inputs (those with a flag), which inputs then have a batch (of carries, more), and which results."""
        n, mapped = self.carries, list(flags)
        while True:
            depends = reaching(self.outs, [p for p, f in zip(self.inputs, mapped, strict=True) if f])
            grown = [f or self.outs[i] in depends for i, f in enumerate(mapped[:n])]
            if grown == mapped[:n]:
                break
            mapped[:n] = grown
        inputs = [placeholder(Aval((size, *p.shape), p.dtype), p.attrs["label"]) if f else p
                  for p, f in zip(self.inputs, mapped, strict=True)]
        # Of variables, so that what is there for differentiation stays there.
        live = {p: stand_in(p) if differentiable(p.dtype) else p for p in (*self.inputs, *inputs)}
        lifted = batch(self([live[p] for p in self.inputs]),
                       {live[p]: live[q] for p, q, f in zip(self.inputs, inputs, mapped, strict=True) if f}, size)
        outs = substituted(lifted, {v: p for p, v in live.items()})
        has_batch = [*mapped[:n], *(o in depends for o in self.outs[n:])]
        outs = [o if f else original for o, original, f in zip(outs, self.outs, has_batch, strict=True)]
        return Body(inputs, outs, n, self.rows), mapped, has_batch


def needed_inputs(body: Body, results: Sequence[int]) -> list[int]:
    """The numbers of the inputs that some results of a loop over the body depend on, after any number of iterations."""
    n, inputs, outs = body.carries, body.inputs, body.outs
    last = [inputs[i] for i in results if i < n]
    live = dict.fromkeys(last)
    while True:
        handed_on = [outs[i] for i in range(n) if inputs[i] in live]
        found = dict.fromkeys(last) | reached([*(outs[i] for i in results), *handed_on], inputs, exactly=True)
        if len(found) == len(live):
            return [i for i, p in enumerate(inputs) if p in live]
        live = found


def given_once(loop: Shared, body: Body, operands: tuple[Node, ...], known: dict[tuple[int, ...], Shared],
               make: Callable[[tuple[int, ...]], Shared]) -> tuple[Shared, tuple[Node, ...]]:
    """The loop, with one input where several constants of its body are the same operand, and the operands of that.

    make: makes it of the numbers of the first input that is given the same, for each input; see `merged`. known: those that were made.
    """
    own = len(body.inputs)
    first = {o: i for i, o in reversed([*enumerate(operands)]) if body.carries <= i < own}
    places = tuple([first[o] if body.carries <= i < own else i for i, o in enumerate(operands)])
    if len(set(places)) == len(places):
        return loop, operands
    if places not in known:
        known[places] = make(places)
    return known[places], tuple([operands[i] for i in dict.fromkeys(places)])


def merged(places: Sequence[int], body: Body, more: Sequence[Node] = ()) -> tuple[list[Node], Body]:
    """`more` and a body with one input where several are given the same."""
    inputs = body.inputs
    instead = {p: inputs[at] for p, at in zip(inputs, places, strict=False)}
    made = substituted([*more, *body.outs], instead)
    kept = [inputs[i] for i in dict.fromkeys(places) if i < len(inputs)]
    return made[:len(more)], Body(kept, made[len(more):], body.carries, body.rows)


class Loop(Shared):
    """`length` iterations of a body (the last row first if `reverse`). Operands: the first carries, what is scanned, the constants.

    Results: the last carries, then the rows of each iteration, stacked. Not in REGISTRY: an instance per loop.
    """

    family = "loop"

    def __init__(self, body: Body, length: int, reverse: bool) -> None:
        super().__init__()
        self.name = "scan"  # type: ignore[misc]
        self.body, self.length, self.reverse = body, length, reverse
        self._batched: dict[Any, tuple[Loop, list[bool], list[bool]]] = {}
        self._trimmed: dict[Any, Any] = {}
        self._relevant: dict[int, list[int]] = {}
        self._calls: dict[Any, Any] = {}
        self.prepared: dict[Any, Any] = {}                # what a backend keeps of it, for as long as it is there
        n = body.carries
        self._avals = (*(o.aval for o in body.outs[:n]), *(Aval((length, *o.shape), o.dtype) for o in body.outs[n:]))
        self._graph: Graph | None = None
        self._executable = False                          # whether the body has nothing for differentiation

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        """Those of the results; ValueError if the operands are not what the body takes (the graph checker asks)."""
        n, rows = self.body.carries, self.body.rows
        for i, (o, p) in enumerate(zip(operands, self.body.inputs, strict=True)):
            wanted = (self.length, *p.shape) if n <= i < n + rows else p.shape
            if (o.shape, o.dtype) != (wanted, p.dtype):
                raise ValueError(f"operand {i} is {o}, the body takes {p.aval}")
        for p, out in zip(self.body.inputs[:n], self.body.outs, strict=False):
            if (p.shape, p.dtype) != (out.shape, out.dtype):
                raise ValueError(f"the body makes {out.aval} of a carry {p.aval}")
        return self._avals

    @property
    def described(self) -> tuple[Any, ...]:
        return self.length, self.reverse, self.body.carries, self.body.rows, self.graph

    @property
    def graph(self) -> Graph:
        """The body without what only differentiation cares about: what runs."""
        if self._graph is None:
            self._graph = executable_graph(self.body.graph)
        return self._graph

    def written_out(self, operands: tuple[Node, ...]) -> list[Node] | None:
        """One iteration is no loop: it is fused with what is around it, and what nobody reads of it is not computed."""
        if self.length != 1:
            return None
        n, rows = self.body.carries, self.body.rows
        given = [first_row(o) if n <= i < n + rows else o for i, o in enumerate(operands)]
        made = substituted(self.graph.outputs, dict(zip(self.graph.inputs, given, strict=True)))
        return [*made[:n], *(reshape(y, (1, *y.shape)) for y in made[n:])]

    def results(self, *arrays: Any, **attrs: Any) -> list[Any]:
        return run_loop(self, arrays)[0]

    def of_body(self, inputs: Sequence[Node], outs: Sequence[Node]) -> Loop:
        """The loop with another executable body, of as many carries and rows."""
        return self.of_parts(inputs, outs, self.body.carries, self.body.rows)

    def of_parts(self, inputs: Sequence[Node], outs: Sequence[Node], carries: int, rows: int) -> Loop:
        """A loop of as many iterations, the same way, with another executable body."""
        loop = Loop(Body(inputs, outs, carries, rows), self.length, self.reverse)
        loop._executable = True
        return loop

    @cached_property
    def structural(self) -> bool:
        """Whether an iteration is made of the library's own operations alone."""
        return all(n.fn.structural or n.fn.registered for n in self.body.graph)

    @cached_property
    def reports(self) -> bool:  # type: ignore[override]
        return any(n.fn.reports for n in self.graph)

    def checks(self, node: Node | None = None) -> tuple[Check, ...]:
        """What the body's operations have to report."""
        found = [n for n in self.graph if n.fn.reports]
        return tuple(c for n in found for c in n.fn.checks(n))  # type: ignore[attr-defined]

    # -- as text

    @property
    def shown(self) -> list[tuple[str, Any]]:
        """What the text of a graph says of it."""
        return [("length", self.length), *([("reverse", True)] if self.reverse else [])]

    def python(self, define: Any, operands: Sequence[str], **attrs: Any) -> str:
        n, rows = self.body.carries, self.body.rows
        carry = [f"c{i}" if n > 1 else "c" for i in range(n)]
        row = [f"x{i}" if rows > 1 else "x" for i in range(rows)]
        iteration = define("iteration", self.graph)

        def tupled(parts: Sequence[str]) -> str:
            return f"({', '.join(parts)}{',' * (len(parts) == 1)})"

        ends = f"{tupled(operands[:n])}, {tupled(operands[n:n + rows])}, length={self.length}{', reverse=True' * self.reverse}"
        arguments = ", ".join([*(["*carry"] if carry else []), *(["*row"] if row else []), *operands[n + rows:]])
        step = f"lambda carry, row: pair({arguments})"
        pair = define("pair", f"lambda *values: ((made := {iteration}(*values))[:{n}], made[{n}:])")
        call = f"sum(tg.scan({step.replace('pair(', pair + '(')}, {ends}), ())"
        return f"{call}[0]" if len(self._avals) == 1 else call

    # -- what is left of it

    def relevant(self, index: int) -> list[int]:
        """The numbers of the operands that result `index` depends on."""
        if index not in self._relevant:
            self._relevant[index] = needed_inputs(self.body, [index])
        return self._relevant[index]

    def trimmed(self, used: Sequence[int], operands: Sequence[Node]) -> tuple[Loop, tuple[Node, ...], dict[int, int]]:
        """The loop that computes the results `used` and nothing else, its operands, and where it has each of those results."""
        body = self.body
        n, rows = body.carries, body.rows
        graph = self.graph
        inputs, outs = list(graph.inputs), list(graph.outputs)
        level = tuple(repeats(o) for o in operands[n:n + rows])
        key = (tuple(used), level)
        if key not in self._trimmed:
            wanted = {i for i in used if i < n}
            kept_ys = [i for i in used if i >= n]
            live = reached([outs[i] for i in (*wanted, *kept_ys)], inputs)
            while True:
                more = {i for i in range(n) if inputs[i] in live} | wanted
                found = reached([outs[i] for i in (*more, *kept_ys)], inputs)
                if found == live:
                    break
                live = found
            carries = [i for i in range(n) if inputs[i] in live or i in wanted]
            scanned = [i for i in range(n, n + rows) if inputs[i] in live and not level[i - n]]
            rest = [i for i in range(n, len(inputs)) if inputs[i] in live and (i >= n + rows or level[i - n])]
            new = Body([inputs[i] for i in (*carries, *scanned, *rest)], [outs[i] for i in (*carries, *kept_ys)], len(carries),
                       len(scanned))
            place = {i: k for k, i in enumerate(carries) if i in wanted} | {i: len(carries) + k for k, i in enumerate(kept_ys)}
            all_of_it = len(new.inputs) == len(inputs) and len(new.outs) == len(outs) and new.rows == rows and self._executable
            self._trimmed[key] = self if all_of_it else Loop(new, self.length, self.reverse), carries, scanned, rest, place
            self._trimmed[key][0]._executable = True
        loop, carries, scanned, rest, place = self._trimmed[key]
        first = [first_row(operands[i]) if i < n + rows else operands[i] for i in rest]
        return loop, (*(operands[i] for i in carries), *(operands[i] for i in scanned), *first), place

    # -- over a batch

    def batched(self, flags: Sequence[bool], size: int) -> tuple[Loop, list[bool], list[bool]]:
        """The loop over a batch of operands (those with a flag), which carries then have a batch, and which results."""
        key = (tuple(flags), size)
        if key not in self._batched:
            body, mapped, has_batch = self.body.batched(flags, size)
            self._batched[key] = Loop(body, self.length, self.reverse), mapped, has_batch
        return self._batched[key]

    def batched_operands(self, operands: Sequence[Node], flags: Sequence[bool], size: int) -> list[Node]:
        """Operands (those with a flag have a batch in front) as `batched` takes them: the batch of what is scanned is in its rows."""
        mapped = self.batched(flags, size)[1]
        n, rows = self.body.carries, self.body.rows
        out = [spread(o, size) if m and not f else o for o, f, m in zip(operands, flags, mapped, strict=True)]
        return [swapped(o) if n <= i < n + rows and mapped[i] else o for i, o in enumerate(out)]

    def unbatched(self, index: int, result: Node, has_batch: bool, size: int) -> Node:
        """Result number `index` of `batched` with the batch in front."""
        if not has_batch:
            return spread(result, size)
        return swapped(result) if index >= self.body.carries else result

    def batched_result(self, node: Node, operands: list[Node], flags: list[bool], size: int) -> Node:
        """The rule of batching for one result."""
        loop, _, has_batch = self.batched(flags, size)
        index = node.attrs["index"]
        result = bind(loop, tuple(self.batched_operands(operands, flags, size)), {"index": index})
        return self.unbatched(index, result, has_batch[index], size)


def first_row(node: Node) -> Node:
    """The first one along the first dimension."""
    return reshape(narrow(node, 0, 0, 1), node.shape[1:])


def repeats(node: Node) -> bool:
    """Whether all rows along the first dimension are one."""
    while node.fn is _DETACH or node.fn is _VARIABLE:
        node = node.operands[0]
    if node.fn.name != "expand" or node.shape[0] == 1:
        return False
    source = node.operands[0]
    return len(source.shape) < len(node.shape) or source.shape[0] == 1


def swapped(node: Node) -> Node:
    """With the first two dimensions exchanged."""
    return permute(node, (1, 0, *range(2, len(node.shape))))
