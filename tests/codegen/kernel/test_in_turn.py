"""What lies in turn (colours, coordinates, classes) is read and written on CPUs as vectors of what lies side by side."""

from __future__ import annotations

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
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

WIDE = TARGETS["avx512"]
CPUS = {name: TARGETS[name] for name in ("avx512", "avx2", "sse, 16 cores", "builtins")}


def text(fn: Any, shape: tuple[int, ...], target: Target) -> str:
    x = placeholder(Aval(shape, np.dtype("float32")), "x")
    return compile_graph(Graph.capture([x], [fn(x)]), target).source


def apart(x: Any) -> Any:
    return tg.stack([x[:, k].exp() * (k + 1) for k in range(x.shape[1])], 1)


def of_each(x: Any) -> Any:
    return tg.stack([(x[:, 0] * 0.5 + x.amax(1)) * (k + 1) for k in range(x.shape[1])], 1)


@one_of(5, ("n", "rows", "dtype"), product(range(2, 10), [1, 16, 37, 131], ["float32", "float64", "int32", "bool", "float16"]))
def test_rows_of_few(n: int, rows: int, dtype: str, on_numpy: None) -> None:
    x = np.random.default_rng(n).integers(-3, 4, (rows, n)).astype(dtype)
    if x.dtype.kind == "f":
        x[::5, n // 2], x[::7, 0], x[::11, -1] = np.nan, np.inf, -0.0

    @tg.trace
    def step(x: Any) -> Any:
        y = tg.stack([x[:, k] * 2 for k in range(n)], 1) if dtype != "bool" else tg.stack([x[:, k] & x[:, 0] for k in range(n)], 1)
        some = (x[:, n - 1], x[:, ::2], x.flip(1)) if dtype == "bool" else (x[:, n - 1] + x[:, 0], x.argmax(1), x[:, 1:].argmin(1))
        return y, *some, tg.stack([y[:, 0], y[:, -1], y[:, 0]], 1)

    for tuning in (None, Tuning(turns=3, item=16)):
        with Checked(CPUS, tuning=tuning) as checked:
            tg.trace(step.__wrapped__)(tg.tensor(x))
        assert checked.count


@pytest.mark.parametrize("n", [3, 5, 8])
@pytest.mark.parametrize("fn", [apart, of_each, lambda x: x.argmax(1), lambda x: x.softmax(1)], ids=["stack", "each", "argmax", "softmax"])
def test_no_element_is_moved_alone(fn: Any, n: int) -> None:
    """In whole vectors. With registers of 32 bytes each takes several instructions, so of more than four that is not done."""
    for target in (WIDE, TARGETS["avx2"])[:1 + (n == 3)]:
        found = text(fn, (4096, n), target)
        assert "STRIDED" not in found and "GATHER" not in found and "_IF(" not in found, found  # noqa: PT018
        assert "__builtin_shufflevector" in found, found


def test_what_is_read_between_is_there() -> None:
    """A store does not go behind a load of what it writes: sums over columns are read and written row by row."""
    x = np.random.default_rng(1).standard_normal((300, 3)).astype("float32")
    found = tg.trace(lambda x: (x.exp().sum(0), x.exp(), x.cumsum(0)))(tg.tensor(x))
    for a, b in zip(found, (np.exp(x).sum(0), np.exp(x), x.cumsum(0)), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-4)


@one_of(3, ("k", "n", "dtype"), product([1, 3, 4, 5], [1, 2, 3, 4, 5], ["float32", "float64"]))
def test_rows_of_few_by_a_small_matrix(k: int, n: int, dtype: str, on_numpy: None) -> None:
    """Sums of terms, where both are few: their gradients, too, and what is infinite or NaN in a row stays in it."""
    rng = np.random.default_rng(k + n)
    x, w = rng.standard_normal((67, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    wild = x.copy()
    wild[3, 0], wild[7, -1], wild[-1] = np.inf, np.nan, 0

    def step(x: Any, wild: Any, w: Any) -> Any:
        y = (x @ w).sigmoid()
        return y, wild @ w, x.T.contiguous().T @ w, *tg.autograd.grad((y * y).sum(), [x, w])

    with Checked(CPUS, tuning=Tuning(few_components=64), slack=20) as checked:
        found = tg.trace(step)(*(tg.tensor(z, requires_grad=z is not wild) for z in (x, wild, w)))
    assert checked.count
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found[1].detach().numpy(), wild @ w, rtol=1e-4, atol=1e-5)


def test_many_points_by_a_small_matrix_are_no_tiles() -> None:
    def of(shape: tuple[int, int], other: tuple[int, int]) -> str:
        x, w = (placeholder(Aval(s, np.dtype("float32")), "x") for s in (shape, other))
        return compile_graph(Graph.capture([x, w], [x @ w]), WIDE).source

    assert "tiles" not in of((5000, 3), (3, 3))
    assert "__builtin_shufflevector" in of((5000, 3), (3, 3))
    assert "tiles" in of((5000, 3), (3, 30))


@one_of(3, ("rows", "k", "dtype"), product([1, 2, 3, 4, 5], [1, 2, 3, 4], ["float32", "float64"]))
def test_a_small_matrix_for_each_row(rows: int, k: int, dtype: str, on_numpy: None) -> None:
    rng = np.random.default_rng(rows + k)
    m, x = rng.standard_normal((67, rows, k)).astype(dtype), rng.standard_normal((67, k)).astype(dtype)
    x[3, 0], x[7, -1], m[9] = np.inf, np.nan, 0

    def step(m: Any, x: Any) -> Any:
        y = (m @ x[..., None])[..., 0].sigmoid()
        return y, m[:1] @ x[..., None], *tg.autograd.grad((y[10:] * y[10:]).sum(), [m, x])

    with Checked(CPUS, tuning=Tuning(few_components=64), slack=20) as checked:
        found = tg.trace(step)(*(tg.tensor(z, requires_grad=True) for z in (m, x)))
    assert checked.count
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found[1].detach().numpy(), m[:1] @ x[..., None], rtol=1e-4, atol=1e-5)


def test_many_small_matrices_with_a_row_each_are_no_tiles() -> None:
    def of(*shapes: tuple[int, ...]) -> str:
        m, x = (placeholder(Aval(s, np.dtype("float32")), "x") for s in shapes)
        return compile_graph(Graph.capture([m, x], [m @ x]), WIDE).source

    assert "tile" not in of((5000, 3, 3), (5000, 3, 1))
    assert "__builtin_shufflevector" in of((5000, 3, 3), (5000, 3, 1))
    assert "tile" in of((5000, 3, 3), (5000, 3, 3))
