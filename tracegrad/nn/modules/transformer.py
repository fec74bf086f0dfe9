"""The transformer of Vaswani et al. (2017): encoder, decoder, and both. Start at `TransformerEncoderLayer`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.nn import functional, init
from tracegrad.nn.containers import ModuleList
from tracegrad.nn.module import Module
from tracegrad.nn.modules.attention import MultiheadAttention
from tracegrad.nn.modules.dropout import Dropout
from tracegrad.nn.modules.linear import Linear
from tracegrad.nn.modules.normalization import LayerNorm
from tracegrad.tensors.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]
_ACTIVATIONS = "relu", "gelu"


class _Layer(Module):
    """Base of encoder and decoder layers: self-attention, the feed-forward part, and how a part is added to what it was given."""

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int, dropout: float, activation: Activation, layer_norm_eps: float,
                 batch_first: bool, norm_first: bool, bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise ArgumentError(f"{type(self).__name__}: activation must be 'relu', 'gelu' or a function, got {activation!r}")
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype)
        if self._attends_memory:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        parts = 2 + self._attends_memory
        for k in range(1, parts + 1):
            setattr(self, f"norm{k}", LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype))
        for k in range(1, parts + 1):
            setattr(self, f"dropout{k}", Dropout(dropout))
        self.activation = getattr(functional, activation) if isinstance(activation, str) else activation

    _attends_memory = False

    def _added(self, x: Tensor, k: int, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x plus its k-th part, normalized after it, or before the part with norm_first."""
        norm = getattr(self, f"norm{k}")
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))  # type: ignore[no-any-return]

    # The parts, under torch's names: packages override them, and call them.

    def _sa_block(self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool = False) -> Tensor:
        return self.dropout1(self.self_attn(  # type: ignore[no-any-return]
            x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, need_weights=False, is_causal=is_causal)[0])

    def _ff_block(self, x: Tensor) -> Tensor:
        dropout = self.dropout3 if self._attends_memory else self.dropout2
        return dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))  # type: ignore[no-any-return]


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward network, each added to its input and normalized (before the part with norm_first).

    d_model: features. nhead: heads, a divisor of it. dim_feedforward: features inside the feed-forward network. dropout: in four
    places, while training. activation: "relu", "gelu" or a function. batch_first: (N, L, d_model) instead of (L, N, d_model).
    dtype: float. Raises ArgumentError unless nhead divides d_model.

    >>> layer = nn.TransformerEncoderLayer(d_model=16, nhead=4, dim_feedforward=32, batch_first=True)
    >>> y = layer(tg.randn(2, 7, 16))
    """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
                 layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype)

    def forward(self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool = False) -> Tensor:
        """(L, N, d_model) -> the same. Masks as in `MultiheadAttention.forward`; is_causal: src_mask is, or stands for, the causal one."""
        x = self._added(src, 1, lambda x: self._sa_block(x, src_mask, src_key_padding_mask, is_causal))
        return self._added(x, 2, self._ff_block)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder's result, and a feed-forward network. Arguments as in `TransformerEncoderLayer`.

    dtype: float. Raises ArgumentError unless nhead divides d_model.

    >>> layer = nn.TransformerDecoderLayer(d_model=16, nhead=4, dim_feedforward=32)
    >>> y = layer(tg.randn(5, 2, 16), tg.randn(7, 2, 16))          # target, memory
    """

    _attends_memory = True

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu",
                 layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype)

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool = False,
                memory_is_causal: bool = False) -> Tensor:
        """tgt (T, N, d_model) and memory (S, N, d_model) -> (T, N, d_model). Masks as in `MultiheadAttention.forward`."""
        x = self._added(tgt, 1, lambda x: self._sa_block(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))
        x = self._added(x, 2, lambda x: self._mha_block(x, memory, memory_mask, memory_key_padding_mask, memory_is_causal))
        return self._added(x, 3, self._ff_block)

    def _mha_block(self, x: Tensor, mem: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None,
                   is_causal: bool = False) -> Tensor:
        return self.dropout2(self.multihead_attn(  # type: ignore[no-any-return]
            x, mem, mem, attn_mask=attn_mask, key_padding_mask=key_padding_mask, need_weights=False, is_causal=is_causal)[0])


def _copies(name: str, layer: Module, count: int) -> ModuleList:
    if count < 1:
        raise ArgumentError(f"{name}: num_layers must be at least 1, got {count}")
    return ModuleList(copy.deepcopy(layer) for _ in range(count))


class TransformerEncoder(Module):
    """num_layers copies of an encoder layer, which all begin with its values, one after the other, and then `norm`.

    dtype: float, as of the layer. Raises ArgumentError for what is no Module, and for fewer than 1.

    enable_nested_tensor, mask_check: accepted for programs written for torch; they choose a fast path there and mean nothing here.

    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32), num_layers=2)
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
                 mask_check: bool = True) -> None:
        super().__init__()
        self.layers = _copies("TransformerEncoder", encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
                is_causal: bool | None = None) -> Tensor:
        """(L, N, d_model) -> the same. Masks as in `TransformerEncoderLayer.forward`."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """num_layers copies of a decoder layer, which all begin with its values, one after the other, and then `norm`.

    dtype: float, as of the layer. Raises ArgumentError for what is no Module, and for fewer than 1.

    >>> decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32), num_layers=2)
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies("TransformerDecoder", decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
                tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
                tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Tensor:
        """tgt (T, N, d_model) and memory (S, N, d_model) -> (T, N, d_model). Masks as in `TransformerDecoderLayer.forward`."""
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, bool(tgt_is_causal),
                        memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """Encoder and decoder. Weights start as Glorot & Bengio's uniform (2010). custom_encoder, custom_decoder: modules used instead.

    dtype: float. Raises ArgumentError unless nhead divides d_model.

    >>> model = nn.Transformer(d_model=16, nhead=4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=32)
    >>> y = model(tg.randn(7, 2, 16), tg.randn(5, 2, 16))          # source, target
    """

    def __init__(self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
                 dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = "relu", custom_encoder: Module | None = None,
                 custom_decoder: Module | None = None, layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
                 bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        options: dict[str, Any] = dict(
            d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward, dropout=dropout, activation=activation,
            layer_norm_eps=layer_norm_eps, batch_first=batch_first, norm_first=norm_first, bias=bias, device=device, dtype=dtype)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(TransformerEncoderLayer(**options), num_encoder_layers, norm())
        self.decoder = custom_decoder or TransformerDecoder(TransformerDecoderLayer(**options), num_decoder_layers, norm())
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
                memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
                memory_key_padding_mask: Tensor | None = None, src_is_causal: bool | None = None, tgt_is_causal: bool | None = None,
                memory_is_causal: bool = False) -> Tensor:
        """src (S, N, d_model), tgt (T, N, d_model) -> (T, N, d_model); with batch_first N comes first; or both without N.

        Raises ShapeError unless both have d_model features and the same N.
        """
        if src.ndim != tgt.ndim or src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model or (
                src.ndim == 3 and src.shape[1 - self.batch_first] != tgt.shape[1 - self.batch_first]):
            raise ShapeError(f"Transformer: src {src.shape} and tgt {tgt.shape} must have {self.d_model} features and the same N")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(  # type: ignore[no-any-return]
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal, memory_is_causal=memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """The causal mask to add to scores: (sz, sz), -inf above the diagonal and 0 elsewhere."""
        return PUBLIC["full"]((sz, sz), float("-inf"), dtype=dtype, device=device).triu(1)  # type: ignore[no-any-return]
