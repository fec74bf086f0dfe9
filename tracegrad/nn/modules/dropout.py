"""Dropout of elements and of channels."""

from __future__ import annotations

from tracegrad.errors import ArgumentError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.tensor import Tensor


class Dropout(Module):
    """While training, each element 0 with probability p and else divided by 1 - p; otherwise the input as it is."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentError(f"Dropout: p must be from 0 to 1, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"
