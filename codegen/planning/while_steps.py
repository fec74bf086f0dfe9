"""Loops whose number of iterations only the running program knows (`tg.while_loop`): groups of family "while_loop". Start at `lower_while`.

Where one core does an iteration in less time than its launches take, all iterations are in one kernel of one work-item: the condition,
too. A carry lies in the loop's result: it is copied there first, and an iteration writes the new value over the old one, or elsewhere and
copies it then. Such a loop may be inside the body of another one, whose kernel then holds both. Other loops are steps that the host
drives.

In a loop of one work-item a `tg.cond` is an `if` (`lower_branch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from tracegrad.codegen.graph.branches import outlined
from tracegrad.codegen.kernel.index.index import constant
from tracegrad.codegen.kernel.ir.expressions import Access, Load
from tracegrad.codegen.kernel.ir.kernel import Iteration, Kernel, Temp
from tracegrad.codegen.kernel.ir.statements import Block, Buffer, If, Repeat
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.group_kernels import lower
from tracegrad.codegen.lower.host_call import host_step, siblings
from tracegrad.codegen.planning.batch_launches import NotAlone, can_be_serial, together
from tracegrad.codegen.planning.loop_binding import LoopBinding, Whole, placed
from tracegrad.codegen.planning.loop_steps import copied, hoisted_steps
from tracegrad.codegen.schedule.donation import Donations, arrange
from tracegrad.codegen.schedule.fusion import schedule
from tracegrad.codegen.schedule.grouping import Group, strip
from tracegrad.config import config
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import const, placeholder
from tracegrad.support.plan import Target, by_one
from tracegrad.support.tuning import tuning


@lowering("while_loop")
def lower_while(group: Group, context: Context) -> list[Any]:
    anchor = group.anchor
    fn: Any = anchor.fn
    results = siblings(group, context)
    if results is None:
        return []
    operands = [context.ref(strip(o)) for o in anchor.operands]
    known = set(context.faults)
    inner = copy(context)
    inner.target = alone(context.target)
    try:
        if not config.fuse:
            raise NotAlone
        with located(anchor.loc):
            steps = _kernels(fn.kernel, operands, results, inner, (fn, anchor.operands))
        if sum(k.work for k in steps) >= _most_work(context.target):
            raise NotAlone
    except NotAlone:
        for node in context.faults.keys() - known:
            del context.faults[node]
        if not fn.programs:
            raise                                          # the loop around it is not for one work-item, then
        return [host_step(group, context, results)]
    for node in context.faults:                            # what an iteration reports is for all results
        if node not in known:
            context.reporters[node] = tuple(r for r in results if isinstance(r, Node))
    return steps


def _most_work(target: Target) -> int:
    """Of an iteration in one work-item."""
    return by_one(target.cores, tuning().iteration_work) if target.traits.long_items else tuning().item_iteration_work


def alone(target: Target) -> Target:
    """The device as it is for a kernel of one work-item."""
    return replace(target, kind="cpu", cores=1)


def _kernels(kernel: Any, operands: Sequence[Any], results: Sequence[Any], context: Context, key: Any) -> list[Kernel]:
    if isinstance(kernel, Graph):                          # of several loops
        return [together(_whole(_with_own_outputs(kernel, len(results), context), operands, results, context))]
    return [_loop(kernel, operands, results, context, key)]


def _loop(loop: Any, operands: Sequence[Any], results: Sequence[Any], context: Context, key: Any) -> Kernel:
    """The kernel of a `Repeated` (see tracegrad/control_flow/repeated.py)."""
    n = loop.carries
    stacks = n + 1 + loop.scratch
    own = stacks + loop.shared
    iteration, begins = _with_own_outputs(loop.iteration, own + 1, context), _with_own_outputs(loop.begins, 1 + loop.shared, context)
    lies = [*results, *(Temp(f"unused_{k}", (key, k), max(1, p.aval.size), p.dtype) for k, p in enumerate(iteration.inputs[:own]))]
    lies = [r if k < len(results) else lies[len(results) + k] for k, r in enumerate(lies[:own])]
    goes_on = Temp("goes_on", key, 1, np.dtype(bool))
    places: dict[Any, LoopBinding] = {p: Whole(r) for p, r in zip(iteration.inputs, [*lies, *operands[n:]], strict=True)}
    places[strip(iteration.outputs[-1])] = Whole(goes_on)
    into = {strip(o): p for p, o in zip(iteration.inputs, iteration.outputs[:own], strict=False)}
    context = _with_names(context, {strip(iteration.outputs[-1]): "condition", strip(begins.outputs[0]): "condition"})
    steps, alias = _steps(iteration, context, into)
    same, rest, _ = hoisted_steps(steps, iteration.inputs[own:])
    steps = [k for k in rest if isinstance(k, Kernel)]
    if any(strip(o) not in alias for o in iteration.outputs[n + 1:stacks]):
        raise NotAlone                                     # scratch would be copied at every iteration
    steps = _bound(steps, places)
    for p, o in zip(iteration.inputs[:own], iteration.outputs, strict=False):
        if p.aval.size and strip(o) not in alias:
            steps += _copies(o, places.get(strip(o), Whole(strip(o))), places[p], context)
    at_first = dict(zip(begins.inputs, (places[p] for p in iteration.inputs), strict=True))
    at_first |= {strip(o): Whole(r) for o, r in zip(begins.outputs, [goes_on, *lies[stacks:]], strict=True)}
    test = _bound(_steps(begins, context, {})[0], at_first)
    first = _bound([k for k in same if isinstance(k, Kernel)], places)
    first += [k for o, p in zip(operands, iteration.inputs[:n], strict=False) if p.aval.size
              for k in _copies(p, Whole(o), places[p], context)]
    if loop.scratch:                                       # stacks begin with the first carries
        first += [k for o, p, s in zip(operands, iteration.inputs[:n], iteration.inputs[n + 1:], strict=False) if p.aval.size
                  for k in _copies(p, Whole(o), places[s], context)]
    first += _copies(const(0, iteration.inputs[n].dtype), None, places[iteration.inputs[n]], context, "iteration")
    return _repeated([*first, *test], steps, goes_on)


def _with_names(context: Context, names: dict[Node, str]) -> Context:
    """The context in which values that the user gave no name have these."""
    inner = copy(context)

    def namer(node: Node) -> str:
        given = context.namer(node)
        return names.get(node, given) if given in ("", node.fn.name) else given

    inner.namer = namer
    return inner


def _repeated(before: Sequence[Kernel], iteration: Sequence[Kernel], goes_on: Temp) -> Kernel:
    """A kernel that does `before`, and `iteration` as often as that, or the last iteration, left true in `goes_on`."""
    if sum(k.text.count("\n") for k in (*before, *iteration)) > tuning().looped_lines:
        raise NotAlone
    merged = together([*before, *iteration])
    flag = next(p for p in merged.parameters if p.ref == goes_on)
    assert isinstance(flag, Buffer)
    again = Repeat(Load(Access(flag, constant(0)), flag.dtype))
    again.items = merged.body.items[len(before):]
    body = Block("")
    body.items = [*merged.body.items[:len(before)], again]
    notes = "; ".join(dict.fromkeys(k.note for k in iteration if k.note))
    return replace(merged, body=body, note=f"a loop that ends by its condition, in one launch{': ' * bool(notes)}{notes}")


def _steps(graph: Graph, context: Context, into: Donations) -> tuple[list[Kernel], dict[Node, Node]]:
    """The kernels of a graph for one work-item, and which results are written over which inputs, of those asked for."""
    stored = [s for s in dict.fromkeys(map(strip, graph.outputs)) if s.aval.size]
    plan = schedule(graph, stored, context.scalars, context.target, config.fuse)
    alias, _ = arrange(plan, stored, into, must=False)
    inner = context.inside(plan, (), alias)
    steps = [step for group in plan.groups for step in lower(group, inner)]
    kernels = [s for s in steps if isinstance(s, Kernel) and can_be_serial(s)]
    if len(kernels) < len(steps):
        raise NotAlone
    return kernels, alias


def _bound(steps: Sequence[Kernel], places: dict[Any, LoopBinding]) -> list[Kernel]:
    return [placed(s, places, Iteration()) for s in steps]


def _whole(graph: Graph, operands: Sequence[Any], results: Sequence[Any], context: Context) -> list[Kernel]:
    """The kernels of a graph for one work-item, from all of the operands to all of the results."""
    places: dict[Any, LoopBinding] = {p: Whole(o) for p, o in zip(graph.inputs, operands, strict=True)}
    places |= {strip(o): Whole(r) for o, r in zip(graph.outputs, results, strict=True)}
    return _bound(_steps(graph, context, {})[0], places)


def _copies(x: Node, source: LoopBinding | None, place: LoopBinding, context: Context, name: str = "") -> list[Kernel]:
    """The kernel that copies a value from one place to another, which is called as the value is, or `name`."""
    x = x if source is None else placeholder(x.aval, str(x.attrs.get("label", "")))
    graph = _with_own_outputs(Graph.capture([] if source is None else [x], [x]), 1, context)
    made = strip(graph.outputs[0])
    places = {made: place}
    if source is not None:
        places[x] = source
    name = str(x.attrs.get("label", "")) or name
    context = _with_names(context, {made: name} if name else {})
    return _bound(_steps(graph, context, {})[0], places)


def _with_own_outputs(graph: Graph, count: int, context: Context) -> Graph:
    """The graph, through the passes, with each of its outputs a node whose buffer can be its own."""
    return _own(context.prepared(graph), count)


def _own(graph: Graph, count: int) -> Graph:
    """The graph with each of its outputs, of the first `count`, a node whose buffer can be its own, and its branches as such."""
    outputs, taken = list(graph.outputs), set[Node]()
    for i, o in enumerate(outputs[:count]):
        base = strip(o)
        if base in taken or base in graph.inputs or base.fn.family == "leaf":
            outputs[i] = copied(o)
        taken.add(strip(outputs[i]))
    return outlined(Graph.capture(graph.inputs, outputs))


# ------------------------------------------------------------------------------------------------------------------ branches


@lowering("branch")
def lower_branch(group: Group, context: Context) -> list[Any]:
    anchor = group.anchor
    fn: Any = anchor.fn
    results = siblings(group, context)
    if results is None:
        return []
    condition, *operands = [context.ref(strip(o)) for o in anchor.operands]
    yes, no = (_whole(_own(graph, len(results)), operands, results, context) for graph in (fn.yes, fn.no))
    merged = together([*yes, *no])
    flag = next((p for p in merged.parameters if p.ref == condition), None)
    if flag is None:
        name = "taken"
        while merged.takes(name):
            name += "_"
        flag = Buffer(condition, name, anchor.operands[0].dtype, 1, "const")
        merged = replace(merged, parameters=(*merged.parameters, flag))
    assert isinstance(flag, Buffer)
    then, otherwise = If(Load(Access(flag, constant(0)), flag.dtype)), If(None, (), True)
    then.items, otherwise.items = merged.body.items[:len(yes)], merged.body.items[len(yes):]
    body = Block("")
    body.items = [then, otherwise]
    return [replace(merged, body=body, note="a branch", flops=max(sum(k.flops for k in some) for some in (yes, no)),
                    bytes=max(sum(k.bytes for k in some) for some in (yes, no)))]
