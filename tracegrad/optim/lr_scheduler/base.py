"""The base of learning-rate schedulers. Start at `LRScheduler.step`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tracegrad.errors import ArgumentError, ArgumentTypeError
from tracegrad.graph.operators import Named
from tracegrad.optim.optimizer import Optimizer


class LRScheduler(Named):
    """Base of schedulers. A subclass gives `get_lr()`: the learning rates of all groups in epoch `last_epoch`.

    last_epoch: -1 to begin, or the epoch to go on from (groups need their "initial_lr" then). Making one begins epoch 0.
    Rates are floats; one that is a tensor of one element stays it, of its dtype.
    Raises ArgumentError for what is no Optimizer.

    >>> class Halving(tg.optim.lr_scheduler.LRScheduler):
    ...     def get_lr(self):
    ...         return [base * 0.5 ** self.last_epoch for base in self.base_lrs]
    >>> scheduler = Halving(tg.optim.SGD([nn.Parameter(tg.ones(2))], lr=1.0))
    >>> scheduler.step()
    >>> scheduler.get_last_lr()
    [0.5]
    """

    _is_initial = _get_lr_called_within_step = False            # torch's names, which schedulers that programs bring ask for

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        is_optimizer(type(self).__name__, optimizer)
        self.optimizer, self.last_epoch = optimizer, last_epoch
        for i, group in enumerate(optimizer.param_groups):
            if "initial_lr" not in group:
                if last_epoch != -1:
                    raise ArgumentError(f"{type(self).__name__}: last_epoch is {last_epoch}, but group {i} has no 'initial_lr' to go on "
                                        "from; load the optimizer's state first, or begin with last_epoch=-1")
                group["initial_lr"] = float(group["lr"])
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self._step_count = 0
        self._begin()

    def _begin(self) -> None:
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """The learning rates of the groups in this epoch, computed from those of the last."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr")

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch, or to `epoch`."""
        self._step_count += 1
        self._go(epoch)

    def _go(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed = getattr(self, "_get_closed_form_lr", None)
        self._set(self._called_get_lr() if epoch is None or closed is None else closed())

    def _called_get_lr(self) -> list[float]:
        self._get_lr_called_within_step = True
        try:
            return self.get_lr()
        finally:
            self._get_lr_called_within_step = False

    def _set(self, rates: Iterable[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group.schedule(rate)
        self._last_lr = self._present()

    def _present(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _times(self, factor: float) -> list[float]:
        return [lr * factor for lr in self._present()]

    def get_last_lr(self) -> list[float]:
        """The learning rates that the last step set, one per group."""
        return list(self._last_lr)

    _trace_reads: ClassVar[dict[str, Any]] = {"get_last_lr": get_last_lr}       # a traced function that calls it is recorded anew

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs. Functions are left out: make the scheduler with the same ones."""
        return {k: v for k, v in vars(self).items() if k != "optimizer" and not _holds_functions(v)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken (the optimizer's own state holds its present learning rate)."""
        vars(self).update(state_dict)


def _holds_functions(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(map(callable, value)))


def is_optimizer(call: str, optimizer: Any) -> None:
    """Raises ArgumentTypeError for what is no Optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise ArgumentTypeError(f"{call}: optimizer: expected an Optimizer, got {type(optimizer).__name__}")


def per_group(call: str, name: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """One value for all groups, or a sequence with one for each."""
    is_optimizer(call, optimizer)
    values = list(value) if isinstance(value, (list, tuple)) else [value] * len(optimizer.param_groups)
    if len(values) != len(optimizer.param_groups):
        raise ArgumentError(f"{call}: {name} has {len(values)} entries for {len(optimizer.param_groups)} groups")
    return values
