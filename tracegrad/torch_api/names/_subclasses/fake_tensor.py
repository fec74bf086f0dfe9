"""torch._subclasses.fake_tensor: what programs ask that look whether a compiler of torch's has called them."""

from __future__ import annotations

from typing import Any


def is_fake(x: Any) -> bool:
    """False: there are none."""
    return False
