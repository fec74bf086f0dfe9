"""torch.utils.checkpoint: what reversible layers ask for to draw the same numbers again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from tracegrad.tensors.tensor import Tensor

__all__ = ["detach_variable", "get_device_states", "noop_context_fn", "set_device_states"]


def get_device_states(*args: Any) -> tuple[list[int], list[Any]]:
    """No devices, and so no states: all random numbers come from the generator that `torch.get_rng_state` tells, whatever the device."""
    return [], []


def set_device_states(devices: Sequence[int], states: Sequence[Any], *, device_type: str | None = None) -> None:
    """Nothing: see `get_device_states`."""


def noop_context_fn() -> tuple[Any, Any]:
    """Two blocks that change nothing: the default of `context_fn`."""
    return nullcontext(), nullcontext()


def detach_variable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors without their history, requiring grad where they did."""
    return tuple(x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in inputs)
