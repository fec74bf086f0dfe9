"""Traces whose tensors lie on two devices: the graph is cut at its transfers into parts of one device each. Reference: the same untraced.

`pair` is two devices: two halves of the CPU, two queues of it in one context, or the default device beside the interpreter, beside another
Device of the same driver, and beside each other driver that is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import types
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.helpers.two_devices import DRIVERS, leaf, same, two_devices
from tests.tensors.test_transfer import OPTIMIZERS, Two, random_leaves, random_program
from tests.tracing.test_page import check_links, page_of
from tracegrad import nn
from tracegrad.errors import ArgumentError, DeviceError, IndexOutOfRange, TraceError
from tracegrad.execute import devices as devices_module
from tracegrad.execute.partition import Fetch, Part, PartitionedProgram, Receive
from tracegrad.inspection import profiling
from tracegrad.inspection.recorded_runs import Run, Sent
from tracegrad.inspection.report import device_names
from tracegrad.runtime.buffer import Buffer, copy_to, upload
from tracegrad.runtime.device import Device
from tracegrad.runtime.drivers.pocl_cpu import is_pocl
from tracegrad.runtime.limits import Limits
from tracegrad.runtime.profiler import Span


@pytest.fixture(params=["halves", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("numpy", "twin", "queues")), *DRIVERS,
                        "another driver"])
def pair(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two devices, without NumPy for small work."""
    return two_devices(request.param, "kernels", monkeypatch)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The default device beside the interpreter, which builds no kernels."""
    return two_devices("numpy", "eager", monkeypatch)


def steps(traced: Any) -> str:
    """What a call does, in order: a number for each part, the device's; `>` where a value leaves, `<` where it arrives."""
    program = traced._latest.program
    devices = list(dict.fromkeys(part.device for part in program.parts))
    return "".join(str(devices.index(step.program.device)) if isinstance(step, Part) else ">" if isinstance(step, Fetch) else "<"
                   for step in program.steps)


# ------------------------------------------------------------------------------------------------------------- values, derivatives


@pytest.mark.matrix
def test_values_and_gradients_are_those_of_one_device(pair: Any) -> None:
    a, b = pair
    x, w = tg.tensor([0.5, -0.25], device=a), tg.tensor([0.75, 0.1], device=b)

    def model(x: Any, w: Any) -> Any:
        return ((x * x).to(b) * w.sin()).exp().to(a) + w.to(a) * x

    def all_of(x: Any, w: Any) -> Any:
        value, grads = tg.value_and_grad(lambda x, w: model(x, w).sum(), argnums=(0, 1))(x, w)
        second = tg.grad(lambda x: tg.grad(lambda x: model(x, w).sum())(x).sin().sum())(x)
        third = tg.grad(lambda w: tg.grad(lambda w: tg.grad(lambda w: model(x, w).sum())(w).sum())(w).sum())(w)
        pushed = tg.jvp(model, (x, w), (tg.ones(2, device=a), w * 2))[1]
        examples = tg.vmap(tg.grad(lambda row, w: (model(row, w) ** 2).sum()), in_dims=(0, None))(tg.stack([x, x * 2, x.cos()]), w)
        return value, *grads, second, third, pushed, examples, tg.hessian(lambda x: model(x, w).sum())(x)

    traced = tg.trace(all_of)
    for found, expected in zip(traced(x, w), all_of(x, w), strict=True):
        assert found.device is expected.device
        same(found, expected, 1e-4)
    assert isinstance(traced._latest.program, PartitionedProgram)
    again = traced(x * 2, w)
    same(again[1], all_of(x * 2, w)[1], 1e-4)
    assert len(traced.compilations) == 1


def test_a_history_goes_through_calls(pair: Any) -> None:
    a, b = pair
    traced = tg.trace(lambda x, w: ((x * x).to(b) * w, (w * 2).to(a)))
    for _ in range(4):
        x, w = leaf([1.0, 2.0, 3.0], a), leaf([3.0, 4.0, 5.0], b)
        y, z = traced(x * 1, w)
        assert (y.device, z.device) == (b, a)
        first = tg.autograd.grad((y ** 2).sum() + z.sum().to(b), [x, w], create_graph=True)
        assert [g.device for g in first] == [a, b]
        same(first[0], 4 * x.detach().numpy() ** 3 * w.detach().numpy() ** 2)
        first[0].sum().backward()
        same(x.grad, 12 * x.detach().numpy() ** 2 * w.detach().numpy() ** 2)
        same(w.grad, 8 * x.detach().numpy() ** 3 * w.detach().numpy())


def test_layers_on_different_devices_train_in_a_trace(pair: Any) -> None:
    a, b = pair
    check_training(a, b, OPTIMIZERS["SGD"], 4)


@one_of(len(OPTIMIZERS) - 1, "optimizer", list(OPTIMIZERS)[1:], 1)
def test_optimizers_in_a_trace(optimizer: str, two: Any) -> None:
    check_training(*two, OPTIMIZERS[optimizer], 5)


def check_training(a: Any, b: Any, make: Any, count: int) -> None:
    """Steps of a model whose layers lie on two devices are the same traced and untraced; the learning rate may change."""
    ends = []
    for wrapped in (tg.trace, lambda f: f):
        model = Two(a, b)
        optimizer = make(model.parameters())

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run, rng, seen = wrapped(step), np.random.default_rng(1), []
        for k in range(count):
            if k == 3 and not isinstance(optimizer.param_groups[0]["lr"], tg.Tensor):
                optimizer.param_groups[0]["lr"] *= 0.5
            loss = run(tg.tensor(rng.standard_normal((16, 4)), dtype=tg.float32, device=a))
            assert loss.device is a
            seen.append(loss.item())
        for p in model.parameters():
            assert p.grad.device is p.device
        ends.append([seen, *(p.detach().numpy() for p in model.parameters())])
        if wrapped is tg.trace:
            assert len(run.compilations) <= 2                   # the first step makes the gradients, and the others find them
    for found, expected in zip(*ends, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


@one_of(30, "seed", range(30))
def test_random_programs(seed: int, two: Any) -> None:
    leaves = random_leaves(seed, two)
    expected = random_program(seed, two, leaves)
    for found, value in zip(tg.trace(lambda *given: random_program(seed, two, given))(*leaves), expected, strict=True):
        assert found.device is value.device
        wanted = value.detach().numpy()
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=2e-3, atol=2e-4 * max(1.0, np.abs(wanted).max()))


# ------------------------------------------------------------------------------------------------------------------ what is where


def test_results_effects_and_constants_lie_where_they_were_made(two: Any) -> None:
    a, b = two
    total, table = tg.zeros(2, device=b), tg.tensor([1.0, 2.0], device=b)

    @tg.trace
    def f(x: Any, s: float) -> Any:
        total.add_((x * s).to(b) * table * s)
        mask = tg.tensor([1.0, 0.0], device=b)
        return x, x.to(b), tg.zeros(2, device=b), tg.zeros(2, device=a), mask.to(a) + x, mask * 2, table.to(a), s

    for k in (1, 2, 3):
        x = tg.tensor([1.0, k], device=a)
        found = f(x, 2.0)
        assert [t.device for t in found[:-1]] == [a, b, b, a, a, b, a]
        assert found[0] is x
        assert [t.tolist() for t in found[1:-1]] == [[1.0, k], [0.0, 0.0], [0.0, 0.0], [2.0, k], [2.0, 0.0], [1.0, 2.0]]
        assert float(found[-1]) == 2.0
    assert total.tolist() == [4.0 * 3, 8.0 * 6]


def test_tensors_that_are_reached_may_lie_on_another_device(two: Any) -> None:
    a, b = two
    w = tg.ones(2, device=b)
    f = tg.trace(lambda x: x.to(w.device) * w)
    assert f(tg.ones(2, device=a)).device is b
    assert tg.trace(lambda: w * 2)().device is b                # all of it is there
    w.data = w.to(a) * 3
    assert f(tg.ones(2, device=a)).device is a
    assert f(tg.ones(2, device=a)).tolist() == [3.0, 3.0]
    assert "is on" in f.compilations[-1] or "changed" in f.compilations[-1]


def test_numbers_and_random_numbers_are_on_any_device(two: Any) -> None:
    a, b = two

    @tg.trace
    def f(x: Any, y: Any, s: float) -> Any:
        noise = tg.rand(3, device=a)
        sent = noise.to(b)
        return s * x, y * s, s * y.exp(), noise, sent, tg.rand(3, device=b), (y * s).mul_(s)

    tg.manual_seed(1)
    first = f(tg.ones(3, device=a), tg.ones(3, device=b), 0.5)
    second = f(tg.ones(3, device=a), tg.ones(3, device=b), 0.25)
    assert [t.device for t in first] == [a, b, b, a, b, b, b]
    assert (second[0].tolist(), second[1].tolist(), second[6].tolist()) == ([0.25] * 3, [0.25] * 3, [0.0625] * 3)
    assert first[3].tolist() == first[4].tolist() != second[3].tolist() == second[4].tolist()
    assert first[5].tolist() != first[3].tolist()
    assert len(f.compilations) == 1


def test_host_code_and_loops_on_a_device_of_a_trace(two: Any) -> None:
    a, b = two
    calls = []

    def doubled(x: Any, y: Any) -> Any:
        calls.append(1)
        return x * 2, y * 2

    @tg.trace
    def f(x: Any) -> Any:
        p, q = tg.host_call(doubled, x, x.to(b) + 1, like=[x, x])           # one call, though one result is sent and one is not
        carry, ys = tg.scan(lambda c, row: (c * 0.5 + row, c.sum()), tg.zeros(3, device=b), tg.stack([p.to(b), q.to(b)]))
        return carry, ys.to(a), q

    for k in range(2):
        carry, ys, q = f(tg.ones(3, device=a))
        assert (carry.device, ys.device, q.device) == (b, a, a)
        assert (carry.tolist(), ys.tolist(), q.tolist()) == ([5.0] * 3, [0.0, 6.0], [4.0] * 3)
        assert len(calls) == k + 1


# -------------------------------------------------------------------------------------------------------------- order, failures


def test_a_transfer_waits_for_what_it_sends_only(two: Any) -> None:
    a, b = two
    w = leaf([1.0, 2.0], b)
    v = leaf([1.0, 2.0], a)

    @tg.trace
    def pipeline(first: Any, second: Any) -> Any:
        loss = sum(((x * v).sin().to(b) * w).exp().sum() for x in (first, second))
        return tg.autograd.grad(loss, [v, w])

    gv, gw = pipeline(tg.ones(2, device=a), tg.ones(2, device=a) * 2)
    assert (gv.device, gw.device) == (a, b)
    # A batch leaves before the next one is computed, and comes back before what nobody else waits for (w's gradient) is.
    assert steps(pipeline) == "0>0><1><1><<" + "01" or steps(pipeline) == "0>0><1><1><<" + "10"

    chain = tg.trace(lambda x: ((x + 1).to(b) * 2).to(a) - 1)
    assert chain(tg.ones(2, device=a)).tolist() == [3.0, 3.0]
    assert steps(chain) == "0><1><0"
    passed = tg.trace(lambda x: x.to(b).to(a).to(b))
    assert passed(tg.ones(2, device=a)).device is b
    assert "0" not in steps(passed)


def test_a_device_computes_its_own_share_while_another_one_does(two: Any) -> None:
    """What is added to a gradient that arrives is computed before it does, once."""
    a, b = two
    w = leaf([[0.5, -0.25], [1.0, 2.0]], a)

    def step(x: Any) -> Any:
        shares = [((y @ v).sin() ** 2).sum() for y, v in ((x, w), ((x * 2).to(b), w.to(b)))]
        loss = shares[0] + shares[1].to(a)
        return loss, *tg.autograd.grad(loss, [w])

    traced, x = tg.trace(step), tg.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device=a)
    for found, expected in zip(traced(x), step(x), strict=True):
        same(found, expected)
    program = traced._latest.program
    assert steps(traced) == ">0><<1>>0<<0"
    products = [n for part in program.parts for n in part.graph if n.fn.name == "matmul"]
    assert len(products) == sum(n.fn.name == "matmul" for n in program.whole) == 4

    @tg.trace
    def drawn(x: Any) -> Any:
        p, q = tg.host_call(lambda x: (calls.append(1), (x * 2, x * 3))[1], x, like=[x, x])
        return p, q.exp() + (x * 2).to(b).to(a)

    calls: list[int] = []
    assert drawn(x)[0].tolist() == (x * 2).tolist()
    assert calls == [1]                                     # results of one call are of one part


def test_a_call_that_fails_has_changed_nothing(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = two
    v, w = tg.ones(2, device=a), tg.ones(2, device=b)

    @tg.trace
    def f(x: Any) -> Any:
        v.mul_(2)
        w.add_(x.to(b))
        v.add_((w * 3).to(a))
        return v.sum()

    f(tg.ones(2, device=a))
    before = v.tolist(), w.tolist()
    assert before == ([8.0, 8.0], [2.0, 2.0])
    count = [0]

    def failing(*args: Any) -> Any:
        count[0] += 1
        if count[0] == 2:
            raise DeviceError("the second transfer fails")
        return upload(*args)

    upload = devices_module.upload
    monkeypatch.setattr(devices_module, "upload", failing)
    with pytest.raises(DeviceError, match="second transfer"):
        f(tg.ones(2, device=a))
    assert (v.tolist(), w.tolist()) == before
    monkeypatch.undo()
    f(tg.ones(2, device=a))
    assert (v.tolist(), w.tolist()) == ([25.0, 25.0], [3.0, 3.0])


def test_an_index_out_of_range_is_told_where_the_value_ends_up(pair: Any) -> None:
    a, b = pair
    f = tg.trace(lambda x, i: (x[i] * 2).to(b) + 1)
    x = tg.arange(4.0, device=a)
    assert f(x, tg.tensor([1, 3], device=a)).tolist() == [3.0, 7.0]
    bad = f(x, tg.tensor([1, 7], device=a))
    with pytest.raises(IndexOutOfRange, match="7"):
        bad.tolist()


def test_errors(two: Any) -> None:
    a, b = two
    x, w = tg.ones(2, device=a), tg.ones(2, device=b)
    with pytest.raises(DeviceError, match=r"add: the operands are on different devices, .*move one with x.to\(device\)"):
        tg.trace(lambda x: x + w)(x)
    with pytest.raises(TraceError, match="what scan records runs on one device; move tensors between devices outside"):
        tg.trace(lambda x: tg.scan(lambda c, r: (c.to(b).to(a) + r, c), x, tg.stack([x, x])))(x)
    with pytest.raises(DeviceError, match=r"scan: the operands are on different devices"):
        tg.trace(lambda x: tg.scan(lambda c, r: (c + r, w), x, tg.stack([x, x])))(x)
    with pytest.raises(DeviceError, match=r"while_loop: the operands are on different devices"):
        tg.trace(lambda x: tg.while_loop(lambda c: c[0].sum() < 9, lambda c: c, (x, w)))(x)
    with pytest.raises(DeviceError, match=r"cond: the operands are on different devices"):
        tg.trace(lambda x: tg.cond(x.sum() > 0, lambda: w, lambda: w * 2))(x)


# ------------------------------------------------------------------------------------------------------------------- looking at it


def test_what_a_traced_function_tells(pair: Any, limits_known: None, tmp_path: Any) -> None:
    a, b = pair
    sends = tg.trace(lambda x, w: ((x * 2).to(b) * w).sin().sum())
    x, w = tg.ones(3, device=a), tg.ones(3, device=b)
    y = sends(x, w)
    text = sends.explain()
    first, second = (f"{d.name} ({d.driver})" for d in pair)
    first, second = (first, second) if first != second else (f"{first} number 1", f"{second} number 2")
    assert f"on {first} and {second}" in text
    assert f"  on {first}:\n" in text
    assert f"float32[3], 12 B: leaves {first} for {second}" in text
    assert f"arrives on {second}; {'that waits for it, and the host does not' if b.peers else 'the host waits for it'}" in text
    assert "sin" in sends.kernels() or b.kind == "numpy"
    assert f".to(tg.device({b.name!r}))" in sends.source()
    held = sends.memory()
    assert [*held.devices] == [first, second]
    assert [totals.inputs for totals in held.devices.values()] == [12, 12]
    assert [(v.device, v.bytes) for v in held.values if v.slot < 0] == [(first, 12), (second, 12)]
    sends.page(tmp_path / "page.html", runs=1)
    assert json.dumps(f"to {b.name}")[1:-1] in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert sends.plan is None
    assert y.item() == pytest.approx(3 * np.sin(2.0), rel=1e-5)


def test_memory_is_told_by_device(two_halves: Any) -> None:
    a, b = two_halves
    f = tg.trace(lambda x, w: (((x @ x).to(b) @ w) @ w).to(a) + 1)
    x, w = tg.ones(64, 64, device=a), tg.ones(64, 64, device=b)
    f(x, w)
    held, size = f.memory(), 64 * 64 * 4
    first, second = held.devices
    on_a, on_b = held.devices.values()
    assert (on_a.inputs, on_b.inputs, on_a.outputs, on_b.outputs) == (size, size, size, 0)
    assert (held.inputs, held.outputs, held.reserved) == (2 * size, size, on_a.reserved + on_b.reserved)
    between = [value for value in held.values if value.slot < 0]            # what a part makes for the other, and what arrived
    assert [(value.device, value.bytes) for value in between] == [(first, size), (second, size), (second, size), (first, size)]
    for value in held.values:
        for i, moment in enumerate(held):
            assert (value in moment.alive) == (value.first <= i <= value.last and moment.device == value.device)
    assert on_a.peak.bytes == max(m.bytes for m in held if m.device == first) >= size
    assert on_b.peak.bytes == max(m.bytes for m in held if m.device == second) >= 3 * size      # what arrived, a product, and the next
    assert held.peak.bytes == max(on_a.peak.bytes, on_b.peak.bytes) == sum(held.by_line.values())
    text = str(held)
    assert f"on {first}: intermediates take" in text
    assert f"on {second}: intermediates take" in text
    assert sum("arrives" in moment.step for moment in held) == text.count(" arrives") == 2


def test_the_page_shows_what_each_device_does(pair: Any, limits_known: None, tmp_path: Any) -> None:
    a, b = pair
    v, w = leaf([[0.5, 0.25, 1.0]] * 3, a), leaf([1.0, 2.0, 3.0], b)
    f = tg.trace(lambda x: tg.autograd.grad(((x @ v).to(b) * w).sin().sum(), [v, w]))
    x = tg.ones(5, 3, device=a)
    f(x)
    program = page_of(f, tmp_path / "page.html", runs=2)["programs"][0]
    check_links(program)
    assert len(program["devices"]) == 2
    assert [kernel["name"] for kernel in program["kernels"]] == [name for part in f._latest.program.parts if part.plan is not None
                                                                 for name in dict.fromkeys(launch.entry for launch in part.plan.launches)]
    assert {step["lane"] for step in program["steps"]} == {0, 1}
    arrivals = [step for step in program["steps"] if step["name"].endswith(" arrives")]
    assert [step["bytes"] for step in arrivals] == [60, 60]
    sent = [node for node in program["nodes"] if node["op"] == "transfer"]
    assert [program["steps"][i]["lane"] for node in sent for i in node["steps"]] == [1, 0]
    assert all(node["how"] != "gone" for node in program["nodes"] if node["op"] != "const")
    assert {at for at, _, _ in program["timeline"]} == set(range(len(program["steps"])))
    assert program["seconds"] > 0
    assert program["memory"]["inputs"] == f.memory().inputs


def test_halves_compute_at_once(two_halves: Any, tmp_path: Any) -> None:
    """By the devices' clocks: a kernel of one runs while one of the other does. (Who else has the cores decides for how much of the time;
    in one of many calls some of it is left.)"""
    a, b = two_halves

    def work(x: Any) -> Any:
        for _ in range(8):
            x = (x @ x) / x.amax()
        return x

    f = tg.trace(lambda x, y: (work(x), (work(y).sum()).to(a)))
    x, y = tg.rand(256, 256, device=a), tg.rand(256, 256, device=b)
    f(x, y)
    f.timeline(tmp_path / "trace.json", runs=20)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    here, there = ([(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "kernel" and e["pid"] == pid] for pid in (1, 2))
    assert any(start < other_end and other_start < end for start, end in here for other_start, other_end in there)


@pytest.fixture
def limits_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds less for each device."""
    monkeypatch.setattr(profiling, "limits", lambda device: Limits(1e10, 1e11, 1e10))


def test_profile_and_timeline_of_several_devices(pair: Any, limits_known: None, tmp_path: Any) -> None:
    a, b = pair
    v, w = leaf([[0.5, 0.25, 1.0]] * 3, a), leaf([1.0, 2.0, 3.0], b)

    @tg.trace
    def step(x: Any, rate: float) -> Any:
        loss = ((x @ v).to(b) * w).sin().sum()
        loss.backward()
        with tg.no_grad():
            for p in (v, w):
                p.sub_(p.grad, alpha=rate)
                p.grad = None
        return loss

    x = tg.ones(5, 3, device=a)
    losses = [step(x, 0.1).item()]
    before = v.detach().tolist(), w.detach().tolist()
    found = step.profile(runs=2)
    step.timeline(tmp_path / "trace.json", runs=2)
    assert before == (v.detach().tolist(), w.detach().tolist())
    assert step(x, 0.1).item() != losses[0]

    text = str(found)
    sent = [row for row in found if row.limit == "beside kernels"]
    assert [row.bytes for row in sent] == [60, 60]                      # the product, and its gradient
    assert all(row.seconds > 0 and 0 <= row.share <= 1 for row in sent)
    assert sent[0].device != sent[1].device
    assert sent[0].name.endswith(f" to {sent[1].device}")
    assert {row.device for row in found} == {row.device for row in sent}
    assert all(f"limits of {name}" in text for name in found.devices)
    assert "ran on several devices at once for" in text
    assert {row.name for row in found if row.limit in ("memory", "arithmetic")} == set(step.kernels().names)

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == sorted(f"step on {row.device}" for row in sent)
    arrived = [e for e in events if e.get("cat") == "transfer"]
    assert [e["args"]["bytes"] for e in arrived] == [60] * 4
    assert all(names[e["pid"]] == f"step on {e['args']['to']}" for e in arrived)
    calls = [e for e in events if e.get("cat") == "call"]
    for e in events:
        if e.get("cat") in ("kernel", "host", "transfer"):
            assert any(c["ts"] - 0.01 <= e["ts"] and e["ts"] + e["dur"] <= c["ts"] + c["dur"] + 0.01 for c in calls)
    for kernel in (e for e in events if e.get("cat") == "kernel" and e["pid"] == arrived[0]["pid"]):
        call = next(c for c in calls if c["ts"] <= kernel["ts"] <= c["ts"] + c["dur"])
        first = next(e for e in arrived if e["pid"] == kernel["pid"] and e["ts"] >= call["ts"])
        assert kernel["ts"] + kernel["dur"] >= first["ts"]              # the other device begins with what it got
    with pytest.raises(ArgumentError, match="profile: runs must be at least 1"):
        step.profile(0)
    step(tg.ones(5, 3, device=a), 0.1)
    with pytest.raises(ArgumentError, match="profile: nothing holds x of the latest call any more"):
        step.profile()


# ------------------------------------------------------------------------------------------------------------ one context, pipelines


@pytest.fixture
def two_halves(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two devices of one context."""
    return two_devices("halves", "kernels", monkeypatch)


def gate(device: Any) -> Any:
    """Stop a device: what is enqueued from now on waits for the event that is returned."""
    event = cl.UserEvent(device.context)
    with device.lock:
        queue = device.use(device.queue)
        cl.enqueue_barrier(queue, wait_for=[event])
        queue.flush()
    return event


def test_a_transfer_in_one_context_needs_no_host(two_halves: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call returns while the first device has not even begun, and nothing goes through the host's memory."""
    a, b = two_halves
    v = tg.ones(3, device=a)
    f = tg.trace(lambda x: (((x * 2).to(b) + 1).to(a) * 3, v.add_(x)))
    x = tg.ones(3, device=a)
    assert f(x)[0].tolist() == [9.0] * 3
    monkeypatch.setattr(Buffer, "fetch", None)
    closed, late = gate(a), []
    timer = threading.Timer(60, lambda: (late.append(1), closed.set_status(0)))
    timer.start()
    found = [f(x)[0] for _ in range(3)]
    sent = (x * 5).to(b)
    assert late == []                                       # else a call waited for the gate
    timer.cancel()
    closed.set_status(0)
    assert [y.tolist() for y in found] == [[9.0] * 3] * 3
    assert v.tolist() == [5.0] * 3
    assert sent.tolist() == [5.0] * 3


def test_devices_share_a_context_before_anything_is_computed_on_them(two_halves: Any) -> None:
    a = two_halves[0]
    here = tg.device()
    one, other = Device(here.cl_device), Device(here.cl_device)
    for device in (here, a):                                # a pair, or one that has a context
        assert device.context
        with pytest.raises(DeviceError, match=r"share_context: one of .* (is PoCL's pair|has a context)"):
            device.share_context(other)
    with pytest.raises(DeviceError, match=r"share_context: .* are not of one driver"):
        one.share_context(tg.device("numpy"))
    with pytest.raises(DeviceError, match=r"share_context: one of .* has a context; call it before anything is computed"):
        one.share_context(other, a)
    assert not one.peers
    assert "context" not in one.__dict__
    one.share_context(other)
    assert one.context == other.context != a.context
    assert one.peers == other.peers == [one, other]


SHARED = """
import tracegrad as tg
first = tg.devices()[0]
one, other = [d for d in tg.devices() if d.driver == first.driver][:2]
one.share_context(other)
x, w = tg.arange(1000.0, device=one), tg.full((1000,), 3.0, device=other)
f = tg.trace(lambda x, w: tg.autograd.grad((((x * w.to(one)).to(other) * w).to(one) ** 2).sum(), [x, w]))
x.requires_grad_(), w.requires_grad_()
found = f(x, w), f(x, w)
for gx, gw in found:
    assert (gx.device, gw.device) == (one, other)
    assert gx.tolist() == (2 * 81 * x).tolist() and gw.tolist() == (4 * 27 * x.to(other) ** 2).tolist()
print(f.explain().count("and the host does not"), one.context == other.context)
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["pthread", "basic"])
def test_devices_that_a_driver_lists_separately_share_a_context(kind: str) -> None:
    if not (device := tg.devices()[:1]) or not is_pocl(device[0].cl_device):
        pytest.skip("only PoCL lists as many devices as it is told to")
    done = subprocess.run([sys.executable, "-c", SHARED], env=os.environ | {"POCL_DEVICES": f"{kind} {kind}"}, capture_output=True,
                          text=True, check=False, timeout=120)
    assert done.stdout.split() == ["6", "True"], done.stderr        # three transfers, and those of their derivatives


@pytest.mark.parametrize("kind", ["halves", *DRIVERS, pytest.param("another driver", marks=pytest.mark.long)])
def test_three_devices_in_one_trace(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of drivers and the interpreter, in a ring, with derivatives by all three; some of it is sent on as it came."""
    a, b = two_devices(kind, "kernels", monkeypatch)
    c = tg.device("numpy")
    v, w, u = leaf([0.5, -0.25, 1.5], a), leaf([1.0, 2.0, 3.0], b), leaf([0.1, 0.2, 0.3], c)

    def loss(x: Any) -> Any:
        y = ((x * v).sin().to(b) * w).exp()
        return ((y.to(c) * u).to(a) * v + y.to(c).to(a)).sum()

    def step(x: Any) -> Any:
        first = tg.autograd.grad(loss(x), [v, w, u], create_graph=True)
        second = tg.autograd.grad(sum((g * g).sum().to(a) for g in first), [v, w, u])
        return *first, *second

    traced, x = tg.trace(step), tg.tensor([1.0, 2.0, 3.0], device=a)
    for _ in range(2):
        for found, expected in zip(traced(x), step(x), strict=True):
            assert found.device is expected.device
            same(found, expected, 1e-3)
    assert [*traced.memory().devices] == [*device_names(traced._latest.program).values()]
    assert len(traced.memory().devices) == 3


def test_the_interpreter_has_no_parts_and_no_context() -> None:
    with pytest.raises(DeviceError, match="split: 'numpy' is no driver's device, and cannot be 2 devices"):
        tg.device("numpy").split(2)
    with pytest.raises(DeviceError, match="share_context: 'numpy' is no driver's device"):
        tg.device("numpy").share_context(tg.device("numpy"))


def test_what_another_thread_reads_is_not_written_over(two_halves: Any) -> None:
    """An array that is on its way to another thread holds its memory, which the next one that is sent would get."""
    a, b = two_halves
    given = [upload(a, np.full(5003, float(k))) for k in range(2)]
    spare = [copy_to(b, given[1])[0] for _ in range(4)]     # memory for what is sent: three blocks that nobody uses, and one
    first = copy_to(b, given[0])[0]
    assert [made.mem for made in (*spare, first)]
    b.finish()
    block, closed = first.block, gate(b)
    arrival = first.arriving((5003,), np.float64, b.queue)
    del first, spare[1:]
    kept = [copy_to(b, given[1])[0] for _ in range(3)]
    assert all(made.block is not block for made in kept)
    a.finish()
    closed.set_status(0)
    assert (arrival() == 0.0).all()
    del arrival, spare[:]
    assert any(copy_to(b, given[1])[0].block is block for _ in range(5))     # it is free again


def test_a_device_is_split_into_as_many_as_it_has_cores_at_most(two_halves: Any) -> None:
    a, b = two_halves
    assert a.context == b.context
    assert a.peers == b.peers == [a, b]
    for count in (0, -1, 1 << 20):
        with pytest.raises(DeviceError, match=f"split: .* cannot be {count} devices"):
            tg.device().split(count)


def test_it_waits_for_what_is_sent_only(two_halves: Any) -> None:
    a, b = two_halves
    sent, _ = copy_to(b, upload(a, np.arange(5.0)))
    closed = gate(a)
    timer = threading.Timer(60, lambda: closed.set_status(0))
    timer.start()
    assert sent.download((5,), np.float64).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert timer.is_alive()
    timer.cancel()
    closed.set_status(0)
    tg.synchronize()


def test_calls_that_overtake_each_other_do_not_share_memory(two_halves: Any) -> None:
    """Many calls are enqueued before any is read: what one sends is not written over by the next."""
    a, b = two_halves
    w, total = tg.full((1000,), 0.5, device=b), tg.zeros(1000, device=a)

    @tg.trace
    def f(x: Any) -> Any:
        back = ((x * 2).to(b) * w).to(a)
        total.add_(back)
        w.add_(1.0)
        return back

    given = [tg.full((1000,), float(k), device=a) for k in range(40)]
    found = [f(x) for x in given]
    for k, back in enumerate(found):
        assert (back.numpy() == 2 * k * (0.5 + k)).all()
    assert (total.numpy() == sum(2 * k * (0.5 + k) for k in range(40))).all()


def test_a_pipeline_of_microbatches(two_halves: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Two stages on two devices, a batch in four parts, in plain Python: gradients are the whole batch's, and one device computes while
    the other one does."""
    a, b = two_halves
    tg.manual_seed(0)
    one, other = nn.Linear(24, 16).to(a), nn.Linear(16, 8).to(b)
    parameters = [*one.parameters(), *other.parameters()]
    x, y = tg.randn(32, 24, device=a), tg.randn(32, 8, device=b)

    def loss_of(x: Any, y: Any) -> Any:
        return nn.functional.mse_loss(other(one(x).tanh().to(b)), y)

    @tg.trace
    def pipelined(x: Any, y: Any) -> Any:
        loss = sum(loss_of(*part) for part in zip(x.chunk(4), y.chunk(4), strict=True)) / 4
        return loss, *tg.autograd.grad(loss, parameters)

    def whole(x: Any, y: Any) -> Any:
        loss = loss_of(x, y)
        return loss, *tg.autograd.grad(loss, parameters)

    for found, expected in zip(pipelined(x, y), whole(x, y), strict=True):
        assert found.device is expected.device
        same(found, expected, 1e-4)
    assert steps(pipelined) == "0>" * 4 + "<1>" * 4 + "<<<<" + "10"
    sent = [step.transfer for step in pipelined._latest.program.steps if isinstance(step, Fetch)]
    assert [step.transfer for step in pipelined._latest.program.steps if isinstance(step, Receive)][:4] == sent[:4]     # in order
    parts = [step for step in pipelined._latest.program.steps if isinstance(step, Part)]
    second = [part for part in parts if part.program.device is a][1]
    first = next(part for part in parts if part.program.device is b)
    closed: list[Any] = []
    run = Part.run

    def gated(part: Part, held: Any) -> None:
        if part is second:
            closed.append(gate(a))
        run(part, held)
        if part is first:                                   # the first device is at its second part, and has to wait
            with b.lock:
                cl.enqueue_marker(b.use(b.queue)).wait()
            late.append(not timer.is_alive())
            closed[0].set_status(0)

    late: list[bool] = []
    timer = threading.Timer(60, lambda: closed[0].set_status(0))
    timer.start()
    monkeypatch.setattr(Part, "run", gated)
    for found, expected in zip(pipelined(x, y), whole(x, y), strict=True):
        same(found, expected, 1e-4)
    timer.cancel()
    assert late == [False]
    monkeypatch.undo()
    pipelined.timeline(tmp_path / "trace.json", runs=1)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [sum(e.get("cat") == "transfer" and e["pid"] == pid for e in events) for pid in (1, 2)] == [4, 4]


def test_what_runs_at_once_is_added_up() -> None:
    """From made-up times: kernels of two devices, and a transfer beside them."""
    here, there = (types.SimpleNamespace(device=d, plan=d) for d in "ab")
    spans = [Span(False, 0, 0, 0, 10, 0), Span(False, 1, 0, 10, 14, 0), Span(False, 0, 0, 6, 12, 1), Span(True, 0, 0, 0, 99, 1)]
    assert profiling._at_once(Run(spans), [here, there]) == 6
    assert profiling._at_once(Run(spans[:2]), [here, there]) == 0
    assert profiling._beside(Sent(here, 8, 20), spans) == 6
    assert profiling._beside(Sent(here, 14, 20), spans) == 0


def test_numbers_are_looked_for_on_both_devices(two: Any) -> None:
    a, b = two
    f = tg.trace(lambda x, w: ((x - 1).to(b) / w).sum())
    x, w = tg.ones(3, device=a), tg.zeros(3, device=b)
    found = tg.debug(f)(x, w)
    assert found.first is not None
    assert found.first.operation.op == "div"
    assert not f.compare(x, tg.ones(3, device=b)).first
    assert not f.compare(x, tg.ones(3, device=b), reference=a).first


def test_modules_on_two_devices_compile(two: Any) -> None:
    a, b = two
    model = Two(a, b)
    x = tg.ones(3, 4, device=a)
    expected = model(x)
    model.compile()
    same(model(x), expected)
    model(x).sum().backward()
    assert all(p.grad.device is p.device for p in model.parameters())
    drop = nn.Dropout(0.5)
    kept = tg.trace(lambda x: drop(x.to(b)).to(a))(tg.ones(1000, device=a))
    assert 300 < (kept == 0).sum().item() < 700
