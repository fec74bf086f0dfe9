"""How the arrays of a loop's iterations lie in memory when NumPy computes them: rewrites of NumPy's own. Start at `joined` and `Stacks`.

NumPy takes as long to begin an operation as it computes for a thousand elements. So functions of parts of one array (the gates of an LSTM)
become parts of one function. A kernel computes an index for each element, so it needs none of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracegrad.graph.ir import Graph, Node
from tracegrad.graph.primitive import REGISTRY, bind
from tracegrad.graph.substitution import substituted
from tracegrad.passes.loops import CARRIED, Split

_SLICE, _RESHAPE = REGISTRY["slice"], REGISTRY["reshape"]
ROW, WHOLE = 1 << 14, 1 << 20       # bytes, of an iteration and of all: larger arrays take no less time together than one after the other


def early(node: Node, length: int) -> bool:
    """Whether an operation on rows is better done for all `length` iterations together."""
    return node.aval.nbytes <= ROW and length * node.aval.nbytes <= WHOLE and node.fn.family in ("elementwise", "movement")


class Stacks:
    """Where iterations put what is wanted of all of them.

    made: the nodes that they put there. Of `found`, a part of an array is found in the array, and a carry in what becomes of it, which has
    room for one more. new: the rows of the latter that iterations make.
    """

    def __init__(self, split: Split, reverse: bool) -> None:
        wanted, depends, length = split.inner, split.depends, split.length
        carried = {split.inputs[i]: split.outputs[i] for i in split.kept}           # of each carry, what becomes of it
        self._length = length
        early, late = slice(length), slice(1, None)
        self._old: slice = late if reverse else early
        self.new: slice = early if reverse else late
        becomes = {new: carry for carry, new in carried.items() if carry in wanted and depends[new] == CARRIED and new not in carried}
        sizes: Counter[Node] = Counter()
        for n in wanted:
            sizes[_part(n)[0]] += n.aval.size
        parts = {n: whole for n in wanted for whole in [_part(n)[0]] if n is not whole and n not in becomes and whole not in carried
                 and depends[whole] == CARRIED and 2 * sizes[whole] >= whole.aval.size}
        self.made = list(dict.fromkeys([*becomes, *(parts.get(n, n) for n in wanted if n not in becomes.values())]))
        self._shapes = [((length + (n in becomes), *n.shape), n.dtype) for n in self.made]
        place = {n: k for k, n in enumerate(self.made)}
        first, carries = length if reverse else 0, list(carried)
        self._firsts = [(place[new], first, carries.index(carry)) for new, carry in becomes.items()]
        self._parts = [(place[whole], (slice(None), *_part(n)[1])) for n, whole in parts.items()]
        self.found = [*self.made, *becomes.values(), *parts]

    def wide(self, state: Sequence[Any]) -> list[Any]:
        """New arrays for `made`, and one more row where it becomes a carry, of which `state` has the first."""
        arrays = [np.empty(shape, dtype) for shape, dtype in self._shapes]
        for k, first, carry in self._firsts:
            arrays[k][first] = state[carry]
        return arrays

    def arrays(self, wide: Sequence[Any]) -> list[Any]:
        """Those of `found`."""
        narrow = [x[self.new] if len(x) > self._length else x for x in wide]
        return [*narrow, *(wide[k][self._old] for k, _, _ in self._firsts), *(narrow[k][part] for k, part in self._parts)]


def joined(graph: Graph) -> Graph:
    """The graph with functions of parts of one array, such as the gates of an LSTM, as parts of a function of the array."""
    found: dict[Any, list[Node]] = {}
    for node in graph:
        part = node.operands[0] if len(node.operands) == 1 and node.fn.family == "elementwise" else None
        if part is not None and part.fn is _SLICE and part.aval.nbytes <= ROW:
            found.setdefault((part.operands[0], node.fn, *node.attrs.items()), []).append(node)
    new: dict[Node, Node] = {}
    for (base, fn, *_), nodes in found.items():
        parts = dict.fromkeys(n.operands[0] for n in nodes)
        if len(parts) > 1 and 2 * sum(part.aval.size for part in parts) >= base.aval.size:
            whole = bind(fn, (base,), nodes[0].attrs)
            new.update((n, bind(_SLICE, (whole,), n.operands[0].attrs)) for n in nodes)
    return Graph.capture(graph.inputs, substituted(graph.outputs, new)) if new else graph


def _part(n: Node) -> tuple[Node, Any]:
    """The array that a node is a part of, and which; else itself."""
    cut = n.operands[0] if n.fn is _RESHAPE else n
    if cut.fn is not _SLICE or (n is not cut and cut.shape != (1, *n.shape)):
        return n, ()
    index: list[Any] = [slice(*ends) for ends in zip(*(cut.attrs[end] for end in ("start", "stop", "step")), strict=True)]
    return cut.operands[0], tuple(index if n is cut else [index[0].start, *index[1:]])


