"""What programs ask of CUDA before they start: there is none. OpenCL's devices, GPUs among them, are `tg.devices()`.

>>> device = tg.device("gpu") if tg.cuda.is_available() else tg.device()
"""

from __future__ import annotations

from tracegrad.cuda import amp

__all__ = ["amp", "device_count", "empty_cache", "is_available", "is_initialized", "manual_seed", "manual_seed_all"]


def is_available() -> bool:
    """False: CUDA is not used here, whatever the machine has."""
    return False


def is_initialized() -> bool:
    return False


def device_count() -> int:
    """0: of CUDA's devices."""
    return 0


def manual_seed(seed: int) -> None:
    """Nothing, as in torch where there is no CUDA; `tg.manual_seed` seeds all devices."""


def manual_seed_all(seed: int) -> None:
    """Nothing, as in torch where there is no CUDA; `tg.manual_seed` seeds all devices."""


def empty_cache() -> None:
    """Nothing: memory pools let go by themselves what other programs need."""
