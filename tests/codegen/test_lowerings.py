"""Kernels of each family against the interpreter: convolutions, scatters, scans, sorting, searches, gathers, random numbers."""

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.codegen.test_codegen_run import check, op
from tests.helpers.marks import one_of
from tracegrad.codegen.compiler import compile_graph
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import placeholder
from tracegrad.ops.arrays import sorting
from tracegrad.support.plan import Target

rng = np.random.default_rng(0)
PLAIN = dict(stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1)


def f4(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def spoiled(*shape: int) -> Any:
    """Few distinct values, zeros of both signs, infinities and NaNs."""
    x = f4(*shape).round(1)
    flat = x.reshape(-1)
    flat[::7], flat[1::9], flat[2::9], flat[3::11], flat[4::11] = np.nan, -0.0, 0.0, np.inf, -np.inf
    return x


@one_of(4, ("x", "w", "attrs"), [
    ((4, 3, 8, 8), (5, 3, 3, 3), {}),
    ((2, 3, 5, 6), (4, 3, 3, 2), dict(stride=(2, 1), padding=((1, 0), (1, 1)), dilation=(1, 2))),
    ((1, 4, 4, 3), (2, 2, 3, 1), dict(padding=((1, 1), (0, 0)), groups=2)),
    ((2, 3, 5, 5), (4, 3, 2, 2), dict(stride=(2, 2), padding=((0, 0), (0, 0)))),
    ((2, 4, 9, 20), (4, 1, 3, 3), dict(groups=4)),
    ((3, 2, 8, 17), (3, 2, 5, 5), dict(padding=((2, 2), (2, 2)))),
    ((2, 3, 7, 16), (4, 3, 3, 3), dict(padding=((0, 2), (0, 2)))),
    ((1, 2, 30, 1), (3, 2, 5, 1), dict(stride=(3, 1), padding=((0, 0), (0, 0)))),
    ((1, 1, 1, 1), (1, 1, 1, 1), dict(padding=((0, 0), (0, 0)))),
    ((0, 3, 8, 8), (5, 3, 3, 3), {}),
], first=1)
def test_convolutions_and_their_gradients(x: Any, w: Any, attrs: Any) -> None:
    attrs = {**PLAIN, **attrs}

    def results(x: Any, w: Any, b: Any) -> Any:
        y = (op("conv2d", x, w, **attrs) + b).relu()
        return (y, op("conv2d_input_grad", y, w, size=x.shape[2:], **attrs) * 2.0,
                op("conv2d_weight_grad", x, y, size=w.shape[2:], **attrs) - w)

    check(results, f4(*x), f4(*w), f4(w[0], 1, 1))


def test_the_epilogue_of_a_convolution_is_in_its_kernel() -> None:
    attrs = {**PLAIN, "padding": ((0, 0), (0, 0))}
    plan = check(lambda x, w, b: (op("conv2d", x, w, **attrs) + b).relu(), f4(4, 3, 10, 10), f4(5, 3, 3, 3), f4(5, 1, 1))
    assert len(plan.launches) == 1


@one_of(4, ("base", "index"), [
    ((5,), (3,)), ((3, 2), (2, 2)), ((3, 2), ()), ((1, 4), (9,)), ((10, 20), (50,)), ((7, 1000), (30,)), ((40000,), (100_000,)),
    ((50, 3, 7), (2, 20)), ((300, 33), (1000,)), ((5, 4), (0,)), ((4, 0), (3,)),
])
def test_scatters_with_repeated_and_wild_indices(base: Any, index: Any) -> None:
    rows = rng.integers(-2, base[0] + 3, index)
    source = f4(*index, *base[1:])
    small = rng.integers(0, 9, source.shape).astype(np.uint8)
    check(lambda x, i, s, b, c: [op("scatter_add", x * 0.5, i, s), op("scatter_set", x, i, s * 2.0), op("scatter_add", b, i, c),
                                 op("scatter_set", b > 3, i, c > 3), op("scatter_add", b > 3, i, c > 3),
                                 *(op(f"scatter_{m}", *of) for m in ("max", "min") for of in ((x, i, s), (b, i, c), (b > 3, i, c > 3)))],
          f4(*base), rows, source, rng.integers(0, 9, base).astype(np.uint8), small, tolerance=1e-4)


def test_scatters_in_place() -> None:
    rows = rng.integers(0, 30, 100)
    check(lambda x, i, s: [op("scatter_add", x, i, s)], f4(30, 5), rows, f4(100, 5), donate={0: 0})
    check(lambda x, i, s: [op("scatter_set", x, i, op("take", x, i) + s)], f4(30, 5), rows, f4(100, 5), donate={0: 0})


@one_of(3, "shape", [(5,), (3, 7), (2, 40, 3), (1, 50_000), (1, 1), (300, 4), (100_003,), (4, 20, 33), (3000, 5, 3), (0, 4)])
def test_running_sums(shape: Any) -> None:
    check(lambda x, i: [op("cumsum", a, dim=d) for d in range(len(shape)) for a in (x, x * 2.0 + 1.0, i, i > 2)],
          f4(*shape), rng.integers(0, 4, shape), tolerance=1e-4)


@one_of(4, "shape", [(5,), (3, 7), (2, 40, 3), (1, 1), (300, 4), (5000,), (4, 20, 33), (3000, 5, 3), (0, 4)], first=1)
def test_running_products_extremes_and_recurrences(shape: Any) -> None:
    check(lambda x, i: [op("cumprod", a, dim=d) for d in range(len(shape)) for a in (x * 0.1 + 1.0, i, i > 0)],
          f4(*shape), rng.integers(0, 4, shape), tolerance=1e-4)
    check(lambda x, i: [op(f"running_{m}", a, dim=d) for d in range(len(shape)) for a in (x, i, i > 2) for m in ("max", "min")],
          spoiled(*shape), rng.integers(0, 4, shape))
    check(lambda a, b: [op("recurrence", a * 0.3, b + 1.0, dim=d) for d in range(len(shape))], f4(*shape), f4(*shape), tolerance=1e-4)


@one_of(4, "shape", [(5,), (3, 7), (1,), (3, 1), (2, 33), (2, 64), (3, 100), (40_000,), (3, 1, 1000), (3, 0)], first=1)
def test_argsort_is_stable(shape: Any) -> None:
    check(lambda x, i: [op("argsort", a, descending=d) for d in (False, True) for a in (x, -x, i, i > 4)],
          spoiled(*shape), rng.integers(0, 9, shape))


@one_of(4, ("shape", "k"), [
    ((5,), 5), ((3, 7), 2), ((3, 1), 1), ((50, 20), 20), ((9, 300), 64), ((100_003,), 9), ((2, 40_000), 64), ((2, 3, 5), 1), ((0, 4), 2),
    ((3, 900), 200),
], first=1)
def test_topk_is_the_beginning_of_a_stable_sort(shape: Any, k: int) -> None:
    check(lambda x, i: [op("topk", a, k=k, descending=d) for d in (False, True) for a in (x, -x, i, i > 4)],
          spoiled(*shape), rng.integers(0, 9, shape))
    check(lambda x: [*sorting.topk(x, min(2, shape[0]), 0), *sorting.topk(x, min(1, shape[0]), 0, False)], f4(*shape))


@one_of(2, "shape", [(5,), (3, 7), (2, 40, 3), (1, 50_000), (1, 1), (300, 4), (100_003,)])
def test_the_first_extremum(shape: Any) -> None:
    check(lambda x, y, i: [op(name, a, dim=d) for name in ("argmax", "argmin") for d in range(len(shape))
                           for a in (x, y, y * 2.0, i, i > 2)],
          spoiled(*shape), f4(*shape).round(1), rng.integers(0, 4, shape))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_gathers_are_loads_in_the_kernels_of_others(dtype: Any) -> None:
    index = rng.integers(0, 50, (7, 9)).astype(dtype)
    plan = check(lambda x, i: (op("take", x, i) * 2.0).tanh(), f4(40, 33), index)
    assert len(plan.launches) == 1
    check(lambda x, i: [op("take", x.t(), i).sum(-1), op("take", x * 2.0, i + 1).amax(0)], f4(33, 40), index)


@pytest.mark.parametrize("huge", [-2**40, -2**31 - 1, 2**31, 2**40])
def test_indices_beyond_32_bits_are_clamped(huge: int) -> None:
    index = np.array([1, huge, 2, huge] * 5)
    check(lambda x, i: [op("take", x, i), op("scatter_add", x, i, op("take", x, i))], f4(4), index)


@pytest.mark.matrix
def test_random_numbers_are_the_same_on_every_device() -> None:
    def draws() -> list[Any]:
        tg.manual_seed(2**40 + 7)
        return [t.numpy() for t in (tg.rand(999), tg.randint(-5, 99, (333,)), tg.randint(0, 2**40, (100,)), tg.rand(7, 5), tg.randn(501))]

    previous = tg.device()
    on_device = draws()
    tg.set_device("numpy")
    try:
        expected = draws()
    finally:
        tg.set_device(previous)
    for found, wanted in zip(on_device[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(on_device[-1], expected[-1], rtol=2e-5, atol=1e-6)     # log and cos differ in the last place


def test_float16_is_storage() -> None:
    """Products and convolutions add up in float."""
    half = np.dtype(np.float16)
    x, w, v = (placeholder(Aval(s, half)) for s in ((2, 3, 8, 8), (4, 3, 3, 3), (8, 8)))
    graph = Graph.capture([x, w, v], [op("conv2d", x, w, **PLAIN), op("matmul", v, v)])
    source = compile_graph(graph, Target()).source
    assert "float8 c0_0" in source
    assert "half8 c0_0" not in source


@pytest.mark.parametrize("name", ["scatter_add", "cumsum", "argsort", "topk", "argmax"])
def test_gpus_get_more_and_smaller_work_items(name: str) -> None:
    x, i = placeholder(Aval((1000, 300), np.dtype(np.float32))), placeholder(Aval((1000,), np.dtype(np.int64)))
    node = {"scatter_add": lambda: op(name, x, i, x), "cumsum": lambda: op(name, x, dim=0), "argmax": lambda: op(name, x, dim=1),
            "argsort": lambda: op(name, x, descending=False), "topk": lambda: op(name, x, k=9, descending=False)}[name]()
    plans = [compile_graph(Graph.capture([x, i], [node]), Target(kind=kind, cores=8)) for kind in ("cpu", "gpu")]  # type: ignore[arg-type]
    items = [max(int(np.prod(step.global_size)) for step in plan.launches) for plan in plans]
    assert items[1] >= 300 > 0
    assert items[1] >= items[0]


def test_owners_of_rows_compute_only_what_they_add():
    """Behind the test of whose row it is stands what is added, and rows of up to `scatter_skip` have one owner."""
    def source(columns):
        base, x, w = (placeholder(Aval(shape, np.dtype("float32")), "x") for shape in ((1000, columns), (8000, columns), (8000, 1)))
        index = placeholder(Aval((8000,), np.dtype("int64")), "index")
        return compile_graph(Graph.capture([base, x, w, index], [base.index_add(0, index, x / w)]), Target(cores=2)).source

    kernel = source(32)
    assert kernel.index(">= row_first") < kernel.index(" / "), kernel
    assert "row_first" not in source(16)
