"""Sorts, selections, scatters and running sums on GPUs: how many launches they are, and that no order of work-items changes a bit.

Kernels run without a driver, which reports races; the last tests run them on a driver, by the kernels that a GPU would get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.kernels import Checked
from tests.helpers.marks import one_of
from tests.helpers.plan_audit import TARGETS, planned
from tracegrad.codegen.kernel.run import run_plan
from tracegrad.runtime.device import Device, find
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning, tuned

GPU = Target("gpu", 16, 16, 4, 256, 32768, plain_math=False, clang_builtins=False, atomics64=True)
LARGE = replace(TARGETS["NVIDIA"], atomics64=True)
SMALL = Tuning(sort_local=4, sort_each=2, group=16, digit_bits=3, sort_chunks=3, scatter_few=2, scatter_part=4, few_rows_items=1 << 16,
               exact_columns=0, select_chunk=16)
RNG = np.random.default_rng(0)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def places(top: int, *shape: int) -> Any:
    return np.zeros(shape, np.int64) % top


def added(x: Any, i: Any, s: Any) -> Any:
    return x.index_add(0, i, s)


LAUNCHES: dict[str, tuple[Callable[..., Any], list[Any], int]] = {
    "sort": (lambda x: x.sort()[1], [zeros(1 << 18)], 5),                                        # one of counts, one for each 8 bits
    "sort of many": (lambda x: x.argsort(), [zeros(1 << 21)], 8),                                # counts in launches of their own
    "sort of rows": (lambda x: x.sort(-1)[1], [zeros(1024, 1000)], 1),
    "topk of long rows": (lambda x: x.topk(8)[1], [zeros(64, 1 << 15)], 2),
    "gradient of an embedding": (tg.grad(lambda t, i: F.embedding(i, t).square().sum()), [zeros(1 << 16, 64), places(1, 1 << 15)], 5),
    "scatter to 20 rows": (added, [zeros(20, 64), places(20, 1 << 15), zeros(1 << 15, 64)], 2),
    "histogram": (lambda i: tg.zeros(16).index_add(0, i, tg.ones(i.shape[0])), [places(16, 1 << 18)], 2),
    "scatter of scalars": (added, [zeros(1 << 18), places(1, 1 << 19), zeros(1 << 19)], 3),
    "scatter of integers": (added, [zeros(1 << 18).astype(int), places(1, 1 << 19), zeros(1 << 19).astype(int)], 6),
    "cumsum": (lambda x: x.cumsum(0), [zeros(1 << 22)], 2),
    "cumsum of columns": (lambda x: x.cumsum(0), [zeros(16384, 256)], 2),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches(name: str) -> None:
    fn, arrays, most = LAUNCHES[name]
    found = [x.entry for x in planned(fn, arrays, LARGE)[0].launches]
    assert len([x for x in found if x.startswith(("arg", "topk", "scatter", "cumsum"))]) == most, found


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("tuning", [SMALL, SMALL._replace(sort_counted=0), SMALL._replace(digit_bits=8, sort_each=4, group=64)])
@pytest.mark.parametrize(("n", "dtype"), [(5, "float32"), (100, "int64"), (333, "uint8"), (70, "float32")])
def test_sorting_by_digits(n: int, dtype: str, tuning: Tuning) -> None:
    """Of several chunks and tiles, where the next digit is counted meanwhile and where it is not."""
    x = RNG.integers(0, 50, (2, n)).astype(dtype)
    with Checked({"gpu": GPU}, tuning=tuning) as found:
        tg.trace(lambda x: (x.argsort(-1), x.argsort(-1, descending=True)))(tg.tensor(x))
    assert found.count


@pytest.mark.usefixtures("on_numpy")
@one_of(2, "tuning", [Tuning(), Tuning(group=4, sort_local=64, select_chunk=16)])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 2), (5, 7), (3, 9), (2, 33), (1, 100)])
def test_sorting_networks(rows: int, n: int, tuning: Tuning) -> None:
    """Rows shorter and longer than what an item has in registers; several rows of a group; the better halves of runs."""
    for dtype in ("float32", "int64", "bool", "float16"):
        x = RNG.integers(0, 2 if dtype == "bool" else 50, (rows, n)).astype(dtype)
        if dtype == "float32":
            x[RNG.random(x.shape) < 0.1] = np.nan
            x[RNG.random(x.shape) < 0.1] *= -0.0
        with Checked({"gpu": GPU}, tuning=tuning) as found:
            tg.trace(lambda x: (x.argsort(-1), x.argsort(-1, descending=True), x.topk(min(3, n))[1], x.topk(1, largest=False)[1],
                                x.topk(min(n, 9))[1]))(tg.tensor(x))
        assert found.count


@pytest.mark.usefixtures("on_numpy")
@one_of(2, ("shape", "tuning"), product(
    [(7, 50, 3), (100, 65, 1), (1, 300, 1), (300, 90, 2), (16, 400, 1)],
    [SMALL, SMALL._replace(few_rows_items=2), SMALL._replace(exact_columns=64, exact_spread=100)],
))
def test_scatters(shape: tuple[int, int, int], tuning: Tuning) -> None:
    """By sorting, by totals of few rows, by exact sums; in place, too."""
    rows, count, rest = shape

    def updated(x: Any, i: Any, s: Any) -> Any:
        x.index_add_(0, i, s)
        return x

    i = RNG.integers(0, rows, count)
    for dtype in ("float32", "int32", "bool"):
        x, s = RNG.integers(0, 9, (rows, rest)).astype(dtype), RNG.integers(0, 9, (count, rest)).astype(dtype)
        with Checked({"gpu": GPU}, tuning=tuning, slack=4) as found:
            tg.trace(lambda x, i, s: (x.index_add(0, i, s), x.index_copy(0, i, s)))(tg.tensor(x), tg.tensor(i), tg.tensor(s))
            tg.trace(updated)(tg.tensor(x), tg.tensor(i), tg.tensor(s))
        assert found.count == 2


def exact(terms: Any, i: Any, rows: int) -> Any:
    """Sums of `terms` by the kernels that a GPU with atomics of 64 bits gets."""
    with tuned(Tuning(scatter_few=2, few_rows_items=1 << 16, exact_spread=100)):
        plan, inputs, numbers = planned(added, [np.full(rows, -0.0, np.float32), i, terms], GPU)
    assert len(plan.launches) == 4, "the test of the indices, zeros, terms, sums"
    return run_plan(plan, inputs, numbers)[0]


@pytest.mark.parametrize("spread", [0, 30, 120])
def test_sums_in_integers_are_those_of_any_order(spread: int) -> None:
    """The bits are those of the terms in another order, and within rounding of the true sum, however far apart the terms are."""
    rows, count = 11, 300
    i, order = RNG.integers(0, rows - 1, count), RNG.permutation(count)
    terms = (RNG.standard_normal(count) * np.exp2(RNG.integers(-spread, spread + 1, count))).astype(np.float32)
    found = exact(terms, i, rows)
    np.testing.assert_array_equal(found.view(np.uint32), exact(terms[order], i[order], rows).view(np.uint32))
    wanted = np.zeros(rows, np.longdouble)
    np.add.at(wanted, i, terms.astype(np.longdouble))
    assert np.all(np.abs(found - wanted) <= 1.5e-7 * np.abs(wanted) + 1e-44)
    assert np.signbit(found[-1]), "what nothing is added to stays as it is"


def test_sums_in_integers_cancel() -> None:
    """To nothing, and to what is 2 to the power of 200 times less than the largest term."""
    terms = np.array([1e38, 3e-23, 7.0, -1e38, -7.0, 1e-45, 5.0, -5.0], np.float32)
    assert exact(terms, np.array([0, 0, 0, 0, 0, 1, 2, 2]), 4).tolist() == [np.float32(3e-23), np.float32(1e-45), 0.0, 0.0]


def test_sums_in_integers_of_what_is_not_finite() -> None:
    top, nan = np.finfo(np.float32).max, np.nan
    terms = np.array([np.inf, -1e38, -np.inf, np.inf, -np.inf, nan, top, top, -top, -top, -top], np.float32)
    found = exact(terms, np.array([0, 0, 1, 2, 2, 3, 4, 4, 5, 5, 5]), 6)
    np.testing.assert_array_equal(found, [np.inf, -np.inf, nan, nan, np.inf, -np.inf])


# ------------------------------------------------------------------------------------------------------- on a driver, as on a GPU


@pytest.fixture
def as_gpu() -> Iterator[Device]:
    """The CPU, planned for as for a GPU: the default device meanwhile."""
    own, before = find("cpu"), tg.device()
    device = Device(own.cl_device)
    wide = "cl_khr_int64_base_atomics" in own.cl_device.extensions
    device.target = replace(own.target, kind="gpu", cores=4, local_memory=32768, plain_math=False, clang_builtins=False, atomics64=wide,
                            max_work_group=min(256, own.target.max_work_group))
    tg.set_device(device)
    yield device
    tg.set_device(before)


@pytest.mark.long
@pytest.mark.usefixtures("as_gpu")
@pytest.mark.parametrize("n", [20_000, 150_000])
def test_long_sorts_on_a_driver(n: int) -> None:
    """PoCL 3.0 makes wrong code of steps of a tile that are written out and tested one by one: elements beyond the end are sorted, too."""
    x = np.round(RNG.standard_normal(n), 2).astype(np.float32)
    np.testing.assert_array_equal(tg.trace(lambda x: x.argsort())(tg.tensor(x)).numpy(), np.argsort(x, kind="stable"))


@pytest.mark.long
@pytest.mark.usefixtures("as_gpu")
@pytest.mark.parametrize("rest", [1, 8])
def test_long_scatters_on_a_driver(rest: int) -> None:
    """An index that most terms have, among others; the same bits in each run."""
    rows, count = 5_000, 100_000
    i = np.where(RNG.random(count) < 0.5, 77, RNG.integers(0, rows, count))
    s, x = RNG.standard_normal((count, rest)).astype(np.float32), RNG.standard_normal((rows, rest)).astype(np.float32)
    wanted = x.astype(np.float64)
    np.add.at(wanted, i, s)
    f = tg.trace(added)
    first, *others = (f(tg.tensor(x), tg.tensor(i), tg.tensor(s)).numpy() for _ in range(3))
    np.testing.assert_allclose(first, wanted, rtol=1e-6, atol=1e-3)
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))
