"""Running sums, products and extremes along the last dimension, which CPUs do in vectors: lengths around the lanes, chunks, order."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad.support.tuning import Tuning

CPUS = {name: TARGETS[name] for name in ("avx2", "avx512", "sse, 16 cores")}


@one_of(5, ("shape", "dtype"), product([(3, 31), (2, 64), (37, 5), (5, 12), (1, 65), (5, 129), (1, 600), (9, 16), (4, 24), (2, 3, 17)],
                                       ["float32", "float64", "int32", "int64", "uint8", "float16"]))
def test_rows_go_in_vectors(shape: tuple[int, ...], dtype: str, on_numpy: None) -> None:
    x = np.random.default_rng(shape[-1]).integers(0, 5, shape).astype(dtype)

    @tg.trace
    def step(x: Any) -> Any:
        return x.cumsum(-1), (x * 2).cumsum(-1), (x > 2).cumsum(-1), (x.clamp(0, 1) + 1).cumprod(-1), x.cummax(-1), x.flip(-1).cummin(-1)

    given = [x]
    if x.dtype.kind == "f":
        odd = x.copy()
        odd[..., -1], odd[..., shape[-1] // 3], odd[..., shape[-1] // 2] = np.nan, -np.inf, np.inf
        given += [odd, np.full(shape, -np.inf, dtype), np.full(shape, np.nan, dtype)]
    for each in given:
        np.testing.assert_array_equal(np.asarray(step(tg.tensor(each))[4].values), np.maximum.accumulate(each, -1))
        for tuning in (None, Tuning(scan_chunk=2), Tuning(scan_chunk=50)):
            with Checked(CPUS, tuning=tuning) as checked:
                tg.trace(step.__wrapped__)(tg.tensor(each))
            assert checked.count


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_running_product_that_left_the_range_stays_as_it_is(dtype: str) -> None:
    n = 1 << 15                                                        # a chunk of twos alone would be infinite, and 0 times that NaN
    x = np.concatenate([np.full(n, 0.5, dtype), np.full(n, 2, dtype)])
    found = np.asarray(tg.trace(lambda x: x.cumprod(0))(tg.tensor(x)))
    np.testing.assert_array_equal(found, np.cumprod(x, dtype="float64").astype(dtype))


@one_of(3, ("n", "dtype"), product([24, 200, 2000], ["float32", "float64"]))
def test_running_sums_of_what_is_not_negative_never_fall(n: int, dtype: str) -> None:
    draw = np.random.default_rng(n)
    x = (draw.random((40, n)) * 10.0 ** draw.integers(-20, 1, (40, n)) * (draw.random((40, n)) < 0.7)).astype(dtype)
    found = np.asarray(tg.trace(lambda x: x.cumsum(1))(tg.tensor(x)))
    assert (np.diff(found, axis=1) >= 0).all()


def test_chunks_but_the_last_are_put_together_first() -> None:
    step = tg.trace(lambda x: (x.cumsum(0), x.cumprod(0)))
    found, ones = step(tg.ones(1 << 16))
    np.testing.assert_array_equal(np.asarray(found), np.arange(1, (1 << 16) + 1))
    np.testing.assert_array_equal(np.asarray(ones), 1)
    *sums, products = [launch.global_size[0] for launch in step.plan.launches]
    assert products == 1                                               # factor by factor
    assert len(sums) == 1 or sums[0] == sums[1] - 1                    # (a device of one core cuts no row)


def test_neighbours_are_lanes() -> None:
    step = tg.trace(lambda x: (x.cumsum(1), tg.cummax(x, 1)[0]))
    step(tg.ones(3, 64))
    assert str(step.kernels()).count("so_far3") > 2


@pytest.mark.parametrize("program", [
    lambda x: (x * 2 - 1).cumsum(-1), lambda x: (x > 0).cumsum(0), lambda x: (x[:, 1:] - x[:, :-1]).cumsum(1)])
def test_what_takes_little_is_computed_where_it_is_scanned(program: Any) -> None:
    x = np.random.default_rng(0).standard_normal((403, 531)).astype("float32")
    x[3, 5], x[4, 6] = np.nan, np.inf
    step = tg.trace(program)
    found = np.asarray(step(tg.tensor(x)))
    np.testing.assert_allclose(found, np.asarray(program(tg.tensor(x))), rtol=2e-5, atol=1e-5)
    assert str(step.kernels()).count("__kernel void") == 1 + (tg.device().kind == "gpu")


@pytest.mark.parametrize("program", [lambda x: x.t().cumsum(-1), lambda x: tg.nn.functional.pad(x, (1, 1)).cumsum(-1)])
def test_what_vectors_do_not_load_in_turn_is_stored_before_it_is_scanned(program: Any) -> None:
    step = tg.trace(program)
    x = tg.ones(403, 531)
    found = np.asarray(step(x))
    np.testing.assert_allclose(found, np.asarray(program(x)), rtol=1e-6)
    assert str(step.kernels()).count("__kernel void") == 2


@pytest.mark.parametrize("dim", [0, 1])
def test_places_of_running_extremes_are_compared_in_32_bits(dim: int) -> None:
    x = np.random.default_rng(3).integers(0, 9, (37, 41)).astype(np.float32)
    x[5, 7] = np.nan
    step = tg.trace(lambda x: (tg.cummax(x, dim), tg.cummin(x, dim)))
    for found, extreme in zip(step(tg.tensor(x)), (np.maximum, np.minimum), strict=True):
        values = extreme.accumulate(x, dim)
        steps = np.arange(x.shape[dim]).reshape((-1, 1) if dim == 0 else (1, -1))
        hits = np.where((x == values) | np.isnan(x), steps, 0)
        assert found.indices.dtype == tg.int64
        np.testing.assert_array_equal(np.asarray(found.indices), np.maximum.accumulate(hits, dim))
        np.testing.assert_array_equal(np.asarray(found.values), values)
    assert "tg_max(long" not in step.kernels()
