"""torch.overrides: no type overrides functions here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tracegrad.errors import UnsupportedError
from tracegrad.tensors.tensor import Tensor


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """False."""
    return False


has_torch_function_unary = has_torch_function_variadic = lambda *_: False


def handle_torch_function(public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
    return public_api(*args, **kwargs)


def is_tensor_like(value: Any) -> bool:
    return isinstance(value, Tensor)


class TorchFunctionMode:
    """A mode that would see every call. It cannot be entered: it would see none."""

    def __enter__(self) -> Any:
        raise UnsupportedError("TorchFunctionMode: no call would come to it; tracegrad has no __torch_function__")

    def __exit__(self, *_: Any) -> None:
        """Never reached."""
