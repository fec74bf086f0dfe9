"""How the result of a trace is put together at each replay: `ResultRecipe`."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine, Iterator, Sequence
from enum import Enum
from types import FunctionType
from typing import Any

import numpy as np
import optree

from tracegrad.errors import TraceError, printable
from tracegrad.execute.realize import without_history
from tracegrad.tensors.bases.view_steps import is_placed
from tracegrad.tensors.tensor import Tensor
from tracegrad.tracing.guards import GuardSet
from tracegrad.tracing.reachable_names import is_foreign
from tracegrad.tracing.recording import Recording

Level = tuple[Any, bool, Tensor | None]          # of a view: its chain, whether it is detached, itself if it has a history of its own


class ResultRecipe:
    """How to put the result of a call together. entries: one per leaf of the result, (kind, what):

    "static": a Python value. "value": number of a tensor that the program computes, of `tensors`. "outside": a tensor from outside
    or a view of it, (place, the views that lead to it). "view": a view of a computed tensor, (its number, the views). "grad": the
    gradient of the tensor at a place. labels: what the return statement calls `tensors`, "" where it does not.

    A view is (chain, whether it is detached, the number of what it was written as with a history of its own, or None).
    """

    def __init__(self, recording: Recording, result: Any, flat: Sequence[Any], guard_set: GuardSet, returned: Sequence[str],
                 assigned: Sequence[Any]) -> None:
        """assigned: what is put elsewhere; its entries stand last."""
        paths, leaves, self.treedef = optree.tree_flatten_with_path(result, none_is_leaf=True)
        self.labels: list[str] = []
        self.is_tuple = type(result) is tuple and all(isinstance(x, Tensor) for x in result)
        self.tensors: list[Tensor] = []
        self.entries: list[tuple[str, Any]] = []
        grads = {id(g): t for t, g in recording.grads.values() if g is not None}
        leaves += assigned
        bases = [self._levels(recording, x)[0] for x in leaves if isinstance(x, Tensor)]
        for x, label in zip(leaves, [*_labels(paths, returned), *[""] * len(assigned)], strict=True):
            if not isinstance(x, Tensor):
                _check_static(recording, x, flat, guard_set)
                self.entries.append(("static", x))
                continue
            if x._trace is not None and x._trace is not recording:
                raise TraceError(f"{recording.name}: returns a tensor of another trace")
            base, levels = self._levels(recording, x)
            if id(x) in grads:
                self.entries.append(("grad", recording.place(grads[id(x)])))
            elif base._trace is None and id(base) not in recording.adopted:
                self.entries.append(("outside", (recording.place(base), self._numbered(levels))))
            elif levels and sum(b is base for b in bases) > 1:
                self.entries.append(("view", (self._number(base, ""), self._numbered(levels))))
            else:
                self.entries.append(("value", self._number(x, label)))

    def _number(self, tensor: Tensor, label: str) -> int:
        """The number of a computed tensor; the same for the same one."""
        for k, t in enumerate(self.tensors):
            if t is tensor:
                return k
        self.tensors.append(tensor)
        self.labels.append(label)
        return len(self.tensors) - 1

    def _numbered(self, levels: list[Level]) -> list[tuple[Any, bool, int | None]]:
        return [(chain, detached, None if own is None else self._number(own, "")) for chain, detached, own in levels]

    @staticmethod
    def _levels(recording: Recording, tensor: Tensor) -> tuple[Tensor, list[Level]]:
        """The tensor that one made in the trace is a view of, and the views that lead from there to it.

        A view at a place that a tensor tells is a tensor of its own for who calls.
        """
        levels: list[Level] = []
        while tensor._trace is recording and tensor._base is not None and not any(is_placed(fn) for fn, _ in tensor._chain):
            levels.insert(0, (tensor._chain, tensor._detached, tensor if tensor._detached and tensor._node().needs_grad else None))
            tensor = tensor._base
        return tensor, levels


def view_of(base: Tensor, levels: Sequence[Any], made: Sequence[Tensor]) -> Tensor:
    """The view of `base` that an entry of a ResultRecipe tells. made: the tensors that the program computed."""
    for chain, detached, own in levels:
        node = base._node()
        view = Tensor(without_history(node, base._device) if detached else node, base._device)
        view._base, view._chain, view._detached = base, chain, detached
        if own is None:
            view._n = view._replay(base._node())
        else:                                       # as InPlace._own_history_after leaves it
            view._n, view._source = made[own]._n, (weakref.ref(base._node()), base._version)
        base = view
    return base


def _labels(paths: Sequence[tuple[Any, ...]], returned: Sequence[str]) -> list[str]:
    """The name of each leaf of a result, from those in the return statement (of the result, or of its items) or from its own keys."""
    heads = {path[0] for path in paths if path}
    labels = []
    for path in paths:
        parts: list[Any] = [""]
        if path and isinstance(path[0], str):
            parts = [*path]
        elif len(returned) == 1:
            parts = [returned[0], *path]
        elif path and isinstance(path[0], int) and len(returned) == len(heads):
            parts = [returned[path[0]], *path[1:]]
        labels.append(printable("_".join(map(str, parts))) if parts[0] else "")
    return labels


def _check_static(recording: Recording, value: Any, flat: Sequence[Any], guard_set: GuardSet) -> None:
    """A result that is no tensor is handed out again at every replay, so it must be of a kind that nobody changes, or from outside."""
    changes = isinstance(value, (Iterator, Coroutine, set, bytearray, np.ndarray))
    own = not isinstance(value, (type, Enum, FunctionType)) and not is_foreign(type(value))
    if (changes or own) and value not in guard_set and not any(value is x for x in flat):
        raise TraceError(
            f"{recording.name}: returns a {type(value).__name__}, which a replay could only hand out as it was at the first call; "
            "return tensors, numbers, strings, and (nested) tuples, lists and dicts of them"
        )
