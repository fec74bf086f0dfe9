"""What a plan holds in memory, and when: `Memory`, which `f.memory()` gives. Start at `memory`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os.path import basename
from typing import Any, overload

from tracegrad.errors import printable
from tracegrad.inspection.report import bytes_text
from tracegrad.support.html import columns, table
from tracegrad.support.plan import HostStep, Launch, Loop, Plan, Slot, Step


@dataclass(frozen=True)
class Value:
    """An intermediate in memory. line: `step.py:9`, with ∂ where a derivative computes it. slot: its number in `plan.slots`.

    first, last: the steps between which it is alive, by number.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    line: str
    slot: int
    first: int
    last: int


@dataclass(frozen=True)
class Moment:
    """One step of the plan: which intermediates are alive while it runs, and how many bytes they are."""

    step: str
    bytes: int
    alive: list[Value] = field(repr=False)


_COLUMNS = ["step", "alive", "value", "line"]


class Memory(Sequence[Moment]):
    """What is alive when: an item for each step of a plan. str() is a table, largest values first.

    inputs, outputs, constants: bytes that are there throughout; reserved: bytes of the blocks that intermediates share. peak: the
    largest moment. values: all intermediates. by_line: at the peak, bytes by line.
    """

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        steps = plan.each()
        labels = [step.name if isinstance(step, HostStep) else step.entry for step, _ in steps]
        lives = _lives(plan)
        self.values = [_value(plan, slot, lives[slot], [step for step, _ in steps]) for slot in sorted(lives)]
        self.moments = []
        for i, label in enumerate(labels):
            alive = sorted((v for v in self.values if v.first <= i <= v.last), key=lambda v: (-v.bytes, v.slot))
            self.moments.append(Moment(label, sum(v.bytes for v in alive), alive))
        sizes = {kind: sum(s.nbytes for s in plan.slots if s.kind == kind and s.alias is None) for kind in ("input", "output", "constant")}
        self.inputs, self.outputs, self.constants = sizes["input"], sizes["output"], sizes["constant"]
        self.reserved = sum(plan.blocks)
        self.peak = max(self.moments, key=lambda m: m.bytes, default=Moment("", 0, []))
        self.by_line: dict[str, int] = {}
        for value in self.peak.alive:
            self.by_line[value.line] = self.by_line.get(value.line, 0) + value.bytes

    def __len__(self) -> int:
        return len(self.moments)

    @overload
    def __getitem__(self, index: int) -> Moment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Moment]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.moments[index]

    def __repr__(self) -> str:
        return f"<memory of {self.name}: {len(self)} steps, peak {bytes_text(self.peak.bytes)}>"

    def _summary(self) -> str:
        return (f"{self.name}: intermediates take {bytes_text(self.peak.bytes)} at most, in {self.peak.step or 'no step'}, of "
                f"{bytes_text(self.reserved)} reserved; inputs {bytes_text(self.inputs)}, new results {bytes_text(self.outputs)}, "
                f"constants {bytes_text(self.constants)}")

    def _rows(self) -> list[list[str]]:
        rows = []
        for i, moment in enumerate(self.moments):
            rows.append([f"[{i}] {moment.step}", bytes_text(moment.bytes), "", ""])
            rows += [["", bytes_text(v.bytes), f"{v.name} {v.dtype}[{', '.join(map(str, v.shape))}]", v.line] for v in moment.alive]
        return rows

    def __str__(self) -> str:
        return "\n".join([self._summary(), *columns([_COLUMNS, *self._rows()])])

    def _repr_html_(self) -> str:
        return table(_COLUMNS, self._rows(), self._summary())


def touched(step: Launch | HostStep) -> list[int]:
    """The slots that a step reads or writes."""
    return [a for a in step.args if isinstance(a, int)] if isinstance(step, Launch) else [*step.inputs, *step.outputs]


def _lives(plan: Plan) -> dict[int, tuple[int, int]]:
    """For each temporary, the first and last step that touches it. One that a loop shares with steps outside lives through all of it."""
    lives: dict[int, tuple[int, int]] = {}
    loops: list[tuple[int, int, set[int]]] = []

    def walk(steps: Sequence[Step], number: int) -> int:
        for step in steps:
            if isinstance(step, Loop):
                end = walk(step.steps, number)
                loops.append((number, end - 1, {s for s, (_, last) in lives.items() if last >= number}))
                number = end
                continue
            for slot in touched(step):
                if plan.slots[slot].kind == "temp":
                    lives[slot] = lives.get(slot, (number, number))[0], number
            number += 1
        return number

    walk(plan.steps, 0)
    for start, end, slots in loops:
        for slot in slots:
            first, last = lives[slot]
            if first < start or last > end:
                lives[slot] = min(first, start), max(last, end)
    return lives


def _value(plan: Plan, number: int, life: tuple[int, int], steps: Sequence[Launch | HostStep]) -> Value:
    slot: Slot = plan.slots[number]
    file, line, derived = slot.line or _first_line(steps[life[0]])
    text = f"{printable(basename(file))}:{line}{' ∂' * derived}" if file else ""
    return Value(slot.name or slot.kind, slot.shape, str(slot.dtype), slot.nbytes, text, number, *life)


def _first_line(step: Launch | HostStep) -> tuple[str, int, bool]:
    """Of what has no line of its own (an operand that is packed): that of the kernel which needs it."""
    fused = step.fused if isinstance(step, Launch) else ()
    return next(((file, line, derived) for _, line, derived, file, _ in fused), ("", 0, False))


def memory(program: Any, name: str) -> Memory:
    """The memory of a compiled Program; see `Traced.memory`."""
    return Memory(name, program.plan)
