"""Writes by way of pinned host memory, as on a device with memory of its own: pieces, a ring used again, arrays that change at once.

New arrays have a queue of their own there; events of the tests' own hold it, or that of the kernels, back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tracegrad.errors import DeviceError, OutOfMemoryError
from tracegrad.execute.devices import depart
from tracegrad.runtime import capabilities, staging
from tracegrad.runtime.buffer import Buffer, empty, leaving, make_room, receive, upload
from tracegrad.runtime.device import Device
from tracegrad.runtime.staging import APART, PIECE, Ring


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
        monkeypatch.setitem(device.__dict__, "uploads", None)
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
    for step in range(5):
        array = np.full(n, step, np.float32)
        total = double(tg.tensor(array), total)
        array[:] = -1
    np.testing.assert_array_equal(total.numpy(), np.full(n, 20, np.float32))


# ------------------------------------------------------------------------------------------------------- a queue of transfers

N = APART // 4 + 77


@pytest.fixture
def discrete() -> Iterator[Device]:
    """The default device as one with memory of its own."""
    before = tg.device()
    if not isinstance(before, Device):
        pytest.skip("the interpreter has no buffers")
    found = Device(before.cl_device)
    found.target = replace(before.target, kind="gpu", local_memory=32768, plain_math=False, clang_builtins=False, host_memory=False,
                           max_work_group=min(256, before.target.max_work_group))
    found.kind = "gpu"
    found.__dict__["ring"] = Ring(found.context, found.use(found.queue), pieces=40, piece=1 << 14)
    tg.set_device(found)
    yield found
    tg.set_device(before)
    found.finish()


@contextmanager
def held_back(device: Device, queue: cl.CommandQueue) -> Iterator[None]:
    """What is enqueued there inside waits until the end of the block."""
    gate = cl.UserEvent(device.context)
    with device.lock:
        cl.enqueue_barrier(queue, wait_for=[gate])
    try:
        yield
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)


def done(event: cl.Event) -> bool:
    return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)


def array(value: float) -> Any:
    return np.full(N, value, np.float32)


def primed(device: Device) -> Any:
    """A traced function of an array; three blocks wait for the next arrays of its size, and nothing runs."""
    double = tg.trace(lambda x: x * 2 + 1)
    xs = [tg.tensor(array(k)) for k in range(3)]
    assert [double(x).numpy()[0] for x in xs] == [1, 3, 5]
    device.finish()
    return double


def test_a_new_array_comes_while_kernels_run(discrete: Device) -> None:
    double = primed(discrete)
    with held_back(discrete, discrete.queue):
        x = tg.tensor(array(5))
        waiting = double(x)
        y = upload(discrete, array(4))
        discrete.uploads.queue.finish()
        assert done(y.block.filled)
    np.testing.assert_array_equal(waiting.numpy(), array(11))
    np.testing.assert_array_equal(y.download((N,), np.float32), array(4))


def test_a_kernel_waits_for_its_array(discrete: Device) -> None:
    double = primed(discrete)
    with held_back(discrete, discrete.uploads.queue):
        result = double(tg.tensor(array(7)))
        discrete.queue.flush()
        assert not done(discrete.last)
    np.testing.assert_array_equal(result.numpy(), array(15))


def test_memory_is_written_when_the_kernels_before_are_done(discrete: Device) -> None:
    """Of two blocks, and of memory that comes from the pool while kernels use it."""
    double = primed(discrete)
    results, kept = [], []
    with held_back(discrete, discrete.queue):
        for step in range(5):
            x = tg.tensor(array(step))
            results.append(double(x))
            kept.append(x._n.value.block)
            del x
        discrete.queue.flush()
        assert len(set(map(id, kept))) == 3                      # used again, while nothing has run
        assert [done(b.filled) for b in kept if b.filled is not None] == []
        assert not done(discrete.last)
    for step, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), array(2 * step + 1))


def test_a_transfer_that_fails_leaves_things_as_they_were(discrete: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    double = primed(discrete)
    x = tg.tensor(array(3))
    calls = []

    def refused(*args: Any, **more: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise cl.LogicError("enqueue_copy failed: OUT_OF_RESOURCES")
        return copy(*args, **more)

    copy = cl.enqueue_copy
    with monkeypatch.context() as patched:
        patched.setattr(staging.cl, "enqueue_copy", refused)
        with pytest.raises(DeviceError, match=rf"^upload: .* refused to copy {4 * N} bytes"):
            upload(discrete, array(9))
    managed = discrete.pool.managed_bytes
    y = upload(discrete, array(4))                               # of the block that the other one had
    assert discrete.pool.managed_bytes == managed
    np.testing.assert_array_equal(y.download((N,), np.float32), array(4))
    np.testing.assert_array_equal(double(x).numpy(), array(7))


def test_arrays_that_nobody_uses_give_their_memory_back(discrete: Device) -> None:
    for value in range(3):
        upload(discrete, array(value))
    make_room(discrete)
    assert discrete.uploads.take(4 * N) is None
    made = upload(discrete, array(1)).copy()
    np.testing.assert_array_equal(made.download((N,), np.float32), array(1))


@pytest.mark.long
def test_many_arrays_of_some_sizes(discrete: Device) -> None:
    """Used once, twice, never, updated in place, kept for later."""
    rng = np.random.default_rng(0)
    update, total = tg.trace(lambda x, s: x.mul_(s)), tg.trace(lambda x, y: (x * y).sum())
    later: list[tuple[Any, float]] = []
    for _ in range(60):
        n = int(rng.choice([100, N, N + 1, 3 * N]))
        given = rng.integers(0, 3, n).astype(np.float32)
        x = tg.tensor(given)
        kind = rng.integers(4)
        if kind == 1:
            later.append((total(x, x), float((given * given).sum())))
        elif kind == 2:
            update(x, 2.0)
            later.append((total(x, tg.tensor(given)), float((2 * given * given).sum())))
        elif kind == 3:
            later.append((x, float(given.sum())))
        given[:] = -1
    for found, wanted in later:
        assert float(found.sum()) == wanted


# ------------------------------------------------------------------------------------------------------- to another device


@pytest.fixture
def apart(discrete: Device) -> Device:
    """The same; its memory is not the host's, either, when it is read."""
    discrete.__dict__["host_alignment"] = 0
    return discrete


