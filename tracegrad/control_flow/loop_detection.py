"""An untraced scan as the loop that it is: `DetectedLoop`. Python has made its iterations; later ones that are alike are one operation.

So hundreds of iterations are neither walked over at every flush nor compiled one after the other, and a second call of the same loop is
known. The iterations are Python's all the same: what a body prints, counts or appends it does at each of them. Iterations that are not
alike stay as they are (random numbers, users' functions, transfers between devices, anything that depends on the iteration's number), and
so do all of them if the user still has something that was made in one, or read it, or hung a hook on it: the loop would have no place
for that.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tracegrad.autodiff.derivatives import variable
from tracegrad.control_flow.loop import Loop
from tracegrad.control_flow.scan import loop_nodes
from tracegrad.execute.deferred import flushes, waiting
from tracegrad.execute.realize import lock
from tracegrad.graph.canonical import Key, canonical, contribution
from tracegrad.graph.ir import Node, own_nodes, topological
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.primitive import REGISTRY, placeholder
from tracegrad.graph.substitution import HOOKS, substituted
from tracegrad.ops.primitives.movement import concat, narrow, reshape
from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor, held_elsewhere

_CONST = REGISTRY["const"]
LEAST = 8                       # iterations; fewer are as quick as they are
NODES = 2_000                   # of one iteration
HELD = 100_000                  # tensors of a loop that may wait for its end (0.5 KB each); a longer one is computed in between


class _Other(Exception):
    """The iterations are not alike."""


class DetectedLoop:
    """The iterations of a scan of `length` over `xs`, of which `rows` are the rows.

    iterations: of each that was noted, the nodes of the carries before it, of its rows, of the carries after it, of its results.
    """

    def __init__(self, xs: Sequence[Tensor], rows: Sequence[list[Tensor]], length: int, reverse: bool) -> None:
        self.xs, self.rows, self.length, self.reverse = xs, rows, length, reverse
        self.iterations: list[tuple[list[Node], list[Node], list[Node], list[Node]]] = []
        self.carry: list[Node] = []
        self.usable = length >= LEAST and not (state.symbolic or state.hidden)
        self.start, self.flushes = len(waiting), flushes[0]

    def note(self, i: int, carry: Sequence[Any], ys: Sequence[Any]) -> bool:
        """Iteration i was made, and gave these. Whether the iterations will be compared, as far as is known."""
        if not self.usable:
            return False
        self.usable = self.flushes == flushes[0] and all(isinstance(x, Tensor) for x in (*carry, *ys))
        self.usable = self.usable and len({x._device for x in (*carry, *ys, *self.xs)}) == 1
        if self.usable:
            before, self.carry = self.carry, [x._node() for x in carry]
            self.iterations.append((before, [r[i]._node() for r in self.rows], self.carry, [y._node() for y in ys]))
            state.holds = (len(waiting) - self.start) * self.length <= HELD * len(self.iterations)
        return self.usable

    def loop(self, carry: list[Any], parts: Sequence[list[Any]]) -> tuple[list[Tensor], list[Tensor]] | None:
        """The last carries, and the results stacked, as a loop; None where it stays as it is.

        carry: the last ones. parts: the results of each iteration. Nobody but the user may hold any of them elsewhere: where the user
        does not, they are others afterwards, which are the same. The rows are let go of.
        """
        if not self.usable or len(self.iterations) != self.length or not carry:
            return None
        own = {id(x) for holder in (carry, *parts, *self.rows) for x in holder}
        with lock:                                                  # others may note tensors meanwhile, and take none away
            noted = waiting[self.start:]
            alive = [ref for ref in noted if ref() is not None]
            if any(id(ref()) not in own for ref in alive):
                return None
            waiting[self.start:self.start + len(noted)] = alive     # or the loop would soon be too much that waits
        rows = [weakref.ref(x) for row in self.rows for x in row]
        for row in self.rows:
            row.clear()
        if held_elsewhere(carry, *parts) or any(row() is not None for row in rows):
            return None
        try:
            return self._loop(carry, parts[0])
        except _Other:
            return None

    def _loop(self, carry: Sequence[Tensor], ys: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        (_, _, init, first), iteration, *others = self.iterations
        known = _before(iteration) & _before(others[0])               # what all iterations use, made before them
        form = _form(iteration, known)
        for other in others:
            if _form(other, known) != form:
                raise _Other
        before, rows, outs, results = iteration
        if any(a.aval is not b.aval or a.needs_grad is not b.needs_grad for a, b in zip(before, outs, strict=True)):
            raise _Other
        stand_ins = [[variable(placeholder(n.aval)) if n.needs_grad else placeholder(n.aval) for n in nodes] for nodes in (before, rows)]
        with own_nodes():
            made = substituted([*outs, *results], dict(zip([*rows, *before], [*stand_ins[1], *stand_ins[0]], strict=True)))
            scanned = [narrow(x._node(), 0, 0 if self.reverse else 1, self.length - 1) for x in self.xs]
            lasts, stacks = loop_nodes(stand_ins[0], stand_ins[1], made[:len(outs)], made[len(outs):], init, scanned, self.length - 1,
                                       self.reverse)
            both = [(reshape(y, (1, *y.shape)), stack) for y, stack in zip(first, stacks, strict=True)]
            stacks = [concat([s, y] if self.reverse else [y, s], 0) for y, s in both]
        return ([x if n is x._node() else x._tensor_of(n) for x, n in zip(carry, lasts, strict=True)],
                [y._tensor_of(n) for y, n in zip(ys, stacks, strict=True)])


def _before(iteration: tuple[list[Node], list[Node], list[Node], list[Node]]) -> set[Node]:
    """The nodes that an iteration depends on."""
    before, rows, outs, results = iteration
    ends = {*before, *rows}
    found = {*topological([*outs, *results], lambda n: n in ends or n.value is not None)} - ends
    if len(found) > NODES:
        raise _Other
    return found


def _form(iteration: tuple[list[Node], list[Node], list[Node], list[Node]], known: set[Node]) -> Key:
    """What iterations that are alike have in common. known: what is the same for all of them."""
    before, rows, outs, results = iteration
    met: set[Node] = set()

    def leaf(node: Node) -> Any:
        met.add(node)
        if len(met) > NODES or (HOOKS and node in HOOKS and node not in known):
            raise _Other
        if node not in known and node.value is None and node.operands:
            _check(node.fn)
            return None
        return contribution(node) if node.fn is _CONST or node.fn.family == "index" else node

    inputs = list(dict.fromkeys((*before, *rows)))
    return canonical([*outs, *results], inputs, leaf).key([*before, *rows, *outs, *results])


def _check(fn: Any) -> None:
    """_Other for an operation that a loop cannot have without losing something."""
    own = isinstance(fn, (CustomCall, Loop)) and fn.structural
    if not (own or fn.registered) or fn.reports or fn.family == "transfer":
        raise _Other
