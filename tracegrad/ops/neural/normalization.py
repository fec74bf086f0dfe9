"""Normalization (tracegrad.nn.functional): batch_norm, layer_norm, group_norm, instance_norm, rms_norm, normalize, ..."""

from __future__ import annotations

from math import prod
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.ir import Node
from tracegrad.graph.operation_families import broadcast_shapes, refuse_complex
from tracegrad.graph.operators import functional
from tracegrad.graph.primitive import cast
from tracegrad.ops.arguments import integer, on_nodes, one_dim, rounded_once
from tracegrad.ops.arrays.pointwise import clamp, detach, rsqrt
from tracegrad.ops.arrays.pointwise import pow as power
from tracegrad.ops.arrays.reductions import mean, norm, sum_, var
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.reduction import total
from tracegrad.ops.primitives.windows import windows
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind

Array = Any      # a Node or a Tensor


def _wide(name: str, x: Node) -> Node:
    """x in the dtype that it is normalized in: squares of float16 would overflow at 256, so 16 bits are computed as float32."""
    refuse_complex(name, x)
    if dtype_kind(x.dtype) != "f":
        raise DTypeError(f"{name}: takes a float input, got {x.dtype}; use x.float()")
    return cast(x, dtypes.float32) if dtypes.is_half(x.dtype) else x


def _standardized(x: Node, dims: tuple[int, ...], eps: float) -> Any:
    """x with mean 0 and variance 1 over dims."""
    _, centred, variance = _centred(x, dims)
    return centred * rsqrt(variance + eps)


