"""Where a traced function's time goes: `profile`, a table of its kernels, and `timeline`, a file for a trace viewer.

Both run the program of the latest call again, with that call's arguments, on a queue that records times (`runtime.profiler`); what it
updates in place are copies. The share of a limit is beside what this device was measured to do at most (`runtime.limits`).
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from tracegrad.execute.compile import executable_graph
from tracegrad.execute.devices import NUMPY
from tracegrad.graph.printing import suggest_name
from tracegrad.inspection.recorded_runs import Recorded, Run, Sent, recorded
from tracegrad.inspection.remedies import remedies
from tracegrad.inspection.report import bytes_text, flops_text, interpreted, lines_text
from tracegrad.runtime.limits import Limits, limits
from tracegrad.runtime.profiler import Key, Span, own_times
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.html import columns, table
from tracegrad.support.plan import Computed, HostStart, HostStep, Launch, Plan


@dataclass(frozen=True)
class KernelTime:
    """One kernel's launch, or a host step, as a row of `Profile`.

    seconds: of all its launches in one call, the median over the runs. flops, bytes: what it computes and moves in a call, as
    estimated for `explain()`; 0 for a host step. share: of `limit`, "memory" or "arithmetic", whichever binds it more, where 1.0 is
    all that the device was measured to do. (More than 1.0 of memory: what it moves stays in a cache.) itemsize: bytes of its widest floats.
    device: where there are several, the one that it ran on.

    A transfer from `device` to another one has a row, too. Its limit is "beside kernels": share is how much of its time some kernel ran.
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
    device: str = ""


_COLUMNS = ["kernel", "launches", "time", "of all", "moved", "GB/s", "computed", "Gflop/s", "of the limit", "Python"]


class Profile(Sequence[KernelTime]):
    """The rows of a profile, in the order of the launches. str() is the table.

    seconds: of a whole call, from its start to the end of its last kernel, the median over the runs. limits: what the device can do.
    remedies: for what is slow, how to write it: sentences that begin with the line. Of several devices: limits are the first one's,
    devices has those of each, and at_once is for how many seconds kernels ran on more than one.
    """

    def __init__(self, name: str, device: str, rows: Sequence[KernelTime], seconds: float, runs: int, limits: Limits,
                 remedies: Sequence[str] = (), devices: Mapping[str, Limits] | None = None, at_once: float = 0.0) -> None:
        self.name, self.device, self.rows, self.seconds, self.runs, self.limits = name, device, list(rows), seconds, runs, limits
        self.remedies, self.devices, self.at_once = list(remedies), dict(devices or {device: limits}), at_once

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
        return f"<profile of {self.name}: {len(self)} rows, {_time(self.seconds)}; print() shows them>"

    def __str__(self) -> str:
        numbers = range(1 + self._several, 8 + self._several)
        return "\n".join([*self._head(), *columns([self._columns(), *self._cells()], numbers), *self.remedies])

    def _repr_html_(self) -> str:
        return table(self._columns(), self._cells(), "; ".join(self._head()), self.remedies)

    @property
    def _several(self) -> bool:
        return any(row.device for row in self)

    def _columns(self) -> list[str]:
        return [_COLUMNS[0], *["device"][: self._several], *_COLUMNS[1:]]

    def _cells(self) -> list[list[str]]:
        total = sum(row.seconds for row in self) or 1.0
        cells = []
        for row in self:
            rates = [bytes_text(row.bytes), f"{1e-9 * row.bytes / row.seconds:.1f}",
                     flops_text(row.flops), f"{1e-9 * row.flops / row.seconds:.1f}"]
            cells.append([row.name, *[row.device][: self._several], str(row.launches), _time(row.seconds), f"{row.seconds / total:.0%}",
                          *(rates if row.limit else [""] * 4), f"{row.share:.0%} {row.limit}" if row.limit else "host code", row.lines])
        return cells

    def _head(self) -> list[str]:
        head = [f"{self.name} on {self.device}: {_time(self.seconds)} a call (median of {self.runs} runs)"]
        if self._several:
            head.append(f"kernels ran on several devices at once for {_time(self.at_once)} of it")
        for device, most in self.devices.items():
            double = f", {1e-9 * most.float64:.0f} in float64" if most.float64 else ""
            head.append(f"measured limits{f' of {device}' if self._several else ''}: {1e-9 * most.bandwidth:.1f} GB/s, "
                        f"{1e-9 * most.float32:.0f} Gflop/s in float32{double}")
        return head


