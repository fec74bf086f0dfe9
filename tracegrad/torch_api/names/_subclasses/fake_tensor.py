"""torch._subclasses.fake_tensor: what programs ask that look whether a compiler of torch's has called them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


def unset_fake_temporarily() -> AbstractContextManager[None]:
    """A block in which nothing is fake, as ever."""
    return nullcontext()


def is_fake(x: Any) -> bool:
    """False: there are none."""
    return False
