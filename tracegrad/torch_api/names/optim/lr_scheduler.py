"""torch.optim.lr_scheduler: the older name of the schedulers' base."""

from __future__ import annotations

from tracegrad.optim.lr_scheduler import LRScheduler as _LRScheduler

__all__ = ["_LRScheduler"]
