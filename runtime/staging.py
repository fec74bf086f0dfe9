"""To and from a device with memory of its own, by way of pinned host memory. Start at `Ring` for writes, at `Leaving` for reads.

A driver copies what it is given from ordinary memory in two steps, and the caller waits for both, and for every kernel before them. Here
a piece of the array is copied into memory that the device can fetch from by itself, and its transfer is enqueued: while it runs the host
copies the next piece, or goes on. A piece of the ring is used again once its transfer is done.

What is written into a buffer that there is goes to the queue of the kernels, behind those that use it. A new array of `APART` bytes and
more goes to a queue of its own, so that the next batch comes while kernels of the running plan compute. Two events keep the order: the
transfer waits for the last command that may use the memory (`Block.free`), and the first command that uses the buffer waits for the
transfer (`Block.filled`). Memory of such arrays is kept for the next ones of the same size (`Uploads`): that of the batch before last is
free when the next one comes, while the pool's may be in use by the plan that has just been enqueued. What another device of the same
context sends goes into such memory, too, by a command of that device's queue (`buffer.copy_to`).

What goes to a device of another context is read piece by piece (`Leaving`), beside the kernels that were enqueued later: while one piece is
read, the one before it is written.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyopencl as cl
from pyopencl._cl import PooledBuffer

from tracegrad.support.dtypes import dtype_kind

PIECES, PIECE = 8, 1 << 20             # how many pieces, and bytes of each
APART = 1 << 16                        # bytes from which on a new array's transfer is worth a queue and two events
SPARE = 3                              # blocks of a size: the running plan's, the next one's, and one for the array that comes
KEPT = 1 << 28                         # bytes of memory that are kept for arrays to come, or an eighth of the device's
SPARE_PINNED = 1 << 26                 # bytes of pinned memory that are kept for what leaves next


class Ring:
    """Pinned host memory of a context, for the commands of its queues. Whoever uses it holds the device's lock."""

    def __init__(self, context: cl.Context, queue: cl.CommandQueue, pieces: int = PIECES, piece: int = PIECE) -> None:
        self.piece = piece
        self._pieces: list[Any] = list(_pinned(context, queue, pieces * piece).reshape(pieces, piece))
        self._transfers: list[Any] = [None] * pieces
        self._next = 0

    def write(self, queue: cl.CommandQueue, mem: Any, array: np.ndarray[Any, Any], after: Sequence[Any] = (), at: int = 0) -> Any:
        """Enqueue that `mem` gets the bytes of `array`, which is contiguous and may change afterwards; after: events to wait for before.
        at: the first byte that is written.

        Returns the last transfer's event.
        """
        given = array.reshape(-1).view(np.uint8)
        wait_for = list(after)
        event = None
        for start in range(0, given.size, self.piece):
            part = given[start : start + self.piece]
            own = self._next
            self._next = (own + 1) % len(self._pieces)
            if self._transfers[own] is not None:
                self._transfers[own].wait()
            pinned = self._pieces[own][: part.size]
            pinned[:] = part
            event = cl.enqueue_copy(queue, mem, pinned, dst_offset=at + start, is_blocking=False, wait_for=wait_for)
            self._transfers[own] = event
            wait_for = []                                    # the queue is in order
        queue.flush()
        return event


def ring_of(context: cl.Context, queue: cl.CommandQueue) -> Ring | None:
    """A ring of a context; None where the driver can pin no memory."""
    try:
        return Ring(context, queue)
    except cl.Error:
        return None


def _pinned(context: cl.Context, queue: cl.CommandQueue, nbytes: int) -> np.ndarray[Any, Any]:
    """Host memory that devices of a context fetch from, and write to, by themselves: mapped as long as the array is there."""
    memory = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, nbytes)
    both: Any = cl.map_flags.READ | cl.map_flags.WRITE
    mapped, _ = cl.enqueue_map_buffer(queue, memory, both, 0, (nbytes,), np.dtype(np.uint8), is_blocking=True)
    return np.asarray(mapped)


