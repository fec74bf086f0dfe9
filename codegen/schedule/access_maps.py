"""How a node reads another: access maps between flat positions. Start at `access_map`.

A map is one number: 1 is the same position, k > 1 is position // k (a row's value, k columns), 0 is anything else. That is all that
fusion needs to know: whether a value is at hand where it is read.
"""

from __future__ import annotations

from tracegrad.graph.ir import Node

IDENTITY, UNKNOWN = 1, 0
Maps = frozenset[int]
Reads = dict[Node, Maps]                # what is read, and by which maps
ONLY_IDENTITY: Maps = frozenset((IDENTITY,))
ONLY_UNKNOWN: Maps = frozenset((UNKNOWN,))


def access_map(operand: Node, shape: tuple[int, ...], size: int) -> int:
    """How an elementwise op (or an expand) over `shape`, of `size` elements, reads an operand that is broadcast to it."""
    if operand.aval.size == size:
        return IDENTITY
    if operand.aval.size == 1:
        return size
    lead = len(shape) - len(operand.shape)
    tail, i = 1, len(shape) - 1
    while i >= lead and operand.shape[i - lead] == 1:
        tail *= shape[i]
        i -= 1
    while i >= 0 and ((i >= lead and operand.shape[i - lead] == shape[i]) or shape[i] == 1):
        i -= 1
    return tail if i < 0 else UNKNOWN


def compose(outer: int, inner: Maps) -> Maps:
    """The maps of reading by `inner` what is read by `outer`."""
    if outer == IDENTITY:
        return inner
    return frozenset(outer * r for r in inner) if outer else ONLY_UNKNOWN


def add(reads: Reads, node: Node, maps: Maps) -> None:
    """`node` is read by these maps, too."""
    reads[node] = reads[node] | maps if node in reads else maps
