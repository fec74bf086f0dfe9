"""What the benchmarks of the first minute were asked to reach, beside what was measured: a row each. Start at `table`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """What was measured. target: the most that it may be; None where nothing was asked. unit: "s", "ms", or "" for a ratio."""

    what: str
    target: float | None
    measured: float
    unit: str = ""

    @property
    def verdict(self) -> str:
        return "" if self.target is None else "met" if self.measured <= self.target else "missed"


def number(value: float | None, unit: str) -> str:
    """A figure with its unit, as the tables show it."""
    if value is None:
        return "–"
    shown = f"{value:.2f}" if value < 10 and value != int(value) else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return f"{shown} {unit}".rstrip()


def table(title: str, rows: Sequence[Row]) -> str:
    """The rows as text, and how many of the targets are met."""
    asked = [row for row in rows if row.target is not None]
    wide = max(62, *(len(row.what) + 1 for row in rows)) if rows else 62
    lines = [f"{title:{wide}}{'target':>10}{'measured':>12}"]
    lines += [f"{row.what:{wide}}{number(row.target, row.unit):>10}{number(row.measured, row.unit):>12}  {row.verdict}" for row in rows]
    met = sum(row.verdict == "met" for row in asked)
    return "\n".join([*lines, *([f"{met} of {len(asked)} targets met"] if asked else [])])
