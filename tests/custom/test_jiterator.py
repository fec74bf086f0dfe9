"""tg.jiterator: C++ texts of torch.cuda.jiterator's kind, against the same in numpy; what is not understood is an error that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.errors import ArgumentError, DTypeError, ShapeError

BINARY = "template <typename T> T binary(T x, T y, T alpha) { return x + alpha * y; }"


def test_dtypes_and_broadcasting(device: Any) -> None:
    fn = tg.jiterator.create_jit_fn(BINARY, alpha=1)
    for dtype in ("float32", "int32", "int64", "uint8", "complex64"):
        x, y = np.arange(6).reshape(2, 3).astype(dtype), np.arange(3).astype(dtype)
        found = fn(tg.tensor(x), tg.tensor(y), alpha=3)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found.numpy(), x + 3 * y)
    np.testing.assert_array_equal(fn(tg.tensor([1, 2]), tg.tensor([1.5, 2.0])).numpy(), np.float32([2.5, 4.0]))
    assert fn(tg.zeros(0, 1, 3), tg.zeros(0, 10, 3)).shape == (0, 10, 3)


@pytest.mark.usefixtures("on_numpy")
def test_results_by_reference() -> None:
    text = """template <typename T>
              void both(T i0, T i1, T& out0, T& out1) {
                  out0 = i0 + i1;   // the sum
                  out1 = i0 - i1; /* the difference */
              }"""
    total, difference = tg.jiterator.create_multi_output_jit_fn(text, num_outputs=2)(tg.ones(2, 1), tg.arange(3.0))
    np.testing.assert_array_equal(total.numpy(), 1 + np.tile(np.arange(3.0), (2, 1)))
    np.testing.assert_array_equal(difference.numpy(), 1 - np.tile(np.arange(3.0), (2, 1)))


STEPS = """template <typename T> T square(T x) { return x * x; }
template <typename T> T f(T x) {
    T s = square(x);
    if (x < 0) { if (x < -1) return T(-1); s = -s; }
    else s += 1.0f;
    const T u = s > 2 ? s / 2 : s;
    return std::exp(-u);
}"""


def steps(v: float) -> float:
    s = v * v
    if v < 0:
        if v < -1:
            return -1.0
        s = -s
    else:
        s += 1
    return float(np.exp(-(s / 2 if s > 2 else s)))


def test_statements_and_derivatives(device: Any) -> None:
    x = np.linspace(-3, 3.1, 100)
    fn = tg.jiterator.create_jit_fn(STEPS)
    t = tg.tensor(x, requires_grad=True)
    for run in (fn, tg.trace(fn)):
        np.testing.assert_allclose(run(t).detach().numpy(), [steps(v) for v in x], rtol=1e-14)
    fn(t).sum().backward()
    slope = [(steps(v + 1e-6) - steps(v - 1e-6)) / 2e-6 for v in x]
    np.testing.assert_allclose(t.grad.numpy(), slope, atol=1e-7)


@pytest.mark.usefixtures("on_numpy")
def test_cs_integers() -> None:
    fn = tg.jiterator.create_jit_fn("template <typename T> T f(T x) { return (x / 2) % 3 + (x << 1) + !x - (x > 2 && x < 6 ? 1 : 0); }")
    x = np.array([-7, 7, 0, 5])
    wanted = np.fmod(np.trunc(x / 2).astype(int), 3) + x * 2 + (x == 0) - ((x > 2) & (x < 6))
    np.testing.assert_array_equal(fn(tg.tensor(x)).numpy(), wanted)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize(("text", "words"), [
    ("template <typename T> T f(T x) { for (;;) {} }", "for is not understood"),
    ("template <typename T> T f(T x) { return y; }", "f: y was not declared"),
    ("template <typename T> T f(T x) { y = x; return y; }", "y is assigned to and was not declared"),
    ("template <typename T> T f(T x) { return gamma(x); }", "the function gamma is not known"),
    ("template <typename T> T f(T x) { return x", "expected ';' before 'the end'"),
    ("template <typename T> T f(T x) { T y = x; }", "returns nothing"),
    ("hello", "expected a function"), ("", "no function"),
    ("template <typename T> T f(T x) { return x @ x; }", "'@ x; }' is not understood"),
])
def test_what_is_not_understood(text: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        tg.jiterator.create_jit_fn(text)(tg.ones(2))


@pytest.mark.usefixtures("on_numpy")
def test_wrong_calls() -> None:
    fn = tg.jiterator.create_jit_fn(BINARY, alpha=1)
    with pytest.raises(DTypeError, match="binary: y must be a Tensor, got int"):
        fn(tg.ones(2), 2)
    with pytest.raises(ArgumentError, match="takes 2 tensors"):
        fn(tg.ones(2))
    with pytest.raises(ArgumentError, match="takes the numbers alpha, got beta"):
        fn(tg.ones(2), tg.ones(2), beta=2)
    with pytest.raises(ShapeError, match="binary"):
        fn(tg.ones(2), tg.ones(3))
    with pytest.raises(ArgumentError, match="no parameter beta"):
        tg.jiterator.create_jit_fn(BINARY, beta=1)
    with pytest.raises(ArgumentError, match="parameters T&"):
        tg.jiterator.create_multi_output_jit_fn(BINARY, 1)
