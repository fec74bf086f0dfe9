"""Numbers that a pattern of sparsity may depend on by value: indices, masks, matrices of constants. Start at `Values`."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from tracegrad.graph.intervals import all_of, interval
from tracegrad.graph.ir import Node, topological
from tracegrad.support.dtypes import dtype_kind

KNOWN = 1 << 24              # elements of what is read or computed by value, at most
UNBOUNDED = 1 << 60          # beyond any index, and two of it are no more than 64 bits hold


def is_leaf(node: Node) -> bool:
    """Whether a node holds its value, and does not know any more how it was made."""
    return node.value is not None and not node.operands


def _held(leaf: Node) -> Any:
    """A leaf's value as an array (which it is already, of a constant of a trace)."""
    value = leaf.value
    return value if isinstance(value, np.ndarray) else value.view(leaf.shape, leaf.dtype)


def contents(leaf: Node) -> bytes:
    """What a pattern depends on of a leaf that was read: which numbers it holds, of floats which of them are zero."""
    return digest(_held(leaf))


def digest(array: Any) -> bytes:
    """What a pattern depends on of an array."""
    told = np.packbits(array != 0) if dtype_kind(array.dtype) in "fc" else np.ascontiguousarray(array)
    return hashlib.blake2b(told.tobytes(), digest_size=16).digest()


class Values:
    """Elements of nodes that do not depend on the inputs, by NumPy's rules. unknown: the nodes that do. leaves: what was read.

    told: the elements of nodes, of floats those that differ from zero.
    """

    def __init__(self, unknown: Container[Node], told: Mapping[Node, Any]) -> None:
        self.leaves: dict[Node, None] = {}
        self._unknown = unknown
        self._known: dict[Node, Any] = {n: None if dtype_kind(n.dtype) in "fc" else x for n, x in told.items()}
        self._masks: dict[Node, Any] = {n: x != 0 for n, x in told.items()}

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
            return None if dtype_kind(node.dtype) in "fc" else self._read(node)
        operands = [self._known[o] for o in node.operands]
        if not (fn.constant or fn.number) or not fn.registered or any(o is None for o in operands):
            return None
        return np.asarray(fn.computed(operands, node.attrs, node.dtype))

    def nonzero(self, root: Node) -> Any:
        """Which elements may differ from zero, or None. Floats that are held are read, but through movements and casts only."""
        for node in topological([root], lambda n: n in self._masks or n in self._unknown or not _keeps_zeros(n)):
            if node not in self._masks:
                self._masks[node] = self._mask(node)
        return self._masks[root]

    def _mask(self, node: Node) -> Any:
        if node in self._unknown or node.aval.size > KNOWN:
            return None
        if is_leaf(node):
            return self._read(node) != 0
        if node.operands and _keeps_zeros(node):
            operands = [self._masks[o] for o in node.operands]
            if any(o is None for o in operands):
                return None
            return operands[0] if node.fn.name == "cast" else moved(node, operands, 0) != 0
        found = self.of(node)
        return None if found is None else found != 0

    def bounds(self, root: Node) -> tuple[Any, Any]:
        """Arrays (int64) of the least and the largest integer that each element of an integer node may be."""
        found: dict[Node, tuple[Any, Any]] = {}
        for node in topological([root], lambda n: n.fn.family not in ("elementwise", "movement")):
            low, high = self._bounded(node, [found.get(o) for o in node.operands])
            least, most = all_of(node.dtype)
            if low.size and (low.min() < least or high.max() > most):               # it may have wrapped
                low, high = np.full(node.shape, least), np.full(node.shape, most)
            found[node] = np.maximum(low, -UNBOUNDED), np.minimum(high, UNBOUNDED)
        return found[root]

    def _bounded(self, node: Node, operands: Sequence[Any]) -> tuple[Any, Any]:
        known = self.of(node)
        if known is not None:
            return known.astype(np.int64), known.astype(np.int64)
        name, follows = node.fn.name, node.fn.monotone or node.fn.family == "movement"
        if not operands or any(o is None for o in operands) or any(o.dtype.kind not in "biu" for o in (node, *node.operands)):
            name, follows = "", False
        if name == "in_range" and node.attrs["ignore"] is None:                     # (others are an error, whoever reads them)
            return np.zeros(node.shape, np.int64), np.full(node.shape, node.attrs["size"] - 1)
        if name == "where":
            (_, a, b) = operands
            return np.minimum(a[0], b[0]) + np.zeros(node.shape, np.int64), np.maximum(a[1], b[1]) + np.zeros(node.shape, np.int64)
        if name == "sub":
            (low, high), (least, most) = operands
            return low - most, high - least
        if follows or (name == "mul" and all((o[0] >= 0).all() and (o[1] < 1 << 31).all() for o in operands)):
            attrs = {k: v for k, v in node.attrs.items() if k not in ("dtype", "weak")}
            rule: Any = (lambda x: x) if name == "cast" else node.fn.numpy
            low, high = (np.asarray(rule(*[o[k] for o in operands], **attrs), np.int64) for k in (0, 1))
            return low, high
        least, most = interval(node)
        return np.full(node.shape, least), np.full(node.shape, most)


def _keeps_zeros(node: Node) -> bool:
    """Whether the elements that differ from zero can be told from those of the operands."""
    return node.fn.family == "movement" or (node.fn.name == "cast" and dtype_kind(node.dtype) in "fc")


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
