"""Schedulers made of others, and the one that follows a measure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.optim.lr_scheduler.base import LRScheduler, per_group
from tracegrad.optim.optimizer import Optimizer


def _checked(call: str, schedulers: Iterable[Any], optimizer: Optimizer | None) -> list[Any]:
    found = list(schedulers)
    if not found:
        raise ArgumentError(f"{call}: got no schedulers")
    for k, scheduler in enumerate(found):
        if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
            raise ArgumentError(f"{call}: number {k} is a {type(scheduler).__name__}; expected schedulers whose step() needs no argument")
        if scheduler.optimizer is not (optimizer or found[0].optimizer):
            raise ArgumentError(f"{call}: number {k} ({type(scheduler).__name__}) belongs to another optimizer")
    return found


class _Several(LRScheduler):
    _schedulers: list[Any]

    def state_dict(self) -> dict[str, Any]:
        own = {k: v for k, v in vars(self).items() if k not in ("optimizer", "_schedulers")}
        return {**own, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        vars(self).update({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, mine in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(mine)


class SequentialLR(_Several):
    """One scheduler after the other: the next begins (at its epoch 0) at each epoch of `milestones`.

    Raises ArgumentError for no schedulers.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> first, then = tg.optim.lr_scheduler.ConstantLR(opt), tg.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    >>> scheduler = tg.optim.lr_scheduler.SequentialLR(opt, [first, then], milestones=[5])
    """

    def __init__(self, optimizer: Optimizer, schedulers: Iterable[LRScheduler], milestones: Sequence[int], last_epoch: int = -1) -> None:
        self._schedulers = _checked("SequentialLR", schedulers, optimizer)
        if len(milestones) != len(self._schedulers) - 1:
            raise ArgumentError(f"SequentialLR: {len(self._schedulers)} schedulers need {len(self._schedulers) - 1} milestones, "
                                f"got {len(milestones)}")
        self._milestones = list(milestones)
        self.optimizer, self.last_epoch = optimizer, last_epoch + 1
        # Making the schedulers took a step with each: that is undone, and the first begins.
        for group in optimizer.param_groups:
            group.schedule(group["initial_lr"])
        _undo(self)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._begin()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch."""
        if epoch is not None:
            raise ArgumentError("SequentialLR.step: takes no epoch")
        self.last_epoch += 1
        k = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[k]
        if k and self._milestones[k - 1] == self.last_epoch:
            scheduler._go(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo(scheduler: Any) -> None:
    for s in scheduler._schedulers:
        if isinstance(s, _Several):
            _undo(s)
        else:
            s.last_epoch -= 1


class ChainedScheduler(_Several):
    """Several schedulers that step together, each from the learning rate that the one before it set.

    Raises ArgumentError for no schedulers.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> warm_up, decay = tg.optim.lr_scheduler.ConstantLR(opt, total_iters=2), tg.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    >>> scheduler = tg.optim.lr_scheduler.ChainedScheduler([warm_up, decay])
    """

    def __init__(self, schedulers: Iterable[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._schedulers = _checked("ChainedScheduler", schedulers, optimizer)
        self.optimizer = optimizer or self._schedulers[0].optimizer
        self._last_lr = self._schedulers[-1]._present()

    def _begin(self) -> None:
        for scheduler in self._schedulers:
            scheduler._begin()

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch."""
        if epoch is not None:
            raise ArgumentError("ChainedScheduler.step: takes no epoch")
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._schedulers[-1]._present()


class ReduceLROnPlateau(LRScheduler):
    """The learning rate times `factor` when a measure, given to `step(metrics)`, has not improved for more than `patience` epochs.

    mode: whether "min" or "max" is better. threshold: what counts as better, relative to the best ("rel") or by itself ("abs").
    cooldown: epochs to wait after a reduction. min_lr: the least rate (one, or one per group). eps: reductions below it are not made.
    Raises ArgumentError for another mode, or unless factor is below 1.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> tg.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=2).step(0.5)
    """

    def __init__(self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
                 threshold_mode: str = "rel", cooldown: int = 0, min_lr: float | Sequence[float] = 0.0, eps: float = 1e-8) -> None:
        if factor >= 1.0:
            raise ArgumentError(f"ReduceLROnPlateau: factor must be below 1, got {factor}")
        if mode not in ("min", "max"):
            raise ArgumentError(f"ReduceLROnPlateau: mode must be 'min' or 'max', got {mode!r}")
        if threshold_mode not in ("rel", "abs"):
            raise ArgumentError(f"ReduceLROnPlateau: threshold_mode must be 'rel' or 'abs', got {threshold_mode!r}")
        self.optimizer = optimizer
        self.min_lrs = per_group("ReduceLROnPlateau", "min_lr", min_lr, optimizer)
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.last_epoch, self.best = 0, math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0
        self._last_lr = self._present()

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Go on to the next epoch. metrics: the measure, a number or a tensor of one element (which is waited for)."""
        now = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._better(now):
            self.best, self.num_bad_epochs = now, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            lowered = [max(lr * self.factor, low) for lr, low in zip(self._present(), self.min_lrs, strict=True)]
            self._set(new if lr - new > self.eps else lr for lr, new in zip(self._present(), lowered, strict=True))
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._present()

    def _better(self, now: float) -> bool:
        sign = 1.0 if self.mode == "max" else -1.0
        bar = self.best * (1.0 + sign * self.threshold) if self.threshold_mode == "rel" else self.best + sign * self.threshold
        return now > bar if self.mode == "max" else now < bar
