"""torch.ops: the operations that `torch.library.custom_op` has made, as `torch.ops.<library>.<op>`, and aten's by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.torch_api.dispatch import Operator
from tracegrad.torch_api.libraries import operations

_registered: dict[str, dict[str, Any]] = {}


class Namespace:
    """The operations of one library."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, op: str) -> Any:
        try:
            return _registered[self._name][op]
        except KeyError:
            if self._name == "aten" and not op.startswith("__"):
                return Operator(op)
            raise AttributeError(f"torch.ops.{self._name} has no operation {op!r}: torch.library.custom_op has made none") from None


def register(name: str, op: Any) -> None:
    library, _, own = name.partition("::")
    _registered.setdefault(library, {})[own] = op


def is_registered(name: str) -> bool:
    """Whether there is an operation "library::op"."""
    library, _, own = name.partition("::")
    return own in _registered.get(library, ())


def find(name: str) -> Any:
    """The operation that was registered as "library::op"."""
    library, _, own = name.partition("::")
    return getattr(Namespace(library), own)


class LibraryOperation:
    """An operation of a compiled library that is written here, of functions with derivatives: its package's are not needed."""

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self._fn, self.__name__ = fn, name.partition("::")[2]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fn(*args, **kwargs)

    default = property(lambda self: self)               # torch.ops.library.op.default: there are no overloads

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., Any] | None = None) -> None:
        """Nothing: the operation has its derivative."""


def load_library(path: Any) -> None:
    """The operations of a compiled library, where they are written here (`tracegrad.torch_api.libraries`). Raises OSError for others."""
    for name, fn in operations(path).items():
        register(name, LibraryOperation(name, fn))


def __getattr__(name: str) -> Namespace:
    if name.startswith("__"):
        raise AttributeError(name)
    return Namespace(name)
