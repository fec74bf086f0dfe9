"""torch.ops: the operations that `torch.library.custom_op` has made, as `torch.ops.<library>.<op>`."""

from __future__ import annotations

from typing import Any

_registered: dict[str, dict[str, Any]] = {}


class Namespace:
    """The operations of one library."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, op: str) -> Any:
        try:
            return _registered[self._name][op]
        except KeyError:
            raise AttributeError(f"torch.ops.{self._name} has no operation {op!r}: torch.library.custom_op has made none") from None


def register(name: str, op: Any) -> None:
    library, _, own = name.partition("::")
    _registered.setdefault(library, {})[own] = op


def find(name: str) -> Any:
    """The operation that was registered as "library::op"."""
    library, _, own = name.partition("::")
    return getattr(Namespace(library), own)


def load_library(path: str) -> None:
    """Refused: libraries of compiled operations are made for torch."""
    raise OSError(f"torch.ops.load_library: {path} has operations that are compiled for torch")


def __getattr__(name: str) -> Namespace:
    if name.startswith("__"):
        raise AttributeError(name)
    return Namespace(name)
