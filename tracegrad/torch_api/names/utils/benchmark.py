"""torch.utils.benchmark: `Timer`, `Measurement` and `Compare`.

What nobody looks at is not computed here. So each run ends with the results that the statement leaves (in names, or as its last expression)
being asked for, and a block of runs when the device has computed them.
"""

from __future__ import annotations

import ast
import sys
import textwrap
import time
import timeit
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tracegrad.errors import UnsupportedError
from tracegrad.execute.deferred import flush, synchronize
from tracegrad.support.html import columns

__all__ = ["Compare", "Measurement", "TaskSpec", "Timer", "select_unit", "timer"]
_UNSTEADY, _VERY_UNSTEADY = 0.1, 0.25            # spreads, as shares of the median, from which on a measurement warns


def timer() -> float:
    """The time in seconds, when all that was asked for is computed."""
    synchronize()
    return time.perf_counter()


def _asking(stmt: str) -> str:
    """The statement, with what it leaves asked for."""
    body = ast.parse(stmt).body
    if body and isinstance(body[-1], ast.Expr):
        body[-1] = ast.Assign([ast.Name("_left", ast.Store())], body[-1].value)
    text = ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))
    return f"{text}\n_flush()"


def select_unit(t: float) -> tuple[str, float]:
    """The unit that shows a time of `t` seconds well, and its length in seconds."""
    return next(((unit, scale) for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if t >= scale), ("ns", 1e-9))


