"""Modules that move elements: flattening, shuffling, patches, resampling, padding."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.errors import ArgumentError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.modules.function import FunctionModule
from tracegrad.nn.modules.sizes import Size, as_tuple
from tracegrad.tensors.tensor import Tensor


class Flatten(Module):
    """Dimensions start_dim to end_dim made one; the batch stays by default. Any dtype. Raises IndexOutOfRange for other dims.

    >>> nn.Flatten()(tg.rand(2, 3, 4)).shape
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One dimension made several: Unflatten(1, (2, 3)) makes (N, 2, 3) of (N, 6). One of the sizes may be -1.

    Any dtype. Raises ShapeError for other sizes.

    >>> nn.Unflatten(1, (2, 3))(tg.rand(4, 6)).shape
    """

    def __init__(self, dim: int, unflattened_size: tuple[int, ...] | list[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return input.unflatten(self.dim, self.unflattened_size)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """(*, C r², H, W) -> (*, C, H r, W r): channels become r by r blocks of pixels (Shi et al. 2016).

    Of the shapes and dtypes of nn.functional.pixel_shuffle; raises what that raises.

    >>> nn.PixelShuffle(2)(tg.rand(1, 4, 2, 2)).shape
    """

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        if upscale_factor < 1:
            raise ArgumentError(f"PixelShuffle: upscale_factor must be at least 1, got {upscale_factor}")
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(*, C, H r, W r) -> (*, C r², H, W): the inverse of `PixelShuffle`.

    Of the shapes and dtypes of nn.functional.pixel_unshuffle; raises what that raises.

    >>> nn.PixelUnshuffle(2)(tg.rand(1, 1, 4, 4)).shape
    """

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        if downscale_factor < 1:
            raise ArgumentError(f"PixelUnshuffle: downscale_factor must be at least 1, got {downscale_factor}")
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(FunctionModule):
    """The channels of `groups` groups of (N, C, *) taken in turn (Zhang et al. 2018).

    Of the shapes and dtypes of nn.functional.channel_shuffle; raises what that raises.

    >>> nn.ChannelShuffle(2)(tg.rand(1, 4, 2)).shape
    """

    function = "channel_shuffle"

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups


class Unfold(FunctionModule):
    """The patches of images (N, C, H, W) as columns: (N, C kh kw, number of patches).

    Of the shapes and dtypes of nn.functional.unfold; raises what that raises.

    >>> nn.Unfold(2)(tg.rand(1, 1, 3, 3)).shape
    """

    function = "unfold"

    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride


