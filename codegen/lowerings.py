"""Which function writes the kernels of which kind of group, per kind of device. Importing this fills the table `LOWERINGS`."""

from __future__ import annotations

from tracegrad.codegen import (
    lower_arg,
    lower_columns,
    lower_contraction,
    lower_conv,
    lower_gpu,
    lower_host,
    lower_loop_steps,
    lower_loops,
    lower_opencl,
    lower_scan,
    lower_scatter,
    lower_select,
    lower_sort,
)
from tracegrad.codegen.kernel import Kernel
from tracegrad.codegen.lower import LOWERINGS, Context, lowering
from tracegrad.codegen.schedule import Group

__all__ = [
    "LOWERINGS", "lower_arg", "lower_contraction", "lower_conv", "lower_host", "lower_loop_steps", "lower_opencl",
    "lower_scan", "lower_scatter", "lower_select", "lower_sort",
]


@lowering("loops")
def _loops(group: Group, context: Context) -> list[Kernel]:
    on_gpu = context.target.kind == "gpu"
    return lower_gpu.loops(group, context) if on_gpu else lower_loops.lower_loops(group, context)


@lowering("columns")
def _columns(group: Group, context: Context) -> list[Kernel]:
    on_gpu = context.target.kind == "gpu"
    return lower_gpu.columns(group, context) if on_gpu else lower_columns.lower_columns(group, context)
