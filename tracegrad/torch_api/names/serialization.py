"""torch.serialization: see `torch_api/checkpoints.py`."""

from __future__ import annotations

from tracegrad.torch_api.checkpoints import add_safe_globals, clear_safe_globals, get_safe_globals, load, safe_globals, save

__all__ = ["add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "safe_globals", "save"]
