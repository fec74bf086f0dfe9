"""What transformers enters while it makes masks under vmap."""

from __future__ import annotations

from contextlib import nullcontext


class TransformGetItemToIndex(nullcontext[None]):
    """Nothing: `x[i]` takes tensors of vmap here."""
