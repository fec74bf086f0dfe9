"""Rows of few numbers (coordinates, classes, a small grid's rows): each length from 1 on, in context, on the device and on the interpreter.

A CPU's kernel does rows that are shorter than two vectors in narrower ones, or, where they share reductions or are of two or three numbers,
as many rows as a vector has lanes side by side (`Shape.outer_vectorized`). What is left of a row at its end is done in narrower vectors,
too. So lengths are tried around 4, 8, 16 and 32, and numbers of rows around the lanes of a vector and what a work-item does.
`tests/helpers/size_cases.py` has what is compared.
"""

from __future__ import annotations

import random
import re
from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tests.helpers.marks import one_of
from tests.helpers.size_cases import AFTER, BEFORE, Case
from tests.ops.test_sizes import OTHERS, check, on, planned  # noqa: F401
from tracegrad.codegen.compiler import compile_graph
from tracegrad.execute.compile import executable_graph
from tracegrad.execute.devices import NUMPY

SHARED = [                          # what every element of a row needs of all of them
    "x.softmax(-1)", "x.log_softmax(-1) * y", "x.amax(-1, keepdim=True) * x", "F.layer_norm(x, (n,), r, r)", "F.rms_norm(x, (n,), r)",
    "F.normalize(x, dim=-1)",
    "(x - x.mean(-1, keepdim=True)) / (1 + x.var(-1, correction=0, keepdim=True))", "x / (1 + (x * x).sum(-1, True))",
    "tg.where(x >= x.amax(-1, keepdim=True), x, y)", "x * (x.tanh().sum(-1, keepdim=True) + r)", "x.softmax(-1) - y.softmax(0)",
    "(x.softmax(-1) * y).sum(-1)", "x.logsumexp(-1)",
]
MOVED = [                           # what is read elsewhere in the row, or is each row's or each column's
    "x + r", "x * r.sum()", "x.roll(1, -1)", "x.roll(1, -1) * x.roll(-1, -1) - x", "x.flip(-1) * r", "F.pad(x, (1, 1))", "F.pad(x, (2, 3))",
    "tg.cat([x[..., 1:], y[..., :1] * 2], -1)", "tg.cat([x * 2, y.exp()], -1)", "x * x[..., :1]", "x.cumsum(-1)", "stencil(x, 2)",
    "padded_stencil(x, 2)", "tg.stack([x, y], -1)", "x.repeat_interleave(2, -1)", "tg.where(m, x, r)", "x.sum(-1, keepdim=True) + r",
    "(x * 0.1).sum(0) * r", "(x * r).tanh()", "x.reshape(-1)[1:] - x.reshape(-1)[:-1]", "x.half().float() + r", "(x > r) & m",
    "x.unsqueeze(-1) * r",
]
LENGTHS = [*range(1, 21), 23, 24, 25, 28, 30, 31, 32, 33, 36, 40, 47, 48, 49]


def cases(seed: int, texts: list[str], n: int, layouts: tuple[str, ...] = ("many", "rows")) -> list[Case]:
    rng = random.Random(seed)
    before, after = list(BEFORE), list(AFTER)
    if n < 7:                                                # most movements of `size_cases` take rows of 7
        before, after = ["plain", "flip", "roll rows", "exp", "stride"], ["plain", "sum", "sum rows", "flip", "mean", "softmax"]
    return [Case(text, n, layouts[k % len(layouts)], rng.choice(before), rng.choice(after), 1) for k, text in enumerate(texts)]


@one_of(17, "n", LENGTHS)
def test_rows_of_every_length(on: Any, n: int) -> None:      # noqa: F811
    rng = random.Random(n)
    texts = rng.sample(SHARED, 5) + rng.sample(MOVED, 7)
    check(on, cases(n, texts, n), "float32" if n % 2 else "float64")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["here", *OTHERS])
@pytest.mark.parametrize("n", LENGTHS)
def test_rows_of_every_length_on_other_devices(on: Any, n: int, which: str) -> None:      # noqa: F811
    device = on if which == "here" else planned(on, **OTHERS[which])
    check(device, cases(n + 100, SHARED + MOVED, n), "float32")
    check(device, cases(n + 200, SHARED + MOVED, n), "float64")


