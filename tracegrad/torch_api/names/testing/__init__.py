"""torch.testing's names that are not in `tracegrad.testing`: random tensors of tests, and the check that came before `assert_close`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tracegrad as tg
from tracegrad.errors import ArgumentError, DTypeError, warn
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.tensor import Tensor
from tracegrad.tensors.type_info import finfo, iinfo
from tracegrad.testing import assert_close


def assert_allclose(actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = True,
                    msg: str = "") -> None:
    """`assert_close` with wider tolerances, of values only: deprecated in torch."""
    warn("assert_allclose: is deprecated; use torch.testing.assert_close", FutureWarning)
    actual = actual if isinstance(actual, Tensor) else tg.tensor(actual)
    expected = expected if isinstance(expected, Tensor) else tg.tensor(expected, dtype=actual.dtype)
    if rtol is None and atol is None:
        known = {dtypes.float16: (1e-3, 1e-3), dtypes.float32: (1e-4, 1e-5), dtypes.float64: (1e-5, 1e-8)}
        found = [known.get(x.dtype, (0.0, 0.0)) for x in (actual, expected)]
        rtol, atol = max(f[0] for f in found), max(f[1] for f in found)
    assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None)


def make_tensor(*shape: Any, dtype: Any, device: Any, low: float | None = None, high: float | None = None,
                requires_grad: bool = False, noncontiguous: bool = False, exclude_zero: bool = False,
                memory_format: Any = None) -> Tensor:
    """A tensor of `shape` with random numbers from [low, high): torch's draws. Defaults: [-9, 9), integers [-9, 10) or [0, 10).

    noncontiguous: every second element of a larger tensor; exclude_zero: the smallest positive number (or 1) in place of zeros.
    Raises ArgumentError for bounds that the dtype does not have, and for integers that require grad.

    >>> import tracegrad.torch_api.names.testing as testing
    >>> testing.make_tensor(2, 3, dtype=tg.float32, device="cpu", low=0).shape
    torch.Size([2, 3])
    """
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    dtype = tg.empty(0, dtype=dtype).dtype
    whole = dtype_kind(dtype) in "biu"
    lowest: Any
    highest: Any
    if noncontiguous and memory_format is not None:
        raise ArgumentError("make_tensor: noncontiguous and memory_format are mutually exclusive; give one of them")
    if requires_grad and whole:
        raise ArgumentError(f"make_tensor: requires_grad=True is not supported for boolean and integral dtypes, but got {dtype}")
    apart = noncontiguous and math.prod(sizes) > 1
    drawn = (*sizes[:-1], 2 * sizes[-1]) if apart else sizes
    if dtype_kind(dtype) == "b":
        lowest, highest, default = 0, 2, (0, 2)
    elif whole:
        lowest, highest = iinfo(dtype).min, iinfo(dtype).max + (dtype != dtypes.int64)
        default = (-9, 10)
    elif dtype_kind(dtype) in "fc":
        lowest, highest, default = finfo(dtype).min, finfo(dtype).max, (-9, 9)
    else:
        raise DTypeError(f"make_tensor: dtype {dtype} has no random numbers")
    first, last = _bounds(default[0] if low is None else low, default[1] if high is None else high, lowest, highest, whole)
    result: Tensor
    if whole:
        result = tg.randint(first, last, drawn, dtype=dtype, device=device)
    else:
        result = tg.empty(drawn, dtype=dtype, device=device)
        parts = tg.view_as_real(result) if dtype_kind(dtype) == "c" else result
        if last - first >= highest:
            parts.uniform_(first / 2, last / 2).mul_(2)
        else:
            parts.uniform_(first, last)
    if apart:
        result = result[..., 1::2]
    elif memory_format is not None:
        result = result.clone(memory_format=memory_format)
    if exclude_zero:
        result[result == 0] = 1 if whole else finfo(dtype).tiny
    if requires_grad:
        result.requires_grad_()
    return result


def _bounds(low: Any, high: Any, lowest: Any, highest: Any, whole: bool) -> tuple[Any, Any]:
    if any(isinstance(v, float) and math.isnan(v) for v in (low, high)):
        raise ArgumentError(f"make_tensor: low and high cannot be NaN, but got low={low} and high={high}")
    if low > high or (whole and low == high):
        raise ArgumentError(f"make_tensor: low must be less than high, but got {low} >= {high}")
    if high < lowest or low >= highest:
        raise ArgumentError(f"make_tensor: the interval [{low}, {high}) is outside what the dtype has, [{lowest}, {highest})")
    low, high = min(max(low, lowest), highest), min(max(high, lowest), highest)
    return (math.ceil(low), math.ceil(high)) if whole else (low, high)
