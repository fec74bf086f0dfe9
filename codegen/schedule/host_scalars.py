"""Arithmetic on run-time Python numbers (a learning rate, a step count) happens on the host, before launching. Start at `host_scalars`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.codegen.kernel.ir.kernel import RuntimeScalar
from tracegrad.graph.ir import Graph, Node
from tracegrad.support.plan import HostArithmetic

Program = tuple[tuple[Callable[..., Any], tuple[int, ...]], ...]


def host_scalars(graph: Graph) -> tuple[dict[Node, RuntimeScalar], Program]:
    """The 0-d nodes that depend on nothing but run-time scalars and constants, and how to compute those that are no inputs.

    Entry i of the program makes scalar number n + i, where n is the number of scalars a call supplies.
    """
    found: dict[Node, RuntimeScalar] = {}
    for node in graph.inputs:
        if node.fn.name == "placeholder" and node.aval.weak:
            found[node] = RuntimeScalar(len(found), node.dtype)
    if not found:
        return found, ()
    program: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
    count = len(found)
    for node in graph:
        if node in found or node.fn.family not in ("elementwise", "movement") or node.shape != () or not node.operands:
            continue
        if node.fn.reports:                                  # to the device's buffer of faults
            continue
        if all(o in found or o.fn.name == "const" for o in node.operands) and any(o in found for o in node.operands):
            args = tuple(found[o].index for o in node.operands if o in found)
            program.append((_evaluation(node, [o in found for o in node.operands]), args))
            found[node] = RuntimeScalar(count + len(program) - 1, node.dtype)
    return found, tuple(program)


def _evaluation(node: Node, given: list[bool]) -> HostArithmetic:
    constants = tuple(None if g else o.attrs["value"] for g, o in zip(given, node.operands, strict=True))
    return HostArithmetic(node.fn, tuple(node.attrs.items()), node.dtype, tuple(o.dtype for o in node.operands), constants)
