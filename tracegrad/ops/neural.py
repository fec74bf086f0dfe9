"""Layers as functions (tracegrad.nn.functional): normalization, attention, dropout, and the activations that are no methods."""

from __future__ import annotations

from math import sqrt as root
from typing import Any

from tracegrad import dtypes
from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.function import cast, const, iota
from tracegrad.ir import Node
from tracegrad.operators import PUBLIC, Operators, functional, public
from tracegrad.ops import movement as mv
from tracegrad.ops.arguments import on_nodes, one_dim
from tracegrad.ops.elementwise import where
from tracegrad.ops.linalg import matmul
from tracegrad.ops.pointwise import clamp, detach, exp, expm1, gt, le, log1p, lt, rsqrt, sigmoid
from tracegrad.ops.pointwise import where as select
from tracegrad.ops.shaping import mT
from tracegrad.ops.statistics import mean, norm, softmax, sum_

Array = Any      # a Node or a Tensor


# ------------------------------------------------------------------------------------------------------------ normalization


def _standardized(x: Node, dims: tuple[int, ...], eps: float) -> Any:
    """x with mean 0 and variance 1 over dims."""
    centred = x - mean(x, dims, True)
    return centred * rsqrt(mean(centred * centred, dims, True) + eps)


def _trailing(name: str, x: Node, normalized_shape: Any) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[x.ndim - len(shape):] != shape:
        raise ShapeError(f"{name}: normalized_shape {shape} must be the last sizes of the input {x.shape}")
    return tuple(range(x.ndim - len(shape), x.ndim))


