"""Schedulers that go up and down: cosines, cycles, one cycle. The last two move the momentum as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from tracegrad.errors import ArgumentError
from tracegrad.optim.lr_scheduler.base import LRScheduler, per_group
from tracegrad.optim.optimizer import Optimizer


class CosineAnnealingLR(LRScheduler):
    """From the initial learning rate to `eta_min` over `T_max` epochs along half a cosine, and back (Loshchilov & Hutter 2017).

    Raises ArgumentError for a T_max below 1.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ArgumentError(f"CosineAnnealingLR: T_max must be at least 1, got {T_max}")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        epoch, low = self.last_epoch, self.eta_min
        if self._is_initial and epoch == 0:
            return self._present()
        if self._step_count == 1 and epoch > 0:
            return self._get_closed_form_lr()
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [lr + (base - low) * rise for base, lr in zip(self.base_lrs, self._present(), strict=True)]
        ratio = (1 + math.cos(math.pi * epoch / self.T_max)) / (1 + math.cos(math.pi * (epoch - 1) / self.T_max))
        return [ratio * (lr - low) + low for lr in self._present()]

    def _get_closed_form_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half cosines from the initial learning rate to `eta_min`, the first over `T_0` epochs, each `T_mult` times as long as the one before.

    `step(epoch)` takes fractions, to move within an epoch: step(epoch + batch / batches) (Loshchilov & Hutter 2017).
    Raises ArgumentError unless T_0 and T_mult are integers from 1 on.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0)
    >>> scheduler = tg.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=5)
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_0 != int(T_0) or T_0 < 1 or T_mult != int(T_mult) or T_mult < 1:
            raise ArgumentError(f"CosineAnnealingWarmRestarts: T_0 and T_mult must be integers of at least 1, got {T_0} and {T_mult}")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, float(last_epoch)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go on to the next epoch, or to `epoch`, which may be a fraction."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        self._step_count += 1
        self._go(epoch)

    def _go(self, epoch: float | None = None) -> None:
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        elif epoch < 0:
            raise ArgumentError(f"CosineAnnealingWarmRestarts.step: epoch must not be negative, got {epoch}")
        elif epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_i, self.T_cur = self.T_0, epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult ** n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult ** n
        self.last_epoch = math.floor(epoch)
        self._set(self._called_get_lr())


# --------------------------------------------------------------------------------------- cycles, which may move the momentum, too


class _Momentum(LRScheduler):
    """Base of schedulers that set the momentum ("momentum", or the first of "betas") beside the learning rate."""

    cycle_momentum: bool

    def _own_momentum(self) -> None:
        self._beta = [("betas" in group) for group in self.optimizer.param_groups]
        for group, beta in zip(self.optimizer.param_groups, self._beta, strict=True):
            if not beta and "momentum" not in group:
                raise ArgumentError(f"{type(self).__name__}: cycle_momentum needs an optimizer with momentum or betas; pass "
                                    "cycle_momentum=False")
            group.at_run_time("betas" if beta else "momentum")

    def _set_momentum(self, momenta: Iterable[float]) -> None:
        for group, beta, momentum in zip(self.optimizer.param_groups, self._beta, momenta, strict=True):
            if beta:
                group["betas"] = (momentum, group["betas"][1])
            else:
                group["momentum"] = momentum


class CyclicLR(_Momentum):
    """From `base_lr` to `max_lr` in `step_size_up` batches and back in `step_size_down`, and so on (Smith 2017).

    mode: "triangular", "triangular2" (each cycle half as high), "exp_range" (gamma^batch as high); or scale_fn, a function of the cycle's
    number, or of the batch's with scale_mode="iterations". cycle_momentum: the momentum goes from max_momentum to base_momentum meanwhile.
    Raises ArgumentError for another mode.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0, momentum=0.9)
    >>> scheduler = tg.optim.lr_scheduler.CyclicLR(opt, base_lr=0.1, max_lr=1.0)
    """

    def __init__(self, optimizer: Optimizer, base_lr: float | Sequence[float], max_lr: float | Sequence[float], step_size_up: int = 2000,
                 step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
                 scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle", cycle_momentum: bool = True,
                 base_momentum: float | Sequence[float] = 0.8, max_momentum: float | Sequence[float] = 0.9, last_epoch: int = -1) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ArgumentError(f"CyclicLR: mode must be 'triangular', 'triangular2' or 'exp_range', got {mode!r}; or give scale_fn")
        base = per_group("CyclicLR", "base_lr", base_lr, optimizer)
        self.max_lrs = per_group("CyclicLR", "max_lr", max_lr, optimizer)
        self.total_size = float(step_size_up + (step_size_up if step_size_down is None else step_size_down))
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self.cycle_momentum = mode, gamma, cycle_momentum
        self._scale_fn, self.scale_mode = scale_fn, scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.optimizer = optimizer
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group.schedule(rate)
        if cycle_momentum:
            self.base_momentums = per_group("CyclicLR", "base_momentum", base_momentum, optimizer)
            self.max_momentums = per_group("CyclicLR", "max_momentum", max_momentum, optimizer)
            self._own_momentum()
        super().__init__(optimizer, last_epoch)             # epoch 0 has the rate that an earlier scheduler began with, as in torch
        self.base_lrs = base

    def scale_fn(self, x: float) -> float:
        """How high a cycle is."""
        if self._scale_fn is not None:
            return self._scale_fn(x)
        if self.mode == "triangular":
            return 1.0
        return float(self.gamma ** x) if self.mode == "exp_range" else 0.5 ** (x - 1)

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            self._set_momentum(most - (most - least) * height for least, most in zip(self.base_momentums, self.max_momentums, strict=True))
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]


