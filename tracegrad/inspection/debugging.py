"""Where a program's numbers go wrong: `Debug`, which `tg.debug(f)(...)` gives. Start at `debug`.

A twin of the program computes, beside every intermediate, what the worst of its elements is: a maximum, in the same kernels.
So it runs at the kernels' speed, and only what is wrong is fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.leaf_operations import Bundle
from tracegrad.inspection.twin_program import Array, OperandAt, Operation, Twin, elements_of, number, twin_of
from tracegrad.numpy_backend.interpreter import interpret
from tracegrad.ops.arrays.complex_numbers import view_as_real
from tracegrad.ops.arrays.logical import isinf
from tracegrad.ops.arrays.pointwise import isnan, where
from tracegrad.ops.arrays.reductions import amax
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.html import columns, preformatted, table

KINDS = ("denormal", "inf", "nan")       # from better to worse
_BUCKETS = 12                            # of a histogram
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Finding:
    """The first operation whose result holds a number of a kind: "nan", "inf" or "denormal".

    operation: which. index: the first such element; value: what it is. count: how many there are. operands: what it was made of.
    iteration: of an operation in a loop's body, in which iteration; None of others.
    """

    kind: str
    operation: Operation
    index: tuple[int, ...]
    value: Any
    count: int
    operands: list[OperandAt]
    iteration: int | None = None

    def __str__(self) -> str:
        what = {"nan": "NaN", "inf": "infinite", "denormal": "denormal"}[self.kind]
        when = "" if self.iteration is None else f", iteration {self.iteration}"
        lines = [f"first {what}: {self.operation}{when}, element {list(self.index)} is {number(self.value)} ({self.count} such)"]
        lines += [f"    {self.operation.source}"] if self.operation.source else []
        return "\n".join([*lines, *(f"  {operand}" for operand in self.operands)])


@dataclass(frozen=True)
class Range:
    """The finite elements of one intermediate. histogram: how many have which power of two: `edges[i] <= log2 |x| < edges[i + 1]`."""

    operation: Operation
    low: float
    high: float
    zeros: int
    wrong: int
    histogram: list[int]
    edges: list[float]

    @property
    def bars(self) -> str:
        """The histogram as a line of text."""
        most = max([*self.histogram, 1])
        return "".join(_BARS[-(-n * (len(_BARS) - 1) // most)] for n in self.histogram)


class Debug:
    """What a call would compute, looked at. str() tells what was found first; falsy if nothing was.

    first: the first Finding of the kinds that were looked for, None if there is none; found: by kind. ranges: of every intermediate.
    """

    def __init__(self, name: str, twin: Twin, find: Sequence[str]) -> None:
        self.name, self._twin, self._find = name, twin, tuple(find)
        self._ranges: list[Range] | None = None
        worst = [int(code) for code in twin.each(_worst)]
        self.found: dict[str, Finding] = {}
        self.first: Finding | None = None
        for i, code in enumerate(worst):
            kind = KINDS[code - 1]
            if code and kind in find and kind not in self.found:
                self.found[kind] = _finding(twin, twin.nodes[i], kind)
                self.first = self.first or self.found[kind]

    def __bool__(self) -> bool:
        return self.first is not None

    @property
    def ranges(self) -> list[Range]:
        """The ranges of every intermediate, in order. They are computed, and fetched, when they are first asked for."""
        if self._ranges is None:
            self._ranges = [_range(self._twin.operation(node), value) for node, value in self._twin.all()]
        return self._ranges

    def table(self) -> str:
        """The ranges as text: of each intermediate its smallest and largest number, and how its powers of two are spread."""
        return "\n".join(columns([_COLUMNS, *map(_cells, self.ranges)]))

    def __str__(self) -> str:
        if not self:
            return f"{self.name}: {len(self._twin.nodes)} intermediates, none with {' or '.join(self._find)}"
        return "\n".join([f"{self.name}:", *(str(finding) for finding in self.found.values())])

    def __repr__(self) -> str:
        return f"<debug of {self.name}: {', '.join(self.found) or 'nothing found'}>"

    def _repr_html_(self) -> str:
        return f"<div>{preformatted(self)}{table(_COLUMNS, map(_cells, self.ranges))}</div>"


_COLUMNS = ["operation", "type", "line", "smallest", "largest", "zeros", "not finite", "log2 |x|", ""]


def _cells(row: Range) -> list[str]:
    line = f"{row.operation.line}{' ∂' * row.operation.derived}"
    called = row.operation.op if row.operation.name == row.operation.op else f"{row.operation.op} {row.operation.name}"
    spread = f"{row.edges[0]:.0f} to {row.edges[-1]:.0f}" if row.edges else ""
    return [called, row.operation.type, line, f"{row.low:.4g}", f"{row.high:.4g}", str(row.zeros), str(row.wrong), spread, row.bars]


def debug(program: Any, name: str, values: Sequence[Any], find: Sequence[str]) -> Debug:
    """Look at a Program on these values; see `tg.debug`."""
    if not find or not set(find) <= set(KINDS):
        raise ArgumentError(f"debug: find takes some of 'nan', 'inf' and 'denormal', got {tuple(find)!r}")
    return Debug(name, twin_of(program, values), find)


def _worst(node: Node) -> Any:
    """3 if an element of a node is NaN, else 2 if one is infinite, else 1 if one is denormal, else 0. (A device may have no denormals.)"""
    x: Any = view_as_real(node) if node.dtype.kind == "c" else node
    size = abs(x)
    denormal = (size > 0) & (size < float(smallest_normal(x.dtype)))
    return amax(where(isnan(x), 3, where(isinf(x), 2, where(denormal, 1, 0))))


def smallest_normal(dtype: Any) -> Any:
    """The smallest number of a dtype that is not denormal."""
    return dtypes.finfo(dtype).smallest_normal


def _is_of(kind: str, value: Array) -> Array:
    """Which elements are of a kind."""
    if value.dtype.kind == "c":
        return _is_of(kind, value.real) | _is_of(kind, value.imag)
    if kind == "nan":
        return np.isnan(value)
    if kind == "inf":
        return np.isinf(value)
    return np.asarray((value != 0) & (np.abs(value) < smallest_normal(value.dtype)))


def _finding(twin: Twin, node: Node, kind: str) -> Finding:
    result, *operands = twin.run([node, *node.operands] if node not in twin.graph.inputs else [node])
    iteration = None
    if node.fn.family == "loop" and (inside := _in_loop(node.fn, kind, operands)) is not None:
        iteration, node, values = inside
        result, operands = values[node], [values[o] for o in node.operands]
    wrong = _is_of(kind, result)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    found = []
    for i, (operand, value) in enumerate(zip(node.operands, operands, strict=True)):
        about = twin.operation(operand)
        found.append(OperandAt(about.name, about.type, elements_of(node, i, value, index)))
    return Finding(kind, twin.operation(node), index, result[index], int(wrong.sum()), found, iteration)


def _in_loop(loop: Any, kind: str, arrays: Sequence[Array]) -> tuple[int, Node, dict[Node, Array]] | None:
    """The first iteration and operation of its body with such a result, and that iteration's values: by NumPy, one after the other."""
    graph, n, rows = loop.graph, loop.body.carries, loop.body.rows
    carry, scanned, constants = list(arrays[:n]), arrays[n:n + rows], list(arrays[n + rows:])
    nodes = [node for node in graph if not isinstance(node.fn, Bundle)]
    whole = Graph(graph.inputs, [*graph.outputs, *nodes], graph)
    for i in range(loop.length - 1, -1, -1) if loop.reverse else range(loop.length):
        found = interpret(whole, [*carry, *(x[i] for x in scanned), *constants])
        values = dict(zip(nodes, found[len(graph.outputs):], strict=True))
        for node in nodes:
            if node.fn.name != "const" and dtype_kind(node.dtype) in "fc" and _is_of(kind, values[node]).any():
                return i, node, values
        carry = found[:n]
    return None


def _spread(powers: Array) -> tuple[Array, Array]:
    """A histogram of whole numbers, in buckets of one width."""
    low, high = powers.min(), powers.max() + 1
    width = -(-(high - low) // _BUCKETS)
    return np.histogram(powers, np.arange(low, high + width, width))


def _range(operation: Operation, value: Array) -> Range:
    flat = value.reshape(-1)
    flat = np.abs(flat) if flat.dtype.kind == "c" else flat
    finite = flat[np.isfinite(flat)].astype(np.float64)
    sizes = np.abs(finite[finite != 0])
    counts, edges = _spread(np.floor(np.log2(sizes))) if sizes.size else (np.zeros(0, int), np.zeros(0))
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (float("nan"),) * 2
    return Range(operation, low, high, int((finite == 0).sum()), flat.size - finite.size, counts.tolist(), edges.tolist())
