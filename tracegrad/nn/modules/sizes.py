"""How modules take sizes: one number for all dimensions, or one each."""

from __future__ import annotations

from typing import Any, TypeAlias

Size: TypeAlias = int | tuple[int, ...]


def as_tuple(value: Any, n: int) -> tuple[Any, ...]:
    """A number repeated n times; a sequence as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n
