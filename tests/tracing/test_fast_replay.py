"""A known call of a small traced function: its run is written out, and what is not as usual goes the longer way, to the same values."""

from __future__ import annotations

import pickle

import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tests.helpers.values import close
from tracegrad.runtime.launch import Executable
from tracegrad.runtime.programs import short_run

pytestmark = [pytest.mark.recall, pytest.mark.usefixtures("in_host_memory")]


@pytest.fixture
def in_host_memory():
    if not tg.device().in_host_memory:
        pytest.skip("short runs are of devices in the host's memory")


@pytest.fixture
def runs(monkeypatch):
    """Gets an entry for each run that went the longer way."""
    found, run = [], Executable.run
    monkeypatch.setattr(Executable, "run", lambda self, *given: (found.append(self), run(self, *given))[1])
    return found


def made(inputs=2):
    """A traced function, its arguments, and what it gives."""
    fn = tg.trace([lambda x: (x.sin(), x.sum() * x), lambda x, y: (x * y, (x + y).sum())][inputs - 1])
    args = [tg.arange(5.0) + i for i in range(inputs)]
    tg.synchronize()
    wanted = [y.numpy() for y in fn(*args)]
    assert fn._latest.short
    return fn, args, wanted


def same(found, wanted):
    for y, z in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(y.numpy(), z)


@pytest.mark.parametrize("inputs", [1, 2])
def test_a_known_call_is_one_written_function(runs, inputs):
    fn, args, wanted = made(inputs)
    fn(*args)
    runs.clear()
    for _ in range(3):
        same(fn(*args), wanted)
    assert runs == []
    other = [x + 1.0 for x in args]                       # of which the kernels know nothing yet
    given = [other, args, other[:1] + args[1:]]
    plain = [[y.numpy() for y in fn._fn(*a)] for a in given]
    runs.clear()
    found = [fn(*a) for a in given]
    assert runs == []
    for results, wanted in zip(found, plain, strict=True):
        for y, z in zip(results, wanted, strict=True):
            close(y, z)


def test_results_are_their_own(runs):
    """Memory is used again only where nobody holds it."""
    fn, args, wanted = made()
    held = [fn(*args) for _ in range(4)]
    held[0][0].zero_()
    tg.synchronize()
    for results in held[1:]:
        same(results, wanted)
    assert held[0][0].tolist() == [0.0] * 5


def test_kernels_that_were_given_up_are_had_again(runs):
    """The written function holds no kernel: what is unloaded is gone, and a run loads it, after which it is short again."""
    fn, args, wanted = made()
    fn(*args)
    executable = fn._latest.program.executable
    tg.synchronize()
    for give_up in (executable.unload, executable.release):
        give_up()
        if give_up == executable.unload:
            assert executable._parts == []
        runs.clear()
        same(fn(*args), wanted)
        assert runs == [executable]
        same(fn(*args), wanted)
        assert runs == [executable]


def test_a_profiler_sees_each_run(runs, monkeypatch):
    fn, args, wanted = made()
    fn(*args)
    executable = fn._latest.program.executable
    for profiled in (True, False, True, False):
        monkeypatch.setattr(tg.config, "profile", profiled)
        before = sum(time.calls for time in executable.profile())
        same(fn(*args), wanted)
        same(fn(*args), wanted)
        assert sum(time.calls for time in executable.profile()) - before == 2 * len(executable._times) * profiled
    assert not executable.device.profiling                # times are recorded no more
    runs.clear()
    same(fn(*args), wanted)
    assert runs == []


def test_what_is_suspect_stays_so(runs):
    """An index that is out of range somewhere before is told by who reads what the short run made of it."""
    fn, args, wanted = made()
    fn(*args)
    pick = tg.trace(lambda x, i: x[i])
    bad, i = tg.arange(5.0), tg.tensor([0, 1, 2, 3, 7])
    tg.synchronize()
    suspect = pick(bad, i)
    runs.clear()
    found = fn(suspect, args[1])
    assert len(runs) == 1
    with pytest.raises(tg.IndexOutOfRange):
        found[0].numpy()
    same(fn(*args), wanted)
    assert len(runs) == 1


