"""torch.signal's names: `windows`."""

from __future__ import annotations

from tracegrad.signal import windows

__all__ = ["windows"]
