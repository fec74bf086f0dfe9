"""torch.serialization: see `torch_api/checkpoints.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.support.layouts import layout
from tracegrad.torch_api.checkpoints import add_safe_globals, clear_safe_globals, get_safe_globals, load, safe_globals, save
from tracegrad.torch_api.devices import device
from tracegrad.torch_api.names.types import FileLike, Storage

__all__ = ["DEFAULT_PROTOCOL", "MAP_LOCATION", "FileLike", "Storage", "add_safe_globals", "clear_safe_globals",
           "default_restore_location", "get_safe_globals",
           "load", "safe_globals", "save"]

DEFAULT_PROTOCOL = 2
MAP_LOCATION = Callable[[Storage, str], Storage] | device | str | dict[str, str] | None           # for annotations


def default_restore_location(storage: Any, location: str) -> Any:
    """The storage on that device: for functions that are given as map_location."""
    return storage.to(location)


def _get_layout(name: str) -> layout:
    """The layout of a name like "torch.sparse_coo"."""
    return layout(name.removeprefix("torch."))


_get_layout.__module__ = "torch.serialization"          # under this name files have it
