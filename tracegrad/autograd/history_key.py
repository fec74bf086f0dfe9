"""What a backward is looked up by: the pending work and the history of a root, walked over once. Start at `History.follow`.

Never recalled, since Python code may have a say in it: hooks, kernels of the user's, derivatives of derivatives, and
traces with one of these in them, or that write what they read.
Nor is what goes from one device to another: it is several programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tracegrad.config import config
from tracegrad.execute.devices import Device
from tracegrad.graph.canonical import Key, contribution
from tracegrad.graph.ir import LazyNode, Node, call_behind
from tracegrad.graph.primitive import REGISTRY
from tracegrad.graph.substitution import HOOKS
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.bases.history import leaves

_VARIABLE, _CONST, _OFFSET = REGISTRY["variable"], REGISTRY["const"], REGISTRY["offset"]


class History:
    """The pending work and the history of a root: nodes and their numbers, which have values, what tells the structure.

    Of a call whose nodes nobody has asked for (ir.LazyNode) that is the call's; the numbers after its result's are those of its offsets.
    calls: the numbers of such results. inside: the nodes behind them, once they were made. floats: where in the key the bits of constants
    stand, and the numbers of these. leaves: by variable, those that are there. customs: how many
    calls of custom Functions there are.
    """

    __slots__ = ("calls", "customs", "device", "floats", "inside", "key", "leaves", "nodes", "number", "pending", "valued")

    def __init__(self, device: Device, pending: list[Node]) -> None:
        self.device, self.pending = device, pending
        self.number: dict[Node, int] = {}
        self.nodes: list[Node] = []
        self.valued: set[int] = set()
        self.calls: list[int] = []
        self.floats: list[tuple[int, int]] = []
        self.inside: set[Node] = set()
        self.leaves: dict[Node, Any] = {}
        self.customs = 0
        self.key: Key | None = None

    def follow(self, root: Node, inputs: Sequence[Node] | None = None) -> bool:
        """Walk over everything; False where the derivative is not a function of the structure alone. (Iterative, and a hot path.)

        inputs: the variables whose gradients are given back; None where those of all leaves are added to their `grad`.
        """
        parts: list[Any] = [self.device, config.eager]
        variables: list[Node] = []
        if not self._follow((root, *self.pending), parts, variables):
            return False
        sums: list[Node] = []                                       # what gradients are added to
        for node in variables:
            tensor = leaves.get(node.attrs["uid"])
            if tensor is None:
                parts.append(0)
                continue
            if tensor._n is not node or (tensor._base is not None and not tensor._is_current()):
                return False
            self.leaves[node] = tensor
            present = tensor._grad if inputs is None else None
            if present is not None:
                if present._base is not None or present._n.needs_grad:
                    return False
                sums.append(present._n)
            parts.append(1 if present is None else 2)
        if not self._follow(sums, parts, []) or (HOOKS and any(n in HOOKS for n in self.nodes)):
            return False
        if inputs is not None:
            if not all(n in self.number for n in inputs):
                return False
            parts.append(len(inputs))
            parts += [self.number[n] for n in inputs]
        parts.append(None)
        parts += [self.number[n] for n in (root, *sums, *self.pending)]
        self.key = Key(tuple(parts))
        return True

    def _follow(self, starts: Sequence[Node], parts: list[Any], variables: list[Node]) -> bool:
        number, nodes, valued, calls = self.number, self.nodes, self.valued, self.calls
        get = number.get
        for start in starts:
            stack = [] if start in number else [_entered(start)]
            while stack:
                node, call, rest, place = stack[-1]
                for o in rest:
                    at = get(o)
                    if at is None:
                        if o.value is None or o.needs_grad:
                            stack.append(_entered(o))
                            break
                        at = number[o] = len(nodes)                 # a leaf, in few steps
                        valued.add(at)
                        nodes.append(o)
                        parts += (o.aval, False)
                    place.append(at)
                else:
                    stack.pop()
                    at = number[node] = len(nodes)
                    nodes.append(node)
                    if stack:
                        stack[-1][3].append(at)
                    known = node.value is not None
                    if known:
                        valued.add(at)
                        parts.append(node.aval)
                    if call is not None:
                        calls.append(at)
                        parts.append(call.structure)
                        parts += place
                        if call.offsets:
                            nodes += [n for _, n in call.offsets]
                        continue
                    fn = node.fn
                    if fn is _VARIABLE and place:
                        variables.append(node)
                        parts.append(fn)
                    elif known and not (node.needs_grad and place):
                        parts.append(node.needs_grad)
                        continue
                    elif not place and node.needs_grad:             # the end of a history that was freed
                        parts += (fn, node.aval, None)
                        continue
                    elif not (place or fn.family == "leaf" or fn.family == "index") or not fn.structural:
                        if not place or (around := fn.around) is None:
                            return False
                        self.customs += 1
                        parts.append(around)
                    elif fn is _OFFSET:                             # the derivative's rules only hand it on
                        parts.append(fn)
                    else:
                        parts += contribution(node)
                        if fn is _CONST and dtype_kind(node.aval.dtype) == "f":
                            self.floats.append((len(parts) - 1, at))
                    parts += place
        return True

    def add(self, nodes: Sequence[Node]) -> None:
        """Give numbers to nodes that have values now, and are no part of the history."""
        new = range(len(self.nodes), len(self.nodes) + len(nodes))
        self.number.update(zip(nodes, new, strict=True))
        self.nodes += nodes
        self.valued.update(new)

    def bits(self) -> list[bytes]:
        """Those of the floats."""
        return [self.nodes[i].attrs["bits"] for _, i in self.floats]

    def without_floats(self) -> Key | None:
        """The key without the floats; None if there are none, or what is around custom calls would have to be compared, too."""
        if self.key is None or not self.floats or self.customs:
            return None
        parts = list(self.key.parts)
        for at, _ in self.floats:
            parts[at] = None
        return Key(tuple(parts))

    def unfold(self) -> None:
        """Make the nodes of all calls, to learn what becomes of them."""
        for i in self.calls:
            result = self.nodes[i]
            behind, values = call_behind(result), result.unfold() if isinstance(result, LazyNode) else ()
            if behind is not None and values:                       # nobody else has asked for them in the meantime
                call = behind[0]
                self.inside.update(values[call.made:])
                for k, (place, _) in enumerate(call.offsets, i + 1):
                    self.number[values[place]] = k


def _entered(node: Node) -> tuple[Node, Any, Iterator[Node], list[int]]:
    """A node, the call behind it if nobody has asked for its nodes, the operands that are to get numbers, and room for these."""
    if node.value is not None and not node.needs_grad:
        return node, None, iter(()), []
    behind = call_behind(node) if type(node) is LazyNode else None
    if behind is None or behind[2]:
        return node, None, iter(node.operands), []
    return node, behind[0], iter(behind[1]), []
