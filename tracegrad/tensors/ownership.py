"""Who may write memory in place: whoever has the only handle on it. Start at `own`.

A Buffer is a handle on memory. Whoever holds a value holds its handle: the nodes that have it, an exported array, what a backward has
saved. They are not counted by references, for what a reference is differs between interpreters. A replay that wants to write takes a new
handle, gives it to the tensor, and lets go of the old one. If that is gone then, nobody else had it. If it is still there, the replay
works on a copy. An interpreter that frees objects later, or keeps a reference that another one does without, costs a copy and no more.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tracegrad.graph.primitive import REGISTRY, data, renewed
from tracegrad.graph.substitution import HOOKS

if TYPE_CHECKING:
    from tracegrad.tensors.tensor import Tensor

_VARIABLE, _ref = REGISTRY["variable"], weakref.ref


def own(values: list[Any], places: Iterable[int], tensors: list[Tensor | None]) -> None:
    """Put Buffers that nobody else sees in `places` of `values`: of the same memory as those that are there, or copies.

    values: the only list that holds them. tensors: of each, the tensor that has it as its value; None where that keeps the old one, as
    it is for copies afterwards. (A hot path: for each tensor that a step updates.)
    """
    value: Any
    for i in places:
        tensor, value = tensors[i], values[i]
        node = tensor._n if tensor is not None and tensor._base is None else None
        mine = value.handle() if node is not None and (node.fn is _VARIABLE or not node.needs_grad) else None
        if mine is None or node is None or tensor is None:
            values[i], tensors[i] = value.copy(), None
            continue
        last, values[i] = _ref(value), mine
        if node.needs_grad:
            made = tensor._n = renewed(node, mine)
            if tensor._hooks is not None:
                HOOKS[made] = tensor._hooks
        else:
            made = tensor._n = data(node.aval, mine)
        node = value = None
        value = last()
        if value is not None:                                   # somebody else holds it, or a node that has it
            (made.operands[0] if made.needs_grad else made).value = value
            values[i], tensors[i] = value.copy(), None
