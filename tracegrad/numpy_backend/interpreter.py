"""Runs a graph with the ops' numpy rules: the oracle of the tests, and the device "numpy". Start at `interpret`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.errors import LinAlgError
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.leaf_operations import Bundle
from tracegrad.numpy_backend.numpy_program import NumpyProgram, out_of_memory
from tracegrad.passes.liveness import last_uses

prepared = NumpyProgram             # what `execute/backend_interfaces.py` calls it


def interpret(graph: Graph, inputs: Sequence[Any], notes: list[int] | None = None) -> list[Any]:
    """The values of `graph.outputs`, as numpy arrays, from those of `graph.inputs` (iterative; frees what is no longer used).

    notes: gets what the ops that report have to report, two numbers each, in the graph's order (see plan.Check).
    """
    value: dict[Node, Any] = {node: np.asarray(x, dtype=node.dtype) for node, x in zip(graph.inputs, inputs, strict=True)}
    order = [node for node in graph if node not in value]
    dead = last_uses([node.operands for node in order], graph.outputs)
    loops: dict[Any, Any] = {}                             # loops that ran: their results, and what there is to report
    with np.errstate(all="ignore"):
        for node, done in zip(order, dead, strict=True):
            fn: Any = node.fn
            try:
                if fn.family == "loop":
                    key = (fn, node.operands)
                    if key not in loops:
                        loops[key] = run_loop(fn, [value[o] for o in node.operands])
                    value[node] = loops[key][0][node.attrs["index"]]
                else:
                    value[node] = evaluate(node, [value[o] for o in node.operands])
            except LinAlgError as error:
                node.loc.tell(error)
                raise
            except MemoryError:
                raise out_of_memory(node) from None
            if fn.reports and notes is not None:
                notes += loops[key][1] if fn.family == "loop" else fn.excess(value[node.operands[0]], node)
            for o in done:
                del value[o]
    return [value[node] for node in graph.outputs]


def run_loop(loop: Any, arrays: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """All results of a loop, iteration by iteration, and the worst that the body's checks found in any iteration."""
    graph, n, rows, length = loop.graph, loop.body.carries, loop.body.rows, loop.length
    carry, scanned, constants = list(arrays[:n]), arrays[n:n + rows], list(arrays[n + rows:])
    stacks = [np.empty((length, *o.shape), o.dtype) for o in graph.outputs[n:]]
    worst: list[int] = [0] * (2 * len(loop.checks()))
    for i in range(length - 1, -1, -1) if loop.reverse else range(length):
        notes: list[int] = []
        found = interpret(graph, [*carry, *(x[i] for x in scanned), *constants], notes)
        carry = found[:n]
        for stack, y in zip(stacks, found[n:], strict=True):
            stack[i] = y
        worst = [max(a, b) for a, b in zip(worst, notes, strict=True)]
    return [*carry, *stacks], worst


def evaluate(node: Node, operands: Sequence[Any]) -> Any:
    """One node's value from its operands' values (of a bundle: its results)."""
    if node.fn.name == "data":
        return np.asarray(getattr(node.value, "array", node.value))         # a tensor made in the program holds a devices.HostValue
    result = node.fn.computed(operands, node.attrs, node.dtype)
    return result if isinstance(node.fn, Bundle) else np.asarray(result, dtype=node.dtype)
