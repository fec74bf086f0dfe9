"""torch.autograd.profiler_util: what a profiler recorded, and the table of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracegrad.support.html import columns


@dataclass
class FunctionEvent:
    """A block that ran: when it began and how long it took, in microseconds. inside: the time of blocks in it."""

    name: str
    start: float
    cpu_time_total: float = 0.0
    inside: float = 0.0
    thread: int = 0

    @property
    def self_cpu_time_total(self) -> float:
        return self.cpu_time_total - self.inside


@dataclass
class FunctionEventAvg:
    """The blocks of one name."""

    key: str
    count: int
    cpu_time_total: float
    self_cpu_time_total: float

    @property
    def cpu_time(self) -> float:
        """Microseconds of one of them."""
        return self.cpu_time_total / self.count


_SHOWN = {"cpu_time_total": "CPU total", "self_cpu_time_total": "Self CPU", "cpu_time": "CPU time avg"}


class EventList(list[Any]):
    """Events, or averages of those of one name. str() is the table."""

    def table(self, sort_by: str | None = None, row_limit: int = 100, **_: Any) -> str:
        """A row for each name. sort_by: "cpu_time_total", "self_cpu_time_total", "cpu_time" or "count"; else (and for times of other
        devices) the order in which they ended.
        """
        rows = self.key_averages()
        if sort_by in (*_SHOWN, "count"):
            rows.sort(key=lambda row: -getattr(row, sort_by))
        shown = rows[:row_limit] if row_limit > 0 else rows
        body = [[row.key, *(f"{getattr(row, name) * 1e-3:.3f}ms" for name in _SHOWN), str(row.count)] for row in shown]
        total = sum(row.self_cpu_time_total for row in rows) * 1e-3
        return "\n".join([*columns([["Name", *_SHOWN.values(), "# of Calls"], *body], range(1, 5)), f"Self CPU time total: {total:.3f}ms"])

    def key_averages(self, *_: Any, **__: Any) -> EventList:
        if self and isinstance(self[0], FunctionEventAvg):
            return EventList(self)
        found: dict[str, FunctionEventAvg] = {}
        for event in self:
            key = "ProfilerStep*" if event.name.startswith("ProfilerStep#") else event.name
            row = found.setdefault(key, FunctionEventAvg(key, 0, 0.0, 0.0))
            row.count += 1
            row.cpu_time_total += event.cpu_time_total
            row.self_cpu_time_total += event.self_cpu_time_total
        return EventList(found.values())

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """A file for a trace viewer."""
        traced = [{"name": e.name, "ph": "X", "cat": "user_annotation", "ts": e.start, "dur": e.cpu_time_total, "pid": os.getpid(),
                   "tid": e.thread} for e in self]
        Path(path).write_text(json.dumps({"schemaVersion": 1, "traceEvents": traced}))
