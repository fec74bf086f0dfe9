"""Kernels in which the items of a GPU's work-group work together: run without a driver, on devices of several kinds. Start at `DEVICES`.

Sizes lie on both sides of where another kernel is chosen; thresholds are small, so that small programs take every path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.kernels import Checked
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

GPU = Target("gpu", 16, 16, 4, 256, 32768, plain_math=False, clang_builtins=False)
DEVICES = {
    "gpu": GPU, "groups of 16": replace(GPU, max_work_group=16), "groups of one": replace(GPU, max_work_group=1),
    "little local memory": replace(GPU, local_memory=2048, cores=1), "no local memory": replace(GPU, local_memory=0, fp64=False),
}
SMALL = Tuning(scan_chunk=16, arg_chunk=16, group=16, select_chunk=4, sort_local=16, scatter_few=2, scatter_part=2, column_chunk=4,
               row_registers=3, gemm_step=2, split_k=8, split_flops=1)
pytestmark = [pytest.mark.usefixtures("on_numpy"), pytest.mark.long]
RNG = np.random.default_rng(0)
EDGES = np.array([3, np.nan, -0.0, 0.0, np.inf, -np.inf, np.nan, 1e-40, -2, 3, 0.0, -0.0, 7, -1e38, 2, 2, 5], np.float32)


TURNS = count()


def checked(fn: Callable[..., Any], *arrays: Any, tunings: tuple[Tuning, ...] = (Tuning(), SMALL)) -> None:
    """The kernels of traced fn compute what the interpreter does; devices take turns."""
    for tuning in tunings:
        device = list(DEVICES)[next(TURNS) % len(DEVICES)] if tuning is SMALL else "gpu"
        with Checked({device: DEVICES[device]}, tuning=tuning) as found:
            tg.trace(fn)(*[tg.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays])
        assert found.count


def numbers(dtype: str, *shape: int) -> Any:
    return RNG.integers(0, 2, shape).astype(dtype) if dtype == "bool" else RNG.integers(0, 9, shape).astype(dtype)


@pytest.mark.parametrize(("dtype", "shape"), [
    ("float32", (1,)), ("float32", (257,)), ("int32", (3, 100)), ("float16", (33, 65)), ("bool", (5, 31)), ("int64", (2, 3, 129)),
    ("uint8", (64, 7)), ("float32", (7,)), ("int32", (33,)), ("float32", (2, 64)),
])
def test_scans_and_searches(dtype: str, shape: tuple[int, ...]) -> None:
    x = numbers(dtype, *shape)
    checked(lambda x: (x.cumsum(-1), x.cumsum(0), x.argmax(-1), x.argmin(0), x.flatten().argmax()), x)


@pytest.mark.parametrize(("dtype", "shape"), [
    ("float32", (1,)), ("float32", (17,)), ("int32", (3, 40)), ("float16", (3, 33)), ("bool", (2, 31)), ("int64", (2, 33)),
    ("uint8", (5, 16)), ("float32", (15,)),
])
def test_sorting_and_selection(dtype: str, shape: tuple[int, ...]) -> None:
    x, k = numbers(dtype, *shape), min(3, shape[-1])
    checked(lambda x: (x.argsort(-1), x.argsort(-1, descending=True), x.topk(k)[1]), x)


@pytest.mark.parametrize(("rows", "count", "rest", "dtype"), [
    (3, 530, 5, "float32"), (9, 300, 1, "float64"), (2, 129, 33, "float16"), (1, 257, 3, "int32"), (4, 100, 2, "bool"),
])
def test_scatters_to_few_rows(rows: int, count: int, rest: int, dtype: str) -> None:
    """Parts of the sorted indices that are one row's, and those in which rows end; one row has most of them, one has none."""
    i = np.where(RNG.random(count) < 0.8, 0, RNG.integers(0, rows, count)) if rows > 1 else np.zeros(count, np.int64)
    i[i == rows - 1] = 0
    x, s = numbers(dtype, rows, rest), numbers(dtype, count, rest)

    def scattered(x: Any, i: Any, s: Any) -> Any:
        added = x.index_add(0, i, s)
        x.index_copy_(0, i, s)
        return added, x

    def updated(x: Any, i: Any, s: Any) -> Any:
        x.index_add_(0, i, s)
        return x

    for tuning, name in ((Tuning(), "gpu"), (SMALL, "groups of 16"), (Tuning(scatter_part=4), "little local memory")):
        with Checked({name: DEVICES[name]}, tuning=tuning, slack=16.0) as found:
            tg.trace(scattered)(tg.tensor(x), tg.tensor(i), tg.tensor(s))
            tg.trace(updated)(tg.tensor(x), tg.tensor(i), tg.tensor(s))
        assert found.count == 2


