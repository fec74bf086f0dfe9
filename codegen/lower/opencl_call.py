"""Kernels that users wrote: the groups of `tg.opencl_function`. Their sources share one program without meeting: see `UserSources`."""

from __future__ import annotations

from typing import Any

from tracegrad.codegen.kernel.ir.kernel import Foreign, RuntimeScalar
from tracegrad.codegen.kernel.ir.statements import Block, Buffer, Number
from tracegrad.codegen.lower.context import Context, lowering, traffic
from tracegrad.codegen.lower.host_call import siblings
from tracegrad.codegen.schedule.grouping import Group, strip


@lowering("opencl_call")
def lower_opencl(group: Group, context: Context) -> list[Foreign]:
    """One launch: inputs, outputs, then scalars, in the order of the user's parameters."""
    anchor = group.anchor
    outputs = siblings(group, context)
    if outputs is None:
        return []
    fn: Any = anchor.fn
    attrs = anchor.attrs
    inputs = [context.ref(strip(o)) for o in anchor.operands[:attrs["inputs"]]]
    runtime = iter(anchor.operands[attrs["inputs"]:])
    scalars = []
    for value, dtype in attrs["scalars"]:
        if value is None:
            scalars.append(RuntimeScalar(context.scalars[next(runtime)].index, dtype))
        else:
            scalars.append(context.constant(value, dtype))
    entry, text = context.user_sources.add(fn.source, fn.entry, context.entries)
    buffers = [Buffer(ref, "", ref.dtype, None, "inout") for ref in (*inputs, *map(context.ref, outputs))]
    numbers = [Number(scalar, "", scalar.dtype) for scalar in scalars]
    return [Foreign(entry, (*buffers, *numbers), Block(""), attrs["global_size"], attrs["local_size"], anchor.aval.size, traffic(group),
                    "a kernel of the user's", source=text)]
