"""Where a traced function's time goes: `profile`, a table of its kernels, and `timeline`, a file for a trace viewer.

Both run the program of the latest call again, with that call's arguments, on a queue that records times (`runtime.profiler`); what it
updates in place are copies. The share of a limit is beside what this device was measured to do at most (`runtime.limits`).
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from tracegrad.errors import ArgumentError
from tracegrad.execute.compile import executable_graph
from tracegrad.inspection.remedies import remedies
from tracegrad.inspection.report import bytes_text, flops_text, lines_text, no_plan
from tracegrad.runtime.launch import Executable
from tracegrad.runtime.limits import Limits, limits
from tracegrad.runtime.profiler import Span, own_times, record
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.html import columns, table
from tracegrad.support.plan import Computed, HostStart, HostStep, Launch, Plan


@dataclass(frozen=True)
class KernelTime:
    """One kernel's launch, or a host step, as a row of `Profile`.

    seconds: of all its launches in one call, the median over the runs. flops, bytes: what it computes and moves in a call, as
    estimated for `explain()`; 0 for a host step. share: of `limit`, "memory" or "arithmetic", whichever binds it more, where 1.0 is
    all that the device was measured to do. (More than 1.0 of memory: what it moves stays in a cache.) itemsize: bytes of its widest floats.
    """

    name: str
    launches: int
    seconds: float
    bytes: int
    flops: int
    share: float
    limit: str
    lines: str
    itemsize: int = 0


_COLUMNS = ["kernel", "launches", "time", "of all", "moved", "GB/s", "computed", "Gflop/s", "of the limit", "Python"]


class Profile(Sequence[KernelTime]):
    """The rows of a profile, in the order of the launches. str() is the table.

    seconds: of a whole call, from its start to the end of its last kernel, the median over the runs. limits: what the device can do.
    remedies: for what is slow, how to write it: sentences that begin with the line.
    """

    def __init__(self, name: str, device: str, rows: Sequence[KernelTime], seconds: float, runs: int, limits: Limits,
                 remedies: Sequence[str] = ()) -> None:
        self.name, self.device, self.rows, self.seconds, self.runs, self.limits = name, device, list(rows), seconds, runs, limits
        self.remedies = list(remedies)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> KernelTime: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[KernelTime]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[KernelTime]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<profile of {self.name}: {len(self)} rows, {_time(self.seconds)}>"

    def __str__(self) -> str:
        return "\n".join([*self._head(), *columns([_COLUMNS, *self._cells()], range(1, 8)), *self.remedies])

    def _repr_html_(self) -> str:
        return table(_COLUMNS, self._cells(), "; ".join(self._head()), self.remedies)

    def _cells(self) -> list[list[str]]:
        total = sum(row.seconds for row in self) or 1.0
        cells = []
        for row in self:
            rates = [bytes_text(row.bytes), f"{1e-9 * row.bytes / row.seconds:.1f}",
                     flops_text(row.flops), f"{1e-9 * row.flops / row.seconds:.1f}"]
            cells.append([row.name, str(row.launches), _time(row.seconds), f"{row.seconds / total:.0%}",
                          *(rates if row.limit else [""] * 4), f"{row.share:.0%} {row.limit}" if row.limit else "host code", row.lines])
        return cells

    def _head(self) -> list[str]:
        single = f"{1e-9 * self.limits.float32:.0f} Gflop/s in float32"
        double = f", {1e-9 * self.limits.float64:.0f} in float64" if self.limits.float64 else ""
        return [f"{self.name} on {self.device}: {_time(self.seconds)} a call (median of {self.runs} runs)",
                f"measured limits: {1e-9 * self.limits.bandwidth:.1f} GB/s, {single}{double}"]


def profile(program: Any, name: str, runs: int) -> Profile:
    """The times of a Program's kernels; see `Traced.profile`."""
    return measured(program, name, runs, "profile").profile


@dataclass(frozen=True)
class Measured:
    """A profile, and what it was made of. keys: for each row, (whether it is a host step, its number; see `Span`). spans: of each run."""

    profile: Profile
    keys: list[tuple[bool, int]]
    spans: list[list[Span]]


def measured(program: Any, name: str, runs: int, what: str) -> Measured:
    """Run a Program again, and take its times. what: the method that errors name."""
    executable, recorded = _recorded(program, name, runs, what)
    plan, device, launches = executable.plan, executable.device, executable.plan.launches
    hosts = _hosts(plan)
    times: dict[tuple[bool, int], list[int]] = {}
    counts: dict[tuple[bool, int], int] = {}
    for spans in recorded:
        for key, count, nanoseconds in own_times(spans):
            times.setdefault(key, []).append(nanoseconds)
            counts[key] = count
    most = limits(device)
    rows = []
    for key, found in times.items():
        seconds = 1e-9 * max(1.0, statistics.median(found))
        host, number = key
        if host:
            rows.append(KernelTime(hosts[number].name, counts[key], seconds, 0, 0, 0.0, "", ""))
        else:
            rows.append(_row(launches[number], plan, counts[key], seconds, most))
    whole = statistics.median(max((s.end for s in spans), default=0) for spans in recorded)
    told = [*remedies(executable_graph(program.graph), plan), *slow_float64(rows, most)]
    return Measured(Profile(name, device.name, rows, 1e-9 * whole, runs, most, told), [*times], recorded)


