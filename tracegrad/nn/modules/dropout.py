"""Dropout of elements and of channels."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.operators import PUBLIC
from tracegrad.tensor import Tensor


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentError(f"{type(self).__name__}: p must be from 0 to 1, got {p}")
        self.p, self.inplace = p, inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"

    def _result(self, input: Any, result: Any) -> Tensor:
        return input.copy_(result) if self.inplace else result  # type: ignore[no-any-return]


class Dropout(_Dropout):
    """While training, each element 0 with probability p and else divided by 1 - p; otherwise the input as it is."""

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training, self.inplace)


class _ChannelDropout(_Dropout):
    """Base: whole channels are 0, or divided by 1 - p (Tompson et al. 2015)."""

    ranks: ClassVar[tuple[int, int]] = (0, 0)           # of an input without N, and of one with it

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in self.ranks:
            raise ShapeError(f"{type(self).__name__}: takes {self.ranks[0]} or {self.ranks[1]} dimensions, got {input.shape}")
        if not self.training or self.p == 0:
            return input
        channels = input.shape[:input.ndim - self.ranks[0] + 1]
        kept = F.dropout(PUBLIC["ones"](*channels, *[1] * (input.ndim - len(channels)), dtype=input.dtype, device=input.device), self.p)
        return self._result(input, input * kept)


class Dropout1d(_ChannelDropout):
    """While training, each channel of (N, C, L) or (C, L) 0 with probability p and else divided by 1 - p."""

    ranks = (2, 3)


class Dropout2d(_ChannelDropout):
    """While training, each channel of (N, C, H, W) or (C, H, W) 0 with probability p and else divided by 1 - p."""

    ranks = (3, 4)


class Dropout3d(_ChannelDropout):
    """While training, each channel of (N, C, D, H, W) or (C, D, H, W) 0 with probability p and else divided by 1 - p."""

    ranks = (4, 5)


class AlphaDropout(_Dropout):
    """While training, each element selu's lower limit with probability p, then scaled and shifted so that mean and variance stay.

    For networks of SELU units (Klambauer et al. 2017).
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        if self.p == 1:
            return self._result(input, input * 0.0)
        low = -1.7580993408473766                       # selu(-infinity)
        a = ((1.0 - self.p) * (1.0 + self.p * low * low)) ** -0.5
        kept = PUBLIC["rand"](input.shape, device=input.device) >= self.p
        return self._result(input, PUBLIC["where"](kept, input, low) * a - a * self.p * low)
