"""torch.utils._contextlib: blocks that are decorators, too, as other libraries derive theirs from torch's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, Self


class _DecoratorContextManager(ContextDecorator):
    """A block, and a decorator by which a function runs in one: each call in a block of its own."""

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(self, *error: object) -> Any:
        raise NotImplementedError

    def clone(self) -> Self:
        """Another such block."""
        return type(self)()

    def _recreate_cm(self) -> Self:
        return self.clone()


class _NoParamDecoratorContextManager(_DecoratorContextManager):
    """One that takes no arguments: it decorates without a call, too."""

    def __new__(cls, orig_func: Callable[..., Any] | None = None) -> Any:
        made = super().__new__(cls)
        return made if orig_func is None else made(orig_func)
