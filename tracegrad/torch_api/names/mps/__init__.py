"""torch.mps, about the device that the user has named for a program: as `torch.cuda`."""

from __future__ import annotations

from typing import Any

from tracegrad.torch_api import random_numbers
from tracegrad.torch_api.names.accelerator import device_count as device_count
from tracegrad.torch_api.names.accelerator import empty_cache as empty_cache
from tracegrad.torch_api.names.accelerator import is_available as is_available
from tracegrad.torch_api.names.accelerator import synchronize as _synchronize
from tracegrad.torch_api.names.cuda import get_device_properties, memory_allocated


def synchronize() -> None:
    """Wait until everything that was asked for is computed."""
    _synchronize()


def manual_seed(seed: int) -> None:
    """Begin the default generator anew."""
    random_numbers.manual_seed(seed)


def get_rng_state() -> Any:
    """The default generator's state."""
    return random_numbers.get_rng_state()


def set_rng_state(new_state: Any) -> None:
    """Continue where `get_rng_state` saw it."""
    random_numbers.set_rng_state(new_state)


current_allocated_memory = driver_allocated_memory = memory_allocated


def recommended_max_memory() -> int:
    """The device's memory, in bytes."""
    return int(get_device_properties().total_memory)


def set_per_process_memory_fraction(fraction: float) -> None:
    """Nothing: memory is taken as it is needed."""
