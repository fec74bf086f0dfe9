"""Convolutions with learned kernels, and their adjoints. Start at `_Conv`."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.creation import empty
from tracegrad.errors import ArgumentError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.modules.linear import uniform_by_fan_in
from tracegrad.nn.modules.sizes import Size, as_tuple
from tracegrad.nn.parameter import Parameter
from tracegrad.tensor import Tensor


class _Conv(Module):
    """Base of convolutions: a weight (out, in / groups, *kernel), or (in, out / groups, *kernel) if transposed, and a bias (out)."""

    dims: ClassVar[int] = 2
    transposed: ClassVar[bool] = False
    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int,
                 bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(f"{type(self).__name__}: in_channels {in_channels} and out_channels {out_channels} must be multiples "
                                f"of groups {groups}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        n = self.dims
        self.kernel_size, self.stride, self.dilation = as_tuple(kernel_size, n), as_tuple(stride, n), as_tuple(dilation, n)
        self.padding = padding if isinstance(padding, str) else as_tuple(padding, n)
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(empty(*channels, *self.kernel_size, dtype=dtype, device=device))
        self.register_parameter("bias", Parameter(empty(out_channels, dtype=dtype, device=device)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial values anew."""
        uniform_by_fan_in(self.weight, self.bias)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        n = self.dims
        for name, default in (("padding", (0,) * n), ("dilation", (1,) * n), ("output_padding", (0,) * n), ("groups", 1)):
            value = getattr(self, name, default)
            text += f", {name}={value}" if value != default else ""
        return text + (", bias=False" if self.bias is None else "")


class Conv1d(_Conv):
    """Convolution of (N, C, L) with a learned kernel: -> (N, out_channels, L'). padding: a number, "same" or "valid"."""

    dims = 1

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv1d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv2d(_Conv):
    """Convolution of (N, C, H, W) with a learned kernel: -> (N, out_channels, H', W'). padding: numbers, "same" or "valid"."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class _ConvTranspose(_Conv):
    transposed = True

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
                 output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype)
        self.output_padding = as_tuple(output_padding, self.dims)


class ConvTranspose1d(_ConvTranspose):
    """The adjoint of Conv1d: (N, C, L) -> (N, out_channels, (L - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1)."""

    dims = 1

    def forward(self, input: Tensor) -> Tensor:
        return F.conv_transpose1d(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)


class ConvTranspose2d(_ConvTranspose):
    """The adjoint of Conv2d: (N, C, H, W) -> (N, out_channels, H', W')."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)
