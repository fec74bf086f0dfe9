"""What a plan holds in memory, and when: `Memory`, which `f.memory()` gives. Start at `memory`.

Of several devices it is the plans of all parts, in the order of their launches, and the values that a part makes for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os.path import basename
from typing import Any, overload

from tracegrad.errors import ArgumentError, printable
from tracegrad.execute.partition import Fetch, Part, PartitionedProgram, Receive
from tracegrad.execute.program import Program
from tracegrad.graph.ir import Node
from tracegrad.graph.printing import suggest_name
from tracegrad.inspection.report import bytes_text, device_names, interpreted, no_plan
from tracegrad.support.html import columns, table
from tracegrad.support.plan import HostStep, Launch, Loop, Plan, Slot, Step


@dataclass(frozen=True)
class Value:
    """An intermediate in memory. line: `step.py:9`, with ∂ where a derivative computes it. slot: its number in `plan.slots`.

    first, last: the steps between which it is alive, by number. device: where it lies, of several. part: which of their plans has the
    slot; a value that one part makes for others, or that arrived, has none: its slot is -1.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    line: str
    slot: int
    first: int
    last: int
    device: str = ""
    part: int = 0


@dataclass(frozen=True)
class Moment:
    """One step of the plan: which intermediates are alive while it runs, and how many bytes they are. device: of several, the one that
    runs it, whose memory this is; where something arrives, that one."""

    step: str
    bytes: int
    alive: list[Value] = field(repr=False)
    device: str = ""


@dataclass
class Totals:
    """What is on one device: bytes of inputs, new results and constants, which are there throughout; bytes reserved for intermediates;
    the moment when these are the most."""

    inputs: int = 0
    outputs: int = 0
    constants: int = 0
    reserved: int = 0
    peak: Moment = field(default_factory=lambda: Moment("", 0, []))

    def __str__(self) -> str:
        return (f"intermediates take {bytes_text(self.peak.bytes)} at most, in {self.peak.step or 'no step'}, of "
                f"{bytes_text(self.reserved)} reserved; inputs {bytes_text(self.inputs)}, new results {bytes_text(self.outputs)}, "
                f"constants {bytes_text(self.constants)}")


_COLUMNS = ["step", "alive", "value", "line"]


class Memory(Sequence[Moment]):
    """What is alive when: an item for each step of a plan. str() is a table, largest values first.

    inputs, outputs, constants: bytes that are there throughout; reserved: bytes of the blocks that intermediates share. peak: the
    largest moment. values: all intermediates. by_line: at the peak, bytes by line.

    Of several devices the steps are those of all, in the order in which they are launched, and each tells of its own device; inputs,
    outputs, constants and reserved are sums. devices: the `Totals` of each, by name.
    """

    def __init__(self, name: str, steps: Sequence[tuple[str, str]], values: Sequence[Value], devices: dict[str, Totals]) -> None:
        """steps: what each is called, and its device ("" where there is one)."""
        self.name, self.values, self.devices = name, list(values), devices
        self.moments = []
        for i, (label, device) in enumerate(steps):
            alive = sorted((v for v in values if v.first <= i <= v.last and v.device == device), key=lambda v: (-v.bytes, v.slot))
            self.moments.append(Moment(label, sum(v.bytes for v in alive), alive, device))
        for device, totals in devices.items():
            own = [m for m in self.moments if m.device in ("", device)]
            totals.peak = max(own, key=lambda m: m.bytes, default=totals.peak)
        self.inputs, self.outputs, self.constants, self.reserved = (
            sum(getattr(totals, what) for totals in devices.values()) for what in ("inputs", "outputs", "constants", "reserved"))
        self.peak = max((totals.peak for totals in devices.values()), key=lambda m: m.bytes)
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

    @property
    def _several(self) -> bool:
        return len(self.devices) > 1

    def _head(self) -> list[str]:
        return [f"{self.name}{f' on {device}' if self._several else ''}: {totals}" for device, totals in self.devices.items()]

    def _columns(self) -> list[str]:
        return [_COLUMNS[0], *["device"][: self._several], *_COLUMNS[1:]]

    def _rows(self) -> list[list[str]]:
        rows = []
        for i, moment in enumerate(self.moments):
            rows.append([f"[{i}] {moment.step}", *[moment.device][: self._several], bytes_text(moment.bytes), "", ""])
            rows += [["", *[""][: self._several], bytes_text(v.bytes), f"{v.name} {v.dtype}[{', '.join(map(str, v.shape))}]", v.line]
                     for v in moment.alive]
        return rows

    def __str__(self) -> str:
        return "\n".join([*self._head(), *columns([self._columns(), *self._rows()])])

    def _repr_html_(self) -> str:
        return table(self._columns(), self._rows(), "; ".join(self._head()))


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
    line = _line_text(*(slot.line or _first_line(steps[life[0]])))
    return Value(slot.name or slot.kind, slot.shape, str(slot.dtype), slot.nbytes, line, number, *life)


def _line_text(file: str, line: int, derived: bool) -> str:
    return f"{printable(basename(file))}:{line}{' ∂' * derived}" if file else ""


def _first_line(step: Launch | HostStep) -> tuple[str, int, bool]:
    """Of what has no line of its own (an operand that is packed): that of the kernel which needs it."""
    fused = step.fused if isinstance(step, Launch) else ()
    return next(((file, line, derived) for _, line, derived, file, _ in fused), ("", 0, False))


