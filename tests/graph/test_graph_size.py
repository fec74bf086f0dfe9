"""Long programs: no recursion, about linear time, and kernels that stay short enough for a driver to compile."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.codegen.compiler import compile_graph
from tracegrad.execute.compile import executable_graph
from tracegrad.support.plan import Target


def recurrence(steps):
    """steps * 3 operations on a vector."""

    def f(x):
        for _ in range(steps):
            x = x + 1e-3 * x.sin()
        return x.sum()

    return f


def slope(x, steps):
    """The derivative of `recurrence`, by numpy in float64."""
    x, out = x.astype(float), np.ones(len(x))
    for _ in range(steps):
        x, out = x + 1e-3 * np.sin(x), out * (1 + 1e-3 * np.cos(x))
    return out


@pytest.fixture
def unhurried(monkeypatch):
    monkeypatch.setattr(tg.config, "pending", 1 << 30)
    monkeypatch.setattr(tg.config, "check", False)


def test_recording_and_differentiating_takes_linear_time(unhurried):
    """Counted in calls of Python functions, which no other process disturbs."""
    def calls(nodes):
        count = [0]
        x = tg.tensor(np.linspace(0.5, 2.5, 16))
        previous = sys.getprofile()
        sys.setprofile(lambda frame, event, arg: count.__setitem__(0, count[0] + (event == "call")))
        try:
            tg.grad(recurrence(nodes // 3))(x)
        finally:
            sys.setprofile(previous)
        return count[0]

    calls(100)                                      # what the first call imports
    small, large = calls(1000), calls(5000)
    assert large < 5.5 * small                      # 5 if linear, 25 if quadratic


def test_lowering_takes_linear_time(unhurried):
    """The same of an unrolled recurrence and its derivative."""
    def calls(steps):
        previous = tg.device()
        tg.set_device("numpy")
        try:
            traced = tg.trace(tg.grad(recurrence(steps)))
            traced(np.linspace(0.5, 2.5, 300))
        finally:
            tg.set_device(previous)
        graph, count = executable_graph(traced._seen().program.graph), [0]
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, arg: count.__setitem__(0, count[0] + (event == "call")))
        try:
            compile_graph(graph, Target())
        finally:
            sys.setprofile(before)
        return count[0], len(graph)

    calls(12)
    (small, few), (large, many) = calls(40), calls(160)
    assert large < 1.1 * small * many / few
    assert large < 260 * many                       # 243, of which 18 are networkx's, which finds orders and cuts


def test_twenty_thousand_nodes_on_the_interpreter(unhurried):
    previous = tg.device()
    tg.set_device("numpy")
    try:
        x = np.linspace(0.5, 2.5, 4)
        np.testing.assert_allclose(tg.trace(tg.grad(recurrence(6700)))(tg.tensor(x)).numpy(), slope(x, 6700), rtol=1e-9)
    finally:
        tg.set_device(previous)


@pytest.mark.long
@pytest.mark.parametrize("size", [4, 16, 1000])
def test_kernels_stay_short(unhurried, size):
    """Also where values are so small that computing them again is cheaper than storing them: 4,000 statements take a driver minutes."""
    f = tg.trace(tg.grad(recurrence(250)))
    x = np.linspace(0.5, 2.5, size).astype(np.float32)
    np.testing.assert_allclose(f(tg.tensor(x)).numpy(), slope(x, 250), rtol=1e-4)
    if f.plan is None:
        pytest.skip("no kernels on this device")
    longest = max(text.count(";") for text in f.plan.source.split("__kernel")[1:])
    assert longest < 700


@pytest.mark.slow
def test_twenty_thousand_nodes_on_the_device(unhurried):
    x = np.linspace(0.5, 2.5, 16).astype(np.float32)
    np.testing.assert_allclose(tg.trace(tg.grad(recurrence(6700)))(tg.tensor(x)).numpy(), slope(x, 6700), rtol=1e-3)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("exponent", [2, 3, 2.0, 4])
def test_the_derivatives_of_a_power_of_a_whole_number_are_products(exponent, order):
    """No `pow`, and no `where` for an exponent of 0, in any of them: they took ten times as long."""
    def fn(x):
        return (x**exponent).sum()

    for _ in range(order):
        fn = (lambda inner: lambda x: tg.grad(inner)(x).sum())(fn)
    traced = tg.trace(fn)
    x = np.linspace(0.5, 2, 12)
    factor = np.prod([exponent - k for k in range(order)])
    np.testing.assert_allclose(traced(tg.tensor(x)).numpy(), (factor * x ** (exponent - order)).sum() if factor else 0.0, rtol=1e-12)
    for text in ("pow", "?", "select"):
        assert text not in str(traced.kernels())
