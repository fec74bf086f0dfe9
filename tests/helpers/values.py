"""What tests of tensors share: float64 tensors from numbers, and comparison with expected values."""

from typing import Any

import numpy as np

import tracegrad as tg


def f64(*values: Any, grad: bool = True) -> tg.Tensor:
    """A float64 tensor of `values`; it requires grad unless grad is False."""
    return tg.tensor(np.array(values, dtype=np.float64), requires_grad=grad)


def given(seed: int, *shape: int) -> tg.Tensor:
    """Normal numbers in float32."""
    return tg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def plain(array: Any) -> Any:
    """The array; bfloat16 as float32, of which numpy's assertions know NaN and tolerances."""
    return array.astype(np.float32) if array.dtype == tg.bfloat16 else array


def close(actual: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Assert that tensors (or arrays) are equal up to `tolerance`, relative and absolute."""
    found, wanted = (np.asarray(x.detach() if isinstance(x, tg.Tensor) else x) for x in (actual, expected))
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
