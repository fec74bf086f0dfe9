"""torch.nn.utils' names that are not in `tracegrad.nn.utils`."""

from __future__ import annotations

from typing import Any

from tracegrad.nn.module import Module


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """A module whose parameters are not initialized: made on "meta", then given memory on `device`."""
    device = kwargs.pop("device", "cpu")
    return module_cls(*args, **kwargs, device="meta").to_empty(device=device)


def convert_conv2d_weight_memory_format(module: Module, memory_format: Any) -> Module:
    """The module: there is one memory format."""
    return module


convert_conv3d_weight_memory_format = convert_conv2d_weight_memory_format
