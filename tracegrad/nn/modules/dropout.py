"""Dropout of elements and of channels."""

from __future__ import annotations

from typing import ClassVar

from tracegrad.errors import ArgumentError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.tensors.tensor import Tensor


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ArgumentError(f"{type(self).__name__}: p must be from 0 to 1, got {p}")
        self.p, self.inplace = p, inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """While training, each element 0 with probability p and else divided by 1 - p; otherwise the input as it is.

    Of the shapes and dtypes of nn.functional.dropout; raises what that raises.

    >>> nn.Dropout(0.2)(tg.ones(4)).shape
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training, self.inplace)


class _ChannelDropout(_Dropout):
    """Base: whole channels are 0, or divided by 1 - p (Tompson et al. 2015)."""

    function: ClassVar[str] = ""

    def forward(self, input: Tensor) -> Tensor:
        return getattr(F, self.function)(input, self.p, self.training, self.inplace)  # type: ignore[no-any-return]


class Dropout1d(_ChannelDropout):
    """While training, each channel of (N, C, L) or (C, L) 0 with probability p and else divided by 1 - p.

    Of the shapes and dtypes of nn.functional.dropout1d; raises what that raises.

    >>> nn.Dropout1d(0.2)(tg.rand(1, 2, 4)).shape
    """

    function = "dropout1d"


class Dropout2d(_ChannelDropout):
    """While training, each channel of (N, C, H, W) 0 with probability p and else divided by 1 - p.

    Three dimensions are (N, C, L), with a warning, as in torch. Of the shapes and dtypes of nn.functional.dropout2d, and raises what
    that raises.

    >>> nn.Dropout2d(0.2)(tg.rand(1, 2, 4, 4)).shape
    """

    function = "dropout2d"


class Dropout3d(_ChannelDropout):
    """While training, each channel of (N, C, D, H, W) or (C, D, H, W) 0 with probability p and else divided by 1 - p.

    Of the shapes and dtypes of nn.functional.dropout3d; raises what that raises.

    >>> nn.Dropout3d(0.2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    function = "dropout3d"


class AlphaDropout(_Dropout):
    """While training, each element selu's lower limit with probability p, then scaled and shifted so that mean and variance stay.

    For networks of SELU units (Klambauer et al. 2017). Of the shapes and dtypes of nn.functional.alpha_dropout; raises what that raises.

    >>> nn.AlphaDropout(0.2)(tg.ones(4)).shape
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels of (N, C, *).

    Of the shapes and dtypes of nn.functional.feature_alpha_dropout; raises what that raises.

    >>> nn.FeatureAlphaDropout(0.2)(tg.ones(1, 2, 4)).shape
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)