class OneCycleLR(_Momentum):
    """Up to `max_lr` and down to far below the start, within `total_steps` batches (Smith & Topin 2019); `step()` once per batch.

    total_steps, or epochs and steps_per_epoch. pct_start: the share of steps that rise. anneal_strategy: "cos" or "linear".
    div_factor, final_div_factor: the first rate is max_lr / div_factor, the last that / final_div_factor. three_phase: down to the first
    rate in as many steps as up, and then to the last. cycle_momentum: the momentum goes from max_momentum to base_momentum
    and back. Raises ArgumentError without total_steps, or epochs and steps_per_epoch.

    >>> opt = tg.optim.SGD([nn.Parameter(tg.zeros(2))], lr=1.0, momentum=0.9)
    >>> scheduler = tg.optim.lr_scheduler.OneCycleLR(opt, max_lr=1.0, total_steps=100)
    """

    def __init__(self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None, epochs: int | None = None,
                 steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos", cycle_momentum: bool = True,
                 base_momentum: float | Sequence[float] = 0.85, max_momentum: float | Sequence[float] = 0.95, div_factor: float = 25.0,
                 final_div_factor: float = 1e4, three_phase: bool = False, last_epoch: int = -1) -> None:
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ArgumentError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
        total = total_steps if total_steps is not None else (epochs or 0) * (steps_per_epoch or 0)
        if total < 1:
            raise ArgumentError(f"OneCycleLR: the number of steps must be at least 1, got {total}")
        if not 0 <= pct_start <= 1:
            raise ArgumentError(f"OneCycleLR: pct_start must be from 0 to 1, got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        self.total_steps, self.anneal_strategy, self.cycle_momentum = total, anneal_strategy, cycle_momentum
        self.optimizer = optimizer
        up = pct_start * total - 1
        low_first, last = ("initial_lr", "max_momentum"), ("min_lr", "max_momentum")
        high = ("max_lr", "base_momentum")
        # Phases: the step where each ends, and (rate, momentum) at its start and end.
        self._phases: list[tuple[float, tuple[str, str], tuple[str, str]]] = [(up, low_first, high)]
        if three_phase:
            self._phases.append((2 * pct_start * total - 2, high, low_first))
            self._phases.append((total - 1, low_first, last))
        else:
            self._phases.append((total - 1, high, last))
        highest = per_group("OneCycleLR", "max_lr", max_lr, optimizer)
        least = per_group("OneCycleLR", "base_momentum", base_momentum, optimizer)
        most = per_group("OneCycleLR", "max_momentum", max_momentum, optimizer)
        if cycle_momentum:
            self._own_momentum()
        if last_epoch == -1:
            for group, rate, low, top in zip(optimizer.param_groups, highest, least, most, strict=True):
                group["initial_lr"], group["max_lr"] = rate / div_factor, rate
                group["min_lr"] = group["initial_lr"] / final_div_factor
                if cycle_momentum:
                    group["base_momentum"], group["max_momentum"] = low, top
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ArgumentError(f"OneCycleLR: step {step} is beyond total_steps {self.total_steps}")
        start = 0.0
        end, begins, ends = self._phases[0]
        for end, begins, ends in self._phases:              # noqa: B007  (what the loop stops at is used after it)
            if step <= end or end == self._phases[-1][0]:
                break
            start = end
        share = (step - start) / (end - start)
        if self.cycle_momentum:
            self._set_momentum(self._between(group[begins[1]], group[ends[1]], share) for group in self.optimizer.param_groups)
        return [self._between(group[begins[0]], group[ends[0]], share) for group in self.optimizer.param_groups]

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start
