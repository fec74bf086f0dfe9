"""A replay as one node of the outer graph, for results with a history: `TracedCall`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tracegrad.autodiff import derivatives
from tracegrad.autodiff.substitution import HOOKS
from tracegrad.execute.devices import upload
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.leaves import CustomCall
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind, data
from tracegrad.tracing.recording import Recording

_VARIABLE = REGISTRY["variable"]


class Replayed(Protocol):
    """What a `TracedCall` reads of the `Replay` that it stands for."""

    recording: Recording
    result_nodes: list[Node]
    written: dict[Node, int]
    saves: bool


class TracedCall(CustomCall):
    """A replayed trace as one node of the outer graph: its derivatives instantiate the recorded graph on the call's values."""

    pushes = True

    def __init__(self, replay: Replayed, residuals: dict[Node, Node], before: dict[Node, Any]) -> None:
        """before: values of the inputs that have others by now."""
        self.replay, self.residuals, self.before = replay, residuals, before
        self.name = replay.recording.name  # type: ignore[misc]
        self.saves = replay.saves  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(n.aval for n in self.replay.result_nodes)

    def vjp(self, ct: Any, y: Node, *operands: Any, **attrs: Any) -> tuple[Any, ...]:
        results = self.replay.result_nodes
        outs, variables = self._instance([r for r, c in zip(results, ct, strict=True) if c is not None], operands)
        pulled = derivatives.vjp(outs, variables, [c for c in ct if c is not None])
        return (*(None for _ in results), *pulled)

    def push(self, y: Node, operands: tuple[Node, ...], tangents: Sequence[Node | None]) -> dict[int, Node] | None:
        """The results' tangents, by number."""
        count = len(self.replay.result_nodes)
        outs, variables = self._instance(self.replay.result_nodes, operands)
        moving = [(v, t) for v, t in zip(variables, tangents[count:], strict=True) if t is not None]
        found = derivatives.jvp(outs, [v for v, _ in moving], [t for _, t in moving])
        return {k: t for k, t in enumerate(found) if t is not None} or None

    def _instance(self, wanted: Sequence[Node], operands: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """The wanted results, computed anew from variables, one for each source; and those."""
        sources = operands[len(self.replay.result_nodes):]
        new: dict[Node, Node] = dict(self.residuals)
        variables = []
        count = len(self.replay.recording.inputs)
        for node, source in zip(self.replay.recording.inputs, sources[:count], strict=True):
            # A node of its own per source: sources may depend on one another, and only the way through this call counts here.
            variables.append(Node(REGISTRY["copy"], (source,), {}, source.aval, True) if source.needs_grad else source)
            if node in self.before:
                variables[-1].value = self.before[node]
            new[node] = variables[-1]
        written = self.replay.written
        variables += sources[count:]
        for node in Graph.capture(self.replay.recording.inputs, wanted):
            if node in new and node not in self.residuals:
                continue
            with located(node.loc):
                if node in written:  # a leaf that the function wrote: this way out belongs to what it is now
                    made = variables[count + written[node]] = derivatives.variable(new[node.operands[0]])
                elif node.fn is _VARIABLE:
                    made = new[node.operands[0]]
                elif isinstance(node.value, np.ndarray):    # a constant of the program (Recording._constant): here, a value on the device
                    made = data(node.aval, upload(self.replay.recording.device, node.value), node.attrs)
                elif node.fn.name == "const" or not node.operands:
                    made = node
                else:
                    made = bind(node.fn, tuple(new[o] for o in node.operands), node.attrs)
            if node in self.residuals and made.value is None and resolve(made) is made:
                made.value = self.residuals[node].value
            if node in HOOKS and node.fn is not _VARIABLE:          # a leaf's are called where its gradient arrives
                made = made.twin()
                HOOKS[made] = HOOKS[node]
            new[node] = made
        return [new[r] for r in wanted], variables
