"""A bar in a terminal or notebook that tells what is being compiled, once that takes a second. Start at `progress`.

It is drawn by rich, where that is installed (the extra `demo` has it), to stderr, and gone when the work is done. Logs and pipes get
nothing; TRACEGRAD_PROGRESS=0 turns it off.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tracegrad.config import config

AFTER = 1.0                                # seconds of work before there is something to see


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """While a block runs: a bar named `what`. Yields what the block calls with how many of `total` are done since.

    total: None where nobody knows how many parts there are.
    """
    if not _wanted():
        yield lambda done: None
        return
    bar = _Bar(what, total)
    timer = threading.Timer(AFTER, bar.show)
    timer.daemon = True
    timer.start()
    try:
        yield bar.advance
    finally:
        timer.cancel()
        bar.close()


def _wanted() -> bool:
    """Whether somebody looks: not at what other threads compile, which nobody waits for."""
    if not config.progress or threading.current_thread() is not threading.main_thread():
        return False
    terminal = getattr(sys.stderr, "isatty", None)
    return "ipykernel" in sys.modules or bool(terminal and terminal())


class _Bar:
    """One line: what it is about, the bar, how many of how many, and the seconds."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0
        self._drawn: Any = None
        self._task: Any = None
        self._closed = False
        self._lock = threading.Lock()

    def show(self) -> None:
        """Draw it from now on. (Called by the timer's thread.)"""
        try:
            from rich import progress as rich  # noqa: PLC0415  (few programs compile for a second, and rich is an extra)
            from rich.console import Console  # noqa: PLC0415
        except ImportError:
            return
        with self._lock:
            if self._closed:
                return
            with contextlib.suppress(Exception):           # another bar of the program's own is on the screen
                drawn = rich.Progress(rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(),
                                      rich.TimeElapsedColumn(), console=Console(stderr=True), transient=True)
                drawn.start()
                self._drawn, self._task = drawn, drawn.add_task(self.what, total=self.total, completed=self.done)

    def advance(self, done: int) -> None:
        """Some more parts are done."""
        with self._lock:
            self.done += done
            if self._drawn is not None:
                self._drawn.advance(self._task, done)

    def close(self) -> None:
        """Take it off the screen."""
        with self._lock:
            self._closed = True
            if self._drawn is not None:
                self._drawn.stop()
