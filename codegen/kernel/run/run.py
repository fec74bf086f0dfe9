"""A plan's launches, work-item by work-item. Start at `run_plan`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir.expressions import Buffer
from tracegrad.codegen.kernel.run.instructed import WITH_OTHERS
from tracegrad.codegen.kernel.run.memory import Array, KernelFault, Memory, Pointer, State, group_arrays
from tracegrad.codegen.kernel.run.python import Compiled
from tracegrad.support.dtypes import OPENCL
from tracegrad.support.plan import Fault, HostStart, HostStep, HostWait, Iteration, Loop, Offset, Plan, Scalar, Step

GridIndex = tuple[int, ...]              # of a work-item or a group, by dimension; or how many there are
def run_plan(plan: Plan, inputs: Sequence[Any], scalars: Sequence[Any] = ()) -> list[Array]:
    """The results of `plan` for `inputs` (arrays, one for each of plan.inputs) and run-time `scalars`, computed by its kernels.

    Raises KernelFault for what a kernel must not do (see above), and where there is nothing to run: plans that a program keeps have their
    kernels only with `tg.config.check`, and kernels that users wrote are text. The inputs that a plan updates in place are copied first.

    >>> import tracegrad as tg
    >>> f = tg.trace(lambda x: (x * 2).sum(1))
    >>> y = f(tg.ones(3, 5))
    >>> run_plan(f.plan, [np.ones((3, 5), np.float32)])[0].tolist()
    [10.0, 10.0, 10.0]
    """
    state = State()
    memories: list[Memory | None] = [None] * len(plan.slots)
    for i, value in zip(plan.inputs, inputs, strict=True):
        memories[i] = Memory(plan.slots[i].name or f"input {i}", np.array(value, plan.slots[i].dtype).reshape(-1), state, True)
    for i, slot in enumerate(plan.slots):
        if memories[i] is not None:
            continue
        if slot.alias is not None:
            memories[i] = memories[slot.alias]
        elif slot.data is not None:
            memories[i] = Memory(slot.name or "constant", np.array(slot.data, slot.dtype).reshape(-1), state, True)
        else:
            memories[i] = Memory(slot.name or slot.kind, np.zeros(math.prod(slot.shape), slot.dtype), state, slot.kind == "faults")
    given = plan.all_scalars(scalars)
    with np.errstate(all="ignore"):
        _run(plan.steps, plan, memories, given, state, ({}, {}), kernels_of(plan))
    results = []
    for i in plan.outputs:
        memory = memories[i]
        assert memory is not None
        if 0 in memory.known:
            raise KernelFault(f"result {memory.name}: element {memory.known.index(0)} was never written")
        results.append(memory.array.reshape(plan.slots[i].shape).copy())
    return results


def kernels_of(plan: Plan) -> dict[str, Compiled]:
    """The kernels that a plan launches."""
    wanted, found = {step.entry for step in plan.launches}, {kernel.entry: kernel for kernel in plan.kernels}
    if missing := sorted(wanted - found.keys()):
        raise KernelFault(f"run_plan: the plan has no statements of {', '.join(missing)}; set tg.config.check = True before it is compiled "
                          "(plans from the disk have only text), or call codegen.compiler.compile_graph")
    if users := sorted(entry for entry in wanted if found[entry].foreign):
        raise KernelFault(f"run_plan: a user wrote {', '.join(users)}; only a driver runs that")
    return {entry: Compiled(found[entry]) for entry in sorted(wanted)}


def _run(steps: Sequence[Step], plan: Plan, memories: Sequence[Memory | None], scalars: Sequence[Any], state: State,
         under_way: tuple[dict[int, int], dict[int, Any]], kernels: Mapping[str, Compiled]) -> None:
    """The steps in order; under_way: which iteration each loop is in, and what the host began, by token."""
    iterations, begun = under_way
    for step in steps:
        if isinstance(step, HostStep):
            _host(step, plan, memories, begun)
        elif isinstance(step, Loop):
            for iteration in range(step.length):
                iterations[step.number] = iteration
                _run(step.steps, plan, memories, scalars, state, under_way, kernels)
        else:
            _launch(kernels[step.entry], step, memories, scalars, state, iterations)


def _host(step: HostStep, plan: Plan, memories: Sequence[Memory | None], begun: dict[int, Any]) -> None:
    values = [np.array(m.array).reshape(plan.slots[i].shape) for i in step.inputs if (m := memories[i]) is not None]
    if isinstance(step, HostStart):
        *given, token = values
        begun[step.outputs[0]] = step.fn(*(partial(np.array, value) for value in given))
        results: Any = [token]
    else:
        results = step.fn(*([begun.pop(step.inputs[0])] if isinstance(step, HostWait) else values))
    for i, value in zip(step.outputs, results, strict=True):
        memory = memories[i]
        assert memory is not None
        memory.array[:] = np.asarray(value).reshape(-1)
        memory.known[:] = b"\1" * len(memory.known)


def _launch(kernel: Compiled, step: Any, memories: Sequence[Memory | None], scalars: Sequence[Any], state: State,
            iterations: dict[int, int]) -> None:
    if len(kernel.parameters) != len(step.args):
        raise KernelFault(f"{kernel.name} has {len(kernel.parameters)} parameters, and is launched with {len(step.args)}")
    args: list[Any] = []
    bound: dict[int, list[Buffer]] = {}
    for p, arg in zip(kernel.parameters, step.args, strict=True):
        if isinstance(arg, (Scalar, Offset)):
            number = scalars[arg.index] if isinstance(arg, Scalar) else arg.value
            args.append(arg.dtype.type(number) if arg.dtype.kind == "f" else int(number))
        elif isinstance(arg, Fault):
            args.append(2 * arg.index)
        elif isinstance(arg, Iteration):
            args.append(iterations[arg.loop])
        else:
            memory = memories[arg]
            assert memory is not None
            if not isinstance(p, Buffer) or OPENCL[memory.array.dtype] != OPENCL[p.dtype]:
                raise KernelFault(f"{kernel.name}: {p} is a {p.dtype}, and is given {memory.array.dtype}")
            memory.fresh()
            bound.setdefault(id(memory), []).append(p)
            args.append(Pointer(memory, 0))
    for given in bound.values():
        if len(given) > 1 and any(p.restrict for p in given) and any(p.access != "const" for p in given):
            which = ", ".join(p.name for p in given)
            raise KernelFault(f"{kernel.name}: {which} are one buffer, which is written, and one of them is restrict")
    sizes = tuple((*step.global_size, 1, 1)[:3])
    local = tuple((*(step.local_size or (1,)), 1, 1)[:3])
    if kernel.local_size is not None and step.local_size is not None and tuple((*kernel.local_size, 1, 1)[:3]) != local:
        raise KernelFault(f"{kernel.name} requires groups of {kernel.local_size}, and is launched in groups of {local}")
    if any(n % size for n, size in zip(sizes, local, strict=True)):
        raise KernelFault(f"{kernel.name}: {sizes} work-items in groups of {local}")
    state.local_size, state.global_size = local, sizes
    groups = [n // size for n, size in zip(sizes, local, strict=True)]
    for group in itertools.product(*map(range, reversed(groups))):
        _group(kernel, args, state, (group[2], group[1], group[0]), local, sizes)


def _group(
    kernel: Compiled, args: Sequence[Any], state: State, group: GridIndex, local: GridIndex, sizes: GridIndex
) -> None:
    """Run a work-group: item after item, or all to each barrier."""
    group_arrays.clear()
    state.new_group()
    items = []
    for item in itertools.product(*map(range, reversed(local))):
        place = item[2], item[1], item[0]
        where = tuple(g * n + i for g, n, i in zip(group, local, place, strict=True))
        number = 1 + where[0] + sizes[0] * (where[1] + sizes[1] * where[2])
        items.append((number, place, where, kernel.run(state, *args)))
    while items:
        left, waits = [], set()
        for number, place, where, runs in items:
            state.item, state.local_id, state.group_id, state.global_id = number, place, group, where
            try:
                waits.add(next(runs))
                left.append((number, place, where, runs))
            except StopIteration:
                pass
            except Exception as error:
                raise _located(kernel, where, error) from error
        if left and len(left) != len(items):
            raise KernelFault(f"{kernel.name}: a barrier that {len(left)} of the {len(items)} items of group {group} reach")
        if len(waits) > 1:
            raise KernelFault(f"{kernel.name}: some items of group {group} are at a barrier, and others wait for each other")
        items = left
        if waits != {WITH_OTHERS}:
            for memory in group_arrays.values():
                memory.fresh()


def _located(kernel: Compiled, where: tuple[int, ...], error: Exception) -> KernelFault:
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == f"<{kernel.name}>":
            line = trace.tb_lineno
        trace = trace.tb_next
    what = str(error) if isinstance(error, KernelFault) else f"{type(error).__name__}: {error}"
    return KernelFault(f"{kernel.name}, work-item {where}: {what}, in `{kernel.line(line)}`")
