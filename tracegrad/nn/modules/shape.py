"""Modules that move elements: flattening, shuffling, padding."""

from __future__ import annotations

from typing import ClassVar

from tracegrad.errors import ArgumentError, ShapeError
from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.nn.modules.sizes import Size, as_tuple
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


class Unflatten(Module):
    """One dimension made several: Unflatten(1, (2, 3)) makes (N, 2, 3) of (N, 6). One of the sizes may be -1."""

    def __init__(self, dim: int, unflattened_size: tuple[int, ...] | list[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return input.unflatten(self.dim, self.unflattened_size)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """(*, C r², H, W) -> (*, C, H r, W r): channels become r by r blocks of pixels (Shi et al. 2016)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        if upscale_factor < 1:
            raise ArgumentError(f"PixelShuffle: upscale_factor must be at least 1, got {upscale_factor}")
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        r = self.upscale_factor
        if input.ndim < 3 or input.shape[-3] % (r * r):
            raise ShapeError(f"PixelShuffle: takes (*, C, H, W) with C a multiple of {r * r}, got {input.shape}")
        *batch, c, h, w = input.shape
        x, n = input.reshape(*batch, c // (r * r), r, r, h, w), len(batch)
        return x.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(*batch, c // (r * r), h * r, w * r)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(*, C, H r, W r) -> (*, C r², H, W): the inverse of `PixelShuffle`."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        if downscale_factor < 1:
            raise ArgumentError(f"PixelUnshuffle: downscale_factor must be at least 1, got {downscale_factor}")
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        r = self.downscale_factor
        if input.ndim < 3 or input.shape[-2] % r or input.shape[-1] % r:
            raise ShapeError(f"PixelUnshuffle: takes (*, C, H, W) with H and W multiples of {r}, got {input.shape}")
        *batch, c, h, w = input.shape
        x, n = input.reshape(*batch, c, h // r, r, w // r, r), len(batch)
        return x.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3).reshape(*batch, c * r * r, h // r, w // r)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


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
        return f"{self.padding}" + ("" if self.value is None else f", value={self.value}")


class _ConstantPad(_Pad):
    def __init__(self, padding: Size, value: float) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad1d(_ConstantPad):
    """(N, C, L) padded with `value`."""


class ConstantPad2d(_ConstantPad):
    """(N, C, H, W) padded with `value`."""

    dims = 2


class ConstantPad3d(_ConstantPad):
    """(N, C, D, H, W) padded with `value`."""

    dims = 3


class ZeroPad1d(_Pad):
    """(N, C, L) padded with zeros."""


class ZeroPad2d(_Pad):
    """(N, C, H, W) padded with zeros."""

    dims = 2


class ZeroPad3d(_Pad):
    """(N, C, D, H, W) padded with zeros."""

    dims = 3


class ReflectionPad1d(_Pad):
    """(N, C, L) padded with its mirror image, the edge not repeated."""

    mode = "reflect"


class ReflectionPad2d(_Pad):
    """(N, C, H, W) padded with its mirror image, the edges not repeated."""

    dims, mode = 2, "reflect"


class ReplicationPad1d(_Pad):
    """(N, C, L) padded with its edge values."""

    mode = "replicate"


class ReplicationPad2d(_Pad):
    """(N, C, H, W) padded with its edge values."""

    dims, mode = 2, "replicate"


class CircularPad1d(_Pad):
    """(N, C, L) padded with what stands at the other end."""

    mode = "circular"


class CircularPad2d(_Pad):
    """(N, C, H, W) padded with what stands at the other ends."""

    dims, mode = 2, "circular"
