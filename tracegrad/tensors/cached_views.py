"""Views of what numpy holds, taken again as they were taken before. Start at `Views`.

A view costs numpy a tenth of a microsecond, and the call of a function that composes nodes fifty times that: a transformer's forward pass
has more views than operations. So where a tensor's value is an array that numpy holds, and no derivative goes through it, a call that was
made before is the array's view, a leaf for it, and the steps from its base, which are always the same. A view that is a part of a history
gets the nodes of that call in the leaf's place, and its value only if its base has one.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tracegrad.config import config
from tracegrad.execute.eager_executor import held_part, known_of
from tracegrad.execute.policy import AT_ONCE
from tracegrad.graph.cached_subgraphs import Template
from tracegrad.graph.canonical import resolve
from tracegrad.graph.intervals import interval
from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import data
from tracegrad.runtime.buffer import Held
from tracegrad.support.cache import Cache
from tracegrad.support.modes import state
from tracegrad.tensors.attributes import moved
from tracegrad.tensors.tensor import Steps, Tensor

KEPT = 1000             # calls of one function
BASES = 8


class Laid:
    """Whether torch has a copy where a call that ends with a reshape gives a view of a base: it depends on how that lies in what it is a

    view of itself. known: of the last `BASES` ways in which bases lay, by the steps' identity: these, their own base's aval, and what
    `moved` said.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[int, tuple[Steps, Any, bool]] = {}

    def moved(self, view: Tensor, base: Tensor) -> bool:
        """`moved(view)`."""
        root = base._base
        if root is None and len(view._steps) == 1:
            return False
        if root is None or root._base is not None or root._moved or base._moved:
            return moved(view)
        steps, aval = base._steps, root._n.aval
        known = self.known.get(id(steps))
        if known is None or known[1] is not aval:               # (an identity is the steps' own while they are kept here)
            if len(self.known) >= BASES:
                self.known.clear()
            known = self.known[id(steps)] = steps, aval, moved(view)
        return known[2]


class _View:
    """How one result of a call is made. steps: from the base. rules: the same on arrays. reshaped: torch may have a copy (see `moved`).

    attrs: of a leaf with its value. call: of a part of a history, its nodes.
    """

    __slots__ = ("attrs", "aval", "call", "copied", "laid", "reshaped", "rules", "steps", "uses")

    def __init__(self, steps: Steps, node: Node, call: Template | None) -> None:
        self.steps, self.aval, self.attrs, self.call = steps, node.aval, known_of(node), call
        self.rules = [fn.numpy_with(**attrs) for fn, attrs in steps]
        self.copied: bool | None = None                     # whether torch has one of what is no view itself: depends on the aval alone
        self.laid, self.uses = Laid(), 0
        self.reshaped = bool(steps) and steps[-1][0].name == "reshape"

    def of(self, base: Tensor, node: Node, array: Any) -> Tensor:
        """The view of `base`, whose node is `node`, which holds `array` (None: it has no value that numpy holds)."""
        device, call = base._device, self.call
        self.uses += 1
        if array is not None:
            for rule in self.rules:
                array = rule(array)
            array = held_part(device, array)
        if call is None:
            view = Tensor(data(self.aval, array, self.attrs), device)
        else:
            made = (call.nodes if call.structure is None else call.folded)((node,))[call.result]
            made.value = array
            view = Tensor(made, device)
        view._base, view._steps, view._layout, view._detached = base, self.steps, len(base._moved), False
        view._source = (weakref.ref(node), base._version) if call is None else None
        copied = self.copied
        if copied is None or base._base is not None:
            copied = self.reshaped and self.laid.moved(view, base)
            if base._base is None:
                self.copied = copied
        return Tensor(view._n, view._device) if copied else view


def _uses(known: _View | tuple[type, list[_View]]) -> int:
    """How many calls were taken."""
    return known.uses if isinstance(known, _View) else known[1][0].uses


class Views:
    """The calls that a function of movement had."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known = Cache("views", KEPT, uses=_uses)          # a _View, (type, list of them) or None: seen once

    def key(self, base: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What tells a call from others; None where views are not taken here. args: the first one is the base."""
        node = base._n
        if not (state.grad if node.needs_grad else type(resolve(node).value) is Held) or not _alone(base, node):
            return None
        return self._described(node, args, kwargs)

    def _described(self, node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        for a in (*args[1:], *kwargs.values()) if kwargs else args[1:]:
            if type(a) is not int and not (type(a) is tuple and all(type(n) is int for n in a)):            # 1.0 equals 1, and so does True
                return None
        aval = node.aval
        known = interval(node) if aval.bounded else node.needs_grad                # between which integers a view's lie
        return (aval, known, *args[1:], *kwargs.items()) if kwargs else (aval, known, *args[1:])

    def take(self, key: Any, base: Tensor) -> Any:
        """What a known call gives; None where it is not known, or cannot be done at once."""
        known = self._known[key]
        if known is None:
            return None
        node = base._n
        value, aval = node.value if node.needs_grad else resolve(node).value, node.aval            # that of a detached one is behind it
        array = value.array if type(value) is Held and not value.suspicions else None
        if array is None:
            if not node.needs_grad:
                return None
        else:
            if array.shape != aval.shape or array.dtype is not aval.dtype:
                array = value.contents(aval.shape, aval.dtype)
            AT_ONCE[0] += 1
        if isinstance(known, _View):
            return known.of(base, node, array)
        cls, views = known
        return cls(view.of(base, node, array) for view in views)

    def learn(self, key: Any, base: Tensor, found: Tensor | Sequence[Tensor]) -> None:
        """Note what a call gave; from the second time on, how."""
        if key not in self._known:
            self._known[key] = None
            return
        views = [found] if isinstance(found, Tensor) else list(found)
        node = base._n
        if node.needs_grad:
            fit = all(v._n.needs_grad for v in views)
        else:
            fit = all(type(resolve(v._n).value) is Held for v in views)
        if fit and views and all(v._base is base and not v._detached for v in views):
            calls = [Template((node,), v._n) if node.needs_grad else None for v in views]
            made = [_View(v._chain, v._n, call) for v, call in zip(views, calls, strict=True)]
            self._known[key] = made[0] if isinstance(found, Tensor) else (type(found), made)
            for v, call in zip(views, calls, strict=True):
                if call is not None:
                    call.fold((node,), v._n)


class Items(Views):
    """The same of base[key]."""

    __slots__ = ()

    def _described(self, node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        key, aval = args[1], node.aval
        known = interval(node) if aval.bounded else node.needs_grad
        if type(key) is int:
            return aval, known, int, key                                # True, which stands there for a tuple, equals 1
        parts: list[Any] = [aval, known, type(key) is tuple]
        for k in key if type(key) is tuple else (key,):
            if type(k) is slice:
                parts += (slice, k.start, k.stop, k.step)
                if not all(n is None or type(n) is int for n in parts[-3:]):
                    return None
            elif type(k) is int or k is None or k is Ellipsis:
                parts.append(k)
            else:
                return None
        return tuple(parts)


def _alone(base: Tensor, node: Node) -> bool:
    """Whether a view of `base`, whose node is said to be `node`, concerns nobody but numpy."""
    return state.plain and config.recall and config.eager and base._trace is None and (base._base is None or base._node() is node)
