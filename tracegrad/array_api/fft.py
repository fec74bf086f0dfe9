"""The standard's Fourier transforms: tracegrad.fft under the standard's names of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad import fft as _own
from tracegrad.array_api._common import Array

Sizes = Sequence[int] | None


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform of complex x along axis, cut or padded with zeros to size n."""
    return _own.fft(x, n, axis, norm)


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `fft`."""
    return _own.ifft(x, n, axis, norm)


def fftn(x: Array, /, *, s: Sizes = None, axes: Sizes = None, norm: str = "backward") -> Array:
    """`fft` along several axes (default: all), cut or padded to sizes s."""
    return _own.fftn(x, s, axes, norm)


def ifftn(x: Array, /, *, s: Sizes = None, axes: Sizes = None, norm: str = "backward") -> Array:
    """The inverse of `fftn`."""
    return _own.ifftn(x, s, axes, norm)


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The transform of real x along axis: the n // 2 + 1 values that are not conjugates of others."""
    return _own.rfft(x, n, axis, norm)


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `rfft`: real, of size n (default: 2 (m - 1))."""
    return _own.irfft(x, n, axis, norm)


def rfftn(x: Array, /, *, s: Sizes = None, axes: Sizes = None, norm: str = "backward") -> Array:
    """`rfft` along the last of several axes (default: all) and `fft` along the others."""
    return _own.rfftn(x, s, axes, norm)


def irfftn(x: Array, /, *, s: Sizes = None, axes: Sizes = None, norm: str = "backward") -> Array:
    """The inverse of `rfftn`."""
    return _own.irfftn(x, s, axes, norm)


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The real transform, of size n (default: 2 (m - 1)), of the half of a Hermitian x."""
    return _own.hfft(x, n, axis, norm)


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """The inverse of `hfft`."""
    return _own.ihfft(x, n, axis, norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of `fft` of n samples at distance d: 0, 1, ..., -2, -1 over d n."""
    return _own.fftfreq(n, d, dtype=dtype, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of `rfft` of n samples at distance d: 0, 1, ..., n // 2 over d n."""
    return _own.rfftfreq(n, d, dtype=dtype, device=device)


def fftshift(x: Array, /, *, axes: int | Sizes = None) -> Array:
    """x with the frequency 0 in the middle of axes (default: all)."""
    return _own.fftshift(x, axes)


def ifftshift(x: Array, /, *, axes: int | Sizes = None) -> Array:
    """The inverse of `fftshift`."""
    return _own.ifftshift(x, axes)


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip
