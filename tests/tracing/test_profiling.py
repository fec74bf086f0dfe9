"""f.profile() and f.timeline(): what they say of a program, that they change nothing, and what they refuse."""

import json

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.errors import ArgumentError
from tracegrad.execute.devices import find_device
from tracegrad.nn import functional as F
from tracegrad.runtime import limits as runtime_limits
from tracegrad.runtime.limits import Limits
from tracegrad.support.tuning import Tuning, tuned

RNG = np.random.default_rng(3)


pytestmark = pytest.mark.usefixtures("on_a_cpu")


def normal(*shape):
    return tg.tensor(RNG.standard_normal(shape).astype(np.float32))


def training():
    tg.manual_seed(0)
    model = nn.Sequential(nn.Linear(129, 100), nn.Tanh(), nn.Linear(100, 7))

    @tg.trace
    def step(x, y, lr):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with tg.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=lr)
                p.grad = None
        return loss

    return model, step


def test_a_training_step(on_a_cpu, capsys, tmp_path):
    model, step = training()
    x, y = normal(65, 129), normal(65, 7)
    step(x, y, 0.05)
    before = [p.detach().numpy() for p in model.parameters()]
    queues = on_a_cpu.queue, on_a_cpu.host_queue
    found = step.profile(runs=3)
    step.timeline(tmp_path / "trace.json", runs=2)

    text = str(found)
    assert capsys.readouterr().out == ""                               # print(f.profile()) shows it once
    assert {row.name for row in found} == set(step.kernels().names) == {launch.entry for launch in step.plan.launches}
    assert len(found) == len(list(found))
    assert found[0] in found[:1]
    for row, launch in zip(found, step.plan.launches, strict=True):
        assert row.name in text
        assert row.launches == 1
        assert 0.0 < row.seconds < 60.0
        assert (row.bytes, row.flops) == (launch.bytes, launch.flops)
        limit = found.limits.bandwidth if row.limit == "memory" else found.limits.float32
        amount = row.bytes if row.limit == "memory" else row.flops
        assert row.share == pytest.approx(amount / limit / row.seconds)
        assert row.lines.startswith(("line", "backward"))
    assert found.seconds >= 0.5 * sum(row.seconds for row in found)
    assert "GB/s" in text
    assert "Gflop/s in float32" in text
    assert repr(found).startswith("<profile of step: ")

    # Nothing changed: not the weights that the step updates, nor the queues, nor what the next call computes.
    assert all((a == b.detach().numpy()).all() for a, b in zip(before, model.parameters(), strict=True))
    assert queues == (on_a_cpu.queue, on_a_cpu.host_queue)
    assert not on_a_cpu.profiling
    other, again = training()
    again(x, y, 0.05)
    assert step(x, y, 0.02).item() == again(x, y, 0.02).item()
    assert all((a.detach().numpy() == b.detach().numpy()).all() for a, b in zip(model.parameters(), other.parameters(), strict=True))

    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    calls = [e for e in events if e.get("cat") == "call"]
    runs = [e for e in events if e.get("cat") == "kernel"]
    assert len(calls) == 2
    assert len(runs) == 2 * len(step.plan.launches)
    assert [e["name"] for e in runs[: len(runs) // 2]] == [launch.entry for launch in step.plan.launches]
    assert all(e["args"]["python"] and e["args"]["bytes"] > 0 and e["dur"] > 0 for e in runs)
    for i, e in enumerate(runs):
        call = calls[i >= len(runs) // 2]
        assert call["ts"] <= e["ts"]
        assert e["ts"] + e["dur"] <= call["ts"] + call["dur"] + 0.01
    assert calls[0]["ts"] + calls[0]["dur"] <= calls[1]["ts"]
    assert {e["ph"] for e in events} == {"M", "X"}


def test_host_steps_loops_and_checks(tmp_path):
    """A loop's launches are counted in all its iterations; host code is a row; a bad index is reported once, by the call that had it."""
    table, index = normal(33, 16), tg.tensor([3, 0, 31])
    calls = []

    def halve(a):
        calls.append(a.shape)
        return a * 0.5

    @tg.trace
    def f(table, index, u):
        rows = F.embedding(index, table)
        halved = tg.host_call(halve, rows.sum(0), like=rows[0])
        total, _ = tg.scan(lambda c, x: (tg.tanh(c @ x), c.sum()), u, length=None, xs=tg.stack([u] * 13))
        return halved, total

    u = normal(31, 31) * 0.1
    with tuned(Tuning()._replace(looped_work=0, looped_lines=0, parted_work=0)):          # its iterations are launches
        first = f(table, index, u)
    found, made = f.profile(runs=2), len(calls)
    host, = (row for row in found if not row.limit)
    assert (host.bytes, host.flops, host.launches, host.lines) == (0, 0, 1, "")
    assert made == 1 + 3
    iterations = {id(s): n for s, n in f.plan.each()}
    assert sorted(row.launches for row in found if row.limit) == sorted(iterations[id(s)] for s in f.plan.launches)
    assert max(row.launches for row in found) == 13
    f.timeline(tmp_path / "t.json", runs=1)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(e.get("cat") == "host" for e in events) == 1
    assert sum(e.get("cat") == "kernel" for e in events) == sum(n for s, n in f.plan.each()) - 1
    for a, b in zip(first, f(table, index, u), strict=True):
        assert (a.numpy() == b.numpy()).all()

    @tg.trace
    def g(table, index):
        return F.embedding(index, table).sum()

    bad = tg.tensor([3, 33])
    wrong = g(table, bad)
    g.profile(runs=1)
    with pytest.raises(tg.errors.IndexOutOfRange, match="33, out of range"):
        wrong.item()
    tg.synchronize()
    assert np.isfinite(g(table, index).item())


def test_the_limit_is_the_nearer_one(monkeypatch):
    """A product of float64 is measured with what the device does in float64."""
    if not find_device().fp64:
        pytest.skip("no float64")
    monkeypatch.setattr(runtime_limits, "_measure", lambda device: Limits(1e9, 1e15, 1e3))
    runtime_limits._known.clear()
    a = normal(100, 100).double()
    product, total = tg.trace(lambda a: a @ a), tg.trace(lambda a: (a + 1.0).float())
    product(a)
    b = a.float()
    total(b)
    arithmetic, memory = max(product.profile(1), key=lambda r: r.flops), max(total.profile(1), key=lambda r: r.bytes)
    runtime_limits._known.clear()
    assert arithmetic.limit == "arithmetic"
    assert arithmetic.share == pytest.approx(2e6 / 1e3 / arithmetic.seconds)
    assert memory.limit == "memory"
    assert memory.share == pytest.approx(8e4 / 1e9 / memory.seconds)


def test_limits_are_plausible():
    most = runtime_limits.limits(find_device())
    assert 1e8 < most.bandwidth < 1e14
    assert most.bandwidth / 100 < most.float32 < 1e16
    assert most.flops(2) == most.flops(4) == most.float32


def test_a_driver_whose_events_have_no_times(on_a_cpu, monkeypatch):
    """rusticl's on llvmpipe: each took 1 ns, and all shares were of that."""
    monkeypatch.setattr(runtime_limits, "_LEAST", 1 << 60)
    with pytest.raises(tg.DeviceError, match="its events have no times"):
        runtime_limits._measure(tg.device())


def test_what_is_refused(tmp_path):
    f = tg.trace(lambda x: x * 2.0)
    for ask in (f.profile, lambda: f.timeline(tmp_path / "t.json")):
        with pytest.raises(ArgumentError, match="call it once first"):
            ask()
    for write in (f.page, f.timeline):
        with pytest.raises(ArgumentError, match=f"^{write.__name__}: there is no folder .*nowhere'; make it first: os.makedirs"):
            write(tmp_path / "nowhere" / "x")                           # said before anything is looked at, or measured
        with pytest.raises(ArgumentError, match=f"^{write.__name__}: .* is a folder; name a file in it"):
            write(str(tmp_path))
    x = normal(13)
    f(x)
    with pytest.raises(ArgumentError, match="profile: runs must be at least 1, got 0"):
        f.profile(runs=0)
    with pytest.raises(ArgumentError, match="timeline: runs must be at least 1, got -1"):
        f.timeline(tmp_path / "t.json", runs=-1)
    f(normal(13))
    with pytest.raises(ArgumentError, match=r"profile: nothing holds x of the latest call any more; keep the tensors"):
        f.profile()
    f(x)
    assert len(f.profile(runs=1)) == 1
    tg.set_device("numpy")
    f(tg.ones(3))
    for ask in (f.profile, lambda: f.timeline(tmp_path / "t.json")):
        with pytest.raises(ArgumentError, match='the device "numpy", which interprets'):
            ask()
    assert not (tmp_path / "t.json").exists()
