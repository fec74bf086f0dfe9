"""Multi-head attention."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.nn import functional as F
from tracegrad.nn import init
from tracegrad.nn.module import Module
from tracegrad.nn.modules.linear import NonDynamicallyQuantizableLinear
from tracegrad.nn.parameter import Parameter
from tracegrad.ops.arguments import only_tensors
from tracegrad.tensors.creation.filled import empty
from tracegrad.tensors.tensor import Tensor


class MultiheadAttention(Module):
    """Scaled dot-product attention of several heads (Vaswani et al. 2017), with learned maps of query, key, value and result.

    embed_dim: E, a multiple of num_heads. kdim, vdim: features of key and value, if not E. dropout: of the weights, while training.
    add_bias_kv: one more, learned, position at the end of key and value. add_zero_attn: one more position of zeros. The parameters are
    torch's: in_proj_weight (3E, E), or q_proj_weight, k_proj_weight, v_proj_weight if kdim or vdim differ from E; in_proj_bias; bias_k,
    bias_v; out_proj.weight, out_proj.bias.
    dtype: float. Raises ArgumentError unless num_heads divides embed_dim, ShapeError for other inputs.

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

        self._qkv_same_embed_dim = together = self.kdim == self.vdim == embed_dim
        parameter("in_proj_weight", together, 3 * embed_dim, embed_dim)
        parameter("q_proj_weight", not together, embed_dim, embed_dim)
        parameter("k_proj_weight", not together, embed_dim, self.kdim)
        parameter("v_proj_weight", not together, embed_dim, self.vdim)
        parameter("in_proj_bias", bias, 3 * embed_dim)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, device, dtype)
        parameter("bias_k", add_bias_kv, 1, 1, embed_dim)
        parameter("bias_v", add_bias_kv, 1, 1, embed_dim)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
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
        turned = self.batch_first and query.ndim == 3
        q, k, v = (x.transpose(0, 1) if turned else x for x in (query, key, value))
        separate = self.in_proj_weight is None
        out, weights = F.multi_head_attention_forward(
            q, k, v, self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn,
            self.dropout, self.out_proj.weight, self.out_proj.bias, self.training, key_padding_mask, need_weights, attn_mask, separate,
            self.q_proj_weight, self.k_proj_weight, self.v_proj_weight, average_attn_weights=average_attn_weights, is_causal=is_causal)
        return out.transpose(0, 1) if turned else out, weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        only_tensors("MultiheadAttention", query=query, key=key, value=value)
        for name, x, features in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if x.ndim not in (2, 3) or x.ndim != query.ndim or x.shape[-1] != features:
                form = f"(N, length, {features})" if self.batch_first else f"(length, N, {features})"
                raise ShapeError(f"MultiheadAttention: {name} must be {form} or (length, {features}), all three alike, got {x.shape}")
