"""Activations, embeddings, distances and rearrangements of tracegrad.nn.functional: hardswish, mish, pixel_shuffle, embedding_bag, ..."""

from __future__ import annotations

from functools import wraps
from math import prod
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.families import common_dtype, refuse_complex
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, Operators, functional, public
from tracegrad.graph.primitive import cast, const, holds, iota
from tracegrad.ops.arguments import integer, on_nodes, one_dim, rounded_once
from tracegrad.ops.arrays.index_checks import in_range
from tracegrad.ops.arrays.indexing import embedding, scatter_rows, shorten_rows
from tracegrad.ops.arrays.pointwise import abs_, detach, eq, expm1, ge, gt, le, lt, ne, softplus, tanh
from tracegrad.ops.arrays.pointwise import pow as power
from tracegrad.ops.arrays.pointwise import where as select
from tracegrad.ops.arrays.random_bits import kept
from tracegrad.ops.arrays.reductions import amax, norm, softmax, sum_
from tracegrad.ops.arrays.shaping import full_like_shape, unsqueeze
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.neural.layers import _channels, _scaled_channels
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.elementwise import where
from tracegrad.ops.primitives.reduction import total
from tracegrad.ops.primitives.windows import windows
from tracegrad.support import dtypes

Array = Any      # a Node or a Tensor


def _into(input: Array, result: Array, inplace: bool) -> Array:
    return input.copy_(result) if inplace else result


# -------------------------------------------------------------------------------------------------------------- activations


@functional
def celu(input: Array, alpha: float = 1.0, inplace: bool = False) -> Array:
    """x where positive, else alpha (exp(x / alpha) - 1) (Barron 2017). Any shape; real dtypes, integers as floats (complex: DTypeError)."""
    if holds(alpha == 0):
        raise ArgumentError("celu: alpha must not be 0")
    return _into(input, _celu(input, alpha), inplace)


@on_nodes
@rounded_once
def _celu(input: Any, alpha: float) -> Any:
    negative = lt(input, 0.0)
    return select(negative, expm1(select(negative, input, 0.0) * (1.0 / alpha)) * alpha, input)


@functional
def hardsigmoid(input: Array, inplace: bool = False) -> Array:
    """x / 6 + 1/2, limited to [0, 1]; no gradient at the limits. Any shape; real dtypes, integers as floats (complex: DTypeError)."""
    return _into(input, _hardsigmoid(input), inplace)


@on_nodes
@rounded_once
def _hardsigmoid(input: Any) -> Any:
    inside = gt(input, -3.0) & lt(input, 3.0)
    beyond = select(le(input, -3.0), 0.0, select(ge(input, 3.0), 1.0, detach(input)))       # or NaN, which has no gradient in torch
    return select(inside, input * (1.0 / 6.0) + 0.5, beyond)


@functional
def hardswish(input: Array, inplace: bool = False) -> Array:
    """x hardsigmoid(x) (Howard et al. 2019): 0 up to -3, x from 3 on. Real dtypes, integers as floats (complex: DTypeError)."""
    return _into(input, _hardswish(input), inplace)


@on_nodes
@rounded_once
def _hardswish(input: Any) -> Any:
    below, inside = le(input, -3.0), lt(input, 3.0)
    near = select(inside & ~below, input, 0.0)              # or infinite numbers would have NaN as their derivative
    return select(below, 0.0, select(inside, near * (near + 3.0) * (1.0 / 6.0), input))


@functional
def mish(input: Array, inplace: bool = False) -> Array:
    """x tanh(softplus(x)) (Misra 2019). dtype: real; of integers and bools the default float one. Raises DTypeError for complex numbers."""
    return _into(input, _mish(input), inplace)


@on_nodes
@rounded_once
def _mish(input: Any) -> Any:
    return input * tanh(softplus(input))


