"""torch.multiprocessing: Python's own queues, locks and contexts. What starts processes is absent: they would share no tensor's memory."""

from __future__ import annotations

import multiprocessing
from typing import Any

from tracegrad.torch_api.modules import ABSENT


def __getattr__(name: str) -> Any:
    if name not in multiprocessing.__all__ or name in ABSENT["torch.multiprocessing"].split():
        raise AttributeError(name)
    return getattr(multiprocessing, name)
