"""A trace of several devices: a `PartitionedProgram`, whose parts are Programs of one device each. What is computed where, in which order,
says stages.py.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from tracegrad.errors import DeviceError
from tracegrad.execute.compile import executable_graph
from tracegrad.execute.device_partition import Partition, call_of, moves
from tracegrad.execute.devices import Device, depart
from tracegrad.execute.program import Program
from tracegrad.graph.ir import ON_HOST, Graph, Node, topological
from tracegrad.graph.primitive import REGISTRY, bind, placeholder
from tracegrad.graph.printing import suggest_name
from tracegrad.graph.substitution import rebound
from tracegrad.ops.primitives.transfer import TRANSFER, transfer


@dataclass(frozen=True)
class Part:
    """A step of a PartitionedProgram: what one device computes at a stretch. What it reads and makes is known by node, and a result of
    the whole by its number. donate: as of its Program."""

    program: Program
    reads: list[Node]
    makes: list[Any]
    donate: dict[int, int]

    def run(self, held: dict[Any, Any]) -> None:
        """Enqueue it."""
        held.update(zip(self.makes, self.program([held[n] for n in self.reads]), strict=True))


@dataclass(frozen=True)
class Fetch:
    """A step: a transfer's value leaves its device once the commands enqueued so far are done. Nobody waits for that here."""

    transfer: Node
    source: Node

    @property
    def reads(self) -> list[Node]:
        return [self.source]

    def run(self, held: dict[Any, Any]) -> None:
        """Enqueue it."""
        held[self.transfer] = depart(held[self.source], self.transfer.attrs["target"], self.source.shape, self.source.dtype)


@dataclass(frozen=True)
class Receive:
    """A step: a transfer's value arrives, or devices of one context know what to wait for."""

    transfer: Node

    @property
    def reads(self) -> list[Node]:
        return [self.transfer]

    def run(self, held: dict[Any, Any]) -> None:
        """See `depart`."""
        held[self.transfer] = held[self.transfer].arrive()


class Step(Protocol):
    """What a call of several devices is made of: a Part, a Fetch or a Receive."""

    def run(self, held: dict[Any, Any]) -> None:
        """Do it. held: what is there, by node, and what it makes."""