@public("prelu", functional=True)
@on_nodes
def prelu(input: Array, weight: Array) -> Array:
    """x where positive, else weight * x; weight: one number, or one for each channel (dim 1) (He et al. 2015).
    dtype: any real one, which the result has. Raises DTypeError unless weight has input's dtype."""
    if weight.ndim > 1:
        raise ShapeError(f"prelu: weight must be a number or a vector, got {weight.shape}")
    if weight.dtype != input.dtype:
        raise DTypeError(f"prelu: weight {weight.dtype} and input {input.dtype} must have one dtype; cast one of them")
    n, channels = weight.aval.size, input.shape[1] if input.ndim > 1 else 1
    if n != 1 and n != channels:
        raise ShapeError(f"prelu: weight {weight.shape} must hold one number, or one for each of the {channels} channels of {input.shape}")
    slope = mv.reshape(weight, (n, *[1] * (input.ndim - 2)) if n != 1 else ())
    return where(gt(input, 0.0), input, input * slope)


@public("rrelu", method=False, functional=True)
def rrelu(input: Array, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False) -> Array:
    """x where positive, else a x: a uniform in [lower, upper] for each element when training, else their mean (Xu et al. 2015).
    dtype: real; of integers and bools the default float one. Raises ArgumentError if lower > upper."""
    if holds(lower > upper):
        raise ArgumentError(f"rrelu: lower {lower} must not be above upper {upper}")
    slope: Any = (lower + upper) / 2
    if training:
        slope = PUBLIC["rand"](input.shape, dtype=input.dtype, device=input.device) * (upper - lower) + lower
    return _into(input, select(ge(input, 0.0) if training else gt(input, 0.0), input, input * slope), inplace)


@functional
@on_nodes
@rounded_once
def softsign(input: Array) -> Array:
    """x / (1 + |x|). Any shape. dtype: any but bool; integers as the default float one. Raises DTypeError for bools."""
    return input / (abs_(input) + 1.0)


@functional
@on_nodes
@rounded_once
def tanhshrink(input: Array) -> Array:
    """x - tanh(x). dtype: any; of integers and bools the default float one. Raises DTypeError for what is no tensor."""
    return input - tanh(input)


@functional
def softshrink(input: Array, lambd: float = 0.5) -> Array:
    """x drawn towards 0 by lambd, 0 in between. Any shape; real dtypes, integers as floats. ArgumentError for lambd < 0."""
    if holds(lambd < 0):
        raise ArgumentError(f"softshrink: lambd must not be negative, got {lambd}")
    inside = ge(input, -lambd) & le(input, lambd)
    return select(inside, 0.0, select(gt(input, lambd), input - lambd, input + lambd))


@functional
def hardshrink(input: Array, lambd: float = 0.5) -> Array:
    """x where |x| > lambd, else 0. Any shape; real dtypes, integers as floats (complex: DTypeError)."""
    return select(ge(input, -lambd) & le(input, lambd), 0.0, input)


@public("threshold", method=False, functional=True)
def threshold(input: Array, threshold: float, value: float, inplace: bool = False) -> Array:
    """x where it is above the threshold, else value. Any shape; real dtypes, promoted with value's (complex: DTypeError)."""
    return _into(input, select(le(input, threshold), value, input), inplace)


@functional
def softmin(input: Array, dim: int | None = None, dtype: Any = None) -> Array:
    """softmax(-x) along dim (None: as of `softmax`). Floats; integers (DTypeError) need a dtype."""
    return softmax(-input, dim, dtype)


