"""What a buffer has, on its way to the host while other commands run: `Arrival`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyopencl as cl


class Arrival:
    """A copy of a Buffer's contents that comes when `marker` is passed: call it, in any thread, and it waits. See Buffer.arriving."""

    def __init__(self, queue: cl.CommandQueue, marker: cl.Event, mem: Any, array: np.ndarray[Any, Any]) -> None:
        self._lock, self._array = threading.Lock(), array
        self._source: Any = (queue, marker, mem) if array.size else None

    def __call__(self) -> np.ndarray[Any, Any]:
        with self._lock:
            if self._source is not None:
                queue, marker, mem = self._source
                marker.wait()
                cl.enqueue_copy(queue, bits(self._array), mem, is_blocking=True)
                self._source = None
        return self._array


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array as others take it: bfloat16, for which numpy has no buffers, as integers."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array
