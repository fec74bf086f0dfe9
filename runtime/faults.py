"""What kernels report: indices out of range, matrices without an inverse. Start at `Run`; `Suspicions`: the runs a value is suspected for.

Each run of a plan with checks has a row of a small buffer of zeros, in which its kernels note what is wrong (see plan.Check). Nobody
waits for that: the results are marked with the run, and so is what is computed from them. Whoever reads a marked value, and waits
for it anyway, has the notes read first: it is cleared, or the error is raised, now and whenever it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tracegrad.errors import TracegradError
from tracegrad.support.plan import Check, Line, MatrixCheck

ROWS = 64                # runs of a plan that nobody asked about; the next one waits for them


class Run:
    """One run of a plan with `checks`, which stand in `lines` of the user's program.

    notes: where its kernels report; None once that was read. found: what was read, if something is wrong. running: its kernels are
    still being launched, because there are host steps between them.
    """

    __slots__ = ("checks", "found", "lines", "notes", "reported", "running")

    def __init__(
        self, checks: Sequence[Check | MatrixCheck], lines: Sequence[Line], notes: Notes | None = None, found: Any = None,
        running: bool = False,
    ) -> None:
        self.checks, self.lines, self.notes, self.found, self.running = checks, lines, notes, found, running
        self.reported = False

    def failed(self, mask: int) -> bool:
        """Whether one of the checks in `mask` failed. Waits for the run."""
        if self.notes is not None:
            self.notes.settle()
        return self.found is not None and any(mask >> k & 1 and self.found[2 * k:2 * k + 2].any() for k in range(len(self.checks)))

    def error(self, mask: int = -1) -> TracegradError:
        """The error of the first of the checks in `mask` that failed."""
        k = next(k for k in range(len(self.checks)) if mask >> k & 1 and self.found[2 * k:2 * k + 2].any())
        above, below = self.found[2 * k:2 * k + 2].tolist()
        self.reported = True
        return self.checks[k].error(above, below, self.lines[k])


Suspicions = tuple[tuple[Run, int], ...]         # runs, and which of their checks (a bit mask)


class Value(Protocol):
    """What is marked: a Buffer, or the interpreter's value."""

    deferred_checks: Suspicions


def verify(value: Value) -> None:
    """Raise IndexOutOfRange if `value` was computed with such an index, LinAlgError with such a matrix. Waits for its runs."""
    if value.deferred_checks:
        value.deferred_checks = tuple((run, mask) for run, mask in value.deferred_checks if run.failed(mask) or run.running)
        for run, mask in value.deferred_checks:
            if run.found is not None:
                for other, _ in value.deferred_checks:      # one error tells that the value is wrong, whatever else is
                    other.reported = other.reported or other.found is not None
                raise run.error(mask)


def mark(outputs: Sequence[Value], inputs: Sequence[Value], reads: Sequence[int], run: Run | None, checked: Sequence[int]) -> None:
    """Hand the deferred_checks of the inputs, and this run's, on to the outputs that depend on them. (An output may be an input's buffer.)

    inputs: none where none is suspect.
    """
    own: list[Suspicions] = [((run, mask),) if run is not None and mask else () for mask in checked]
    if inputs:
        own = [inherited(inputs, of) + new for of, new in zip(reads, own, strict=True)]
    for value, deferred_checks in zip(outputs, own, strict=True):
        value.deferred_checks = deferred_checks


def inherited(inputs: Sequence[Value], reads: int) -> Suspicions:
    """The deferred_checks of those `inputs` that the bit mask `reads` names. Runs that were cleared are left out."""
    masks: dict[Run, int] = {}
    for j, value in enumerate(inputs):
        if value.deferred_checks and reads >> j & 1:
            for run, mask in value.deferred_checks:
                if run.notes is not None or run.found is not None:
                    masks[run] = masks.get(run, 0) | mask
    return tuple(masks.items())


class Notes:
    """The rows in which the runs of one plan report. `buffer` holds ROWS rows of two int32 a check, zeros where all is well."""

    def __init__(self, buffer: Any, checks: int, record: Record) -> None:
        self.buffer, self.width, self.record = buffer, 2 * checks, record
        self.runs: list[Run] = []                # one a row, not read yet

    def row(self, run: Run) -> int:
        """The place of the row for a new run."""
        with self.buffer.device.lock:
            if len(self.runs) == ROWS:
                self.settle()
            self.runs.append(run)
            self.record.open.add(self)
            return (len(self.runs) - 1) * self.width

    def read(self) -> Any:
        """The rows of `runs`. Waits for them."""
        return self.buffer.download((len(self.runs), self.width), np.int32)

    def settle(self) -> None:
        """Find out about all runs but one that is `running`. Waits."""
        with self.buffer.device.lock:
            rows = self.read()
            bad = np.count_nonzero(rows)
            unfinished = False
            for row, run in enumerate(self.runs):
                if run.running:
                    unfinished = True
                else:
                    if bad and run.notes is not None and rows[row].any():
                        run.found = rows[row]
                        self.record.hear(run)
                    run.notes = None
            if not unfinished:
                self.runs.clear()
                self.record.open.discard(self)
                if bad:
                    self.buffer.write(np.zeros_like(rows))

    def raise_early(self, run: Run) -> None:
        """The error of a run that is not at its end. Waits for what was launched of it."""
        self._raise(run, self.read()[self.runs.index(run)])

    def before(self, run: Run, then: Callable[[], Any], queue: Any) -> Callable[[], Any]:
        """A function that raises the same error of what was launched so far, or does `then`. It waits, and the run goes on meanwhile."""
        at, rows = self.runs.index(run), self.buffer.arriving((len(self.runs), self.width), np.int32, queue)

        def checked() -> Any:
            self._raise(run, rows()[at])
            return then()

        return checked

    def _raise(self, run: Run, found: Any) -> None:
        if found.any():
            run.notes, run.found = None, found
            raise run.error()


class Record:
    """Of one device: the notes that were not read, and the first bad news that nobody was told."""

    def __init__(self) -> None:
        self.open: set[Notes] = set()
        self.unheard: Run | None = None

    def hear(self, run: Run) -> None:
        if self.unheard is None or self.unheard.reported:
            self.unheard = run

    def raise_first(self) -> None:
        """The error of the first run at fault that nobody was told of. Waits."""
        if not self.open and self.unheard is None:
            return
        for notes in list(self.open):
            notes.settle()
        run, self.unheard = self.unheard, None
        if run is not None and not run.reported:
            raise run.error()
