"""Sums along rows of what a reshape hides to be transposed are sums of columns, not of other numbers."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg

SHAPES = [((100, 2), (1, 0)), ((32, 7), (1, 0)), ((1000, 3), (1, 0)), ((40, 5, 20), (2, 0, 1)), ((3, 40, 20), (0, 2, 1))]


@pytest.mark.parametrize(("shape", "dims"), SHAPES)
@pytest.mark.parametrize("name", ["sum", "amax"])
def test_a_reduction_of_what_is_turned_and_reshaped(shape: tuple[int, ...], dims: tuple[int, ...], name: str) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    turned = values.transpose(dims)
    for flat in ((*turned.shape, 1), (1, *turned.shape), (-1, turned.shape[-1])):
        dim = -2 if flat[-1] == 1 else -1
        found = tg.trace(lambda x, flat=flat, dim=dim: getattr(x.permute(*dims).reshape(flat), name)(dim))(tg.tensor(values))
        expected = (np.max if name == "amax" else np.sum)(turned.reshape(flat), dim)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
