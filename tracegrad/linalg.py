"""Linear algebra under torch.linalg's names: solve, inv, eigh, svd, ... Start at `ops/linalg/systems.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegrad.errors import LinAlgError
from tracegrad.ops import LINALG

globals().update(LINALG)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = sorted([*LINALG, LinAlgError.__name__])           # noqa: PLE0605  (computed, as in nn.functional)
