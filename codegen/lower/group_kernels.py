"""The kernels of one group of the schedule: written by the table's function for its kind, and verified. Start at `lower`."""

from __future__ import annotations

from dataclasses import replace

from tracegrad.codegen.kernel.index.varying import any_vary, sizes_that_vary
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.verify import verify_kernel
from tracegrad.codegen.lower.context import LOWERINGS, TARGET_LOWERINGS, Context, Steps, computed, operations, slow
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.config import config
from tracegrad.errors import CompilerBug, UnsupportedError


def lower(group: Group, context: Context) -> Steps:
    """The kernels of one group."""
    bodies = group.lowered_by in ("loop", "while_loop", "branch")       # those of its body come through here, bound to other buffers
    if bodies:
        return _written(group, context)
    steps = _for_any_size(group, context) if any_vary() else _verified(group, context, config.check)
    last = steps[-1] if steps else None
    if isinstance(last, Kernel):                   # those before it prepare its operands, or are parts of it
        nodes = computed(group, context)
        steps[-1] = replace(last, why=group.why, fused=operations(nodes, context), slow=last.slow or slow(group, nodes))
    return steps


def _written(group: Group, context: Context) -> Steps:
    """What the table's function for this kind of group and of device, or else for any device, writes."""
    own, found = TARGET_LOWERINGS.get((group.lowered_by, context.target.traits.kernels)), LOWERINGS.get(group.lowered_by)
    if found is None:
        raise UnsupportedError(f"{group.roots[0].fn.name}: this operation cannot be compiled yet; run it with TRACEGRAD_DEVICE=numpy")
    steps = own(group, context) if own is not None else None
    return found(group, context) if steps is None else steps


def _verified(group: Group, context: Context, check: bool) -> Steps:
    """The same, verified if `check`."""
    steps = _written(group, context)
    for step in steps if check else ():
        if isinstance(step, Kernel):
            verify_kernel(step)
    return steps


def _for_any_size(group: Group, context: Context) -> Steps:
    """The kernels of a group in forms that other sizes share. Those that cannot be proved for this size are made for it alone."""
    before = context.noted()
    try:
        steps = _verified(group, context, True)
    except CompilerBug:
        context.forget_but(before)
        with sizes_that_vary(()):
            steps = _verified(group, context, config.check)
        context.for_one_size += [step.entry for step in steps if isinstance(step, Kernel)]
    return steps
