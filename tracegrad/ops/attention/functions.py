"""Attention: nn.functional's scaled_dot_product_attention and multi_head_attention_forward."""

from __future__ import annotations

from math import prod
from math import sqrt as root
from typing import Any

from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.graph.operation_families import broadcast_shapes
from tracegrad.graph.operators import FUNCTIONAL, PUBLIC, Operators, functional
from tracegrad.graph.primitive import REGISTRY, bind, cast, const, iota
from tracegrad.ops.arguments import on_nodes
from tracegrad.ops.arrays.pointwise import le
from tracegrad.ops.arrays.shaping.reordering import mT
from tracegrad.ops.attention.fused import NO_MASK, softmax_or_zeros
from tracegrad.ops.linalg.products import matmul
from tracegrad.ops.neural.dropout import dropout
from tracegrad.ops.neural.softmax import softmax
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.contraction import unrounded
from tracegrad.ops.primitives.elementwise import where
from tracegrad.support import dtypes, random_state
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state

Array = Any      # a Node or a Tensor


@functional
def scaled_dot_product_attention(query: Array, key: Array, value: Array, attn_mask: Array = None, dropout_p: float = 0.0,
                                 is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Array:
    """softmax(query keyᵀ scale + mask) value (Vaswani et al. 2017): (*, L, E), (*, S, E), (*, S, V) -> (*, L, V).

    attn_mask: bool (True may be attended to) or numbers that are added, broadcast to (*, L, S). is_causal: position i sees positions
    up to i. scale: 1 / sqrt(E) if None. A row that may attend to nothing is 0, as in torch. enable_gqa: each head of key and value (their
    third dimension from the end) serves several of query's (Ainslie et al. 2023). dtype: float. Raises ShapeError where sizes do not fit.

    >>> nn.functional.scaled_dot_product_attention(tg.rand(2, 3), tg.rand(4, 3), tg.rand(4, 3)).shape
    """
    if state.autocast is not None:
        query, key, value, attn_mask = state.autocast.cast("scaled_dot_product_attention", (query, key, value, attn_mask), {})[0]
    if not isinstance(query, Operators) or min(query.ndim, key.ndim, value.ndim) < 2 or query.shape[-1] != key.shape[-1] \
            or key.shape[-2] != value.shape[-2]:
        raise ShapeError(f"scaled_dot_product_attention: query {query.shape}, key {key.shape} and value {value.shape} do not fit: "
                         "they are (*, L, E), (*, S, E) and (*, S, V)")
    if is_causal and attn_mask is not None:
        raise ArgumentError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if any(dtype_kind(x.dtype) != "f" for x in (query, key, value)) or (attn_mask is not None and dtype_kind(attn_mask.dtype) not in "fb"):
        given = ", ".join(str(x.dtype) for x in (query, key, value, attn_mask) if x is not None)
        raise DTypeError(f"scaled_dot_product_attention: takes float tensors, and a mask of floats or bools (mask.bool()), got {given}")
    if not 0.0 <= dropout_p <= 1.0:
        raise ArgumentError(f"scaled_dot_product_attention: dropout_p must be from 0 to 1, got {dropout_p}")
    factor = 1.0 / root(max(1, query.shape[-1])) if scale is None else scale
    if enable_gqa:
        key, value = _shared_heads(query, key), _shared_heads(query, value)
    alike = query.dtype == key.dtype == value.dtype and query.dtype.itemsize >= 4 and 0 not in (*query.shape, *key.shape, *value.shape)
    if attn_mask is None and not dropout_p and alike and isinstance(factor, (int, float)):
        return _fused(query, key, value, is_causal, float(factor))
    weights = _attention_weights(query, key, attn_mask, is_causal, factor)
    return matmul(dropout(weights, dropout_p) if dropout_p else weights, value)


@on_nodes
def _fused(query: Any, key: Any, value: Any, is_causal: bool, scale: float) -> Any:
    """In one operation, which has no array of all weights; see ops/attention/fused.py."""
    batch = broadcast_shapes("scaled_dot_product_attention", [x.shape[:-2] for x in (query, key, value)])
    flat = [mv.reshape(mv.expand(x, (*batch, *x.shape[-2:])), (prod(batch), *x.shape[-2:])) for x in (query, key, value)]
    out = bind(REGISTRY["dot_product_attention"], tuple(flat), {"scale": scale, "causal": bool(is_causal), **NO_MASK})
    return mv.reshape(out, (*batch, *out.shape[-2:]))


@on_nodes
def _shared_heads(query: Any, x: Any) -> Any:
    """x (*, heads, S, E) with each head repeated, as many times as query has more of them."""
    if query.ndim < 3 or x.ndim < 3 or not x.shape[-3] or query.shape[-3] % x.shape[-3]:
        raise ShapeError("scaled_dot_product_attention: enable_gqa takes (*, heads, L, E), with query's heads a multiple of key's and "
                         f"value's, got {query.shape} and {x.shape}")
    *lead, heads, length, size = x.shape
    groups = mv.expand(mv.reshape(x, (*lead, heads, 1, length, size)), (*lead, heads, query.shape[-3] // heads, length, size))
    return mv.reshape(groups, (*lead, query.shape[-3], length, size))


@on_nodes
def _attention_weights(query: Any, key: Any, mask: Any, is_causal: bool, scale: float) -> Any:
    product = matmul(query, mT(key))
    scores = (unrounded(product) if dtypes.is_half(product.dtype) else product) * scale         # 16 bits are rounded as weights, once
    if is_causal:
        shape = scores.shape[-2:]
        sees = le(iota(shape, 1, dtypes.int32), iota(shape, 0, dtypes.int32))
        scores = where(sees, scores, const(float("-inf"), scores.dtype))
    elif mask is not None and mask.dtype == dtypes.bool_:
        scores = where(mask, scores, const(float("-inf"), scores.dtype))
    elif mask is not None:
        scores = scores + cast(mask, scores.dtype)
    weights = softmax(scores, -1) if mask is None or not scores.aval.size else softmax_or_zeros(scores)
    return cast(weights, product.dtype) if dtypes.is_half(product.dtype) else weights


# ------------------------------------------------------------------------------------------------------------- many heads


def _heads_mask(name: str, n: int, heads: int, length: int, size: int, attn_mask: Any, key_padding_mask: Any, is_causal: bool,
                like: Any) -> Any:
    """One mask as scaled_dot_product_attention takes it: bools (True may be attended to) or numbers to add; None for none."""
    masks = []
    if attn_mask is not None:
        per_head = (n * heads, length, size)
        if attn_mask.shape not in ((length, size), (1, length, size), per_head):
            raise ShapeError(f"{name}: attn_mask must be {(length, size)} or {per_head}, got {attn_mask.shape}")
        per_sample = attn_mask.ndim == 3 and attn_mask.shape[0] != 1
        masks.append(attn_mask.reshape(n, heads, length, size) if per_sample else attn_mask.reshape(length, size))
    elif is_causal:
        masks.append(PUBLIC["ones"](length, size, dtype=dtypes.bool_, device=like.device).triu(1))
    if key_padding_mask is not None:
        padding = key_padding_mask.unsqueeze(0) if key_padding_mask.ndim == 1 else key_padding_mask
        if padding.shape != (n, size):
            raise ShapeError(f"{name}: key_padding_mask must be {(n, size)}, got {key_padding_mask.shape}")
        masks.append(padding.reshape(n, 1, 1, size))
    if any(dtype_kind(m.dtype) not in "fb" for m in masks):
        raise DTypeError(f"{name}: masks hold bools or floats, got {', '.join(str(m.dtype) for m in masks)}")
    if all(m.dtype == dtypes.bool_ for m in masks):
        allowed = [~m for m in masks]
        return None if not allowed else allowed[0] if len(allowed) == 1 else allowed[0] & allowed[1]
    added = [PUBLIC["zeros"](m.shape, dtype=like.dtype, device=like.device).masked_fill(m, float("-inf")) if m.dtype == dtypes.bool_
             else m for m in masks]
    return added[0] if len(added) == 1 else added[0] + added[1]


@functional
def multi_head_attention_forward(
        query: Array, key: Array, value: Array, embed_dim_to_check: int, num_heads: int, in_proj_weight: Array, in_proj_bias: Array,
        bias_k: Array, bias_v: Array, add_zero_attn: bool, dropout_p: float, out_proj_weight: Array, out_proj_bias: Array,
        training: bool = True, key_padding_mask: Array = None, need_weights: bool = True, attn_mask: Array = None,
        use_separate_proj_weight: bool = False, q_proj_weight: Array = None, k_proj_weight: Array = None, v_proj_weight: Array = None,
        static_k: Array = None, static_v: Array = None, average_attn_weights: bool = True, is_causal: bool = False) -> Any:
    """(result, weights or None): what nn.MultiheadAttention computes, of its parameters (Vaswani et al. 2017).

    query (L, N, E), key (S, N, E), value (S, N, E), or all without N; see nn.MultiheadAttention for the masks and the weights.
    static_k, static_v: (N * num_heads, S, E / num_heads), taken in place of the projected key and value. dtype: float; masks bool or float.
    Raises ShapeError where sizes do not fit, DTypeError for other masks, ArgumentError for one of bias_k and bias_v alone.

    >>> m = nn.MultiheadAttention(4, 2)
    >>> x = tg.rand(5, 3, 4)
    >>> y, weights = nn.functional.multi_head_attention_forward(
    ...     x, x, x, 4, 2, m.in_proj_weight, m.in_proj_bias, None, None, False, 0.0, m.out_proj.weight, m.out_proj.bias)
    >>> y.shape, weights.shape
    ((5, 3, 4), (3, 5, 5))
    """
    name = "multi_head_attention_forward"
    if query.ndim not in (2, 3) or key.ndim != query.ndim or value.ndim != query.ndim:
        raise ShapeError(f"{name}: query, key and value must be (length, N, features) or (length, features), all three alike, got "
                         f"{query.shape}, {key.shape} and {value.shape}")
    single = query.ndim == 2
    q, k, v = (x.unsqueeze(0) if single else x.transpose(0, 1) for x in (query, key, value))
    n, length, embed = q.shape
    if embed != embed_dim_to_check or num_heads < 1 or embed % num_heads:
        raise ShapeError(f"{name}: query {query.shape} must have {embed_dim_to_check} features, a multiple of num_heads {num_heads}")
    if k.shape[:2] != v.shape[:2] or k.shape[0] != n:
        raise ShapeError(f"{name}: query {query.shape}, key {key.shape} and value {value.shape} differ in N, or key and value in their "
                         "length")
    head = embed // num_heads
    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    linear = FUNCTIONAL["linear"]
    q, k, v = (linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True))
    extra = 0
    if (bias_k is None) != (bias_v is None) or (bias_k is not None and (static_k is not None or static_v is not None)):
        raise ArgumentError(f"{name}: give bias_k and bias_v together, and not with static_k and static_v")
    if bias_k is not None:
        k, v = (PUBLIC["cat"]([x, b.expand(n, 1, embed)], 1) for x, b in ((k, bias_k), (v, bias_v)))
        extra += 1
    k, v = (given.reshape(n, num_heads, given.shape[-2], head).transpose(1, 2).reshape(n, given.shape[-2], embed)
            if given is not None else x for x, given in ((k, static_k), (v, static_v)))
    size = k.shape[1] - extra
    mask = _heads_mask(name, n, num_heads, length, size, attn_mask, key_padding_mask, is_causal, q)
    if add_zero_attn:
        k, v = (PUBLIC["cat"]([x, PUBLIC["zeros"](n, 1, embed, dtype=x.dtype, device=x.device)], 1) for x in (k, v))
        extra += 1
    if extra and mask is not None:
        mask = FUNCTIONAL["pad"](mask, (0, extra), value=True if mask.dtype == dtypes.bool_ else 0.0)
    q, k, v = (x.reshape(n, -1, num_heads, head).transpose(1, 2) for x in (q, k, v))
    p = dropout_p if training else 0.0
    seen = None
    if need_weights:
        seen = dropout(_attention_weights(q, k, mask, False, head**-0.5), p)
        heads = matmul(seen, v)
        seen = seen.mean(1) if average_attn_weights else seen
    else:
        heads = scaled_dot_product_attention(q, k, v, mask, p)
    if random_state.is_torchs() and not single:             # as torch's lies in memory: a dropout of it draws in that order
        return linear(heads.permute(2, 0, 1, 3).reshape(length, n, embed), out_proj_weight, out_proj_bias), seen
    out = linear(heads.transpose(1, 2).reshape(n, length, embed), out_proj_weight, out_proj_bias)
    if single:
        return out.squeeze(0), None if seen is None else seen.squeeze(0)
    return out.transpose(0, 1), seen
