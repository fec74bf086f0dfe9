"""Complex numbers as pairs of real ones: the pass after which no node is complex. Start at `in_pairs`.

A complex node becomes the two nodes that the `pair` rule of its op gives, a complex buffer an array of one more dimension, of 2, which
is how it lies in memory. So everything that comes later (fusion, vectors, products, reductions) only knows real numbers. What the host
computes gets numpy's complex arrays: the same memory again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.codegen.graph.rewrite import at, op
from tracegrad.errors import GraphError
from tracegrad.graph.ir import ON_HOST, Aval, Graph, Node
from tracegrad.graph.leaf_operations import Shared, host_step, laid_out
from tracegrad.graph.operation import Pair
from tracegrad.graph.operation_families import not_taken
from tracegrad.graph.primitive import Primitive, bind, const, data, placeholder
from tracegrad.ops.primitives.movement import narrow, reshape
from tracegrad.support import dtypes
from tracegrad.support.cache import memoize


def in_pairs(graph: Graph) -> Graph:
    """The graph with pairs in place of complex nodes; complex inputs and outputs are arrays (*, 2)."""
    if not any(node.dtype.kind == "c" for node in graph):
        return graph
    new: dict[Node, Any] = {}
    inputs = []
    for node in graph.inputs:
        with at(node.loc):
            if node.dtype.kind != "c":
                new[node] = node
                inputs.append(node)
            elif node.aval.weak:                                # a run-time number: its parts are taken on the host
                new[node] = Pair(op("real", node), op("imag", node))
                inputs.append(node)
            else:
                inputs.append(placeholder(laid_out(node.aval), node.attrs.get("label", "")))
                new[node] = parts(inputs[-1])
    for node in graph:
        if node not in new:
            with at(node.loc):
                new[node] = _rewritten(node, [new[o] for o in node.operands])
            found = new[node].re if isinstance(new[node], Pair) else new[node]
            if found.shape != node.shape or found.dtype != dtypes.real_of(node.dtype):
                raise GraphError(f"complex: the pair of {node!r} became {new[node]!r}")
    outputs = []
    for node in graph.outputs:
        with at(node.loc):
            outputs.append(interleaved(new[node]) if isinstance(new[node], Pair) else new[node])
    return Graph.capture(inputs, outputs)


def parts(x: Node) -> Pair:
    """The parts of an array (*, 2)."""
    last = len(x.shape) - 1
    return Pair(*(reshape(narrow(x, last, k, 1), x.shape[:-1]) for k in (0, 1)))


class Interleave(Primitive):
    """The array (*, 2) of two real ones: how complex numbers lie in memory. A kernel computes it for each number, and writes both parts."""

    family = "pair"

    def __init__(self) -> None:
        super().__init__()
        self.name = "interleave"  # type: ignore[misc]

    def aval(self, *operands: Aval, **attrs: Any) -> Aval:
        return Aval((*operands[0].shape, 2), operands[0].dtype)

    def numpy(self, re: Any, im: Any) -> Any:
        return np.stack([re, im], -1)


_INTERLEAVE = Interleave()


def interleaved(z: Pair) -> Node:
    """The array (*, 2) of a pair: the one that it is the `parts` of, if there is one."""
    source = both_parts(*z)
    shape = (*z.re.shape, 2)
    if source is not None:
        return source if source.shape == shape else reshape(source, shape)
    return bind(_INTERLEAVE, tuple(z), {})


def both_parts(re: Node, im: Node) -> Node | None:
    """The array (*, 2) of which these are the parts, number by number, whatever their shape; None: there is none."""
    found = []
    for k, part in enumerate((re, im)):
        while part.fn.name == "reshape":
            part = part.operands[0]
        if part.fn.name != "slice":
            return None
        x, start = part.operands[0], part.attrs["start"]
        if x.shape[-1] != 2 or part.shape != (*x.shape[:-1], 1) or start[-1] != k:
            return None
        found.append(x)
    return found[0] if found[0] is found[1] else None


def _rewritten(node: Node, operands: list[Any]) -> Any:
    fn: Any = node.fn
    if fn.name == "const" and node.dtype.kind == "c":
        value, dtype = node.attrs["value"], dtypes.real_of(node.dtype)
        return Pair(const(value.real, dtype, node.aval.weak), const(value.imag, dtype, node.aval.weak))
    if fn.name == "data" and node.dtype.kind == "c":
        value = np.ascontiguousarray(getattr(node.value, "array", node.value), node.dtype).reshape(*node.shape, 1)
        real = value.view(dtypes.real_of(node.dtype))
        return parts(data(laid_out(node.aval), real))
    if node.dtype.kind != "c" and not any(isinstance(o, Pair) for o in operands):
        same = all(a is b for a, b in zip(operands, node.operands, strict=True))
        return node if same else bind(fn, tuple(operands), node.attrs)
    if isinstance(fn, Shared) and fn.family in ON_HOST:
        flat = tuple(interleaved(o) if isinstance(o, Pair) else o for o in operands)
        result = bind(host_step(fn, tuple(o.aval for o in node.operands)), flat, node.attrs)
        return parts(result) if node.dtype.kind == "c" else result
    if fn.family == "loop":
        result = bind(_interleaved_loop(fn), tuple(interleaved(o) if isinstance(o, Pair) else o for o in operands), node.attrs)
        return parts(result) if node.dtype.kind == "c" else result
    if fn.pair is None:
        raise not_taken(fn.name, next(o.dtype for o in (*node.operands, node) if o.dtype.kind == "c"))
    return fn.pair(*operands, **node.attrs)


class InterleavedLoop(Shared):
    """A loop whose operands or results are complex, on arrays as they lie in memory. Made by `_interleaved_loop`.

    Its body is the complex one: that is a graph of its own, which comes through the passes where it is lowered.
    """

    family = "loop"

    def __init__(self, loop: Any) -> None:
        super().__init__()
        self.loop, self.body, self.length, self.reverse, self.graph = loop, loop.body, loop.length, loop.reverse, loop.graph
        self.name, self.reports, self.described = loop.name, loop.reports, loop.described  # type: ignore[misc]

    def avals(self, *operands: Aval, **attrs: Any) -> tuple[Aval, ...]:
        return tuple(map(laid_out, self.loop._avals))

    def checks(self, node: Node | None = None) -> Any:
        return self.loop.checks(node)


@memoize(256)
def _interleaved_loop(loop: Any) -> Primitive:
    """The one `InterleavedLoop` of a loop."""
    return InterleavedLoop(loop)