def profile(program: Any, name: str, runs: int) -> Profile:
    """The times of a Program's kernels; see `Traced.profile`."""
    return measured(program, name, runs, "profile").profile


@dataclass(frozen=True)
class Measured:
    """A profile, and what it was made of. keys: what each row is; none for transfers, which come last. runs: each run."""

    profile: Profile
    keys: list[Key]
    runs: list[Run]


def measured(program: Any, name: str, runs: int, what: str) -> Measured:
    """Run a Program again, and take its times. what: the method that errors name."""
    found = recorded(program, name, runs, what)
    times: dict[Key, list[int]] = {}
    counts: dict[Key, int] = {}
    for run in found.runs:
        for key, count, nanoseconds in own_times(run.spans):
            times.setdefault(key, []).append(nanoseconds)
            counts[key] = count
    most = {device: limits(device) for device in found.names if device is not NUMPY}
    keys, several = sorted(times, key=lambda key: key[0]), len(found.names) > 1
    rows = []
    for key in keys:
        seconds = 1e-9 * max(1.0, statistics.median(times[key]))
        number, host, own = key
        part = found.parts[number]
        on = found.names[part.device] if several else ""
        if part.plan is None:
            rows.append(KernelTime(interpreted(part), 1, seconds, 0, 0, 0.0, "", "", device=on))
        elif host:
            rows.append(KernelTime(_hosts(part.plan)[own].name, counts[key], seconds, 0, 0, 0.0, "", "", device=on))
        else:
            rows.append(_row(part.plan.launches[own], part.plan, counts[key], seconds, most[part.device], on))
    whole = statistics.median(run.end for run in found.runs)
    told = [line for part in found.parts for line in remedies(executable_graph(part.graph), part.plan)]
    for device, own_limits in most.items():
        told += slow_float64([row for row in rows if not several or row.device == found.names[device]], own_limits)
    rows += _sent_rows(found)
    at_once = 1e-9 * statistics.median(_at_once(run, found.parts) for run in found.runs)
    text = " and ".join(found.names.values())
    return Measured(Profile(name, text, rows, 1e-9 * whole, runs, next(iter(most.values())), told,
                            {found.names[device]: own_limits for device, own_limits in most.items()}, at_once), keys, found.runs)


def _sent_rows(found: Recorded) -> list[KernelTime]:
    """A row for each transfer."""
    rows = []
    for k, sent in enumerate(found.runs[0].sent):
        node = sent.transfer
        seconds = 1e-9 * max(1.0, statistics.median(run.sent[k].end - run.sent[k].start for run in found.runs))
        beside = 1e-9 * statistics.median(_beside(run.sent[k], run.spans) for run in found.runs)
        line = f"{'backward of ' if node.loc.derived else ''}line {node.loc.line}"
        rows.append(KernelTime(f"{suggest_name(node.operands[0])} to {found.names[node.attrs['target']]}", 1, seconds, node.aval.nbytes, 0,
                               min(1.0, beside / seconds), "beside kernels", line, device=found.names[node.attrs["source"]]))
    return rows


