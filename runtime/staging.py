"""Writes to a device with memory of its own, by way of pinned host memory and without waiting. Start at `Ring`.

A driver copies what it is given from ordinary memory in two steps, and the caller waits for both, and for every kernel before them. Here
a piece of the array is copied into memory that the device can fetch from by itself, and its transfer is enqueued behind the commands that
are there: while it runs the host copies the next piece, or goes on. A piece of the ring is used again once its transfer is done.

The transfers are in the queue of the kernels. A queue of their own could run beside kernels, but memory goes back to the pool while
commands that use it are in flight (see `buffer`): what is written next may be what a kernel still reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

PIECES, PIECE = 8, 1 << 20             # how many pieces, and bytes of each


class Ring:
    """Pinned host memory of a context, for the commands of its queues. Whoever uses it holds the device's lock."""

    def __init__(self, context: cl.Context, queue: cl.CommandQueue, pieces: int = PIECES, piece: int = PIECE) -> None:
        self.piece = piece
        self._memory = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, pieces * piece)
        shape, byte = (pieces, piece), np.dtype(np.uint8)
        mapped, _ = cl.enqueue_map_buffer(queue, self._memory, cl.map_flags.WRITE, 0, shape, byte, is_blocking=True)
        self._pieces: list[Any] = list(np.asarray(mapped))
        self._transfers: list[Any] = [None] * pieces
        self._next = 0

    def write(self, queue: cl.CommandQueue, mem: Any, array: np.ndarray[Any, Any]) -> None:
        """Enqueue that `mem` gets the bytes of `array`, which is contiguous and may change afterwards."""
        given = array.reshape(-1).view(np.uint8)
        for start in range(0, given.size, self.piece):
            part = given[start : start + self.piece]
            at = self._next
            self._next = (at + 1) % len(self._pieces)
            if self._transfers[at] is not None:
                self._transfers[at].wait()
            pinned = self._pieces[at][: part.size]
            pinned[:] = part
            self._transfers[at] = cl.enqueue_copy(queue, mem, pinned, dst_offset=start, is_blocking=False)
        queue.flush()
