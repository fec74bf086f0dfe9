"""Writes by way of pinned host memory, as on a device with memory of its own: pieces, a ring used again, arrays that change at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.runtime.buffer import empty
from tracegrad.runtime.device import Device
from tracegrad.runtime.staging import Ring


@pytest.fixture
def ringed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device, with three pieces of 1000 bytes for all that is written to it."""
    device = tg.device()
    if not isinstance(device, Device):
        pytest.skip("the interpreter has no buffers")
    if device.kind == "cpu":
        assert device.ring is None                          # its memory is the host's
    with device.lock:
        monkeypatch.setitem(device.__dict__, "ring", Ring(device.context, device.use(device.host_queue), pieces=3, piece=1000))
    yield device
    device.finish()


def test_what_is_written_is_read(ringed: Device) -> None:
    for nbytes in (1, 4, 999, 1000, 1001, 2999, 3000, 12345):
        array = np.random.default_rng(nbytes).integers(0, 256, nbytes).astype(np.uint8)
        kept, made = array.copy(), empty(ringed, nbytes)
        made.write(array)
        array[:] = 0
        np.testing.assert_array_equal(made.download((nbytes,), np.uint8), kept)


@pytest.mark.parametrize("dtype", [np.float64, np.bool_, np.float16])
def test_arrays_of_any_kind(ringed: Device, dtype: Any) -> None:
    array = (np.arange(30 * 77).reshape(30, 77) % 5).astype(dtype).T       # not contiguous
    made = empty(ringed, array.nbytes)
    made.write(array)
    np.testing.assert_array_equal(made.download(array.shape, dtype), array)


def test_writes_between_launches(ringed: Device) -> None:
    """Memory goes back to the pool while kernels read it, and is written again behind them."""
    n = (1 << 20) // 4 + 7                                  # too large for a buffer that is made of the array
    double, total = tg.trace(lambda x, y: x * 2 + y), tg.zeros(n)
    for turn in range(5):
        array = np.full(n, turn, np.float32)
        total = double(tg.tensor(array), total)
        array[:] = -1
    np.testing.assert_array_equal(total.numpy(), np.full(n, 20, np.float32))
