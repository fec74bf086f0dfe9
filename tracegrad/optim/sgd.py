"""Gradient descent: plain and with momentum, averaged, and by signs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import PUBLIC
from tracegrad.optim.optimizer import Counting, Optimizer, at_least, given, zeros_like
from tracegrad.optim.param_group import ParamGroup
from tracegrad.tensors.tensor import Tensor, from_array


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (Nesterov's if asked for), as torch.optim.SGD.

    dtype: of the parameters, any float or complex one. Raises ArgumentError for negative rates, and for nesterov without a momentum.

    >>> model = nn.Linear(3, 2)
    >>> opt = tg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    """

    _implementation = MappingProxyType({"foreach": None, "differentiable": False, "fused": None})

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False, *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
                                      maximize=maximize), implementation)

    def _check(self, group: ParamGroup) -> None:
        at_least("momentum", group["momentum"])
        at_least("weight_decay", group["weight_decay"])
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ArgumentError("nesterov: needs a momentum above 0 and no dampening")

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        if not given(group["momentum"]):
            return {}
        # The first gradient is not dampened: only where there is dampening does it matter which step this is.
        first = {"started": lambda: from_array(np.zeros((), p.dtype), p.device)} if group["dampening"] else {}
        return {"momentum_buffer": zeros_like(p), **first}

    def _tg_take_over(self, state_dict: Mapping[str, Any]) -> None:
        super()._tg_take_over(state_dict)
        # In torch's state, which has no "started", the momentum is there from the first step on.
        for group, other in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for p, number in zip(group["params"], other["params"], strict=True):
                saved = state_dict["state"].get(number, {})
                if "started" in self.state.get(p, {}) and "started" not in saved and saved.get("momentum_buffer") is not None:
                    self.state[p]["started"].fill_(1.0)

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        momentum, dampening, weight_decay, lr = group["momentum"], group["dampening"], group["weight_decay"], group["lr"]
        for p in params:
            d: Any = p.grad
            if group["maximize"]:
                d = -d
            if weight_decay:
                d = d + p * weight_decay
            if given(momentum):
                mine = self.state[p]
                buffer = mine["momentum_buffer"]
                share = d
                if dampening:
                    share = d * (1.0 - mine["started"] * dampening)
                    mine["started"].fill_(1.0)
                buffer.copy_(buffer * momentum + share)
                d = d + buffer * momentum if group["nesterov"] else buffer
            p.sub_(d * lr)


class ASGD(Counting):
    """Averaged stochastic gradient descent (Polyak & Juditsky 1992), as torch.optim.ASGD; the average of parameter p is state[p]["ax"].

    lambd: decay. alpha: power of the falling rate lr / (1 + lambd lr t)^alpha. t0: the step at which averaging starts.
    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> opt = tg.optim.ASGD(nn.Linear(3, 2).parameters(), lr=0.01)
    """

    _shared = ("step", "eta", "mu")

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
                 weight_decay: float = 0.0, *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay, maximize=maximize), implementation)

    def _check(self, group: ParamGroup) -> None:
        at_least("weight_decay", group["weight_decay"])

    def _start(self, group: ParamGroup, name: str) -> float:
        return {"step": 0.0, "eta": 0.0, "mu": 1.0}[name]

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        return {"ax": zeros_like(p)}

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        lambd, lr = group["lambd"], group["lr"]

        def numbers(step: Tensor, eta: Tensor, mu: Tensor) -> tuple[Any, Any]:
            used = PUBLIC["where"](step > 1, eta, lr).to(step.dtype), mu.to(step.dtype, copy=True)    # lr, as eta keeps it, at first
            eta.copy_(lr / (step * (lr * lambd) + 1.0) ** group["alpha"])
            mu.copy_(1.0 / (step - group["t0"]).clamp(min=1.0))
            return used

        for p, mine, (eta, mu) in self._counted(group, params, numbers):
            g: Any = p.grad
            g = -g if group["maximize"] else g
            if group["weight_decay"]:
                g = g + p * group["weight_decay"]
            p.copy_(p * (1.0 - eta * lambd) - g * eta)
            mine["ax"].copy_(mine["ax"] + (p - mine["ax"]) * mu)


class Rprop(Counting):
    """Resilient backpropagation (Riedmiller & Braun 1993), as torch.optim.Rprop: every element has a step size of its own, which grows
    while the sign of its gradient stays and shrinks when it changes.

    etas: factors by which step sizes shrink and grow. step_sizes: the least and the largest. lr: the one of the first step.
    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> opt = tg.optim.Rprop(nn.Linear(3, 2).parameters(), lr=0.01)
    """

    _computes_with_step = False

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
                 step_sizes: tuple[float, float] = (1e-6, 50.0), *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, etas=tuple(etas), step_sizes=tuple(step_sizes), maximize=maximize), implementation)

    def _check(self, group: ParamGroup) -> None:
        low, high = group["etas"]
        if not 0.0 < low < 1.0 < high:
            raise ArgumentError(f"etas: must be one number below and one above 1, got {group['etas']}")

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        return {"prev": zeros_like(p), "step_size": zeros_like(p)}           # 0: there was no step

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        (low, high), (least, most), where = group["etas"], group["step_sizes"], PUBLIC["where"]
        for p, mine, _ in self._counted(group, params):
            g: Any = p.grad
            g = -g if group["maximize"] else g
            same = g * mine["prev"]
            size = mine["step_size"]
            old = where(size == 0, group["lr"], size)
            size.copy_(where(same > 0, old * high, where(same < 0, old * low, old)).clamp(least, most))
            g = where(same < 0, 0.0, g)
            p.sub_(g.sign() * size)
            mine["prev"].copy_(g)
