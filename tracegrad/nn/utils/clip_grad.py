"""Limits on gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tracegrad.distributed.fsdp import sharding_of
from tracegrad.distributed.functional import all_gather
from tracegrad.distributed.world import ProcessGroup
from tracegrad.errors import ArgumentTypeError, AutogradError
from tracegrad.graph.operators import PUBLIC
from tracegrad.graph.primitive import cast
from tracegrad.ops.arguments import on_nodes
from tracegrad.support import dtypes
from tracegrad.support.modes import no_grad
from tracegrad.tensors.tensor import Tensor


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
                    foreach: bool | None = None) -> Any:
    """Scale all gradients, in place, so that their common norm is at most max_norm; returns the norm it was (a 0-d tensor).

    norm_type: the p of the norm, also inf. Works inside a traced step: there is no branch on the norm. error_if_nonfinite: look at the norm
    (so not inside @trace) and raise AutogradError, before any gradient is changed, if it is NaN or infinite. foreach: accepted, for
    programs written for torch; what it chooses there makes no difference here. Of parameters that `fully_shard` has put on the ranks by
    parts it is the norm of all parts.
    """
    for name, value in (("max_norm", max_norm), ("norm_type", norm_type)):
        if not isinstance(value, (int, float, np.floating, np.integer, Tensor)):
            raise ArgumentTypeError(f"clip_grad_norm_: {name} must be a number, got {value!r}")
    given = _listed("clip_grad_norm_", parameters)
    with no_grad():                                             # both halves in one block: small ones are then computed together
        total = _total("clip_grad_norm_", _of_all_ranks(given, norm_type), norm_type, error_if_nonfinite)
        clip_grads_with_norm_(given, max_norm, total)
    return total


def clip_grads_with_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale all gradients, in place, by max_norm / total_norm if that is below 1: the second half of `clip_grad_norm_`."""
    with no_grad():
        grads = _grads("clip_grads_with_norm_", parameters)
        for device, own in by_device(grads).items():
            for g, scaled in zip(own, _scaled(own, total_norm.to(device=device), max_norm), strict=True):
                g._rebind(scaled._node(), "clip_grads_with_norm_")


def get_total_norm(tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
                   foreach: bool | None = None) -> Any:
    """The norm of order norm_type of all tensors taken as one vector, a 0-d tensor; 0 for none."""
    return _total("get_total_norm", [tensors] if isinstance(tensors, Tensor) else list(tensors), norm_type, error_if_nonfinite)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Limit every element of all gradients, in place, to [-clip_value, clip_value]."""
    with no_grad():
        for g in _grads("clip_grad_value_", parameters):
            g.clamp_(-clip_value, clip_value)


def _listed(call: str, parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    if not isinstance(parameters, Iterable):
        raise ArgumentTypeError(f"{call}: parameters: expected a Tensor or an iterable of Tensors, got {type(parameters).__name__}")
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


def _grads(call: str, parameters: Tensor | Iterable[Tensor]) -> list[Any]:
    return [g for g in (p.grad for p in _listed(call, parameters)) if g is not None]


def _of_all_ranks(parameters: list[Tensor], norm_type: float) -> list[Any]:
    """The gradients of parameters that are whole, and of those that lie on ranks by parts the norms of all ranks' parts."""
    found: list[Any] = []
    parts: dict[ProcessGroup, list[Any]] = {}
    for p in parameters:
        sharding = sharding_of(p)
        if (grad := p.grad) is not None:
            (found if sharding is None or sharding.group.size() == 1 else parts.setdefault(sharding.group, [])).append(grad)
    for group, grads in parts.items():
        mine = [g for g in grads if g.numel()]
        found.append(all_gather(_total("", mine, norm_type, False) if mine else grads[0].new_zeros(()).abs(), group))
    return found


def _total(call: str, tensors: list[Any], norm_type: float, error_if_nonfinite: bool) -> Any:
    with no_grad():
        if not tensors:
            return PUBLIC["zeros"](())
        norms = [_norm(own, norm_type).to(device=tensors[0].device) for own in by_device(tensors).values()]
        total = norms[0] if len(norms) == 1 else _norm(norms, norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise AutogradError(f"{call}: the norm of order {norm_type} is {total.item()}; pass error_if_nonfinite=False to go on")
    return total


def by_device(tensors: list[Any]) -> dict[Any, list[Any]]:
    """The tensors that lie on each device, in their order."""
    found: dict[Any, list[Any]] = {}
    for t in tensors:
        found.setdefault(t.device, []).append(t)
    return found


@on_nodes
def _norm(tensors: list[Any], norm_type: float) -> Any:
    """The norm of tensors on one device: of their norms, or where powers fit the dtypes the root of what their squares add up to."""
    norm, stack = PUBLIC["norm"], PUBLIC["stack"]
    if norm_type == 2 and all(t.dtype in (dtypes.float32, dtypes.float64) for t in tensors):
        return PUBLIC["sqrt"](stack([(t * t).sum() for t in tensors]).sum())
    return norm(stack([norm(t.reshape(-1), norm_type) for t in tensors]), norm_type)


@on_nodes
def _scaled(tensors: list[Any], total: Any, max_norm: float) -> list[Any]:
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    return [t * cast(factor, t.dtype) for t in tensors]
