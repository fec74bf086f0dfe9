"""One thread that compiles what will soon be needed. Start at `in_background`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

_pool: list[Any] = []               # the thread's executor, once there was something to do


class Job:
    """A call that the thread makes. `result` waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  (few processes compile in a thread)

        if not _pool:
            _pool.append(ThreadPoolExecutor(1, "tracegrad-compile"))
        self._call = call
        self._future = _pool[0].submit(self._made)

    def _made(self) -> Any:
        # While Python ends nothing is begun: a driver's compiler must not run while the process is taken down.
        return self._call() if threading.main_thread().is_alive() else None

    def result(self) -> Any:
        """What the call returned; None if it raised: whoever needs it makes it himself then, where the user can be told."""
        with contextlib.suppress(Exception):
            # If it has not begun, there is no need to wait for those before it.
            return self._call() if self._future.cancel() else self._future.result()
        return None


def in_background(call: Callable[[], Any]) -> Job:
    """A Job for `call`, on its way."""
    return Job(call)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.clear)         # its thread did not come along