class Pinned:
    """Pinned blocks of a context for what leaves: a power of two of bytes each. Free ones are kept, up to `SPARE_PINNED` bytes."""

    def __init__(self, context: cl.Context, queue: cl.CommandQueue) -> None:
        self._context, self._queue = context, queue
        self._free: dict[int, list[np.ndarray[Any, Any]]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> np.ndarray[Any, Any]:
        """A block of so many bytes or more. Where the driver has none it is ordinary memory, into which reads are slower."""
        size = 1 << (nbytes - 1).bit_length()
        with self._lock:
            if free := self._free.get(size):
                self._bytes -= size
                return free.pop()
        try:
            return _pinned(self._context, self._queue, size)
        except cl.Error:
            return np.empty(size, np.uint8)

    def give_back(self, block: np.ndarray[Any, Any]) -> None:
        """Nobody needs a block any more, nor does a command."""
        with self._lock:
            if self._bytes + block.size <= SPARE_PINNED:
                self._bytes += block.size
                self._free.setdefault(block.size, []).append(block)


class Leaving:
    """The contents of a Buffer as they are behind `marker`, on their way to the host: `pieces` gives them as they come, eight at most.

    The reads are in a queue of their own. Until they are done this holds the Buffer, so that nobody writes its memory.
    """

    def __init__(self, buffer: Any, mem: Any, marker: cl.Event) -> None:
        self.buffer, self.nbytes, device = buffer, buffer.nbytes, buffer.device
        self.events: list[Any] = []
        self._pinned: Pinned = device.pinned
        self._block = self._pinned.take(self.nbytes)
        self._piece = PIECE * -(-self.nbytes // (PIECES * PIECE))
        for start in range(0, self.nbytes, self._piece):
            part = self._block[start : min(start + self._piece, self.nbytes)]
            self.events.append(cl.enqueue_copy(device.downloads, part, mem, src_offset=start, is_blocking=False, wait_for=[marker]))
        device.downloads.flush()

    def pieces(self) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """(where it begins, the bytes) of each piece, once it is there. They are not to be used after this object is gone."""
        for k, event in enumerate(self.events):
            event.wait()
            start = k * self._piece
            yield start, self._block[start : min(start + self._piece, self.nbytes)]

    def __del__(self) -> None:
        with contextlib.suppress(cl.Error):
            for event in self.events:
                event.wait()
            self._pinned.give_back(self._block)


class Block:
    """Memory of an array that was written in the queue of transfers."""

    __slots__ = ("filled", "free", "mem", "nbytes")

    def __init__(self, mem: Any, nbytes: int) -> None:
        self.mem, self.nbytes = mem, nbytes
        self.filled: Any = None        # the event of its transfer, until the queue of kernels waits for it
        self.free: Any = None          # of the last command that may use it, when it is nobody's any more

    def awaited(self) -> list[Any]:
        """What whoever writes it anew waits for: its last use, and the last transfer, if nobody ever used it."""
        return [event for event in (self.free, self.filled) if event is not None]

    def in_use(self) -> bool:
        """Whether that command has not run yet."""
        return self.free is not None and self.free.command_execution_status > cl.command_execution_status.COMPLETE


class Uploads:
    """The queue of transfers, and the blocks that wait for the next array of their size. Whoever uses it holds the device's lock.

    `give_back` alone needs no lock: buffers are dropped in any thread, and anywhere.
    """

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.queue = queue
        self._given: deque[Block] = deque()
        self._blocks: dict[int, deque[Block]] = {}           # by bytes, the longest unused first
        self._bytes = 0

    def take(self, nbytes: int) -> Block | None:
        """The block of that size that nobody has needed for the longest time; None if another one should be made.

        That is so while all that there are, if they are few, are in use by kernels: the next array would come behind these.
        """
        while self._given:
            block = self._given.popleft()
            self._blocks.setdefault(block.nbytes, deque()).append(block)
            self._bytes += block.nbytes
        found = self._blocks.get(nbytes)
        if not found or (len(found) < SPARE and found[0].in_use()):
            return None
        self._bytes -= nbytes
        return found.popleft()

    def give_back(self, block: Block, last: Any) -> None:
        """Nobody needs the block; last: the event of the last command of the kernels' queue."""
        block.free = last
        self._given.append(block)

    def trim(self, most: int) -> None:
        """Let go of blocks until they have `most` bytes. Whoever gets their memory next enqueues behind the kernels that use it."""
        self.take(-1)
        for nbytes in list(self._blocks):
            blocks = self._blocks[nbytes]
            while blocks and self._bytes > most:
                block = blocks.popleft()
                self._bytes -= nbytes
                if block.filled is not None:                 # no kernel's command waits for its transfer
                    with contextlib.suppress(cl.Error):
                        block.filled.wait()
            if not blocks:
                del self._blocks[nbytes]


class Arrival:
    """A copy of a Buffer's contents that comes when `marker` is passed: call it, in any thread, and it waits. See Buffer.arriving.

    Until then it holds the Buffer: its memory is nobody else's, and is not written in place.
    """

    def __init__(self, buffer: Any, marker: cl.Event, mem: Any, array: np.ndarray[Any, Any]) -> None:
        self._lock, self._array = threading.Lock(), array
        self._source: Any = (buffer, marker, mem) if array.size else None

    def __call__(self) -> np.ndarray[Any, Any]:
        with self._lock:
            if self._source is not None:
                buffer, marker, mem = self._source
                marker.wait()
                cl.enqueue_copy(buffer.device.downloads, bits(self._array), mem, is_blocking=True)
                self._source = None
        return self._array


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array as others take it: bfloat16, for which numpy has no buffers, as integers."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array


def in_shape(array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An array in another shape; complex numbers as pairs of real ones, or these as complex ones, if `dtype` says so."""
    if array.dtype != dtype and "c" in (dtype_kind(array.dtype), dtype_kind(np.dtype(dtype))):
        array = array.reshape(-1).view(dtype)
    return array.reshape(shape)


def of_dtype(array: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """An array that was made by numpy's interface, which does not tell of bfloat16."""
    return array if array.dtype == dtype else array.view(dtype)


class View:
    """What a read-only array of a buffer's memory has as its base: it ends the mapping before it lets go of the buffer."""

    def __init__(self, buffer: Any, mapped: np.ndarray[Any, Any]) -> None:
        self.mapped, self.buffer = mapped, buffer
        self.__array_interface__ = mapped.__array_interface__


class Placed:
    """What an array of a buffer's memory has as its base where that is a block of the pool: it holds the buffer. at: see `address`.

    strides: in bytes, where the array is not row by row. shown: whether the array was given away, and nobody writes the memory any more.
    """

    shown = False

    def __init__(self, buffer: Any, at: int, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...] | None = None) -> None:
        self.buffer = buffer
        self.__array_interface__ = {"version": 3, "data": (at, False), "shape": shape, "typestr": dtype.str, "strides": strides}


def address(device: Any, queue: cl.CommandQueue, mem: Any) -> int:
    """Where a block of the pool is, on a device that computes in the host's memory: mapped once, for as long as the pool has it.

    Hold the lock. What commands write is there when the queue is finished (capabilities.host_alignment is about drivers where it is not).
    With `device.host_writes` it may be written, too, before the next one is enqueued.
    """
    found = device.mapped.get(mem.int_ptr)
    if found is None:
        size = mem.get_info(cl.mem_info.SIZE)
        flags: Any = cl.map_flags.READ
        if device.host_writes:
            flags |= cl.map_flags.WRITE
        array, _ = cl.enqueue_map_buffer(queue, mem, flags, 0, (size,), np.dtype(np.uint8), is_blocking=True)
        found = device.mapped[mem.int_ptr] = array.__array_interface__["data"][0], array
    return found[0]  # type: ignore[no-any-return]


def addresses(device: Any, blocks: Sequence[Any]) -> list[int]:
    """`address` of several blocks, once the commands so far have run."""
    with device.lock:
        queue = device.use(device.host_queue)
        device.drain(queue)
        return [address(device, queue, mem) for mem in blocks]


def shown(buffer: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A read-only array of the memory that a buffer has as `array`: the same one, if it holds the buffer already."""
    base: Any = array.base
    if isinstance(base, Placed) and base.buffer is buffer:
        base.shown, array.flags.writeable = True, False
        return array
    out = np.asarray(View(buffer, array))
    out.flags.writeable = False
    return of_dtype(out, array.dtype)


def frozen(array: np.ndarray[Any, Any]) -> bool:
    """Whether nobody is expected to write `array`'s memory: it and all that it is a view of are read-only.

    A read-only view of a writable array is not enough, and of an owner that does not tell (a DLPack capsule) nothing is known.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    while isinstance(owner, memoryview):
        owner = owner.obj                  # a read-only memoryview may be one of a bytearray
    if owner is None:
        return True
    if isinstance(owner, View) or (isinstance(owner, Placed) and owner.shown):
        return not owner.buffer.may_change
    try:
        return memoryview(owner).readonly
    except TypeError:
        return False


def write_over(
    device: Any, buffers: Sequence[Any], layouts: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], write: Callable[[list[Any]], None],
) -> None:
    """Have `write` write over the memory of Buffers, on a device that computes in the host's: it gets arrays of these shapes and dtypes."""
    if device.host_writes and all(type(buffer.mem) is PooledBuffer for buffer in buffers):
        write([buffer.contents(*layout) for buffer, layout in zip(buffers, layouts, strict=True)])
        return
    arrays, maps = [], []
    for buffer, (shape, dtype) in zip(buffers, layouts, strict=True):
        with device.lock:
            queue = device.use(device.host_queue)
            array, _ = cl.enqueue_map_buffer(queue, buffer.mem, cl.map_flags.WRITE, 0, shape, dtype, is_blocking=True)
        arrays.append(np.asarray(array))
        maps.append(array.base)
    try:
        write(arrays)
    finally:
        for region in maps:
            with device.lock:
                region.release(device.use(device.host_queue))
