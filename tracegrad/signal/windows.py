"""Windows for spectral analysis, torch.signal.windows' names: each a vector of M weights, of the default float dtype unless given.

sym: symmetric, for filters; sym=False: periodic, for spectra (the symmetric window of M + 1, without its last). They are computed on the
host in float64. Sources: F. Harris, "On the use of windows for harmonic analysis with the discrete Fourier transform" (1978); A. Nuttall,
"Some windows with very good sidelobe behavior" (1981). `_window` is where to start reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError, TracegradError
from tracegrad.graph.ir import Aval
from tracegrad.graph.operators import entered
from tracegrad.ops.arguments import integer
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.creation.arguments import create
from tracegrad.tensors.tensor import Tensor, from_array


def _window(name: str, M: Any, sym: bool, weights: Callable[[Any, int], Any], dtype: Any, device: Any, requires_grad: bool,
            single: bool = True) -> Tensor:
    """weights(k, n) for k = 0 ... M - 1, n the number of points of the symmetric window; 1 for M = 1, if `single`."""
    m = integer(name, "M", M)
    if m < 0:
        raise ArgumentError(f"{name}: M must not be negative, got {m}")
    found = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    if dtype_kind(found) != "f":
        raise DTypeError(f"{name}: dtype must be a float dtype, got {found}")
    Aval((m,), dtypes.float64)                               # which refuses what no index reaches
    n = m if sym or m <= 1 else m + 1
    values = np.ones(m) if n == 1 and single else np.asarray(weights(np.arange(m, dtype=np.float64), n), np.float64)
    return from_array(values.astype(found), device, requires_grad)


def _cosines(name: str, M: Any, a: Iterable[float], sym: bool, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    """The sum of (-1)^i a[i] cos(2 pi i k / (M - 1))."""
    factors = [float(v) for v in a]
    if not factors:
        raise ArgumentError(f"{name}: a must hold at least one number, got {a!r}")

    def weights(k: Any, n: int) -> Any:
        return sum((-1) ** i * v * np.cos(2 * np.pi * i * k / (n - 1)) for i, v in enumerate(factors))

    return _window(name, M, sym, weights, dtype, device, requires_grad)


@entered
def bartlett(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A triangle: 1 - |2 k / (M - 1) - 1|."""
    return _window("bartlett", M, sym, lambda k, n: 1 - np.abs(2 * k / (n - 1) - 1), dtype, device, requires_grad)


