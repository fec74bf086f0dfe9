"""torch.profiler: how long blocks of a program take, which `record_function` names. Start at `profile`.

Work is deferred and fused, so there are no times of single operators here; `tg.trace(f).profile()` has those of kernels.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum, auto
from pathlib import Path
from typing import Any, Self

from tracegrad.execute.deferred import synchronize
from tracegrad.torch_api.names.autograd.profiler_util import EventList, FunctionEvent


class ProfilerActivity(Enum):
    """What torch's profiler would record."""

    CPU, XPU, MTIA, CUDA, HPU, PrivateUse1 = auto(), auto(), auto(), auto(), auto(), auto()


class ProfilerAction(Enum):
    """What a step of a schedule does."""

    NONE, WARMUP, RECORD, RECORD_AND_SAVE = 0, 1, 2, 3


def supported_activities() -> set[ProfilerActivity]:
    return {ProfilerActivity.CPU}


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0,
             skip_first_wait: int = 0) -> Callable[[int], ProfilerAction]:
    """Cycles of steps: `wait` that are left out, `warmup`, and `active` that are recorded; repeat: how many cycles, 0: on and on."""
    def action(step: int) -> ProfilerAction:
        step -= skip_first - (wait if skip_first_wait else 0)
        cycle, step = divmod(step, wait + warmup + active)
        if cycle < 0 or (repeat and cycle >= repeat) or step < wait:
            return ProfilerAction.NONE
        if step < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if step < wait + warmup + active - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


class _Threads(threading.local):
    def __init__(self) -> None:
        self.open: list[FunctionEvent] = []


_threads = _Threads()
_recording: list[profile] = []


class record_function:
    """A block with a name, or a decorator. While a profiler records, the block ends when its work is done."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name

    def __enter__(self) -> Self:
        if _recording:
            synchronize()
            _threads.open.append(FunctionEvent(self.name, time.perf_counter() * 1e6, thread=threading.get_ident()))
        return self

    def __exit__(self, *_: Any) -> None:
        if not _threads.open or _threads.open[-1].name != self.name:
            return                                          # no profiler recorded when it began
        synchronize()
        event = _threads.open.pop()
        event.cpu_time_total = time.perf_counter() * 1e6 - event.start
        if _threads.open:
            _threads.open[-1].inside += event.cpu_time_total
        for recorder in _recording:
            recorder._events.append(event)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with record_function(self.name):
                return fn(*args, **kwargs)

        return wrapped


class profile:
    """A block in which named blocks are timed, and with `schedule` steps (see `step`).

    on_trace_ready: called with the profiler when a cycle of the schedule ends, or the block. Other arguments ask for what is not recorded
    here: shapes, memory, stacks, flops, single operators, and times of the device apart from the program's.
    """

    def __init__(self, enabled: bool = True, *, activities: Iterable[Any] | None = None,
                 schedule: Callable[[int], ProfilerAction] | None = None,
                 on_trace_ready: Callable[[profile], Any] | None = None, **_: Any) -> None:
        self._enabled, self._schedule, self._ready = enabled, schedule, on_trace_ready
        self._events = EventList()
        self.step_num = 0
        self._step: record_function | None = None

    def _action(self) -> ProfilerAction:
        return self._schedule(self.step_num) if self._schedule is not None else ProfilerAction.RECORD

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def start(self) -> None:
        if self._enabled:
            self._begin()

    def _begin(self) -> None:
        if self._action().value < ProfilerAction.RECORD.value:
            return
        if self not in _recording:
            self._events = EventList()
            _recording.append(self)
        if self._schedule is not None:
            self._step = record_function(f"ProfilerStep#{self.step_num}").__enter__()

    def _end(self) -> None:
        if self._step is not None:
            self._step.__exit__()
            self._step = None

    def _done(self) -> None:
        if self in _recording:
            _recording.remove(self)
            if self._ready is not None:
                self._ready(self)

    def step(self) -> None:
        """The next step of the schedule begins."""
        if not self._enabled:
            return
        self._end()
        ended = self._action() is ProfilerAction.RECORD_AND_SAVE
        self.step_num += 1
        if ended:
            self._done()
        self._begin()

    def stop(self) -> None:
        self._end()
        self._done()

    def events(self) -> EventList:
        return self._events

    def key_averages(self, *_: Any, **__: Any) -> EventList:
        """The blocks by their names."""
        return self._events.key_averages()

    def table(self, *args: Any, **options: Any) -> str:
        return self._events.table(*args, **options)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        self._events.export_chrome_trace(path)

    def add_metadata(self, key: str, value: str) -> None:
        """Nothing."""

    add_metadata_json = add_metadata


def tensorboard_trace_handler(dir_name: str, worker_name: str | None = None, use_gzip: bool = False) -> Callable[[profile], None]:
    """For `on_trace_ready`: a file for each trace in a folder."""
    def handler(of: profile) -> None:
        os.makedirs(dir_name, exist_ok=True)
        of.export_chrome_trace(Path(dir_name) / f"{worker_name or os.getpid()}.{time.time_ns()}.pt.trace.json")

    return handler


def kineto_available() -> bool:
    """False."""
    return False
