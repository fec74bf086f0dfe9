"""From kernels to a Plan: slots for every buffer, storage for temporaries, the program's source. Start at `assemble`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir.kernel import FAULTS, Iteration, Kernel, LoweredLoop, RuntimeScalar, Temp
from tracegrad.codegen.kernel.ir.statements import Buffer
from tracegrad.codegen.lower.context import Context
from tracegrad.codegen.planning.arguments.generic import Folder, Template, generic
from tracegrad.codegen.planning.arguments.parameterize import share
from tracegrad.codegen.planning.memory_plan import assign
from tracegrad.codegen.planning.register_temporaries import in_registers
from tracegrad.codegen.planning.source import foreign, functions, source
from tracegrad.codegen.schedule.grouping import strip
from tracegrad.codegen.schedule.host_scalars import Program
from tracegrad.config import config
from tracegrad.errors import CompilerBug, GraphError
from tracegrad.graph.ir import Graph, Node
from tracegrad.support.plan import Fault, HostStep, Known, Launch, Loop, Offset, Plan, Scalar, Slot, Step
from tracegrad.support.plan import Iteration as IterationNumber


class Slots:
    """The plan's buffers, numbered as they turn up: inputs first."""

    def __init__(self, graph: Graph, context: Context, copies: Mapping[Node, Node]) -> None:
        self.context, self.copies = context, copies
        self.slots: list[Slot] = []
        self.number: dict[Any, int] = {}
        self.inputs = []
        for node in graph.inputs:
            if node not in context.scalars:
                self.number[node] = self.add(Slot("input", node.shape, node.dtype, context.namer(node) or node.attrs.get("label", "")))
                self.inputs.append(self.number[node])
        self.outputs = [self.output(node) for node in graph.outputs]

    def add(self, slot: Slot) -> int:
        self.slots.append(slot)
        return len(self.slots) - 1

    def output(self, node: Node) -> int:
        base = self.copies.get(strip(node), strip(node))
        if base not in self.number:
            if base.fn.name == "data":
                self.number[base] = self.constant(base)
            else:
                into = self.context.alias.get(base)
                alias = None if into is None else self.number[into]
                name = self.context.namer(node)
                self.number[base] = self.add(Slot("output", node.shape, node.dtype, name, alias=alias, line=_line(base)))
        return self.number[base]

    def constant(self, node: Node) -> int:
        try:
            value = np.asarray(node.value, node.dtype)
        except (TypeError, ValueError):
            raise GraphError(f"compile_graph: {node!r} is neither an input nor a constant with a numpy value") from None
        return self.add(Slot("constant", node.shape, node.dtype, self.context.namer(node), data=value))

    def of(self, ref: Any) -> int:
        """The slot that a kernel's parameter binds to."""
        if ref in self.context.alias:
            raise CompilerBug(f"a step names {ref!r}, which lies in the buffer of {self.context.alias[ref]!r}")
        if ref not in self.number:
            if ref is FAULTS:
                slot = self.add(Slot("faults", (2 * len(self.context.faults),), FAULTS.dtype, FAULTS.name))
            elif isinstance(ref, Temp):
                slot = self.add(Slot("temp", (ref.size,), np.dtype(ref.dtype), ref.name))
            elif ref.fn.name == "data":
                slot = self.constant(ref)
            else:
                slot = self.add(Slot("temp", ref.shape, ref.dtype, self.context.namer(ref) or ref.fn.name, line=_line(ref)))
            self.number[ref] = slot
        return self.number[ref]


def _line(node: Node) -> tuple[str, int, bool]:
    return node.loc.filename, node.loc.line, node.loc.derived


def assemble(
    graph: Graph, steps: Sequence[Kernel | HostStep | LoweredLoop], context: Context, copies: Mapping[Node, Node], program: Program,
    templates: Folder | None
) -> Plan:
    """The plan of `steps`, in order. templates: as `generic` has it."""
    slots = Slots(graph, context, copies)
    steps = in_registers(steps, slots.number) if config.fuse else steps
    kernels, entries, notes, known = distinct(LoweredLoop(tuple(steps), 1, Iteration()).kernels, context, templates)
    final = numbered(steps, slots, entries, {})
    if config.check:
        expect_written(steps, slots)
    uses: list[list[int]] = []
    for step in steps:
        add_uses(step, slots, uses)
    sizes: dict[Hashable, int] = {a: slots.slots[a].nbytes for touched in uses for a in touched}
    block_of, blocks = assign(sizes, uses)
    table = tuple(replace(s, block=block_of.get(i)) for i, s in enumerate(slots.slots))
    supplied = sum(1 for n in graph.inputs if n in context.scalars)
    built, parts, extensions = functions(kernels, context, known)
    return Plan(source(kernels, context, extensions), final, table, tuple(slots.inputs), tuple(slots.outputs), supplied, tuple(blocks),
                scalar_program=program + tuple((Known(value), ()) for value in context.constants),
                checks=tuple(node.fn.check(node) for node in context.faults),  # type: ignore[attr-defined]
                reads=tuple(graph.masks([n for n in graph.inputs if n not in context.scalars])),
                checked=tuple(graph.masks(context.reporters.get(node, node) for node in context.faults)),
                functions=built, parts=parts, notes=notes, foreign=foreign(kernels, context), kernels=tuple(kernels))


