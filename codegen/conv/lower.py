"""Convolutions and their gradients: a group of the schedule, put into tile programs (`cpu`, `gpu`). Start at `lower_conv`.

Operands are stored values, read through whatever index arithmetic lies between; what follows the convolution is its epilogue: see
`lower/fused.py`. float16 is storage only: sums are made in float.
"""

from __future__ import annotations

from dataclasses import replace

from tracegrad.codegen.conv import cpu, gpu
from tracegrad.codegen.conv.problem import Window
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.lower.context import Context, flops, lowering
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node

_WRITERS = {"cpu": cpu.kernels, "gpu": gpu.kernels}


@lowering("conv")
def lower_conv(group: Group, context: Context) -> list[Kernel]:
    v = window(group.anchor)
    kernels = _WRITERS[context.target.kind](group, context, v)
    kernels[-1] = replace(kernels[-1], flops=kernels[-1].flops + flops(group))
    return kernels


def window(result: Node) -> Window:
    """The forward convolution that `result` is, or is a gradient of."""
    a, b = result.operands
    x, w = {"conv2d": (a, b), "conv2d_input_grad": (result, b), "conv2d_weight_grad": (a, result)}[result.fn.name]
    (n, c, height, width), (o, _, kh, kw), attrs = x.shape, w.shape, result.attrs
    (top, bottom), (left, right) = attrs["padding"]
    return Window(n, c, height, width, o, kh, kw, attrs["stride"], (top, left), attrs["dilation"], attrs["groups"], (bottom, right))
