"""Multi-head attention."""

from __future__ import annotations

from typing import Any

from tracegrad import dtypes
from tracegrad.creation import empty, zeros
from tracegrad.errors import ArgumentError, DTypeError, ShapeError
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.modules.linear import Linear
from tracegrad.nn.parameter import Parameter
from tracegrad.operators import PUBLIC
from tracegrad.tensor import Tensor


class MultiheadAttention(Module):
    """Scaled dot-product attention of several heads (Vaswani et al. 2017), with learned maps of query, key, value and result.

    embed_dim: E, a multiple of num_heads. kdim, vdim: features of key and value, if not E. dropout: of the weights, while training.
    add_bias_kv: one more, learned, position at the end of key and value. add_zero_attn: one more position of zeros. The parameters are
    torch's: in_proj_weight (3E, E), or q_proj_weight, k_proj_weight, v_proj_weight if kdim or vdim differ from E; in_proj_bias; bias_k,
    bias_v; out_proj.weight, out_proj.bias.

    >>> attention = nn.MultiheadAttention(16, 4, batch_first=True)
    >>> y, weights = attention(*[tg.randn(2, 7, 16)] * 3)          # (2, 7, 16), (2, 7, 7)
    """

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
                 add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(f"MultiheadAttention: embed_dim {embed_dim} must be a multiple of num_heads {num_heads}")
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"MultiheadAttention: dropout must be from 0 to 1, got {dropout}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.head_dim, self.add_zero_attn = embed_dim // num_heads, add_zero_attn

        def parameter(name: str, wanted: bool, *shape: int) -> None:
            self.register_parameter(name, Parameter(empty(*shape, dtype=dtype, device=device)) if wanted else None)

        together = self.kdim == self.vdim == embed_dim
        parameter("in_proj_weight", together, 3 * embed_dim, embed_dim)
        parameter("q_proj_weight", not together, embed_dim, embed_dim)
        parameter("k_proj_weight", not together, embed_dim, self.kdim)
        parameter("v_proj_weight", not together, embed_dim, self.vdim)
        parameter("in_proj_bias", bias, 3 * embed_dim)
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        parameter("bias_k", add_bias_kv, 1, 1, embed_dim)
        parameter("bias_v", add_bias_kv, 1, 1, embed_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values of the maps in anew; biases start as zeros."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
                attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        """The result, of the query's shape, and the weights (N, L, S), or None unless need_weights.

        query: (L, N, E), key: (S, N, kdim), value: (S, N, vdim); with batch_first N comes first; or all without N. Masks hold bools (True
        may NOT be attended to) or numbers that are added to the scores: key_padding_mask (N, S), attn_mask (L, S) or (N * num_heads, L, S).
        is_causal: attn_mask is the causal one (which it then need not be given for). average_attn_weights: the mean over the heads;
        False gives (N, num_heads, L, S). Weights are a result like any other: without need_weights they are never held in memory.
        A position that may attend to nothing has weights of 0 (where torch gives NaN with need_weights, and 0 without).
        Raises ShapeError, DTypeError for what does not fit.
        """
        self._check(query, key, value)
        single = query.ndim == 2
        q, k, v = (x.unsqueeze(0) if single else x if self.batch_first else x.transpose(0, 1) for x in (query, key, value))
        if k.shape[:2] != v.shape[:2] or k.shape[0] != q.shape[0]:
            raise ShapeError(f"MultiheadAttention: query {query.shape}, key {key.shape} and value {value.shape} differ in N, or key and "
                             "value in their length")
        n, length = q.shape[:2]
        mask = self._mask(n, length, k.shape[1], attn_mask, key_padding_mask, is_causal, q)
        q, k, v = (F.linear(x, w, b) for x, (w, b) in zip((q, k, v), self._maps(), strict=True))
        extra = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (PUBLIC["cat"]([x, b.expand(n, 1, self.embed_dim)], 1) for x, b in ((k, self.bias_k), (v, self.bias_v)))
            extra += 1
        if self.add_zero_attn:
            k, v = (PUBLIC["cat"]([x, zeros(n, 1, self.embed_dim, dtype=x.dtype, device=x.device)], 1) for x in (k, v))
            extra += 1
        if extra and mask is not None:
            mask = F.pad(mask, (0, extra), value=True if mask.dtype == dtypes.bool_ else 0.0)
        q, k, v = (x.reshape(n, -1, self.num_heads, self.head_dim).transpose(1, 2) for x in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = F.dropout(_attention_weights(q, k, mask), dropout)
            heads = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        out = self.out_proj(heads.transpose(1, 2).reshape(n, length, self.embed_dim))
        if single:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, x, features in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if x.ndim not in (2, 3) or x.ndim != query.ndim or x.shape[-1] != features:
                form = f"(N, length, {features})" if self.batch_first else f"(length, N, {features})"
                raise ShapeError(f"MultiheadAttention: {name} must be {form} or (length, {features}), all three alike, got {x.shape}")

    def _maps(self) -> list[tuple[Any, Any]]:
        """Weight and bias for query, key and value."""
        w = self.in_proj_weight
        weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight] if w is None else w.chunk(3)
        return list(zip(weights, [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3), strict=True))

    def _mask(self, n: int, length: int, size: int, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool,
              like: Tensor) -> Any:
        """One mask as F.scaled_dot_product_attention takes it: bools (True may be attended to) or numbers to add; None for none."""
        masks = []
        if attn_mask is not None:
            per_head = (n * self.num_heads, length, size)
            if attn_mask.shape not in ((length, size), per_head):
                raise ShapeError(f"MultiheadAttention: attn_mask must be {(length, size)} or {per_head}, got {attn_mask.shape}")
            masks.append(attn_mask.reshape(-1, self.num_heads, length, size) if attn_mask.ndim == 3 else attn_mask)
        elif is_causal:
            masks.append(PUBLIC["ones"](length, size, dtype=dtypes.bool_, device=like.device).triu(1))
        if key_padding_mask is not None:
            padding = key_padding_mask.unsqueeze(0) if key_padding_mask.ndim == 1 else key_padding_mask
            if padding.shape != (n, size):
                raise ShapeError(f"MultiheadAttention: key_padding_mask must be {(n, size)}, got {key_padding_mask.shape}")
            masks.append(padding.reshape(n, 1, 1, size))
        if any(m.dtype.kind not in "fb" for m in masks):
            raise DTypeError(f"MultiheadAttention: masks hold bools or floats, got {', '.join(str(m.dtype) for m in masks)}")
        if all(m.dtype == dtypes.bool_ for m in masks):
            allowed = [~m for m in masks]
            return None if not allowed else allowed[0] if len(allowed) == 1 else allowed[0] & allowed[1]
        added = [PUBLIC["zeros"](m.shape, dtype=like.dtype, device=like.device).masked_fill(m, float("-inf")) if m.dtype == dtypes.bool_
                 else m for m in masks]
        return added[0] if len(added) == 1 else added[0] + added[1]


def _attention_weights(query: Any, key: Any, mask: Any) -> Any:
    """softmax(query keyᵀ / sqrt(features) + mask), a row of zeros where nothing may be attended to."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if mask is None:
        return F.softmax(scores, -1)
    scores = PUBLIC["where"](mask, scores, float("-inf")) if mask.dtype == dtypes.bool_ else scores + mask.to(dtype=scores.dtype)
    nothing = scores.detach().amax(-1, True) == float("-inf")
    return F.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