class PartitionedProgram(Program):
    """A Program whose graph has transfers: parts of one device each, which are Programs, and transfers between them.

    Parts that make what is sent come first, each with its transfers behind it, so that a transfer waits for nothing else; what is left is
    one part a device, the last, and before it one of what need not wait for the transfers. Only the last ones overwrite inputs: nothing has
    changed when a transfer fails.

    where: the device of each node of `whole`, the graph without what only differentiation cares about; None of what is made on each
    device that reads it, as constants are. steps: in the order in which a call makes them.
    """

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node], device: Device, placed: Mapping[Node, Device],
                 on: Sequence[Device | None], donate: Mapping[int, int] | None = None, results: Sequence[str] = (),
                 varying: frozenset[int] = frozenset()) -> None:
        """device: that of what could be on any. placed: those of the inputs, but of run-time numbers. on: those of the outputs, None where
        nothing but their operands tells. Others are as of a Program."""
        self._hold(Graph.capture(inputs, outputs), device)
        self.graph.output_names = list(results)
        self.placed = placed
        self.whole, self.where = _on_devices(executable_graph(self.graph, transfers=True), placed, on, device)
        wanted: dict[Any, list[Node]] = defaultdict(list)
        for node in dict.fromkeys(self.whole.outputs):
            wanted[self.where[node]].append(node)
        partition = Partition(wanted, lambda n: n, set(self.whole.inputs).__contains__,
                              lambda n: moves(n) or self.where[n] is None, last=True)
        self.updates = dict(donate or {})                # which outputs are inputs anew
        self.steps = self._steps(partition, self.updates, varying)
        parts = [step for step in self.steps if isinstance(step, Part)]
        written = {part.reads[i] for part in parts for i in part.program.written}
        self.written = [i for i, node in enumerate(self.whole.inputs) if node in written]
        last = {key for part in parts for key in part.makes if isinstance(key, int)}
        self._ends = [k if k in last else node for k, node in enumerate(self.whole.outputs)]
        self._given: list[Any] = []                      # a call's inputs: numbers, and references to values
        self._done: list[list[Node]] = []                # what nobody reads after each step
        later = {node for node in self._ends if isinstance(node, Node)}
        for step in reversed(self.steps):
            self._done.insert(0, [node for node in dict.fromkeys(step.reads) if node not in later])
            later.update(step.reads)

    def latest(self) -> list[Any]:
        """The inputs of the latest call, as far as somebody holds them; None for others."""
        return [given() if isinstance(given, weakref.ref) else given for given in self._given]

    @property
    def parts(self) -> list[Program]:
        """The Programs of one device each, in the order in which they are launched."""
        return [step.program for step in self.steps if isinstance(step, Part)]

    @property
    def ready(self) -> bool:
        """True: the parts are compiled."""
        return True

    def generalize(self, donate: Mapping[int, int], varying: frozenset[int]) -> None:
        """See Program."""
        for step in self.steps:
            if isinstance(step, Part):
                step.program.generalize(step.donate, varying)

    def computing(self, outputs: Sequence[Node]) -> PartitionedProgram:
        """See Program."""
        return PartitionedProgram(self.graph.inputs, outputs, self.device, self.placed, [None] * len(outputs))

    def __call__(self, values: Sequence[Any], lines: Any = None, ready: Any = None) -> list[Any]:
        """Values of the outputs. Waits for what is sent through the host's memory."""
        self._given = [value if weak else weakref.ref(value) for value, weak in zip(values, self.weak, strict=True)]
        results = self.through(self.steps, values)
        for k, i in self.updates.items():                # the interpreter's are not written in place
            if k < len(results) and not self.weak[i] and self._given[i]() is not results[k]:
                self._given[i] = weakref.ref(results[k])
        return results

    def through(self, steps: Sequence[Step], values: Sequence[Any]) -> list[Any]:
        """What a call does, by other steps than its own if need be: by such that also note when they were done."""
        held: dict[Any, Any] = dict(zip(self.whole.inputs, values, strict=True))
        for step, done in zip(steps, self._done, strict=True):
            step.run(held)
            for node in done:
                del held[node]
        return [held[key] if isinstance(key, int) or not held[key].may_change else held[key].copy() for key in self._ends]

    # ------------------------------------------------------------------------------------------------------------ making

    def _steps(self, partition: Partition, donate: Mapping[int, int], varying: frozenset[int]) -> list[Part | Fetch | Receive]:
        there = set(self.whole.inputs)                    # what has a value by now
        waiting, under_way = list(chain.from_iterable(partition.transfers)), list[Node]()
        steps: list[Part | Fetch | Receive] = []

        def fetch() -> None:
            for node in [n for n in waiting if n.operands[0] in there]:
                waiting.remove(node)
                under_way.append(node)
                steps.append(Fetch(node, node.operands[0]))

        def receive(nodes: Sequence[Node]) -> None:
            for node in nodes:
                under_way.remove(node)
                there.add(node)
                steps.append(Receive(node))
            fetch()                                       # what goes on to a third device

        def begins(node: Node) -> bool:
            return node in there or node.fn is TRANSFER

        def sent_at(targets: Sequence[Node]) -> int:
            """When the last of what they need was sent: who waits for the first one is computed first."""
            return max((under_way.index(n) for n in topological(targets, begins) if n in under_way), default=-1)

        fetch()
        for by_device in partition.computed[:-1]:
            for device, nodes in by_device.items():
                for targets in sorted(self._apart(nodes, there), key=sent_at):
                    order = topological(targets, begins)
                    receive([n for n in order if n in under_way])
                    kept = [n for n in order if n in partition.kept and n not in there and n not in targets]
                    steps.append(self._part(device, [*targets, *kept], [*targets, *kept], there, {}, varying))
                    there.update(targets, kept)
                    fetch()
        for device, nodes in partition.computed[-1].items():
            if early := self._meanwhile(nodes, there, begins):
                steps.append(self._part(device, early, early, there, {}, varying))
                there.update(early)
        while under_way:
            receive(list(under_way))
        for device, nodes in partition.computed[-1].items():
            makes = [k for k, node in enumerate(self.whole.outputs) if node in nodes]
            given = {j: donate[k] for j, k in enumerate(makes) if k in donate}
            steps.append(self._part(device, [self.whole.outputs[k] for k in makes], makes, there, given, varying))
        return steps

    def _meanwhile(self, targets: Sequence[Node], there: set[Node], begins: Callable[[Node], bool]) -> list[Node]:
        """What the last part of a device reads, and can be computed while what it waits for is sent: a gradient that is added to another
        device's. Nothing is computed twice, and elementwise work that only the last part reads is left to it, to be fused there."""
        order = [n for n in topological(targets, begins) if n not in there]
        if not any(n.fn is TRANSFER for n in order) or any("index" in n.attrs or n.fn.family in ON_HOST for n in targets):
            return []                                     # (results of one call are of one part)
        late = {n for n in order if n.fn is TRANSFER} | set(targets)
        for node in order:
            if not late.isdisjoint(node.operands):
                late.add(node)
        readers: dict[Node, list[Node]] = defaultdict(list)
        for node in order:
            for o in node.operands:
                readers[o].append(node)
        for node in reversed(order):
            if (moves(node) or node.fn.family == "elementwise") and late.issuperset(readers[node]):
                late.add(node)
        return [n for n in order if n not in late and self.where[n] is not None and n.operands and not late.isdisjoint(readers[n])]

    def _apart(self, targets: Sequence[Node], there: set[Node]) -> list[list[Node]]:
        """Targets that have nothing to do with each other, each by themselves: those of several batches, say. (They may read the same
        inputs, and what is moved of them, and constants.)"""
        free = set(there)
        group: dict[Node, Node] = {}

        def root(node: Node) -> Node:
            while group[node] is not node:
                group[node] = group[group[node]]
                node = group[node]
            return node

        calls: dict[Any, Node] = {}
        for node in topological(targets, lambda n: n in there or n.fn is TRANSFER):
            moved = moves(node) and free.issuperset(node.operands)
            if node in there or node.fn is TRANSFER or self.where[node] is None or node.constant or not node.operands or moved:
                free.add(node)
                continue
            group[node] = node
            other = [calls.setdefault(call_of(node), node)] if "index" in node.attrs else []
            for o in (*node.operands, *other):
                if o in group:
                    group[root(o)] = node
        found: dict[Any, list[Node]] = defaultdict(list)
        for node in targets:
            found[root(node) if node in group else node].append(node)
        return list(found.values())

    def _part(self, device: Device, outputs: Sequence[Node], makes: Sequence[Any], there: set[Node], donate: Mapping[int, int],
              varying: frozenset[int]) -> Part:
        """The part that computes outputs of what is there. donate: number of an output -> of an input of the whole."""
        order = topological(outputs, there.__contains__)
        reads = [n for n in order if n in there]
        given = set(self.whole.inputs)
        new = {n: n if n in given else placeholder(n.aval, suggest_name(n)) for n in reads}
        for node in order:
            if node not in new:
                new[node] = rebound(node, tuple([new[o] for o in node.operands]))
        at = {node: i for i, node in enumerate(reads)}
        own = {j: at[self.whole.inputs[i]] for j, i in donate.items() if self.whole.inputs[i] in at}
        names = [self.graph.output_names[k] if isinstance(k, int) and k < len(self.graph.output_names) else "" for k in makes]
        program = Program([new[n] for n in reads], [new[n] for n in outputs], device, own, names, varying=varying)
        return Part(program, reads, list(makes), own)