@dataclass(frozen=True)
class TaskSpec:
    """What was measured, but for the values of names."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """Its label, or else the statement."""
        of = f" ({self.sub_label})" if self.sub_label else ""
        if self.label is None and "\n" in self.stmt:
            return f"stmt:{of}\n{textwrap.indent(self.stmt, '  ')}"
        return (self.stmt if self.label is None else self.label) + (f": {self.sub_label}" if self.sub_label else "")

    def setup_str(self) -> str:
        """The setup as `print` shows it; "" for none."""
        if self.setup in ("", "pass"):
            return ""
        return f"setup:\n{textwrap.indent(self.setup, '  ')}" if "\n" in self.setup else f"setup: {self.setup}"

    def summarize(self) -> str:
        return "\n".join(part for part in (self.title, self.description or "", self.setup_str()) if part)


@dataclass(repr=False)
class Measurement:
    """What a `Timer` found: `raw_times` are seconds of blocks of `number_per_run` runs each."""

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in TaskSpec.__dataclass_fields__:
            return getattr(self.task_spec, name)
        raise AttributeError(f"'Measurement' object has no attribute {name!r}")

    @property
    def times(self) -> list[float]:
        """Seconds of one run, for each block."""
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def median(self) -> float:
        return float(np.median(self.times))

    @property
    def mean(self) -> float:
        return float(np.mean(self.times))

    @property
    def iqr(self) -> float:
        """How far the middle half of the times is spread."""
        low, high = self._quartiles()
        return high - low

    def _quartiles(self) -> tuple[float, float]:
        low, high = np.quantile(self.times, [0.25, 0.75])
        return float(low), float(high)

    def meets_confidence(self, threshold: float = _UNSTEADY) -> bool:
        return self.iqr / self.median < threshold

    @property
    def has_warnings(self) -> bool:
        return not self.meets_confidence()

    @property
    def title(self) -> str:
        return self.task_spec.title

    @property
    def as_row_name(self) -> str:
        return self.task_spec.sub_label or self.task_spec.stmt or "[Unknown]"

    def __repr__(self) -> str:
        unit, scale = select_unit(self.median)
        n, threads = len(self.times), self.task_spec.num_threads
        low, high = self._quartiles()
        lines = [object.__repr__(self), self.task_spec.summarize(), f"  {'Median: ' if n > 1 else ''}{self.median / scale:.2f} {unit}"]
        if n >= 4:
            lines.append(f"  IQR:    {self.iqr / scale:.2f} {unit} ({low / scale:.2f} to {high / scale:.2f})")
        lines.append(f"  {n} measurement{'s' * (n > 1)}, {self.number_per_run} runs {'per measurement,' if n > 1 else ','} "
                     f"{threads} thread{'s' * (threads > 1)}")
        if self.has_warnings:
            cause = "This could indicate system fluctuation." if self.meets_confidence(_VERY_UNSTEADY) else (
                "This suggests significant environmental influence.")
            lines += [f"  WARNING: Interquartile range is {100 * self.iqr / self.median:.1f}% of the median measurement.",
                      f"           {cause}"]
        return "\n".join(lines)

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """One measurement of those of the same task."""
        groups: dict[TaskSpec, list[float]] = {}
        for m in measurements:
            groups.setdefault(m.task_spec, []).extend(m.times)
        return [Measurement(1, times, spec) for spec, times in groups.items()]


class Timer:
    """Measures a statement. `num_threads` is noted and changes nothing: a device's threads are its driver's."""

    def __init__(self, stmt: str = "pass", setup: str = "pass", global_setup: str = "", timer: Callable[[], float] = timer,
                 globals: dict[str, Any] | None = None, label: str | None = None, sub_label: str | None = None,
                 description: str | None = None, env: str | None = None, num_threads: int = 1, language: Any = "python") -> None:
        if str(language).rpartition(".")[2].lower() not in ("python", "py", "0"):
            raise UnsupportedError(f"Timer(language={language!r}): only Python is measured")
        if not isinstance(stmt, str):
            raise ValueError(f"Timer: stmt is a text, not {stmt!r}")
        stmt, setup = (textwrap.dedent(text).removeprefix("\n").rstrip() for text in (stmt, setup))
        names = {"torch": import_module("torch"), **(globals or {}), "_flush": flush}
        self._timer = timeit.Timer(_asking(stmt), setup, timer, names)
        self._task_spec = TaskSpec(stmt, setup, global_setup, label, sub_label, description, env, num_threads)

    def _timeit(self, number: int) -> float:
        return max(self._timer.timeit(number), 1e-9)

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """One block of `number` runs, after some that are not counted."""
        self._timeit(max(number // 100, 2))
        return Measurement(number, [self._timeit(number)], self._task_spec)

    def blocked_autorange(self, callback: Callable[[int, float], Any] | None = None, min_run_time: float = 0.2) -> Measurement:
        """Blocks until they took `min_run_time` seconds; a block is so long that the clock is a ten-thousandth of it."""
        return self._blocks(lambda times: sum(times) >= min_run_time, min_run_time, callback)

    def adaptive_autorange(self, threshold: float = 0.1, *, min_run_time: float = 0.01, max_run_time: float = 10.0,
                           callback: Callable[[int, float], Any] | None = None) -> Measurement:
        """Blocks until the middle half of their times is within `threshold` of the median, or for `max_run_time` seconds."""
        def enough(times: list[float]) -> bool:
            steady = len(times) > 3 and Measurement(1, times, self._task_spec).meets_confidence(threshold)
            return sum(times) >= max_run_time or (steady and sum(times) >= min_run_time)

        return self._blocks(enough, min_run_time, callback)

    def _blocks(self, enough: Callable[[list[float]], bool], min_run_time: float, callback: Any) -> Measurement:
        clock = float(np.median([self._timeit(0) for _ in range(5)]))
        number, spent = 1, self._timeit(1)
        while spent <= min_run_time and (clock > 1e-4 * spent or spent < 1e-3 * min_run_time):
            number, spent = 10 * number, self._timeit(10 * number)
        times: list[float] = []
        while not enough(times):
            times.append(self._timeit(number))
            if callback is not None:
                callback(number, times[-1])
        return Measurement(number, times, self._task_spec)

    def collect_callgrind(self, *_: Any, **__: Any) -> Any:
        raise UnsupportedError("Timer.collect_callgrind: instructions are not counted; blocked_autorange() measures time")


class Compare:
    """A table of measurements: a row for each sub_label (or statement), a column for each description."""

    def __init__(self, results: list[Measurement]) -> None:
        self._results = list(results)

    def extend_results(self, results: Iterable[Measurement]) -> None:
        self._results.extend(results)

    def trim_significant_figures(self) -> None:
        """Nothing: four figures are shown."""

    def colorize(self, rowwise: bool = False) -> None:
        """Nothing."""

    highlight_warnings = trim_significant_figures

    def print(self) -> None:
        sys.stdout.write(f"{self}\n")

    def __str__(self) -> str:
        merged = Measurement.merge(self._results)
        tables = []
        for label in dict.fromkeys(m.task_spec.label for m in merged):
            of = [m for m in merged if m.task_spec.label == label]
            unit, scale = select_unit(min((m.median for m in of), default=1.0))
            heads = list(dict.fromkeys(m.task_spec.description or m.task_spec.stmt for m in of))
            rows: dict[tuple[str, int], dict[str, str]] = {}
            for m in of:
                row = rows.setdefault((m.as_row_name, m.task_spec.num_threads), {})
                row[m.task_spec.description or m.task_spec.stmt] = f"{m.median / scale:.4g}"
            body = [[name, str(threads), *(row.get(head, "") for head in heads)] for (name, threads), row in rows.items()]
            table = columns([["", "threads", *heads], *body], range(1, 2 + len(heads)))
            tables.append("\n".join([label or "", *table, f"Times in {unit}."]))
        return "\n\n".join(tables)