def _at_once(run: Run, parts: Sequence[Any]) -> int:
    """Nanoseconds in which kernels (or the interpreter) ran on more than one device."""
    changes = sorted((at, by, parts[s.part].device) for s in run.spans if not s.host or parts[s.part].plan is None
                     for at, by in ((s.start, 1), (s.end, -1)))
    running: Counter[Any] = Counter()
    total = before = 0
    for at, by, device in changes:
        total += (at - before) * (sum(n > 0 for n in running.values()) > 1)
        before = at
        running[device] += by
    return total


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
    found = recorded(program, name, runs, "timeline")
    pids = {device: i for i, device in enumerate(found.names, 1)}
    events: list[dict[str, Any]] = []
    for device, pid in pids.items():
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{name} on {found.names[device]}"}})
        events += [{"ph": "M", "pid": pid, "tid": i, "name": "thread_name", "args": {"name": text}} for i, text in _THREADS.items()
                   if len(pids) > 1 or i != _SENT]
    began = 0.0

    def shown(pid: int, lane: int, kind: str, what: str, start: float, nanoseconds: float, about: dict[str, Any]) -> None:
        events.append({"ph": "X", "pid": pid, "tid": lane, "cat": kind, "name": what, "ts": round(began + 1e-3 * start, 3),
                       "dur": round(1e-3 * nanoseconds, 3), "args": about})

    for number, run in enumerate(found.runs):
        shown(1, 0, "call", f"{name}, call {number}", 0, run.end, {})
        for s in run.spans:
            part = found.parts[s.part]
            pid, plan, times = pids[part.device], part.plan, (s.start, s.end - s.start)
            if plan is None:
                shown(pid, 1, "host", interpreted(part), *times, {})
            elif s.host:
                step = _hosts(plan)[s.number]
                shown(pid, 3 if isinstance(step, HostStart) else 1, "host", step.name, *times, _beside_us(s, run.spans))
            else:
                launch = plan.launches[s.number]
                shown(pid, 2, "kernel", launch.entry, *times, _about(launch, plan) | {"queued_us": round(began + 1e-3 * s.queued, 3)})
        for sent in run.sent:
            node = sent.transfer
            here, there = node.attrs["source"], node.attrs["target"]
            shown(pids[there], _SENT, "transfer", f"{suggest_name(node.operands[0])} from {found.names[here]}", sent.start,
                  sent.end - sent.start, {"from": found.names[here], "to": found.names[there], "bytes": node.aval.nbytes,
                                          **_beside_us(sent, run.spans)})
        began = round(began + 1e-3 * run.end + _GAP, 3)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file, indent=1)


_GAP = 10.0                                                # microseconds shown between two calls
_SENT = 4
_THREADS = {0: "calls", 1: "host steps", 2: "kernels", 3: "calls beside kernels", _SENT: "transfers to here"}


def _beside(own: Span | Sent, spans: Sequence[Span]) -> int:
    """Nanoseconds of `own` in which kernels ran, on any device."""
    total = last = 0
    for start, end in sorted((max(s.start, own.start), min(s.end, own.end)) for s in spans if not s.host):
        total += max(0, end - max(start, last))
        last = max(last, end)
    return total


def _beside_us(own: Span | Sent, spans: Sequence[Span]) -> dict[str, Any]:
    return {"beside_kernels_us": round(1e-3 * _beside(own, spans), 3)}


def _hosts(plan: Plan) -> list[HostStep]:
    """The host steps, in order: a span names them by number."""
    return [s for s, _ in plan.each() if isinstance(s, HostStep)]


def _row(launch: Launch, plan: Plan, count: int, seconds: float, most: Limits, device: str) -> KernelTime:
    """flops and bytes of a launch in a loop are those of one iteration."""
    moved, computed = launch.bytes * count, launch.flops * count
    floats = [plan.slots[a].dtype.itemsize for a in launch.args if isinstance(a, int) and dtype_kind(plan.slots[a].dtype) == "f"]
    shares = {"memory": moved / most.bandwidth, "arithmetic": computed / most.flops(max(floats, default=4))}
    limit = max(shares, key=shares.__getitem__)
    return KernelTime(launch.entry, count, seconds, moved, computed, shares[limit] / seconds, limit, _lines(launch, plan),
                      max(floats, default=0), device)


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
