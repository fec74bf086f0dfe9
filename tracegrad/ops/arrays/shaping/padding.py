"""Elements around a tensor: pad, by a constant or by the tensor's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import functional
from tracegrad.graph.primitive import cast, scalar
from tracegrad.ops.arguments import on_nodes, sizes_of
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes

Array = Any      # a Node or a Tensor


@functional
@on_nodes
def pad(input: Array, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Array:
    """input padded by pad = (low, high of the last dimension, low, high of the last but one, ...); negative numbers cut off.

    mode: "constant" (filled with `value`, 0), "reflect" (mirrored without the edge), "replicate" (the edge repeated), "circular".
    Any dtype. Raises ArgumentError for other modes.

    >>> nn.functional.pad(tg.tensor([1, 2, 3]), (1, 2))
    Tensor([0, 1, 2, 3, 0, 0], device='cpu')
    >>> nn.functional.pad(tg.tensor([1, 2, 3]), (2, 0), mode="reflect")
    Tensor([3, 2, 1, 2, 3], device='cpu')
    """
    widths = sizes_of("pad", (pad,))
    if len(widths) % 2 or len(widths) > 2 * input.ndim:
        raise ArgumentError(f"pad: pad must hold a pair for each of the last dimensions, at most {2 * input.ndim} numbers for "
                            f"{input.shape}, got {widths}")
    n = input.ndim
    low, high = [0] * n, [0] * n
    for i in range(len(widths) // 2):
        low[n - 1 - i], high[n - 1 - i] = widths[2 * i], widths[2 * i + 1]
    if mode == "constant":
        x = input
        if any(a < 0 for a in low) or any(b < 0 for b in high):
            start = tuple(max(0, -a) for a in low)
            stop = tuple(s - max(0, -b) for s, b in zip(x.shape, high, strict=True))
            if any(a > b for a, b in zip(start, stop, strict=True)):
                raise ShapeError(f"pad: {widths} cuts off more than {input.shape} has")
            x = mv.slice_(x, start, stop, (1,) * n)
        before, after = tuple(max(0, a) for a in low), tuple(max(0, b) for b in high)
        if isinstance(value, Node):                 # a run-time number: padded with zeros, which it then takes the place of
            inside = mv.pad(full_like_shape(x.shape, True, dtypes.bool_), before, after, None, False)
            return where(inside, mv.pad(x, before, after), cast(value, x.dtype))
        return mv.pad(x, before, after, None, scalar("pad", 0 if value is None else value, x.dtype).attrs["value"])
    if value:
        raise ArgumentError(f"pad: value is for mode 'constant', got {value} with mode {mode!r}")
    if mode not in ("reflect", "replicate", "circular"):
        raise ArgumentError(f"pad: mode must be 'constant', 'reflect', 'replicate' or 'circular', got {mode!r}")
    x = input
    for d in range(n):
        if low[d] or high[d]:
            x = _pad_from_itself(x, d, low[d], high[d], mode)
    return x


def _pad_from_itself(x: Node, d: int, low: int, high: int, mode: str) -> Node:
    """x padded along d with its own elements. Negative widths cut off: before "circular" goes round, after the other modes have padded."""
    n = x.shape[d]
    left, right = max(low, 0), max(high, 0)
    limit = {"reflect": n - 1, "replicate": max(left, right) if n else 0, "circular": n}[mode]
    if max(left, right) > limit:
        raise ShapeError(f"pad: mode {mode!r} takes at most {limit} in dimension {d} of {x.shape}, got {low} and {high}")
    if n + low + high < (mode != "circular") or n + min(low, 0) + min(high, 0) < 0:
        raise ShapeError(f"pad: {low} and {high} cut off all of dimension {d} of {x.shape}")
    if mode == "replicate":
        def edge(at: int, count: int) -> Node:
            return mv.expand(mv.narrow(x, d, at, 1), (*x.shape[:d], count, *x.shape[d + 1:]))

        parts = [edge(0, left), x, edge(n - 1, right)]
    elif mode == "reflect":
        parts = [mv.flip(mv.narrow(x, d, 1, left), (d,)), x, mv.flip(mv.narrow(x, d, n - 1 - right, right), (d,))]
    else:
        x = mv.narrow(x, d, max(0, -low), n + min(low, 0) + min(high, 0))
        m = x.shape[d]
        if m == 0 and (left or right):
            raise ShapeError(f"pad: {low} and {high} cut off all that mode 'circular' could repeat in dimension {d}, which had {n}")
        before, after = divmod(left, m or 1), divmod(right, m or 1)
        parts = [mv.narrow(x, d, m - before[1], before[1]), *[x] * (before[0] + 1 + after[0]), mv.narrow(x, d, 0, after[1])]
        low, high = left, right
        n = m
    padded = mv.concat([p for p in parts if p.shape[d]] or [x], d)
    return mv.narrow(padded, d, max(0, -low), n + low + high)
