"""Python floats that differ in every iteration, beside a tensor: a call that was made with one is made with the next from what is known of

it (primitive.call), and gives what numpy gives for that number, whichever it is.
"""

from __future__ import annotations

import operator

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.graph import cached_calls, primitive

OPERATORS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
NUMBERS = [0.5, 1.25, 1.25, -3.0, 0.1, 0.1, 0.1, 7.5, 0.0, -0.0, 0.0, -0.0, float("inf"), float("-inf"), float("nan"), float("nan"), 1e-46,
           1e300, -1e300, 3e38, 1e38, 2.0, 2, True, 0.7, np.float64(0.3), np.float32(0.3), 1.0, 1, -1e-320, 0.3]
DTYPES = [np.float32, np.float64, np.float16, np.int64, np.complex64]


@pytest.fixture(autouse=True)
def known_anew(monkeypatch):
    tg.flush()
    monkeypatch.setattr(tg.config, "eager", True)
    for name in OPERATORS:
        primitive.REGISTRY[name].memo.clear()


def expected(name, plain, value, reflected):
    """numpy's; of dtypes that numpy promotes otherwise, what the call makes that nothing is known of."""
    call = OPERATORS[name]
    if plain.dtype.type in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            number = plain.dtype.type(value)
            return call(number, plain) if reflected else call(plain, number)
    memo = primitive.REGISTRY[name].memo
    before = memo.entries()
    memo.clear()
    x = tg.tensor(plain)
    made = call(value, x) if reflected else call(x, value)
    memo.clear()
    for key, template in before:
        memo[key] = template
    return made.numpy()


def the_same(found, wanted):
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    if wanted.dtype.kind == "f":
        zero = wanted == 0
        assert (np.signbit(found[zero]) == np.signbit(wanted[zero])).all()          # 0.0 is not -0.0


def array(n, dtype):
    x = np.random.default_rng(n).standard_normal(n) * 3
    return (x + 1j * x[::-1]).astype(dtype) if np.dtype(dtype).kind == "c" else x.astype(dtype)


@pytest.mark.parametrize("n", [1, 12, 1000, 70_000])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_number_is_that_number(name, dtype, n):
    if n == 70_000 and dtype not in (np.float32, np.float64):
        return
    plain = array(n, dtype)
    x = tg.tensor(plain)
    numbers = [n for n in NUMBERS if name != "sub" or not isinstance(n, bool)]          # nothing is subtracted from a bool, as in torch
    for reflected in (False, True):
        for step, value in enumerate(numbers + numbers[::-1]):
            with tg.set_grad_enabled(step % 3 != 1):
                found = OPERATORS[name](value, x) if reflected else OPERATORS[name](x, value)
            the_same(found.numpy(), expected(name, plain, value, reflected))


@pytest.mark.parametrize("n", [3, 12, 600])
@pytest.mark.parametrize("read_every", [1, 3, 40])
def test_under_no_grad_a_row_of_calls_with_other_numbers_each_time(n, read_every):
    """read_every: how many iterations lie between two reads."""
    plain = array(n, np.float64)
    x = w = tg.tensor(plain)
    wanted = plain
    rng = np.random.default_rng(n * read_every)
    pool = [0.25, -0.5, 0.75]
    with tg.no_grad():
        for step in range(80):
            a = float(rng.random()) if rng.random() < 0.7 else pool[step % 3]
            b = float(rng.random()) if step % 5 else a
            w = a * w + x * b - a
            w = (b - w) / (1.0 + a)
            wanted = (b - (a * wanted + plain * b - a)) / (1.0 + a)
            if step % read_every == 0:
                np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("leaf", [True, False])
def test_derivatives_are_those_of_this_iterations_number(leaf):
    plain = array(12, np.float64)
    w = tg.tensor(plain, requires_grad=True)
    for step in range(40):
        a, b = 0.3 + 0.01 * (step // 2), 1.0 + 0.1 * step
        x = w if leaf else w * 1.0
        loss = ((a * x - b) * x / b + (b - x) / a + a / (x * x + b)).sum()
        g, = tg.autograd.grad(loss, w, create_graph=step % 4 == 0)
        wanted = (2 * a * plain - b) / b - 1 / a - 2 * a * plain / (plain * plain + b)**2
        np.testing.assert_allclose(g.detach().numpy(), wanted, rtol=1e-11)
        if step % 4 == 0:
            h, = tg.autograd.grad(g.sum(), w)
            square = plain * plain + b
            np.testing.assert_allclose(h.numpy(), 2 * a / b - 2 * a / square**2 + 8 * a * plain**2 / square**3, rtol=1e-10)


def test_parameters_under_no_grad_and_in_place():
    w = tg.nn.Parameter(tg.tensor(array(10, np.float32)))
    wanted = w.detach().numpy().copy()
    for step in range(30):
        lr = 0.1 / (1 + step)
        w.grad = None
        (w * w).sum().backward()
        with tg.no_grad():
            w -= lr * w.grad
        wanted = wanted - np.float32(lr) * (wanted + wanted)
        np.testing.assert_allclose(w.detach().numpy(), wanted, rtol=1e-6)


@pytest.mark.recall
def test_a_number_that_comes_again_is_known_as_itself():
    """(A literal costs less than a number that is put in the place of another.)"""
    x = tg.tensor(array(12, np.float32))
    mul = primitive.REGISTRY["mul"]
    for value in (0.5, 1.5, 2.5, 2.5, 2.5):
        x * value
    described, nodes, _ = cached_calls.describe((x, 2.5), {})
    assert mul.memo[described] is not None
    assert mul.memo[described].made == len(nodes) + 1                   # the number is among its constants
    assert len(mul.memo[described].constants) == 1


def test_numbers_of_a_trace_and_of_vmap_are_left_alone():
    x = tg.tensor(array(12, np.float32))
    for value in (0.5, 1.5, 2.5, 3.5):
        x * value
    scaled = tg.trace(lambda x, a: x * a + a)
    for value in (0.5, 1.5, 2.5, 0.1):
        np.testing.assert_allclose(scaled(x, value).numpy(), x.numpy() * np.float32(value) + np.float32(value), rtol=1e-6)
        np.testing.assert_allclose(tg.vmap(lambda r, value=value: r * value)(x).numpy(), x.numpy() * np.float32(value), rtol=1e-6)


def test_lines_of_errors_are_the_users_with_numbers_that_vary():
    x = tg.tensor(array(12, np.float32))
    y = tg.tensor(array(5, np.float32))
    for value in (0.5, 1.5, 2.5, 3.5):
        with pytest.raises(tg.ShapeError):
            (x * value) + (y * value)
