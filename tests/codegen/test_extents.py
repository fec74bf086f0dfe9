"""Kernels that differ in sizes alone are one, sizes being arguments (codegen/planning/arguments/parameterize.py): updates above all."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tests.execute.test_plan_files import graph_of, planned
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.execute.compile import executable_graph
from tracegrad.support.plan import Launch, Offset
from tracegrad.support.tuning import Tuning

SHAPES = [(784, 500), (500,), (500, 300), (300,), (300, 123), (123,), (123, 77), (77,), (77, 200), (200,), (200, 10), (10,)]


def momentum(*tensors):
    """Of parameters, gradients and averages: the new averages and parameters."""
    out = []
    for w, g, m in zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True):
        average = m * 0.9 + g * 0.1
        out += [average, w - 0.01 * average / (average.abs().sqrt() + 1e-6)]
    return tuple(out)


def arrays(shapes, dtype="float32"):
    draws = np.random.default_rng(0)
    return [draws.standard_normal(s).astype(dtype) for s in shapes for _ in range(3)]


def test_the_update_of_a_network_is_a_handful_of_kernels():
    previous = tg.device()
    tg.set_device("numpy")
    try:
        net = tg.nn.Sequential(*[tg.nn.Linear(a, b) for a, b in SHAPES[::2]])
        for p in net.parameters():
            p.grad = tg.zeros(*p.shape)
        optimizer = tg.optim.AdamW(net.parameters(), lr=1e-3)
        step = tg.trace(optimizer.step)
        step()
        plan = planned(executable_graph(step._seen().program.graph))
    finally:
        tg.set_device(previous)
    assert len({tuple(p.shape) for p in net.parameters()}) == 12
    assert len(plan.launches) > 10
    assert len(plan.functions) <= 8


def test_each_launch_passes_its_own_sizes():
    plan = planned(graph_of(momentum, *arrays(SHAPES)))
    launched = [s for s, _ in plan.each() if isinstance(s, Launch)]
    many = [s for s in launched if s.global_size[0] > 1]
    assert len(many) >= 4
    assert len({s.entry for s in many}) <= 2                 # those with elements left over, and those without
    numbers = [tuple(a.value for a in s.args if isinstance(a, Offset)) for s in many]
    assert len(set(numbers)) == len(numbers)


def test_a_kernel_that_is_alone_keeps_its_sizes_in_the_text():
    plan = planned(graph_of(momentum, *arrays(SHAPES[:1])))
    assert "392000" in plan.source
    assert not any(isinstance(a, Offset) for s, _ in plan.each() for a in s.args)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("numbers", [
    Tuning(), *(pytest.param(Tuning(item=n, launch_work=0, little_work=0), marks=pytest.mark.long) for n in (16, 100)),
], ids=["as it is", "items of 16", "items of 100"])
def test_values(numbers, dtype):
    previous = tg.device()
    tg.set_device("numpy")
    try:
        with Checked(TARGETS, tuning=numbers, slack=40.0 if dtype == "float16" else 1.0) as checked:
            shapes = [(7, 13), (16, 31), (33,), (64, 5), (65,), (100, 3), (129,), (257, 2), (300,)]
            given = [tg.tensor(a) for a in arrays(shapes, dtype)]
            tg.trace(momentum)(*given)
            tg.trace(lambda *xs: tuple(x.exp() * 2 + x.sum() for x in xs))(*given)
        assert checked.count >= 2 * len(TARGETS)
    finally:
        tg.set_device(previous)
