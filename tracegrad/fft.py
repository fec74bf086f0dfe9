"""Discrete Fourier transforms under torch.fft's names. They stand in `ops/fourier/transforms.py`; the frequencies, which make tensors,
here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.graph.operators import fourier
from tracegrad.ops import FOURIER
from tracegrad.ops.arguments import integer
from tracegrad.ops.arrays.pointwise import where
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.creation.filled import arange
from tracegrad.tensors.tensor import Tensor, new_tensor


def _frequencies(name: str, n: int, d: float, dtype: Any, device: Any, requires_grad: bool, half: bool) -> Tensor:
    n = integer(name, "n", n)
    if n < 1:
        raise ArgumentError(f"{name}: n must be positive, got {n}")
    found = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    if dtype_kind(found) not in "fc":
        raise DTypeError(f"{name}: makes floats, not {found}")
    k = arange(n // 2 + 1 if half else n, device=device)
    k = k if half else where(k < (n + 1) // 2, k, k - n)
    return new_tensor((k.to(dtype=found) * (1.0 / (n * d)))._node(), k.device, requires_grad)


@fourier()
def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The frequencies (n) of the elements of an fft of n points that are d apart: 0, 1, ..., -2, -1 by n d; the middle is negative.

    dtype: float, else DTypeError; default: the default float one. Raises ArgumentError unless n > 0.

    >>> tg.fft.fftfreq(5)
    """
    return _frequencies("fftfreq", n, d, dtype, device, requires_grad, half=False)


@fourier()
def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """The frequencies (n // 2 + 1) of the elements of an rfft of n points that are d apart: 0, 1, ... by n d.

    dtype: float, else DTypeError; default: the default float one. Raises ArgumentError unless n > 0.

    >>> tg.fft.rfftfreq(5)
    """
    return _frequencies("rfftfreq", n, d, dtype, device, requires_grad, half=True)


globals().update(FOURIER)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = sorted(FOURIER)           # noqa: PLE0605  (computed, as in nn.functional)
