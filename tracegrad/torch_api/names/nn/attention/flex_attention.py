"""torch.nn.attention.flex_attention: attention whose scores and mask are functions of the places. Start at `flex_attention`.

The functions are called once, on index tensors that broadcast against the scores, so they are part of the graph and are fused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tracegrad as tg

_DEFAULT_SPARSE_BLOCK_SIZE = 128
AuxRequest = AuxOutput = None


def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
    """True everywhere."""
    return tg.ones((), dtype=tg.bool)


class BlockMask:
    """A mask as a function of batch, head, query and key; sizes of dimensions that the function ignores are 1.

    mask_mod: the function. shape: (B, H, Q_LEN, KV_LEN). device: where the indices are made.
    """

    def __init__(self, mask_mod: Callable[..., Any], shape: tuple[int, int, int, int], device: Any = None) -> None:
        self.mask_mod, self.shape, self.device = mask_mod, shape, device

    @property
    def seq_lengths(self) -> tuple[int, int]:
        return self.shape[2:]

    def to_dense(self) -> Any:
        """The mask as a tensor of bools of `shape`."""
        mask = self.mask_mod(*_places(self.shape, self.device))
        return tg.broadcast_to(mask, self.shape)

    def to(self, device: Any) -> BlockMask:
        return BlockMask(self.mask_mod, self.shape, device)


def create_mask(mod_fn: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None) -> Any:
    """The mask that `mod_fn` tells, as a tensor of bools of (B or 1, H or 1, Q_LEN, KV_LEN)."""
    return create_block_mask(mod_fn, B, H, Q_LEN, KV_LEN, device).to_dense()


def create_block_mask(mask_mod: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None,
                      BLOCK_SIZE: Any = None, _compile: bool = False) -> BlockMask:
    """The mask of `flex_attention`. mask_mod(batch, head, query, key) is True where a query sees a key."""
    return BlockMask(mask_mod, (B or 1, H or 1, Q_LEN, KV_LEN), device)


def and_masks(*mask_mods: Callable[..., Any]) -> Callable[..., Any]:
    """True where all are."""
    def every(*places: Any) -> Any:
        mask = mask_mods[0](*places)
        for mod in mask_mods[1:]:
            mask = mask & mod(*places)
        return mask
    return every


def or_masks(*mask_mods: Callable[..., Any]) -> Callable[..., Any]:
    """True where one is."""
    def some(*places: Any) -> Any:
        mask = mask_mods[0](*places)
        for mod in mask_mods[1:]:
            mask = mask | mod(*places)
        return mask
    return some


def flex_attention(query: Any, key: Any, value: Any, score_mod: Callable[..., Any] | None = None, block_mask: BlockMask | None = None,
                   scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None) -> Any:
    """softmax(score_mod(query @ key.T * scale)) @ value, where the mask lets a query see a key; 0 for a query that sees none.

    query: (B, H, L, E); key: (B, H or a divisor of it if enable_gqa, S, E); value: (..., S, Ev). score_mod(score, batch, head, query, key)
    gives the score; scale: 1 / sqrt(E) by default. return_lse: also the logarithm of each row's sum, (B, H, L).

    Raises ArgumentError if the numbers of heads differ without enable_gqa.
    """
    if query.shape[1] != key.shape[1]:
        if not enable_gqa or query.shape[1] % key.shape[1]:
            raise tg.ArgumentError(f"flex_attention: query has {query.shape[1]} heads, key {key.shape[1]}; a multiple needs enable_gqa")
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    places = _places(scores.shape, scores.device)
    if score_mod is not None:
        scores = score_mod(scores, *places)
    if block_mask is not None:
        scores = scores.masked_fill(~block_mask.mask_mod(*places), -float("inf"))
    sums = tg.logsumexp(scores, -1, keepdim=True)
    weights = tg.where(sums == -float("inf"), 0.0, tg.exp(scores - sums)).to(value.dtype)
    return (weights @ value, sums.squeeze(-1)) if return_lse else weights @ value


def _places(shape: Any, device: Any) -> tuple[Any, ...]:
    """The index along each dimension, as tensors that broadcast against `shape`."""
    return tuple(tg.arange(n, device=device).reshape([-1 if i == k else 1 for k in range(len(shape))]) for i, n in enumerate(shape))
