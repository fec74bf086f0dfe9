"""The rest of torch's losses (tracegrad.nn.functional): of pairs and triplets, margins, several labels, distributions, and ctc_loss."""

from __future__ import annotations

from collections.abc import Callable
from math import log as number_log
from math import pi
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.families import broadcast_shapes, refuse_complex
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, functional
from tracegrad.graph.primitive import cast, const, holds, iota
from tracegrad.ops.arguments import on_nodes, rounded_once
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import gather
from tracegrad.ops.arrays.pointwise import clamp, detach, eq, ge, gt, le, lt, maximum, minimum, ne, sqrt
from tracegrad.ops.arrays.reductions import cumsum, logsumexp, mean, sum_
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape, unsqueeze
from tracegrad.ops.neural.activations import logsigmoid
from tracegrad.ops.neural.distances import pairwise_distance
from tracegrad.ops.neural.losses import _reduced, _same_shape
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.float_functions import exp, log
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


# ------------------------------------------------------------------------------------------------------------ distributions


@functional
@on_nodes
@rounded_once
def poisson_nll_loss(input: Array, target: Array, log_input: bool = True, full: bool = False, eps: float = 1e-8,
                     reduction: str = "mean") -> Array:
    """exp(x) - t x (log_input), or x - t log(x + eps): minus the log-likelihood of counts t. full: with Stirling's term for t > 1.

    dtype: real; the result is float. Raises ShapeError unless both have one shape.

    >>> nn.functional.poisson_nll_loss(tg.ones(2), tg.ones(2))
    """
    refuse_complex("poisson_nll_loss", input, target)
    _same_shape("poisson_nll_loss", input, target)
    loss = exp(input) - target * input if log_input else input - target * log(input + eps)
    if full:
        large = gt(target, 1)
        t = where(large, target, 1) * const(1, input.dtype)
        loss = loss + where(large, t * log(t) - t + log(t * (2.0 * pi)) * 0.5, 0.0)
    return _reduced("poisson_nll_loss", loss, reduction)


@functional
@on_nodes
@rounded_once
def gaussian_nll_loss(input: Array, target: Array, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Array:
    """(log(var) + (input - target)² / var) / 2, var at least eps (through which its gradient passes). full: + log(2 pi) / 2.

    dtype: float. Raises ArgumentError for a number var < 0, ShapeError where shapes do not broadcast.

    >>> nn.functional.gaussian_nll_loss(tg.ones(2), tg.zeros(2), tg.ones(2))
    """
    if isinstance(var, Node):
        if var.shape != input.shape:
            if var.shape == input.shape[:-1]:
                var = unsqueeze(var, -1)
            elif var.ndim != input.ndim or [v for v, n in zip(var.shape, input.shape, strict=True) if v != n] != [1]:
                raise ShapeError(f"gaussian_nll_loss: var {var.shape} must be {input.shape}, or that with 1 in one place, "
                                 "or nothing in the last")
        low = lt(var, eps)
        var = where(low, var - detach(var) + eps, var)
    elif var < 0:
        raise ArgumentError(f"gaussian_nll_loss: var must not be negative, got {var}")
    else:
        var = const(max(var, eps), input.dtype)
    loss = (log(var) + (input - target) * (input - target) / var) * 0.5
    return _reduced("gaussian_nll_loss", loss + 0.5 * number_log(2.0 * pi) if full else loss, reduction)


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
    """1 - cos(input1, input2) where target is 1, max(0, cos - margin) where it is -1: (N, D) with (N), or (D) with ().

    dtype: float. Raises ShapeError for other shapes.

    >>> nn.functional.cosine_embedding_loss(tg.ones(2, 3), tg.ones(2, 3), tg.ones(2))
    """
    if input1.shape != input2.shape or target.ndim + 1 != input1.ndim or target.ndim > 1 or target.shape != input1.shape[:-1]:
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


@functional
def linear_cross_entropy(input: Array, linear_weight: Array, target: Array, *, linear_bias: Array = None, weight: Array = None,
                         reduction: str = "mean", ignore_index: int | None = None, label_smoothing: float = 0.0,
                         options: None = None) -> Array:
    """cross_entropy of the logits `linear(input, linear_weight, linear_bias)`: input (I), (N, I), linear_weight (C, I), (C, d1, ..., I).

    The logits of further dimensions are (N, C, d1, ...). options: torch's, for the order of the work; None.
    dtype: float. Raises ShapeError where sizes do not fit.

    >>> nn.functional.linear_cross_entropy(tg.ones(2, 3), tg.ones(4, 3), tg.tensor([1, 3]))
    """
    if options is not None:
        raise ArgumentError("linear_cross_entropy: options are not supported; leave them out")
    if linear_weight.ndim < 2 or input.ndim not in (1, 2) or input.shape[-1] != linear_weight.shape[-1]:
        raise ShapeError(f"linear_cross_entropy: takes an input (I) or (N, I) and a linear_weight (C, ..., I), got {input.shape} and "
                         f"{linear_weight.shape}")
    classes = linear_weight.shape[:-1]
    if len(classes) > 1 and input.ndim == 1:
        raise ShapeError(f"linear_cross_entropy: a linear_weight {linear_weight.shape} of more dimensions takes an input (N, I), got "
                         f"{input.shape}; use unsqueeze(0)")
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = FUNCTIONAL["linear"](input, linear_weight.reshape(-1, linear_weight.shape[-1]), bias).reshape(*input.shape[:-1], *classes)
    return FUNCTIONAL["cross_entropy"](logits, target, weight, -100 if ignore_index is None else ignore_index, reduction, label_smoothing)


# ----------------------------------------------------------------------------------------------------------------------- ctc


@functional
def ctc_loss(log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
             zero_infinity: bool = False) -> Array:
    """Minus the log-probability of label sequences, summed over all alignments (Graves et al. 2006).

    log_probs: (T, N, C) or (T, C), log-softmax of the scores. targets: (N, S) or (S), or all sequences one after the other.
    Lengths: tensors (N), or sequences of integers; IndexOutOfRange if one is longer than what there is. "mean" divides by the target
    lengths first. zero_infinity: impossible alignments count 0.

    The recursion over T is a `scan`. Raises ShapeError unless log_probs are floats of such a shape.

    >>> nn.functional.ctc_loss(tg.zeros(4, 1, 3), tg.tensor([[1, 2]]), [4], [2])
    """
    alpha, rows, skips, into, out = _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank)
    if rows is not None:
        def step(alpha: Any, row: Any) -> Any:
            return _ctc_step(alpha, row[0], row[1], skips, into), None

        alpha, _ = PUBLIC["scan"](step, alpha, rows)
    return _ctc_sum(alpha, out, reduction, zero_infinity, log_probs.ndim == 2)