def numbered(
    steps: Sequence[Kernel | HostStep | LoweredLoop], slots: Slots, entries: Mapping[str, tuple[str, tuple[Offset, ...]]],
    loops: dict[Iteration, int]
) -> tuple[Step, ...]:
    """The plan's steps: with slots, and loops, by number."""
    final: list[Step] = []
    for step in steps:
        if isinstance(step, HostStep):
            final.append(replace(step, inputs=tuple(map(slots.of, step.inputs)), outputs=tuple(map(slots.of, step.outputs))))
        elif isinstance(step, LoweredLoop):
            number = loops[step.iteration] = len(loops)
            final.append(Loop(numbered(step.steps, slots, entries, loops), step.length, number, step.name))
        else:
            args = tuple(IterationNumber(loops[r]) if isinstance(r, Iteration) else Scalar(r.index, r.dtype) if isinstance(r, RuntimeScalar)
                         else r if isinstance(r, Fault) else slots.of(r) for r in step.refs)
            entry, more = entries[step.entry]
            note = "; ".join(filter(None, (step.note, *step.why)))
            final.append(Launch(entry, step.global_size, step.local_size, (*args, *more), step.flops, step.bytes, note,
                                step.fused, step.work))
    return tuple(final)


def expect_written(steps: Sequence[Kernel | HostStep | LoweredLoop], slots: Slots) -> None:
    """Raise where a step reads a buffer that no step before it writes, or none writes a result: a step is missing."""
    written = {i for i, slot in enumerate(slots.slots) if slot.kind in ("input", "constant", "faults") or not slot.nbytes}
    written |= {i for i, slot in enumerate(slots.slots) if slot.alias in written}          # an input's buffer, which has its value

    def missing(refs: Sequence[Any], who: str) -> None:
        for ref in refs:
            if ref in slots.number and slots.number[ref] not in written:
                raise CompilerBug(f"assemble: {who} reads {slots.slots[slots.number[ref]].name!r}, which nothing before it writes")

    def through(steps: Sequence[Kernel | HostStep | LoweredLoop]) -> None:
        for step in steps:
            if isinstance(step, LoweredLoop):                # an iteration may read what the one before it wrote
                written.update(slots.number[r] for k in step.kernels for r in k.refs if r in slots.number)
                through(step.steps)
                continue
            if isinstance(step, HostStep):
                missing(step.inputs, step.name)
                written.update(slots.number[r] for r in step.outputs if r in slots.number)
                continue
            read = [p.ref for p in step.parameters if isinstance(p, Buffer) and p.access == "const"]
            missing(read, step.entry)
            written.update(slots.number[r] for r in step.refs if r in slots.number)

    through(steps)
    for number in slots.outputs:
        if number not in written:
            raise CompilerBug(f"assemble: no step writes the result {slots.slots[number].name!r}")


def add_uses(step: Kernel | HostStep | LoweredLoop, slots: Slots, uses: list[list[int]]) -> None:
    """Add which temporaries each step touches, in order. What a loop has from outside, or hands on, it uses throughout."""

    def temps(refs: Sequence[Any]) -> list[int]:
        numbers = [slots.number[r] for r in refs if r in slots.number]
        return [a for a in numbers if slots.slots[a].kind == "temp"]

    if isinstance(step, LoweredLoop):
        start = len(uses)
        for inner in step.steps:
            add_uses(inner, slots, uses)
        if len(uses) > start:
            uses[start] += temps(step.held)
            uses[-1] += temps(step.held)
    else:
        uses.append(temps(step.refs if isinstance(step, Kernel) else step.inputs + step.outputs))


def distinct(kernels: Sequence[Kernel], context: Context, templates: Folder | None
             ) -> tuple[list[Kernel], dict[str, tuple[str, tuple[Offset, ...]]], tuple[str, ...], dict[str, Template]]:
    """Kernels of different form; for each kernel, the entry to launch and numbers to pass: equal steps of a loop share one function.

    And of sizes that vary: what is to be said of them, and the templates of kernels, by name.
    """
    first: dict[str, Kernel] = {}
    same: dict[str, str] = {}
    called: dict[str, str] = {}
    for kernel in kernels:
        key = kernel.entry if kernel.foreign else kernel.form
        if called.setdefault(kernel.entry, key) != key:
            raise CompilerBug(f"assemble: two kernels are called {kernel.entry}:\n{kernel.text}")
        same[kernel.entry] = first.setdefault(key, kernel).entry
    fewer, instead = share(list(first.values()))
    notes: tuple[str, ...] = ()
    sizes: dict[str, tuple[Offset, ...]] = {}
    known: dict[str, Template] = {}
    if context.varying:
        fewer, sizes, notes, known = generic(fewer, context.target, context.varying, templates)
        if context.for_one_size:
            notes += (f"made for this size, since a form for all sizes is not proved for it: {', '.join(context.for_one_size)}",)
    entries = {}
    for entry, one in same.items():
        into, offsets = instead.get(one, (one, ()))
        entries[entry] = into, (*map(Offset, offsets), *sizes.get(into, ()))
    count = Counter(entries[k.entry][0] for k in kernels)
    return [k if k.foreign or count[k.entry] == 1 else k.launched(count[k.entry]) for k in fewer], entries, notes, known
