"""Schedulers that compute a factor from the epoch: steps, exponentials, lines, polynomials, functions of the user's."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

from tracegrad.errors import ArgumentError, ArgumentTypeError
from tracegrad.optim.lr_scheduler.base import LRScheduler, per_group
from tracegrad.optim.optimizer import Optimizer


def _functions(call: str, lr_lambda: Any, optimizer: Optimizer) -> list[Callable[[int], float]]:
    found = per_group(call, "lr_lambda", lr_lambda, optimizer)
    for f in found:
        if not callable(f):
            raise ArgumentTypeError(f"{call}: lr_lambda: expected functions of the epoch, got {type(f).__name__}")
    return found


class _OfFunctions(LRScheduler):
    """Base of schedulers of `lr_lambdas`. As in torch, a state has None for a function, and the attributes of an object that is called."""

    lr_lambdas: list[Callable[[int], float]]

    def state_dict(self) -> dict[str, Any]:
        objects = [None if isinstance(f, FunctionType) else dict(getattr(f, "__dict__", {})) for f in self.lr_lambdas]
        return {**super().state_dict(), "lr_lambdas": objects}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for f, saved in zip(self.lr_lambdas, state_dict.get("lr_lambdas", ()), strict=False):
            if saved:
                f.__dict__.update(saved)


class LambdaLR(_OfFunctions):
    """The initial learning rate times `lr_lambda(epoch)` (one function, or one per group).

    Raises ArgumentError unless there are as many functions as groups.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.LambdaLR(opt, lambda epoch: 0.9 ** epoch)
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
                 last_epoch: int = -1) -> None:
        self.lr_lambdas = _functions(type(self).__name__, lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class MultiplicativeLR(_OfFunctions):
    """The present learning rate times `lr_lambda(epoch)` (one function, or one per group).

    Raises ArgumentError unless there are as many functions as groups.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.MultiplicativeLR(opt, lambda epoch: 0.9)
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
                 last_epoch: int = -1) -> None:
        self.lr_lambdas = _functions(type(self).__name__, lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self._is_initial:
            return self._present()
        return [lr * f(self.last_epoch) for lr, f in zip(self._present(), self.lr_lambdas, strict=True)]


class StepLR(LRScheduler):
    """The learning rate times `gamma` every `step_size` epochs. Raises ArgumentError for a step_size below 1.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.StepLR(opt, step_size=10)
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ArgumentError(f"StepLR: step_size must be at least 1, got {step_size}")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.gamma if self.last_epoch and self.last_epoch % self.step_size == 0 else 1.0)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """The learning rate times `gamma` at each epoch of `milestones`. Raises ArgumentError for what is no Optimizer.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.MultiStepLR(opt, milestones=[10, 20])
    """

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        if not isinstance(milestones, Iterable):
            raise ArgumentTypeError(f"MultiStepLR: milestones: expected a list of epochs, got {type(milestones).__name__}")
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.gamma ** self.milestones[self.last_epoch] if self.last_epoch in self.milestones else 1.0)

    def _get_closed_form_lr(self) -> list[float]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma ** passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The learning rate times `factor`, until epoch `total_iters`. Raises ArgumentError unless factor is from 0 to 1.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.ConstantLR(opt, factor=0.5, total_iters=2)
    """

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise ArgumentError(f"ConstantLR: factor must be from 0 to 1, got {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self._times(self.factor)
        return self._times(1.0 / self.factor if self.last_epoch == self.total_iters else 1.0)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * (self.factor if self.last_epoch < self.total_iters else 1.0) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """The learning rate times a factor that goes evenly from `start_factor` to `end_factor` over `total_iters` epochs.

    Raises ArgumentError unless the factors are from 0 to 1.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=10)
    """

    def __init__(self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5,
                 last_epoch: int = -1) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ArgumentError(f"LinearLR: start_factor must be above 0 and end_factor at least 0, both at most 1, got {start_factor} and "
                                f"{end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self._times(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._present()
        rise = self.end_factor - self.start_factor
        return self._times(1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))

    def _get_closed_form_lr(self) -> list[float]:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * share) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The learning rate times `gamma` every epoch. Raises ArgumentError for what is no Optimizer.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.ExponentialLR(opt, gamma=0.9)
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(1.0 if self._is_initial else self.gamma)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma ** self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The initial learning rate times (1 - epoch / total_iters)^power, 0 from there on. Raises ArgumentError for what is no Optimizer.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.PolynomialLR(opt, total_iters=10)
    """

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._present()
        return self._times(((1.0 - self.last_epoch / self.total_iters) / (1.0 - (self.last_epoch - 1) / self.total_iters)) ** self.power)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power for base in self.base_lrs]
