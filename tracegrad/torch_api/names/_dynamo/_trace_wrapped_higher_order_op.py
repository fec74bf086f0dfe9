"""What transformers enters while it makes masks under vmap: `x[i]` takes tensors of vmap here."""

from __future__ import annotations

from tracegrad.torch_api.names._markers import Unchanged

__all__ = ["TransformGetItemToIndex"]

TransformGetItemToIndex = Unchanged
