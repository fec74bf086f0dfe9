"""Losses that compare distances or scores with margins (tracegrad.nn.functional): of pairs, triplets and labels, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import functional
from tracegrad.graph.primitive import cast, holds, iota
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import gather
from tracegrad.ops.arrays.pointwise import clamp, eq, ge, le, lt, minimum, ne, sqrt
from tracegrad.ops.arrays.reductions import mean, sum_
from tracegrad.ops.arrays.shaping.reshaping import unsqueeze
from tracegrad.ops.neural.activations import logsigmoid
from tracegrad.ops.neural.distances import pairwise_distance
from tracegrad.ops.neural.losses import _reduced, _same_shape
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


# ------------------------------------------------------------------------------------------------------- pairs and triplets


@functional
@on_nodes
@rounded_once
def margin_ranking_loss(input1: Array, input2: Array, target: Array, margin: float = 0, reduction: str = "mean") -> Array:
    """max(0, -target (input1 - input2) + margin), target 1 or -1. The shapes broadcast (else a ShapeError). dtype: float.

    >>> nn.functional.margin_ranking_loss(tg.ones(2), tg.zeros(2), tg.ones(2))
    """
    if not input1.ndim == input2.ndim == target.ndim:
        raise ShapeError(f"margin_ranking_loss: input1 {input1.shape}, input2 {input2.shape} and target {target.shape} must have equally "
                         "many dimensions")
    return _reduced("margin_ranking_loss", clamp(-target * (input1 - input2) + margin, min=0.0), reduction)


def _positive(x: Any) -> Any:
    """max(x, 0), without a gradient at 0: torch's losses of classes; those of pairs have one there, by clamp."""
    return where(le(x, 0.0), 0.0, x)


@functional
@on_nodes
@rounded_once
def hinge_embedding_loss(input: Array, target: Array, margin: float = 1.0, reduction: str = "mean") -> Array:
    """input where target is 1, max(0, margin - input) where it is -1. The shapes broadcast (else a ShapeError). dtype: float.

    >>> nn.functional.hinge_embedding_loss(tg.ones(2), tg.tensor([1.0, -1.0]))
    """
    broadcast_shapes("hinge_embedding_loss", [input.shape, target.shape])
    loss = where(ne(target, 1), clamp(margin - input, min=0.0), 0.0) + where(ne(target, -1), input, 0.0)
    return _reduced("hinge_embedding_loss", loss, reduction)


@functional
@on_nodes
@rounded_once
def cosine_embedding_loss(input1: Array, input2: Array, target: Array, margin: float = 0, reduction: str = "mean") -> Array:
    """1 - cos(input1, input2) where target is 1, max(0, cos - margin) where it is -1: (N, D) with (N), or (D) with (). Sizes of 1 repeat.

    dtype: float. Raises ShapeError for other shapes.

    >>> nn.functional.cosine_embedding_loss(tg.ones(2, 3), tg.ones(2, 3), tg.ones(2))
    """
    shapes = [input1.shape, input2.shape, (*target.shape, 1)]
    if not all(len(s) == target.ndim + 1 <= 2 for s in shapes) or any(len({*sizes} - {1}) > 1 for sizes in zip(*shapes, strict=True)):
        raise ShapeError(f"cosine_embedding_loss: takes (N, D), (N, D) and (N), or (D), (D) and (), got {input1.shape}, {input2.shape} and "
                         f"{target.shape}")
    tiny = 1e-12
    product = sum_(input1 * input2, -1)
    cosine = product / sqrt((sum_(input1 * input1, -1) + tiny) * (sum_(input2 * input2, -1) + tiny))
    loss = where(eq(target, 1), 1.0 - cosine, 0.0) + where(eq(target, -1), clamp(cosine - margin, min=0.0), 0.0)
    return _reduced("cosine_embedding_loss", loss, reduction)


