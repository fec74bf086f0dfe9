"""Optimizers that scale each element by the size of its past gradients: Adagrad, Adadelta, RMSprop."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.optim.optimizer import Counting, at_least, given, zeros_like
from tracegrad.optim.param_group import ParamGroup
from tracegrad.tensors.tensor import Tensor, from_array


def _gradient(group: ParamGroup, p: Tensor) -> Any:
    """The gradient to minimize by, weight decay added."""
    g: Any = p.grad
    g = -g if group["maximize"] else g
    return g + p * group["weight_decay"] if group["weight_decay"] else g


class Adagrad(Counting):
    """Steps divided by the root of the sum of all squared gradients (Duchi et al. 2011), as torch.optim.Adagrad.

    lr_decay: the rate is lr / (1 + (t - 1) lr_decay). initial_accumulator_value: what the sums start from.
    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> opt = tg.optim.Adagrad(nn.Linear(3, 2).parameters(), lr=0.01)
    """

    _implementation = MappingProxyType({"foreach": None, "differentiable": False, "fused": None})
    _begins_with_state = True

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
                 initial_accumulator_value: float = 0.0, eps: float = 1e-10, *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
                                      initial_accumulator_value=initial_accumulator_value, eps=eps, maximize=maximize), implementation)

    def _check(self, group: ParamGroup) -> None:
        for name in ("lr_decay", "weight_decay", "initial_accumulator_value", "eps"):
            at_least(name, group[name])

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        first = group["initial_accumulator_value"]
        return {"sum": lambda: from_array(np.full(p.shape, complex(first, first) if p.is_complex() else first, p.dtype), p.device)}

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        lr = group["lr"]
        for p, mine, rate in self._counted(group, params, lambda step: lr / ((step - 1.0) * group["lr_decay"] + 1.0)):
            g = _gradient(group, p)
            mine["sum"].copy_(mine["sum"] + g * g)
            p.sub_(g / (mine["sum"].sqrt() + group["eps"]) * rate)


class Adadelta(Counting):
    """Steps as long as the root of the mean square of past steps, over that of the gradients (Zeiler 2012), as torch.optim.Adadelta.

    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> opt = tg.optim.Adadelta(nn.Linear(3, 2).parameters())
    """

    _computes_with_step = False

    def __init__(self, params: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, *,
                 maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize), implementation)

    def _check(self, group: ParamGroup) -> None:
        at_least("eps", group["eps"])
        at_least("weight_decay", group["weight_decay"])
        if not 0 <= group["rho"] <= 1:
            raise ArgumentError(f"rho: must be from 0 to 1, got {group['rho']}")

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        return {"square_avg": zeros_like(p), "acc_delta": zeros_like(p)}

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        rho, eps, lr = group["rho"], group["eps"], group["lr"]
        for p, mine, _ in self._counted(group, params):
            g = _gradient(group, p)
            square, steps = mine["square_avg"], mine["acc_delta"]
            square.copy_(square * rho + g * g * (1.0 - rho))
            delta = (steps + eps).sqrt() / (square + eps).sqrt() * g
            steps.copy_(steps * rho + delta * delta * (1.0 - rho))
            p.sub_(delta * lr)


class RMSprop(Counting):
    """Steps divided by the root of the running mean of squared gradients (Tieleman & Hinton 2012), as torch.optim.RMSprop.

    alpha: how slowly the mean moves. centered: by the running variance instead (Graves 2013). momentum: of the divided gradients.
    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> opt = tg.optim.RMSprop(nn.Linear(3, 2).parameters(), lr=0.01)
    """

    _computes_with_step = False

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0,
                 momentum: float = 0.0, centered: bool = False, *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered,
                                      maximize=maximize), implementation)

    def _check(self, group: ParamGroup) -> None:
        for name in ("eps", "weight_decay", "momentum", "alpha"):
            at_least(name, group[name])

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        wanted = {"square_avg": True, "momentum_buffer": given(group["momentum"]), "grad_avg": group["centered"]}
        return {name: zeros_like(p) for name, needed in wanted.items() if needed}

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        alpha, momentum, lr = group["alpha"], group["momentum"], group["lr"]
        for p, mine, _ in self._counted(group, params):
            g, square = _gradient(group, p), mine["square_avg"]
            square.copy_(square * alpha + g * g * (1.0 - alpha))
            spread = square
            if group["centered"]:
                mean = mine["grad_avg"]
                mean.copy_(mean + (g - mean) * (1.0 - alpha))
                spread = square - mean * mean
            d = g / (spread.sqrt() + group["eps"])
            if given(momentum):
                mine["momentum_buffer"].copy_(mine["momentum_buffer"] * momentum + d)
                d = mine["momentum_buffer"]
            p.sub_(d * lr)
