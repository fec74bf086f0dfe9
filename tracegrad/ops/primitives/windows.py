"""Sliding windows: the movement primitive Unfold. `windows` is what pools, patches and local norms (`ops/convolution/pooling.py`, ...) are
made of.

Windows that do not overlap are a reshape, so that a reduction of them has an elementwise derivative. Overlapping ones are Unfold,
whose adjoint is a sum of padded slices, one for each place in the window: no scatter in either.
"""

from __future__ import annotations

from typing import Any

from numpy.lib.stride_tricks import as_strided

from tracegrad.errors import ArgumentError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import Movement
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import REGISTRY, bind, cast, const
from tracegrad.ops.arguments import integer, on_nodes, one_dim
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import unrounded
from tracegrad.support.dtypes import is_half

Array = Any      # a Node or a Tensor


class Unfold(Movement):
    """The windows of `size` elements, `gap` apart, that start every `step` along `dim`: their number at `dim`, their elements last."""
    name = "unfold"
    cases = [(((7,),), dict(dim=0, size=3, step=2, gap=1)), (((2, 6, 3),), dict(dim=1, size=2, step=1, gap=2))]

    def aval(self, x, *, dim, size, step, gap):
        count = (x.shape[dim] - gap * (size - 1) - 1) // step + 1
        return Aval((*x.shape[:dim], max(0, count), *x.shape[dim + 1:], size), x.dtype)

    def numpy(self, x, *, dim, size, step, gap):
        shape = self.aval(Aval(x.shape, x.dtype), dim=dim, size=size, step=step, gap=gap).shape
        stride = x.strides[dim]
        return as_strided(x, shape, (*x.strides[:dim], stride * step, *x.strides[dim + 1:], stride * gap), writeable=False)

    def vjp(self, ct, y, x, *, dim, size, step, gap):
        half = is_half(ct.dtype)                    # rounded once, when the places that windows share are added up
        whole = overlapped(unrounded(ct) if half else ct, dim, x.shape[dim], step, gap)
        return (cast(whole, ct.dtype) if half else whole,)

    def locate(self, index, x, *, dim, size, step, gap):
        return [(0, (*index[:dim], index[dim] * step + index[-1] * gap, *index[dim + 1:-1]), [])]


def overlapped(parts: Node, dim: int, n: int, step: int, gap: int = 1) -> Any:
    """The adjoint of `windows`: the elements of the windows (last dimension) added to the n places along `dim` that they came from."""
    count, out = parts.shape[dim], None
    if count == 0:
        return mv.expand(const(0, parts.dtype), (*parts.shape[:dim], n, *parts.shape[dim + 1:-1]))
    if gap == 1 and (parts.shape[-1] == step or (step > 1 and parts.shape[-1] > 8)):
        return _overlapped_blocks(parts, dim, n, step)
    zeros = [0] * (parts.ndim - 1)
    for k in range(parts.shape[-1]):
        part = mv.reshape(mv.narrow(parts, parts.ndim - 1, k, 1), parts.shape[:-1])
        low, high, interior = list(zeros), list(zeros), list(zeros)
        low[dim], high[dim], interior[dim] = k * gap, n - k * gap - (count - 1) * step - 1, step - 1
        part = mv.pad(part, tuple(low), tuple(high), tuple(interior), 0)
        out = part if out is None else out + part
    return out


def _overlapped_blocks(parts: Node, dim: int, n: int, step: int) -> Any:
    """`overlapped` of long windows, and of those side by side: block k (of `step` elements) of window i belongs to block i + k.

    So there are size / step terms.
    """
    size, d = parts.shape[-1], parts.ndim
    terms, count = -(-size // step), parts.shape[dim]
    x = mv.pad(parts, (0,) * d, (*(0,) * (d - 1), terms * step - size))
    x = mv.permute(x, (*range(dim + 1), d - 1, *range(dim + 1, d - 1)))                 # (..., windows, elements, ...)
    x = mv.reshape(x, (*x.shape[:dim + 1], terms, step, *x.shape[dim + 2:]))
    out: Any = None
    for k in range(terms):
        part = mv.narrow(x, dim + 1, k, 1)
        part = mv.reshape(part, (*x.shape[:dim + 1], *x.shape[dim + 2:]))               # (..., windows, step, ...)
        part = mv.pad(part, tuple(k if e == dim else 0 for e in range(d)), tuple(terms - 1 - k if e == dim else 0 for e in range(d)))
        out = part if out is None else out + part
    found = (count + terms - 1) * step
    out = mv.reshape(out, (*out.shape[:dim], found, *out.shape[dim + 2:]))
    if found < n:
        return mv.pad(out, (0,) * (d - 1), tuple(n - found if e == dim else 0 for e in range(d - 1)))
    return mv.narrow(out, dim, 0, n)


def windows(x: Node, dim: int, size: int, step: int, gap: int = 1) -> Node:
    """x with its windows along `dim` (their elements last); a reshape if they do not overlap and have no gaps."""
    n = x.shape[dim]
    count = max(0, (n - gap * (size - 1) - 1) // step + 1)
    if size == step and gap == 1:
        x = mv.narrow(x, dim, 0, count * size)
        x = mv.reshape(x, (*x.shape[:dim], count, size, *x.shape[dim + 1:]))
        return mv.permute(x, (*range(dim + 1), *range(dim + 2, x.ndim), dim + 1))
    return bind(REGISTRY["unfold"], (x,), {"dim": dim, "size": size, "step": step, "gap": gap})


@public("unfold")
@on_nodes
def unfold(input: Array, dimension: int, size: int, step: int) -> Array:
    """The windows of `size` elements that start every `step` along the dimension, their elements in a new last dimension.

    Any dtype. Raises ArgumentError for a size above the dimension's.

    >>> tg.ones(4).unfold(0, 2, 1)
    """
    d = one_dim("unfold", dimension, input.ndim)
    size, step = integer("unfold", "size", size), integer("unfold", "step", step)
    x = input if input.ndim else mv.reshape(input, (1,))
    if size < 0 or step < 1 or size > x.shape[d]:
        raise ArgumentError(f"unfold: size {size} and step {step} must be positive, and size at most {x.shape[d]} for {input.shape}")
    if size == 0:
        return mv.expand(mv.narrow(x, d, 0, 0), (*x.shape, 0))
    return windows(x, d, size, step) if input.ndim else x       # of a 0-d tensor: one window of one element