@functional
@on_nodes
@rounded_once
def triplet_margin_loss(anchor: Array, positive: Array, negative: Array, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
                        swap: bool = False, reduction: str = "mean") -> Array:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d the p-norm distance of rows (Schroff et al. 2015).

    swap: the negative's distance is the smaller one of those to anchor and positive (Balntas et al. 2016).
    dtype: float. Raises ShapeError where shapes do not broadcast.

    >>> nn.functional.triplet_margin_loss(tg.zeros(2, 3), tg.ones(2, 3), tg.ones(2, 3))
    """
    if holds(margin <= 0):
        raise ArgumentError(f"triplet_margin_loss: margin must be positive, got {margin}")
    def distance(a: Any, b: Any) -> Any:
        return pairwise_distance(a, b, p, eps)

    return _triplet("triplet_margin_loss", distance, anchor, positive, negative, margin, swap, reduction)


def _triplet(name: str, distance: Callable[..., Any], a: Any, p: Any, n: Any, margin: float, swap: bool, reduction: str) -> Any:
    if not a.ndim == p.ndim == n.ndim:
        raise ShapeError(f"{name}: anchor {a.shape}, positive {p.shape} and negative {n.shape} must have as many dimensions")
    far = distance(a, n)
    if swap:
        far = minimum(far, distance(p, n))
    return _summary(distance(a, p) - far + margin, name, reduction)


@on_nodes
def _summary(loss: Any, name: str, reduction: str) -> Any:
    return _reduced(name, clamp(loss, min=0.0), reduction)


@functional
def triplet_margin_with_distance_loss(anchor: Array, positive: Array, negative: Array, *,
                                      distance_function: Callable[..., Any] | None = None, margin: float = 1.0, swap: bool = False,
                                      reduction: str = "mean") -> Array:
    """triplet_margin_loss with a distance of your own (pairwise_distance if None).

    Shapes and dtypes are the distance's; it raises what that raises.

    >>> nn.functional.triplet_margin_with_distance_loss(tg.zeros(2, 3), tg.ones(2, 3), tg.ones(2, 3))
    """
    if holds(margin <= 0):
        raise ArgumentError(f"triplet_margin_with_distance_loss: margin must be positive, got {margin}")
    distance = distance_function or pairwise_distance
    return _triplet("triplet_margin_with_distance_loss", distance, anchor, positive, negative, margin, swap, reduction)


# ------------------------------------------------------------------------------------------------------- labels and margins


@functional
@on_nodes
@rounded_once
def soft_margin_loss(input: Array, target: Array, reduction: str = "mean") -> Array:
    """log(1 + exp(-target input)), target 1 or -1. dtype: float. Raises ShapeError unless both have one shape.

    >>> nn.functional.soft_margin_loss(tg.ones(2), tg.tensor([1.0, -1.0]))
    """
    _same_shape("soft_margin_loss", input, target)
    return _reduced("soft_margin_loss", -logsigmoid(target * input), reduction)


@functional
@on_nodes
@rounded_once
def multilabel_soft_margin_loss(input: Array, target: Array, weight: Array = None, reduction: str = "mean") -> Array:
    """The mean over the last dimension (classes) of binary cross-entropies of logits with targets 0 or 1, times weight (C).

    dtype: float. Raises ShapeError unless both have one shape.

    >>> nn.functional.multilabel_soft_margin_loss(tg.ones(2, 3), tg.ones(2, 3))
    """
    _same_shape("multilabel_soft_margin_loss", input, target)
    target = cast(target, input.dtype) if target.dtype.kind == "b" else target
    loss = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    return _reduced("multilabel_soft_margin_loss", mean(loss if weight is None else loss * weight, -1), reduction)


def _class_rows(name: str, input: Node, target: Node, of_classes: bool) -> tuple[Node, Node]:
    """Scores (N, C) and targets (N) or (N, C), from those or one row of them."""
    if input.ndim > 2 or dtype_kind(input.dtype) != "f":
        raise ShapeError(f"{name}: takes float scores (N, C) or (C), got {input.aval}")
    if target.dtype.kind not in "iu":
        raise DTypeError(f"{name}: target must hold class numbers (int64), got {target.dtype}; use target.long()")
    expected = input.shape if of_classes else input.shape[:-1]
    if target.shape != expected and not (input.ndim < 2 and target.shape in ((), (1,)) and (not of_classes or input.aval.size == 1)):
        raise ShapeError(f"{name}: target {target.shape} must have the shape {expected} for scores {input.shape}")
    n, c = input.shape if input.ndim == 2 else (1, input.aval.size)
    return mv.reshape(input, (n, c)), mv.reshape(target, (n, c) if of_classes else (n,))


@functional
@on_nodes
@rounded_once
def multi_margin_loss(input: Array, target: Array, p: int = 1, margin: float = 1.0, weight: Array = None, reduction: str = "mean") -> Array:
    """The sum over the other classes of max(0, margin - x[target] + x[i])^p, over their number C, times weight[target]. p: 1 or 2.

    input: floats (N, C) or (C); target: int64 (N) or (), else DTypeError. Raises ArgumentError for another p.

    >>> nn.functional.multi_margin_loss(tg.ones(2, 3), tg.tensor([0, 1]))
    """
    if p not in (1, 2):
        raise ArgumentError(f"multi_margin_loss: p must be 1 or 2, got {p}")
    x, classes = _class_rows("multi_margin_loss", input, target, False)
    n, c = x.shape
    if weight is not None and weight.shape != (c,):
        raise ShapeError(f"multi_margin_loss: weight {weight.shape} must be ({c},), one number for each class")
    classes = in_range(classes, c, "multi_margin_loss", "target", f"{c} classes")
    hit = eq(iota((n, c), 1, classes.dtype), unsqueeze(classes, 1))
    own = sum_(where(hit, x, 0.0), 1, True)
    terms = _positive(margin - own + x)
    terms = where(hit, 0.0, terms * terms if p == 2 else terms)
    loss = sum_(terms, 1) * (1.0 / c)
    if weight is not None:
        loss = loss * sum_(where(hit, weight, 0.0), 1)
    return _reduced("multi_margin_loss", mv.reshape(loss, input.shape[:-1]), reduction)


@functional
@on_nodes
@rounded_once
def multilabel_margin_loss(input: Array, target: Array, reduction: str = "mean") -> Array:
    """The sum of max(0, 1 - x[t] + x[i]) over a sample's labels t and all other classes i, over the number of classes.

    target: labels, up to the first -1, in rows of the scores' shape (N, C) or (C). input: float; target: int64, else DTypeError.

    >>> nn.functional.multilabel_margin_loss(tg.ones(3), tg.tensor([1, -1, 0]))
    """
    x, labels = _class_rows("multilabel_margin_loss", input, target, True)
    n, c = x.shape
    ended = ge((cast(lt(labels, 0), dtypes.int64)).cumsum(1), 1)
    labels = in_range(where(ended, 0, labels), c, "multilabel_margin_loss", "target", f"{c} classes")
    classes = unsqueeze(iota((n, c), 1, labels.dtype), 1)
    named = eq(classes, unsqueeze(labels, 2)) & unsqueeze(ended.logical_not(), 2)           # (N, place, class)
    is_label = unsqueeze(named.any(1), 1)
    own = unsqueeze(gather(x, 1, labels), 2)
    terms = _positive(1.0 - own + unsqueeze(x, 1))
    loss = sum_(where(is_label | unsqueeze(ended, 2), 0.0, terms), (1, 2)) * (1.0 / c)
    return _reduced("multilabel_margin_loss", mv.reshape(loss, input.shape[:-1]), reduction)
