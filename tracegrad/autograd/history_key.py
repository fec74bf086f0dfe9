"""What a backward is looked up by: the pending work and the history of a root, walked over once. Start at `History.follow`.

Never recalled, since Python code may have a say in it: hooks, custom Functions, kernels of the user's, derivatives of derivatives, and
traces with one of these in them, or that write what they read.
Nor is what goes from one device to another: it is several programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.config import config
from tracegrad.execute.devices import Device
from tracegrad.graph.canonical import Key, contribution
from tracegrad.graph.ir import LazyNode, Node, call_behind
from tracegrad.graph.leaves import CustomCall
from tracegrad.graph.primitive import REGISTRY
from tracegrad.graph.substitution import HOOKS
from tracegrad.support.dtypes import dtype_kind
from tracegrad.tensors.parts.history import leaves

_VARIABLE, _CONST, _OFFSET = REGISTRY["variable"], REGISTRY["const"], REGISTRY["offset"]
_ordinary: set[Any] = set()                         # the operations whose derivative is a function of the structure


class History:
    """The pending work and the history of a root: nodes and their numbers, which have values, what tells the structure.

    Of a call whose nodes nobody has asked for (ir.LazyNode) that is the call's; the numbers after its result's are those of its offsets.
    calls: the numbers of such results. inside: the nodes behind them, once they were made. floats: where in the key the bits of constants
    stand, and the numbers of these. generic_key: the key without them, once it was asked for.
    """

    __slots__ = ("calls", "device", "floats", "generic_key", "inside", "key", "nodes", "number", "pending", "valued")

    def __init__(self, device: Device, pending: list[Node]) -> None:
        self.device, self.pending = device, pending
        self.number: dict[Node, int] = {}
        self.nodes: list[Node] = []
        self.valued: set[int] = set()
        self.calls: list[int] = []
        self.floats: list[tuple[int, int]] = []
        self.inside: set[Node] = set()
        self.key: Key | None = None
        self.generic_key: Key | None = None

    def follow(self, root: Node, inputs: Sequence[Node] | None = None) -> bool:
        """Walk over everything; False where the derivative is not a function of the structure alone. (Iterative, and a hot path.)

        inputs: the variables whose gradients are given back; None where those of all leaves are added to their `grad`.
        """
        if not _ordinary:
            _ordinary.update(fn for fn in REGISTRY.values() if fn.name not in ("placeholder", "transfer"))
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
            if tensor._n is not node or tensor._base is not None:
                return False
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
            stack = [start]
            while stack:
                node = stack[-1]
                known = node.value is not None
                place = []
                call = None
                if not known or node.needs_grad:
                    depth = len(stack)
                    behind = call_behind(node) if type(node) is LazyNode else None
                    if behind is None or behind[2]:
                        operands = node.operands
                    else:
                        call, operands, _ = behind
                    for o in operands:
                        at = get(o)
                        if at is None and o.value is not None and not o.needs_grad:         # a leaf, in few steps
                            at = number[o] = len(nodes)
                            valued.add(at)
                            nodes.append(o)
                            parts.append(o.aval)
                            parts.append(False)
                        if at is None:
                            stack.append(o)
                        else:
                            place.append(at)
                    if len(stack) > depth:
                        continue
                stack.pop()
                if node in number:
                    continue
                fn = node.fn
                if known:
                    valued.add(len(nodes))
                    parts.append(node.aval)
                number[node] = len(nodes)
                nodes.append(node)
                if call is not None:
                    calls.append(number[node])
                    parts.append(call.structure)
                    parts += place
                    if call.offsets:
                        nodes += [n for _, n in call.offsets]
                    continue
                if known and not (node.needs_grad and place):
                    parts.append(node.needs_grad)
                    continue
                if not place and node.needs_grad:                   # the end of a history that was freed
                    parts += (fn, node.aval, None)
                    continue
                if not (place or fn.family == "leaf" or fn.family == "index"):
                    return False
                known = (fn.executed or fn) in _ordinary or getattr(fn, "ordinary", False)
                if not known and not (isinstance(fn, CustomCall) and fn.structural):
                    return False
                if fn is _OFFSET:                                   # the derivative's rules only hand it on
                    parts.append(fn)
                elif fn is _VARIABLE:
                    variables.append(node)
                    parts.append(fn)
                else:
                    parts += contribution(node)
                    if fn is _CONST and dtype_kind(node.aval.dtype) == "f":
                        self.floats.append((len(parts) - 1, number[node]))
                parts += place
        return True

    def bits(self) -> list[bytes]:
        """Those of the floats."""
        return [self.nodes[i].attrs["bits"] for _, i in self.floats]

    def without_floats(self) -> Key | None:
        """The key without the floats; None if there are none."""
        if self.generic_key is None and self.key is not None and self.floats:
            parts = list(self.key.parts)
            for at, _ in self.floats:
                parts[at] = None
            self.generic_key = Key(tuple(parts))
        return self.generic_key

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
