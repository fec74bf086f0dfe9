"""Pools of large windows that overlap: found dimension by dimension (ops/convolution/pooling.py, max_pooling.py)."""

from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.nn import functional as F

CASES = [((5, 5), (1, 1), (2, 2)), ((7, 3), (2, 1), (3, 1)), ((9, 4), (3, 5), (0, 2)), ((1, 18), (1, 2), (0, 9)), ((6, 6), (6, 4), (0, 0))]


def windows(x, kernel, stride, padding, dilation=(1, 1), fill=0.0):
    """The elements of each window, last: row by row."""
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(p, p) for p in padding], constant_values=fill)
    size = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[-2:], kernel, stride, dilation, strict=True)]
    out = np.empty((*x.shape[:-2], *size, *kernel), x.dtype)
    for i, j in product(*map(range, size)):
        rows, cols = (slice(at * s, at * s + d * (k - 1) + 1, d) for at, s, d, k in zip((i, j), stride, dilation, kernel, strict=True))
        out[..., i, j, :, :] = x[..., rows, cols]
    return out.reshape(*out.shape[:-2], -1)


@one_of(3, ("kernel", "stride", "padding"), CASES)
def test_means(kernel, stride, padding, device):
    x, step = (np.random.default_rng(seed).standard_normal((2, 3, 20, 23)) for seed in (0, 1))
    step *= 1e-6

    def of(x):
        return (F.avg_pool2d(x, kernel, stride, padding) ** 3).sum()

    got, grad = tg.trace(lambda x: (F.avg_pool2d(x, kernel, stride, padding), tg.grad(of)(x)))(tg.from_numpy(x))
    np.testing.assert_allclose(got.numpy(), windows(x, kernel, stride, padding).mean(-1), rtol=1e-12, atol=1e-14)
    high, low = ((windows(at, kernel, stride, padding).mean(-1) ** 3).sum() for at in (x + step, x - step))
    np.testing.assert_allclose((grad.numpy() * step).sum() * 2, high - low, rtol=1e-5)


@one_of(3, ("case", "dilation"), product(CASES, [(1, 1), (2, 1)]))
def test_largest(case, dilation, device):
    """With NaN, and equals: zeros of both signs are equals, too, and the first is the first row by row."""
    rng = np.random.default_rng(0)
    x = rng.choice([-2.0, -1.0, -0.0, 0.0], (2, 3, 20, 23))
    x[0, 0], x[0, 1, 7, 5], x[1, 2] = rng.choice([-0.0, 0.0], (20, 23)), np.nan, rng.standard_normal((20, 23))
    got = tg.trace(lambda x: F.max_pool2d(x, *case, dilation))(tg.from_numpy(x)).numpy()
    found = windows(x, *case, dilation, -np.inf)
    np.testing.assert_array_equal(got, np.take_along_axis(found, np.argmax(found, -1)[..., None], -1)[..., 0])


@pytest.mark.skipif(tg.device().kind == "numpy", reason="no kernels")
@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
def test_windows_are_not_read_lane_by_lane(pool):
    f = tg.trace(lambda x: pool(x, 9, 1))
    f(tg.rand(2, 3, 40, 40))
    assert "GATHER" not in str(f.kernels())
    assert "_IF(" not in str(f.kernels())
