"""Pooling: the largest, the mean or the power mean of each window, of a given or an adaptive size; and back."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.modules.function import FunctionModule
from tracegrad.nn.modules.sizes import Size, as_tuple
from tracegrad.tensors.tensor import Tensor


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
    """The largest of each window of (N, C, L); stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.max_pool1d; raises what that raises.

    >>> nn.MaxPool1d(2)(tg.rand(1, 2, 4)).shape
    """

    function = "max_pool1d"


class MaxPool2d(_MaxPool):
    """The largest of each window of (N, C, H, W); stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.max_pool2d; raises what that raises.

    >>> nn.MaxPool2d(2)(tg.rand(1, 2, 4, 4)).shape
    """

    function = "max_pool2d"


class MaxPool3d(_MaxPool):
    """The largest of each window of (N, C, D, H, W); stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.max_pool3d; raises what that raises.

    >>> nn.MaxPool3d(2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    function = "max_pool3d"


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
    """The mean of each window of (N, C, L); stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.avg_pool1d; raises what that raises.

    >>> nn.AvgPool1d(2)(tg.rand(1, 2, 4)).shape
    """

    function = "avg_pool1d"

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.kernel_size, self.stride, self.padding = as_tuple(self.kernel_size, 1), as_tuple(self.stride, 1), as_tuple(self.padding, 1)


class _AvgPoolOver(_AvgPool):
    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return getattr(F, self.function)(  # type: ignore[no-any-return]
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad, self.divisor_override)


class AvgPool2d(_AvgPoolOver):
    """The mean of each window of (N, C, H, W); stride: kernel_size unless given. divisor_override: what sums are divided by instead.

    Of the shapes and dtypes of nn.functional.avg_pool2d; raises what that raises.

    >>> nn.AvgPool2d(2)(tg.rand(1, 2, 4, 4)).shape
    """

    function = "avg_pool2d"


class AvgPool3d(_AvgPoolOver):
    """The mean of each window of (N, C, D, H, W); as AvgPool2d.

    Of the shapes and dtypes of nn.functional.avg_pool3d; raises what that raises.

    >>> nn.AvgPool3d(2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    function = "avg_pool3d"


class _MaxUnpool(Module):
    function: ClassVar[str] = ""

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        n = int(self.function[-2])
        sizes = kernel_size, kernel_size if stride is None else stride, padding
        self.kernel_size, self.stride, self.padding = (as_tuple(size, n) for size in sizes)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return getattr(F, self.function)(  # type: ignore[no-any-return]
            input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AdaptiveAvgPool(FunctionModule):
    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size


class _AdaptiveMaxPool(FunctionModule):
    shown = ("output_size",)

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices


class _LPPool(FunctionModule):
    def __init__(self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means over a grid of output_size cells of (N, C, L), whatever its size.

    Of the shapes and dtypes of nn.functional.adaptive_avg_pool1d; raises what that raises.

    >>> nn.AdaptiveAvgPool1d(2)(tg.rand(1, 2, 4)).shape
    """

    function = "adaptive_avg_pool1d"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest of each of output_size cells of (N, C, L); return_indices: and where they are.

    Of the shapes and dtypes of nn.functional.adaptive_max_pool1d; raises what that raises.

    >>> nn.AdaptiveMaxPool1d(2)(tg.rand(1, 2, 4)).shape
    """

    function = "adaptive_max_pool1d"


class LPPool1d(_LPPool):
    """(The sum of x^norm_type over each window of (N, C, L))^(1 / norm_type); stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.lp_pool1d; raises what that raises.

    >>> nn.LPPool1d(2, 2)(tg.rand(1, 2, 4)).shape
    """

    function = "lp_pool1d"


class MaxUnpool1d(_MaxUnpool):
    """The adjoint of MaxPool1d: values put at the indices that it returned, zeros elsewhere. stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.max_unpool1d; raises what that raises.

    >>> nn.MaxUnpool1d(2)(*nn.MaxPool1d(2, return_indices=True)(tg.rand(1, 2, 4))).shape
    """

    function = "max_unpool1d"


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means over a grid of output_size cells of (N, C, H, W), whatever its size.

    Of the shapes and dtypes of nn.functional.adaptive_avg_pool2d; raises what that raises.

    >>> nn.AdaptiveAvgPool2d(2)(tg.rand(1, 2, 4, 4)).shape
    """

    function = "adaptive_avg_pool2d"


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest of each of output_size cells of (N, C, H, W); return_indices: and where they are.

    Of the shapes and dtypes of nn.functional.adaptive_max_pool2d; raises what that raises.

    >>> nn.AdaptiveMaxPool2d(2)(tg.rand(1, 2, 4, 4)).shape
    """

    function = "adaptive_max_pool2d"


class LPPool2d(_LPPool):
    """(The sum of x^norm_type over each window of (N, C, H, W))^(1 / norm_type); stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.lp_pool2d; raises what that raises.

    >>> nn.LPPool2d(2, 2)(tg.rand(1, 2, 4, 4)).shape
    """

    function = "lp_pool2d"


class MaxUnpool2d(_MaxUnpool):
    """The adjoint of MaxPool2d: values put at the indices that it returned, zeros elsewhere. stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.max_unpool2d; raises what that raises.

    >>> nn.MaxUnpool2d(2)(*nn.MaxPool2d(2, return_indices=True)(tg.rand(1, 2, 4, 4))).shape
    """

    function = "max_unpool2d"


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means over a grid of output_size cells of (N, C, D, H, W), whatever its size.

    Of the shapes and dtypes of nn.functional.adaptive_avg_pool3d; raises what that raises.

    >>> nn.AdaptiveAvgPool3d(2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    function = "adaptive_avg_pool3d"


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest of each of output_size cells of (N, C, D, H, W); return_indices: and where they are.

    Of the shapes and dtypes of nn.functional.adaptive_max_pool3d; raises what that raises.

    >>> nn.AdaptiveMaxPool3d(2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    function = "adaptive_max_pool3d"


class LPPool3d(_LPPool):
    """(The sum of x^norm_type over each window of (N, C, D, H, W))^(1 / norm_type); stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.lp_pool3d; raises what that raises.

    >>> nn.LPPool3d(2, 2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    function = "lp_pool3d"


class MaxUnpool3d(_MaxUnpool):
    """The adjoint of MaxPool3d: values put at the indices that it returned, zeros elsewhere. stride: kernel_size unless given.

    Of the shapes and dtypes of nn.functional.max_unpool3d; raises what that raises.

    >>> nn.MaxUnpool3d(2)(*nn.MaxPool3d(2, return_indices=True)(tg.rand(1, 2, 4, 4, 4))).shape
    """

    function = "max_unpool3d"


class _FractionalMaxPool(FunctionModule):
    shown = ()

    def __init__(self, kernel_size: Size, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
                 _random_samples: Tensor | None = None) -> None:
        super().__init__()
        n = int(self.function[-2])
        self.kernel_size, self.return_indices = as_tuple(kernel_size, n), return_indices
        self.output_size, self.output_ratio = (None if size is None else as_tuple(size, n) for size in (output_size, output_ratio))
        self.register_buffer("_random_samples", _random_samples)


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest of each of output_size windows of (N, C, H, W), or output_ratio times its size, at random places (Graham 2014).

    Of the shapes and dtypes of nn.functional.fractional_max_pool2d; raises what that raises.

    >>> nn.FractionalMaxPool2d(2, output_size=2)(tg.rand(1, 2, 4, 4)).shape
    """

    function = "fractional_max_pool2d"


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest of each of output_size windows of (N, C, D, H, W), or output_ratio times its size, at random places (Graham 2014).

    Of the shapes and dtypes of nn.functional.fractional_max_pool3d; raises what that raises.

    >>> nn.FractionalMaxPool3d(2, output_size=2)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    function = "fractional_max_pool3d"
