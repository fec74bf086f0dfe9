"""What is computed in other numbers of bits than it is said to be. Start at `halves`, `short_index`.

A kernel rounds the result of every operation on halves (`Evaluator.rounded`). What becomes several operations (a long row its partial sums,
a power its products) is an operation of float32 here, whose result is cast: sums, products, powers, scatters that add. Indices of 64 bits
that are computed are computed in 32.
"""

from __future__ import annotations

from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import bind, cast, iota
from tracegrad.graph.substitution import replaced
from tracegrad.support import dtypes


def halves(graph: Graph) -> Graph:
    """The graph with these operations as float32 ones between casts."""
    def made(node: Node, *operands: Node) -> Node:
        wide = tuple([cast(o, dtypes.float32) if dtypes.is_half(o.dtype) else o for o in operands])
        return cast(bind(node.fn, wide, node.attrs), node.dtype)

    return replaced(graph, _in_steps, made)


def _in_steps(node: Node) -> bool:
    return dtypes.is_half(node.dtype) and node.fn.in_steps


_MOVES = "reshape", "expand", "permute"
_ROWS = 1 << 30                              # up to so many, 32 bits tell a row
_STEPS = 8                                   # operations that are gone back, at most


def short_index(node: Node) -> Node | None:
    """A gather or scatter whose index of 64 bits is a sum or a product: in 32. Its low bits depend on the operands' low bits alone, and
    what is a row has no others. (What is none is clamped; `in_range` has reported it.)"""
    x, index, *rest = node.operands
    found = index
    while found.fn.name in _MOVES:
        (found,) = found.operands
    if index.dtype != dtypes.int64 or x.shape[0] > _ROWS or not _of_low_bits(found):
        return None
    return bind(node.fn, (x, _short(index, _STEPS), *rest), node.attrs)


def _of_low_bits(node: Node) -> bool:
    """Whether its low bits depend on its operands' low bits alone: a sum, a product."""
    return node.fn.family == "elementwise" and node.fn.wraps


def _short(x: Node, steps: int) -> Node:
    """x as int32."""
    if steps and x.dtype == dtypes.int64 and (x.fn.name in _MOVES or _of_low_bits(x)):
        return bind(x.fn, tuple([_short(o, steps - 1) for o in x.operands]), x.attrs)
    return iota(x.shape, x.attrs["dim"], dtypes.int32) if x.fn.family == "index" and max(x.shape) <= _ROWS else cast(x, dtypes.int32)
