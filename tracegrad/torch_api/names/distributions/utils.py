"""torch.distributions.utils: private names that packages with distributions of their own ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.graph.operators import PUBLIC


def _standard_normal(shape: Sequence[int], dtype: Any, device: Any) -> Any:
    return PUBLIC["randn"](tuple(shape), dtype=dtype, device=device)


def _sum_rightmost(value: Any, dim: int) -> Any:
    """The sum over the last `dim` dimensions."""
    return value.sum(tuple(range(-dim, 0))) if dim else value
