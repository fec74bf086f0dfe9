"""Buffers: device memory from the pool, and how data gets there. Start at `Buffer`; `empty`, `upload`, `host_buffer` and `wrap` make one.

A dropped Buffer's memory goes back to the device's pool at once, even while commands that use it are in flight: whoever
gets it next enqueues behind those commands (`Device.use` keeps the queues of a device in one sequence).

A Buffer is a handle on its memory. Who wants to write in place takes a `handle` of its own, and lets go of the one it found: if
that is still there, somebody else sees the memory (see tensors/ownership.py).

Between devices that share a context contents are copied by `copy_to`, in the order of events and without the host.

Without a copy, memory leaves as a `view` (read-only; it holds the Buffer, and what anybody else holds is never written in place) and
enters by `wrap` (such a Buffer is never written at all). What numpy computed (see execute/policy.py) stays a numpy
array until a kernel needs it: `host_buffer`.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyopencl as cl
from pyopencl._cl import PooledBuffer, _enqueue_read_buffer  # (what enqueue_copy finds, in half the time)

from tracegrad.errors import DeviceError, OutOfMemoryError
from tracegrad.runtime import staging
from tracegrad.runtime.device import Device
from tracegrad.runtime.faults import Suspicions, verify
from tracegrad.runtime.staging import APART, KEPT, Arrival, Block, Leaving, Ring, Uploads, bits, frozen, in_shape, of_dtype, shown

# Up to here an upload makes a fresh buffer from the array (0.6 us for 4 KB, no queue involved, so nothing is waited for);
# above, page faults make that 6x slower than a copy into pooled memory (64 MB: 41 ms against 6). Below it, a copy is also preferred to
# sharing: a shared array is waited for when its Buffer is dropped.
SMALL_UPLOAD = 1 << 20
# A new block at least this large is first held against the device's memory: CPU drivers grant what the machine does not have.
LARGE_BLOCK = 16 << 20
MINIMUM = 16                               # OpenCL has no empty buffers

_RW = cl.mem_flags.READ_WRITE
numbered = itertools.count()


class Buffer:
    """`nbytes` bytes on `device`. `mem` is the OpenCL object; `serial` is unique, so that a launch knows what it has bound.

    borrowed: the memory is a host array's, and no plan may write it. may_change: others may. deferred_checks: the runs that may have
    computed the contents with an index out of range; `faults.verify` before the host sees them.
    """

    __slots__ = ("__weakref__", "_window", "deferred_checks", "device", "mem", "nbytes", "serial")
    borrowed = may_change = False

    def __init__(self, device: Device, mem: Any, nbytes: int) -> None:
        self.device = device
        self.mem = mem
        self.nbytes = nbytes
        self.serial = next(numbered)
        self.deferred_checks: Suspicions = ()

    def __repr__(self) -> str:
        return f"<Buffer of {self.nbytes} bytes on {self.device.name}>"

    def download(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """A fresh array with the contents. Waits for the commands before it. Raises IndexOutOfRange (see `faults.verify`)."""
        verify(self)
        out = np.empty(shape, dtype)
        if out.size:
            device = self.device
            with device.lock:
                _enqueue_read_buffer(device.use(device.host_queue), self.mem, bits(out), is_blocking=True)
        return out

    def arriving(self, shape: tuple[int, ...], dtype: Any, queue: cl.CommandQueue) -> Arrival:
        """A copy of the contents as the commands so far leave them, for another thread, while further commands run. Nothing waits here.

        queue: the one in use. Until the copy is there it holds this Buffer. Nothing is verified.
        """
        device, out = self.device, np.empty(shape, dtype)
        with device.lock:
            mem = self.mem                                   # which may be uploaded for it
            marker = cl.enqueue_marker(device.use(queue))
            queue.flush()
            found = Arrival(self, marker, mem, out)
        if queue is not device.queue and queue is device.host_queue:        # it runs in this thread: the contents are there
            found()
        return found

    def handle(self) -> Buffer | None:
        """Another Buffer of the same memory, for who wants to write it; None where only a copy can be written."""
        made = _new(Buffer)
        made.device, made.mem, made.nbytes, made.serial = self.device, self.mem, self.nbytes, self.serial
        made.deferred_checks = self.deferred_checks
        return made

    def view(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """A read-only array; on a device that computes in the host's memory it is the buffer's own (9 us at any size), else a copy.

        The view keeps the buffer alive and unchanged: updates in place happen only where nobody else holds a Buffer.
        """
        verify(self)
        if not self.device.in_host_memory or self.nbytes == 0:
            out = self.download(shape, dtype)
        else:
            return shown(self, self.contents(shape, dtype))
        out.flags.writeable = False
        return out

    def contents(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """The memory as an array, on a device that computes in the host's, suspect or not: it holds the buffer. Waits."""
        device = self.device
        if self.nbytes == 0:
            return np.empty(shape, dtype)
        with device.lock:
            mem = self.mem
            queue = device.use(device.host_queue)
            if type(mem) is PooledBuffer:
                device.drain(queue)
                at = staging.address(device, queue, mem)
            else:
                mapped, _ = cl.enqueue_map_buffer(queue, mem, cl.map_flags.READ, 0, shape, np.dtype(dtype), is_blocking=True)
                return of_dtype(np.asarray(_Mapping(self, mapped)), dtype)
        return of_dtype(np.asarray(staging.Placed(self, at, shape, np.dtype(dtype))), dtype)

    def window(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        """`contents`, mapped once and for as long as this Buffer is there: for who copies small parts of it, again and again.

        It does not hold the Buffer: whoever has views of it holds that, or they may be written.
        """
        found: np.ndarray[Any, Any] | None = getattr(self, "_window", None)
        if found is None or found.shape != shape or found.dtype != dtype:
            another = self.handle()                         # or the Buffer would hold itself
            found = self._window = (another or self).contents(shape, dtype)
        return found

    def fetch(self, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray[Any, Any], cl.Event | None]:
        """An array that has the contents, suspect or not, once the event has come (None: now). Nobody waits here, and who waits for it
        does not wait for what is enqueued later. On a device that computes in the host's memory the array is the buffer's own."""
        device = self.device
        if self.nbytes == 0:
            return np.empty(shape, dtype), None
        with device.lock:
            mem = self.mem                                   # which may be waited for
            queue = device.use(device.active)
            if device.in_host_memory:
                mapped, event = cl.enqueue_map_buffer(queue, mem, cl.map_flags.READ, 0, shape, np.dtype(dtype), is_blocking=False)
                found = of_dtype(np.asarray(_Mapping(self, mapped)), dtype)
            else:
                found = np.empty(shape, dtype)
                event = device.last = cl.enqueue_copy(queue, bits(found), mem, is_blocking=False)
            queue.flush()
        return found, event

    def copy(self) -> Buffer:
        """A Buffer of its own with the contents, copied on the device. Raises OutOfMemoryError."""
        device = self.device
        made = empty(device, self.nbytes)
        if self.nbytes:
            with device.lock:
                mem = self.mem
                device.last = cl.enqueue_copy(device.use(device.host_queue), made.mem, mem, byte_count=self.nbytes)
        made.deferred_checks = self.deferred_checks
        return made

    def write(self, array: np.ndarray[Any, Any], at: int = 0) -> None:
        """Replace the contents, from the byte `at` on, by those of `array`, which may change afterwards.

        Waits for the commands before it, but on a device with memory of its own, where it is one more of them.
        """
        if array.nbytes:
            device = self.device
            with device.lock:
                queue, array = device.use(device.host_queue), np.ascontiguousarray(array)
                if device.ring is not None:
                    mem = self.mem                           # which may be waited for
                    device.last = device.ring.write(queue, mem, array, (), at)
                else:
                    cl.enqueue_copy(queue, self.mem, bits(array), dst_offset=at, is_blocking=True)


class _Wrapped(Buffer):
    """A Buffer that is a host array's memory: before it lets go of the array it waits for the commands that use it."""

    __slots__ = ("array", "may_change")
    borrowed = True

    def __init__(self, device: Device, mem: Any, array: np.ndarray[Any, Any]) -> None:
        super().__init__(device, mem, array.nbytes)
        self.array = array
        self.may_change = not frozen(array)

    def handle(self) -> None:
        """None: nobody writes a host array."""

    def window(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        return in_shape(self.array, shape, dtype)

    def __del__(self) -> None:
        with contextlib.suppress(cl.Error):
            self.device.finish()


_new = Buffer.__new__


class HostBuffer(Buffer):
    """A Buffer whose contents are still the numpy array `array`. The first command that needs `mem` has them uploaded, and lets it go."""

    __slots__ = ("_made", "array", "fits")                 # fits: an aval that the array was seen to have, or None
    array: np.ndarray[Any, Any] | None

    def __init__(self, device: Device, array: np.ndarray[Any, Any]) -> None:
        self.device, self.array, self.deferred_checks = device, array, ()
        self.fits: Any = None

    def __getattr__(self, name: str) -> Any:
        """What most never need, when it is first asked for: one is made for every small operation."""
        if name == "serial":
            self.serial = next(numbered)
            return self.serial
        if name == "_made":
            self._made: Buffer | None = None
            return None
        if name == "nbytes":
            array = self.array
            self.nbytes = self._made.nbytes if array is None else array.nbytes   # type: ignore[union-attr]
            return self.nbytes
        raise AttributeError(name)

    @property
    def mem(self) -> Any:
        if self._made is None:
            with self.device.lock:
                if self.array is not None:
                    self._made, self.array = upload(self.device, self.array), None
        return self._made.mem if self._made is not None else None

    def download(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        array = self.array
        if array is None:
            return super().download(shape, dtype)
        verify(self)
        return np.array(in_shape(array, shape, dtype), dtype, order="C")

    def view(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        if self.array is not None and not self.array.flags.c_contiguous:
            self.array = np.array(self.array, order="C")
        return super().view(shape, dtype)

    def contents(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        array = self.array
        return super().contents(shape, dtype) if array is None else in_shape(array, shape, dtype)

    def fetch(self, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray[Any, Any], cl.Event | None]:
        array = self.array
        return super().fetch(shape, dtype) if array is None else (in_shape(array, shape, dtype), None)

    def handle(self) -> Buffer | None:
        """As ever. Of an array that no command has needed yet it is one that will have memory of its own: nobody writes the array."""
        return self.copy() if self.array is not None else super().handle()

    def copy(self) -> Buffer:
        array = self.array
        if array is None:
            return super().copy()
        made = HostBuffer(self.device, array)               # neither writes it
        made.deferred_checks = self.deferred_checks
        return made


class _Uploaded(Buffer):
    """A Buffer whose contents come in the queue of transfers. The first command that needs `mem` waits for them; the host does not."""

    __slots__ = ("block", "lease")

    def __init__(self, device: Device, block: Block, lease: _Lease | None = None) -> None:
        self.device, self.nbytes, self.serial, self.block = device, block.nbytes, next(numbered), block
        self.deferred_checks = ()
        self.lease = lease or _Lease(device, block)

    @property
    def mem(self) -> Any:
        block = self.block
        if block.filled is not None:
            with self.device.lock:
                if block.filled is not None:
                    cl.enqueue_barrier(self.device.use(self.device.host_queue), wait_for=[block.filled])
                    block.filled = None
        return block.mem

    def handle(self) -> Buffer | None:
        made = _Uploaded(self.device, self.block, self.lease)
        made.serial, made.deferred_checks = self.serial, self.deferred_checks
        return made


class _Lease:
    """What all handles on a Block have: once none is left, the block goes back."""

    __slots__ = ("block", "device")

    def __init__(self, device: Device, block: Block) -> None:
        self.device, self.block = device, block

    def __del__(self) -> None:
        uploads = self.device.uploads
        if uploads is not None:
            uploads.give_back(self.block, self.device.last)


class _Mapping:
    """What an array of a Buffer's mapped memory has as its base. Whoever lets go of it, in whatever thread: it is unmapped under the

    device's lock, before the Buffer is let go of: nobody writes it until then.

    Unmapping is a command, and two threads with commands in one queue of PoCL's `basic` device may wait for each other for ever.
    """

    def __init__(self, buffer: Buffer, mapped: np.ndarray[Any, Any]) -> None:
        self.buffer, self.mapped = buffer, mapped
        self.__array_interface__ = mapped.__array_interface__

    def __del__(self) -> None:
        self.buffer.device.unmap(self.__dict__.pop("mapped"))


def empty(device: Device, nbytes: int) -> Buffer:
    """A Buffer of `nbytes` bytes with unspecified contents. Raises OutOfMemoryError, which leaves everything usable."""
    if nbytes >= LARGE_BLOCK and _exceeds(device, nbytes):
        make_room(device)
        if _exceeds(device, nbytes):
            raise _out_of_memory(device, nbytes)
    buffer = _new(Buffer)                      # every result of every launch is made here: without a call of __init__
    try:
        buffer.mem = device.pool.allocate(nbytes or MINIMUM)
        buffer.device, buffer.nbytes, buffer.serial, buffer.deferred_checks = device, nbytes, next(numbered), ()
        return buffer
    except (cl.Error, MemoryError):
        make_room(device)
    try:
        return Buffer(device, device.pool.allocate(nbytes or MINIMUM), nbytes)
    except (cl.Error, MemoryError):
        raise _out_of_memory(device, nbytes) from None


def upload(device: Device, array: np.ndarray[Any, Any]) -> Buffer:
    """A Buffer with a copy of `array`, which may change afterwards. Raises OutOfMemoryError."""
    array = np.ascontiguousarray(array)
    if 0 < array.nbytes <= SMALL_UPLOAD and device.traits.host_memory:
        try:
            return Buffer(device, cl.Buffer(device.context, _RW | cl.mem_flags.COPY_HOST_PTR, hostbuf=bits(array)), array.nbytes)
        except cl.Error:
            make_room(device)
    if array.nbytes >= APART and device.uploads is not None and device.ring is not None:
        return _apart(device, device.ring, device.uploads, array.nbytes, [(0, array)])
    buffer = empty(device, array.nbytes)
    buffer.write(array)
    return buffer


def leaving(value: Any) -> Leaving | None:
    """A large value on its way out of a device with memory of its own, through pinned memory; None of others. Nobody waits here."""
    device = value.device
    if device.in_host_memory or held(value) is not None or value.nbytes < APART:
        return None
    with device.lock:
        mem, queue = value.mem, device.use(device.active)
        marker = cl.enqueue_marker(queue)
        queue.flush()
        return Leaving(value, mem, marker)


def receive(device: Device, sent: Leaving) -> Buffer:
    """A Buffer with what left another device: a piece is written while the next one is read. Raises OutOfMemoryError."""
    if device.uploads is not None and device.ring is not None:
        return _apart(device, device.ring, device.uploads, sent.nbytes, sent.pieces())
    buffer = empty(device, sent.nbytes)
    for at, piece in sent.pieces():
        buffer.write(piece, at)
    return buffer


def _apart(device: Device, ring: Ring, uploads: Uploads, nbytes: int, pieces: Iterable[tuple[int, np.ndarray[Any, Any]]]) -> Buffer:
    """A new Buffer, written in the queue of transfers. What fails leaves the memory where it was."""
    with device.lock:
        block = _block(device, nbytes)
    awaited = block.awaited()
    try:
        for at, piece in pieces:
            with device.lock:
                block.filled = ring.write(uploads.queue, block.mem, piece, awaited, at)
            awaited = []                                     # the queue is in order
    except cl.Error as error:
        with contextlib.suppress(cl.Error):
            device.drain(uploads.queue)
        uploads.give_back(block, block.free)
        raise DeviceError(f"upload: {device.name} refused to copy {nbytes} bytes: {error}") from error
    block.free = None
    return _Uploaded(device, block)


def _block(device: Device, nbytes: int) -> Block:
    """Memory for what another queue than the device's writes. Hold the lock."""
    queue, uploads = device.use(device.host_queue), device.uploads
    assert uploads is not None
    block = uploads.take(nbytes)
    if block is None:                                        # of the pool, where any command enqueued so far may use it
        block = Block(empty(device, nbytes).mem, nbytes)
        block.free = cl.enqueue_marker(queue)
    queue.flush()                                            # what the transfer waits for has to begin
    uploads.trim(max(KEPT, device.memory // 8))
    return block


def linked(value: Any, target: Any) -> bool:
    """Whether `copy_to` can send a value to a device: from another one of the same context, whose memory it is in."""
    return value.device in target.peers and target.uploads is not None and held(value) is None and value.nbytes > 0


def copy_to(target: Device, value: Buffer) -> tuple[Buffer, cl.Event]:
    """A Buffer on another device of the same context with the contents, and the event of the copy. Nobody waits here: `target` does,
    before the first command that needs them. The copy waits for the commands so far of its own device, and for the memory to be free."""
    device = value.device
    with target.lock:
        block = _block(target, value.nbytes)
    with device.lock:                                        # never both at a time
        mem = value.mem
        queue = device.use(device.active)
        event = cl.enqueue_copy(queue, block.mem, mem, byte_count=value.nbytes, wait_for=block.awaited())
        block.filled, block.free, device.last = event, None, event
        queue.flush()
    made = _Uploaded(target, block)
    made.deferred_checks = value.deferred_checks
    return made, event


def host_buffer(device: Device, array: np.ndarray[Any, Any]) -> Buffer:
    """A Buffer with the contents of `array`, which nobody writes from now on. Nothing is asked of the driver before a kernel needs it."""
    return HostBuffer(device, array)


def held(value: Any) -> np.ndarray[Any, Any] | None:
    """The array that a Buffer of `host_buffer` still is; None for others, and once a kernel has needed it."""
    return value.array if type(value) is HostBuffer else None


def wrap(device: Device, array: np.ndarray[Any, Any]) -> Buffer:
    """A Buffer that is `array`'s own memory (3 us at any size). The device reads it and never writes it; what others write to it shows.

    Ask `obstacle` first.
    """
    if not array.nbytes:
        return empty(device, 0)
    return _Wrapped(device, cl.Buffer(device.context, cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR, hostbuf=bits(array)), array)


def obstacle(device: Device, array: np.ndarray[Any, Any]) -> str:
    """Why `array` cannot become a Buffer of `device` as it is, in words; "" if it can."""
    if not array.nbytes:
        return ""
    if not device.in_host_memory:
        return f"{device.name} has memory of its own"
    if not array.flags.c_contiguous:
        return "the array is not contiguous (in C's order)"
    if not array.flags.aligned or array.ctypes.data % device.host_alignment:
        return f"the array starts at {array.ctypes.data:#x}, not at a multiple of {max(array.itemsize, device.host_alignment)} bytes"
    return ""


def make_room(device: Device) -> None:
    """Give back what can be had again: storage that idle executables hold, garbage, and the pool's free blocks."""
    for cache in list(device.caches):
        cache.release()
    gc.collect()
    if device.uploads is not None:
        with device.lock:
            device.uploads.trim(0)
    device.finish()
    with device.lock:
        device.mapped.clear()                                # or the driver would keep those blocks
    device.pool.free_held()


def _exceeds(device: Device, nbytes: int) -> bool:
    """Whether a *new* block of `nbytes` would not fit beside what the pool manages."""
    pool = device.pool
    return nbytes > device.max_buffer or int(pool.managed_bytes) + nbytes > device.memory


def _out_of_memory(device: Device, nbytes: int) -> OutOfMemoryError:
    gib = float(1 << 30)
    return OutOfMemoryError(
        f"out of memory: {nbytes} bytes ({nbytes / gib:.2f} GiB) wanted on {device.name}, which has {device.memory / gib:.2f} GiB, "
        f"{int(device.pool.active_bytes) / gib:.2f} GiB of it in use, and takes at most {device.max_buffer / gib:.2f} GiB a buffer; "
        "drop tensors that are no longer needed, or use smaller batches"
    )