@functional
@on_nodes
def layer_norm(input: Array, normalized_shape: Any, weight: Array = None, bias: Array = None, eps: float = 1e-5) -> Array:
    """(x - mean) / sqrt(var + eps) over the last dimensions, times weight plus bias of their shape (Ba et al. 2016)."""
    y = _standardized(input, _trailing("layer_norm", input, normalized_shape), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@functional
@on_nodes
def rms_norm(input: Array, normalized_shape: Any, weight: Array = None, eps: float | None = None) -> Array:
    """x / sqrt(mean(x²) + eps) over the last dimensions, times weight (Zhang & Sennrich 2019). eps: the dtype's epsilon if None."""
    dims = _trailing("rms_norm", input, normalized_shape)
    tiny = {"float16": 2.0**-10, "float32": 2.0**-23}.get(str(input.dtype), 2.0**-52) if eps is None else eps
    y = input * rsqrt(mean(input * input, dims, True) + tiny)
    return y if weight is None else y * weight


def _per_channel(v: Node, ndim: int) -> Node:
    return mv.reshape(v, (*v.shape, *[1] * (ndim - 2)))


@functional
@on_nodes
def group_norm(input: Array, num_groups: int, weight: Array = None, bias: Array = None, eps: float = 1e-5) -> Array:
    """Each of num_groups groups of channels of (N, C, *) normalized by itself, times weight plus bias (C) (Wu & He 2018)."""
    if input.ndim < 2 or input.shape[1] % num_groups:
        raise ShapeError(f"group_norm: the channels of an input (N, C, *) must be a multiple of num_groups {num_groups}, got {input.shape}")
    rest = input.shape[1:]
    x = mv.reshape(input, (input.shape[0], num_groups, rest[0] // num_groups, *rest[1:]))
    y = mv.reshape(_standardized(x, tuple(range(2, x.ndim)), eps), input.shape)
    y = y if weight is None else y * _per_channel(weight, y.ndim)
    return y if bias is None else y + _per_channel(bias, y.ndim)


@functional
def batch_norm(input: Array, running_mean: Array = None, running_var: Array = None, weight: Array = None, bias: Array = None,
               training: bool = False, momentum: float = 0.1, eps: float = 1e-5) -> Array:
    """Each channel of (N, C, *) normalized, times weight plus bias (C) (Ioffe & Szegedy 2015).

    training: by the batch's own mean and variance; running_mean and running_var, if given, are updated in place with `momentum` (the
    variance unbiased), as in torch. Else: by running_mean and running_var.
    """
    if input.ndim < 2:
        raise ShapeError(f"batch_norm: takes an input (N, C, *), got {input.shape}")
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError("batch_norm: running_mean and running_var are needed unless training=True")
        return _scaled_channels(input, running_mean, running_var, weight, bias, eps)
    count = 1
    for d, n in enumerate(input.shape):
        count *= 1 if d == 1 else n
    if count == 1:
        raise ShapeError(f"batch_norm: training needs more than one value per channel, got an input of {input.shape}")
    y, average, variance = _batch_normalized(input, weight, bias, eps)
    if running_mean is not None:
        running_mean.copy_(running_mean * (1.0 - momentum) + average * momentum)
    if running_var is not None:
        running_var.copy_(running_var * (1.0 - momentum) + variance * (momentum * count / (count - 1)))
    return y


@on_nodes
def _scaled_channels(x: Node, average: Node, variance: Node, weight: Node | None, bias: Node | None, eps: float) -> Any:
    y = (x - _per_channel(average, x.ndim)) * _per_channel(rsqrt(variance + eps), x.ndim)
    y = y if weight is None else y * _per_channel(weight, x.ndim)
    return y if bias is None else y + _per_channel(bias, x.ndim)


@on_nodes
def _batch_normalized(x: Node, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    """The normalized batch, and its mean and variance as constants."""
    dims = tuple(d for d in range(x.ndim) if d != 1)
    average = mean(x, dims)
    centred = x - _per_channel(average, x.ndim)
    variance = mean(centred * centred, dims)
    y = centred * _per_channel(rsqrt(variance + eps), x.ndim)
    y = y if weight is None else y * _per_channel(weight, x.ndim)
    y = y if bias is None else y + _per_channel(bias, x.ndim)
    return y, detach(average), detach(variance)


@functional
@on_nodes
def normalize(input: Array, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Array:
    """input / max(its p-norm along dim, eps)."""
    return input / clamp(norm(input, p, dim, True), min=eps)


@functional
@on_nodes
def cosine_similarity(x1: Array, x2: Array, dim: int = 1, eps: float = 1e-8) -> Array:
    """x1·x2 / (max(|x1|, eps) max(|x2|, eps)) along dim."""
    d = one_dim("cosine_similarity", dim, max(x1.ndim, x2.ndim))
    product = (x1 / clamp(norm(x1, 2, d, True), min=eps)) * (x2 / clamp(norm(x2, 2, d, True), min=eps))
    return sum_(product, d)


# ---------------------------------------------------------------------------------------------------- attention and dropout


@functional
def dropout(input: Array, p: float = 0.5, training: bool = True, inplace: bool = False) -> Array:
    """Each element 0 with probability p, else divided by 1 - p (Srivastava et al. 2014); input itself unless training."""
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout: p must be from 0 to 1, got {p}")
    if not training or p == 0.0:
        return input
    if p == 1.0:
        out = input * 0.0
    else:
        draw = PUBLIC["rand"](input.shape, dtype=dtypes.float32, device=input.device)
        out = select(draw >= p, input * (1.0 / (1.0 - p)), 0.0)
    return input.copy_(out) if inplace else out


@functional
def scaled_dot_product_attention(query: Array, key: Array, value: Array, attn_mask: Array = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None) -> Array:
    """softmax(query keyᵀ scale + mask) value (Vaswani et al. 2017): (*, L, E), (*, S, E), (*, S, V) -> (*, L, V).

    attn_mask: bool (True may be attended to) or numbers that are added, broadcast to (*, L, S). is_causal: position i sees positions
    up to i. scale: 1 / sqrt(E) if None. A row that may attend to nothing is NaN, as in torch.
    """
    if not isinstance(query, Operators) or min(query.ndim, key.ndim, value.ndim) < 2 or query.shape[-1] != key.shape[-1] \
            or key.shape[-2] != value.shape[-2]:
        raise ShapeError(f"scaled_dot_product_attention: query {query.shape}, key {key.shape} and value {value.shape} do not fit: "
                         "they are (*, L, E), (*, S, E) and (*, S, V)")
    if is_causal and attn_mask is not None:
        raise ArgumentError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    factor = 1.0 / root(query.shape[-1]) if scale is None else scale
    weights = _attention_weights(query, key, attn_mask, is_causal, factor)
    return matmul(dropout(weights, dropout_p) if dropout_p else weights, value)


@on_nodes
def _attention_weights(query: Any, key: Any, mask: Any, is_causal: bool, scale: float) -> Any:
    scores = matmul(query, mT(key)) * scale
    if is_causal:
        shape = scores.shape[-2:]
        mask = le(iota(shape, 1, dtypes.int32), iota(shape, 0, dtypes.int32))
    if mask is not None and mask.dtype == dtypes.bool_:
        scores = where(mask, scores, const(float("-inf"), scores.dtype))
    elif mask is not None:
        scores = scores + cast(mask, scores.dtype)
    return softmax(scores, -1)


# ------------------------------------------------------------------------------------------------------------- activations


@public("logsigmoid", method=False, functional=True)
@on_nodes
def logsigmoid(input: Array) -> Array:
    """log(sigmoid(x)), without overflow."""
    negative = lt(input, 0.0)
    return where(negative, input, 0.0) - log1p(exp(where(negative, input, -input)))


@functional
@on_nodes
def elu(input: Array, alpha: float = 1.0) -> Array:
    """x where positive, else alpha (exp(x) - 1)."""
    positive = gt(input, 0.0)
    return where(positive, input, expm1(where(positive, 0.0, input)) * alpha)


@functional
@on_nodes
def selu(input: Array) -> Array:
    """elu scaled so that activations keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    return elu(input, 1.6732632423543772) * 1.0507009873554805


@functional
@on_nodes
def hardtanh(input: Array, min_val: float = -1.0, max_val: float = 1.0) -> Array:
    """x limited to [min_val, max_val]."""
    return clamp(input, min_val, max_val)


@functional
@on_nodes
def relu6(input: Array) -> Array:
    """x limited to [0, 6]."""
    return clamp(input, 0.0, 6.0)


@functional
@on_nodes
def glu(input: Array, dim: int = -1) -> Array:
    """a * sigmoid(b) of the two halves of input along dim (Dauphin et al. 2017)."""
    d = one_dim("glu", dim, input.ndim)
    n = input.shape[d]
    if n % 2:
        raise ShapeError(f"glu: dimension {d} of {input.shape} must be even")
    return mv.narrow(input, d, 0, n // 2) * sigmoid(mv.narrow(input, d, n // 2, n // 2))

