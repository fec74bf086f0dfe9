"""Buffers: device memory from the pool, and the ways in and out of it. Start at `Buffer`; `empty` and `upload` make one.

A dropped Buffer's memory goes back to the device's pool at once, even while commands that use it are in flight: whoever
gets it next enqueues behind those commands (`Device.use` keeps the queues of a device in one sequence).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from typing import Any

import numpy as np
import pyopencl as cl

from tracegrad.errors import OutOfMemoryError
from tracegrad.runtime.device import Device

# Up to here an upload makes a fresh buffer from the array (0.6 us for 4 KB, no queue involved, so nothing is waited for);
# above, page faults make that 6x slower than a copy into pooled memory (64 MB: 41 ms against 6).
SMALL_UPLOAD = 1 << 20
# A new block at least this large is first held against the device's memory: CPU drivers grant what the machine does not have.
LARGE_BLOCK = 16 << 20
MINIMUM = 16                               # OpenCL has no empty buffers

_RW = cl.mem_flags.READ_WRITE
_serials = itertools.count()


class Buffer:
    """`nbytes` bytes on `device`. `mem` is the OpenCL object; `serial` is unique, so that a launch knows what it has bound."""

    __slots__ = ("__weakref__", "device", "mem", "nbytes", "serial")

    def __init__(self, device: Device, mem: Any, nbytes: int) -> None:
        self.device = device
        self.mem = mem
        self.nbytes = nbytes
        self.serial = next(_serials)

    def __repr__(self) -> str:
        return f"<Buffer of {self.nbytes} bytes on {self.device.name}>"

    def download(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """A fresh array with the contents. Waits for the commands before it."""
        out = np.empty(shape, dtype)
        if out.size:
            device = self.device
            with device.lock:
                cl.enqueue_copy(device.use(device.host_queue), out, self.mem, is_blocking=True)
        return out

    def view(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """A read-only array; on a CPU device it is the buffer's own memory (5 us at any size), else a copy.

        The view keeps the buffer alive, and shows what in-place updates later write to it.
        """
        device = self.device
        if device.kind != "cpu" or self.nbytes == 0:
            out = self.download(shape, dtype)
        else:
            with device.lock:
                queue = device.use(device.host_queue)
                mapped, _ = cl.enqueue_map_buffer(queue, self.mem, cl.map_flags.READ, 0, shape, np.dtype(dtype), is_blocking=True)
            out = np.asarray(_View(self, mapped))
        out.flags.writeable = False
        return out

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """Replace the contents by `array`, which has the same number of bytes. Waits for the commands before it."""
        if array.nbytes:
            device = self.device
            with device.lock:
                cl.enqueue_copy(device.use(device.host_queue), self.mem, np.ascontiguousarray(array), is_blocking=True)


class _Wrapped(Buffer):
    """A Buffer that is a host array's memory: before it lets go of the array it waits for the commands that use it."""

    __slots__ = ("array",)

    def __init__(self, device: Device, mem: Any, array: np.ndarray[Any, Any]) -> None:
        super().__init__(device, mem, array.nbytes)
        self.array = array

    def __del__(self) -> None:
        with contextlib.suppress(cl.Error):
            self.device.finish()


class _View:
    """What a mapped array has as its base: it ends the mapping before it lets go of the buffer."""

    def __init__(self, buffer: Buffer, mapped: np.ndarray[Any, Any]) -> None:
        self.mapped, self.buffer = mapped, buffer
        self.__array_interface__ = mapped.__array_interface__


def empty(device: Device, nbytes: int) -> Buffer:
    """A Buffer of `nbytes` bytes with unspecified contents. Raises OutOfMemoryError, which leaves everything usable."""
    if nbytes >= LARGE_BLOCK and _exceeds(device, nbytes):
        make_room(device)
        if _exceeds(device, nbytes):
            raise _out_of_memory(device, nbytes)
    try:
        return Buffer(device, device.pool.allocate(nbytes or MINIMUM), nbytes)
    except (cl.Error, MemoryError):
        make_room(device)
    try:
        return Buffer(device, device.pool.allocate(nbytes or MINIMUM), nbytes)
    except (cl.Error, MemoryError):
        raise _out_of_memory(device, nbytes) from None


def upload(device: Device, array: np.ndarray[Any, Any]) -> Buffer:
    """A Buffer with a copy of `array`, which may change afterwards. Raises OutOfMemoryError."""
    array = np.ascontiguousarray(array)
    if 0 < array.nbytes <= SMALL_UPLOAD and device.kind == "cpu":
        try:
            return Buffer(device, cl.Buffer(device.context, _RW | cl.mem_flags.COPY_HOST_PTR, hostbuf=array), array.nbytes)
        except cl.Error:
            make_room(device)
    buffer = empty(device, array.nbytes)
    buffer.write(array)
    return buffer


def wrap(device: Device, array: np.ndarray[Any, Any]) -> Buffer:
    """A Buffer that is `array`'s own memory where the device allows it (0.5 us at any size), else a copy.

    The two then share every change, so hand over only arrays that are meant to be shared. Raises OutOfMemoryError.
    """
    alignment = 16 if device.target.plain_math else device.cl_device.mem_base_addr_align // 8     # PoCL takes any; vectors like 16
    flags = array.flags
    if device.kind != "cpu" or not array.nbytes or not flags.c_contiguous or not flags.writeable or array.ctypes.data % alignment:
        return upload(device, array)
    return _Wrapped(device, cl.Buffer(device.context, _RW | cl.mem_flags.USE_HOST_PTR, hostbuf=array), array)


def make_room(device: Device) -> None:
    """Give back what can be had again: storage that idle executables hold, garbage, and the pool's free blocks."""
    for cache in list(device.caches):
        cache.release()
    gc.collect()
    device.finish()
    device.pool.free_held()


def _exceeds(device: Device, nbytes: int) -> bool:
    """Whether a *new* block of `nbytes` would not fit beside what the pool manages."""
    pool = device.pool
    return nbytes > device.target.max_buffer or int(pool.managed_bytes) + nbytes > device.memory


def _out_of_memory(device: Device, nbytes: int) -> OutOfMemoryError:
    gib = float(1 << 30)
    return OutOfMemoryError(
        f"out of memory: {nbytes} bytes ({nbytes / gib:.2f} GiB) wanted on {device.name}, which has {device.memory / gib:.2f} GiB, "
        f"{int(device.pool.active_bytes) / gib:.2f} GiB of it in use, and takes at most {device.target.max_buffer / gib:.2f} GiB a buffer; "
        "drop tensors that are no longer needed, or use smaller batches"
    )
