"""Loss functions (tracegrad.nn.functional). reduction: "mean", "sum" or "none", as in torch.

The class that a target names is picked with `where(class == target, ...)`, never with a gather: so value and gradient stay in the
kernel of the row.
"""

from __future__ import annotations

from math import log as number_log
from math import nan, pi
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError, warn
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import refuse_complex
from tracegrad.graph.operators import FUNCTIONAL, functional
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, fails, holds, iota
from tracegrad.ops.arguments import integer, on_nodes, rounded_once
from tracegrad.ops.arrays.index_checks import in_range, must_hold
from tracegrad.ops.arrays.logical import logical_not
from tracegrad.ops.arrays.pointwise import abs_, detach, eq, ge, gt, le, log1p, lt, ne
from tracegrad.ops.arrays.reductions import mean, reduce, sum_
from tracegrad.ops.arrays.shaping.reshaping import unsqueeze
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.float_functions import exp, log
from tracegrad.ops.primitives.reduction import total
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


def _reduced(name: str, loss: Node, reduction: str, weight: Any = None) -> Any:
    if weight is not None:                                      # of elements; the mean is over the weights, as in torch
        if weight.shape != loss.shape:
            raise ShapeError(f"{name}: weight {weight.shape} must have the input's shape {loss.shape}")
        loss = loss * weight
        if reduction == "mean":
            return sum_(loss) / sum_(weight)
    if reduction == "mean":
        return mean(loss)
    if reduction == "sum":
        return sum_(loss)
    if reduction == "none":
        return loss
    raise ArgumentError(f"{name}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


losses_that_broadcast: set[str] = set()    # and warn, as torch's do: for programs written for torch


losses_that_refuse: set[str] = set()       # values outside their domain, as torch's do: for programs written for torch


def _same_shape(name: str, input: Any, target: Any) -> None:
    if input.shape == target.shape:
        return
    if name in losses_that_broadcast:
        warn(f"{name}: input {tuple(input.shape)} and target {tuple(target.shape)} are broadcast, which is usually a mistake; make them "
             "one shape")
    else:
        raise ShapeError(f"{name}: input {input.shape} and target {target.shape} must have one shape (a broadcast here is usually a "
                         "mistake); expand, squeeze or unsqueeze one of them")


@functional
@on_nodes
@rounded_once
def mse_loss(input: Array, target: Array, reduction: str = "mean", weight: Array = None) -> Array:
    """(input - target)². weight, here and below: a factor for each element, by whose sum a mean is divided.

    dtype: float, promoted. Raises ShapeError unless input and target have one shape.

    >>> nn.functional.mse_loss(tg.tensor([1.0, 2.0]), tg.tensor([1.0, 4.0]))
    """
    refuse_complex("mse_loss", input, target)
    _same_shape("mse_loss", input, target)
    difference = input - target
    return _reduced("mse_loss", difference * difference, reduction, weight)


@functional
@on_nodes
@rounded_once
def l1_loss(input: Array, target: Array, reduction: str = "mean", weight: Array = None) -> Array:
    """|input - target|. dtype: float or complex, promoted; the result float. Raises ShapeError unless both have one shape.

    >>> nn.functional.l1_loss(tg.tensor([1.0, 2.0]), tg.tensor([1.0, 4.0]))
    """
    _same_shape("l1_loss", input, target)
    return _reduced("l1_loss", abs_(input - target), reduction, weight)


@functional
@on_nodes
@rounded_once
def smooth_l1_loss(input: Array, target: Array, reduction: str = "mean", beta: Any = 1.0) -> Array:
    """d² / (2 beta) where d = |input - target| < beta, else d - beta / 2.

    dtype: float, promoted. Raises ShapeError unless both have one shape.

    >>> nn.functional.smooth_l1_loss(tg.tensor([1.0, 2.0]), tg.tensor([1.0, 4.0]))
    """
    if holds(beta < 0):
        raise ArgumentError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    if holds(beta == 0):
        return l1_loss(input, target, reduction)
    _same_shape("smooth_l1_loss", input, target)
    far, square, d = _far(input - target, beta)
    if isinstance(beta, Node):                                  # 0 * inf, or its gradient would be NaN
        width = where(eq(beta, 0.0), const(1, d.dtype), cast(beta, d.dtype))
    else:
        width = beta
    return _reduced("smooth_l1_loss", where(far, d - 0.5 * beta, square * (0.5 / width)), reduction)


@functional
@on_nodes
@rounded_once
def huber_loss(input: Array, target: Array, reduction: str = "mean", delta: float = 1.0, weight: Array = None) -> Array:
    """d² / 2 where d = |input - target| < delta, else delta (d - delta / 2).

    dtype: float, promoted. Raises ShapeError unless both have one shape, ArgumentError unless delta > 0.

    >>> nn.functional.huber_loss(tg.tensor([1.0, 2.0]), tg.tensor([1.0, 4.0]))
    """
    _same_shape("huber_loss", input, target)
    if fails(delta > 0):
        raise ArgumentError(f"huber_loss: delta must be positive, got {delta}")
    far, square, d = _far(input - target, delta)
    return _reduced("huber_loss", where(far, (d - 0.5 * delta) * delta, square * 0.5), reduction, weight)


def _far(difference: Any, limit: float) -> tuple[Any, Any, Any]:
    """Whether |difference| >= limit, its square elsewhere (not of |difference|, which has no second derivative at 0), and |difference|."""
    d = abs_(difference)
    far = ge(d, limit)
    inner = where(far, 0.0, difference)                         # 0 * inf elsewhere would be a NaN in the gradient
    return far, inner * inner, d


# ----------------------------------------------------------------------------------------------------------------- classes


@functional
@on_nodes
@rounded_once
def cross_entropy(input: Array, target: Array, weight: Array = None, ignore_index: int = -100, reduction: str = "mean",
                  label_smoothing: float = 0.0) -> Array:
    """Minus the log of the softmax probability of the target class.

    input: logits (C), (N, C) or (N, C, d1, ...). target: class numbers () / (N) / (N, d1, ...), or probabilities of input's shape.
    weight: (C), a factor per class; "mean" divides by the targets' weights. Targets equal to ignore_index count for nothing.
    label_smoothing: that share of the target is spread evenly over the classes (Szegedy et al. 2016).
    A class number outside [0, C) other than ignore_index is an IndexOutOfRange when the loss, or what follows from it, is looked at.
    input: float, which the result is. Raises ShapeError where shapes do not fit, IndexOutOfRange for other classes.

    >>> nn.functional.cross_entropy(tg.tensor([[1.0, 2.0, 0.5]]), tg.tensor([1]))
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"cross_entropy: label_smoothing must be from 0 to 1, got {label_smoothing}")
    x, axis = _class_scores("cross_entropy", input)
    shifted = x - bind(REGISTRY["detach"], (reduce("amax", x, (axis,), True),), {})
    partition = log(total(exp(shifted), (axis,)))
    if dtype_kind(target.dtype) == "f":
        if target.shape != input.shape:
            raise ShapeError(f"cross_entropy: a target of {target.dtype} holds class probabilities; its shape {target.shape} must be the "
                             f"input's, {input.shape}; for class numbers use target.long()")
        if integer("cross_entropy", "ignore_index", ignore_index) >= 0:
            raise ArgumentError(f"cross_entropy: ignore_index {ignore_index} means nothing for class probabilities; set their rows to 0")
        if weight is not None and weight.shape != (x.shape[axis],):
            raise ShapeError(f"cross_entropy: weight {weight.shape} must be ({x.shape[axis]},), one number for each class")
        if label_smoothing:
            target = target * (1.0 - label_smoothing) + label_smoothing / x.shape[axis]
        logs = mv.reshape(partition, _kept(x, axis)) - shifted
        loss = total(logs * target if weight is None else logs * target * _per_class(weight, x, axis), (axis,))
        if reduction == "mean":
            return mean(loss)
        return _reduced("cross_entropy", loss, reduction)
    picked = _Picked("cross_entropy", x, axis, target, weight, ignore_index)
    loss = partition - picked.of(shifted)
    smoothing = None
    if label_smoothing:
        logs = mv.reshape(partition, _kept(x, axis)) - shifted
        smoothing = total(logs if weight is None else logs * _per_class(weight, x, axis), (axis,))
    return picked.reduced(loss, reduction, smoothing, label_smoothing)


@functional
@on_nodes
@rounded_once
def nll_loss(input: Array, target: Array, weight: Array = None, ignore_index: int = -100, reduction: str = "mean") -> Array:
    """Minus input[target]: input holds log-probabilities (C), (N, C) or (N, C, d1, ...), target class numbers; see cross_entropy.

    input: float; target: int64, else DTypeError. Raises ShapeError where they do not fit.

    >>> nn.functional.nll_loss(tg.tensor([[-1.0, -0.5]]), tg.tensor([1]))
    """
    x, axis = _class_scores("nll_loss", input)
    picked = _Picked("nll_loss", x, axis, target, weight, ignore_index)
    return picked.reduced(-picked.of(x), reduction, None, 0.0)


def _class_scores(name: str, x: Node) -> tuple[Node, int]:
    refuse_complex(name, x)
    if dtype_kind(x.dtype) != "f":
        raise DTypeError(f"{name}: takes a float input, got {x.dtype}; use x.float()")
    if not x.ndim:
        raise ShapeError(f"{name}: input must be (C), (N, C) or (N, C, d1, ...), got a 0-d tensor")
    return x, 0 if x.ndim == 1 else 1


def _kept(x: Node, axis: int) -> tuple[int, ...]:
    return (*x.shape[:axis], 1, *x.shape[axis + 1:])


def _per_class(weight: Node, x: Node, axis: int) -> Node:
    return mv.reshape(weight, tuple(n if d == axis else 1 for d, n in enumerate(x.shape)))


class _Picked:
    """Targets as a condition over the classes, and what follows from it: the value picked, its weight, whether it counts."""

    def __init__(self, name: str, x: Node, axis: int, target: Node, weight: Node | None, ignore_index: int) -> None:
        expected = x.shape[:axis] + x.shape[axis + 1:]
        if target.dtype.kind not in "iu":
            raise DTypeError(f"{name}: target must hold class numbers (int64), got {target.dtype}; use target.long()")
        if target.shape != expected:
            one_hot = f"; of one-hot rows use target.argmax({axis})" if target.shape == x.shape else ""
            alike = [n for n in target.shape if n != 1] == [n for n in expected if n != 1]
            raise ShapeError(f"{name}: target {target.shape} must have the shape {expected} (input {x.shape} without its classes)"
                             f"{f'; use target.reshape{expected}' if alike else one_hot}")
        if weight is not None and weight.shape != (x.shape[axis],):
            raise ShapeError(f"{name}: weight {weight.shape} must be ({x.shape[axis]},), one number for each class")
        self.name, self.axis, self.dtype, ignore_index = name, axis, x.dtype, integer(name, "ignore_index", ignore_index)
        n = x.shape[axis]
        classes = in_range(target, n, name, "target", f"{n} classes", ignore=ignore_index)
        self.hit = eq(iota(x.shape, axis, classes.dtype), mv.reshape(classes, _kept(x, axis)))
        # A negative ignore_index can match no class: with no weights, whether a target counts is the only thing to find out.
        self.counts = ne(target, ignore_index) if target.dtype.kind != "u" or ignore_index >= 0 else None
        self.weight = None if weight is None else self.of(_per_class(weight, x, axis))

    def of(self, x: Node) -> Any:
        """x at each target's class."""
        return total(where(self.hit, x, const(0, x.dtype)), (self.axis,))

    def reduced(self, loss: Node, reduction: str, smoothing: Node | None, share: float) -> Any:
        if self.weight is not None:
            loss = loss * self.weight
        if smoothing is not None:
            loss = loss * (1.0 - share) + smoothing * (share / self.hit.shape[self.axis])
        if self.counts is not None:
            loss = where(self.counts, loss, const(0, loss.dtype))
        if reduction != "mean":
            return _reduced(self.name, loss, reduction)
        weight = self.weight
        if weight is None:
            if self.counts is None:
                return mean(loss)
            weight = cast(self.counts, self.dtype)
        elif self.counts is not None:
            weight = where(self.counts, weight, const(0, weight.dtype))
        return sum_(loss) / sum_(weight)


# ------------------------------------------------------------------------------------------------------------- probabilities

_SMALLEST = 3.720075976020836e-44       # exp(-100)


@functional
@on_nodes
@rounded_once
def binary_cross_entropy(input: Array, target: Array, weight: Array = None, reduction: str = "mean") -> Array:
    """-(t log p + (1 - t) log(1 - p)), the logs limited to -100 below, as in torch. Where they are, they have no gradient (torch: 1e12).

    NaN where the input or the target is no probability, outside [0, 1] (torch: an error); binary_cross_entropy_with_logits takes scores.
    dtype: float. Raises ShapeError unless both have one shape.

    >>> nn.functional.binary_cross_entropy(tg.tensor([0.9, 0.2]), tg.tensor([1.0, 0.0]))
    """
    refuse_complex("binary_cross_entropy", input, target)
    _same_shape("binary_cross_entropy", input, target)
    zero, one = le(abs_(input), _SMALLEST), eq(input, 1.0)
    yes = where(zero, -100.0, log(where(zero, 1.0, input)))
    no = where(one, -100.0, log1p(-where(one, 0.0, input)))
    loss = where(le(abs_(target - 0.5), 0.5), -(target * yes + (1.0 - target) * no), nan)
    if "binary_cross_entropy" in losses_that_refuse:
        allowed = le(abs_(input - 0.5), 0.5) & le(abs_(target - 0.5), 0.5)
        fine = must_hold(allowed, "binary_cross_entropy", "all elements of input and target should be between 0 and 1; "
                         "binary_cross_entropy_with_logits takes scores")
        loss = where(fine, loss, nan)
    return _reduced("binary_cross_entropy", loss if weight is None else loss * weight, reduction)


@functional
@on_nodes
@rounded_once
def binary_cross_entropy_with_logits(input: Array, target: Array, weight: Array = None, reduction: str = "mean",
                                     pos_weight: Array = None) -> Array:
    """binary_cross_entropy of sigmoid(input), without overflow. pos_weight: a factor for the positive targets.

    dtype: float. Raises ShapeError unless input (*) and target (*) have one shape.

    >>> nn.functional.binary_cross_entropy_with_logits(tg.tensor([2.0, -1.0]), tg.tensor([1.0, 0.0]))
    """
    _same_shape("binary_cross_entropy_with_logits", input, target)
    # softplus(-x) = -log sigmoid(x) = log1p(exp(-|x|)) + max(-x, 0), with one branch taken at 0 throughout: smooth there to every order.
    tail = log1p(exp(where(lt(input, 0.0), input, -input)))
    if pos_weight is None:
        loss = where(lt(input, 0.0), 0.0, input) - input * target + tail
    else:
        softplus = tail + where(lt(input, 0.0), -input, 0.0)
        loss = (1.0 - target) * input + ((pos_weight - 1.0) * target + 1.0) * softplus
    return _reduced("binary_cross_entropy_with_logits", loss if weight is None else loss * weight, reduction)


@functional
@on_nodes
@rounded_once
def kl_div(input: Array, target: Array, reduction: str = "mean", log_target: bool = False) -> Array:
    """target * (log target - input): input holds log-probabilities. reduction "batchmean" divides the sum by the first size.

    dtype: real, of which the result is float. Raises ShapeError where shapes do not broadcast.

    >>> nn.functional.kl_div(tg.tensor([-1.0, -1.0]), tg.tensor([0.5, 0.5]), reduction="sum")
    """
    refuse_complex("kl_div", input, target)
    if log_target:
        loss = exp(target) * (target - input)
    else:
        zero = eq(target, 0.0)
        loss = where(zero, 0.0, target * log(where(zero, 1.0, target))) - target * input
    if reduction == "batchmean":
        count = loss.shape[0] if loss.ndim else 1
        return sum_(loss) * (1.0 / count if count else float("nan"))         # the mean of nothing, as in torch
    return _reduced("kl_div", loss, reduction)


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

    dtype: float. Raises ArgumentError for a number var < 0, ShapeError where shapes do not broadcast. A tensor's negative elements give NaN
    (torch: an error).

    >>> nn.functional.gaussian_nll_loss(tg.ones(2), tg.zeros(2), tg.ones(2))
    """
    if isinstance(var, Node):
        if var.shape != input.shape:
            if var.shape == input.shape[:-1]:
                var = unsqueeze(var, -1)
            elif var.ndim != input.ndim or [v for v, n in zip(var.shape, input.shape, strict=True) if v != n] != [1]:
                raise ShapeError(f"gaussian_nll_loss: var {var.shape} must be {input.shape}, or that with 1 in one place, "
                                 "or nothing in the last")
        if "gaussian_nll_loss" in losses_that_refuse:
            var = where(must_hold(logical_not(lt(var, 0.0)), "gaussian_nll_loss", "var has negative entry/entries"), var, nan)
        else:
            var = where(lt(var, 0.0), nan, var)
        low = lt(var, eps)
        var = where(low, var - detach(var) + eps, var)
    elif var < 0:
        raise ArgumentError(f"gaussian_nll_loss: var must not be negative, got {var}")
    else:
        var = const(max(var, eps), input.dtype)
    loss = (log(var) + (input - target) * (input - target) / var) * 0.5
    return _reduced("gaussian_nll_loss", loss + 0.5 * number_log(2.0 * pi) if full else loss, reduction)


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
