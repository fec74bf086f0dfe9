"""torch.serialization: see `tg.save` and `tg.load`."""

from __future__ import annotations

from tracegrad.nn.saving import load, save

__all__ = ["load", "save"]
