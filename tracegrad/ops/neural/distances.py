"""Distances between rows, and bilinear forms: pairwise_distance, cdist, pdist, bilinear."""

from __future__ import annotations

from math import prod
from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operation_families import common_dtype
from tracegrad.graph.operators import Operators, functional, public
from tracegrad.graph.primitive import holds
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays.reductions import norm, sum_
from tracegrad.ops.arrays.shaping.reshaping import unsqueeze
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.reduction import total

Array = Any      # a Node or a Tensor


@public("pairwise_distance", method=False, functional=True)
@on_nodes
@rounded_once
def pairwise_distance(x1: Array, x2: Array, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Array:
    """The p-norm of x1 - x2 + eps along the last dimension.
    dtype: any but bool (DTypeError); of integers the default float one. The result is real.

    >>> nn.functional.pairwise_distance(tg.zeros(2, 4), tg.ones(2, 4))
    Tensor([2., 2.], device='cpu')
    """
    return norm(x1 - x2 + eps, p, -1, keepdim)


@public("cdist", method=False)
@on_nodes
@rounded_once
def cdist(x1: Array, x2: Array, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Array:
    """The p-norm distances of all rows of x1 (*, P, M) to all of x2 (*, R, M): (*, P, R). The gradient between equal rows is 0.

    compute_mode: torch's, which chooses how Euclidean distances are computed; here always by differences.
    dtype: any; of integers and bools the default float one. The result is real. Raises ShapeError where sizes do not fit.

    >>> tg.cdist(tg.zeros(1, 2), tg.tensor([[3.0, 4.0], [0.0, 1.0]]))
    Tensor([[5., 1.]], device='cpu')
    """
    if min(x1.ndim, x2.ndim) < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: takes (*, P, M) and (*, R, M), got {x1.shape} and {x2.shape}")
    if holds(p < 0):
        raise ArgumentError(f"cdist: p must not be negative, got {p}")
    a, b = common_dtype([x1, x2], True, "cdist")
    return norm(unsqueeze(a, -2) - unsqueeze(b, -3), p, -1)


@public("pdist", method=False, functional=True)
def pdist(input: Any, p: float = 2.0) -> Array:
    """The p-norm distances of each two rows of a matrix (N, M), in the order of the upper triangle: (N (N - 1) / 2).
    dtype: any but bool; of integers the default float one. The result is real. Raises ShapeError for other shapes.

    >>> nn.functional.pdist(tg.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    Tensor([5.    , 1.    , 4.2426], device='cpu')
    """
    if not isinstance(input, Operators) or input.ndim != 2:
        raise ShapeError(f"pdist: takes a matrix, got {getattr(input, 'shape', type(input).__name__)}")
    if not isinstance(p, Operators) and p < 0:
        raise ArgumentError(f"pdist: p must not be negative, got {p}")
    n = input.shape[0]
    rows = [i for i in range(n) for _ in range(i + 1, n)]
    columns = [j for i in range(n) for j in range(i + 1, n)]
    x: Any = input
    return norm(x[rows] - x[columns], p, -1) if rows else sum_(x[:0], -1)


@functional
@on_nodes
@rounded_once
def bilinear(input1: Array, input2: Array, weight: Array, bias: Array = None) -> Array:
    """y[o] = input1 weight[o] input2 (+ bias[o]): (*, A), (*, B), weight (O, A, B), bias (O) -> (*, O).
    Any dtype but bool. Raises ShapeError where sizes do not fit.

    >>> nn.functional.bilinear(tg.ones(4, 2), tg.ones(4, 3), tg.ones(5, 2, 3)).shape
    (4, 5)
    """
    if weight.ndim != 3 or input1.shape[:-1] != input2.shape[:-1] or (input1.shape[-1], input2.shape[-1]) != weight.shape[1:]:
        raise ShapeError(f"bilinear: takes (*, A), (*, B) and a weight (O, A, B), got {input1.shape}, {input2.shape} and {weight.shape}")
    lead = input1.shape[:-1]
    o, a, b = weight.shape
    rows = mv.reshape(input1, (prod(lead), a))
    half = mv.reshape(matmul(rows, mv.reshape(mv.permute(weight, (1, 0, 2)), (a, o * b))), (prod(lead), o, b))
    y = mv.reshape(total(half * mv.reshape(input2, (prod(lead), 1, b)), (2,)), (*lead, o))
    return y if bias is None else y + bias
