"""Averages of a model's weights over training: equal ones (SWA) and exponential ones (EMA), torch.optim.swa_utils' names."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import PUBLIC
from tracegrad.nn.module import Module
from tracegrad.nn.modules.normalization import _BatchNorm
from tracegrad.optim.lr_scheduler.base import LRScheduler, per_group
from tracegrad.optim.optimizer import Optimizer
from tracegrad.support import dtypes
from tracegrad.support.modes import no_grad
from tracegrad.tensors.creation.filled import zeros
from tracegrad.tensors.tensor import Tensor

Average = Callable[[Tensor, Tensor, Any], Any]


def get_swa_avg_fn() -> Average:
    """The mean of all models so far (Izmailov et al. 2018): (average, parameter, how many went in) -> the new average."""
    return lambda average, parameter, count: average + (parameter - average) / (count + 1)


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """average * decay + parameter * (1 - decay)."""
    if not 0.0 <= decay <= 1.0:
        raise ArgumentError(f"get_ema_avg_fn: decay must be from 0 to 1, got {decay}")
    return lambda average, parameter, count: average * decay + parameter * (1.0 - decay)


def get_swa_multi_avg_fn() -> Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]:
    """`get_swa_avg_fn` for lists of tensors, in place."""
    return _multi(get_swa_avg_fn())


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]:
    """`get_ema_avg_fn` for lists of tensors, in place."""
    return _multi(get_ema_avg_fn(decay))


def _multi(average: Average) -> Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]:
    def update(averages: Sequence[Tensor], parameters: Sequence[Tensor], count: Any) -> None:
        for a, p in zip(averages, parameters, strict=True):
            a.copy_(average(a, p, count))
    return update


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of the model's: `update_parameters(model)` takes its present ones in.

    avg_fn: the new average of (average, parameter, count); multi_avg_fn: the same for lists, in place. Both absent: the mean of all.
    use_buffers: buffers are averaged as well; otherwise they are the model's. `update_parameters` may stand in a traced step.

    >>> model = nn.Linear(3, 2)
    >>> ema = tg.optim.swa_utils.AveragedModel(model, multi_avg_fn=tg.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    >>> ema.update_parameters(model)
    """

    def __init__(self, model: Module, device: Any = None, avg_fn: Average | None = None,
                 multi_avg_fn: Callable[[Sequence[Tensor], Sequence[Tensor], Any], None] | None = None, use_buffers: bool = False) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("AveragedModel: give avg_fn or multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device=device)
        self.register_buffer("n_averaged", zeros((), dtype=dtypes.int64, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the parameters of `model` into the averages; the first time they become the averages."""
        update = self.multi_avg_fn or _multi(self.avg_fn or get_swa_avg_fn())
        pairs = list(zip(self.module.parameters(), model.parameters(), strict=True))
        buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))
        if self.use_buffers:
            pairs += buffers  # type: ignore[arg-type]
        where = PUBLIC["where"]
        with no_grad():
            own = [a.detach() for a, _ in pairs]
            theirs = [p.detach().to(device=a.device) for a, p in zip(own, (p for _, p in pairs), strict=True)]
            # No branch on the count, which a trace could not take: of the first call the update is computed and dropped.
            averages = [a.clone() for a in own]
            counts = {a.device: self.n_averaged.to(device=a.device) for a in own}
            for device, count in counts.items():
                update([a for a in averages if a.device is device], [p for p in theirs if p.device is device], count)
            for a, average, p in zip(own, averages, theirs, strict=True):
                a.copy_(where(counts[a.device] == 0, p, average))
            if not self.use_buffers:
                for mine, given in buffers:
                    mine.copy_(given.detach().to(device=mine.device))
            self.n_averaged.add_(1)


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Measure the running statistics of all batch normalizations anew: one pass over the loader's inputs (or the first of its tuples)."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not layers:
        return
    training, momenta = model.training, [m.momentum for m in layers]
    for m in layers:
        m.reset_running_stats()
        m.momentum = None                                   # a plain average over the batches
    model.train()
    try:
        with no_grad():
            for batch in loader:
                x = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(x if device is None else x.to(device=device))
    finally:
        for m, momentum in zip(layers, momenta, strict=True):
            m.momentum = momentum
        model.train(training)


class SWALR(LRScheduler):
    """From the present learning rate to `swa_lr` within `anneal_epochs` epochs, along a cosine ("cos") or a line ("linear")."""

    def __init__(self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10, anneal_strategy: str = "cos",
                 last_epoch: int = -1) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(f"SWALR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        if anneal_epochs != int(anneal_epochs) or anneal_epochs < 0:
            raise ArgumentError(f"SWALR: anneal_epochs must be an integer of at least 0, got {anneal_epochs}")
        for group, rate in zip(optimizer.param_groups, per_group("SWALR", "swa_lr", swa_lr, optimizer), strict=True):
            group["swa_lr"] = rate
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            goal, lr = group["swa_lr"], float(group["lr"])
            start = goal if before == 1 else (lr - before * goal) / (1 - before)
            rates.append(goal * now + start * (1 - now))
        return rates

    def _share(self, step: int) -> float:
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self.anneal_strategy == "cos" else t


__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn", "update_bn"]
