"""Whatever is recorded is one Program (execute/program.py): who holds one, what it holds, which backend runs it, which versions it has."""

from __future__ import annotations

import gc
import re
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.values import given
from tracegrad import nn
from tracegrad.execute import policy
from tracegrad.execute.program import VERSION, Program, programs, recipes
from tracegrad.execute.realize import Work
from tracegrad.graph.canonical import resolve

ROOT = Path(tg.__file__).resolve().parents[1]
KERNELS = pytest.mark.skipif(tg.device().kind == "numpy", reason="the interpreter builds nothing")


@pytest.fixture
def fresh():
    """Nothing is pending or known."""
    gc.collect()
    tg.flush()
    programs.clear()
    recipes.clear()


def work_of(x):
    return Work([resolve(x._node())], x.device)


@pytest.mark.recall
def test_whatever_is_recorded_is_a_program(fresh):
    model, x = nn.Linear(3, 2), given(0, 4, 3)
    optimizer = tg.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    known = [program for _, program in programs.entries()]
    found = [r for _, r in recipes.entries() if r]
    assert {"_Gradients", "_Update"} <= {type(r).__name__ for r in found}
    assert all(r.program in known for r in found)
    double = tg.trace(lambda x: x * 2)
    double(x)
    assert {type(p) for p in (*known, double._seen().program)} == {Program}


def files_of(run):
    """The files of tracegrad whose functions a call of `run` calls."""
    seen = set()
    sys.setprofile(lambda frame, event, argument: event == "call" and seen.add(frame.f_code.co_filename))
    try:
        run()
    finally:
        sys.setprofile(None)
    return {str(Path(name).relative_to(ROOT)) for name in seen if name.startswith(str(ROOT / "tracegrad"))}


