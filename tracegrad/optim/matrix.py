"""Optimizers that know which parameters are matrices: Adafactor, whose second moments have rows and columns only, and Muon."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from types import MappingProxyType
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.optim.optimizer import Counting, Optimizer, at_least, zeros_like
from tracegrad.optim.param_group import ParamGroup
from tracegrad.support.dtypes import finfo
from tracegrad.tensors.tensor import Tensor, from_array


class Adafactor(Counting):
    """Steps divided by roots of second moments that are kept as a row and a column for each matrix (Shazeer & Stern 2018), as

    torch.optim.Adafactor. Matrices are a parameter's last two dimensions; vectors keep all of theirs. beta2_decay: the moments' share of
    the past is 1 - step^beta2_decay. eps: the least moment (None: the dtype's epsilon), and the least size of a parameter. d: the
    largest root mean square of a step, relative to lr. lr: the largest relative step, which falls with 1 / sqrt(step).
    Raises ArgumentError for a negative lr, DTypeError for complex parameters.

    >>> opt = tg.optim.Adafactor(nn.Linear(3, 2).parameters())
    """

    _complex = _by_elements = False
    _implementation = MappingProxyType({"foreach": None})

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, beta2_decay: float = -0.8, eps: tuple[float | None, float] = (None, 1e-3),
                 d: float = 1.0, weight_decay: float = 0.0, *, maximize: bool = False, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, beta2_decay=beta2_decay, eps=eps, d=d, weight_decay=weight_decay, maximize=maximize),
                         implementation)

    def _check(self, group: ParamGroup) -> None:
        at_least("weight_decay", group["weight_decay"])
        at_least("d", group["d"], 1.0)
        if group["beta2_decay"] > 0:
            raise ArgumentError(f"beta2_decay: must not be above 0, got {group['beta2_decay']}")
        if (group["eps"][0] is not None and group["eps"][0] < 0) or group["eps"][1] < 0:
            raise ArgumentError(f"eps: must not be negative, got {group['eps']}")

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        if p.ndim < 2:
            return {"variance": zeros_like(p)}

        def zeros(*shape: int) -> Any:
            return lambda: from_array(np.zeros(shape, p.dtype), p.device)

        *lead, m, n = p.shape
        return {"row_var": zeros(*lead, m, 1), "col_var": zeros(*lead, 1, n)}

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        lr, decay, d, weight_decay = group["lr"], group["beta2_decay"], group["d"], group["weight_decay"]
        for p, mine, (share, rate) in self._counted(group, params, lambda step: (step**decay, step.rsqrt().clamp(max=lr))):
            g: Any = p.grad
            g = -g if group["maximize"] else g
            share, rate = share.to(dtype=p.dtype), rate.to(dtype=p.dtype)
            least = float(finfo(p.dtype).eps) if group["eps"][0] is None else group["eps"][0]
            size = (p * p).mean().sqrt().clamp(min=group["eps"][1])
            kept: Any = p * (1.0 - lr * weight_decay) if weight_decay else p
            if p.ndim > 1:
                for name, dim in (("row_var", -1), ("col_var", -2)):
                    mine[name].copy_(mine[name].lerp((g * g).mean(dim, True), share))
                rows = mine["row_var"]
                moments = rows * mine["col_var"] / rows.mean(-2, True).clamp(min=least)
            else:
                mine["variance"].copy_(mine["variance"].lerp(g * g, share))
                moments = mine["variance"]
            update = g * moments.clamp(min=least * least).rsqrt()
            longest = ((update * update).mean().sqrt() * (1.0 / d)).clamp(min=1.0)
            p.copy_(kept - update * (size * rate / longest))


class Muon(Optimizer):
    """Steps along the momentum made orthogonal by Newton-Schulz iterations (Jordan et al. 2024), as torch.optim.Muon, for matrices only.

    ns_coefficients, ns_steps, eps: of the iteration, which is in the parameter's dtype (torch: in bfloat16). adjust_lr_fn: by what lr is
    multiplied for a parameter (m, n): "original" (None): sqrt(max(1, m / n)); "match_rms_adamw": 0.2 sqrt(max(m, n));
    "spectral_unclamped": sqrt(m / n). Raises ArgumentError for a negative lr, DTypeError for complex parameters.

    >>> opt = tg.optim.Muon([nn.Linear(3, 2).weight])
    """

    _complex = _by_elements = False
    _implementation = MappingProxyType({})

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True,
                 ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7, ns_steps: int = 5,
                 adjust_lr_fn: str | None = None, **implementation: Any) -> None:
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
                                      ns_coefficients=ns_coefficients, eps=eps, ns_steps=ns_steps, adjust_lr_fn=adjust_lr_fn),
                         implementation)
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ShapeError(f"Muon: takes matrices only, got a parameter of shape {p.shape}; give the others to another optimizer")

    def _check(self, group: ParamGroup) -> None:
        at_least("momentum", group["momentum"])
        at_least("weight_decay", group["weight_decay"])
        if len(group["ns_coefficients"]) != 3 or not 0 <= group["ns_steps"] < 100:
            raise ArgumentError(f"ns_steps: must be from 0 to 99, and ns_coefficients three numbers, got {group['ns_steps']} and "
                                f"{group['ns_coefficients']}")
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw", "spectral_unclamped"):
            raise ArgumentError("adjust_lr_fn: must be None, 'original', 'match_rms_adamw' or 'spectral_unclamped', got "
                                f"{group['adjust_lr_fn']!r}")

    def _new_state(self, group: ParamGroup, p: Tensor) -> dict[str, Any]:
        return {"momentum_buffer": zeros_like(p)}

    def _update(self, group: ParamGroup, params: list[Tensor]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        for p in params:
            g: Any = p.grad
            buffer = self.state[p]["momentum_buffer"]
            buffer.copy_(buffer.lerp(g, 1.0 - momentum))
            update = _orthogonal(g.lerp(buffer, momentum) if group["nesterov"] else buffer, group)
            m, n = p.shape
            factor = {"match_rms_adamw": 0.2 * sqrt(max(m, n)), "spectral_unclamped": sqrt(m / max(1, n))}.get(
                group["adjust_lr_fn"], sqrt(max(1.0, m / max(1, n))))
            p.copy_(p * (1.0 - lr * group["weight_decay"]) - update * (lr * factor))


def _orthogonal(x: Any, group: ParamGroup) -> Any:
    """Nearly U V^T of x = U S V^T: a x + (b x x^T + c (x x^T)^2) x, again and again."""
    a, b, c = group["ns_coefficients"]
    tall = x.shape[0] > x.shape[1]
    y = x.mT if tall else x
    y = y / y.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = PUBLIC["matmul"](y, y.mT)
        y = y * a + PUBLIC["matmul"](gram * b + PUBLIC["matmul"](gram, gram) * c, y)
    return y.mT if tall else y