def _centred(x: Node, dims: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """The mean of x over dims, x without it, and the variance.

    float32 numbers are taken as distances from the first one, a constant: what the mean of numbers far from 0 is rounded by would be much
    beside their deviations (a shifted algorithm of Chan, Golub, LeVeque 1983). float64 has digits enough.
    """
    first: Any = None
    if x.dtype == dtypes.float32 and x.aval.size:
        first = detach(mv.slice_(x, (0,) * x.ndim, tuple(1 if d in dims else n for d, n in enumerate(x.shape)), (1,) * x.ndim))
    apart = x if first is None else x - first
    average = mean(apart, dims, True)
    centred = apart - average
    return average if first is None else average + first, centred, mean(centred * centred, dims, True)


def _affine(name: str, input: Node, y: Any, weight: Node | None, bias: Node | None, shape: tuple[int, ...], place: tuple[int, ...]) -> Any:
    """y * weight + bias, which have `shape` and stand along the sizes `place`; of 16 bits again if the input was."""
    for what, v in (("weight", weight), ("bias", bias)):
        if v is not None and v.shape != shape:
            raise ShapeError(f"{name}: {what} {v.shape} must be {shape} for an input of {input.shape}")
    y = y if weight is None else y * mv.reshape(weight, place)
    y = y if bias is None else y + mv.reshape(bias, place)
    return cast(y, input.dtype) if dtypes.is_half(input.dtype) else y


def _trailing(name: str, x: Node, normalized_shape: Any) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[x.ndim - len(shape):] != shape:
        raise ShapeError(f"{name}: normalized_shape {shape} must be the last sizes of the input {x.shape}")
    return tuple(range(x.ndim - len(shape), x.ndim))


@functional
@on_nodes
def layer_norm(input: Array, normalized_shape: Any, weight: Array = None, bias: Array = None, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(var + eps) over the last dimensions, times weight plus bias of their shape (Ba et al. 2016).

    dtype: float, which the result has. Raises ShapeError unless those are input's last sizes.

    >>> nn.functional.layer_norm(tg.tensor([1.0, 2.0, 6.0]), 3)
    """
    dims = _trailing("layer_norm", input, normalized_shape)
    shape = tuple(input.shape[d] for d in dims)
    return _affine("layer_norm", input, _standardized(_wide("layer_norm", input), dims, eps), weight, bias, shape, shape)


@functional
@on_nodes
def rms_norm(input: Array, normalized_shape: Any, weight: Array = None, eps: float | None = None) -> Array:
    """x / sqrt(mean(x²) + eps) over the last dimensions, times weight (Zhang & Sennrich 2019). eps: the dtype's epsilon if None.

    dtype: float or complex. Raises ShapeError unless those are input's last sizes.

    >>> nn.functional.rms_norm(tg.tensor([1.0, 2.0, 6.0]), 3)
    """
    dims = _trailing("rms_norm", input, normalized_shape)
    x = input if input.dtype.kind == "c" else _wide("rms_norm", input)     # (of complex numbers x², not |x|², as in torch)
    tiny = dtypes.finfo(x.dtype).eps if eps is None else eps
    shape = tuple(input.shape[d] for d in dims)
    return _affine("rms_norm", input, x * rsqrt(mean(x * x, dims, True) + tiny), weight, None, shape, shape)


def _channels(x: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of one number for each channel of x (N, C, *), and the sizes by which it broadcasts along them."""
    return x.shape[1:2], (x.shape[1], *[1] * (x.ndim - 2))


@functional
@on_nodes
def group_norm(input: Array, num_groups: int, weight: Array = None, bias: Array = None, eps: float = 1e-5) -> Array:
    """Each of num_groups groups of channels of (N, C, *) normalized by itself, times weight plus bias (C) (Wu & He 2018).

    dtype: float, which the result has. Raises ShapeError unless C is a multiple of num_groups.

    >>> nn.functional.group_norm(tg.rand(1, 4, 3), 2)
    """
    num_groups = integer("group_norm", "num_groups", num_groups)
    if input.ndim < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ShapeError(f"group_norm: the channels of an input (N, C, *) must be a multiple of num_groups {num_groups}, got {input.shape}")
    rest = input.shape[1:]
    x = mv.reshape(_wide("group_norm", input), (input.shape[0], num_groups, rest[0] // num_groups, *rest[1:]))
    y = mv.reshape(_standardized(x, tuple(range(2, x.ndim)), eps), input.shape)
    return _affine("group_norm", input, y, weight, bias, *_channels(input))


@functional
def batch_norm(input: Array, running_mean: Array = None, running_var: Array = None, weight: Array = None, bias: Array = None,
               training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Array:
    """Each channel of (N, C, *) normalized, times weight plus bias (C) (Ioffe & Szegedy 2015).

    training: by the batch's own mean and variance; running_mean and running_var, if given, are updated in place with `momentum` (the
    variance unbiased), as in torch. Else: by running_mean and running_var.
    dtype: float, which the result has. Raises ShapeError for fewer than two dimensions, ArgumentError without the running values that are
    needed.

    >>> nn.functional.batch_norm(tg.tensor([[1.0, 2.0], [3.0, 6.0]]), training=True)
    """
    if input.ndim < 2:
        raise ShapeError(f"batch_norm: takes an input (N, C, *), got {input.shape}")
    if (running_mean is None) != (running_var is None) or (running_mean is None and not training):
        raise ArgumentError("batch_norm: running_mean and running_var are given both, or neither of them with training=True")
    for what, v in (("running_mean", running_mean), ("running_var", running_var)):
        if v is not None and v.shape != input.shape[1:2]:
            raise ShapeError(f"batch_norm: {what} {v.shape} must be ({input.shape[1]},) for an input of {input.shape}")
    if not training:
        return _scaled_channels(input, running_mean, running_var, weight, bias, eps)
    if not eps > 0:
        raise ArgumentError(f"batch_norm: eps must be positive in training, got {eps}: a channel of equal values has the variance 0")
    count = 1
    for d, n in enumerate(input.shape):
        count *= 1 if d == 1 else n
    if count == 1:
        raise ShapeError(f"batch_norm: training needs more than one value per channel, got an input of {input.shape}; take a larger batch, "
                         "or call model.eval() where it is not being trained")
    y, average, variance = _batch_normalized(input, weight, bias, eps)
    if running_mean is not None and count:                  # an empty batch has no statistics
        running_mean.copy_(_updated(running_mean, average, 1.0 - momentum, momentum))
        running_var.copy_(_updated(running_var, variance, 1.0 - momentum, momentum * count / (count - 1)))
    return y


@on_nodes
def _updated(running: Node, found: Node, old: Any, new: Any) -> Any:
    """A running value after a batch. (One call, and so the same work at each step, whether NumPy or a kernel has the value.)"""
    return running * old + found * new


@on_nodes
def _scaled_channels(input: Node, average: Node, variance: Node, weight: Node | None, bias: Node | None, eps: float) -> Any:
    shape, place = _channels(input)
    y = (_wide("batch_norm", input) - mv.reshape(average, place)) * mv.reshape(rsqrt(_wide("batch_norm", variance) + eps), place)
    return _affine("batch_norm", input, y, weight, bias, shape, place)


@on_nodes
def _batch_normalized(input: Node, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    """The normalized batch, and its mean and variance as constants."""
    x, (shape, place) = _wide("batch_norm", input), _channels(input)
    dims = tuple(d for d in range(x.ndim) if d != 1)
    average, centred, variance = _centred(x, dims)
    y = _affine("batch_norm", input, centred * rsqrt(variance + eps), weight, bias, shape, place)
    return y, detach(mv.reshape(average, shape)), detach(mv.reshape(variance, shape))


@functional
@on_nodes
@rounded_once
def normalize(input: Array, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Array:
    """input / max(its p-norm along dim, eps).

    dtype: any; of integers and bools the default float one. Raises IndexOutOfRange for other dims.

    >>> nn.functional.normalize(tg.tensor([3.0, 4.0]), dim=0)
    """
    return input / clamp(norm(input, p, dim, True), min=eps)


@functional
@on_nodes
@rounded_once
def cosine_similarity(x1: Array, x2: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    """x1·x2 / (max(|x1|, eps) max(|x2|, eps)) along dim.

    The shapes broadcast. dtype: real; of integers and bools the default float one. ShapeError where shapes do not broadcast.

    >>> nn.functional.cosine_similarity(tg.tensor([3.0, 4.0]), tg.tensor([4.0, 3.0]), dim=0)
    """
    refuse_complex("cosine_similarity", x1, x2)
    shape = broadcast_shapes("cosine_similarity", [x1.shape, x2.shape])
    x1, x2 = mv.expand(x1, shape), mv.expand(x2, shape)
    d = one_dim("cosine_similarity", dim, len(shape))
    product = (x1 / clamp(norm(x1, 2, d, True), min=eps)) * (x2 / clamp(norm(x2, 2, d, True), min=eps))
    return sum_(product, d)


@functional
def instance_norm(input: Array, running_mean: Array = None, running_var: Array = None, weight: Array = None, bias: Array = None,
                  use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5) -> Array:
    """Each channel of each sample of (N, C, *) normalized by itself, times weight plus bias (C) (Ulyanov et al. 2016).

    running_mean and running_var, if given, are updated in place by the batch's averages; use_input_stats=False: normalized by them.
    dtype: float, which the result has. Raises ShapeError for other shapes.

    >>> nn.functional.instance_norm(tg.rand(2, 3, 4)).shape
    (2, 3, 4)
    """
    if input.ndim < 3:
        raise ShapeError(f"instance_norm: takes an input (N, C, *), got {input.shape}")
    if (running_mean is None) != (running_var is None) or (running_mean is None and not use_input_stats):
        raise ArgumentError("instance_norm: running_mean and running_var are given both, or neither of them with use_input_stats=True")
    for what, v in (("running_mean", running_mean), ("running_var", running_var), ("weight", weight), ("bias", bias)):
        if v is not None and v.shape != input.shape[1:2]:
            raise ShapeError(f"instance_norm: {what} {v.shape} must be ({input.shape[1]},) for an input of {input.shape}")
    if not use_input_stats:
        return _scaled_channels(input, running_mean, running_var, weight, bias, eps)
    count = prod(input.shape[2:])
    if count == 1:
        raise ShapeError(f"instance_norm: needs more than one value per channel, got an input of {input.shape}")
    y = _each_normalized(input, weight, bias, eps)
    if running_mean is not None:
        average, variance = _statistics(input.detach(), count)
        running_mean.copy_(_updated(running_mean, average, 1.0 - momentum, momentum))
        running_var.copy_(_updated(running_var, variance, 1.0 - momentum, momentum))
    return y


@on_nodes
def _each_normalized(input: Node, weight: Node | None, bias: Node | None, eps: float) -> Any:
    y = _standardized(_wide("instance_norm", input), tuple(range(2, input.ndim)), eps)
    return _affine("instance_norm", input, y, weight, bias, *_channels(input))


@on_nodes
def _statistics(input: Node, count: int) -> tuple[Any, Any]:
    """The means and variances of the channels of each sample, averaged over the samples."""
    x = mv.reshape(_wide("instance_norm", input), (*input.shape[:2], count))
    return mean(mean(x, 2), 0), mean(var(x, 2), 0)


@functional
@on_nodes
@rounded_once
def local_response_norm(input: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Array:
    """x / (k + alpha times the mean of x² over `size` neighbouring channels) ** beta (Krizhevsky et al. 2012), of (N, C, *).
    dtype: real; of integers and bools the default float one. Raises ShapeError for other shapes.

    >>> nn.functional.local_response_norm(tg.rand(1, 5, 4), size=3).shape
    (1, 5, 4)
    """
    refuse_complex("local_response_norm", input)
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm: takes an input (N, C, *), got {input.shape}")
    if integer("local_response_norm", "size", size) < 1:
        raise ArgumentError(f"local_response_norm: size must be positive, got {size}")
    zeros = (0,) * (input.ndim - 2)
    square = mv.pad(input * input, (0, size // 2, *zeros), (0, (size - 1) // 2, *zeros))
    spread = total(windows(square, 1, size, 1), (input.ndim,)) * (1.0 / size)
    return input / power(spread * alpha + k, beta)
