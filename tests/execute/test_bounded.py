"""Caches in memory are bounded: many different programs, few of which have a driver's kernels at a time, and all of which stay right."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.execute import devices as tg_devices
from tracegrad.execute import program as tg_program
from tracegrad.runtime import launch
from tracegrad.tracing import trace as tg_trace

BOUND = 8
X = np.random.default_rng(0).standard_normal((257, 300)).astype(np.float32)        # large enough that launches are not merged


@pytest.fixture(autouse=True)
def bounded(monkeypatch):
    if tg.device().kind == "numpy":
        pytest.skip("the default device is the interpreter: it has no kernels")
    gc.collect()
    monkeypatch.setattr(tg.config, "programs", BOUND)
    monkeypatch.setattr(tg.config, "eager", False)


def several(n):
    """n results, each by a launch of the one kernel that all these programs have: to build, they cost nothing."""
    return tg.trace(lambda *xs: tuple(x * 1.5 + 0.25 for x in xs[:n]))


def test_many_programs_have_few_kernels_and_stay_right():
    xs = [tg.tensor(X + i) for i in range(5)]
    wanted = [(X + i) * np.float32(1.5) + np.float32(0.25) for i in range(5)]
    programs = [tg.trace(eval(f"lambda xs, k={k}: tuple(xs[i] * 1.5 + 0.25 for i in {order})"))
                for k, order in enumerate([(i, j) for i in range(5) for j in range(5)])]
    built = tg.report()["built"]
    for _ in range(2):
        for k, f in enumerate(programs):
            for i, y in zip(divmod(k, 5), f(xs), strict=True):
                np.testing.assert_array_equal(y.numpy(), wanted[i])
            assert len(launch._loaded) <= BOUND
    loaded = [f._seen().program.executable for f in programs]
    assert sum(e._items is not None for e in loaded) <= BOUND
    assert loaded[-1]._items is not None                     # the latest
    assert sum(len(e._built) > 0 for e in loaded) <= BOUND
    assert tg.report()["built"] - built <= 2                 # one kernel, merged or not


def test_the_least_recently_used_goes():
    x = tg.tensor(X)
    programs = [several(1) for _ in range(BOUND)]
    for f in programs:
        f(x)
    programs[0](x)
    other = several(1)
    other(x)
    has = [f._seen().program.executable._items is not None for f in programs]
    assert has[0]
    assert not has[1]
    programs[1](x)
    assert programs[1]._seen().program.executable._items is not None


def test_state_that_is_updated_in_place_and_run_time_numbers_survive():
    w = tg.tensor(X)

    @tg.trace
    def step(lr):
        w.sub_(w * lr)
        return w.sum()

    wanted = X.copy()
    for k in range(4):
        step(0.125 * (k + 1))
        wanted -= wanted * np.float32(0.125 * (k + 1))
        step._seen().program.executable.unload()
    np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-6)


def test_errors_of_a_run_before_are_still_told():
    table = tg.tensor(X)

    @tg.trace
    def pick(index):
        return table[index] * 2

    pick(tg.tensor([0, 256]))
    bad = pick(tg.tensor([0, 257]))
    pick._seen().program.executable.unload()
    good = pick(tg.tensor([5, 6]))
    np.testing.assert_array_equal(good.numpy(), X[[5, 6]] * 2)
    with pytest.raises(tg.errors.IndexOutOfRange, match="257"):
        bad.numpy()


def test_a_running_program_keeps_its_kernels():
    x = tg.tensor(X)
    seen = []

    def host(a):
        if executable is not None:
            executable.unload()
            seen.append(executable._items is not None)
        return a + 1

    f = tg.trace(lambda x: tg.host_call(host, x * 2) * 3)
    executable = None                                        # in its first run there is none to ask
    np.testing.assert_allclose(f(x).numpy(), (X * 2 + 1) * 3, rtol=1e-6)
    program = f._seen().program
    executable = program.executable
    found = program([tg_devices.upload(tg.device(), X)])[0]
    np.testing.assert_allclose(found.download(X.shape, X.dtype), (X * 2 + 1) * 3, rtol=1e-6)
    assert seen == [True]


def test_threads_that_run_and_unload():
    x = tg.tensor(X)
    programs = [several(1) for _ in range(3)]
    for f in programs:
        f(x)
    wanted, wrong, stop = X * np.float32(1.5) + np.float32(0.25), [], threading.Event()

    def unload():
        while not stop.is_set():
            for f in programs:
                f._seen().program.executable.unload()

    thread = threading.Thread(target=unload)
    thread.start()
    try:
        for _ in range(40):
            wrong += [k for k, f in enumerate(programs) if not np.array_equal(f(x)[0].numpy(), wanted)]
    finally:
        stop.set()
        thread.join()
    assert not wrong


def test_untraced_programs_are_bounded(monkeypatch):
    monkeypatch.setattr(tg_program.programs, "budget", 2000)
    x = tg.tensor(X)
    tg_program.programs.clear()
    for n in range(1, 12):
        ys = [(x + 0.5) for _ in range(n)]
        y = tg.stack([y[:1] for y in ys] + [x[:1]] * n)
        y.numpy()
        assert tg_program.programs.size() <= 2000
    assert 1 <= len(tg_program.programs.entries()) < 11


def test_signatures_of_a_traced_function_are_bounded(monkeypatch):
    monkeypatch.setattr(tg_trace, "SIGNATURES", 4)
    previous = tg.device()
    tg.set_device("numpy")
    try:
        f = tg.trace(lambda x: x * 2)
        first = weakref.ref(f)
        for n in (*range(1, 12), 1):
            assert f(tg.ones(n)).tolist() == [2.0] * n
            assert len(f._replays) <= 6
        assert first() is f
    finally:
        tg.set_device(previous)
