"""torch.utils.model_zoo: the older place of torch.hub's names."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from tracegrad.torch_api.names.hub import load_state_dict_from_url

__all__ = ["load_url", "tqdm"]

load_url = load_state_dict_from_url


def tqdm(iterable: Iterable[Any] = (), *_: Any, **__: Any) -> Any:
    """tqdm's progress bar where it is installed, else the iterable."""
    try:
        return import_module("tqdm").tqdm(iterable, *_, **__)
    except ImportError:
        return iterable
