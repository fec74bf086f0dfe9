"""The last vector of a row begins early where that is as good: elements that two vectors compute are the same, and are read before."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tracegrad.codegen.compiler import compile_graph
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import placeholder

CPUS = {name: TARGETS[name] for name in ("avx512", "avx2", "sse, 16 cores", "builtins")}


def source(fn: Any, *shapes: tuple[int, ...]) -> str:
    xs = [placeholder(Aval(shape, np.dtype("float32")), "x") for shape in shapes]
    return compile_graph(Graph.capture(xs, [fn(*xs)]), TARGETS["avx512"]).source


@one_of(5, ("cols", "dtype"), product([17, 21, 23, 31, 37, 45, 101], ["float32", "float64", "int32"]))
def test_rows_that_are_no_whole_vectors(cols: int, dtype: str, on_numpy: None) -> None:
    rng = np.random.default_rng(cols)
    x, b = rng.integers(-9, 9, (67, cols)).astype(dtype), rng.integers(-9, 9, cols).astype(dtype)

    def step(x: Any, b: Any) -> Any:
        return x * b + b, x - x.amax(1, keepdim=True), tg.nn.functional.pad(x * b, (1, 2)), (x * b).flip(1)

    with Checked(CPUS) as checked:
        found = tg.trace(step)(tg.tensor(x), tg.tensor(b))
    assert checked.count
    for a, want in zip(found, (x * b + b, x - x.max(1, keepdims=True), np.pad(x * b, ((0, 0), (1, 2))), (x * b)[:, ::-1]), strict=True):
        np.testing.assert_array_equal(a.numpy(), want)


@pytest.mark.parametrize("cols", [21, 37, 101])
def test_what_is_written_over_is_not_read_again(cols: int, kernels: None) -> None:
    x, b = (np.random.default_rng(cols).standard_normal(shape).astype("float32") for shape in ((4000, cols), (cols,)))
    given = tg.tensor(x)

    @tg.trace
    def changed(x: Any, b: Any) -> None:
        x.mul_(b).exp_()

    changed(given, tg.tensor(b))
    np.testing.assert_allclose(given.numpy(), np.exp(x * b), rtol=1e-5)
    assert "x_k0(__global float *x," in changed.kernels()


def test_it_is_one_vector_in_place_of_narrower_ones() -> None:
    found = source(lambda x, b: (x * b).exp(), (4000, 101), (101,))
    assert " * 101 + 85)" in found and "float4" not in found, found  # noqa: PT018
    assert "float4" in source(lambda x, b: (x * b).exp(), (4000, 100), (100,))       # four are a vector
