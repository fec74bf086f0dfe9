"""Views of what NumPy holds, made again as they were made before. Start at `recalled`.

A view costs NumPy a tenth of a microsecond, and the call of a function that composes nodes fifty times that: a transformer's forward pass
has more views than operations. So where a tensor's value is an array that NumPy holds, and no derivative goes through it, a call that was
made before is the array's view, a leaf for it, and the steps from its base, which are always the same. A view that is a part of a history
gets the nodes of that call in the leaf's place, and its value only if its base has one. Calls are told apart as in graph/cached_calls.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import ref

from tracegrad.config import config
from tracegrad.execute.eager_executor import known_of
from tracegrad.execute.policy import eager_calls
from tracegrad.execute.program import contents, host_part
from tracegrad.graph.cached_calls import KEPT, CachedCall, came_before, describe
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Node
from tracegrad.runtime.buffer import HostBuffer
from tracegrad.support.cache import Cache
from tracegrad.support.modes import state, unusual
from tracegrad.tensors.attributes import moved
from tracegrad.tensors.tensor import Tensor, holding

BASES = 1000            # how so many bases of reshaped views lie in memory is known


class _View:
    """How one result of a call is made. steps: from the base. rules: the same on arrays. attrs: of a leaf with its value. call: of a part

    of a history, its nodes. reshaped: whether the last step is one. whole: whether all elements of the base are seen.
    """

    __slots__ = ("attrs", "aval", "call", "reshaped", "rules", "steps", "whole")

    def __init__(self, base: Node, view: Tensor) -> None:
        """How `view` was made of what has the node `base`."""
        node, steps = view._n, view._chain
        self.steps, self.aval, self.attrs = steps, node.aval, known_of(node)
        self.rules = [fn.numpy_with(**attrs) for fn, attrs in steps]
        self.reshaped = bool(steps) and steps[-1][0].name == "reshape"
        self.whole = all(fn.name in ("reshape", "permute", "expand") for fn, _ in steps)
        self.call = CachedCall((base,), node) if node.needs_grad else None
        if self.call is not None:
            self.call.fold((base,), node)

    def of(self, base: Tensor, node: Node, array: Any) -> Tensor:
        """The view of `base`, whose node is `node`, which holds `array` (None: it has no value that NumPy holds)."""
        device, call = base._device, self.call
        if array is not None:
            for rule in self.rules:
                array = rule(array)
        if call is None:
            view = holding(device, self.aval, self.attrs, None, array, self.whole)
            source = base._source                           # of a view, which is current
            view._source = ref(node), base._versions if base._base is None else base._version if source is None else source[1]
        else:
            made = call.make((node,))[call.result]
            made.value = None if array is None else host_part(device, array, self.whole)
            view = Tensor(made, device)
        view._base, view._steps = base, self.steps
        view._layout, view._detached = len(base._moved), False
        return Tensor(view._n, device) if self.reshaped and self._copied(view, base) else view

    def _copied(self, view: Tensor, base: Tensor) -> bool:
        """Whether torch has a copy of such a view: only a reshape may, and it depends on how the base lies in memory."""
        root = base._base
        if base._moved or (root is not None and (root._base is not None or root._moved)):
            return moved(view)
        steps, aval = ((), base._n.aval) if root is None else (base._chain, root._n.aval)
        key = self, id(steps), aval
        known = _copies[key]
        if known is None:                           # (an identity is the steps' own while they are kept here)
            known = _copies[key] = steps, moved(view)
        return known[1]  # type: ignore[no-any-return]


_copies = Cache("reshaped views", BASES)            # by the view and how its base is made: that, and what `_View._copied` says


def recalled(make: Callable[..., Any]) -> Any:
    """Decorator of what makes views of its first argument: from the third call of a signature on they are made as then."""
    memo = Cache("calls", KEPT)         # by signature the views, and the type of their sequence, None for one view

    @wraps(make)
    def entry(*args: Any, **kwargs: Any) -> Any:
        base: Any = args[0] if args else None
        known = None
        if isinstance(base, Tensor) and config.eager and not (unusual[0] and not state.plain):
            node = base._n
            if type(node.value) is HostBuffer or node.needs_grad or node.fn.boundary:
                known = describe(args, kwargs)
        if known is not None:
            key, nodes, _ = known
            node, call = nodes[0], memo[key]
            if call is not None and node is base._n:             # else it is without its history
                value = node.value
                if value is None and not node.needs_grad:        # of a detached one, behind it
                    value = resolve(node).value
                array = value.array if type(value) is HostBuffer and not value.deferred_checks else None
                if array is not None:
                    eager_calls[0] += 1
                    if value.fits is not node.aval:
                        array = contents(value, node.aval)
                if array is not None or node.needs_grad:
                    memo.hits += 1
                    form, views = call
                    return views[0].of(base, node, array) if form is None else form([view.of(base, node, array) for view in views])
        found = make(*args, **kwargs)
        # Not of other tensors: their values may decide where the view begins and ends.
        if known is not None and len(nodes) == 1 and not any(isinstance(a, Tensor) for a in args[1:]):
            _learn(memo, key, base, node, found)
        return found._tensor_of(found._node()) if isinstance(found, Tensor) and moved(found) else found

    return entry


def _learn(memo: Any, key: Any, base: Tensor, node: Node, found: Any) -> None:
    """Note what a call gave; from the second time on, how."""
    if not came_before(memo, key):
        return
    views = [found] if isinstance(found, Tensor) else list(found)
    fit = all(v._n.needs_grad if node.needs_grad else type(resolve(v._n).value) is HostBuffer for v in views)
    if fit and views and node is base._n and all(v._base is base and not v._detached for v in views):
        memo[key] = None if isinstance(found, Tensor) else type(found), [_View(node, v) for v in views]
