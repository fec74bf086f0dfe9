"""Two devices for tests of transfers: `two_devices`. Of one driver there are three kinds: another Device on it, two with queues in one
context, and halves of a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.errors import DeviceError
from tracegrad.runtime.device import Device

DRIVERS = ("intel", "rusticl")


_twins: dict[Any, Device] = {}
_halves: dict[Any, list[Device]] = {}
_queues: dict[Any, list[Device]] = {}


def halves() -> list[Device]:
    """The default device's cores as two devices."""
    here = tg.device()
    if here not in _halves:
        try:
            _halves[here] = here.split(2)
        except DeviceError:
            pytest.skip(f"{here} has no halves")
    return _halves[here]


def queues() -> list[Device]:
    """Two devices that are the default one's, each with a queue of its own in one context."""
    here = tg.device()
    if here not in _queues:
        _queues[here] = [Device(here.cl_device), Device(here.cl_device)]
        _queues[here][0].share_context(_queues[here][1])
    return _queues[here]


def _second(name: str) -> Any:
    here = tg.device()
    if name == "twin":
        return _twins.setdefault(here, Device(here.cl_device, here.cl_basic))
    drivers = {d: f"{d.driver} {d.platform}".lower() for d in tg.devices() if d is not here}
    for d, text in drivers.items():
        if name == next((driver for driver in DRIVERS if driver in text), "another driver"):
            return d
    pytest.skip(f"no second device by {name}")


def two_devices(kind: str, way: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two devices of a kind. way: "eager" for small work by NumPy, "kernels" for none."""
    if tg.device().kind == "numpy":
        pytest.skip("the default device is the interpreter: there is no other one")
    monkeypatch.setattr(tg.config, "eager", way == "eager")
    if kind == "from numpy":
        return tg.device("numpy"), tg.device()
    if kind in ("halves", "queues"):
        return halves() if kind == "halves" else queues()
    return tg.device(), tg.device("numpy") if kind == "numpy" else _second(kind)


def leaf(values: Any, device: Any, dtype: Any = tg.float32) -> Any:
    """A leaf that requires grad."""
    return tg.tensor(values, dtype=dtype, device=device, requires_grad=True)


def same(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Assert that a tensor has the values of another one, or of an array or of torch's tensor."""
    np.testing.assert_allclose(np.asarray(found.detach()), np.asarray(expected.detach() if hasattr(expected, "detach") else expected),
                               rtol=tolerance, atol=tolerance)
