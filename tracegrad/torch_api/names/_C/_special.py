"""torch._C._special: torch.special's functions by the names that graphs of torch.fx have for them."""

from __future__ import annotations

from typing import Any

from tracegrad import special


def __getattr__(name: str) -> Any:
    if not name.startswith("special_"):
        raise AttributeError(name)
    return getattr(special, name.removeprefix("special_"))
