"""torch.nn.attention.bias: causal masks for queries and keys of different lengths. Start at `causal_lower_right`."""

from __future__ import annotations

import warnings
from enum import IntEnum
from typing import Any

import tracegrad as tg
from tracegrad.tensors.tensor import Tensor


class CausalVariant(IntEnum):
    """Where the triangle's diagonal begins, or ends."""

    UPPER_LEFT, LOWER_RIGHT = 1, 2


class CausalBias(Tensor):
    """A mask (queries, keys) of bools, True where a query sees a key. What is computed of one is an ordinary tensor."""

    variant: CausalVariant
    seq_len_q: int
    seq_len_kv: int

    def __new__(cls, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> Any:
        if not isinstance(variant, CausalVariant):
            raise AssertionError(f"variant must be a CausalVariant, got {type(variant).__name__}")
        lower = variant is CausalVariant.LOWER_RIGHT
        if lower and seq_len_q > seq_len_kv:
            warnings.warn("Lower right causal bias will produce NaNs in the output when seq_len_q > seq_len_kv!", stacklevel=3)
        mask = tg.ones(seq_len_q, seq_len_kv, dtype="bool").tril(seq_len_kv - seq_len_q if lower else 0)
        made: Any = mask.as_subclass(cls)
        made.variant, made.seq_len_q, made.seq_len_kv = variant, seq_len_q, seq_len_kv
        return made

    def __init__(self, variant: CausalVariant, seq_len_q: int, seq_len_kv: int) -> None:
        """`__new__` has made it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.as_subclass(Tensor) if isinstance(a, CausalBias) else a for a in args]
        named = {k: a.as_subclass(Tensor) if isinstance(a, CausalBias) else a for k, a in (kwargs or {}).items()}
        return func(*plain, **named)


def causal_upper_left(*size: int) -> CausalBias:
    """The mask of (queries, keys) whose first query sees the first key."""
    rows, columns = size
    return CausalBias(CausalVariant.UPPER_LEFT, rows, columns)


def causal_lower_right(*size: int) -> CausalBias:
    """The mask of (queries, keys) whose last query sees the last key: queries that follow what a cache has."""
    rows, columns = size
    return CausalBias(CausalVariant.LOWER_RIGHT, rows, columns)
