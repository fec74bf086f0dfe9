"""Sorting: the primitive Argsort, and sort, argsort, topk made of it. Values are gathered, so their derivative is right."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import REGISTRY, Primitive, bind, const
from tracegrad.ops.arguments import integer, on_nodes, one_dim
from tracegrad.ops.arrays.indexing import gather
from tracegrad.ops.arrays.pointwise import detach, eq, minimum
from tracegrad.ops.arrays.reductions import ValuesIndices, amax, amin, sum_
from tracegrad.ops.arrays.shaping.reordering import transpose
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


class Argsort(Primitive):
    """The indices (int64) that sort the last dimension. Stable; NaN counts as the largest (last, or first if descending), as in torch."""
    name, family, differentiable, expensive, cost = "argsort", "sort", False, True, 75.0
    cases = [(((5,),), dict(descending=False)), (((2, 7),), dict(descending=True)), (((3, 0),), dict(descending=False)),
             (((2, 1),), dict(descending=True))]

    def aval(self, x, *, descending):
        refuse_complex(self.name, x)
        return Aval(x.shape, dtypes.int64)

    def interval(self, node, *operands): return 0, max(0, node.shape[-1] - 1)

    def numpy(self, x, *, descending):
        return _sorting(x, descending, x.shape[-1])


def _sorting(x: Any, descending: bool, k: int) -> Any:
    """The first k indices of those that sort the last dimension of an array: stable, and descending stable from the other end."""
    if not descending:
        return x.argsort(-1, "stable")[..., :k]
    if k == 1 and x.dtype.isbuiltin == 1 and x.dtype.char not in "FD":               # the first of the largest, or of the NaNs
        return np.asarray(x.argmax(-1))[..., None]
    n = x.shape[-1]
    return n - 1 - x[..., ::-1].argsort(-1, "stable")[..., n - k:][..., ::-1]


class Topk(Primitive):
    """The first k of `argsort` (int64): the best k of the last dimension in order, without sorting the rest."""
    name, family, differentiable, expensive, cost = "topk", "selection", False, True, 75.0
    cases = [(((5,),), dict(k=2, descending=True)), (((2, 7),), dict(k=7, descending=False)), (((0, 4),), dict(k=1, descending=True))]

    def aval(self, x, *, k, descending):
        refuse_complex(self.name, x)
        return Aval((*x.shape[:-1], k), dtypes.int64)

    def interval(self, node, *operands): return (0, max(0, node.operands[0].shape[-1] - 1)) if operands else None
    def numpy(self, x, *, k, descending): return _sorting(x, descending, k)


SELECTED = 512      # up to so many are selected in one pass, from a heap in private memory


def _order(x: Node, d: int, descending: bool) -> Any:
    if not x.ndim:
        refuse_complex("sort", x)
        return const(0, dtypes.int64)
    last = transpose(x, d, -1)
    return transpose(bind(REGISTRY["argsort"], (last,), {"descending": bool(descending)}), d, -1)


@public("argsort")
@on_nodes
def argsort(input: Array, dim: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The indices (int64) that sort input along dim; always stable, NaN the largest.

    Raises DTypeError for complex numbers, IndexOutOfRange for other dims.

    >>> tg.argsort(tg.tensor([3.0, 1.0, 2.0]))
    """
    return _order(input, one_dim("argsort", dim, input.ndim), descending)


@public("sort")
@on_nodes
def sort(input: Array, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """(values, indices) of input sorted along dim; always stable, NaN the largest.

    dtype: any real one, which the result has. Raises DTypeError for complex numbers, IndexOutOfRange for other dims.

    >>> tg.sort(tg.tensor([3.0, 1.0, 2.0]))
    """
    d = one_dim("sort", dim, input.ndim)
    order = _order(input, d, descending)
    return ValuesIndices(gather(input, d, order) if input.ndim else input, order)


@public("topk")
@on_nodes
def topk(input: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """(values, indices) of the k largest (or smallest) along dim, always in order; of equals the first come first.

    dtype: any real one, which the result has. Raises DTypeError for complex numbers, IndexOutOfRange for other dims.

    >>> tg.topk(tg.tensor([3.0, 1.0, 2.0]), 2)
    """
    d = one_dim("topk", dim, input.ndim)
    k = integer("topk", "k", k)
    n = input.shape[d] if input.ndim else 1
    if not 0 <= k <= n:
        raise ArgumentError(f"topk: k must be from 0 to {n}, the size of dimension {d} of {input.shape}, got {k}")
    x = input if input.ndim else mv.reshape(input, (1,))
    if 0 < k <= min(SELECTED, n // 2):
        selected = bind(REGISTRY["topk"], (transpose(x, d, -1),), {"k": k, "descending": bool(largest)})
        order: Any = transpose(selected, d, -1)
    else:
        order = mv.narrow(_order(x, d, largest), d, 0, k)
    values = gather(x, d, order)
    return ValuesIndices(values, order) if input.ndim else ValuesIndices(mv.reshape(values, ()), mv.reshape(order, ()))


def _median_place(x: Node, d: int, n: int) -> Any:
    """Where the median along d is; where there are NaNs (they are sorted last), the first of them."""
    order = _order(x, d, False)
    middle = mv.narrow(order, d, (n - 1) // 2, 1)
    if dtype_kind(x.dtype) != "f":
        return middle
    numbers = sum_(eq(x, x), d, True)
    first = gather(order, d, minimum(numbers, n - 1))
    return where(eq(numbers, n), middle, first)


def shared(x: Node, value: Any) -> Any:
    """`value` of the vector x; all elements that are equal to it, or NaNs, share the gradient, as torch has it for medians of all."""
    if dtype_kind(x.dtype) != "f" or not x.ndim:
        return value
    hit = eq(x, detach(value))
    of_hits = where(value > 0.0, amax(where(hit, x, -float("inf"))), amin(where(hit, x, float("inf"))))     # others never equal it
    return where(eq(value, value), of_hits, bind(REGISTRY["max_of_all"], (x,), {"dim": (0,)}) if x.aval.size else value)


@public("median")
@on_nodes
def median(input: Array, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the middle elements: of all (NaN of none), or (values, indices) along dim. NaN if any is, as in torch.

    dtype: any real one, which the result has. Raises DTypeError for complex numbers.

    >>> tg.median(tg.tensor([3.0, 1.0, 2.0]))
    """
    refuse_complex("median", input)
    x = mv.reshape(input, (input.aval.size,)) if dim is None else input
    d = one_dim("median", 0 if dim is None else dim, x.ndim)
    n = x.shape[d] if x.ndim else 1
    if not n and dim is None and dtype_kind(x.dtype) == "f":
        return sum_(x) * float("nan")
    if not n:
        raise ArgumentError(f"median: dimension {d} of {x.shape} is empty: no median")
    order = _median_place(x, d, n) if x.ndim else const(0, dtypes.int64)
    values = gather(x, d, order) if x.ndim else x
    if dim is None:
        return shared(x, mv.reshape(values, ()))
    shape = x.shape[:d] + x.shape[d + 1:]
    return ValuesIndices(values, order) if keepdim or not x.ndim else ValuesIndices(mv.reshape(values, shape), mv.reshape(order, shape))
