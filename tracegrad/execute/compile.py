"""From a graph to what runs it on a device: `compiled`. The only file that asks both the code generator and the runtime."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.errors import UnsupportedError
from tracegrad.execute import plan_files
from tracegrad.execute.backend_interfaces import code_generator
from tracegrad.execute.devices import Device
from tracegrad.execute.matrix_trial import target_of
from tracegrad.graph.canonical import canonical
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.leaf_operations import CustomCall, Shared
from tracegrad.graph.locations import located
from tracegrad.graph.operation import Operation
from tracegrad.graph.primitive import REGISTRY, bind, numpy_time
from tracegrad.graph.printing import namer
from tracegrad.runtime.launch import Executable
from tracegrad.runtime.programs.build import load_compiler
from tracegrad.runtime.programs.progress import progress
from tracegrad.support.plan import Plan

_OUTPUT = REGISTRY["output"]
_LOOPS = "loop", "while_loop"              # families of operations of which each call has one of its own


def compiled(graph: Graph, device: Device, donate: Mapping[int, int], results: Sequence[str], varying: frozenset[int] = frozenset()
             ) -> Executable:
    """What runs an executable graph on a device of a driver. donate: output index -> input index whose buffer the output may overwrite.

    varying: sizes of the inputs that will be others.
    """
    start = time.perf_counter()
    plan = _plan(graph, device, donate, results, varying)
    executable = Executable(plan, device)
    if config.debug:
        _tell(plan, len(graph), device, time.perf_counter() - start)
    return executable


def _plan(graph: Graph, device: Device, donate: Mapping[int, int], results: Sequence[str], varying: frozenset[int]) -> Plan:
    """The plan of an executable graph: from the disk, or made and kept there."""
    device.expect(*_rough(graph))
    target = target_of(device)
    key = plan_files.key(graph, target, donate, results, varying)
    plan = plan_files.load(key)
    if plan is None:
        load_compiler(device, "" if key is None else key.name, len({(n.fn, n.aval.shape, n.dtype) for n in graph}))      # meanwhile
        _check_dtypes(graph, device)
        with progress(f"tracegrad writes kernels for {len(graph)} operations"):
            plan = code_generator().compile_graph(graph, target, donate=donate, name=namer(graph), results=results, varying=varying,
                                                  templates=plan_files.TEMPLATES)
        if not config.check:                                 # a driver needs the text only
            plan = replace(plan, kernels=())
        plan_files.store(key, plan)
    return plan


def learned(graph: Graph, device: Device, donate: Mapping[int, int], varying: frozenset[int]) -> None:
    """Note which kernels an executable graph has, so that those of other sizes can be compared with them."""
    code_generator().compile_graph(graph, device.target, donate=donate, varying=varying, templates=plan_files.TEMPLATES)


def _rough(graph: Graph) -> tuple[float, int]:
    """About the work of a graph's kernels (see Launch.work) and how many they are, from what numpy would take.

    Of elementwise operations 2 for each of its nanoseconds (most of the time goes to arrays between them), of products 40.
    """
    work, count = 0.0, 0
    for node in graph:
        fn: Any = node.fn
        if fn.family == "loop":
            inner, kernels = _rough(fn.graph)
            work, count = work + fn.length * inner, count + fn.length * kernels
        elif node.operands:
            work, count = work + numpy_time(node) * (40 if fn.family in ("contraction", "conv") else 2), count + 1
    return work, count // 4


def _check_dtypes(graph: Graph, device: Device) -> None:
    """UnsupportedError if the device lacks a dtype that the program computes in; it names the line that asked for it."""
    if not device.target.fp64:
        wide = [node for node in graph if node.dtype in (np.float64, np.complex128) and not node.aval.weak]
        for node in [*(n for n in wide if n.operands), *wide][:1]:               # an input, if need be
            raise UnsupportedError(
                f"{node.fn.name} at {node.loc}: {device.name} has no float64; use float32 (x.float(), dtype=tg.float32; x.cfloat()), "
                "or another device (tg.set_device; `python -m tracegrad devices` lists them)"
            )


def _tell(plan: Plan, nodes: int, device: Device, seconds: float) -> None:
    """TRACEGRAD_DEBUG: a line per compiled program; from 2 on, its kernels."""
    sys.stderr.write(f"tracegrad: {nodes} nodes -> {len(plan.launches)} kernels for {device.name} in {1e3 * seconds:.0f} ms\n")
    if config.debug >= 2:
        sys.stderr.write(plan.source + "\n")


def executable_graph(graph: Graph, transfers: bool = False) -> Graph:
    """The graph without boundary nodes. transfers: but with these, which mean nothing on one device."""
    new: dict[Node, Node] = {n: n for n in graph.inputs}
    loops: dict[tuple[Node, ...], list[Operation]] = {}
    written_out: dict[tuple[Operation, tuple[Node, ...]], list[Node] | None] = {}
    with located(None) as line:
        for node in graph:
            if node in new:
                continue
            line.location = node.loc
            fn = node.fn
            if fn.boundary and (fn.family == "elementwise" or (fn.family == "transfer" and not transfers)):
                new[node] = new[node.operands[0]]
            elif isinstance(fn, CustomCall):
                new[node] = node
            elif fn is _OUTPUT and isinstance(node.operands[0].fn, CustomCall):
                new[node] = new[node.operands[0].operands[node.attrs["index"]]]
            elif not node.operands:
                new[node] = _own_leaf(node)
            else:  # also merges equal nodes, which users' tensors have each their own of
                operands = tuple([new[o] for o in node.operands])
                fn = fn.executed or fn
                if fn.family in _LOOPS and isinstance(fn, Shared):
                    call = fn, operands = _one_of(loops, *fn.once(operands))
                    if call not in written_out:
                        written_out[call] = fn.written_out(operands)  # type: ignore[attr-defined]
                    if (results := written_out[call]) is not None:
                        new[node] = results[node.attrs["index"]]
                        continue
                new[node] = bind(fn, operands, node.attrs)
    return _trimmed(Graph.capture(graph.inputs, [new[o] for o in graph.outputs]))


def _one_of(loops: dict[tuple[Node, ...], list[Operation]], fn: Operation, operands: tuple[Node, ...]
            ) -> tuple[Operation, tuple[Node, ...]]:
    """The loop that does the same on the same operands, if there is one: each call of `scan` or `while_loop` records one of its own.

    (What a derivative computes again of the function, a loop in the function, is such.)
    """
    others = loops.setdefault(operands, [])
    for other in others:
        if other is fn or (other.family == fn.family and _told(other) == _told(fn)):
            return other, operands
    others.append(fn)
    return fn, operands


def _told(part: Any) -> Any:
    """What a loop does, as something that is equal for equal loops; of what is no loop, itself."""
    if isinstance(part, tuple):
        return tuple(map(_told, part))
    if isinstance(part, Graph):
        found = canonical(part.outputs, part.inputs, lambda n: n if n.fn.name in ("data", "placeholder") else None)
        return (*map(_told, found.parts), None, *[found.number[o] for o in part.outputs])
    return _told(part.described) if getattr(part, "family", "") in _LOOPS else part


def _trimmed(graph: Graph) -> Graph:
    """The graph with loops that compute what it uses of them, and nothing else. (In rounds: a loop decides what of others is used.)"""
    while True:
        used: dict[Any, set[int]] = {}
        for node in graph:
            if node.fn.family == "loop":
                used.setdefault((node.fn, node.operands), set()).add(node.attrs["index"])
        changed = False
        new: dict[Node, Node] = {n: n for n in graph.inputs}
        for node in graph if used else ():
            if node in new:
                continue
            operands, attrs, fn = tuple(new[o] for o in node.operands), node.attrs, node.fn
            if fn.family == "loop":
                fn, operands, place = fn.trimmed(sorted(used[fn, node.operands]), operands)  # type: ignore[attr-defined]
                changed |= fn is not node.fn
                attrs = {"index": place[attrs["index"]]}
            with located(node.loc):
                new[node] = node if fn is node.fn and operands == node.operands else bind(fn, operands, attrs)
        if not changed:
            return graph
        graph = Graph.capture(graph.inputs, [new[o] for o in graph.outputs])


def _own_leaf(node: Node) -> Node:
    """A constant (or iota) that only this program uses: nodes made on it are then no user's, whose values and operands come and go."""
    return node if node.value is not None else Node(node.fn, (), node.attrs, node.aval, False)