def test_no_memory_and_what_a_driver_refuses(runs, monkeypatch):
    """Without memory `run` makes room; a refused launch is named, changes nothing, and the next call is as ever."""
    fn, args, wanted = made()
    executable = fn._latest.program.executable
    with monkeypatch.context() as patch:
        patch.setattr(short_run, "enqueue", _refuse)
        refusing = executable.short_run()
    values = [x._n.value for x in args]
    with pytest.raises(tg.DeviceError, match=f"refused kernel {executable._times[0].entry}"):
        refusing(values, ())
    fn(*args)
    runs.clear()
    same(fn(*args), wanted)
    assert runs == []

    class Full:
        def allocate(self, nbytes):
            raise MemoryError

    with monkeypatch.context() as patch:
        pool = executable.device.pool
        patch.setitem(executable.device.__dict__, "pool", Full())
        short = executable.short_run()
        patch.setitem(executable.device.__dict__, "pool", pool)
        found = short(values, ())
    assert runs == [executable]
    for buffer, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(buffer.download(y.shape, y.dtype), y)


def _refuse(*args):
    raise cl.RuntimeError("no")


def test_arrays_are_taken_as_they_are(monkeypatch):
    """Of the dtype, shape and device that the call was recorded with; any others are another call."""
    fn = tg.trace(lambda x, y: x * y)
    x, y = np.arange(4.0), np.full(4, 2.0)
    for _ in range(3):
        close(fn(x, y), x * y)
        close(fn(x, x), x * x)
        close(fn(tg.tensor(x), y), x * y)
        x = x + 1.0
    close(fn(x[::-1], y), x[::-1] * y)
    x = pickle.loads(pickle.dumps(x))                     # whose dtype is an equal one, not the same object
    with monkeypatch.context() as patch:
        patch.setattr(tg.tracing.trace.Traced, "_found", lambda self, *given: 1 / 0)
        close(fn(x, y), x * y)
    with pytest.raises(tg.errors.DTypeError, match="not supported"):
        fn(x.astype(">f8"), y)
    assert len(fn.compilations) == 1
    close(fn(x[:2], y[:2]), x[:2] * y[:2])
    assert fn(x.astype(np.float32), y.astype(np.float32)).dtype == tg.float32
    with tg.device("numpy"):
        assert fn(x, y).device.kind == "numpy"
    assert len(fn.compilations) == 4


def test_numbers_of_run_time(runs, monkeypatch):
    """Each call's own, and what the plan computes of them on the host; integers and words are static."""
    fn = tg.trace(lambda x, a, n, b: (x * a + b, x * (a * b + 2.0), x * n))
    x = tg.arange(4.0)
    tg.synchronize()
    fn(x, 1.5, 3, 2.0)
    fn(x, 1.5, 3, 2.0)
    runs.clear()
    given = [(1.5, 2.0), (0.25, 2.0), (0.25, -0.0), (float("inf"), 1.0), (1e300, 1.0), (3.0, 2.0)]
    found = [fn(x, a, 3, b) for a, b in given]
    assert runs == []
    with monkeypatch.context() as patch:
        patch.setattr(tg.config, "recall", False)
        wanted = [fn(x, a, 3, b) for a, b in given]
    for results, others in zip(found, wanted, strict=True):
        same(results, [y.numpy() for y in others])
    assert len(fn.compilations) == 1


def test_views_are_taken_with_their_present_values(runs):
    """A view whose base was not written since; of one that was, the values that it has now. Two that share memory are another call."""
    fn = tg.trace(lambda x, y: x * y + x)
    base, y = tg.arange(6.0), tg.ones(2, 3)
    x = base.reshape(2, 3)
    tg.synchronize()
    wanted = 2 * np.arange(6.0).reshape(2, 3)
    close(fn(x, y), wanted)
    fn(x, y)
    runs.clear()
    found = fn(x, y)
    assert runs == []
    close(found, wanted)
    base[0] = 5.0
    wanted[0, 0] = 10.0
    close(fn(x, y), wanted)
    x[1] = 1.0
    wanted[1] = 2.0
    close(fn(x, y), wanted)
    close(fn(x, y), wanted)
    assert base.tolist() == [5.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    assert len(fn.compilations) == 1
    a, b = base.reshape(2, 3), base.reshape(2, 3)
    close(fn(a, b), a.numpy() ** 2 + a.numpy())
    assert len(fn.compilations) == 2
    close(fn(x, base[:3].expand(2, 3)), x.numpy() * base[:3].numpy() + x.numpy())