@one_of(8, "rows", [1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 100, 4095, 4096, 4097, 9001])
@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_every_number_of_rows(on: Any, rows: int, n: int) -> None:      # noqa: F811
    """Fewer than a vector has lanes; whole vectors and some; what one work-item does, and several, the last of which does less."""
    rng = np.random.default_rng(rows + n)
    x, r = rng.standard_normal((rows, n)), rng.standard_normal(n)

    def f(x: Any, r: Any) -> Any:
        y = x.softmax(1) * r
        return y, x + r, x.roll(1, 1) - r, tg.cat([x, r.expand(rows, n)], 1), (x - x.mean(1, keepdim=True)).abs().amax(1)

    found: dict[Any, list[Any]] = {}
    for device in (on, NUMPY):
        tg.set_device(device)
        found[device] = [v.numpy() for v in tg.trace(f)(tg.tensor(x), tg.tensor(r))]
    tg.set_device(on)
    for a, b in zip(found[on], found[NUMPY], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("simd_bytes", [4, 8])
def test_without_vectors(on: Any, simd_bytes: int) -> None:      # noqa: F811
    device = planned(on, simd_bytes=simd_bytes)
    check(device, [Case(text, n, "many", order=1) for n in (2, 3, 10) for text in ("x.softmax(-1)", "x + r", "x.roll(1, -1)")], "float64")


@one_of(13, ("n", "dtype"), product(
    [2, 3, 5, 10, 20, 31], ["int8", "uint8", "int32", "int64", "bool", "float16", "complex64", "complex128"]), first=1)
def test_every_dtype(on: Any, n: int, dtype: str) -> None:      # noqa: F811
    rng = np.random.default_rng(n)
    x, r = (tg.tensor(rng.integers(0, 2 if dtype == "bool" else 50, s)).to(getattr(tg, dtype)) for s in ((67, n), (n,)))

    def f(x: Any, r: Any) -> Any:
        moved = (x.roll(1, 1), x.flip(1), tg.cat([x[:, 1:], x[:, :1]], 1), tg.where(x == r, r, x), x[:, ::2], x == x.roll(-1, 1))
        if dtype == "bool":
            return (*moved, x & x.any(1, keepdim=True) | r)
        shared = x * x.sum(1, keepdim=True).to(x.dtype) + r
        return (*moved, shared) if "complex" in dtype else (*moved, shared, tg.minimum(x, r) - x.amin(1, keepdim=True))

    found: dict[Any, list[Any]] = {}
    for device in (on, NUMPY):
        tg.set_device(device)
        found[device] = [v.numpy() for v in tg.trace(f)(tg.tensor(x.numpy()), tg.tensor(r.numpy()))]
    tg.set_device(on)
    for a, b in zip(found[on], found[NUMPY], strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype("complex128"), b.astype("complex128"), rtol=2e-3 if dtype == "float16" else 1e-5)


CPUS = {name: TARGETS[name] for name in ("avx2", "avx512")}


def written(fn: Any, *values: Any) -> str:
    """The kernels of what `fn` makes of values, for a CPU with AVX-512."""
    traced = tg.trace(fn)
    traced(*values)
    return compile_graph(executable_graph(traced._seen().program.graph), TARGETS["avx512"]).source


@pytest.mark.parametrize("n", [4, 5, 7, 8, 11])
def test_what_a_short_row_shares_is_computed_for_a_vector_of_rows(n: int, on_numpy: None) -> None:
    draw = np.random.default_rng(n)
    for rows in (5, 16, 17, 2051):
        a, b = draw.standard_normal((rows, n)).astype("float32"), draw.standard_normal((rows, 1)).astype("float32")
        with Checked(CPUS) as checked:
            step = tg.trace(lambda a, b: (a * b.tanh() + b, a.cos() * b.exp(), tg.grad(lambda a: (a * b.tanh()).sum())(a)))
            step(tg.tensor(a), tg.tensor(b))
        assert checked.count
    text = written(lambda a, b: a * b.tanh(), tg.ones(2048, n), tg.ones(2048, 1))
    assert re.search(r"^ *float16 tanh\w* = ", text, re.MULTILINE)


def det(a: Any) -> Any:
    def minor(i: int, j: int) -> Any:
        return a[:, 1, i] * a[:, 2, j] - a[:, 1, j] * a[:, 2, i]

    return a[:, 0, 0] * minor(1, 2) - a[:, 0, 1] * minor(0, 2) + a[:, 0, 2] * minor(0, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_small_matrices_elements_go_by_matrices(dtype: str, on_numpy: None) -> None:
    for count in (3, 16, 100):
        a = np.random.default_rng(count).standard_normal((count, 3, 3)).astype(dtype)
        with Checked(CPUS) as checked:
            tg.trace(lambda a: (det(a), tg.grad(lambda a: det(a).sum())(a), tg.grad(lambda a: (a[:, 0] * a[:, 2, 1:2].tanh()).sum())(a)))(
                tg.tensor(a))
        assert checked.count


def test_a_gradient_of_matrices_elements_gathers_nothing(on_numpy: None) -> None:
    text = written(tg.grad(lambda a: det(a).sum()), tg.ones(640, 3, 3))
    assert "GATHER" not in text
    assert "STRIDED" not in text


def test_each_part_of_a_stack_of_nine_is_computed_in_its_kernel(on_numpy: None) -> None:
    """The equilibrium of a lattice of nine velocities: one kernel, and nothing of it is stored in between."""
    def step(a: Any, b: Any) -> Any:
        around = [(x, y) for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)]
        return tg.stack([(1 + 3 * (x * a + y * b) + 4.5 * (x * a + y * b) ** 2 - 1.5 * (a * a + b * b)).exp() * (2 + x) for x, y in around])

    draw = np.random.default_rng(9)
    assert written(step, tg.ones(200, 210), tg.ones(200, 210)).count("__kernel") == 1
    with Checked(CPUS) as checked:
        tg.trace(step)(*(tg.tensor(draw.standard_normal((41, 43)).astype("float32")) for _ in "ab"))
    assert checked.count