@entered
def blackman(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """0.42 - 0.5 cos(2 pi k / (M - 1)) + 0.08 cos(4 pi k / (M - 1))."""
    return _cosines("blackman", M, (0.42, 0.5, 0.08), sym, dtype, device, requires_grad)


@entered
def cosine(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """sin(pi (k + 1/2) / M)."""
    return _window("cosine", M, sym, lambda k, n: np.sin(np.pi * (k + 0.5) / n), dtype, device, requires_grad)


@entered
def exponential(M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, dtype: Any = None, device: Any = None,
                requires_grad: bool = False) -> Tensor:
    """exp(-|k - center| / tau); center: the middle unless given, which needs sym=False."""
    if tau <= 0:
        raise ArgumentError(f"exponential: tau must be positive, got {tau}")
    if sym and center is not None:
        raise ArgumentError(f"exponential: center must be None for symmetric windows, got {center}")
    m = integer("exponential", "M", M)
    middle = (m - 1 if sym or m <= 1 else m) / 2 if center is None else center
    return _window("exponential", M, sym, lambda k, n: np.exp(-np.abs(k - middle) / tau), dtype, device, requires_grad,
                   single=False)


@entered
def gaussian(M: int, *, std: float = 1.0, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """exp(-((k - (M - 1) / 2) / std)² / 2)."""
    if std <= 0:
        raise ArgumentError(f"gaussian: std must be positive, got {std}")
    return _window("gaussian", M, sym, lambda k, n: np.exp(-0.5 * ((k - (n - 1) / 2) / std) ** 2), dtype, device, requires_grad)


@entered
def general_cosine(M: int, *, a: Iterable[float], sym: bool = True, dtype: Any = None, device: Any = None,
                   requires_grad: bool = False) -> Tensor:
    """The sum of (-1)^i a[i] cos(2 pi i k / (M - 1))."""
    return _cosines("general_cosine", M, a, sym, dtype, device, requires_grad)


@entered
def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, dtype: Any = None, device: Any = None,
                    requires_grad: bool = False) -> Tensor:
    """alpha - (1 - alpha) cos(2 pi k / (M - 1))."""
    return _cosines("general_hamming", M, (alpha, 1 - alpha), sym, dtype, device, requires_grad)


@entered
def hamming(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """0.54 - 0.46 cos(2 pi k / (M - 1))."""
    return _cosines("hamming", M, (0.54, 1 - 0.54), sym, dtype, device, requires_grad)


@entered
def hann(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """1/2 - cos(2 pi k / (M - 1)) / 2."""
    return _cosines("hann", M, (0.5, 0.5), sym, dtype, device, requires_grad)


@entered
def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """I0(beta sqrt(1 - (2 k / (M - 1) - 1)²)) / I0(beta)."""
    if beta < 0:
        raise ArgumentError(f"kaiser: beta must not be negative, got {beta}")

    def weights(k: Any, n: int) -> Any:
        return np.i0(beta * np.sqrt(np.maximum(0, 1 - (2 * k / (n - 1) - 1) ** 2))) / np.i0(beta)

    return _window("kaiser", M, sym, weights, dtype, device, requires_grad)


@entered
def nuttall(M: int, *, sym: bool = True, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Nuttall's window of four terms, the sidelobes of which are lowest."""
    return _cosines("nuttall", M, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym, dtype, device, requires_grad)


# --------------------------------------------------------------------------------------------------- torch's older functions

@contextmanager
def _called(name: str) -> Iterator[None]:
    """Errors of a window begin with `name`, which the user called, and call its length as that does."""
    try:
        yield
    except TracegradError as error:
        error.args = (re.sub(r"^\w+: (M\b)?", lambda m: f"{name}: {'window_length' if m[1] else ''}", str(error)), *error.args[1:])
        raise


@create()
def bartlett_window(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None,
                    requires_grad: bool = False) -> Tensor:
    """`signal.windows.bartlett`, periodic unless it says otherwise. Shape (window_length,), of a float dtype (else DTypeError).

    >>> tg.bartlett_window(4)
    """
    with _called("bartlett_window"):
        return bartlett(window_length, sym=not periodic, dtype=dtype, device=device, requires_grad=requires_grad)


@create()
def blackman_window(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None,
                    requires_grad: bool = False) -> Tensor:
    """`signal.windows.blackman`, periodic unless it says otherwise. Shape (window_length,), of a float dtype (else DTypeError).

    >>> tg.blackman_window(4)
    """
    with _called("blackman_window"):
        return blackman(window_length, sym=not periodic, dtype=dtype, device=device, requires_grad=requires_grad)


@create()
def hamming_window(window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None,
                   device: Any = None, requires_grad: bool = False) -> Tensor:
    """alpha - beta cos(2 pi k / M), periodic unless it says otherwise. Shape (window_length,), of a float dtype (else DTypeError).

    >>> tg.hamming_window(4)
    """
    with _called("hamming_window"):
        return _cosines("hamming_window", window_length, (alpha, beta), not periodic, dtype, device, requires_grad)


@create()
def hann_window(window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`signal.windows.hann`, periodic unless it says otherwise. Shape (window_length,), of a float dtype (else DTypeError).

    >>> tg.hann_window(4)
    """
    with _called("hann_window"):
        return hann(window_length, sym=not periodic, dtype=dtype, device=device, requires_grad=requires_grad)


@create()
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None, device: Any = None,
                  requires_grad: bool = False) -> Tensor:
    """`signal.windows.kaiser`, periodic unless it says otherwise. Shape (window_length,), of a float dtype (else DTypeError).

    >>> tg.kaiser_window(4)
    """
    with _called("kaiser_window"):
        return kaiser(window_length, beta=beta, sym=not periodic, dtype=dtype, device=device, requires_grad=requires_grad)


__all__ = ["bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming", "hann", "kaiser",
           "nuttall"]
