"""A compiled program shown to people: its kernels (`Kernels`) and its story (`explain`). Its Python: see `python_source`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from operator import index
from typing import Any, SupportsIndex

from tracegrad.errors import ArgumentError, IndexOutOfRange
from tracegrad.execute.compile import executable_graph
from tracegrad.execute.partition import Fetch, Part, PartitionedProgram, Receive
from tracegrad.execute.program import Program
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.leaf_operations import Shared
from tracegrad.graph.printing import aval_text, suggest_name
from tracegrad.inspection.remedies import remedies
from tracegrad.support.html import preformatted
from tracegrad.support.plan import Computed, HostStart, HostStep, HostWait, Launch, Loop, Plan, Step

# ---------------------------------------------------------------------------------------------------------------- kernels

_NO_KERNELS = "no kernels: this program ran on the device \"numpy\", which interprets the graph; choose an OpenCL device with tg.set_device"


class Kernels(str):
    """The OpenCL C of a plan: a str, so it is printed, sliced, searched and written as the text that it is.

    But its items are kernels: an integer (launch order) or a name as index gives one, and so do iteration and len.
    names: the kernels' names. source: the text, or "" without kernels. A kernel that is not there is an IndexOutOfRange or ArgumentError.

    >>> f = tg.trace(lambda x: (x * 2).sin())
    >>> y = f(tg.ones(3))
    >>> print(f.kernels())
    >>> print(f.kernels()[0])
    >>> assert "sin" in f.kernels()
    >>> start = f.kernels()[:100]
    """

    source: str
    names: list[str]
    _sources: dict[str, str]

    def __new__(cls, plan: Plan | None, inner: Sequence[tuple[str, Plan]] = ()) -> Kernels:
        """inner: the plans that steps of `plan` run (a loop's condition and body), and what they are."""
        source = "" if plan is None or not plan.launches else plan.source
        sources = {} if plan is None else dict.fromkeys((launch.entry for launch in plan.launches), source)
        for what, more in inner:
            source += f"{source and chr(10)}// {what}\n{more.source or '// (nothing to compute)' + chr(10)}"
            for launch in more.launches:
                sources.setdefault(launch.entry, more.source)
        return cls._of(source, sources)

    @classmethod
    def _of(cls, source: str, sources: dict[str, str]) -> Kernels:
        kernels = super().__new__(cls, source or (f"// {_NO_KERNELS}\n" if not sources else ""))
        kernels.source, kernels.names, kernels._sources = source, [*sources], sources
        return kernels

    def __reduce__(self) -> Any:
        return type(self)._of, (self.source, self._sources)

    def __repr__(self) -> str:
        return f"<{_count(len(self), 'kernel')}: {', '.join(self.names)}>" if self.names else f"<{_NO_KERNELS}>"

    def _repr_html_(self) -> str:
        return preformatted(self)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return (self[name] for name in self.names)

    def __getitem__(self, key: SupportsIndex | slice | str) -> str:
        """The text of one kernel, with the comments above it; of a slice the whole text's characters."""
        if isinstance(key, slice):
            return str(self)[key]
        if isinstance(key, str):
            if key not in self._sources:
                raise ArgumentError(f"kernels: there is no kernel {key!r}; there are {', '.join(self.names) or 'none'}")
            return kernel_text(self._sources[key], key)
        number = index(key)
        if not -len(self) <= number < len(self):
            there = f"there is no kernel {number}; there are {len(self)}" if self.names else _NO_KERNELS
            raise IndexOutOfRange(f"kernels: {there}")
        return self[self.names[number]]


def kernel_text(source: str, entry: str) -> str:
    """The definition of the kernel `entry` in an OpenCL C text: from the comment above it to its closing brace."""
    found = next((m for m in re.finditer(rf"\b{re.escape(entry)}\s*\(", source) if _is_definition(source, m.start())), None)
    if found is None:
        raise ArgumentError(f"kernels: the text defines no kernel {entry!r}")
    start = source.rfind("kernel", 0, found.start())
    start = source.rfind("\n", 0, start) + 1
    while start > 0:                                        # comments and attributes directly above belong to it
        above = source.rfind("\n", 0, start - 1) + 1
        line = source[above:start].strip()
        if not line.startswith(("//", "/*", "*", "__attribute__")):
            break
        start = above
    depth = 0
    for token in re.finditer(r"//[^\n]*|/\*.*?\*/|[{}]", source[found.end():], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if token.group() == "}" and depth == 0:
            return source[start:found.end() + token.end()] + "\n"
    return source[start:]


def _is_definition(source: str, at: int) -> bool:
    line = source.rfind("\n", 0, at) + 1
    head = source[max(0, source.rfind(";", 0, at), source.rfind("}", 0, at)):at]
    return "//" not in source[line:at] and re.search(r"\b(__)?kernel\b[^{]*$", head) is not None


# ---------------------------------------------------------------------------------------------------------------- explain


def explain(program: Any, name: str, compilations: Sequence[str] = ()) -> str:
    """What became of a compiled program: its kernels and why each ended, what was fused, memory, remedies for what is slow, and why

    compilations happened.

    program: a compiled Program. compilations: one reason per recording so far, of which those that differ in sizes may share kernels.
    """
    lines = [f"{name} on {program.device}", _counts(program.graph)]
    if isinstance(program, PartitionedProgram):
        names = device_names(program)
        lines[0] = f"{name} on {' and '.join(names.values())}"
        for step in program.steps:
            lines += _of_part(step.program, names) if isinstance(step, Part) else [_of_transfer(step, names)]
    else:
        lines += _of_program(program)
    lines.append(f"recorded {_count(len(compilations), 'time', 'times')}" + (":" if compilations else ""))
    lines += [f"  {i + 1}. {reason}" for i, reason in enumerate(compilations)]
    return "\n".join(lines)


def _counts(graph: Graph) -> str:
    work = [n for n in graph if n.fn.family not in ("leaf", "custom", "output") and resolve(n) is n]
    derived = sum(n.loc.derived for n in work)
    return (f"  {_count(len(work), 'operation')} ({len(work) - derived} written, {derived} derived), "
            f"{_count(len(graph.inputs), 'input')}, {_count(len(graph.outputs), 'output')}: {_families(work)}")


def device_names(program: PartitionedProgram) -> dict[Any, str]:
    """What to call the devices of a program: those that look alike have numbers."""
    ends = [step.transfer.attrs for step in program.steps if not isinstance(step, Part)]
    devices = dict.fromkeys([*(part.device for part in program.parts), *(d for attrs in ends for d in attrs.values())])
    names = {d: f"{d.name} ({d.driver})" for d in devices}
    alike = Counter(names.values())
    return {d: f"{name} number {i}" if alike[name] > 1 else name for i, (d, name) in enumerate(names.items(), 1)}


def interpreted(part: Program) -> str:
    """What to call a part that the interpreter computes."""
    return f"{sum(bool(node.operands) for node in part.graph)} operations by NumPy"


def _of_part(program: Program, names: dict[Any, str]) -> list[str]:
    """The lines on what one of several devices does at a stretch."""
    return [f"  on {names[program.device]}:", *(f"  {line}" for line in [_counts(program.graph), *_of_program(program)])]


def _of_transfer(step: Fetch | Receive, names: dict[Any, str]) -> str:
    """The line on a value that leaves a device, or arrives at one."""
    node = step.transfer
    what = f"{suggest_name(node.operands[0])}, {aval_text(node.aval)}, {bytes_text(node.aval.nbytes)}"
    here, there = node.attrs["source"], node.attrs["target"]
    source, target = names[here], names[there]
    if isinstance(step, Fetch):
        return f"  {what}: leaves {source} for {target} once it is there, whatever comes after it"
    who = "that waits for it, and the host does not" if here in there.peers else "the host waits for it, and the devices go on"
    return f"  {what}: arrives on {target}; {who}"


def _of_program(program: Program) -> list[str]:
    """The lines on a program of one device."""
    from tracegrad.codegen.graph.attention import story  # noqa: PLC0415  (the code generator is not loaded where plans come from the disk)

    graph, plan, lines = program.graph, program.plan, list[str]()
    if plan is None:
        lines.append(f"  {_NO_KERNELS}")
    else:
        kernels = len({launch.entry for launch in plan.launches})
        host = sum(times for step, times in plan.each() if isinstance(step, HostStep) and not isinstance(step, HostWait))
        launches = sum(times for step, times in plan.each() if isinstance(step, Launch))
        lines.append(f"  fused into {_count(kernels, 'kernel')}, {_count(launches, 'launch', 'launches')}"
                     + (f", {_count(host, 'call', 'calls')} of host code" if host else ""))
        lines += [f"  {note}" for note in plan.notes]
        if program.own_size is program.executable:
            lines.append("  kernels are made for this size, since it came often; sizes vary, and others begin with kernels for any")
        lines += [f"  {line}" for line in story(executable_graph(graph), program.device.target)]
        lines += _memory(plan)
        lines += _steps(plan.steps, plan)
        for what, inner in inner_plans(graph):
            lines.append(f"  {what}: {_count(len(inner.launches), 'launch', 'launches')} an iteration")
            lines += [f"  {line}" for line in _steps(inner.steps, inner)]
    return lines + [f"  {line}" for line in remedies(executable_graph(graph), plan)]


def kernels(program: Program) -> Kernels:
    """The kernels of a program."""
    if isinstance(program, PartitionedProgram):
        plans = [(f"part {i}, on {part.device}", part.plan) for i, part in enumerate(program.parts) if part.plan is not None]
        return Kernels(None, [*plans, *inner_plans(program.graph)])
    return Kernels(program.plan, inner_plans(program.graph))


def no_plan(name: str) -> str:
    """Why a program has no plan to be looked at, and what to do."""
    return f"{name} ran on the device \"numpy\", which interprets the graph; choose an OpenCL device with tg.set_device, and call it there"


def inner_plans(graph: Graph) -> list[tuple[str, Plan]]:
    """The plans that run inside steps of a graph's plan, and what they are."""
    found = dict.fromkeys(node.fn for node in graph if isinstance(node.fn, Shared))
    return [(f"{fn.name}: {what}", program.plan) for fn in found for what, program in fn.programs if program.plan is not None]


def _families(nodes: Sequence[Node]) -> str:
    counts = Counter(n.fn.family or n.fn.name for n in nodes)
    return ", ".join(f"{k} {family}" for family, k in counts.most_common()) or "nothing to compute"


def _memory(plan: Plan) -> list[str]:
    temps = [s for s in plan.slots if s.kind == "temp"]
    in_place = [plan.slots[s.alias].name or "?" for s in plan.slots if s.kind == "output" and s.alias is not None]
    lines = []
    if temps:
        lines.append(f"  temporary memory: {bytes_text(sum(plan.blocks))} in {_count(len(plan.blocks), 'block')} "
                     f"for {_count(len(temps), 'intermediate')} of {bytes_text(sum(s.nbytes for s in temps))}")
    if in_place:
        lines.append(f"  updated in place: {', '.join(in_place)}")
    return lines


def _steps(steps: Sequence[Step], plan: Plan, number: str = "") -> list[str]:
    """The lines on each step; those in a loop are numbered within it."""
    lines = []
    for i, step in enumerate(steps):
        if isinstance(step, HostStart):
            lines.append(f"  [{number}{i}] {step.name}: {_meanwhile(step, i, steps, number)}")
        elif isinstance(step, Loop):
            length, steps_each = _count(step.length, "iteration"), _count(len(step.steps), "step")
            lines.append(f"  [{number}{i}] {step.name}: a loop of {length}, {steps_each} each")
            lines += [f"  {line}" for line in _steps(step.steps, plan, f"{number}{i}.")]
        else:
            lines += _step(f"{number}{i}", step, plan)
    return lines


def _meanwhile(own: HostStart, start: int, steps: Sequence[Step], number: str) -> str:
    """What runs between the beginning of a call, step number `start`, and what waits for it; but for what keeps the calls in order."""
    end = next(i for i, s in enumerate(steps) if isinstance(s, HostWait) and s.inputs[0] == own.outputs[0])
    tokens = {s.outputs[0] for s in steps if isinstance(s, HostStart)}
    launches = [i for i, s in enumerate(steps[:end]) if i > start and (isinstance(s, Loop) or (isinstance(s, Launch) and
                                                                                               tokens.isdisjoint(s.args)))]
    beside = f"overlaps with {_count(len(launches), 'launch', 'launches')}, the last one [{number}{launches[-1]}]" if launches else \
        "overlaps with no launch"
    return f"host code that begins here and {beside}; [{number}{end}] waits for it"


def _step(i: str, step: Launch | HostStep, plan: Plan) -> list[str]:
    if isinstance(step, HostWait):
        return [f"  [{i}] {step.name}: the results of what the host began"]
    if isinstance(step, HostStep):
        why = f" ({step.note})" if step.note else ""
        return [f"  [{i}] {step.name}: host code{why}; everything before it has to be finished first"]
    items = "x".join(map(str, step.global_size)) + (" work-item" if prod(step.global_size) == 1 else " work-items")
    if step.local_size and prod(step.local_size) > 1:
        items += f" in groups of {'x'.join(map(str, step.local_size))}"
    lines = [f"  [{i}] {step.entry}: {flops_text(step.flops)}, {bytes_text(step.bytes)} moved, {items}"]
    if step.fused:
        lines.append(f"      computes {_counted([name for name, *_ in step.fused])} ({lines_text(step.fused)})")
    slots = [plan.slots[a] for a in step.args if isinstance(a, int)]
    if slots:
        lines.append("      touches " + ", ".join(f"{s.name or s.kind} {s.dtype}[{', '.join(map(str, s.shape))}]" for s in slots))
    if step.note:
        lines.append(f"      {step.note}")
    return lines


def _counted(names: Sequence[str]) -> str:
    """`sin, 3 mul, add`, in the order of their first."""
    return ", ".join(f"{n} {name}" if n > 1 else name for name, n in Counter(names).items())


def lines_text(fused: Sequence[Computed]) -> str:
    """`lines 3-5, backward of 4`."""
    parts = []
    for derived in (False, True):
        numbers = sorted({line for _, line, d, *_ in fused if d == derived})
        runs: list[list[int]] = []
        for n in numbers:
            if runs and n == runs[-1][1] + 1:
                runs[-1][1] = n
            else:
                runs.append([n, n])
        if runs:
            lines = ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in runs)
            parts.append(("backward of " if derived else "") + ("line " if len(numbers) == 1 else "lines ") + lines)
    return "; ".join(parts)


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def bytes_text(n: float) -> str:
    return _scaled(n, 1024, ("B", "KiB", "MiB", "GiB"))


def flops_text(n: float) -> str:
    return _scaled(n, 1000, ("flop", "kflop", "Mflop", "Gflop"))


def _scaled(n: float, step: int, units: Sequence[str]) -> str:
    """n in the largest unit that leaves it above one; whole in the smallest."""
    power = 0
    while n >= step and power < len(units) - 1:
        n, power = n / step, power + 1
    return f"{n:.{1 if power else 0}f} {units[power]}"
