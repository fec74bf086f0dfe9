"""argmax and argmin of rows, which CPUs search in vectors: lengths around the lanes, chunks, NaN, equals, parts of rows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad.execute.devices import find_device
from tracegrad.support.tuning import Tuning

CPUS = {name: TARGETS[name] for name in ("avx512", "sse, 16 cores")}


@one_of(5, ("shape", "dtype"), product([(3, 31), (2, 64), (37, 5), (5, 12), (1, 65), (5, 129), (2, 300), (9, 16), (4, 24), (3, 47)],
                                       ["float32", "float64", "int32", "int64", "uint8", "float16"]))
def test_rows_are_searched_in_vectors(shape: tuple[int, int], dtype: str, on_numpy: None) -> None:
    rng = np.random.default_rng(shape[1])
    few = rng.integers(0, 4, shape).astype(dtype)                      # many equals: the first wins
    ends, same = few.copy(), np.full(shape, 2, dtype)
    ends[:, -1], ends[0, 0] = 9, 9
    given = [few, ends, same]
    if few.dtype.kind == "f":
        nans = few - 2
        nans[0, shape[1] // 2:], nans[-1, -1], nans[:, 3] = np.nan, np.nan, -np.inf
        given += [nans, np.full(shape, np.nan, dtype), np.full(shape, -np.inf, dtype), np.where(few > 1, -0.0, 0.0).astype(dtype)]

    @tg.trace
    def step(*xs: Any) -> Any:
        return [y for x in xs for y in (x.argmax(1), (x * 2).argmin(1), x[:, 1:].flip(1).argmax(1))]

    found = step(*map(tg.tensor, given))
    for x, y in zip(given, found[::3], strict=True):
        np.testing.assert_array_equal(np.asarray(y), x.argmax(1))
    for tuning in (None, Tuning(arg_chunk=50, arg_short=0)):
        with Checked(CPUS, tuning=tuning) as checked:
            tg.trace(step.__wrapped__)(*map(tg.tensor, given))
        assert checked.count


@one_of(5, ("shape", "dtype"), product([(2, 5, 17), (1, 3, 4), (3, 1, 8), (33, 4, 6), (1, 300, 23), (2, 2, 300)],
                                       ["float32", "float64", "int32", "int64", "uint8", "float16"]))
def test_neighbours_are_searched_side_by_side(shape: tuple[int, ...], dtype: str, on_numpy: None) -> None:
    few = np.random.default_rng(shape[1]).integers(0, 4, shape).astype(dtype)        # many equals: the first wins
    given = [few, np.full(shape, 2, dtype)]
    if few.dtype.kind == "f":
        nans = few - 2
        nans[0, shape[1] // 2:, ::3], nans[-1, -1], nans[:, 0, ::2] = np.nan, np.nan, -np.inf
        given += [nans, np.full(shape, np.nan, dtype), np.where(few > 1, -0.0, 0.0).astype(dtype)]

    @tg.trace
    def step(*xs: Any) -> Any:
        return [y for x in xs for y in (x.argmax(1), (x * 2).argmin(1), x.flip(1)[:, :, 1:].argmax(1), x.max(1).indices)]

    found = step(*map(tg.tensor, given))
    for x, y in zip(given, found[::4], strict=True):
        np.testing.assert_array_equal(np.asarray(y), x.argmax(1))
    for tuning in (None, Tuning(arg_chunk=50)):
        with Checked(CPUS, tuning=tuning) as checked:
            tg.trace(step.__wrapped__)(*map(tg.tensor, given))
        assert checked.count


def test_neighbours_are_lanes_and_what_is_left_is_a_narrower_vector() -> None:
    x = tg.tensor(np.random.default_rng(0).normal(size=(3, 7, 20)).astype("float32"))
    step = tg.trace(lambda x: x.argmax(1))
    np.testing.assert_array_equal(np.asarray(step(x)), np.asarray(x).argmax(1))
    assert str(step.kernels()).count("? key") >= 2
    assert "if (" not in str(step.kernels())


@one_of(3, ("n", "dtype"), product([16, 23, 40, 63, 300], ["float32", "float64", "int32", "int64"]))
def test_rows_of_a_few_vectors_are_searched_one_by_one(n: int, dtype: str) -> None:
    x = np.random.default_rng(n).integers(-3, 3, (50, n)).astype(dtype)
    if x.dtype.kind == "f":
        x[3, n // 2:], x[4], x[5, -1], x[6], x[7] = np.nan, np.nan, -np.nan, -np.inf, np.where(x[7] > 0, -0.0, 0.0)
    else:
        x[3], x[4, 5:9], x[5, -1] = np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).min
    step = tg.trace(lambda x: (x.argmax(1), x.argmin(1)))
    for found, wanted in zip(step(tg.tensor(x)), (x.argmax(1), x.argmin(1)), strict=True):
        np.testing.assert_array_equal(np.asarray(found), wanted)
    if n < 4 * (find_device(None).target.simd_bytes // x.itemsize):             # longer rows: what is left is searched one by one
        assert "if (" not in str(step.kernels())


@one_of(3, ("n", "dtype"), product([300, 5000], ["float32", "float64", "int32", "int64"]))
def test_long_rows_compare_keys(n: int, dtype: str) -> None:
    x = np.random.default_rng(n).integers(-3, 3, (6, n)).astype(dtype)
    if x.dtype.kind == "f":
        x[0, n // 2:], x[1], x[2, -1], x[3], x[4] = np.nan, np.nan, -np.nan, -np.inf, np.where(x[4] > 0, -0.0, 0.0)
    else:
        x[0], x[1, 5:9], x[2, -1], x[3, :-1] = np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).min, np.iinfo(dtype).min
    for rows in (x, x[:1]):                                            # a row alone is cut in chunks
        step = tg.trace(lambda x: (x.argmax(1), x.argmin(1)))
        for found, wanted in zip(step(tg.tensor(rows)), (rows.argmax(1), rows.argmin(1)), strict=True):
            np.testing.assert_array_equal(np.asarray(found), wanted)
        assert "key" in str(step.kernels())


def test_on_the_device() -> None:
    x = np.random.default_rng(1).normal(size=(33, 257)).astype("float32")
    x[3, 77:] = np.nan
    low, high = tg.trace(lambda x: (x.argmin(1), x.argmax(1)))(tg.tensor(x))
    np.testing.assert_array_equal(np.asarray(low), x.argmin(1))
    np.testing.assert_array_equal(np.asarray(high), x.argmax(1))
