"""When each launch of a plan ran: the plan, run again on a queue that records times. Start at `record`.

The normal path's queues do not record times, and stay as they are: a recording has an Executable, a queue and outputs of its own.
What the plan updates in place is a copy. Host steps are called again, as in any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import pyopencl as cl

from tracegrad.runtime.buffer import Buffer, empty
from tracegrad.runtime.device import Device
from tracegrad.runtime.launch import Executable
from tracegrad.support.plan import HostStart, HostStep, HostWait, Plan


@dataclass(frozen=True)
class Span:
    """One launch, or one host step, of one run: nanoseconds since the run began.

    number: which of the plan's launches, or of its host steps (see `Plan.each`), counting those in loops once. queued: when the
    launch was enqueued (a host step: when it began). Of a call that goes on beside the device (a HostStart): from when its operands
    were on the host, and the call before it was done, to when its results were there.
    """

    host: bool
    number: int
    queued: int
    start: int
    end: int


def record(executable: Executable, inputs: Sequence[Buffer], runs: int) -> list[list[Span]]:
    """The spans of `runs` runs (one more comes before them), in order, on `inputs` and the scalars of the executable's latest run."""
    return _Recording(executable, inputs).runs(runs)


class _Recording:
    def __init__(self, executable: Executable, given: Sequence[Buffer]) -> None:
        self.plan: Plan = executable.plan
        self.device: Device = executable.device
        self.twin = Executable(self.plan, self.device)
        self.twin.take_scalars(executable)
        self.given = given
        self.inputs = [empty(self.device, b.nbytes) if i in self.twin.written else b for i, b in enumerate(given)]
        side = self.device.cl_basic if executable.small and self.device.cl_basic is not None else self.device.cl_device
        self.queue = cl.CommandQueue(self.device.context, side, cl.command_queue_properties.PROFILING_ENABLE)
        self.host_numbers = {id(step): i for i, step in enumerate(s for s, _ in self.plan.each() if isinstance(s, HostStep))}

    def runs(self, count: int) -> list[list[Span]]:
        items, buffers = self.twin.bind(self.inputs)
        self.buffers = buffers
        found = [self._run(items) for _ in range(count + 1)]
        with self.device.lock:
            self.device.use(self.device.queue)             # waits for the recording's queue
        return found[1:]                                   # the first finds cold caches and threads asleep

    def _run(self, items: Sequence[Any]) -> list[Span]:
        with self.device.lock:
            queue = self.device.use(self.queue)
            for own, given in zip(self.inputs, self.given, strict=True):
                if own is not given and given.nbytes:
                    cl.enqueue_copy(queue, own.mem, given.mem, byte_count=given.nbytes)
            queue.finish()
        self.spans: list[Span] = []
        self.calls: list[tuple[int, int, Any]] = []        # that the host began: number, when, and what is called for the results
        self.events: list[tuple[int, int, cl.Event]] = []  # number, when it was enqueued, event
        self.began = perf_counter_ns()
        self._walk(items)
        self._collect()
        self.spans += [Span(True, number, queued, call.began - self.began, call.ended - self.began) for number, queued, call in self.calls]
        return sorted(self.spans, key=lambda s: s.start)

    def _walk(self, items: Sequence[Any]) -> None:
        for item in items:
            if isinstance(item, HostStart):
                queued = perf_counter_ns() - self.began
                self.twin.begin(item, self.buffers, self.queue)
                self.calls.append((self.host_numbers[id(item)], queued, self.twin.begun[item.outputs[0]]))
            elif isinstance(item, HostStep):
                if not isinstance(item, HostWait):
                    self._collect()
                start = perf_counter_ns() - self.began
                self.twin.call_host(item, self.buffers)
                self.spans.append(Span(True, self.host_numbers[id(item)], start, start, perf_counter_ns() - self.began))
            elif isinstance(item, tuple):
                kernel, size, local, number = item
                with self.device.lock:
                    queued = perf_counter_ns() - self.began
                    event = cl.enqueue_nd_range_kernel(self.device.use(self.queue), kernel, size, local)
                self.events.append((number, queued, event))
            else:
                for _ in item.iterations():
                    self._walk(item.items)

    def _collect(self) -> None:
        """Wait for the launches so far, and note their times.

        The device has a clock of its own. By the host's, no launch began before it was enqueued, and the last ended before the wait did.
        """
        if not self.events:
            return
        with self.device.lock:
            self.device.use(self.queue).finish()
        now = perf_counter_ns() - self.began
        times = [(number, queued, event.profile.start, event.profile.end) for number, queued, event in self.events]
        offset = min(now - times[-1][3], max(queued - start for _, queued, start, _ in times))
        self.spans += [Span(False, number, queued, start + offset, end + offset) for number, queued, start, end in times]
        self.events.clear()


def own_times(spans: Sequence[Span]) -> Iterator[tuple[tuple[bool, int], int, int]]:
    """((host, number), how often, nanoseconds in all) of each launch and host step of one run, in the order of their first."""
    found: dict[tuple[bool, int], list[int]] = {}
    for span in spans:
        found.setdefault((span.host, span.number), []).append(span.end - span.start)
    for key, times in found.items():
        yield key, len(times), int(np.sum(times))
