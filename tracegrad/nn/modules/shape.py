"""Modules that move elements: flattening, shuffling."""

from __future__ import annotations

from tracegrad.nn.module import Module
from tracegrad.tensor import Tensor


class Flatten(Module):
    """Dimensions start_dim to end_dim made one; the batch stays by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