@pytest.mark.recall
@KERNELS
def test_contributing_tells_where_work_is_executed_recalled_and_thrown_away(fresh, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    told = re.search(r"^An untraced operation is executed.*?\n\n", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    called, later, runs, backward, cache = re.findall(r"`(tracegrad/[\w/]+\.py)`", told)
    x, w = given(0, 3, 4), given(1, 3, 4).requires_grad_()

    def gradient():
        w.grad = None
        (x + w).square().sum().backward()

    for _ in range(3):
        x + x
        gradient()
    assert called in files_of(lambda: x + x)
    assert {later, runs} <= files_of(lambda: (w + w).detach().numpy())
    assert backward in files_of(gradient)
    assert [program for _, program in programs.entries()]
    assert cache in files_of(programs.clear)
    assert programs.entries() == []


def steps_of(optimizer, model, x, times=3):
    for _ in range(times):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def updates():
    return [r for _, r in recipes.entries() if type(r).__name__ == "_Update"]


@pytest.mark.recall
@pytest.mark.parametrize("make", [lambda ps, lr: tg.optim.SGD(ps, lr=lr, momentum=0.9), lambda ps, lr: tg.optim.AdamW(ps, lr=lr),
                                  lambda ps, lr: tg.optim.RMSprop(ps, lr=lr, centered=True)], ids=["sgd", "adamw", "rmsprop"])
def test_optimizers_of_one_structure_share_a_recipe(fresh, make, monkeypatch):
    """The recipe knows no tensor: another model's step is the same Program, with its own learning rate, and the first model may go."""
    x, values = given(0, 4, 3), []
    for recall in (True, False):
        monkeypatch.setattr(tg.config, "recall", recall)
        recipes.clear()
        tg.manual_seed(0)
        first, second = nn.Linear(3, 2), nn.Linear(3, 2)
        steps_of(make(first.parameters(), 0.1), first, x)
        gone = weakref.ref(first.weight)
        del first
        gc.collect()
        assert gone() is None
        known = updates()
        steps_of(make(second.parameters(), 0.03), second, x)
        assert updates() == known
        assert len(known) == recall
        values.append(second.weight.detach().numpy())
    np.testing.assert_array_equal(*values)


@pytest.mark.recall
def test_a_recipe_tells_which_tensors_are_one(fresh, monkeypatch):
    """Parameters that share a step count, and those that count apart, are two structures. What stays behind keeps its count."""
    x, found = given(0, 4, 3), []
    for recall in (True, False):
        monkeypatch.setattr(tg.config, "recall", recall)
        tg.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        optimizer = tg.optim.Adam(model.parameters(), lr=0.1)
        for frozen in (False, True, False, True, True, False):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if frozen:
                model[0].weight.grad = None
            optimizer.step()
        counts = [optimizer.state[p]["step"].item() for p in model.parameters()]
        assert counts == [3, 6, 6, 6]
        found.append([p.detach().numpy() for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.recall
def test_options_that_a_step_does_not_read_are_no_part_of_its_key(fresh):
    model, x = nn.Linear(3, 2), given(0, 4, 3)
    optimizer = tg.optim.SGD([{"params": model.parameters(), "names": ["unhashable"], "betas_of": {}}], lr=0.1)
    for k in range(4):
        optimizer.param_groups[0]["note"] = [k]
        steps_of(optimizer, model, x, 1)
    assert len(updates()) == 1
    optimizer.param_groups[0]["weight_decay"] = 0.5
    steps_of(optimizer, model, x, 1)
    assert len(updates()) == 2


def test_a_program_holds_no_value_and_no_node_of_the_users(fresh):
    x = tg.tensor(np.arange(6, dtype=np.float32))
    y = (x * 3 + 1).exp().sum()
    program = work_of(y).program
    pending, value = weakref.ref(y._node()), weakref.ref(x)
    y.item()
    assert not {*program.graph} & {y._node(), x._node()}
    assert all(node.value is None for node in program.graph)
    del x, y
    gc.collect()
    assert (pending(), value()) == (None, None)
    assert program in [p for _, p in programs.entries()]


@pytest.mark.parametrize("eager", [pytest.param(False, marks=KERNELS), True], ids=["kernels", "numpy"])
def test_numbers_are_operands(fresh, eager, monkeypatch):
    """Work that differs in numbers is one Program. It has one version that takes those that change; older ones are let go of."""
    monkeypatch.setattr(tg.config, "eager", eager)
    x = tg.tensor([1.0, 2.0, 4.0], requires_grad=True)
    found = []
    for k in range(1, 6):
        y = ((x * (0.3 * k) + 2.5).sin() * 7.5).detach()
        found.append(work_of(y).program)
        np.testing.assert_allclose(y.numpy(), np.sin(np.array([1, 2, 4]) * (0.3 * k) + 2.5) * 7.5, rtol=1e-5)
    program = found[0]
    assert all(p is program for p in found)
    assert sorted(n.attrs["value"] for n in program.numbers) == pytest.approx([0.3, 2.5, 7.5])
    assert len(program.usage.numbers.varying) == 1
    assert len(program.versions) == (0 if eager else 1)
    assert program.size == len(program.order) + VERSION * len(program.versions)
    version, = program.versions.values() if program.versions else [None]
    assert version is None or [aval.weak for aval in version.avals] == [False, True]


@KERNELS
@pytest.mark.skipif(not tg.device().in_host_memory, reason="small work is NumPy's where the host shares the device's memory")
def test_one_program_runs_by_numpy_first_and_by_kernels_later(fresh, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    monkeypatch.setattr(policy, "_tier_up", lambda order, device: (2, ""))
    x = given(3, 5, 7).requires_grad_()
    by_numpy, used = [], []
    real = Program._by_numpy
    monkeypatch.setattr(Program, "_by_numpy", lambda self, *args: by_numpy.append(self) or real(self, *args))
    for _ in range(4):
        y = (x.exp() * 2 + 1).detach()
        used.append(work_of(y).program)
        np.testing.assert_allclose(y.numpy(), np.exp(given(3, 5, 7).numpy()) * 2 + 1, rtol=1e-5)
    assert len(set(used)) == 1
    assert by_numpy == used[:2]
    assert [type(v) for v in used[0].versions.values()] == [Program]


def test_the_line_of_an_error_is_that_of_this_use(fresh):
    """The Program was recorded at another line."""
    singular, regular = tg.zeros(2, 2), tg.eye(2)
    for _ in range(3):
        tg.linalg.inv(regular * 1.5).numpy()
    with pytest.raises(tg.TracegradError) as caught:
        tg.linalg.inv(singular * 1.5).numpy()
    here = caught.traceback[0].lineno + 1
    assert f"test_program.py:{here}" in str(caught.value)
