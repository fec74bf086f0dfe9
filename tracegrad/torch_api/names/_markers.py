"""Decorators of torch's that tell its compilers something, which is not needed here."""

from __future__ import annotations

from typing import Any


def unchanged(fn: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without arguments, that gives the function as it is."""
    return fn if callable(fn) else unchanged