def slow_float64(rows: Sequence[KernelTime], most: Limits) -> list[str]:
    """Remedies for kernels that are bound by float64's arithmetic, where float32 is four times as fast or more."""
    if not most.float64 or most.float32 < 4 * most.float64:
        return []
    times = most.float32 / most.float64
    return [f"remedy ({row.lines}): {row.name} is bound by float64's arithmetic, which takes {times:.0f} times as long as float32's "
            "on this device: compute in float32 (x.float()) what does not need float64's digits"
            for row in rows if row.limit == "arithmetic" and row.itemsize == 8]


def timeline(program: Any, name: str, path: str | os.PathLike[str], runs: int) -> None:
    """Write Chrome's trace format; see `Traced.timeline`."""
    executable, recorded = _recorded(program, name, runs, "timeline")
    plan, device, launches = executable.plan, executable.device, executable.plan.launches
    hosts = _hosts(plan)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{name} on {device.name}"}},
        *({"ph": "M", "pid": 1, "tid": i, "name": "thread_name", "args": {"name": text}} for i, text in _THREADS.items()),
    ]
    began = 0.0
    for number, spans in enumerate(recorded):
        end = 1e-3 * max((s.end for s in spans), default=0)
        events.append({"ph": "X", "pid": 1, "tid": 0, "cat": "call", "name": f"{name}, call {number}", "ts": began, "dur": round(end, 3),
                       "args": {}})
        for s in spans:
            if s.host:
                what, about, lane = hosts[s.number].name, _beside(s, spans), 3 if isinstance(hosts[s.number], HostStart) else 1
            else:
                what, about, lane = launches[s.number].entry, _about(launches[s.number], plan), 2
            events.append({"ph": "X", "pid": 1, "tid": lane, "cat": "host" if s.host else "kernel", "name": what,
                           "ts": round(began + 1e-3 * s.start, 3), "dur": round(1e-3 * (s.end - s.start), 3),
                           "args": about | ({} if s.host else {"queued_us": round(began + 1e-3 * s.queued, 3)})})
        began = round(began + end + _GAP, 3)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file, indent=1)


_GAP = 10.0                                                # microseconds shown between two calls
_THREADS = {0: "calls", 1: "host steps", 2: "kernels", 3: "calls beside kernels"}


def _beside(own: Span, spans: Sequence[Span]) -> dict[str, Any]:
    """Of a host step: for how long kernels ran at the same time, in microseconds. (They run one after the other.)"""
    shared = sum(max(0, min(s.end, own.end) - max(s.start, own.start)) for s in spans if not s.host)
    return {"beside_kernels_us": round(1e-3 * shared, 3)}


def _recorded(program: Any, name: str, runs: int, what: str) -> tuple[Executable, list[list[Span]]]:
    """A program on its device, and the spans of that many runs with the arguments of its latest call."""
    if runs < 1:
        raise ArgumentError(f"{what}: runs must be at least 1, got {runs}")
    executable: Executable | None = program.executable
    if executable is None:
        raise ArgumentError(f"{what}: {no_plan(program, name)}")
    given = executable.latest()
    inputs = [buffer for buffer in given if buffer is not None]
    if len(inputs) < len(given):
        slots = [executable.plan.slots[i] for i in executable.plan.inputs]
        gone = [slot.name or f"input {i}" for i, (slot, buffer) in enumerate(zip(slots, given, strict=True)) if buffer is None]
        raise ArgumentError(f"{what}: nothing holds {', '.join(gone)} of the latest call any more; keep the tensors that {name} is called "
                            "with in variables (a NumPy array: as a tensor), call it, and ask again")
    return executable, record(executable, inputs, runs)


def _hosts(plan: Plan) -> list[HostStep]:
    """The host steps, in order: a span names them by number."""
    return [s for s, _ in plan.each() if isinstance(s, HostStep)]


def _row(launch: Launch, plan: Plan, count: int, seconds: float, most: Limits) -> KernelTime:
    """flops and bytes of a launch in a loop are those of one iteration."""
    moved, computed = launch.bytes * count, launch.flops * count
    floats = [plan.slots[a].dtype.itemsize for a in launch.args if isinstance(a, int) and dtype_kind(plan.slots[a].dtype) == "f"]
    shares = {"memory": moved / most.bandwidth, "arithmetic": computed / most.flops(max(floats, default=4))}
    limit = max(shares, key=shares.__getitem__)
    return KernelTime(launch.entry, count, seconds, moved, computed, shares[limit] / seconds, limit, _lines(launch, plan),
                      max(floats, default=0))


def _lines(launch: Launch, plan: Plan) -> str:
    """The lines of Python that a launch is part of."""
    return lines_text(for_whom(launch, plan))


def for_whom(launch: Launch, plan: Plan) -> Sequence[Computed]:
    """What a launch computes; one that prepares operands, or totals parts, is named after the kernel it is for, and this is that one's."""
    named = (other.fused for other in plan.launches if other.fused and launch.entry.startswith(f"{other.entry}_"))
    return launch.fused or next(named, ())


def _about(launch: Launch, plan: Plan) -> dict[str, Any]:
    return {"python": _lines(launch, plan), "computes": ", ".join(name for name, *_ in launch.fused), "bytes": launch.bytes,
            "flops": launch.flops, "work_items": list(launch.global_size),
            "buffers": [plan.slots[a].name for a in launch.args if isinstance(a, int) and plan.slots[a].name]}


def _time(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"
