"""Numbers that a pattern of sparsity may depend on by value: indices, masks, matrices of constants. Start at `Values`."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from tracegrad.graph.intervals import interval
from tracegrad.graph.ir import Node, topological
from tracegrad.graph.primitive import in_registry

KNOWN = 1 << 24              # elements of what is read or computed by value, at most
_MONOTONE = ("add", "minimum", "maximum", "clamp_min", "clamp_max", "cast", "expand", "copy")


def is_leaf(node: Node) -> bool:
    """Whether a node holds its value, and does not know any more how it was made."""
    return node.value is not None and not node.operands


def _held(leaf: Node) -> Any:
    """A leaf's value as an array (which it is already, of a constant of a trace)."""
    value = leaf.value
    return value if isinstance(value, np.ndarray) else value.view(leaf.shape, leaf.dtype)


def contents(leaf: Node) -> bytes:
    """What a pattern depends on of a leaf that was read: which numbers it holds, of floats which of them are zero."""
    array = _held(leaf)
    told = np.packbits(array != 0) if leaf.dtype.kind in "fc" else np.ascontiguousarray(array)
    return hashlib.blake2b(told.tobytes(), digest_size=16).digest()


class Values:
    """Elements of nodes that do not depend on the inputs, by NumPy's rules. unknown: the nodes that do. leaves: what was read."""

    def __init__(self, unknown: Container[Node]) -> None:
        self.leaves: dict[Node, None] = {}
        self._unknown = unknown
        self._known: dict[Node, Any] = {}
        self._masks: dict[Node, Any] = {}

    def _read(self, leaf: Node) -> Any:
        self.leaves[leaf] = None
        return _held(leaf)

    def of(self, root: Node) -> Any:
        """The elements, as an array; None where they are not known. Those of floats are known only where they are made of constants."""
        for node in topological([root], lambda n: n in self._known or n in self._unknown):
            if node not in self._known:
                self._known[node] = self._computed(node)
        return self._known[root]

    def _computed(self, node: Node) -> Any:
        fn = node.fn
        if node in self._unknown or node.aval.size > KNOWN:
            return None
        if is_leaf(node):
            return None if node.dtype.kind in "fc" else self._read(node)
        operands = [self._known[o] for o in node.operands]
        if not (fn.constant or fn.number) or not in_registry(fn) or any(o is None for o in operands):
            return None
        return np.asarray(fn.computed(operands, node.attrs, node.dtype))

    def nonzero(self, root: Node) -> Any:
        """Which elements may differ from zero; None where nothing is known. Floats that are held are read through movements only."""
        for node in topological([root], lambda n: n in self._masks or n in self._unknown or n.fn.family != "movement"):
            if node not in self._masks:
                self._masks[node] = self._mask(node)
        return self._masks[root]

    def _mask(self, node: Node) -> Any:
        if node in self._unknown or node.aval.size > KNOWN:
            return None
        if is_leaf(node):
            return self._read(node) != 0
        if node.fn.family == "movement":
            operands = [self._masks[o] for o in node.operands]
            return None if any(o is None for o in operands) else moved(node, operands, 0) != 0
        found = self.of(node)
        return None if found is None else found != 0

    def bounds(self, root: Node) -> tuple[Any, Any]:
        """Arrays of the least and the largest integer that each element of an integer node may be."""
        found: dict[Node, tuple[Any, Any]] = {}
        for node in topological([root], lambda n: not (n.fn.name in (*_MONOTONE, "sub", "mul") or n.fn.family == "movement")):
            found[node] = self._bounded(node, [found.get(o) for o in node.operands])
        return found[root]

    def _bounded(self, node: Node, operands: Sequence[Any]) -> tuple[Any, Any]:
        known = self.of(node)
        if known is not None:
            return known, known
        name, ready = node.fn.name, bool(operands) and all(o is not None for o in operands) and node.dtype.kind in "iu"
        if ready and (name in _MONOTONE or node.fn.family == "movement") and node.operands[0].dtype.kind in "biu":
            low, high = ([o[k] for o in operands] for k in (0, 1))
        elif ready and name == "sub":
            low, high = ([operands[0][k], operands[1][1 - k]] for k in (0, 1))
        elif ready and name == "mul" and all((o[0] >= 0).all() for o in operands):
            low, high = ([o[k] for o in operands] for k in (0, 1))
        else:
            return tuple(np.full(node.shape, n, np.int64) for n in interval(node))  # type: ignore[return-value]
        return tuple(np.asarray(node.fn.numpy(*ends, **node.attrs)) for ends in (low, high))  # type: ignore[return-value]


def moved(node: Node, operands: Sequence[Any], fill: int) -> Any:
    """A movement of numbers that stand for elements. fill: what stands for the value that it fills in, where that is 0."""
    attrs = node.attrs
    if node.fn.name == "view_as_real":
        return np.repeat(operands[0][..., None], 2, -1)
    if node.fn.name == "view_as_complex":
        return operands[0].max(-1)
    if "value" in attrs:
        attrs = {**attrs, "value": operands[0].dtype.type(1) if attrs["value"] and operands[0].dtype == bool else fill}
    return node.fn.numpy(*operands, **attrs)
