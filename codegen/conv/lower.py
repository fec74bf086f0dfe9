"""Convolutions and their gradients: a group of the schedule, put into the callbacks of `conv`. Start at `lower_conv`.

Operands are stored values, read through whatever index arithmetic lies between; what follows the convolution is its epilogue: see
`lower/epilogue.py`. float16 is storage only: sums are made in float.
"""

from __future__ import annotations

from dataclasses import replace

from tracegrad.codegen.conv import cpu, gpu
from tracegrad.codegen.conv.text_problem import Array, Store
from tracegrad.codegen.conv.problem import Window
from tracegrad.codegen.conv.schedules import conv2d, conv2d_input_grad, conv2d_weight_grad
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.names import is_reserved
from tracegrad.codegen.kernel.vectors import computed_in
from tracegrad.codegen.lower.context import Context, flops, lowering
from tracegrad.codegen.lower.epilogue import Operands
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.graph.ir import Node

GENERATORS = {"conv2d": conv2d, "conv2d_input_grad": conv2d_input_grad, "conv2d_weight_grad": conv2d_weight_grad}


@lowering("conv")
def lower_conv(group: Group, context: Context) -> list[Kernel]:
    v = window(group.anchor)
    generator = gpu if context.target.kind == "gpu" else cpu
    kernels = _on_cpu(group, context, v) if generator is cpu and group.anchor.fn.name == "conv2d_weight_grad" else generator.kernels(group, context, v)
    kernels[-1] = replace(kernels[-1], flops=kernels[-1].flops + flops(group))
    return kernels


def _on_cpu(group: Group, context: Context, v: Window) -> list[Kernel]:
    result = group.anchor
    operands = Operands(group, context, is_reserved)
    first, second = (_array(operands, node) for node in result.operands)
    store = operands.epilogue(result, result.shape, "ncyx")
    return operands.finish(GENERATORS[result.fn.name](
        context.entry(group), v, computed_in(result.dtype), first, second, Store(store.write, store.params), context.target, result))


def window(result: Node) -> Window:
    """The forward convolution that `result` is, or is a gradient of."""
    a, b = result.operands
    x, w = {"conv2d": (a, b), "conv2d_input_grad": (result, b), "conv2d_weight_grad": (a, result)}[result.fn.name]
    (n, c, height, width), (o, _, kh, kw), attrs = x.shape, w.shape, result.attrs
    (top, bottom), (left, right) = attrs["padding"]
    return Window(n, c, height, width, o, kh, kw, attrs["stride"], (top, left), attrs["dilation"], attrs["groups"], (bottom, right))


def _array(operands: Operands, node: Node) -> Array:
    """`node`, of four dimensions, as the generators read it."""
    found = operands.operand(node, node.shape, "ncyx")
    if found.strided is None:
        return Array(found.load, found.params)
    pointer, strides = found.strided
    n, c, y, x = (s if size > 1 else 1 for s, size in zip(strides, node.shape, strict=True))     # of one element it is free: contiguous
    return Array(found.load, found.params, (pointer, (n, c, y, x)))
