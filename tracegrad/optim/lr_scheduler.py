"""Learning-rate schedulers, torch.optim.lr_scheduler's names. Start at `LRScheduler`.

`step()` once per epoch (or batch) sets the learning rate of every group. Most compute it from the present one, so that several can act on
one optimizer. A traced step reads the learning rate at every call: no scheduler compiles anything, nor does one that moves the momentum.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.optim.optimizer import Optimizer


class LRScheduler:
    """Base of schedulers. A subclass gives `get_lr()`: the learning rates of all groups in epoch `last_epoch`.

    last_epoch: -1 to begin, or the epoch to go on from (groups need their "initial_lr" then). Making one begins epoch 0.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(f"{type(self).__name__}: expected an Optimizer, got {type(optimizer).__name__}")
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
        self._initial = True
        try:
            self.step()
        finally:
            self._initial = False

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
        self._set(self.get_lr() if epoch is None or closed is None else closed())

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

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs. Functions are left out: make the scheduler with the same ones."""
        return {k: v for k, v in vars(self).items() if k != "optimizer" and not _holds_functions(v)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken (the optimizer's own state holds its present learning rate)."""
        vars(self).update(state_dict)


def _holds_functions(value: Any) -> bool:
    return callable(value) or (isinstance(value, list) and any(map(callable, value)))


def _per_group(call: str, name: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """One value for all groups, or a sequence with one for each."""
    values = list(value) if isinstance(value, (list, tuple)) else [value] * len(optimizer.param_groups)
    if len(values) != len(optimizer.param_groups):
        raise ArgumentError(f"{call}: {name} has {len(values)} entries for {len(optimizer.param_groups)} groups")
    return values


# ----------------------------------------------------------------------------------------------------- by a factor, by a function


class LambdaLR(LRScheduler):
    """The initial learning rate times `lr_lambda(epoch)` (one function, or one per group)."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
                 last_epoch: int = -1) -> None:
        self.lr_lambdas = _per_group(type(self).__name__, "lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, self.lr_lambdas, strict=True)]


class MultiplicativeLR(LRScheduler):
    """The present learning rate times `lr_lambda(epoch)` (one function, or one per group)."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
                 last_epoch: int = -1) -> None:
        self.lr_lambdas = _per_group(type(self).__name__, "lr_lambda", lr_lambda, optimizer)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self._initial:
            return self._present()
        return [lr * f(self.last_epoch) for lr, f in zip(self._present(), self.lr_lambdas, strict=True)]


class StepLR(LRScheduler):
    """The learning rate times `gamma` every `step_size` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.gamma if self.last_epoch and self.last_epoch % self.step_size == 0 else 1.0)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """The learning rate times `gamma` at each epoch of `milestones`."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(self.gamma ** self.milestones[self.last_epoch] if self.last_epoch in self.milestones else 1.0)

    def _get_closed_form_lr(self) -> list[float]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma ** passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The learning rate times `factor`, until epoch `total_iters`."""

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
    """The learning rate times a factor that goes evenly from `start_factor` to `end_factor` over `total_iters` epochs."""

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
        if self._initial or self.last_epoch > self.total_iters:
            return self._present()
        rise = self.end_factor - self.start_factor
        return self._times(1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))

    def _get_closed_form_lr(self) -> list[float]:
        share = min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * share) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The learning rate times `gamma` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._times(1.0 if self._initial else self.gamma)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma ** self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The initial learning rate times (1 - epoch / total_iters)^power, 0 from there on."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self._initial or self.last_epoch > self.total_iters:
            return self._present()
        return self._times(((1.0 - self.last_epoch / self.total_iters) / (1.0 - (self.last_epoch - 1) / self.total_iters)) ** self.power)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power for base in self.base_lrs]


# -------------------------------------------------------------------------------------------------------------------- cosines


class CosineAnnealingLR(LRScheduler):
    """From the initial learning rate to `eta_min` over `T_max` epochs along half a cosine, and back (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        epoch, low = self.last_epoch, self.eta_min
        if self._initial and epoch == 0:
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
        self._set(self.get_lr())


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
    """

    def __init__(self, optimizer: Optimizer, base_lr: float | Sequence[float], max_lr: float | Sequence[float], step_size_up: int = 2000,
                 step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
                 scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle", cycle_momentum: bool = True,
                 base_momentum: float | Sequence[float] = 0.8, max_momentum: float | Sequence[float] = 0.9, last_epoch: int = -1) -> None:
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ArgumentError(f"CyclicLR: mode must be 'triangular', 'triangular2' or 'exp_range', got {mode!r}; or give scale_fn")
        base = _per_group("CyclicLR", "base_lr", base_lr, optimizer)
        self.max_lrs = _per_group("CyclicLR", "max_lr", max_lr, optimizer)
        self.total_size = float(step_size_up + (step_size_up if step_size_down is None else step_size_down))
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self.cycle_momentum = mode, gamma, cycle_momentum
        self._scale_fn, self.scale_mode = scale_fn, scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.optimizer = optimizer
        if last_epoch == -1:
            for group, rate in zip(optimizer.param_groups, base, strict=True):
                group.schedule(rate)
        if cycle_momentum:
            self.base_momentums = _per_group("CyclicLR", "base_momentum", base_momentum, optimizer)
            self.max_momentums = _per_group("CyclicLR", "max_momentum", max_momentum, optimizer)
            self._own_momentum()
        for group, rate in zip(optimizer.param_groups, base, strict=True):
            group["initial_lr"] = rate
        super().__init__(optimizer, last_epoch)
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
    and back.
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
        highest = _per_group("OneCycleLR", "max_lr", max_lr, optimizer)
        least = _per_group("OneCycleLR", "base_momentum", base_momentum, optimizer)
        most = _per_group("OneCycleLR", "max_momentum", max_momentum, optimizer)
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


# ---------------------------------------------------------------------------------------------------------------- combinations


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
    """One scheduler after the other: the next begins (at its epoch 0) at each epoch of `milestones`."""

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
    """Several schedulers that step together, each from the learning rate that the one before it set."""

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
        self.min_lrs = _per_group("ReduceLROnPlateau", "min_lr", min_lr, optimizer)
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


__all__ = ["ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LRScheduler",
           "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR",
           "StepLR"]
