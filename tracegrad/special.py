"""Special functions, under torch.special's names: they stand in `ops/special/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegrad.ops import SPECIAL

globals().update(SPECIAL)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = sorted(SPECIAL)           # noqa: PLE0605  (computed, as in nn.functional)
