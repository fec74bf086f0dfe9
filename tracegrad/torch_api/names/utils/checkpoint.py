"""torch.utils.checkpoint: what reversible layers ask for to draw the same numbers again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["get_device_states", "set_device_states"]


def get_device_states(*args: Any) -> tuple[list[int], list[Any]]:
    """No devices, and so no states: all random numbers come from the generator that `torch.get_rng_state` tells, whatever the device."""
    return [], []


def set_device_states(devices: Sequence[int], states: Sequence[Any], *, device_type: str | None = None) -> None:
    """Nothing: see `get_device_states`."""
