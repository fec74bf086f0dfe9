"""torch.utils' names: checkpoints of derivatives, and `data`, which is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracegrad.utils import checkpoint

if TYPE_CHECKING:
    from tracegrad.utils import data

__all__ = ["checkpoint", "data"]


def __getattr__(name: str) -> Any:
    if name != "data":
        raise AttributeError(f"tracegrad.utils has no {name!r}")
    return import_module("tracegrad.utils.data")
