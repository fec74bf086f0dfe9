"""Fixtures shared by all tests, and hypothesis' profiles."""

from __future__ import annotations

import gc
import os

import hypothesis
import pytest

import tracegrad as tg
from tests.helpers.marks import DEVICES, RUNS
from tracegrad.autograd import backward_cache
from tracegrad.execute.deferred import flush
from tracegrad.numpy_backend import numpy_program
from tracegrad.support import cache
from tracegrad.support.modes import state

tg.config.check = True              # verify graphs after every pass, always in tests
# Tests on an OpenCL device are about its kernels: numpy must not stand in for them. Those that ask for the fixture `device` are run
# both ways; TRACEGRAD_EAGER=1 runs all tests in the way that users have it (.ci/run does so with those of untraced behaviour).
EAGER = os.environ.get("TRACEGRAD_EAGER") == "1"
tg.config.eager = EAGER
tg.config.builders = 1             # tests run side by side already
numpy_program.WRITTEN = 3                 # so that tests see written routines without a dozen uses

hypothesis.settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", max_examples=1000, deadline=None, derandomize=False)     # else it is the default's
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items) -> None:
    """Where recall is off (TRACEGRAD_RECALL=0), what asserts that something is recalled has nothing to assert."""
    if not tg.config.recall:
        for item in items:
            if item.get_closest_marker("recall") or "recalled" in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason="recall is off"))


def pytest_collection_finish() -> None:
    """15,000 tests and all modules stay: no collection of garbage, of which tests ask for many, goes through them any more (0.1 s each)."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item, nextitem) -> None:
    """What the tests of a file leave in caches stays, too: 0.3 s a collection, once ten files are through."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _the_device_comes_back():
    """A file that leaves another default device behind fails itself, not whichever file its worker takes next."""
    before = tg.device()
    yield
    left = tg.device()
    tg.set_device(before)
    assert left is before, f"the tests of this file leave {left} as the default device"


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """The default OpenCL device by kernels alone, the same with numpy for small work, and the interpreter: all run the same test."""
    previous = tg.device()
    if request.param != "default" and previous.kind == "numpy":
        pytest.skip("the default device is the interpreter already")
    if request.param == "eager" and not previous.in_host_memory:
        pytest.skip("the device has memory of its own: kernels alone")
    monkeypatch.setattr(tg.config, "eager", request.param == "eager")
    yield tg.set_device("numpy") if request.param == "numpy" else previous
    tg.set_device(previous)


@pytest.fixture
def kernels(monkeypatch):
    """Kernels alone do the work, in whatever way the tests are run."""
    monkeypatch.setattr(tg.config, "eager", False)


@pytest.fixture
def on_a_cpu():
    """A CPU's kernels, whichever device is the default; the fixture is that device."""
    previous, device = tg.device(), tg.device("cpu")
    tg.set_device(device)
    yield device
    tg.set_device(previous)


@pytest.fixture
def on_numpy(request):
    """The interpreter, unless the test asks for every device."""
    if "device" in request.fixturenames:
        yield
        return
    previous = tg.device()
    tg.set_device("numpy")
    yield
    tg.set_device(previous)


@pytest.fixture(params=RUNS)
def run(request):
    """A decorator that leaves a function as it is, or traces it."""
    return tg.trace if request.param == "traced" else lambda fn: fn


@pytest.fixture
def at_length(monkeypatch):
    """Turns recall off: every node is made."""
    return lambda: monkeypatch.setattr(tg.config, "recall", False)


@pytest.fixture
def recalled(monkeypatch):
    """Counts the backwards that were made without nodes. Nothing is pending, and nothing known, from other tests."""
    gc.collect()
    flush()
    assert state.plain
    cache.clear(["programs", "recipes", "calls"])
    count = []
    real = backward_cache.Backward.run

    def gradients(self):
        found = real(self)
        count.append(found is not None)
        return found

    monkeypatch.setattr(backward_cache.Backward, "run", gradients)
    return lambda: sum(count)
