"""torch.nn.parallel: there is one process and one device, so a module in parallel is the module.

The wrappers keep the module under `module`, as programs expect it, and call it.
"""

from __future__ import annotations

from typing import Any

from tracegrad.nn.module import Module


class DataParallel(Module):
    """A module under the name `module`. Which devices it would be spread over does not matter: all is computed on its own."""

    def __init__(self, module: Any, *_: Any, **__: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class DistributedDataParallel(DataParallel):
    """The same: there are no other processes to share gradients with."""
