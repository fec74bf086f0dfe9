"""torch.utils' names that are about derivatives."""

from __future__ import annotations

from tracegrad.utils import checkpoint

__all__ = ["checkpoint"]