def _on_devices(graph: Graph, placed: Mapping[Node, Device], on: Sequence[Device | None], device: Device
                ) -> tuple[Graph, dict[Node, Device | None]]:
    """A graph whose transfers all send something, and the devices of its nodes; see PartitionedProgram."""
    while True:
        where = _devices(graph, placed, on, device)
        sent = [(n, n.operands[0]) for n in graph if n.fn is TRANSFER]
        free = {n for n, source in sent if where[source] is None or source.value is not None
                or (source.constant and transfer(source, n.attrs["source"], n.attrs["target"]) is source)}
        own = {n for n, source in sent if source.constant} - free   # a constant that the other device cannot compute
        if not free and not own:
            break

        def replaced(node: Node, operands: tuple[Node, ...], free: set[Node] = free, own: set[Node] = own) -> Node:
            if node in free:
                return operands[0]
            return rebound(node, (operands[0].twin(),) if node in own else operands)

        graph = graph.rebuilt(replaced)
    outputs, twins = [], dict[Any, Node]()
    for node, wanted in zip(graph.outputs, on, strict=True):        # what several devices return is a result of each
        if where[node] is None:
            key = node, wanted or device
            if key not in twins:                                    # (an input here is a run-time number)
                twins[key] = bind(REGISTRY["copy"], (node,), {}).twin() if node in graph.inputs else node.twin()
                twins[key].value, where[twins[key]] = node.value, key[1]
            node = twins[key]
        outputs.append(node)
    return Graph.capture(graph.inputs, outputs), where


def _devices(graph: Graph, placed: Mapping[Node, Device], on: Sequence[Device | None], device: Device) -> dict[Node, Device | None]:
    """The device of each node: that of its operands, else of what alone reads it; None where there are several, or for leaves."""
    where: dict[Node, Device | None] = {}
    given = {n: placed.get(n) for n in graph.inputs}                # (a constant of the trace is on any device)
    for node in graph:
        here = [where[o] for o in node.operands if where[o] is not None] if node not in given else []
        expected = [*here, node.attrs["source"]] if node.fn is TRANSFER else here
        if len(set(expected)) > 1:
            first, second, *_ = dict.fromkeys(expected)
            raise DeviceError(f"{node.fn.name} at {node.loc}: the operands are on different devices, {first} and {second}; move one with "
                              "x.to(device)")
        found = node.attrs["target"] if node.fn is TRANSFER else given.get(node) or next(iter(here), None)
        where[node] = device if found is None and node.fn.family in ON_HOST else found       # host code is called once
    readers: dict[Node, set[Device]] = defaultdict(set)
    for node, wanted in zip(graph.outputs, on, strict=True):
        if wanted is not None:
            readers[node].add(wanted)
            if where[node] not in (None, wanted):
                raise DeviceError(f"{node.fn.name} at {node.loc}: a result on {wanted} is made on {where[node]}; move it with x.to(device)")
    for node in reversed(list(graph)):
        if where[node] is None and node.operands and node not in graph.inputs and len(readers[node]) == 1:
            where[node], = readers[node]
        at = node.attrs["source"] if node.fn is TRANSFER else where[node]
        for o in node.operands:
            readers[o] |= readers[node] if at is None else {at}
    return where