@on_nodes
def _ctc_loss(log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, blank: int) -> Any:
    """What ctc_loss's recursion starts from, with (log-probabilities of the states, numbers) of its steps, which states may follow the

    one before the last, and the lengths.
    """
    if log_probs.ndim not in (2, 3) or dtype_kind(log_probs.dtype) != "f":
        raise ShapeError(f"ctc_loss: log_probs must be floats (T, N, C) or (T, C), got {log_probs.aval}")
    alone = log_probs.ndim == 2
    x = unsqueeze(log_probs, 1) if alone else log_probs
    steps, n, c = x.shape
    if not 0 <= blank < c:
        raise ArgumentError(f"ctc_loss: blank must be from 0 to {c - 1}, got {blank}")
    labels = targets
    if targets.ndim == 1 and not alone:
        labels = _padded(targets, target_lengths, n, steps)
    elif targets.ndim == 1:
        labels = unsqueeze(targets, 0)
    if labels.ndim != 2 or labels.shape[0] != n:
        raise ShapeError(f"ctc_loss: targets {targets.shape} must be (N, S) for log_probs {log_probs.shape}")
    into, out = (_lengths("ctc_loss", what, v, n) for what, v in (("input_lengths", input_lengths), ("target_lengths", target_lengths)))
    s = labels.shape[1]
    into = in_range(into, steps + 1, "ctc_loss", "input_lengths", f"{steps} steps of log_probs")
    if targets.ndim == 2 or alone:
        out = in_range(out, s + 1, "ctc_loss", "target_lengths", f"{s} labels a sequence")
    labels = where(lt(iota((n, s), 1), unsqueeze(out, 1)), cast(labels, dtypes.int64), blank)        # padding may be anything
    labels = in_range(labels, c, "ctc_loss", "targets", f"{c} classes")
    width = 2 * s + 1
    # blank, label, blank, label, ..., blank
    states = mv.pad(labels, (0, 1), (0, 1), (0, 1), blank) if s else full_like_shape((n, 1), blank, dtypes.int64)
    never = full_like_shape((n, width), -float("inf"), x.dtype)
    skips = ne(states, blank) & ne(states, mv.pad(mv.narrow(states, 1, 0, max(0, width - 2)), (0, min(2, width)), (0, 0), None, blank))
    each = gather(x, 2, mv.expand(states, (steps, n, width)))
    place = iota((n, width), 1)
    nothing = where(eq(place, 0), 0.0, never)                       # of no steps: the empty sequence is certain
    first = where(lt(place, 2), mv.reshape(mv.narrow(each, 0, 0, 1), (n, width)), never) if steps else nothing
    alpha = where(eq(unsqueeze(into, 1), 0), nothing, first)
    rows = (mv.narrow(each, 0, 1, steps - 1), iota((steps - 1,), 0) + 1) if steps > 1 else None
    return alpha, rows, skips, into, out


