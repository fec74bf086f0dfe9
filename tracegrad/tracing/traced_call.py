"""A replay as one node of the outer graph, for results with a history: `TracedCall`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tracegrad.autodiff import derivatives
from tracegrad.execute.devices import upload
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.leaf_operations import CustomCall
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind, data, to_keep
from tracegrad.graph.substitution import HOOKS, substituted
from tracegrad.support.modes import state
from tracegrad.tracing.recording import Recording

_VARIABLE = REGISTRY["variable"]


class Replayed(Protocol):
    """What a `TracedCall` reads of the `Replay` that it stands for."""

    recording: Recording
    result_nodes: list[Node]
    residuals: list[Node]
    written: dict[Node, int]
    saves: bool


class TracedCall(CustomCall):
    """Calls of a replayed trace as nodes of the outer graph: their derivatives instantiate the recorded graph on a call's values.

    Operands: the results, what they were computed of (the program's inputs, the leaves that it wrote), the residuals, and constants.
    """

    pushes = True

    def __init__(self, replay: Replayed, before: dict[Node, Any]) -> None:
        """before: values of the inputs that have others by now; without, all calls of the replay have one TracedCall."""
        recording = replay.recording
        self.inputs = recording.inputs
        self.results, self.kept, self.written, self.before = replay.result_nodes, replay.residuals, replay.written, before
        self.name, self.saves = recording.name, replay.saves  # type: ignore[misc]
        self.graph = Graph.capture(self.inputs, self.results)
        # Constants of the program (Recording._constant): here, values on the device.
        self.constants = {n: data(n.aval, upload(recording.devices[n], n.value), n.attrs) for n in self.graph
                          if isinstance(n.value, np.ndarray)}
        known = set(self.inputs)
        ordinary = all(n in known or (n.fn.structural and n not in HOOKS) for n in self.graph)
        self.structural = ordinary and not (before or self.written)

    def operands(self, results: Sequence[Node], sources: Sequence[Node], residuals: Sequence[Node]) -> tuple[Node, ...]:
        """Those of a call."""
        return *results, *sources, *residuals, *self.constants.values()

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(n.aval for n in self.results)

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        wanted = [r for r, c in zip(self.results, ct, strict=True) if c is not None]
        outs, variables, computed = self._instance(wanted, operands)
        pulled = derivatives.vjp(outs, variables, [c for c in ct if c is not None])
        if computed and not state.grad:                    # then only their values count, which operands have
            values = iter(substituted([p for p in pulled if p is not None], computed))
            pulled = [None if p is None else next(values) for p in pulled]
        return (*[None] * len(self.results), *pulled, *[None] * (len(operands) - len(self.results) - len(pulled)))

    def push(self, y: Node, operands: tuple[Node, ...], tangents: Sequence[Node | None]) -> dict[int, Node] | None:
        """The results' tangents, by number."""
        count = len(self.results)
        outs, variables, _ = self._instance(self.results, operands)
        moving = [(v, t) for v, t in zip(variables, tangents[count:], strict=False) if t is not None]
        found = derivatives.jvp(outs, [v for v, _ in moving], [t for _, t in moving])
        return {k: t for k, t in enumerate(found) if t is not None} or None

    def _instance(self, wanted: Sequence[Node], operands: Sequence[Node]) -> tuple[list[Node], list[Node], dict[Node, Node]]:
        """The wanted results, computed anew from variables, one for each source; those; and residuals computed so, with the operands."""
        end = len(operands) - len(self.kept) - len(self.constants)
        sources, count = operands[len(self.results):end], len(self.inputs)
        residuals = dict(zip(self.kept, operands[end:], strict=False))
        new: dict[Node, Node] = residuals | dict(zip(self.constants, operands[end + len(self.kept):], strict=True))
        variables, computed = [], {}
        for node, source in zip(self.inputs, sources[:count], strict=True):
            # A node of its own per source: sources may depend on one another, and only the way through this call counts here.
            variables.append(Node(REGISTRY["copy"], (source,), {}, source.aval, True) if source.needs_grad else source)
            if node in self.before:
                variables[-1].value = self.before[node]
            new[node] = variables[-1]
        variables += sources[count:]
        for node in Graph.capture(self.inputs, wanted):
            if node in new and node not in residuals:
                continue
            with located(node.loc):
                if node in self.written:  # a leaf that the function wrote: this way out belongs to what it is now
                    made = variables[count + self.written[node]] = derivatives.variable(new[node.operands[0]])
                elif node.fn is _VARIABLE:
                    made = new[node.operands[0]]
                elif node.fn.name == "const" or not node.operands:
                    made = node
                else:
                    made = bind(node.fn, tuple(new[o] for o in node.operands), node.attrs)
            if node in residuals and made.value is None and resolve(made) is made:
                made.value = residuals[node].value
                computed[made] = residuals[node]
            if node in HOOKS and node.fn is not _VARIABLE:          # a leaf's are called where its gradient arrives
                made = made.twin()
                HOOKS[made] = HOOKS[node]
            new[node] = made
        return [new[r] for r in wanted], variables, computed


def residuals_of(outputs: list[Node]) -> list[Node]:
    """What a later backward through `outputs` should not compute again."""
    if not outputs:
        return []
    found: dict[Node, None] = {}
    for node in Graph.capture([], outputs):
        if node.needs_grad and isinstance(node.fn, CustomCall) and node.fn.kept_results is not None:
            found |= dict.fromkeys(node.fn.kept_results(node))
        elif node.needs_grad and node.fn.expensive:
            found[node] = None
    results = set(outputs)
    return [n for n in to_keep(found) if n not in results]
