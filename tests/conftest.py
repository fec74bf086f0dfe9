"""Fixtures shared by all tests, and hypothesis' profiles."""

from __future__ import annotations

import os

import hypothesis
import pytest

import tracegrad as tg

tg.config.check = True              # verify graphs after every pass, always in tests

hypothesis.settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile("long", max_examples=1000, deadline=None, derandomize=False)     # else it is the default's
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(params=["default", "numpy"])
def device(request):
    """The default OpenCL device, and the interpreter: both run the same test."""
    previous = tg.device()
    found = tg.set_device("numpy") if request.param == "numpy" else previous
    if request.param == "numpy" and previous.kind == "numpy":
        pytest.skip("the default device is the interpreter already")
    yield found
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


@pytest.fixture(params=["untraced", "traced"])
def run(request):
    """A decorator that leaves a function as it is, or traces it."""
    return tg.trace if request.param == "traced" else lambda fn: fn
