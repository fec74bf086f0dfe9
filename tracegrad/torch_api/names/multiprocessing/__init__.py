"""torch.multiprocessing: Python's own queues, locks and contexts. What starts processes is absent: they would share no tensor's memory."""

from __future__ import annotations

import multiprocessing
from typing import Any

from tracegrad.torch_api.modules import ABSENT


def __getattr__(name: str) -> Any:
    if name not in multiprocessing.__all__ or name in ABSENT["torch.multiprocessing"].split():
        raise AttributeError(name)
    return getattr(multiprocessing, name)


def set_sharing_strategy(new_strategy: str) -> None:
    """Nothing: no tensor's memory is shared among processes. Raises AssertionError for another name than torch's two."""
    assert new_strategy in get_all_sharing_strategies(), new_strategy


def get_sharing_strategy() -> str:
    """What torch says before `set_sharing_strategy`."""
    return "file_descriptor"


def get_all_sharing_strategies() -> set[str]:
    """torch's two."""
    return {"file_descriptor", "file_system"}
