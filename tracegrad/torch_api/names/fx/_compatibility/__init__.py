"""torch.fx._compatibility."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compatibility(is_backward_compatible: bool) -> Callable[[Any], Any]:
    """A decorator that leaves what it marks as it is."""
    return lambda fn: fn
