"""Vectors that begin at a multiple of their width: which indices are the same in all lanes; the gathers and scatters that gain by it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.kernels import Checked
from tests.helpers.marks import one_of
from tracegrad.codegen.kernel.index.index import Index, Var
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

SIZES = [4, 8, 12, 16, 33, 64]
SMALL = Tuning(item=16, most_items=64, long_row=16, row_chunk=64, scatter_skip=4, small_columns=1)
TARGETS = {f"simd{bytes}": Target(simd_bytes=bytes, cores=2) for bytes in (16, 32, 64)}


def at(x: Index, values: dict[Var, int]) -> int:
    return int(eval(x.c({var: str(n) for var, n in values.items()}).replace("/", "//")))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from([2, 3, 8, 16, 24, 32, 48, 64]), min_size=1, max_size=3), st.integers(0, 40),
       st.sampled_from([1, 3, 16, 64]), st.sampled_from([1, 2, 16]), st.sampled_from([1, 4, 16]), st.data())
def test_what_is_said_of_lanes_is_so(divisors: list[int], shift: int, rows: int, factor: int, step: int, data: Any) -> None:
    lane, row, width = Var("i", 512, multiple=step), Var("row", 5), 16
    x = row.index * rows + lane.index * factor + shift
    for k in divisors:
        x = x // k + (x % k) * data.draw(st.integers(0, 3)) if data.draw(st.booleans()) else x % k + row.index * 3
    stride = x.stride_of(lane, width)
    if stride is None:
        return
    for first in range(0, 128, step):
        for r in (0, 3):
            got = [at(x, {lane: first + n, row: r}) for n in range(width)]
            assert got == [got[0] + stride * n for n in range(width)], f"{x}: {stride} from {first}"


def test_quotients_are_one_number_and_remainders_follow_the_lanes() -> None:
    i, j, row = Var("i", 1 << 12, multiple=16), Var("j", 1 << 12), Var("row", 9)
    assert ((i.index // 64).stride_of(i, 16), (i.index % 64).stride_of(i, 16)) == (0, 1)
    assert ((row.index * 48 + i.index) // 32).stride_of(i, 16) == 0
    for x in (j.index // 64, j.index % 64):
        assert x.stride_of(j, 16) is None                    # it may begin anywhere
    for x in (i.index // 24, i.index % 24, (i.index + 1) // 64, (row.index * 7 + i.index) % 64, (i.index * 3) // 64):
        assert x.stride_of(i, 16) is None


@one_of(3, ("columns", "dtype"), product(SIZES, ["float32", "float64"]))
def test_means_of_bags(columns: int, dtype: str) -> None:
    """Value, gradient and second derivative, of rows that vectors fill and of others."""
    rng = np.random.default_rng(columns)
    numbers = rng.integers(0, 13, (7, 5))
    table, factor = (rng.standard_normal(shape).astype(dtype) for shape in ((13, columns), (7, columns)))

    def loss(table: Any, factor: Any, index: Any) -> Any:
        return ((F.embedding_bag(index, table, mode="mean") ** 3) * factor).sum()

    def second(table: Any, *rest: Any) -> Any:
        return tg.grad(lambda t: (tg.grad(loss)(t, *rest) ** 2).sum())(table)

    before = tg.device()
    tg.set_device("numpy")
    try:
        with Checked(TARGETS, tuning=SMALL, slack=10.0) as small, Checked(TARGETS, slack=10.0) as whole:
            every = tg.trace(lambda *given: (loss(*given), tg.grad(loss)(*given), second(*given)))
            got = [r.numpy() for r in every(tg.tensor(table), tg.tensor(factor), tg.tensor(numbers))]
    finally:
        tg.set_device(before)
    assert small.count
    assert whole.count
    mean = table[numbers].mean(1)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-12}
    np.testing.assert_allclose(got[0], (mean ** 3 * factor).sum(), **tolerance)
    gradient, change = np.zeros_like(table), np.zeros_like(table)
    np.add.at(gradient, numbers, np.broadcast_to((3 * mean ** 2 * factor / 5)[:, None], (7, 5, columns)))
    np.testing.assert_allclose(got[1], gradient, **tolerance)
    np.add.at(change, numbers, np.broadcast_to((6 * mean * factor / 5 * (2 * gradient)[numbers].mean(1))[:, None], (7, 5, columns)))
    np.testing.assert_allclose(got[2], change, **tolerance)


def test_a_scatter_computes_the_rows_it_adds_and_the_zeros_it_begins_with() -> None:
    numbers, x = np.arange(300) % 40, np.random.default_rng(0).standard_normal((20, 64)).astype("float32")

    @tg.trace
    def f(x: Any, index: Any) -> Any:
        rows = x.unsqueeze(1).expand(20, 15, 64).reshape(300, 64) * 0.25
        return tg.zeros(40, 64).index_add(0, index, rows), tg.full((40, 64), 2.0).index_add(0, index, rows)

    want = np.zeros((40, 64), "float32")
    np.add.at(want, numbers, np.repeat(x, 15, 0) * 0.25)
    got = [r.numpy() for r in f(tg.tensor(x), tg.tensor(numbers))]
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], want + 2.0, rtol=1e-5, atol=1e-5)
    if tg.device().target.kind == "cpu":
        assert str(f.kernels()).count("__kernel") <= 3       # the check of the indices, and the scatters


def test_the_rows_of_bags_are_read_as_vectors() -> None:
    if tg.device().target.kind != "cpu":
        pytest.skip("GPUs read one element an item")

    @tg.trace
    def f(table: Any, index: Any) -> Any:
        return (F.embedding_bag(index, table, mode="mean") ** 2).sum()

    f(tg.randn(100, 64), tg.zeros(4096, 4, dtype=tg.int64))
    assert "GATHER" not in str(f.kernels())


@one_of(3, ("columns", "rows"), product([64, 48, 33, 8, 5], [6, 197]))
def test_heads_side_by_side(columns: int, rows: int) -> None:
    """What three heads give, one beside the other, and flat, one behind the other: their limits are between two vectors or two rows."""
    def f(x: Any, last: Any) -> Any:
        return tg.cat([x[k].transpose(0, 1).reshape(rows, 3 * columns) for k in range(2)], 1), tg.cat([x[0].flatten(), last.flatten()])

    rng = np.random.default_rng(columns)
    x, last = rng.standard_normal((2, 3, rows, columns)).astype("float32"), rng.standard_normal((rows, 2)).astype("float32")
    before = tg.device()
    tg.set_device("numpy")
    try:
        with Checked(TARGETS, tuning=SMALL) as small, Checked(TARGETS) as whole:
            got = [r.numpy() for r in tg.trace(f)(tg.tensor(x), tg.tensor(last))]
    finally:
        tg.set_device(before)
    assert small.count
    assert whole.count
    np.testing.assert_array_equal(got[0], x.transpose(0, 2, 1, 3).reshape(2, rows, 3 * columns).transpose(1, 0, 2).reshape(rows, -1))
    np.testing.assert_array_equal(got[1], np.concatenate([x[0].ravel(), last.ravel()]))


def test_parts_side_by_side_are_read_as_vectors() -> None:
    """One test for all lanes, and no element by itself."""
    if tg.device().target.kind != "cpu":
        pytest.skip("GPUs read one element an item")

    @tg.trace
    def heads(x: Any) -> Any:
        return tg.cat([x[k].transpose(1, 2).reshape(2, 197, 192) for k in range(3)], 2)

    @tg.trace
    def flat(x: Any, y: Any) -> Any:
        return tg.cat([x.transpose(1, 2).flatten(), y.flatten()])

    heads(tg.randn(3, 2, 3, 197, 64))
    flat(tg.randn(2, 6, 64, 197), tg.randn(12, 197))
    assert "GATHER" not in str(heads.kernels())
    assert "_IF(" not in str(heads.kernels())
    assert "16_IF(" not in str(flat.kernels())
