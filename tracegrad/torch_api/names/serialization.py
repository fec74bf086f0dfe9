"""torch.serialization: see `torch_api/checkpoints.py`."""

from __future__ import annotations

from tracegrad.support.layouts import layout
from tracegrad.torch_api.checkpoints import add_safe_globals, clear_safe_globals, get_safe_globals, load, safe_globals, save

__all__ = ["add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "safe_globals", "save"]


def _get_layout(name: str) -> layout:
    """The layout of a name like "torch.sparse_coo"."""
    return layout(name.removeprefix("torch."))


_get_layout.__module__ = "torch.serialization"          # under this name files have it
