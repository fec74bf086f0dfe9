"""conv3d and conv_transpose3d: the taps along the depth become channels of one convolution in two dimensions."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import functional
from tracegrad.graph.primitive import cast
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.convolution.convolution import _convolution, _padding, _transposed, out_size, per_dim
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import plus, unrounded
from tracegrad.ops.primitives.windows import overlapped, windows
from tracegrad.support.dtypes import is_half

Array = Any      # a Node or a Tensor


def _volumes(name: str, x: Node, w: Any) -> tuple[Any, bool]:
    """(N, C, D, H, W), and whether the input came without its batch dimension."""
    if not isinstance(w, Node) or w.ndim != 5 or x.ndim not in (4, 5):
        raise ShapeError(f"{name}: takes an input (N, C, D, H, W) or (C, D, H, W) and a weight of 5 dimensions, got {x.shape} and "
                         f"{getattr(w, 'shape', type(w).__name__)}")
    return (mv.reshape(x, (1, *x.shape)), True) if x.ndim == 4 else (x, False)


def _with_bias(name: str, y: Any, bias: Node | None, alone: bool) -> Any:
    if bias is not None:
        if bias.shape != y.shape[1:2]:
            raise ShapeError(f"{name}: bias {bias.shape} must be ({y.shape[1]},), one number for each channel of the result")
        y = plus(y, mv.reshape(bias, (*bias.shape, 1, 1, 1)))
    return mv.reshape(y, y.shape[1:]) if alone else y


@functional
@on_nodes
def conv3d(input: Array, weight: Array, bias: Array = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Array:
    """input (N, C, D, H, W) or (C, D, H, W), weight (O, C / groups, kd, kh, kw), bias (O) -> (N, O, D', H', W').

    padding: numbers, "same" or "valid". dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> nn.functional.conv3d(tg.ones(1, 1, 2, 2, 2), tg.ones(1, 1, 2, 2, 2))
    """
    x, alone = _volumes("conv3d", input, weight)
    steps, gaps = per_dim("conv3d", "stride", stride, 3), per_dim("conv3d", "dilation", dilation, 3)
    edges = _padding("conv3d", padding, weight.shape[2:], steps, gaps)
    n, c, depth = x.shape[:3]
    o, per_group, kd = weight.shape[:3]
    if groups < 1 or c != per_group * groups or o % groups:
        raise ShapeError(f"conv3d: input {input.shape} and weight {weight.shape} do not fit with groups={groups}: the input "
                         f"has {c} channels, the weight takes {per_group} per group")
    count = out_size(depth, kd, steps[0], edges[0], gaps[0])
    if kd < 1 or count < 1:
        raise ShapeError(f"conv3d: a kernel of {kd} (dilation {gaps[0]}) is larger than the padded depth of {input.shape}; pad more")
    x = mv.pad(x, (0, 0, edges[0][0], 0, 0), (0, 0, edges[0][1], 0, 0))
    x = mv.narrow(windows(x, 2, kd, steps[0], gaps[0]), 2, 0, count)                    # (N, C, D', H, W, kd)
    x = mv.permute(x, (0, 2, 1, 5, 3, 4))
    flat = mv.reshape(x, (n * count, c * kd, *x.shape[4:]))
    (top, bottom), (left, right) = edges[1:]
    flat = mv.pad(flat, (0, 0, top, left), (0, 0, bottom, right))
    w = mv.reshape(weight, (o, per_group * kd, *weight.shape[3:]))
    y = _convolution("conv3d", 2, flat, w, None, steps[1:], 0, gaps[1:], groups)
    y = mv.permute(mv.reshape(y, (n, count, o, *y.shape[2:])), (0, 2, 1, 3, 4))
    return _with_bias("conv3d", y, bias, alone)


@functional
@on_nodes
def conv_transpose3d(input: Array, weight: Array, bias: Array = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
                     groups: int = 1, dilation: Any = 1) -> Array:
    """The adjoint of conv3d in its input: input (N, C, D, H, W), weight (C, O / groups, kd, kh, kw) -> (N, O, D', H', W').

    dtype: any but bool, promoted. Raises ShapeError where sizes do not fit.

    >>> nn.functional.conv_transpose3d(tg.ones(1, 1, 2, 2, 2), tg.ones(1, 1, 2, 2, 2))
    """
    name = "conv_transpose3d"
    x, alone = _volumes(name, input, weight)
    steps, gaps = per_dim(name, "stride", stride, 3), per_dim(name, "dilation", dilation, 3)
    edges, extra = per_dim(name, "padding", padding, 3, 0), per_dim(name, "output_padding", output_padding, 3, 0)
    n, c, depth = x.shape[:3]
    if groups < 1 or c != weight.shape[0] or c % groups:
        raise ShapeError(f"{name}: input {input.shape} and weight {weight.shape} do not fit with groups={groups}: the weight must be "
                         f"({c}, out / groups, kernel)")
    if any(e >= max(s, d) for e, s, d in zip(extra, steps, gaps, strict=True)):
        raise ArgumentError(f"{name}: output_padding {extra} must be smaller than stride {steps} or dilation {gaps}")
    _, per_group, kd = weight.shape[:3]
    flat = mv.reshape(mv.permute(x, (0, 2, 1, 3, 4)), (n * depth, c, *x.shape[3:]))
    w = mv.reshape(weight, (c, per_group * kd, *weight.shape[3:]))
    y = _transposed(name, 2, flat, w, None, steps[1:], edges[1:], extra[1:], groups, gaps[1:])
    dtype = y.dtype
    if is_half(dtype):                                                                  # rounded once, when the taps are added up
        y = unrounded(y)
    y = mv.reshape(y, (n, depth, groups * per_group, kd, *y.shape[2:]))
    y = mv.permute(y, (0, 2, 1, 4, 5, 3))                                               # (N, O, D, H', W', kd)
    whole = (depth - 1) * steps[0] + gaps[0] * (kd - 1) + 1
    size = whole - 2 * edges[0] + extra[0]
    if size < 1:
        raise ShapeError(f"{name}: padding {edges} leaves nothing of the depth ({size})")
    y = overlapped(y, 2, whole, steps[0], gaps[0])
    missing = max(0, edges[0] + size - whole)
    y = mv.narrow(mv.pad(y, (0,) * 5, (0, 0, missing, 0, 0)), 2, edges[0], size)
    y = _with_bias(name, y, bias, alone)
    return cast(y, dtype) if is_half(dtype) and (bias is None or bias.dtype == dtype) else y
