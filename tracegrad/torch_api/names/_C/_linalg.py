"""torch._C._linalg: torch.linalg's functions by the names that graphs of torch.fx have for them."""

from __future__ import annotations

from typing import Any

from tracegrad import linalg


def __getattr__(name: str) -> Any:
    if not name.startswith("linalg_"):
        raise AttributeError(name)
    return getattr(linalg, name.removeprefix("linalg_"))
