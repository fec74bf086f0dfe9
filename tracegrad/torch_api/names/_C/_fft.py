"""torch._C._fft: torch.fft's functions by the names that graphs of torch.fx have for them."""

from __future__ import annotations

from typing import Any

from tracegrad import fft


def __getattr__(name: str) -> Any:
    if not name.startswith("fft_"):
        raise AttributeError(name)
    return getattr(fft, name.removeprefix("fft_"))
