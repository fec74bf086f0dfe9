"""Sorting and selecting, as kernels: every size around a threshold, ties, NaN, zeros of both signs, on any target one can write down.

Kernels are run by the interpreter of kernels (tests/helpers/kernels.py), which checks each access, and compared with numpy's stable sort.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked, random_target, random_tuning
from tracegrad.execute.devices import find_device
from tracegrad.support.tuning import Tuning

SIZES = (1, 7, 16, 17, 31, 32, 33, 64, 65, 100, 127, 128, 129, 255, 256, 257, 300, 1000, 1024)
LONG = (4096, 4097)
SPECIAL = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, 1.0, -1.0, 1.0, np.nan, 2.5])


@pytest.fixture(autouse=True)
def on_numpy() -> Any:
    previous = tg.device()
    yield tg.set_device("numpy")
    tg.set_device(previous)


def given(n: int, kind: str, rows: int = 2) -> np.ndarray[Any, Any]:
    """Rows of n: "floats" are all different, "ties" few values, "special" what is no usual number between them."""
    rng = np.random.default_rng(n)
    if kind == "floats":
        return rng.standard_normal((rows, n)).astype(np.float32)
    if kind == "ties":
        return rng.integers(-2, 3, (rows, n)).astype(np.float64)
    if kind == "special":
        return rng.choice(SPECIAL, (rows, n)).astype(np.float32)
    if kind == "bools":
        return rng.random((rows, n)) < 0.5
    return rng.integers(-(1 << 6), 1 << 6, (rows, n)).astype(kind)


def order_of(x: np.ndarray[Any, Any], descending: bool) -> np.ndarray[Any, Any]:
    """As torch: stable, and NaN is larger than all others."""
    if not descending:
        return np.argsort(x, 1, kind="stable")
    last = np.argsort(x[:, ::-1], 1, kind="stable")[:, ::-1]     # of equals the first one is the last of the reversed row
    return x.shape[1] - 1 - last


def check(x: np.ndarray[Any, Any], k: int) -> None:
    """All that is sorted or selected, in one program."""
    n = x.shape[1]
    t = tg.tensor(x)
    results = [t.argsort(-1), t.argsort(-1, descending=True), t.sort(-1)[0], t.topk(k, -1)[1], t.topk(k, -1, largest=False)[1],
               t.kthvalue(k, -1)[0]]
    up, down = order_of(x, False), order_of(x, True)
    wanted = [up, down, np.take_along_axis(x, up, 1), down[:, :k], up[:, :k], np.take_along_axis(x, up[:, k - 1:k], 1)[:, 0]]
    if x.dtype.kind != "b":
        results.append(t.median(-1)[0])
        middle = np.take_along_axis(x, up[:, (n - 1) // 2:(n + 1) // 2], 1)[:, 0]
        wanted.append(np.where(np.isnan(x).any(1), np.nan, middle) if x.dtype.kind == "f" else middle)
    for found, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(found.numpy(), want)
    if x.dtype.kind in "iu" and n <= 129:
        values, counts = tg.unique(t, return_counts=True)
        wanted_values, wanted_counts = np.unique(x, return_counts=True)
        np.testing.assert_array_equal(values.numpy(), wanted_values)
        np.testing.assert_array_equal(counts.numpy(), wanted_counts)


@pytest.mark.parametrize("n", [n if n in (17, 65, 300) else pytest.param(n, marks=pytest.mark.long) for n in SIZES])
def test_sizes(n: int) -> None:
    """Both schedules with the usual thresholds, and two targets with any."""
    rng = Random(n)
    kinds = ("floats", "ties", "special", "int32", "int64", "uint8", "bools", "float16")
    for names, tuning in ((("avx2", "gpu"), Tuning()), (("avx2",), Tuning(sort_vectors=0)), (("avx512",), Tuning(sort_vectors=99))):
        with Checked({name: TARGETS[name] for name in names}, tuning=tuning) as checked:
            check(given(n, "special", 1 if n > 129 else 2), 1 + n // 3)
        assert checked.count
    for kind in rng.sample(kinds, 1 if n > 129 else 3):
        targets = {f"a {device}": random_target(rng, device) for device in ("cpu", "gpu")}
        if n > 300:
            targets.popitem()
        with Checked(targets, tuning=random_tuning(rng)) as checked:
            check(given(n, kind, 1 if n > 129 else 2), min(n, 5))
        assert checked.count


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("n", [4, 23, 100])
def test_what_stands_before_an_element_of_a_short_row_is_counted(n: int, dtype: str) -> None:
    x = np.random.default_rng(n).integers(-3, 3, (50, n)).astype(dtype)
    if x.dtype.kind == "f":
        x[3, n // 2:], x[4], x[5, -1], x[6], x[7] = np.nan, np.nan, -np.nan, -np.inf, np.where(x[7] > 0, -0.0, 0.0)
        x[8, 1], x[8, 2] = np.inf, np.nan
    else:
        x[3], x[4, 1:3], x[5, -1] = np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).min
    step = tg.trace(lambda x: (x.argsort(1), x.argsort(1, descending=True)))
    tg.set_device(find_device("cpu"))
    for found, descending in zip(step(tg.tensor(x)), (False, True), strict=True):
        np.testing.assert_array_equal(np.asarray(found), order_of(x, descending))
    assert "while" not in str(step.kernels())
    assert "if (" not in str(step.kernels())


@pytest.mark.long
@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("target", ["avx2", "gpu"])
def test_long_rows(n: int, target: str) -> None:
    """More than one block of a CPU's, and than what local memory holds."""
    x = given(n, "special", 1)
    with Checked({target: TARGETS[target]}) as checked:
        t = tg.tensor(x)
        np.testing.assert_array_equal(t.argsort(-1).numpy(), order_of(x, False))
        np.testing.assert_array_equal(t.topk(3, -1)[1].numpy(), order_of(x, True)[:, :3])
    assert checked.count == 2


@pytest.mark.long
@pytest.mark.parametrize("n", [7, 33, 100, 257])
def test_tiny_blocks(n: int) -> None:
    """Many blocks, merges of merges, and chunks: runs of two elements, blocks of four, parts of four."""
    tuning = Tuning(sort_vectors=0, sort_run=2, sort_block=4, sort_part=4, sort_part_gpu=2, sort_local=8, select_chunk=4)
    x = given(n, "ties", 3)
    with Checked({name: TARGETS[name] for name in ("avx2", "gpu", "gpu, no local memory")}, tuning=tuning):
        t = tg.tensor(x)
        for descending in (False, True):
            np.testing.assert_array_equal(t.argsort(-1, descending=descending).numpy(), order_of(x, descending))
            np.testing.assert_array_equal(t.topk(2, -1, largest=descending)[1].numpy(), order_of(x, descending)[:, :2])
