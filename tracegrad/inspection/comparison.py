"""Where a program's numbers leave those of a reference: `Comparison`, which `f.compare(...)` gives. Start at `compare`.

The device computes every intermediate (twin.py). The reference is the same graph on another device, or the same operations in another
dtype, by NumPy (`_Wide`), from the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegrad.errors import TracegradError
from tracegrad.execute.devices import find_device
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import bind, cast, const, placeholder
from tracegrad.inspection.twin_program import Array, OperandAt, Operation, Twin, elements_of, number, twin_of
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.html import preformatted

_TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "complex64": 1e-4}
_TINY = 1e-30                   # an error up to this is none, however small the numbers
_SHOWN = 20                     # operations in the table of the largest errors


@dataclass(frozen=True)
class Left:
    """An operation whose result is off. error: how far, of the largest number in the reference's result. index: of the worst element.

    operands: what the element was made of; references: the same in the reference.
    """

    operation: Operation
    error: float
    index: tuple[int, ...]
    value: Any
    reference: Any
    operands: list[OperandAt]
    references: list[OperandAt]

    def __str__(self) -> str:
        lines = [f"{self.operation}, element {list(self.index)}: {number(self.value)}, reference {number(self.reference)} "
                 f"(off by {self.error:.2g} of the largest)"]
        lines += [f"    {self.operation.source}"] if self.operation.source else []
        lines += [f"  {a} (reference: {str(b).partition(' = ')[2] or b})" for a, b in zip(self.operands, self.references, strict=True)]
        return "\n".join(lines)


class Comparison:
    """The errors of a call's intermediates. str() tells which operation left first; true if none did.

    first: the first that is off by more than `tolerance` (of its dtype), None if there is none. errors: of every operation, in order.
    """

    def __init__(self, name: str, against: str, first: Left | None, errors: list[tuple[Operation, float]]) -> None:
        self.name, self.against, self.first, self.errors = name, against, first, errors

    def __bool__(self) -> bool:
        return self.first is None

    def __repr__(self) -> str:
        return f"<{self.name} beside {self.against}: {'alike' if self else f'leaves at {self.first.operation}'}>"  # type: ignore[union-attr]

    def __str__(self) -> str:
        found = f"no operation of {len(self.errors)} leaves it" if self.first is None else f"leaves it first at {self.first}"
        worst = sorted((pair for pair in self.errors if pair[1]), key=lambda pair: -pair[1])[:_SHOWN]
        if not worst:
            return f"{self.name} beside {self.against}: {found}; all results are the same"
        return "\n".join([f"{self.name} beside {self.against}: {found}", "largest errors:",
                          *(f"  {error:8.2g}  {operation}" for operation, error in worst)])

    def _repr_html_(self) -> str:
        return preformatted(self)


def compare(program: Any, name: str, values: Sequence[Any], reference: Any, tolerance: float | None) -> Comparison:
    """Compare a Program's intermediates on these values with a reference; see `Traced.compare`."""
    twin = twin_of(program, values)
    beside = _Wide(twin, dtypes.as_dtype(reference)) if _is_dtype(reference) else twin.on(find_device(reference))
    against = str(beside.dtype) if isinstance(beside, _Wide) else f"the device {beside.device.name}"
    errors, first = [], None
    for batch in twin.batches():
        for node, value, expected in zip(batch, twin.run(batch), beside.run(batch), strict=True):
            error, index = _error(value, expected)
            allowed = _TOLERANCES.get(str(node.dtype), 1e-10) if tolerance is None else tolerance
            errors.append((twin.operation(node), error))
            if error > allowed and first is None:
                first = (node, error, index)
    return Comparison(name, against, None if first is None else _left(twin, beside, *first), errors)


def _is_dtype(reference: Any) -> bool:
    try:
        return dtype_kind(dtypes.as_dtype(reference)) == "f"
    except (TracegradError, TypeError, ValueError):
        return False


def _left(twin: Twin, beside: Twin | _Wide, node: Node, error: float, index: tuple[int, ...]) -> Left:
    """What there is to tell of the first operation that is off: its own operands, in both programs."""
    wanted = [node, *(() if node in twin.graph.inputs else node.operands)]
    value, *operands = twin.run(wanted)
    expected, *others = beside.run(wanted)
    own, theirs = [], []
    for i, (operand, a, b) in enumerate(zip(wanted[1:], operands, others, strict=True)):
        about = twin.operation(operand)
        own.append(OperandAt(about.name, about.type, elements_of(node, i, a, index)))
        theirs.append(OperandAt(about.name, about.type, elements_of(node, i, b, index)))
    return Left(twin.operation(node), error, index, value[index], expected[index], own, theirs)


def _error(value: Array, expected: Array) -> tuple[float, tuple[int, ...]]:
    """How far a result is off, of the largest number of the reference; and the worst element. NaN and infinities have to be the same."""
    kind = np.complex128 if value.dtype.kind == "c" else np.float64
    a, b = value.astype(kind), expected.astype(kind)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        alike = (a == b) | (np.isnan(a) & np.isnan(b))
        off = np.where(alike, 0.0, np.where(finite, np.abs(a - b), np.inf))
        index = np.unravel_index(int(np.argmax(off)), off.shape)
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        worst = float(off[index])
    return (0.0 if worst <= _TINY else worst / max(largest, _TINY)), tuple(map(int, index))


class _Wide:
    """A graph's operations in another dtype, by NumPy. What knows no other dtype (a loop's body, host code, a kernel of the user's) is
    computed in its own.
    """

    def __init__(self, twin: Twin, dtype: Any) -> None:
        self.dtype, self.twin = dtype, twin
        self.new: dict[Node, Node] = {}
        self.arrays = []
        for node, value in twin.inputs():
            weak = node.aval.weak
            self.arrays.append(np.asarray(value, node.dtype) if weak else value.astype(self.wide(node.dtype)))
            self.new[node] = node if weak else placeholder(Aval(node.shape, self.wide(node.dtype)))
        for node in twin.graph:
            if node not in self.new:
                self.new[node] = self._made(node)

    def wide(self, dtype: Any) -> Any:
        """The dtype that takes the place of a node's."""
        kind = dtype_kind(dtype)
        pair = np.dtype(np.complex128 if self.dtype.itemsize > 4 else np.complex64)
        return self.dtype if kind == "f" else pair if kind == "c" else dtype

    def _made(self, node: Node) -> Node:
        if node.fn.name == "const":
            return const(node.attrs["value"].item(), self.wide(node.dtype), node.aval.weak) if dtype_kind(node.dtype) in "fc" else node
        wanted = node.dtype if node.aval.weak else self.wide(node.dtype)
        operands = tuple(self.new[o] for o in node.operands)
        if node.operands and node.fn.family not in ("loop", "while_loop", "host_call", "opencl_call"):
            attrs = {k: self.wide(v) if isinstance(v, np.dtype) else v for k, v in node.attrs.items()}
            try:
                made = bind(node.fn, operands, attrs)
            except (TracegradError, TypeError, ValueError):
                made = None
            if made is not None and made.shape == node.shape and made.dtype == wanted:
                return made
        own = tuple(o if n.dtype == o.dtype else cast(o, n.dtype) for o, n in zip(operands, node.operands, strict=True))
        made = bind(node.fn, own, node.attrs) if node.operands else node
        return made if made.dtype == wanted else cast(made, wanted)

    def run(self, nodes: Sequence[Node]) -> list[Array]:
        """The values of the twin's nodes in this dtype."""
        inputs = [self.new[node] for node in self.twin.graph.inputs]
        return interpret(Graph.capture(inputs, [self.new[node] for node in nodes]), self.arrays)
