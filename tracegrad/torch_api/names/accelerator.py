"""torch.accelerator: the device that the user has named for a program (`--device`), if any."""

from __future__ import annotations

from typing import Any

from tracegrad.execute.deferred import synchronize as wait
from tracegrad.torch_api import devices


def is_available() -> bool:
    """Whether there is one: see `tracegrad.as_torch.install`."""
    return devices.accelerator() is not None


def device_count() -> int:
    return int(is_available())


def current_accelerator(check_available: bool = False) -> Any:
    """It, or None."""
    return devices.accelerator()


def current_device_index() -> int:
    return 0


def set_device_index(device: Any) -> None:
    """Nothing: there is one."""


set_device_idx, current_device_idx = set_device_index, current_device_index          # torch's first names


def synchronize(device: Any = None) -> None:
    """Wait until everything that was asked for is computed."""
    wait()


def empty_cache() -> None:
    """Nothing: memory pools let go by themselves of what other programs need."""


def memory_allocated(device_index: Any = None) -> int:
    """0: not counted."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def memory_stats(device_index: Any = None) -> dict[str, Any]:
    """Nothing: not counted."""
    return {}


def reset_peak_memory_stats(device_index: Any = None) -> None:
    """Nothing."""


reset_accumulated_memory_stats = reset_peak_memory_stats