def test_special_values() -> None:
    checked(lambda x: (x.sort()[1], x.sort(descending=True)[1], x.argmax(), x.argmin(), x.topk(5)[1], x.topk(5, largest=False)[1]), EDGES)
    checked(lambda x: (x.cumsum(0), x.amax(), x.softmax(-1), x.logsumexp(-1)), EDGES)


@pytest.mark.parametrize(("rows", "count", "rest"), [
    (7, 5, 3), (33, 100, 1), (100, 65, 5), (2, 70, 9), (1, 50, 2),
    (1, 5, 1), (1, 33, 1), (1, 300, 1), (2, 32, 1), (2, 33, 1), (64, 31, 1), (65, 33, 1),    # one element: one item
])
def test_scatters(rows: int, count: int, rest: int) -> None:
    i = RNG.integers(0, rows, count)

    def updated(x: Any, i: Any, s: Any) -> Any:
        x.index_add_(0, i, s)
        return x * 2

    for dtype in ("float32", "int32"):
        x, s = numbers(dtype, rows, rest), numbers(dtype, count, rest)
        checked(lambda x, i, s: (x.index_add(0, i, s), x.index_copy(0, i, s)), x, i, s)
        checked(updated, x, i, s, tunings=(SMALL,))
    checked(tg.grad(lambda t, i: (F.embedding(i, t) ** 2).sum()), numbers("float32", rows, rest), i, tunings=(SMALL,))


@pytest.mark.parametrize("shape", [(3, 7), (33, 33), (5, 129), (2, 300), (100, 17)])
def test_rows_and_columns(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    checked(lambda x: (x.softmax(-1), x.softmax(0), x.sum(0), x.amax(1), F.layer_norm(x, shape[1:])), x)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 100, 1), (65, 33, 3), (2, 300, 70), (33, 9, 35), (129, 5, 3)])
def test_products(m: int, k: int, n: int) -> None:
    a, b = (RNG.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    checked(lambda a, b: (a @ b, (b.t() @ a.t()).relu()), a, b)


@pytest.mark.parametrize("options", [dict(padding=1), dict(stride=2, padding=1), dict(groups=2), dict(dilation=2, padding=(2, 0))])
def test_convolutions(options: dict[str, Any]) -> None:
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((1, 4, 7, 5), (2, 4 // options.get("groups", 1), 3, 3)))
    fn = tg.value_and_grad(lambda x, w: F.conv2d(x, w, **options).square().sum(), argnums=(0, 1))
    checked(fn, x, w, tunings=(Tuning(), SMALL))


def test_a_result_of_a_row_in_place_of_what_all_its_items_read() -> None:
    """One item of the group writes it, perhaps before another has read what was there."""
    def f(a: Any, into: Any) -> Any:
        before = into * 2
        into.add_(tg.stack([a, a], -1).sum(-1).amax(1, keepdim=True) + into.sum())
        return before

    for rows in (1, 4, 33, 130):
        checked(f, numbers("float32", rows, 3), numbers("float32", rows, 1))
        checked(lambda a, into: into.add_(a.sum(0)), numbers("float32", rows, 33), numbers("float32", 33))
        checked(lambda a, into: into.add_(a.sum(1)), numbers("float32", 33, rows), numbers("float32", 33))
