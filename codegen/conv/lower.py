"""Convolutions and their gradients: what the schedule knows, put into the callbacks of `conv`. Start at `lower_conv`.

Operands are stored values, read through whatever index arithmetic lies between (a plain buffer tells its strides, so that the
generator can read it directly); the group's other sinks (bias, activation, ...) are computed where the result is stored.
float16 is storage only: sums are made in float.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracegrad.codegen.conv.problem import Array, Store, Window
from tracegrad.codegen.conv.schedules import conv2d, conv2d_input_grad, conv2d_weight_grad
from tracegrad.codegen.kernel.expressions import Expression, Verbatim
from tracegrad.codegen.kernel.index import ravel
from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.names import is_reserved
from tracegrad.codegen.kernel.vectors import Emit, computed_in
from tracegrad.codegen.lower.context import Context, flops, lowering
from tracegrad.codegen.matmul.lower import Callback, lanes_from
from tracegrad.codegen.schedule.grouping import Group
from tracegrad.dtypes import DType
from tracegrad.ir import Node

GENERATORS = {"conv2d": conv2d, "conv2d_input_grad": conv2d_input_grad, "conv2d_weight_grad": conv2d_weight_grad}


@lowering("conv")
def lower_conv(group: Group, context: Context) -> list[Kernel]:
    result = group.anchor
    used: set[str] = set()
    dtype = computed_in(result.dtype)
    calls = [_callback(group, context, used) for _ in range(3)]
    first, second = (_operand(node, call, dtype) for node, call in zip(result.operands, calls, strict=False))
    store = _epilogue(result, group, context, calls[2])
    generate = GENERATORS[result.fn.name]
    kernels = generate(context.entry(group), window(result), dtype, first, second, store, context.target, result)
    helpers = frozenset().union(*(call.writer.helpers for call in calls))
    context.dtypes |= {dtype, *(n.dtype for n in (*group.reads, *group.sinks))}
    more = flops(group)
    return [replace(k, flops=k.flops + more if k is kernels[-1] else k.flops, helpers=k.helpers | helpers) for k in kernels]


def window(result: Node) -> Window:
    """The forward convolution that `result` is, or is a gradient of."""
    a, b = result.operands
    x, w = {"conv2d": (a, b), "conv2d_input_grad": (result, b), "conv2d_weight_grad": (a, result)}[result.fn.name]
    (n, c, height, width), (o, _, kh, kw), attrs = x.shape, w.shape, result.attrs
    (top, bottom), (left, right) = attrs["padding"]
    return Window(n, c, height, width, o, kh, kw, attrs["stride"], (top, left), attrs["dilation"], attrs["groups"], (bottom, right))


def _callback(group: Group, context: Context, used: set[str]) -> Callback:
    call = Callback(group, context, used)
    call.writer.reserved = is_reserved
    return call


def _operand(node: Node, call: Callback, dtype: DType) -> Array:
    """`node`, of four dimensions, as the generators read it."""
    if not node.aval.size:                                  # nothing is added up
        return Array(lambda emit, *at: "0", ())

    def load(emit: Emit, *at: str) -> str:
        return call.read(emit, node, ravel([call.position(i, n) for i, n in zip(at, node.shape, strict=True)], node.shape))

    names = ("n", "c", "y", "x")
    load(lambda line: None, *names)                         # finds the parameters
    return Array(load, call.params, _strided(node, call, dtype, names))


def _strided(node: Node, call: Callback, dtype: DType, names: tuple[str, ...]) -> Any:
    """(pointer, strides) if the one load that `call` has just seen is all there is to reading `node`."""
    pointers, found = call.params, call.ev.indices
    if len(pointers) != 1 or len(found) != 1 or len(call.statements) != 1:
        return None
    pointer, index = pointers[0], found[0]
    vars = [call.positions[at] for at in zip(names, node.shape, strict=True)]
    strides = [index.stride(v) if n > 1 else 0 for v, n in zip(vars, node.shape, strict=True)]
    if None in strides or pointer.ref.dtype != dtype or node.dtype != dtype:
        return None
    linear = ravel((), ())
    for v, s in zip(vars, strides, strict=True):
        linear = linear + v.index * (s or 0)
    if linear != index:
        return None
    whole = [s or 1 for s in strides]
    if node.shape[3] == 1:                                  # the stride of a dimension of one element is free
        whole[3] = 1
    return pointer.name, tuple(whole)


def _epilogue(result: Node, group: Group, context: Context, call: Callback) -> Store:
    """What becomes of the elements of `result`: every stored sink of the group."""
    stored = group.stored
    plain = stored == [result]

    def write(emit: Emit, n: str, c: str, y: str, x: str, value: str, width: int) -> None:
        pixel = lanes_from(x, result.shape[3], width, emit, call)
        call.begin(next(iter(pixel.vars), None) if width > 1 else None, width)
        names = set(call.writer.used)
        known: Expression = Verbatim(value, result.dtype, width)
        if not plain and not value.isidentifier():
            known = call.writer.declare(call.writer.base(result), known, result)
        call.ev.given = lambda node, _: known if node is result else None
        flat = ravel((*(call.position(i, size) for i, size in zip((n, c, y), result.shape, strict=False)), pixel), result.shape)
        context.store(call.ev, group, stored, flat)
        several = len(call.statements) > 1
        if several:
            emit("{")
        call.flush(emit)
        if several:
            emit("}")
            call.writer.rewind(names)

    write(lambda line: None, "n", "c", "y", "x", "value", 1)
    return Store(write, call.params)
