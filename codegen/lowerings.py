"""Which function writes the kernels of which kind of group, per kind of device. Importing this fills the table `LOWERINGS`."""

from __future__ import annotations

from tracegrad.codegen.blocked import lower as blocked
from tracegrad.codegen.conv import lower as conv
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.lower import attention, host_call, opencl_call, pooling
from tracegrad.codegen.lower.context import LOWERINGS, Context, lowering
from tracegrad.codegen.lower.fourier import lines as fourier
from tracegrad.codegen.lower.matrices import small_matrices
from tracegrad.codegen.lower.rows import columns_cpu, rows_cpu, rows_gpu
from tracegrad.codegen.lower.search import argreduce, scan, scatter, sort, topk
from tracegrad.codegen.matmul import lower as matmul
from tracegrad.codegen.plan import loop_steps, while_steps
from tracegrad.codegen.schedule.grouping import Chunks, Columns, Flat, Group, Rows

__all__ = ["LOWERINGS", "argreduce", "attention", "blocked", "conv", "fourier", "host_call", "loop_steps", "matmul", "opencl_call",
           "pooling", "scan", "scatter", "small_matrices", "sort", "topk", "while_steps"]


@lowering(Flat, Rows, Chunks)
def _loops(group: Group, context: Context) -> list[Kernel]:
    on_gpu = context.target.kind == "gpu"
    return rows_gpu.loops(group, context) if on_gpu else rows_cpu.lower_loops(group, context)


@lowering(Columns)
def _columns(group: Group, context: Context) -> list[Kernel]:
    on_gpu = context.target.kind == "gpu"
    return rows_gpu.columns(group, context) if on_gpu else columns_cpu.lower_columns(group, context)
