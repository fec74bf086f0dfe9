"""Where values are: the devices that a driver has, and the interpreter, the device "numpy". Start at `find_device` and `upload`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tracegrad.config import config
from tracegrad.errors import DeviceError
from tracegrad.runtime import buffer as buffers
from tracegrad.runtime import device as devices_
from tracegrad.runtime.faults import Record, Suspicions, verify
from tracegrad.runtime.staging import frozen, shown


class HostValue:
    """A value on the interpreter device: a numpy array with a Buffer's interface."""

    __slots__ = ("__weakref__", "array", "deferred_checks", "device", "may_change")
    borrowed = False  # nothing is ever written in place

    def __init__(self, device: HostDevice, array: np.ndarray[Any, Any], may_change: bool = False) -> None:
        self.device, self.array, self.may_change = device, array, may_change
        self.deferred_checks: Suspicions = ()

    def download(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        verify(self)
        return np.array(self.array, dtype=dtype).reshape(shape)

    def view(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        verify(self)
        return shown(self, np.asarray(self.array, dtype).reshape(shape))

    def fetch(self, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray[Any, Any], None]:
        """The contents, suspect or not: see Buffer."""
        return np.asarray(self.array, dtype).reshape(shape), None

    def copy(self) -> HostValue:
        out = HostValue(self.device, np.array(self.array))
        out.deferred_checks = self.deferred_checks
        return out


class HostDevice(devices_.Placed):
    """The interpreter: runs graphs with the ops' numpy rules. Slow; the oracle of the tests, and there without a driver."""

    name, kind, driver, platform, target = "numpy", "numpy", "interpreter", "numpy", None
    type = "cpu"                                        # torch's name of the kind
    in_host_memory, host_alignment, fp64 = True, 1, True

    def __init__(self) -> None:
        self.record = Record()

    def __repr__(self) -> str:
        return "<Device 'numpy' (interpreter)>"

    def __deepcopy__(self, memo: Any) -> HostDevice:
        """Itself: there is one."""
        return self

    def finish(self) -> None:
        """Nothing is ever pending."""

    def split(self, count: int) -> list[Any]:
        """Raises DeviceError: see `Device.split`."""
        raise DeviceError(f"split: {self.name!r} is no driver's device, and cannot be {count!r} devices; tg.devices() lists those that are")

    def share_context(self, *others: Any) -> None:
        """Raises DeviceError: see `Device.share_context`."""
        raise DeviceError(f"share_context: {self.name!r} is no driver's device, and has no context; tg.devices() lists those that have")


class MetaDevice(HostDevice):
    """torch's "meta": tensors have shapes and dtypes, but no values, and take no memory. What is made of them is on it, too."""

    name, driver, platform, type, has_values = "meta", "meta", "meta", "meta", False

    def __repr__(self) -> str:
        return "<Device 'meta' (no values)>"


NUMPY, META = HostDevice(), MetaDevice()
Device = Any  # runtime.device.Device or HostDevice
aliases: dict[str, Device] = {}     # what a program calls a device otherwise: "cuda"


def find_device(spec: Any = "") -> Device:
    """The device that `spec` names: an index, "cpu", "gpu", part of a name, "numpy", "meta", or a Device. "" is the default.

    Raises NoDriverError if there is none such.

    >>> tg.device("numpy")
    """
    if type(spec) is devices_.Device:
        return spec
    if spec is None and devices_.chosen:
        return devices_.chosen[0]
    if isinstance(spec, (HostDevice, devices_.Device)):
        return spec
    if aliases and isinstance(spec, str) and (name := spec.partition(":")[0]) in aliases:
        return aliases[name]
    if spec == "" or spec is None:
        if not devices_.chosen:
            devices_.chosen.append(find_device(config.device) if config.device else devices_.find(""))
        return devices_.chosen[0]
    return NUMPY if spec == "numpy" else META if spec == "meta" else devices_.find(spec)


def chosen_device() -> Device | None:
    """That of new tensors, where one was taken already."""
    return devices_.chosen[0] if devices_.chosen else None


def used_devices() -> Sequence[Device]:
    """Those that something may have been computed on."""
    return (*devices_.found(), NUMPY)


def list_devices() -> list[Device]:
    """Every device present, the best first (without "numpy", which is always there).

    >>> best = tg.devices()[0]
    """
    if devices_.devices() and not config.device:
        devices_.find().decide()                         # whoever asks sees, and may keep, what will be
    return list(devices_.devices())


def set_device(spec: Any) -> Device:
    """Make `spec` (as in `find_device`) the device of new tensors; "" or None: the one that is taken where none was set, again.

    Raises NoDriverError if there is none such.

    >>> device = tg.set_device(tg.get_default_device())
    """
    unset = spec is None or (isinstance(spec, str) and not spec)
    before = devices_.choose([] if unset else devices_.chosen)
    try:
        device = find_device(spec)
    except BaseException:
        devices_.choose(before)
        raise
    devices_.choose([device])
    return device


def stays_numpys(device: Device, nbytes: int) -> bool:
    """Whether an array of so many bytes is a device's value as it is, until a kernel needs it."""
    return config.eager and nbytes <= buffers.SMALL_UPLOAD and device.in_host_memory and not isinstance(device, HostDevice)


def upload(device: Device, array: np.ndarray[Any, Any], copy: bool | None = True, own: bool = False, kernel: bool = False) -> Any:
    """A value on `device` with the contents of `array`. own: which nobody else has. kernel: which one will read next.

    copy: True for a copy; False to share the array's memory (ask `obstacle` first); None to share it where nothing shows but the
    time: if nobody is expected to write the array, and it is large enough to gain.
    """
    if copy is None:
        copy = array.nbytes <= buffers.SMALL_UPLOAD or not frozen(array) or bool(obstacle(device, array))
    if isinstance(device, HostDevice):
        return HostValue(device, np.array(array) if copy else array, not (copy or frozen(array)))
    if copy and not kernel and stays_numpys(device, array.nbytes):
        return buffers.host_buffer(device, array if own else np.array(array, order="C"))
    return buffers.upload(device, array) if copy else buffers.wrap(device, array)


class Departure(NamedTuple):
    """A value on its way to another device. event: of the command that reads it, on the device that it leaves; None where it was there
    already. arrive(): the value on the other device. staged: whether it passes through the host's memory."""

    event: Any
    arrive: Callable[[], Any]
    staged: bool


def depart(value: Any, target: Device, shape: tuple[int, ...], dtype: Any) -> Departure:
    """Have a value, once the commands enqueued so far have made it, leave for another device. Nobody waits for that here.

    Devices of one context wait for each other's events: nobody on the host does. Else it is staged through the host's memory, and
    `arrive` waits for it: what has to be read from a device's own memory comes in pieces, through pinned memory. An error that is found
    later comes along.
    """
    if buffers.linked(value, target):
        there, event = buffers.copy_to(target, value)
        return Departure(event, lambda: there, False)
    checks, sent = value.deferred_checks, buffers.leaving(value)
    if sent is not None:
        event, receive = sent.events[0], partial(_from_pieces, target, sent, shape, dtype)
    else:
        array, event = value.fetch(shape, dtype)
        receive = partial(upload, target, array)

    def arrive() -> Any:
        if event is not None:
            event.wait()
        there = receive()
        there.deferred_checks = checks
        return there

    return Departure(event, arrive, True)


def _from_pieces(device: Device, sent: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A value on `device` with what left another one, piece by piece (see `buffers.leaving`)."""
    if not isinstance(device, HostDevice):
        return buffers.receive(device, sent)
    flat = np.empty(sent.nbytes, np.uint8)
    for at, piece in sent.pieces():
        flat[at : at + piece.size] = piece
    return HostValue(device, flat.view(dtype).reshape(shape))


obstacle = buffers.obstacle
