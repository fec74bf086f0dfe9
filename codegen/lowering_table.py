"""Which function writes the kernels of which kind of group, per kind of device. Importing this fills the table `LOWERINGS`."""

from __future__ import annotations

from tracegrad.codegen.blocked import lower as blocked
from tracegrad.codegen.conv import cpu as conv_cpu
from tracegrad.codegen.conv import gpu as conv_gpu
from tracegrad.codegen.lower import attention, host_call, opencl_call, pooling
from tracegrad.codegen.lower.context import LOWERINGS, lowering
from tracegrad.codegen.lower.fourier import lower as fourier
from tracegrad.codegen.lower.matrices import small_matrices
from tracegrad.codegen.lower.rows import columns_cpu, rows_cpu, rows_gpu
from tracegrad.codegen.lower.search import argreduce, argreduce_gpu, scan, scan_gpu, scatter, scatter_gpu, sort, sort_gpu, topk
from tracegrad.codegen.matmul import cpu as matmul_cpu
from tracegrad.codegen.matmul import gpu as matmul_gpu
from tracegrad.codegen.planning import loop_steps, while_steps
from tracegrad.codegen.schedule.grouping import Chunks, Columns, Flat, Rows

__all__ = [
    "LOWERINGS", "argreduce", "argreduce_gpu", "attention", "blocked", "conv_cpu", "conv_gpu", "fourier", "host_call", "loop_steps",
    "matmul_cpu", "matmul_gpu", "opencl_call", "pooling", "scan", "scan_gpu", "scatter", "scatter_gpu", "small_matrices", "sort",
    "sort_gpu", "topk", "while_steps",
]

lowering(Flat, Rows, Chunks)(rows_cpu.lower_loops)
lowering(Flat, Rows, Chunks, on="gpu")(rows_gpu.loops)
lowering(Columns)(columns_cpu.lower_columns)
lowering(Columns, on="gpu")(rows_gpu.columns)
