"""Helpers on parameters, torch.nn.utils' names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracegrad.modes import no_grad
from tracegrad.operators import PUBLIC
from tracegrad.tensor import Tensor


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0) -> Any:
    """Scale all gradients, in place, so that their common norm is at most max_norm; returns the norm it was (a 0-d tensor).

    Works inside a traced step: there is no branch on the norm.
    """
    grads = _grads(parameters)
    with no_grad():
        if not grads:
            return PUBLIC["zeros"](())
        norms = PUBLIC["stack"]([g.norm(norm_type) for g in grads])
        total = norms.norm(norm_type)
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit every element of all gradients, in place, to [-clip_value, clip_value]."""
    with no_grad():
        for g in _grads(parameters):
            g.clamp_(-clip_value, clip_value)


def _grads(parameters: Tensor | Iterable[Tensor]) -> list[Any]:
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [g for g in (p.grad for p in given) if g is not None]


__all__ = ["clip_grad_norm_", "clip_grad_value_"]
