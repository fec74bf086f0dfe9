"""torch.nn.modules.transformer: what transformers that programs write take from it beside the layers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import tracegrad as tg


def _get_clones(module: Any, N: int) -> Any:
    """N copies of a module."""
    return tg.nn.ModuleList([deepcopy(module) for _ in range(N)])


def _get_activation_fn(activation: str) -> Callable[..., Any]:
    """The function "relu" or "gelu"."""
    if activation not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    return getattr(tg.nn.functional, activation)  # type: ignore[no-any-return]
