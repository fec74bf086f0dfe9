"""Views of what numpy holds, taken again as they were taken before. Start at `Views`.

A view costs numpy a tenth of a microsecond, and the call of a function that composes nodes fifty times that: a transformer's forward pass
has more views than operations. So where a tensor's value is an array that numpy holds, and no derivative goes through it, a call that was
made before is the array's view, a leaf for it, and the steps from its base, which are always the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tracegrad.at_once import held_part
from tracegrad.config import config
from tracegrad.describing import moved
from tracegrad.eager import AT_ONCE
from tracegrad.function import data
from tracegrad.ir import Aval, Node
from tracegrad.modes import state
from tracegrad.runtime.buffer import Held
from tracegrad.tensor import Steps, Tensor

KEPT = 1000             # calls of one function; when there are more, all are forgotten


class _View:
    """How one result of a call is made. steps: from the base. rules: the same on arrays. reshaped: torch may have a copy (see `moved`)."""

    __slots__ = ("attrs", "aval", "reshaped", "rules", "steps")

    def __init__(self, steps: Steps, aval: Aval) -> None:
        self.steps, self.aval, self.attrs = steps, aval, {"aval": aval}
        self.rules = [fn.numpy_with(**attrs) for fn, attrs in steps]
        self.reshaped = bool(steps) and steps[-1][0].name == "reshape"

    def of(self, base: Tensor, node: Node, array: Any) -> Tensor:
        """The view of `base`, whose node is `node`, which holds `array`."""
        for rule in self.rules:
            array = rule(array)
        view = Tensor(data(self.aval, held_part(base._device, array), self.attrs), base._device)
        view._base, view._steps, view._layout, view._detached = base, self.steps, len(base._moved), False
        view._source = weakref.ref(node), base._version
        return Tensor(view._n, view._device) if self.reshaped and moved(view) else view


class Views:
    """The calls that a function of movement had."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Any, _View | tuple[type, list[_View]] | None] = {}                      # None: seen once

    def key(self, base: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What tells a call from others; None where views are not taken here. args: the first one is the base."""
        node = base._n
        return None if node.needs_grad or type(node.value) is not Held or not _alone(base, node) else self._described(node, args, kwargs)

    def of_call(self, base: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[type | None, list[_View]] | None:
        """How a call's results are made, and the type of a sequence that they come in, if they do; None where that is not known."""
        key = self._described(base._n, args, kwargs) if _alone(base, base._n) else None
        known = None if key is None else self._known.get(key)
        return (None, [known]) if isinstance(known, _View) else known

    def _described(self, node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        for a in (*args[1:], *kwargs.values()) if kwargs else args[1:]:
            if type(a) is not int and not (type(a) is tuple and all(type(n) is int for n in a)):            # 1.0 equals 1, and so does True
                return None
        return (node.aval, *args[1:], *kwargs.items()) if kwargs else (node.aval, *args[1:])

    def take(self, key: Any, base: Tensor) -> Any:
        """What a known call gives; None where it is not known, or cannot be done at once."""
        known = self._known.get(key)
        if known is None:
            return None
        node = base._n
        value, aval = node.value, node.aval
        array = value.array
        if array is None or value.suspicions:
            return None
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
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[key] = None
            return
        views = [found] if isinstance(found, Tensor) else list(found)
        if all(v._base is base and not v._detached and type(v._n.value) is Held for v in views):
            made = [_View(v._chain, v._n.aval) for v in views]
            self._known[key] = made[0] if isinstance(found, Tensor) else (type(found), made)


class Items(Views):
    """The same of base[key]."""

    __slots__ = ()

    def _described(self, node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        key = args[1]
        parts: list[Any] = [node.aval, type(key) is tuple]
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
    if node.aval.bounded or not config.eager or state.trace is not None or base._trace is not None:          # of integers, ranges are known
        return False
    if state.examples or state.hidden or state.pulling or state.holds or state.turning:
        return False
    return base._base is None or base._node() is node
