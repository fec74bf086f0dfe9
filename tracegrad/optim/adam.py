"""Adam and its relatives: running means of the gradient and of its size, freed of their bias towards the zeros they start from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import PUBLIC
from tracegrad.optim.optimizer import Counting, at_least, one_minus_power, zeros_like
from tracegrad.optim.param_group import ParamGroup
from tracegrad.tensors.tensor import Tensor

Betas = tuple[float, float]


def _pair(betas: Any) -> Any:
    """As a pair, where it is a sequence; `_check` refuses anything else."""
    return tuple(betas) if isinstance(betas, (tuple, list)) else betas


class _Moments(Counting):
    """Base: `betas`, `eps`, `weight_decay` (added to the gradient, or decoupled), and the means exp_avg and exp_avg_sq."""

    def _check(self, group: ParamGroup) -> None:
        at_least("eps", group["eps"])
        at_least("weight_decay", group["weight_decay"])
        if not isinstance(group["betas"], tuple) or len(group["betas"]) != 2 or not all(0 <= beta < 1 for beta in group["betas"]):
            raise ArgumentError(f"betas: must be two numbers from 0 to below 1, got {group['betas']}")

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        return {"exp_avg": zeros_like(p), "exp_avg_sq": zeros_like(p)}

    def _gradient(self, group: ParamGroup, p: Tensor, lr: Any) -> Any:
        """The gradient to minimize by, after weight decay (which shrinks p itself if it is decoupled)."""
        g: Any = p.grad
        g = -g if group["maximize"] else g
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            p.mul_(1.0 - lr * group["weight_decay"])
        elif group["weight_decay"]:
            g = g + p * group["weight_decay"]
        return g

    def _move(self, group: ParamGroup, mine: dict[str, Any], g: Any) -> tuple[Tensor, Tensor]:
        """The means with `g` taken in."""
        beta1, beta2 = group["betas"]
        mean, square = mine["exp_avg"], mine["exp_avg_sq"]
        mean.copy_(mean + (g - mean) * (1.0 - beta1))
        square.copy_(square * beta2 + g * g * (1.0 - beta2))
        return mean, square


class Adam(_Moments):
    """Adam (Kingma & Ba 2015), as torch.optim.Adam; weight decay is added to the gradient, unless decoupled_weight_decay.

    amsgrad: divide by the largest exp_avg_sq so far (Reddi et al. 2018).
    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> model = nn.Linear(3, 2)
    >>> opt = tg.optim.Adam(model.parameters(), lr=1e-3)
    """

    _implementation = MappingProxyType({**_Moments._implementation, "fused": None})

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 amsgrad: bool = False, *, maximize: bool = False, decoupled_weight_decay: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, betas=_pair(betas), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize,
                                      decoupled_weight_decay=decoupled_weight_decay), implementation)

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        new = super()._new_state(group, p)
        return {**new, "max_exp_avg_sq": zeros_like(p)} if group["amsgrad"] else new

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        (beta1, beta2), eps, lr = group["betas"], group["eps"], group["lr"]

        def numbers(step: Tensor) -> tuple[Any, Any]:
            return lr / one_minus_power(beta1, step), one_minus_power(beta2, step) ** 0.5

        for p, mine, (rate, root) in self._counted(group, params, numbers):
            mean, square = self._move(group, mine, self._gradient(group, p, lr))
            if group["amsgrad"]:
                mine["max_exp_avg_sq"].copy_(mine["max_exp_avg_sq"].maximum(square))
                square = mine["max_exp_avg_sq"]
            p.sub_(mean / (square.sqrt() / root + eps) * rate)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), as torch.optim.AdamW: parameters shrink by lr * weight_decay.

    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> model = nn.Linear(3, 2)
    >>> opt = tg.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
                 amsgrad: bool = False, *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True, **implementation)


class Adamax(_Moments):
    """Adam with the largest gradient, decayed, in the place of the mean square (Kingma & Ba 2015, section 7), as torch.optim.Adamax.

    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> opt = tg.optim.Adamax(nn.Linear(3, 2).parameters())
    """

    def __init__(self, params: Iterable[Any], lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, betas=_pair(betas), eps=eps, weight_decay=weight_decay, maximize=maximize,
                                      decoupled_weight_decay=False), implementation)

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        return {"exp_avg": zeros_like(p), "exp_inf": zeros_like(p)}

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        (beta1, beta2), lr = group["betas"], group["lr"]
        for p, mine, rate in self._counted(group, params, lambda step: lr / one_minus_power(beta1, step)):
            g = self._gradient(group, p, lr)
            mean, largest = mine["exp_avg"], mine["exp_inf"]
            mean.copy_(mean + (g - mean) * (1.0 - beta1))
            largest.copy_((largest * beta2).maximum(g.abs() + group["eps"]))
            p.sub_(mean / largest * rate)


class NAdam(_Moments):
    """Adam with Nesterov's momentum (Dozat 2016), as torch.optim.NAdam. momentum_decay: how fast the momentum grows to betas[0].

    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> opt = tg.optim.NAdam(nn.Linear(3, 2).parameters())
    """

    _shared = ("step", "mu_product")

    def __init__(self, params: Iterable[Any], lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *, maximize: bool = False,
                 **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, betas=_pair(betas), eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay,
                                      decoupled_weight_decay=decoupled_weight_decay, maximize=maximize), implementation)

    def _check(self, group: ParamGroup) -> None:
        super()._check(group)
        at_least("momentum_decay", group["momentum_decay"])

    def _start(self, group: ParamGroup, name: str) -> float:
        return 1.0 if name == "mu_product" else 0.0

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        (beta1, beta2), lr = group["betas"], group["lr"]
        fall = group["momentum_decay"] * math.log(0.96)

        def numbers(step: Tensor, product: Tensor) -> tuple[Any, Any, Any]:
            now, after = ((1.0 - (t * fall).exp() * 0.5) * beta1 for t in (step, step + 1.0))
            product.mul_(now.to(product.dtype))
            product = product.to(step.dtype)
            return lr * (1.0 - now) / (1.0 - product), lr * after / (1.0 - product * after), one_minus_power(beta2, step) ** 0.5

        for p, mine, (of_gradient, of_mean, root) in self._counted(group, params, numbers):
            g = self._gradient(group, p, lr)
            mean, square = self._move(group, mine, g)
            p.sub_((g * of_gradient + mean * of_mean) / (square.sqrt() / root + group["eps"]))


class RAdam(_Moments):
    """Adam that divides by the mean square only once enough steps make that a good estimate (Liu et al. 2020), as torch.optim.RAdam.

    Parameters of any shape; dtype: float or complex. Raises ArgumentError for a negative lr.

    >>> opt = tg.optim.RAdam(nn.Linear(3, 2).parameters())
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 decoupled_weight_decay: bool = False, *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, betas=_pair(betas), eps=eps, weight_decay=weight_decay,
                                      decoupled_weight_decay=decoupled_weight_decay, maximize=maximize), implementation)

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        if not params:
            return
        (beta1, beta2), lr, where = group["betas"], group["lr"], PUBLIC["where"]
        limit = 2.0 / (1.0 - beta2) - 1.0

        def numbers(step: Tensor) -> tuple[Any, Any, Any]:
            length = _averaged_length(beta2, step)
            rectification = ((length - 4.0) * (length - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * length)).clamp(min=0.0) ** 0.5
            return lr / one_minus_power(beta1, step), length > 5.0, rectification * one_minus_power(beta2, step) ** 0.5

        for p, mine, (rate, enough, factor) in self._counted(group, params, numbers):
            mean, square = self._move(group, mine, self._gradient(group, p, lr))
            p.sub_(mean * rate * where(enough, factor / (square.sqrt() + group["eps"]), 1.0))


def _averaged_length(beta: float, step: Tensor) -> Any:
    """2 / (1 - beta) - 1 - 2 t beta^t / (1 - beta^t), over how many steps the mean after t steps reaches, without its cancellation.

    With a = -log(beta) and x = a t the last term is (2 / a) x / (exp(x) - 1), which is near 2 / a at first; so what is computed is how
    far from that it is, by its series (Bernoulli's numbers) where x is small.
    """
    if beta == 0:
        return step * 0.0 + 1.0
    a = -math.log(beta)
    x = step * a
    square = x * x
    near = x * 0.5 - square * (1 / 12 - square * (1 / 720 - square * (1 / 30240)))
    far = 1.0 - x / x.expm1()
    return PUBLIC["where"](x < 0.1, near, far) * (2.0 / a) + (2.0 / (1.0 - beta) - 1.0 - 2.0 / a)
