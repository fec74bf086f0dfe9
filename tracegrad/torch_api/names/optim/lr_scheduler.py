"""torch.optim.lr_scheduler: the older name of the schedulers' base."""

from __future__ import annotations

from tracegrad.optim.lr_scheduler import LRScheduler


class _LRScheduler(LRScheduler):
    """For schedulers that programs write; torch's own are none of it."""
