"""A compiled program run again on queues that record times, on one device or on several. Start at `recorded`.

It gets the arguments of its latest call. What it updates in place are copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.execute.devices import NUMPY
from tracegrad.execute.partition import Fetch, Part, PartitionedProgram, Receive
from tracegrad.execute.program import Program
from tracegrad.graph.ir import Node
from tracegrad.inspection.report import device_names, no_plan
from tracegrad.runtime.profiler import Recording, Span, Timed, by_host_clock, record


@dataclass(frozen=True)
class Sent:
    """A transfer: from when its value left a device to when the other one had it, in nanoseconds since the run began."""

    transfer: Node
    start: int
    end: int


@dataclass(frozen=True)
class Run:
    """What ran when. spans: launches and host steps; of a part on the interpreter one host step."""

    spans: list[Span]
    sent: list[Sent] = field(default_factory=list)

    @property
    def end(self) -> int:
        """When the last of them ended."""
        return max([0, *(s.end for s in self.spans), *(s.end for s in self.sent)])


@dataclass(frozen=True)
class Recorded:
    """parts: Programs of one device each, which spans name by number. names: what to call their devices."""

    parts: list[Program]
    names: dict[Any, str]
    runs: list[Run]


def recorded(program: Program, name: str, runs: int, what: str) -> Recorded:
    """That many runs of a Program. what: the method that errors name, and name the function's."""
    if runs < 1:
        raise ArgumentError(f"{what}: runs must be at least 1, got {runs}")
    if isinstance(program, PartitionedProgram):
        given = program.latest()
        _check_given(given, [node.attrs.get("label") or "" for node in program.graph.inputs], name, what)
        return Recorded(program.parts, device_names(program), _OnSeveral(program, given).runs(runs))
    executable = program.executable
    if executable is None:
        raise ArgumentError(f"{what}: {no_plan(name)}")
    inputs = executable.latest()
    _check_given(inputs, [executable.plan.slots[i].name for i in executable.plan.inputs], name, what)
    spans = record(executable, [buffer for buffer in inputs if buffer is not None], runs)
    return Recorded([program], {program.device: program.device.name}, [Run(found) for found in spans])


def _check_given(given: Sequence[Any], names: Sequence[str], name: str, what: str) -> None:
    gone = [called or f"input {i}" for i, (value, called) in enumerate(zip(given, names, strict=True)) if value is None]
    if gone:
        raise ArgumentError(f"{what}: nothing holds {', '.join(gone)} of the latest call any more; keep the tensors that {name} is called "
                            "with in variables (a NumPy array: as a tensor), call it, and ask again")


class _OnSeveral:
    """A program of several devices: its steps, each of which also notes its times."""

    def __init__(self, program: PartitionedProgram, given: Sequence[Any]) -> None:
        self.program, self.given = program, given
        steps = [step for step in program.steps if isinstance(step, Part)]
        self.recordings = {id(step): Recording(step.program.executable, k) for k, step in enumerate(steps) if step.program.executable}
        self.numbers = {id(step): k for k, step in enumerate(steps)}
        self.devices = [device for device in device_names(program) if device is not NUMPY]

    def runs(self, count: int) -> list[Run]:
        before = [device.profiling for device in self.devices]
        try:
            for device in self.devices:
                device.set_profiling(True)
            return [self._run() for _ in range(count + 1)][1:]
        finally:
            for device, profiling in zip(self.devices, before, strict=True):
                device.set_profiling(profiling)

    def _run(self) -> Run:
        values = [value.copy() if i in self.program.written else value for i, value in enumerate(self.given)]
        for device in self.devices:
            device.finish()
        self.spans: list[Span] = []
        self.left: dict[Node, tuple[int, Any]] = {}          # when a transfer was enqueued, and how its value leaves
        self.arrived: dict[Node, int] = {}
        self.began = perf_counter_ns()
        self.program.through([_Noted(step, self) for step in self.program.steps], values)
        for recording in self.recordings.values():
            self.spans += recording.spans()
        return Run(sorted(self.spans, key=lambda s: s.start), self._sent())

    def now(self) -> int:
        return perf_counter_ns() - self.began

    def part(self, step: Part, held: dict[Any, Any]) -> None:
        given, recording = [held[node] for node in step.reads], self.recordings.get(id(step))
        if recording is None:
            start, made = self.now(), step.program(given)
            self.spans.append(Span(True, 0, start, start, self.now(), self.numbers[id(step)]))
        else:
            device = recording.device
            made = recording.bind([v for v, weak in zip(given, step.program.weak, strict=True) if not weak])
            recording.launch(device.host_queue if recording.small else device.queue, self.began)
        held.update(zip(step.makes, made, strict=True))

    def _sent(self) -> list[Sent]:
        commands: dict[Any, list[Timed]] = defaultdict(list)
        nodes = list(self.left)
        for k, node in enumerate(nodes):
            queued, departure = self.left[node]
            if departure.event is not None:
                commands[node.attrs["source"]].append((k, queued, departure.event))
        times = {nodes[k]: (start, end) for device, events in commands.items()
                 for k, _, start, end in by_host_clock(device, device.active, events, self.began)}
        found = []
        for node, (queued, departure) in self.left.items():
            start, end = times.get(node, (queued, queued))
            found.append(Sent(node, start, max(end, self.arrived[node]) if departure.staged else end))
        return found


@dataclass(frozen=True)
class _Noted:
    """A step of a program, whose times are noted."""

    step: Part | Fetch | Receive
    by: _OnSeveral

    def run(self, held: dict[Any, Any]) -> None:
        """Do it."""
        step = self.step
        if isinstance(step, Part):
            self.by.part(step, held)
            return
        queued = self.by.now()
        step.run(held)
        if isinstance(step, Fetch):
            self.by.left[step.transfer] = queued, held[step.transfer]
        else:
            self.by.arrived[step.transfer] = self.by.now()
