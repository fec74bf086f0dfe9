"""torch.cpu: the CPU, asked as a GPU is."""

from __future__ import annotations

from typing import Any

from tracegrad.amp import autocast
from tracegrad.support.dtypes import bfloat16
from tracegrad.torch_api.names.accelerator import synchronize as synchronize
from tracegrad.torch_api.names.cuda import Stream as Stream
from tracegrad.torch_api.names.cuda import StreamContext as StreamContext
from tracegrad.torch_api.names.cuda import current_stream as current_stream
from tracegrad.torch_api.names.cuda import stream as stream


def is_available() -> bool:
    """True."""
    return True


is_initialized = is_available


def device_count() -> int:
    """One."""
    return 1


def current_device() -> str:
    """Its name."""
    return "cpu"


def set_device(device: Any) -> None:
    """Nothing: there is one."""


class amp:
    """torch.cpu.amp."""

    @staticmethod
    def autocast(enabled: bool = True, dtype: Any = bfloat16, cache_enabled: bool = True) -> Any:
        """`torch.amp.autocast` on the CPU."""
        return autocast("cpu", dtype, enabled, cache_enabled)