class Fold(FunctionModule):
    """The adjoint of `Unfold`: patches (N, C kh kw, L) added up where they came from, in images of output_size.

    Of the shapes and dtypes of nn.functional.fold; raises what that raises.

    >>> nn.Fold((3, 3), 2)(tg.ones(1, 4, 4)).shape
    """

    function = "fold"

    def __init__(self, output_size: Any, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.output_size, self.kernel_size, self.dilation, self.padding, self.stride = output_size, kernel_size, dilation, padding, stride


class Upsample(FunctionModule):
    """(N, C, *) resampled to `size`, or to scale_factor times its size, as F.interpolate.

    Of the shapes and dtypes of nn.functional.interpolate; raises what that raises.

    >>> nn.Upsample(scale_factor=2)(tg.rand(1, 2, 4)).shape
    """

    function, shown = "interpolate", ("size", "scale_factor", "mode")
    def __init__(self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
                 recompute_scale_factor: bool | None = None) -> None:
        super().__init__()
        self.size, self.mode = size, mode
        several = isinstance(scale_factor, (tuple, list))
        self.scale_factor = tuple(map(float, scale_factor)) if several else scale_factor and float(scale_factor)
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def extra_repr(self) -> str:
        return f"size={self.size!r}, mode={self.mode!r}" if self.scale_factor is None else (
            f"scale_factor={self.scale_factor!r}, mode={self.mode!r}")


class UpsamplingNearest2d(Upsample):
    """`Upsample` of (N, C, H, W) with mode "nearest". Of the shapes and dtypes of nn.functional.interpolate; raises what that raises.

    >>> nn.UpsamplingNearest2d(scale_factor=2)(tg.rand(1, 2, 4, 4)).shape
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """`Upsample` of (N, C, H, W) with mode "bilinear", corners on corners.

    Of the shapes and dtypes of nn.functional.interpolate; raises what that raises.

    >>> nn.UpsamplingBilinear2d(scale_factor=2)(tg.rand(1, 2, 4, 4)).shape
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class _Pad(Module):
    """Base of padding: `padding` at both ends of the last dimensions, one number or (before, after) for each, the last dimension first."""

    dims: ClassVar[int] = 1
    mode: ClassVar[str] = "constant"
    value: float | None = None

    def __init__(self, padding: Size) -> None:
        super().__init__()
        self.padding = as_tuple(padding, 2 * self.dims)
        if len(self.padding) != 2 * self.dims:
            raise ArgumentError(f"{type(self).__name__}: padding must be a number or {2 * self.dims} of them, got {padding}")

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: Size, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """(N, C, L) padded with `value`. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ConstantPad1d(1, 0.5)(tg.rand(1, 2, 4)).shape
    """


class ConstantPad2d(_ConstantPad):
    """(N, C, H, W) padded with `value`. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ConstantPad2d(1, 0.5)(tg.rand(1, 2, 4, 4)).shape
    """

    dims = 2


class ConstantPad3d(_ConstantPad):
    """(N, C, D, H, W) padded with `value`. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ConstantPad3d(1, 0.5)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    dims = 3


class _ZeroPad(_ConstantPad):
    def __init__(self, padding: Size) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad1d(_ZeroPad, ConstantPad1d):
    """(N, C, L) padded with zeros. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ZeroPad1d(1)(tg.rand(1, 2, 4)).shape
    """


class ZeroPad2d(_ZeroPad, ConstantPad2d):
    """(N, C, H, W) padded with zeros. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ZeroPad2d(1)(tg.rand(1, 2, 4, 4)).shape
    """


class ZeroPad3d(_ZeroPad, ConstantPad3d):
    """(N, C, D, H, W) padded with zeros. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ZeroPad3d(1)(tg.rand(1, 2, 4, 4, 4)).shape
    """


class ReflectionPad1d(_Pad):
    """(N, C, L) padded with its mirror image, the edge not repeated.

    Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ReflectionPad1d(1)(tg.rand(1, 2, 4)).shape
    """

    mode = "reflect"


class ReflectionPad2d(_Pad):
    """(N, C, H, W) padded with its mirror image, the edges not repeated.

    Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ReflectionPad2d(1)(tg.rand(1, 2, 4, 4)).shape
    """

    dims, mode = 2, "reflect"


class ReplicationPad1d(_Pad):
    """(N, C, L) padded with its edge values. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ReplicationPad1d(1)(tg.rand(1, 2, 4)).shape
    """

    mode = "replicate"


class ReplicationPad2d(_Pad):
    """(N, C, H, W) padded with its edge values. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ReplicationPad2d(1)(tg.rand(1, 2, 4, 4)).shape
    """

    dims, mode = 2, "replicate"


class CircularPad1d(_Pad):
    """(N, C, L) padded with what stands at the other end. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.CircularPad1d(1)(tg.rand(1, 2, 4)).shape
    """

    mode = "circular"


class CircularPad2d(_Pad):
    """(N, C, H, W) padded with what stands at the other ends. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.CircularPad2d(1)(tg.rand(1, 2, 4, 4)).shape
    """

    dims, mode = 2, "circular"


class ReflectionPad3d(_Pad):
    """(N, C, D, H, W) padded with its mirror image, the edges not repeated.

    Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ReflectionPad3d(1)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    dims, mode = 3, "reflect"


class ReplicationPad3d(_Pad):
    """(N, C, D, H, W) padded with its edge values. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.ReplicationPad3d(1)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    dims, mode = 3, "replicate"


class CircularPad3d(_Pad):
    """(N, C, D, H, W) padded with what stands at the other ends. Of the shapes and dtypes of nn.functional.pad; raises what that raises.

    >>> nn.CircularPad3d(1)(tg.rand(1, 2, 4, 4, 4)).shape
    """

    dims, mode = 3, "circular"