@on_nodes
def _ctc_step(alpha: Array, row: Array, t: Array, skips: Array, into: Array) -> Array:
    """Of each state, the log-probability of its prefixes, a step later: those of the state itself, of the one before, of that before."""
    width = alpha.shape[1]
    wider = mv.pad(alpha, (0, 2), (0, 0), None, -float("inf"))
    one, two = mv.narrow(wider, 1, 1, width), where(skips, mv.narrow(wider, 1, 0, width), -float("inf"))
    most = detach(maximum(maximum(alpha, one), two))
    nothing = eq(most, -float("inf"))
    shift = where(nothing, 0.0, most)
    total = exp(alpha - shift) + exp(one - shift) + exp(two - shift)
    total = where(nothing, -float("inf"), log(where(nothing, 1.0, total)) + shift)
    return where(unsqueeze(lt(t, into), 1), total + row, alpha)


@on_nodes
def _ctc_sum(alpha: Array, out: Array, reduction: str, zero_infinity: bool, alone: bool) -> Any:
    """The loss, of the prefixes that are whole."""
    place = iota(alpha.shape, 1)
    ends = eq(place, unsqueeze(out * 2, 1)) | eq(place, unsqueeze(out * 2 - 1, 1))
    loss = -_log_sum(where(ends, alpha, -float("inf")), 1)
    never = eq(loss, float("inf"))
    if zero_infinity:
        loss = where(never, 0.0, loss)
    else:                                                   # infinity, whose derivative is NaN, as in torch
        reached = sum_(where(eq(alpha, -float("inf")), 0.0, alpha), 1) * 0.0
        loss = where(never, -log(where(never, reached, 1.0)), loss)
    if reduction == "mean":
        return mean(loss / cast(maximum(out, 1), loss.dtype))
    return _reduced("ctc_loss", mv.reshape(loss, ()) if alone else loss, reduction)


def _log_sum(x: Any, dim: int) -> Any:
    """logsumexp whose derivative is 0 where all terms are -inf (there 0 / 0 would make NaNs of other terms' gradients)."""
    nothing = eq(x.amax(dim, True), -float("inf"))
    total = logsumexp(where(nothing, 0.0, x), dim)
    return where(mv.reshape(nothing, total.shape), -float("inf"), total)


def _padded(targets: Node, lengths: Any, n: int, steps: int) -> Any:
    """The sequences of `targets`, one after the other, as rows (n, S); S is the longest, or `steps`: longer ones have no alignment."""
    if not isinstance(lengths, Node) and sum(map(int, lengths)) != targets.shape[0]:
        raise ShapeError(f"ctc_loss: targets {targets.shape} must hold the sum of the target lengths, {sum(map(int, lengths))}")
    most = min(targets.shape[0], steps if isinstance(lengths, Node) else max(map(int, lengths), default=0))
    sizes = unsqueeze(_lengths("ctc_loss", "target_lengths", lengths, n), 1)
    place = iota((n, most), 1)
    index = where(lt(place, sizes), place + cumsum(sizes, 0) - sizes, 0)
    return gather(targets, 0, in_range(index, targets.shape[0], "ctc_loss", "target_lengths", "targets").reshape(-1)).reshape(n, most)


def _lengths(name: str, what: str, value: Any, n: int) -> Any:
    if isinstance(value, Node):
        if value.aval.size != n or value.dtype.kind not in "iu":
            raise ShapeError(f"{name}: {what} {value.aval} must hold {n} integers")
        return cast(mv.reshape(value, (n,)), dtypes.int64)
    values = [int(v) for v in (value if isinstance(value, (tuple, list)) else [value])]
    if len(values) != n:
        raise ShapeError(f"{name}: {what} must hold {n} integers, got {len(values)}")
    return mv.concat([mv.reshape(const(v, dtypes.int64), (1,)) for v in values], 0)