@functional
def gumbel_softmax(logits: Array, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Array:
    """A sample of the Gumbel-softmax distribution along dim (Jang et al. 2017); hard: one-hot, with the gradient of the soft sample.
    dtype: float, which the result has. Raises ArgumentError unless tau > 0."""
    if holds(tau <= 0):
        raise ArgumentError(f"gumbel_softmax: tau must be positive, got {tau}")
    noise = PUBLIC["empty_like"](logits).exponential_().log()
    soft = softmax((logits - noise) / tau, dim)
    return _hardened(soft, dim) - soft.detach() + soft if hard else soft


@on_nodes
def _hardened(soft: Any, dim: int) -> Any:
    d = one_dim("gumbel_softmax", dim, soft.ndim)
    best = soft.argmax(d, True) if soft.ndim else const(0, dtypes.int64)
    return cast(eq(iota(soft.shape, d), best), soft.dtype) if soft.ndim else full_like_shape((), 1, soft.dtype)


def _twin(name: str) -> None:
    """torch's nn.functional.relu_(x) and so on: the function, its result written into input."""
    whole = FUNCTIONAL[name]

    @wraps(whole)
    def fn(input: Array, *args: Any, **kwargs: Any) -> Array:
        return whole(input, *args, **kwargs, inplace=True)

    fn.__name__ = fn.__qualname__ = f"{name}_"
    fn.__doc__ = f"""`{name}`, its result written into input, whose shape and dtype stay.

    Raises what `{name}` raises, and AutogradError for a leaf that requires grad.

    >>> nn.functional.{name}_(tg.tensor([-1.0, 1.0]){", 0.5, 0.0" if name == "threshold" else ""})
    """
    FUNCTIONAL[f"{name}_"] = fn


for _name in ("celu", "elu", "hardtanh", "leaky_relu", "relu", "rrelu", "selu", "threshold"):
    _twin(_name)


# ------------------------------------------------------------------------------------------------------------ normalization


@functional
def instance_norm(input: Array, running_mean: Array = None, running_var: Array = None, weight: Array = None, bias: Array = None,
                  use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5) -> Array:
    """Each channel of each sample of (N, C, *) normalized by itself, times weight plus bias (C) (Ulyanov et al. 2016).

    running_mean and running_var, if given, are updated in place by the batch's averages; use_input_stats=False: normalized by them.
    dtype: float, which the result has. Raises ShapeError for other shapes."""
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
    n, c = input.shape[:2]
    flat = input.reshape(1, n * c, *input.shape[2:])
    y = FUNCTIONAL["batch_norm"](flat, None, None, None, None, True, momentum, eps).reshape(input.shape)
    place = _channels(input)[1]
    if weight is not None:
        y = y * weight.reshape(place)
    if bias is not None:
        y = y + bias.reshape(place)
    if running_mean is not None:
        x = input.detach().reshape(n, c, count)
        running_mean.copy_(running_mean * (1.0 - momentum) + x.mean(2).mean(0) * momentum)
        running_var.copy_(running_var * (1.0 - momentum) + x.var(2).mean(0) * momentum)
    return y


@functional
@on_nodes
@rounded_once
def local_response_norm(input: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Array:
    """x / (k + alpha times the mean of x² over `size` neighbouring channels) ** beta (Krizhevsky et al. 2012), of (N, C, *).
    dtype: real; of integers and bools the default float one. Raises ShapeError for other shapes."""
    refuse_complex("local_response_norm", input)
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm: takes an input (N, C, *), got {input.shape}")
    if integer("local_response_norm", "size", size) < 1:
        raise ArgumentError(f"local_response_norm: size must be positive, got {size}")
    zeros = (0,) * (input.ndim - 2)
    square = mv.pad(input * input, (0, size // 2, *zeros), (0, (size - 1) // 2, *zeros))
    spread = total(windows(square, 1, size, 1), (input.ndim,)) * (1.0 / size)
    return input / power(spread * alpha + k, beta)


# --------------------------------------------------------------------------------------------------------- rearrangements


@public("pixel_shuffle", method=False, functional=True)
@on_nodes
def pixel_shuffle(input: Array, upscale_factor: int) -> Array:
    """(*, C r², H, W) -> (*, C, H r, W r): groups of r² channels become r x r pixels (Shi et al. 2016).
    Any dtype. Raises ShapeError for other channels."""
    r = integer("pixel_shuffle", "upscale_factor", upscale_factor)
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: the channels of (*, C, H, W) must be a multiple of upscale_factor² = {r * r}, got {input.shape}")
    *lead, c, h, w = input.shape
    n = len(lead)
    x = mv.reshape(input, (*lead, c // (r * r), r, r, h, w))
    return mv.reshape(mv.permute(x, (*range(n + 1), n + 3, n + 1, n + 4, n + 2)), (*lead, c // (r * r), h * r, w * r))


@public("pixel_unshuffle", method=False, functional=True)
@on_nodes
def pixel_unshuffle(input: Array, downscale_factor: int) -> Array:
    """(*, C, H r, W r) -> (*, C r², H, W): the inverse of pixel_shuffle. Any dtype. Raises ShapeError for other sizes."""
    r = integer("pixel_unshuffle", "downscale_factor", downscale_factor)
    if input.ndim < 3 or r < 1 or input.shape[-1] % r or input.shape[-2] % r:
        raise ShapeError(f"pixel_unshuffle: height and width must be multiples of downscale_factor {r}, got {input.shape}")
    *lead, c, h, w = input.shape
    n = len(lead)
    x = mv.reshape(input, (*lead, c, h // r, r, w // r, r))
    return mv.reshape(mv.permute(x, (*range(n + 1), n + 2, n + 4, n + 1, n + 3)), (*lead, c * r * r, h // r, w // r))


@public("channel_shuffle", method=False, functional=True)
@on_nodes
def channel_shuffle(input: Array, groups: int) -> Array:
    """The channels (dim 1) of `groups` groups taken in turn (Zhang et al. 2018). Any dtype. Raises ShapeError for other channels."""
    g = integer("channel_shuffle", "groups", groups)
    if input.ndim < 3 or g < 1 or input.shape[1] % g:
        raise ShapeError(f"channel_shuffle: the channels of (N, C, *) must be a multiple of groups {g}, got {input.shape}")
    n, c, *rest = input.shape
    x = mv.reshape(input, (n, g, c // g, *rest))
    return mv.reshape(mv.permute(x, (0, 2, 1, *range(3, x.ndim))), input.shape)


# ----------------------------------------------------------------------------------------------------------------- distances


@public("pairwise_distance", method=False, functional=True)
@on_nodes
@rounded_once
def pairwise_distance(x1: Array, x2: Array, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Array:
    """The p-norm of x1 - x2 + eps along the last dimension.
    dtype: any but bool (DTypeError); of integers the default float one. The result is real."""
    return norm(x1 - x2 + eps, p, -1, keepdim)


@public("cdist", method=False)
@on_nodes
@rounded_once
def cdist(x1: Array, x2: Array, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Array:
    """The p-norm distances of all rows of x1 (*, P, M) to all of x2 (*, R, M): (*, P, R). The gradient between equal rows is 0.

    compute_mode: torch's, which chooses how Euclidean distances are computed; here always by differences.
    dtype: any; of integers and bools the default float one. The result is real. Raises ShapeError where sizes do not fit."""
    if min(x1.ndim, x2.ndim) < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: takes (*, P, M) and (*, R, M), got {x1.shape} and {x2.shape}")
    if holds(p < 0):
        raise ArgumentError(f"cdist: p must not be negative, got {p}")
    a, b = common_dtype([x1, x2], True, "cdist")
    return norm(unsqueeze(a, -2) - unsqueeze(b, -3), p, -1)


@public("pdist", method=False, functional=True)
def pdist(input: Any, p: float = 2.0) -> Array:
    """The p-norm distances of each two rows of a matrix (N, M), in the order of the upper triangle: (N (N - 1) / 2).
    dtype: any but bool; of integers the default float one. The result is real. Raises ShapeError for other shapes."""
    if not isinstance(input, Operators) or input.ndim != 2:
        raise ShapeError(f"pdist: takes a matrix, got {getattr(input, 'shape', type(input).__name__)}")
    n = input.shape[0]
    rows = [i for i in range(n) for _ in range(i + 1, n)]
    columns = [j for i in range(n) for j in range(i + 1, n)]
    x: Any = input
    return norm(x[rows] - x[columns], p, -1) if rows else sum_(x[:0], -1)


@functional
@on_nodes
def bilinear(input1: Array, input2: Array, weight: Array, bias: Array = None) -> Array:
    """y[o] = input1 weight[o] input2 (+ bias[o]): (*, A), (*, B), weight (O, A, B), bias (O) -> (*, O).
    Any dtype but bool. Raises ShapeError where sizes do not fit."""
    if weight.ndim != 3 or input1.shape[:-1] != input2.shape[:-1] or (input1.shape[-1], input2.shape[-1]) != weight.shape[1:]:
        raise ShapeError(f"bilinear: takes (*, A), (*, B) and a weight (O, A, B), got {input1.shape}, {input2.shape} and {weight.shape}")
    lead = input1.shape[:-1]
    o, a, b = weight.shape
    rows = mv.reshape(input1, (prod(lead), a))
    half = mv.reshape(matmul(rows, mv.reshape(mv.permute(weight, (1, 0, 2)), (a, o * b))), (prod(lead), o, b))
    y = mv.reshape(total(half * mv.reshape(input2, (prod(lead), 1, b)), (2,)), (*lead, o))
    return y if bias is None else y + bias


# ---------------------------------------------------------------------------------------------------------------- embedding


@functional
def embedding_bag(input: Array, weight: Array, offsets: Array = None, max_norm: float | None = None, norm_type: float = 2,
                  scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Array = None,
                  include_last_offset: bool = False, padding_idx: int | None = None) -> Array:
    """Rows of weight (V, D) summed, averaged, or their largest elements, over bags of integers.

    input (B, N): each row is a bag. input (N): offsets (B) says where each bag starts (include_last_offset: and the last one ends).
    per_sample_weights: factors of the rows, for mode "sum". padding_idx: that row counts for nothing. Empty bags are 0. The others: as of
    `embedding`; as in torch, scale_grad_by_freq is not for mode "max". weight: float. Raises DTypeError unless input holds integers.

    >>> nn.functional.embedding_bag(tg.tensor([[0, 1]]), tg.eye(3))
    """
    if sparse or (scale_grad_by_freq and mode == "max"):
        raise ArgumentError("embedding_bag: sparse=True is not supported (there are no sparse gradients), nor is scale_grad_by_freq with "
                            "mode 'max'; leave them out")
    if max_norm is not None:
        shorten_rows(weight, input, max_norm, norm_type)
    return _embedding_bag(input, weight, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx)


@on_nodes
def _embedding_bag(input: Array, weight: Array, offsets: Any, scale_grad_by_freq: bool, mode: str, per_sample_weights: Any,
                   include_last_offset: bool, padding_idx: int | None) -> Array:
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"embedding_bag: mode must be 'sum', 'mean' or 'max', got {mode!r}")
    if per_sample_weights is not None and (mode != "sum" or per_sample_weights.shape != input.shape):
        raise ArgumentError(f"embedding_bag: per_sample_weights are for mode 'sum', of input's shape {input.shape}, got "
                            f"{per_sample_weights.shape}")
    if (input.ndim == 1) != (offsets is not None) or input.ndim not in (1, 2):
        raise ShapeError(f"embedding_bag: takes an input (B, N) without offsets, or (N) with offsets, got {input.shape}")
    rows = embedding(input, weight, padding_idx, scale_grad_by_freq=scale_grad_by_freq)
    counts = full_like_shape(input.shape, True, dtypes.bool_) if padding_idx is None else ne(input, padding_idx % weight.shape[0])
    if per_sample_weights is not None:
        rows = rows * unsqueeze(per_sample_weights, -1)
    if input.ndim == 2:
        held: Any = unsqueeze(counts, -1)
        if mode == "max":
            return _largest(where(held, rows, const(-float("inf"), rows.dtype)), 1, sum_(cast(counts, dtypes.int64), 1))
        y = total(where(held, rows, const(0, rows.dtype)), (1,))
        number: Any = sum_(cast(counts, dtypes.int64), 1)
    else:
        bags = offsets.shape[0] - include_last_offset
        n = input.shape[0]
        starts: Any = in_range(mv.narrow(offsets, 0, 0, bags), n + 1, "embedding_bag", "offsets", f"{n} indices")
        if bags:
            first = in_range(mv.narrow(starts, 0, 0, 1), 1, "embedding_bag", "offsets[0]", "the first bag, which starts at 0")
            starts = mv.concat([first, mv.narrow(starts, 0, 1, bags - 1)], 0)
        # The bag of each place: how many bags start at or before it, less one.
        bag = sum_(le(unsqueeze(starts, 0), unsqueeze(iota((n,), 0), 1)), 1) - 1
        inside = ge(bag, 0)
        if include_last_offset:
            inside = inside & lt(iota((n,), 0), mv.reshape(mv.narrow(offsets, 0, bags, 1), ()))
        counts = counts & inside
        bag = where(inside, bag, const(0, dtypes.int64))
        if mode == "max":
            held = unsqueeze(eq(unsqueeze(bag, 0), unsqueeze(iota((bags,), 0), 1)) & unsqueeze(counts, 0), -1)
            return _largest(where(held, unsqueeze(rows, 0), const(-float("inf"), rows.dtype)), 1, total(cast(held, dtypes.int64), (1, 2)))
        rows = where(unsqueeze(counts, -1), rows, const(0, rows.dtype))
        y = scatter_rows("scatter_add", full_like_shape((bags, weight.shape[1]), 0, rows.dtype), bag, rows)
        number = scatter_rows("scatter_add", full_like_shape((bags,), 0, dtypes.int64), bag, cast(counts, dtypes.int64))
    return y if mode == "sum" else y / unsqueeze(cast(where(eq(number, 0), 1, number), y.dtype), -1)


def _largest(x: Any, dim: int, number: Any) -> Any:
    if not x.shape[dim]:
        return full_like_shape(tuple(n for d, n in enumerate(x.shape) if d != dim), 0, x.dtype)
    empty = mv.reshape(eq(number, 0), (x.shape[0], 1))
    filled = where(unsqueeze(empty, -1), const(0, x.dtype), x)
    return amax(filled, dim)


# ------------------------------------------------------------------------------------------------------------------- dropout


def _kept(input: Array, p: float, shape: Any) -> Array:
    return kept(shape, p, input.device)


def _check_p(name: str, p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"{name}: p must be from 0 to 1, got {p}")


def _channel_shape(name: str, input: Array, least: int, most: int) -> tuple[int, ...]:
    if not least <= input.ndim <= most:
        raise ShapeError(f"{name}: takes an input (N, C, spatial) of {least} to {most} dimensions, got {input.shape}")
    lead = input.ndim - (most - 2)
    return (*input.shape[:lead], *[1] * (input.ndim - lead))


def _channel_dropout(name: str, spatial: int) -> Any:
    def fn(input: Array, p: float = 0.5, training: bool = True, inplace: bool = False) -> Array:
        _check_p(name, p)
        if spatial == 2 and input.ndim == 2:                            # (N, C), as torch takes it: each element is a channel
            shape: tuple[int, ...] = input.shape
        else:
            shape = _channel_shape(name, input, spatial + 1, spatial + 2)
        if not training or p == 0.0:
            return input
        out = input * 0.0 if p == 1.0 else select(_kept(input, p, shape), input * (1.0 / (1.0 - p)), 0.0)
        return _into(input, out, inplace)

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = (f"Each channel of (N, C, {spatial} sizes) or (C, ...) 0 with probability p, else divided by 1 - p (Tompson et al. 2015)."
                  "\n    dtype: any; integers as floats. Raises ShapeError for others, ArgumentError unless p is from 0 to 1.")
    return functional(fn)


dropout1d, dropout2d, dropout3d = (_channel_dropout(f"dropout{n}d", n) for n in (1, 2, 3))
_ALPHA = -1.7580993408473766            # selu's limit for x -> -inf


def _alpha_dropped(name: str, input: Array, p: float, training: bool, inplace: bool, shape: Any) -> Array:
    _check_p(name, p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return _into(input, input * 0.0, inplace)
    scale = ((1.0 - p) * (1.0 + p * _ALPHA * _ALPHA)) ** -0.5
    out = select(_kept(input, p, shape), input, _ALPHA) * scale - scale * p * _ALPHA
    return _into(input, out, inplace)


@functional
def alpha_dropout(input: Array, p: float = 0.5, training: bool = False, inplace: bool = False) -> Array:
    """dropout that keeps mean 0 and variance 1, for selu: dropped elements become selu's lower limit (Klambauer et al. 2017).
    dtype: any; of integers and bools the default float one. ArgumentError unless p is from 0 to 1."""
    return _alpha_dropped("alpha_dropout", input, p, training, inplace, input.shape)


@functional
def feature_alpha_dropout(input: Array, p: float = 0.5, training: bool = False, inplace: bool = False) -> Array:
    """alpha_dropout of whole channels of (N, C, *).
    dtype: any; of integers and bools the default float one. Raises ShapeError for other shapes."""
    if input.ndim < 2 and training:
        raise ShapeError(f"feature_alpha_dropout: takes an input (N, C, *), got {input.shape}")
    return _alpha_dropped("feature_alpha_dropout", input, p, training, inplace, (*input.shape[:2], *[1] * (input.ndim - 2)))


