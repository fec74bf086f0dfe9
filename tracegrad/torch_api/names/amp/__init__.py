"""torch.amp, beside what tracegrad.amp has."""

from __future__ import annotations

from tracegrad.execute.devices import aliases


def is_autocast_available(device_type: str) -> bool:
    """Whether there is a device of the kind."""
    return device_type == "cpu" or device_type in aliases
