"""Pooling: the largest or the mean of each window."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.modules.sizes import Size
from tracegrad.tensor import Tensor


class _MaxPool(Module):
    function: ClassVar[str] = ""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1, return_indices: bool = False,
                 ceil_mode: bool = False) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return getattr(F, self.function)(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)

    def extra_repr(self) -> str:
        return (f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
                f"ceil_mode={self.ceil_mode}")


class MaxPool1d(_MaxPool):
    """The largest of each window of (N, C, L); stride: kernel_size unless given."""

    function = "max_pool1d"


class MaxPool2d(_MaxPool):
    """The largest of each window of (N, C, H, W); stride: kernel_size unless given."""

    function = "max_pool2d"


class _AvgPool(Module):
    function: ClassVar[str] = ""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return getattr(F, self.function)(  # type: ignore[no-any-return]
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPool):
    """The mean of each window of (N, C, L); stride: kernel_size unless given."""

    function = "avg_pool1d"


class AvgPool2d(_AvgPool):
    """The mean of each window of (N, C, H, W); stride: kernel_size unless given. divisor_override: what sums are divided by instead."""

    function = "avg_pool2d"

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)


class AdaptiveAvgPool2d(Module):
    """Means over a grid of output_size cells of (N, C, H, W); the sizes must be multiples of it."""

    def __init__(self, output_size: Size) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"
