"""Convolutions with learned kernels, and their adjoints. Start at `_Conv`."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.errors import ArgumentError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.modules.linear import uniform_by_fan_in
from tracegrad.nn.modules.sizes import Size, as_tuple
from tracegrad.nn.parameter import Parameter
from tracegrad.tensors.creation.filled import empty
from tracegrad.tensors.tensor import Tensor


class _Conv(Module):
    """Base of convolutions: a weight (out, in / groups, *kernel), or (in, out / groups, *kernel) if transposed, and a bias (out)."""

    dims: ClassVar[int] = 2
    transposed: ClassVar[bool] = False
    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int,
                 bias: bool, device: Any, dtype: Any, padding_mode: str = "zeros") -> None:
        super().__init__()
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ArgumentError(f"{type(self).__name__}: padding_mode must be 'zeros', 'reflect', 'replicate' or 'circular', got "
                                f"{padding_mode!r}")
        self.padding_mode = padding_mode
        if isinstance(padding, str) and (self.transposed or padding not in ("same", "valid")):
            words = "numbers" if self.transposed else "numbers, 'same' or 'valid'"
            raise ArgumentError(f"{type(self).__name__}: padding must be {words}, got {padding!r}")
        if groups < 1:
            raise ArgumentError(f"{type(self).__name__}: groups must be at least 1, got {groups}")
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(f"{type(self).__name__}: in_channels {in_channels} and out_channels {out_channels} must be multiples "
                                f"of groups {groups}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        n = self.dims
        self.kernel_size, self.stride, self.dilation = as_tuple(kernel_size, n), as_tuple(stride, n), as_tuple(dilation, n)
        self.padding = padding if isinstance(padding, str) else as_tuple(padding, n)
        self.output_padding = as_tuple(0, n)                    # of the adjoints, which set it; torch's have it all
        if padding == "same" and set(self.stride) != {1}:
            raise ArgumentError(f"{type(self).__name__}: padding='same' is for a stride of 1, got stride {self.stride}")
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
        text += ", bias=False" if self.bias is None else ""
        mode = getattr(self, "padding_mode", "zeros")
        return text if mode == "zeros" else f"{text}, padding_mode={mode}"


class _PlainConv(_Conv):
    function: ClassVar[str] = ""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size | str = 0,
                 dilation: Size = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype, padding_mode)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution by another weight and bias, under torch's name: packages call it, such as for weights that are normalized."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return getattr(F, self.function)(input, weight, bias, self.stride, padding, self.dilation, self.groups)  # type: ignore[no-any-return]

    @property
    def _reversed_padding_repeated_twice(self) -> list[int]:
        """The padding as F.pad takes it: before and after, the last dimension first. (The name is torch's.)"""
        if self.padding == "valid":
            return [0] * (2 * self.dims)
        gaps = [(d * (k - 1)) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        both = [(g // 2, g - g // 2) for g in gaps] if self.padding == "same" else [(p, p) for p in self.padding]
        return [n for pair in reversed(both) for n in pair]


class Conv1d(_PlainConv):
    """Convolution of (N, C, L) with a learned kernel -> (N, out_channels, ...). padding: numbers, "same" or "valid", filled by

    padding_mode: "zeros", "reflect", "replicate" or "circular". Of the shapes and dtypes of nn.functional.conv1d; raises what that raises.

    >>> nn.Conv1d(2, 3, kernel_size=2)(tg.rand(1, 2, 4)).shape
    """

    dims, function = 1, "conv1d"


class Conv2d(_PlainConv):
    """Convolution of (N, C, H, W) with a learned kernel -> (N, out_channels, ...). padding: numbers, "same" or "valid", filled by

    padding_mode: "zeros", "reflect", "replicate" or "circular". Of the shapes and dtypes of nn.functional.conv2d; raises what that raises.

    >>> nn.Conv2d(2, 3, kernel_size=2)(tg.rand(1, 2, 4, 4)).shape
    """

    dims, function = 2, "conv2d"


class Conv3d(_PlainConv):
    """Convolution of (N, C, D, H, W) with a learned kernel -> (N, out_channels, ...). padding: numbers, "same" or "valid", filled by

    padding_mode: "zeros", "reflect", "replicate" or "circular". Of the shapes and dtypes of nn.functional.conv3d; raises what that raises.

    >>> nn.Conv3d(2, 3, kernel_size=2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    dims, function = 3, "conv3d"


class _ConvTranspose(_Conv):
    transposed = True
    function: ClassVar[str] = ""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
                 output_padding: Size = 0, groups: int = 1, bias: bool = True, dilation: Size = 1, padding_mode: str = "zeros",
                 device: Any = None, dtype: Any = None) -> None:
        if padding_mode != "zeros":
            raise ArgumentError(f"{type(self).__name__}: padding_mode must be 'zeros', got {padding_mode!r}")
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype)
        self.output_padding = as_tuple(output_padding, self.dims)

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """output_size: the spatial sizes of the result (or its whole shape), which decide on output_padding."""
        extra = self._output_padding(input, output_size, self.stride, self.padding, self.kernel_size, self.dims, self.dilation)
        return getattr(F, self.function)(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _output_padding(self, input: Tensor, output_size: Any, stride: Any, padding: Any, kernel_size: Any, num_spatial_dims: int,
                        dilation: Any = None) -> tuple[int, ...]:
        """The output_padding that gives output_size, or the layer's own without one. (The name is torch's: packages call it.)"""
        if output_size is None:
            return self.output_padding
        n, sizes = num_spatial_dims, tuple(output_size)
        least = [(m - 1) * s - 2 * p + d * (k - 1) + 1 for m, s, p, d, k in
                 zip(input.shape[-n:], stride, padding, dilation or [1] * n, kernel_size, strict=True)]
        extra = tuple(w - low for w, low in zip(sizes[-n:], least, strict=False))
        if len(sizes) not in (n, input.ndim) or any(not 0 <= e < s for e, s in zip(extra, stride, strict=True)):
            raise ArgumentError(f"{type(self).__name__}: output_size {sizes} must be from {tuple(least)} to "
                                f"{tuple(low + s - 1 for low, s in zip(least, stride, strict=True))} for an input of {input.shape}")
        return extra


class ConvTranspose1d(_ConvTranspose):
    """The adjoint of Conv1d: (N, C, L) -> (N, out_channels, ...), each size (m - 1) stride - 2 padding + dilation (k - 1) +
    output_padding + 1. Of the shapes and dtypes of nn.functional.conv_transpose1d; raises what that raises.

    >>> nn.ConvTranspose1d(2, 3, kernel_size=2)(tg.rand(1, 2, 4)).shape
    """

    dims, function = 1, "conv_transpose1d"


class ConvTranspose2d(_ConvTranspose):
    """The adjoint of Conv2d: (N, C, H, W) -> (N, out_channels, ...), each size (m - 1) stride - 2 padding + dilation (k - 1) +
    output_padding + 1. Of the shapes and dtypes of nn.functional.conv_transpose2d; raises what that raises.

    >>> nn.ConvTranspose2d(2, 3, kernel_size=2)(tg.rand(1, 2, 4, 4)).shape
    """

    dims, function = 2, "conv_transpose2d"


class ConvTranspose3d(_ConvTranspose):
    """The adjoint of Conv3d: (N, C, D, H, W) -> (N, out_channels, ...), each size (m - 1) stride - 2 padding + dilation (k - 1) +
    output_padding + 1. Of the shapes and dtypes of nn.functional.conv_transpose3d; raises what that raises.

    >>> nn.ConvTranspose3d(2, 3, kernel_size=2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    dims, function = 3, "conv_transpose3d"
