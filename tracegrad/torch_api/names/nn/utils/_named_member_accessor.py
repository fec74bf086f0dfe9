"""torch.nn.utils._named_member_accessor: parameters and buffers of modules, exchanged as they are."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import ArgumentTypeError
from tracegrad.nn.module import Module
from tracegrad.tensors.tensor import Tensor


def swap_tensor(module: Any, name: str, tensor: Any, allow_missing: bool = False) -> Any:
    """Put a tensor, or None, in the place of what a module has there, which is returned (None if there was nothing); no hook is called.

    Raises ArgumentTypeError unless these are a module and a tensor, AttributeError where the module has no such attribute.
    """
    if not isinstance(module, Module) or not isinstance(tensor, (Tensor, type(None))):
        raise ArgumentTypeError(f"swap_tensor: takes a Module and a Tensor, got {type(module).__name__} and {type(tensor).__name__}")
    for table in (module._parameters, module._buffers):
        if name in table:
            before, table[name] = table[name], tensor                # type: ignore[assignment]
            return before
    before = getattr(module, name, None) if allow_missing else getattr(module, name)
    if not isinstance(before, (Tensor, type(None))):
        raise ArgumentTypeError(f"swap_tensor: {name!r} is no tensor but {type(before).__name__}; assign it")
    setattr(module, name, tensor)
    return before


def set_tensor(module: Module, name: str, tensor: Tensor) -> None:
    """The same, for a tensor that was there or for a new one."""
    swap_tensor(module, name, tensor, allow_missing=True)
