"""The interpreter: runs a graph with the ops' numpy rules. It is the oracle of the tests and the device named "numpy"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.function import Bundle
from tracegrad.ir import Graph, Node


def run(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Values of the graph's outputs, as numpy arrays, from those of its inputs (iterative; frees what is no longer used)."""
    value: dict[Node, Any] = {}
    for node, x in zip(graph.inputs, inputs, strict=True):
        value[node] = np.asarray(x, dtype=node.dtype)
    uses = {n: graph.out_degree(n) for n in graph}
    for node in graph.outputs:
        uses[node] += 1
    with np.errstate(all="ignore"):
        for node in graph:
            if node not in value:
                result = node.fn.numpy(*[value[o] for o in node.operands], **node.attrs)
                value[node] = result if isinstance(node.fn, Bundle) else np.asarray(result, dtype=node.dtype)
                for o in node.operands:
                    uses[o] -= 1
                    if not uses[o]:
                        del value[o]
    return [value[o] for o in graph.outputs]
