"""Short-time Fourier transforms: `stft` and its inverse, `istft`, as torch has them: frames, a window, and a transform of transforms.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, ShapeError, warn
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import FUNCTIONAL, public
from tracegrad.graph.primitive import cast
from tracegrad.ops.arguments import integer, on_nodes
from tracegrad.ops.arrays.complex_numbers import view_as_complex, view_as_real
from tracegrad.ops.arrays.shaping.reshaping import full_like_shape
from tracegrad.ops.fourier.transforms import dft, half_dft, real_dft
from tracegrad.ops.primitives import movement as mv
from tracegrad.ops.primitives.windows import overlapped, windows
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state

Array = Any      # a Node or a Tensor


def _sizes(name: str, n_fft: Any, hop_length: Any, win_length: Any, window: Any) -> tuple[int, int, int]:
    """(n_fft, hop_length, win_length), checked."""
    n = integer(name, "n_fft", n_fft)
    if n < 1:
        raise ArgumentError(f"{name}: n_fft must be positive, got {n}")
    hop = n // 4 if hop_length is None else integer(name, "hop_length", hop_length)
    long = n if win_length is None else integer(name, "win_length", win_length)
    if hop < 1:
        raise ArgumentError(f"{name}: hop_length must be positive, got {hop}" + " (n_fft // 4); give it" * (hop_length is None))
    if not 0 < long <= n:
        raise ArgumentError(f"{name}: win_length must be from 1 to n_fft = {n}, got {long}")
    if window is not None and tuple(window.shape) != (long,):
        raise ShapeError(f"{name}: window must have the shape ({long},), of win_length or n_fft, got {tuple(window.shape)}")
    return n, hop, long


def _window(n: int, long: int, window: Any, dtype: Any) -> Any:
    """The window in the middle of n points, else zeros; None for ones."""
    if window is None and long == n:
        return None
    left = (n - long) // 2
    return mv.pad(full_like_shape((long,), 1, dtype) if window is None else window, (left,), (n - long - left,))


@public("stft")
@on_nodes
def stft(input: Array, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None, center: bool = True,
         pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None,
         align_to_window: bool | None = None) -> Array:
    """The short-time Fourier transform of signals (L) or (B, L): the fft of windows of n_fft points, which start hop_length apart.

    hop_length: default n_fft // 4. window: (win_length), real or complex (default: ones), in the middle of n_fft points.
    center: frame t is centred at point t * hop_length, the signal being padded by n_fft // 2 at both ends (pad_mode: nn.functional.pad's).
    normalized: divided by sqrt(n_fft). onesided: frequencies 0 to n_fft // 2 only (the default where input and window are real).
    return_complex: required for real signals, as in torch; False gives real and imaginary parts in a last dimension of 2.
    align_to_window (with center=False): the first frame's window, not its n_fft points, starts at point 0.
    Returns (B, frequencies, frames), or (frequencies, frames).
    Raises ArgumentError for sizes that do not fit, ShapeError, DTypeError for integers and floats of 16 bits.
    J. Allen, L. Rabiner, "A unified approach to short-time Fourier analysis and synthesis" (1977).

    >>> tg.stft(tg.ones(64), 16, window=tg.hann_window(16), return_complex=True)
    """
    n, hop, long = _sizes("stft", n_fft, hop_length, win_length, window)
    if input.ndim not in (1, 2):
        raise ShapeError(f"stft: takes signals (L) or (B, L), got {input.shape}")
    _no_halves("stft", input, window)
    dtype = input.dtype if window is None else dtypes.promote(input.dtype, window.dtype)
    is_complex = dtype.kind == "c"
    if return_complex is None and not is_complex:
        raise ArgumentError("stft: return_complex must be given for real signals; True returns complex numbers, "
                            "False their parts in a last dimension")
    if onesided and is_complex:
        raise ArgumentError("stft: onesided=True is for a real input and window, got "
                            f"{input.dtype}{'' if window is None else f' and {window.dtype}'}")
    if center and align_to_window is not None:
        raise ArgumentError("stft: align_to_window is for center=False")
    x = cast(input, dtype)
    x = mv.reshape(x, (1, *x.shape)) if input.ndim == 1 else x
    if center:
        x = FUNCTIONAL["pad"](x, (n // 2, n // 2), pad_mode)
    length = x.shape[1]
    frames = (length - n) // hop + 1
    if align_to_window:
        frames = (length - long) // hop + 1
        left = (n - long) // 2
        x = mv.pad(x, (0, left), (0, n - long - left))
    if x.shape[1] < n or frames < 1:
        raise ArgumentError(f"stft: n_fft must be from 1 to the length of the signal{' with its padding' * center}, {length}, got {n}")
    framed = mv.narrow(windows(x, 1, n, hop), 1, 0, frames)              # (B, frames, n)
    taper = _window(n, long, None if window is None else cast(window, dtype), dtype)
    framed = framed if taper is None else framed * taper
    half = not is_complex if onesided is None else bool(onesided)
    scale = "root" if normalized else "one"
    y = real_dft(framed, -1, scale) if half else dft(cast(framed, dtypes.complex_of(dtype)), (-1,), False, scale)
    y = mv.permute(y, (0, 2, 1))
    y = mv.reshape(y, y.shape[1:]) if input.ndim == 1 else y
    return view_as_real(y) if return_complex is False else y


def _no_halves(name: str, *xs: Any) -> None:
    for x in xs:
        if x is not None and (dtype_kind(x.dtype) not in "fc" or dtypes.is_half(x.dtype)):
            raise DTypeError(f"{name}: takes float32, float64 and complex tensors, got {x.dtype}; cast first, for example x.float()")


@public("istft")
def istft(input: Array, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None, center: bool = True,
          normalized: bool = False, onesided: bool | None = None, length: int | None = None, return_complex: bool = False) -> Array:
    """The signals (L) or (B, L) whose `stft` comes nearest to input (frequencies, frames) or (B, frequencies, frames), in least squares.

    The arguments are those of stft. onesided: default where there are not n_fft frequencies. length: of the signal (default: what all
    frames cover, with center less n_fft // 2 at both ends). return_complex: of a complex signal, from a twosided spectrum.
    Raises ArgumentError where the windows, overlapped and added, leave a point of the signal uncovered (inside @trace and vmap a
    window's values are not known: there such points are NaN or infinite).
    D. Griffin, J. Lim, "Signal estimation from modified short-time Fourier transform" (1984).

    >>> w = tg.hann_window(16)
    >>> tg.istft(tg.stft(tg.ones(64), 16, window=w, return_complex=True), 16, window=w)
    """
    sizes = _sizes("istft", n_fft, hop_length, win_length, window)
    found = _istft(input, sizes, window, bool(center), bool(normalized), onesided, length, bool(return_complex))
    if window is not None and (isinstance(window, Node) or state.trace is not None or state.examples):
        return found
    n, hop, long = sizes
    values = np.ones(long) if window is None else window.detach().numpy()
    frames = input.shape[-1]
    end, start = _span(n, hop, frames, bool(center), length)[1], n // 2 if center else 0
    if not _covers(np.pad(values, ((n - long) // 2, n - long - (n - long) // 2)), hop, frames)[start:end].all():
        raise ArgumentError(f"istft: the windows (win_length {long}, hop_length {hop}, center={bool(center)}), overlapped and added, are 0 "
                            "at a point of the signal, which is not determined there; take a window without zeros, or another hop_length")
    return found


def _covers(window: Any, hop: int, frames: int) -> Any:
    """Where the squares of the windows add up to more than 0 (torch's limit: 1e-11)."""
    n = len(window)
    total = np.zeros(n + hop * (frames - 1), np.abs(window).dtype)
    square = (window * window).astype(np.result_type(window, np.float64))
    total = total.astype(square.dtype)
    for first in range(min(hop, n)):                                    # the points `first` + k * hop of all windows at once
        taps = square[first::hop]
        total[first::hop][:frames + len(taps) - 1] += np.convolve(np.ones(frames), taps)
    return np.abs(total) >= 1e-11


def _span(n: int, hop: int, frames: int, center: bool, length: Any) -> tuple[int, int]:
    """(the length of the signal with its padding, where the signal ends)."""
    whole = n + hop * (frames - 1)
    end = whole - n // 2 if center else whole
    if length is not None:
        end = (n // 2 if center else 0) + integer("istft", "length", length)
    return whole, end


@on_nodes
def _istft(input: Array, sizes: Any, window: Any, center: bool, normalized: bool, onesided: Any, length: Any, return_complex: bool) -> Any:
    n, hop, long = sizes
    if input.dtype.kind != "c":
        raise DTypeError(f"istft: takes complex tensors, as stft(return_complex=True) gives, got {input.dtype}; see view_as_complex")
    if input.ndim not in (2, 3) or 0 in input.shape:
        raise ShapeError(f"istft: takes (frequencies, frames) or (B, frequencies, frames), not empty, got {input.shape}")
    if hop > long:
        raise ArgumentError(f"istft: hop_length must be from 1 to win_length = {long}, got {hop}")
    wanted, half = input.shape[-2], input.shape[-2] != n if onesided is None else bool(onesided)
    if wanted != (n // 2 + 1 if half else n):
        raise ShapeError(f"istft: input must have {n // 2 + 1 if half else n} frequencies for n_fft={n} and onesided={half}, got "
                         f"{input.shape}")
    if return_complex and half:
        raise ArgumentError("istft: return_complex=True takes a spectrum of all frequencies; use onesided=False")
    if not return_complex and window is not None and window.dtype.kind == "c":
        raise ArgumentError("istft: a complex window is for return_complex=True")
    real = dtypes.real_of(input.dtype)
    kind = input.dtype if return_complex else real
    if window is not None:
        _no_halves("istft", window)
        kind = dtypes.promote(kind, window.dtype)
    x = mv.reshape(input, (1, *input.shape)) if input.ndim == 2 else input
    x = mv.permute(x, (0, 2, 1))                                        # (B, frames, frequencies)
    scale = "root" if normalized else "whole"
    if return_complex:
        y = dft(x, (-1,), True, scale)
    else:
        y = half_dft(mv.narrow(x, 2, 0, n // 2 + 1), -1, n, scale)
    y = cast(y, kind)
    frames = y.shape[1]
    taper = _window(n, long, None if window is None else cast(window, kind), kind)
    ones = full_like_shape((n,), 1, kind) if taper is None else taper
    whole, end = _span(n, hop, frames, center, length)
    signal = _added(y if taper is None else y * taper, whole, hop)
    envelope = _added(mv.expand(mv.reshape(ones * ones, (1, 1, n)), (1, frames, n)), whole, hop)
    start = n // 2 if center else 0
    stop = min(end, whole)
    if stop <= start:
        raise ArgumentError(f"istft: nothing is left of a signal of {whole} points from point {start} to {end}; give length")
    signal = mv.narrow(signal, 1, start, stop - start) / mv.narrow(envelope, 1, start, stop - start)
    if end > whole:
        warn(f"istft: length {length} is more than the frames cover; the signal's end is filled up with zeros")
        signal = mv.pad(signal, (0, 0), (0, end - whole))
    return mv.reshape(signal, signal.shape[1:]) if input.ndim == 2 else signal


def _added(y: Any, whole: int, hop: int) -> Any:
    """Frames (B, frames, n) added up where they lie: (B, whole)."""
    if y.dtype.kind == "c":
        parts = view_as_real(y)                                         # (B, frames, n, 2)
        b = parts.shape[0]
        parts = mv.reshape(mv.permute(parts, (0, 3, 1, 2)), (b * 2, *y.shape[1:]))
        both = mv.reshape(overlapped(parts, 1, whole, hop), (b, 2, whole))
        return view_as_complex(mv.permute(both, (0, 2, 1)))
    return overlapped(y, 1, whole, hop)
