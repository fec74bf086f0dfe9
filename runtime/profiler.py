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
    were on the host, and the call before it was done, to when its results were there. part: of several devices, the plan's number.
    """

    host: bool
    number: int
    queued: int
    start: int
    end: int
    part: int = 0


def record(executable: Executable, inputs: Sequence[Buffer], runs: int) -> list[list[Span]]:
    """The spans of `runs` runs (one more comes before them), in order, on `inputs` and the scalars of the executable's latest run."""
    recording = Recording(executable)
    device, queue = recording.device, recording.own_queue()
    own = [empty(device, b.nbytes) if i in recording.twin.written else b for i, b in enumerate(inputs)]
    recording.bind(own)
    found = []
    for _ in range(runs + 1):
        with device.lock:
            device.use(queue)
            for copy, given in zip(own, inputs, strict=True):
                if copy is not given and given.nbytes:
                    cl.enqueue_copy(queue, copy.mem, given.mem, byte_count=given.nbytes)
            device.drain(queue)
        recording.launch(queue, perf_counter_ns())
        found.append(sorted(recording.spans(), key=lambda s: s.start))
    with device.lock:
        device.use(device.queue)                           # waits for the recording's queue
    return found[1:]                                       # the first finds cold caches and threads asleep


class Recording:
    """A plan, launched on a queue that records times: `bind` inputs, `launch`, and `spans` waits. part: its number among several."""

    def __init__(self, executable: Executable, part: int = 0) -> None:
        self.plan: Plan = executable.plan
        self.device: Device = executable.device
        self.small, self.part = executable.small, part
        self.twin = Executable(self.plan, self.device)
        self.twin.take_scalars(executable)
        self.host_numbers = {id(step): i for i, step in enumerate(s for s, _ in self.plan.each() if isinstance(s, HostStep))}
        self.events: list[Timed] = []

    def own_queue(self) -> cl.CommandQueue:
        """A queue like the one that the plan runs on."""
        side = self.device.cl_basic if self.small and self.device.cl_basic is not None else self.device.cl_device
        return cl.CommandQueue(self.device.context, side, cl.command_queue_properties.PROFILING_ENABLE)

    def bind(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Use these inputs; the outputs that there will be."""
        self.items, self.buffers = self.twin.bind(inputs)
        return [self.buffers[i] for i in self.plan.outputs]

    def launch(self, queue: cl.CommandQueue, began: int) -> None:
        """Enqueue the plan; only host steps wait. began: when the run did, by `perf_counter_ns`."""
        self.queue, self.began = queue, began
        self.found: list[Span] = []
        self.calls: list[tuple[int, int, Any]] = []        # that the host began: number, when, and what is called for the results
        self._walk(self.items)
        with self.device.lock:
            self.device.use(queue).flush()                 # else it may begin when somebody waits, behind other devices

    def spans(self) -> list[Span]:
        """What ran when, once it has."""
        self._collect()
        calls = [(number, queued, call.began - self.began, call.ended - self.began) for number, queued, call in self.calls]
        return [*self.found, *(Span(True, *times, self.part) for times in calls)]

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
                self.found.append(Span(True, self.host_numbers[id(item)], start, start, perf_counter_ns() - self.began, self.part))
            elif isinstance(item, tuple):
                kernel, size, local, number = item
                with self.device.lock:
                    queued = perf_counter_ns() - self.began
                    event = cl.enqueue_nd_range_kernel(self.device.use(self.queue), kernel, size, local)
                    self.device.last = event
                self.events.append((number, queued, event))
            else:
                for _ in item.iterations():
                    self._walk(item.items)

    def _collect(self) -> None:
        """Wait for the launches so far, and note their times."""
        if self.events:
            self.found += [Span(False, *times, self.part) for times in by_host_clock(self.device, self.queue, self.events, self.began)]
            self.events.clear()


Timed = tuple[int, int, Any]                               # a number, when a command was enqueued, and its event


def by_host_clock(device: Device, queue: cl.CommandQueue, events: Sequence[Timed], began: int) -> list[tuple[int, int, int, int]]:
    """(number, queued, start, end) of commands in nanoseconds since `began`, once they have run.

    The device has a clock of its own. By the host's, no command was enqueued, as the device says, before the host did, and the last ended
    before the wait for it did.
    """
    with device.lock:
        device.drain(device.use(queue))
    now = perf_counter_ns() - began
    times = [(number, queued, event.profile.start, event.profile.end) for number, queued, event in events]
    offset = min(now - max(end for *_, end in times), max(queued - event.profile.queued for _, queued, event in events))
    return [(number, queued, start + offset, end + offset) for number, queued, start, end in times]


Key = tuple[int, bool, int]                                # part, whether it is a host step, number: see `Span`


def own_times(spans: Sequence[Span]) -> Iterator[tuple[Key, int, int]]:
    """(what, how often, nanoseconds in all) of each launch and host step of one run, in the order of their first."""
    found: dict[Key, list[int]] = {}
    for span in spans:
        found.setdefault((span.part, span.host, span.number), []).append(span.end - span.start)
    for key, times in found.items():
        yield key, len(times), int(np.sum(times))