@pytest.mark.parametrize("nbytes", [4, APART - 4, APART, PIECE, 2 * PIECE + 12])
def test_what_is_sent_arrives(nbytes: int, apart: Device) -> None:
    given = np.random.default_rng(nbytes).standard_normal(nbytes // 4).astype(np.float32)
    other = Device(apart.cl_device)                                         # of another context
    for target in (other, apart, tg.device("numpy")):
        sent = depart(upload(apart, given), target, given.shape, np.float32)
        np.testing.assert_array_equal(sent.arrive().download(given.shape, np.float32), given)
        x = tg.tensor(given, device=apart)
        x.add_(1)
        y = (x * 2).to(target)
        assert y.device is target
        np.testing.assert_array_equal(y.numpy(), (given + 1) * 2)


class Noted:
    """An event, or a Buffer's write, that notes when it is asked for."""

    def __init__(self, what: str, of: Any, notes: list[str]) -> None:
        self.what, self.of, self.notes = what, of, notes

    def wait(self) -> None:
        self.notes.append(f"{self.what} read")
        self.of.wait()


def test_a_piece_is_written_while_the_next_one_is_read(apart: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """All reads are enqueued; nobody waits for the second one before the first piece is written."""
    given, notes, write = np.arange(3 * PIECE // 8, dtype=np.float64), list[str](), Buffer.write
    sent = leaving(upload(apart, given))
    assert sent is not None
    sent.events = [Noted(str(k), event, notes) for k, event in enumerate(sent.events)]

    def noted(self: Buffer, array: Any, at: int = 0) -> None:
        notes.append(f"{at // PIECE} written")
        write(self, array, at)

    monkeypatch.setattr(Buffer, "write", noted)
    found = receive(Device(apart.cl_device), sent)
    assert notes == ["0 read", "0 written", "1 read", "1 written", "2 read", "2 written"]
    np.testing.assert_array_equal(found.download(given.shape, np.float64), given)


def test_what_leaves_waits_for_what_it_sends_only(apart: Device) -> None:
    """Kernels that are enqueued later do not hold it back, and do not write over it."""
    x = tg.tensor(np.ones(N, np.float32), device=apart)
    double = tg.trace(lambda x: x.mul_(2))
    double(x)
    value = x._n.value
    sent = depart(value, tg.device("numpy"), (N,), np.float32)
    del value
    with held_back(apart, apart.queue):
        double(x)
        found = sent.arrive().array
    np.testing.assert_array_equal(found, np.full(N, 2, np.float32))
    np.testing.assert_array_equal(x.numpy(), np.full(N, 4, np.float32))


def test_a_transfer_that_fails_gives_its_memory_back(apart: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    other, given = Device(apart.cl_device), np.ones(N, np.float32)
    monkeypatch.setattr(other, "max_buffer", 0)
    monkeypatch.setattr("tracegrad.runtime.buffer.LARGE_BLOCK", 1)
    for _ in range(3):
        with pytest.raises(OutOfMemoryError):
            depart(upload(apart, given), other, given.shape, np.float32).arrive()
    assert [len(free) for free in apart.pinned._free.values()] == [1]


@pytest.mark.parametrize("stay_mapped", [True, False])
def test_host_steps_write_into_buffers(stay_mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the memory stays mapped or is mapped for each: kernels behind a step see it, and arrays of results that are there stay."""
    device = tg.device()
    if not isinstance(device, Device) or not device.in_host_memory:
        pytest.skip("host steps' results are copied to this device")
    monkeypatch.setitem(device.__dict__, "host_writes", stay_mapped and device.host_writes)
    f = tg.trace(lambda x: tg.fft.irfft(tg.fft.rfft(x * 2.0) * 3.0) + x)
    given = [np.random.default_rng(k).standard_normal((3, 64)).astype(np.float32) for k in range(20)]
    found = [f(tg.tensor(x)).numpy() for x in given]
    for x, y in zip(given, found, strict=True):
        np.testing.assert_allclose(y, 7.0 * x, rtol=1e-5, atol=1e-5)


def test_a_driver_where_commands_do_not_see_what_the_host_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    device = tg.device()
    if not isinstance(device, Device) or not device.in_host_memory:
        pytest.skip("its memory is no array of the host's")
    assert capabilities.host_writes(device.cl_device)
    copies = cl.enqueue_copy
    monkeypatch.setattr(cl, "enqueue_copy", lambda queue, to, of, **options: copies(queue, to, np.zeros_like(of) if isinstance(
        of, np.ndarray) else of, **options))
    assert not capabilities.host_writes(device.cl_device)