def memory(program: Any, name: str) -> Memory:
    """The memory of a compiled Program; see `Traced.memory`. Raises ArgumentError for one on the interpreter."""
    rows = rows_of(program)
    if isinstance(program, PartitionedProgram):
        values, totals = _Several(program, rows).found()
        names = device_names(program)
        return Memory(name, [(row.name, names[row.device]) for row in rows], values, totals)
    plan = program.plan
    if plan is None:
        raise ArgumentError(f"memory: {no_plan(name)}")
    inputs, outputs, constants = (sum(s.nbytes for s in plan.slots if s.kind == kind and s.alias is None)
                                  for kind in ("input", "output", "constant"))
    own = Totals(inputs, outputs, constants, sum(plan.blocks))
    return Memory(name, [(row.name, "") for row in rows], _values(plan), {program.device.name: own})


@dataclass(frozen=True)
class Row:
    """A step of a call: a launch or host step of a plan, a part on the interpreter (without a step), or the arrival of a transfer.

    part: the number of the part that it is of; -1 of a transfer. times: how often it runs, in a loop.
    """

    name: str
    device: Any
    part: int
    step: Launch | HostStep | None = None
    times: int = 1
    transfer: Node | None = None


def rows_of(program: Any) -> list[Row]:
    """The steps of a call, in the order in which they are enqueued. What is copied in one context arrives as soon as it is sent."""
    rows: list[Row] = []
    if not isinstance(program, PartitionedProgram):
        return _part_rows(program, 0) if program.plan is not None else []
    number = 0
    for step in program.steps:
        if isinstance(step, Part):
            rows += _part_rows(step.program, number)
            number += 1
            continue
        node = step.transfer
        there = node.attrs["target"]
        if isinstance(step, Fetch) == (node.attrs["source"] in there.peers):
            rows.append(Row(f"{suggest_name(node.operands[0])} arrives", there, -1, transfer=node))
    return rows


def _part_rows(part: Program, number: int) -> list[Row]:
    if part.plan is None:
        return [Row(interpreted(part), part.device, number)]
    return [Row(step.name if isinstance(step, HostStep) else step.entry, part.device, number, step, times)
            for step, times in part.plan.each()]


def _values(plan: Plan) -> list[Value]:
    lives, steps = _lives(plan), [step for step, _ in plan.each()]
    return [_value(plan, slot, lives[slot], steps) for slot in sorted(lives)]


class _Several:
    """What is on the devices of a program of several. What a part makes for others is there from the part's first step until the last
    one that reads it is done; what was sent, from its arrival on."""

    def __init__(self, program: PartitionedProgram, rows: Sequence[Row]) -> None:
        self.program, self.names, self.rows = program, device_names(program), rows
        self.totals = {name: Totals() for name in self.names.values()}
        self.values: list[Value] = []
        self.lives: dict[Node, tuple[int, int, str]] = {}     # the first and last step, and the device
        self.at = 0                                           # the number of the next row

    def found(self) -> tuple[list[Value], dict[str, Totals]]:
        """The values, and each device's totals."""
        number = 0
        for node in self.program.whole.inputs:
            if (device := self.program.where[node]) in self.names:          # (a run-time number is nowhere)
                self.totals[self.names[device]].inputs += node.aval.nbytes
        for step in self.program.steps:
            if isinstance(step, Part):
                self._part(step, number)
                number += 1
            else:
                self._sent(step)
        for node, (first, last, device) in self.lives.items():
            if node in self.program.whole.outputs:
                self.totals[device].outputs += node.aval.nbytes
            else:
                line = _line_text(node.loc.filename, node.loc.line, node.loc.derived)
                self.values.append(Value(suggest_name(node), node.shape, str(node.dtype), node.aval.nbytes, line, -1, first, last, device))
        return self.values, self.totals

    def _part(self, part: Part, number: int) -> None:
        plan, device, start = part.program.plan, self.names[part.program.device], self.at
        self.at += sum(row.part == number for row in self.rows)
        self.lives.update({node: (start, max(start, self.at - 1), device) for node in part.makes if isinstance(node, Node)})
        self._read(part.reads)
        totals, outputs = self.totals[device], self.program.whole.outputs
        new = {k for j, k in enumerate(part.makes) if isinstance(k, int) and (plan is None or plan.slots[plan.outputs[j]].alias is None)}
        totals.outputs += sum(node.aval.nbytes for node in {outputs[k] for k in new})
        if plan is not None:
            totals.constants += sum(s.nbytes for s in plan.slots if s.kind == "constant" and s.alias is None)
            totals.reserved += sum(plan.blocks)
            self.values += [replace(v, first=start + v.first, last=start + v.last, device=device, part=number) for v in _values(plan)]

    def _sent(self, step: Fetch | Receive) -> None:
        node = step.transfer
        if self.at < len(self.rows) and self.rows[self.at].transfer is node:
            self.lives[node] = self.at, self.at, self.names[node.attrs["target"]]
            self.at += 1
        self._read([node.operands[0]])

    def _read(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node in self.lives:
                first, last, device = self.lives[node]
                self.lives[node] = first, max(last, self.at - 1), device
