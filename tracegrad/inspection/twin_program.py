"""A program's intermediate values: its `Twin` runs the same graph with other outputs, on the same device, and changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os.path import basename
from typing import Any

import numpy as np

from tracegrad.errors import printable
from tracegrad.execute.compile import executable_graph
from tracegrad.execute.devices import Device, upload
from tracegrad.execute.program import Program
from tracegrad.graph.ir import Node
from tracegrad.graph.leaf_operations import Bundle
from tracegrad.graph.primitive import data
from tracegrad.graph.printing import aval_text, namer, source_line
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.tensor import Tensor

Array = np.ndarray[Any, Any]
TOGETHER = 256 << 20             # bytes of intermediates that are on the host at a time


@dataclass(frozen=True)
class Operation:
    """An operation of the user's program. line: `step.py:9`; source: what stands there; derived: made by a derivative on its behalf."""

    name: str
    op: str
    type: str
    line: str
    source: str
    derived: bool
    module: str

    def __str__(self) -> str:
        called = f" {self.name}" if self.name != self.op else ""
        where = f" at {'the backward of ' if self.derived else ''}{self.line}" if self.line else ""
        inside = f" in {self.module}" if self.module else ""
        return f"{self.op}{called} ({self.type}){where}{inside}"


def twin_of(program: Any, values: Sequence[Any]) -> Twin:
    """The twin of a recorded program, made once, with the values of one call: of the graph's inputs, as a Program takes them."""
    if program.twin is None:
        program.twin = Twin(program)
    return program.twin.having(values)  # type: ignore[no-any-return]


class Twin:
    """A recorded program, and the values of one call; see `twin_of`.

    nodes: what it computes and gets of floating point, in order.
    """

    values: list[Any]

    def __init__(self, program: Program) -> None:
        self.graph, self.device = executable_graph(program.graph, transfers=True), program.device
        self._computing = program.computing
        self._of_each: dict[Callable[[Node], Node], Program] = {}
        self.nodes = [node for node in self.graph if dtype_kind(node.dtype) in "fc" and node.aval.size and not node.aval.weak
                      and node.fn.name != "const" and not isinstance(node.fn, Bundle)]
        self._name = namer(self.graph)

    def having(self, values: Sequence[Any]) -> Twin:
        """The same for another call."""
        other = copy.copy(self)
        other.values = list(values)
        return other

    def run(self, outputs: Sequence[Node]) -> list[Array]:
        """The values of nodes that are made of the graph's, as arrays."""
        return self._run(self._computing(outputs)) if outputs else []

    def each(self, fn: Callable[[Node], Node]) -> list[Array]:
        """The values of fn of every node. The next call with this fn compiles nothing."""
        if fn not in self._of_each:
            self._of_each[fn] = self._computing([fn(node) for node in self.nodes])
        return self._run(self._of_each[fn])

    def _run(self, program: Program) -> list[Array]:
        found = program(self.values)
        return [Tensor(data(node.aval, value), value.device).numpy() for node, value in zip(program.graph.outputs, found, strict=True)]

    def batches(self) -> Iterator[list[Node]]:
        """The nodes in order, as many together as the host holds values of."""
        batch: list[Node] = []
        for node in self.nodes:
            if batch and sum(n.aval.nbytes for n in batch) + node.aval.nbytes > TOGETHER:
                yield batch
                batch = []
            batch.append(node)
        yield batch

    def all(self) -> Iterator[tuple[Node, Array]]:
        """Every node with its value, in order; some at a time."""
        for batch in self.batches():
            yield from zip(batch, self.run(batch), strict=True)

    def inputs(self) -> Iterator[tuple[Node, Any]]:
        """The graph's inputs with their values on the host: arrays, and run-time scalars as they are."""
        for node, value in zip(self.graph.inputs, self.values, strict=True):
            yield node, value if node.aval.weak else Tensor(data(node.aval, value), value.device).numpy()

    def on(self, device: Device) -> Twin:
        """The same program and values on another device, and on no other."""
        other = copy.copy(self)
        other.device, other._computing, other._of_each = device, Program(self.graph.inputs, [], device, later=True).computing, {}
        other.values = [value if node.aval.weak else upload(device, value) for node, value in self.inputs()]
        return other

    def operation(self, node: Node) -> Operation:
        """The node, for people."""
        loc, given = node.loc, not node.operands
        line = "" if given else f"{printable(basename(loc.filename))}:{loc.line}"
        return Operation(self._name(node) or node.fn.name, "input" if given else node.fn.name, aval_text(node.aval), line,
                         "" if given else source_line(loc), loc.derived, loc.module)


@dataclass(frozen=True)
class OperandAt:
    """An operand where an element of a result comes from. values: the elements that it is made of; one, of elementwise operations."""

    name: str
    type: str
    values: Array

    def __str__(self) -> str:
        if self.values.size == 1:
            return f"{self.name} = {number(self.values.reshape(-1)[0])}"
        flat = self.values.reshape(-1)
        finite = flat[np.isfinite(flat)]
        between = f"between {number(finite.min())} and {number(finite.max())}" if finite.size and flat.dtype.kind != "c" else ""
        wrong = flat.size - finite.size
        return f"{self.name}: {flat.size} elements {between}{f', {wrong} of them not finite' if wrong else ''}".rstrip()


def number(value: Any) -> str:
    """A number in few digits."""
    kind = dtype_kind(np.asarray(value).dtype)
    return str(complex(value)) if kind == "c" else f"{float(value):.7g}" if kind == "f" else str(value)


def elements_of(node: Node, operand: int, value: Array, index: tuple[int, ...]) -> Array:
    """The elements of an operand that element `index` of the node's result is made of, as far as its family tells; else all."""
    family, shape = node.fn.family, node.shape
    if family == "elementwise":
        return np.asarray(np.broadcast_to(value, shape)[index])
    if family == "reduction" and "dim" in node.attrs and value.ndim:
        dims = node.attrs["dim"]
        dims = {d % value.ndim for d in (dims if isinstance(dims, tuple) else (dims,))}
        kept = iter(index if len(index) < value.ndim else [i for d, i in enumerate(index) if d not in dims])
        return np.asarray(value[tuple(slice(None) if d in dims else next(kept) for d in range(value.ndim))])
    if family == "contraction" and len(index) >= 2 and value.ndim >= 2:
        batch = index[:-2][max(0, len(index) - value.ndim):]
        lead = tuple(0 if n == 1 else i for n, i in zip(value.shape[:-2], batch, strict=False))
        rows = value[lead]
        return np.asarray(rows[index[-2]] if operand == 0 else rows[:, index[-1]])
    return np.asarray(value)
