"""Decorators and blocks of torch's that tell something which is not needed here."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any


def unchanged(fn: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without arguments, that gives the function as it is."""
    return fn if callable(fn) else unchanged


class ScriptError(RuntimeError):
    """torch.jit.Error: what torch raises where a script's own code fails. Code here raises its own errors, `torch._assert` both."""


class AssertionFailed(AssertionError, ScriptError):
    """What torch._assert raises: torch's error in a script, and its error elsewhere. Whether code is a script's is not known here."""


class Unchanged(nullcontext[None]):
    """A block in which nothing changes, whatever it is given; or a decorator."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __call__(self, fn: Any) -> Any:
        """The function as it is."""
        return fn
