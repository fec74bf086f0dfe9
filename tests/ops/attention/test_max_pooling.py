"""Max pooling against its definition: values, places, gradients and second derivatives; ties, -inf, NaN; both schedules."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.nn import functional as F
from tracegrad.support.tuning import Tuning, tuned, tuning

#        image, kernel, stride, padding, dilation, ceil_mode
CASES = [
    ((7,), (3,), (2,), (1,), (1,), False),
    ((100,), (5,), (3,), (2,), (2,), True),
    ((33,), (2,), (2,), (0,), (1,), False),
    ((33,), (2,), (2,), (1,), (1,), True),
    ((64,), (2,), (5,), (1,), (3,), False),
    ((50,), (40,), (3,), (20,), (1,), False),
    ((13, 16), (3, 3), (2, 2), (1, 1), (1, 1), False),
    ((13, 31), (2, 3), (1, 3), (0, 1), (3, 2), True),
    ((16, 17), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((65, 5), (5, 1), (5, 1), (2, 0), (1, 1), False),
    ((7, 9), (4, 5), (1, 2), (2, 2), (1, 1), False),
    ((5, 6, 7), (2, 3, 1), (1, 2, 1), (1, 1, 0), (1, 2, 1), False),
    ((4, 6, 8), (2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1), False),
]
POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def pool(x: Any, case: Any, return_indices: bool = False) -> Any:
    image, *arguments = case
    return POOLS[len(image)](x, *arguments, return_indices=return_indices)


def by_definition(x: np.ndarray, case: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values and places of planes (B, *image), window by window: the first of equals, the first NaN, never the padding."""
    image, kernel, stride, padding, dilation, ceil_mode = case
    size = []
    for s, k, st, p, d in zip(image, kernel, stride, padding, dilation, strict=True):
        room = s + 2 * p - d * (k - 1) - 1
        count = (-(-room // st) if ceil_mode else room // st) + 1
        size.append(count - (ceil_mode and (count - 1) * st >= s + p))
    y, places = np.empty((len(x), *size), x.dtype), np.empty((len(x), *size), np.int64)
    for b, window in product(range(len(x)), np.ndindex(*size)):
        best = None
        for tap in np.ndindex(*kernel):
            at = tuple(o * st - p + t * d for o, st, p, t, d in zip(window, stride, padding, tap, dilation, strict=True))
            if not all(0 <= a < s for a, s in zip(at, image, strict=True)):
                continue
            value = x[(b, *at)]
            if best is None or value > best or (value != value and best == best):
                best, y[(b, *window)], places[(b, *window)] = value, value, np.ravel_multi_index(at, image)
    return y, places


def planes(case: Any, seed: int, dtype: Any = np.float32, count: int = 5) -> np.ndarray:
    """Few different values, so that many are equal; some are -inf, whole regions are, and a few are NaN."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, (count, *case[0])).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[rng.random(x.shape) < 0.1] = -np.inf
        x[1][rng.random(x[1].shape) < 0.05] = np.nan
        x[2] = -np.inf
    return x


def added_up(ct: np.ndarray, places: np.ndarray, image: tuple[int, ...]) -> np.ndarray:
    out = np.zeros((len(ct), int(np.prod(image))), ct.dtype)
    for plane, g, at in zip(out, ct, places, strict=True):
        np.add.at(plane, at.ravel(), g.ravel())
    return out.reshape(len(ct), *image)


def derivatives(case: Any) -> Any:
    """x, a factor and a direction -> value, places, the gradient of sum(y^3 factor), and its derivative in that direction."""
    def gradient(x: Any, factor: Any) -> Any:
        def total(x: Any) -> Any:
            y = pool(x, case)
            return (tg.where(y.isfinite(), y, 0.0) ** 3 * factor).sum()

        return tg.grad(total)(x)

    def program(x: Any, factor: Any, direction: Any) -> Any:
        second = tg.grad(lambda x: (gradient(x, factor) * direction).sum())(x)
        return *pool(x, case, return_indices=True), gradient(x, factor), second

    return program


def given(case: Any, dtype: Any, seed: int, count: int = 5) -> list[np.ndarray]:
    x, rng = planes(case, seed, dtype, count), np.random.default_rng(seed + 1)
    return [x, *(rng.standard_normal(shape).astype(dtype) for shape in (by_definition(x, case)[0].shape, x.shape))]


def compare(case: Any, arrays: list[np.ndarray], found: list[np.ndarray]) -> None:
    """What `derivatives` gave, with what it has to be."""
    x, factor, direction = arrays
    y, places = by_definition(x, case)
    assert_array_equal(found[0], y)
    assert_array_equal(found[1], places)
    finite = np.where(np.isfinite(y), y, 0)
    picked = np.take_along_axis(direction.reshape(len(x), -1), places.reshape(len(x), -1), 1).reshape(y.shape)
    assert_allclose(found[2], added_up(3 * finite**2 * factor, places, case[0]), rtol=1e-5, atol=1e-4)
    assert_allclose(found[3], added_up(6 * finite * factor * picked, places, case[0]), rtol=1e-5, atol=1e-4)


def check(case: Any, dtype: Any, run: Any, seed: int) -> None:
    arrays = given(case, dtype, seed)
    compare(case, arrays, [np.asarray(a)[0] for a in run(*(tg.tensor(a[None]) for a in arrays))])


@pytest.mark.parametrize("number", range(len(CASES)))
def test_by_definition(number, on_numpy):
    """On the interpreter; and its kernels: the gradient plane by plane (where they feed the cores), and by what it is composed of."""
    few, many = (Tuning()._replace(pool_cores=n) for n in (8, 0))
    name = ("avx2", "sse, 16 cores", "avx512")[number % 3]
    second = {name: TARGETS[name]} if number in (0, 2, 3, 8) else {"gpu": TARGETS["gpu"]}
    with Checked({name: TARGETS[name]}, tuning=few, slack=10) as planewise, Checked(second, tuning=many, slack=10) as composed:
        check(CASES[number], np.float64 if number % 2 else np.float32, tg.trace(derivatives(CASES[number])), number)
    assert planewise.count == composed.count == 1


def test_on_the_device(device):
    """Several in one program."""
    pair = [CASES[6], CASES[8]]

    def gradients(*arrays: Any) -> Any:
        return [tg.grad(lambda x, case=case, factor=factor: (pool(x, case) * factor).sum())(x)
                for case, (x, factor) in zip(pair, arrays, strict=True)]

    arrays = [given(case, np.float32, 3, 8)[:2] for case in pair]
    for cores in (8, 0):
        with tuned(tuning()._replace(pool_cores=cores)):
            results = tg.trace(gradients)(*(tuple(tg.tensor(a[None]) for a in two) for two in arrays))
        for case, (x, factor), found in zip(pair, arrays, results, strict=True):
            assert_allclose(found[0].numpy(), added_up(factor, by_definition(x, case)[1], case[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.bool_])
def test_integers(dtype):
    for case in (CASES[0], CASES[7]):
        x = planes(case, 3, np.int64).clip(0 if dtype in (np.uint8, np.bool_) else -2).astype(dtype)
        x[2] = np.iinfo(dtype).min if dtype is not np.bool_ else False
        for a, b in zip(pool(tg.tensor(x), case, True), by_definition(x, case), strict=True):
            assert_array_equal(a.numpy(), b)


def test_transforms(on_numpy):
    case = CASES[7]
    x, v = planes(case, 4, np.float64)[3:, None], np.random.default_rng(5).standard_normal((2, 1, *case[0]))
    places = np.stack([by_definition(a, case)[1] for a in x])
    one = lambda a: pool(a, case)
    tangents = tg.vmap(lambda a, b: tg.jvp(one, (a,), (b,))[1])(tg.tensor(x), tg.tensor(v)).numpy()
    expected = np.take_along_axis(v.reshape(2, -1), places.reshape(2, -1), 1).reshape(places.shape)
    assert_array_equal(tangents, expected)
    found = tg.vmap(tg.grad(lambda a: one(a).exp().sum()))(tg.tensor(x)).numpy()
    y = np.take_along_axis(x.reshape(2, -1), places.reshape(2, -1), 1)
    assert_allclose(found[:, 0], added_up(np.exp(y).reshape(places.shape)[:, 0], places[:, 0], case[0]))


def test_the_gradient_looks_at_no_window_again():
    """Its kernel reads places and what comes back, not x."""
    f = tg.trace(tg.grad(lambda image: (F.max_pool2d(image, 3, 2) ** 2).sum()))
    f(tg.randn(4, 64, 20, 20))
    (kernel,) = [text for text in str(f.kernels()).split("__kernel")[1:] if "int window" in text]
    assert "image[" not in kernel


def test_nothing_to_pool():
    x = tg.zeros(0, 3, 8, 8)
    assert tg.grad(lambda x: F.max_pool2d(x, 3, 2, 1).sum())(x).shape == (0, 3, 8, 8)
