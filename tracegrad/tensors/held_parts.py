"""Parts of what NumPy holds, read and written by integers and slices: `reading`, `writing`. Start at `_forward`.

Data sets read and write parts by indices and lengths that are others each time. No signature recurs then (graph/cached_calls.py), and
what the operations are composed of takes a hundred times what NumPy takes for few elements. For these keys NumPy's rule is torch's, so
NumPy's own view is the part, and its own assignment, to a copy, the write. What is to be differentiated, whatever a kernel has, and all
errors go at length.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.execute.eager_executor import known_of
from tracegrad.execute.policy import eager_calls
from tracegrad.graph.ir import Aval
from tracegrad.graph.primitive import REGISTRY
from tracegrad.ops.arrays.subscripts import Subscript
from tracegrad.runtime.buffer import Buffer
from tracegrad.support.modes import state
from tracegrad.tensors.parts.held_writes import COPIED, computed_array, write_held
from tracegrad.tensors.tensor import Tensor, holding

LARGEST = 1 << 15       # numbers below it fit into every dtype of floats
_DATA = REGISTRY["data"]
_INDICES = frozenset("ilq?")
_INTEGER_OR_NONE = frozenset((int, type(None)))


def _forward(key: Any) -> tuple[Any, ...] | None:
    """The key with '...', so that NumPy gives a view of no dimensions, too, and no scalar. None of what is more than integers, slices that

    go forward, None and '...'.
    """
    items = key if type(key) is tuple else (key,)
    dots = False
    for k in items:
        cls = k.__class__
        if cls is slice:
            step = k.step
            if not (k.start.__class__ in _INTEGER_OR_NONE and k.stop.__class__ in _INTEGER_OR_NONE
                    and (step is None or (step.__class__ is int and step > 0))):
                return None
        elif k is Ellipsis:
            dots = True
        elif cls not in _INTEGER_OR_NONE:
            numpys = isinstance(k, np.integer)
            return _forward(tuple([int(i) if isinstance(i, np.integer) else i for i in items])) if numpys else None
    return items if dots else (*items, ...)


def _chosen(x: Tensor, key: Any) -> tuple[tuple[Any, ...], bool] | None:
    """A key with lists, arrays and tensors of integers or bools as NumPy takes it, and whether there are index arrays in it: else it is as

    `_forward`'s. None where NumPy means something else (integers beside index arrays), or does not hold a tensor.
    """
    items, arrays, integers = list[Any](), 0, False
    for k in key if type(key) is tuple else (key,):
        if isinstance(k, Tensor):
            found = k._held() if k._device is x._device else None
            if found is None and k._n.aval.dtype.kind == "b" and k._device is x._device:
                found = computed_array(k._node(), k._device)        # a mask: how many are chosen has to be known
            if found is None or found.dtype.char not in _INDICES:
                return None
            k = found if found.ndim else int(found) if found.dtype.kind == "i" else None
            if k is None:
                return None
        elif type(k) is list and k and all([type(v) is int for v in k]):
            k = np.array(k)
        elif type(k) is slice:
            k = slice(*[int(found) if isinstance(v, Tensor) and (found := v._held()) is not None and found.dtype.kind == "i"
                        and not found.ndim else v for v in (k.start, k.stop, k.step)])
        if isinstance(k, np.ndarray):
            if not k.ndim or k.dtype.char not in _INDICES:
                return None
            arrays += 1
        integers |= type(k) is int
        items.append(k)
    basic = _forward(tuple([k for k in items if not isinstance(k, np.ndarray)]))
    if basic is None or (arrays and integers):
        return None
    return (tuple(items), True) if arrays else (basic, False)


def _window(x: Tensor) -> Any:
    """The memory of what a kernel has, where the host shares it; None where there is none."""
    node = x._n
    value = node.value
    if x._base is not None or x._trace is not None or not isinstance(value, Buffer) or value.deferred_checks:
        return None
    return value.window(node.aval.shape, node.aval.dtype) if value.device.in_host_memory and value.nbytes else None


def reading(at_length: Callable[[Tensor, Any], Any]) -> Callable[[Tensor, Any], Any]:
    """Decorator of `Tensor.__getitem__`."""
    @wraps(at_length)
    def __getitem__(self: Tensor, key: Any) -> Any:
        if not (state.plain and config.eager and config.recall):
            return at_length(self, key)
        items = _forward(key)
        if items is None:
            if (found := _chosen(self, key)) is None:
                return at_length(self, key)
            items, picked = found
            if picked:
                part = _picked(self, items)
                return at_length(self, key) if part is None else part
        held = self._held()
        node, array = self._n, _window(self) if held is None else held
        if array is None or node.needs_grad:
            return at_length(self, key)
        try:
            part = array[items]
        except IndexError:
            return at_length(self, key)
        if held is None and part.nbytes > COPIED:           # which a kernel has from where it is
            return at_length(self, key)
        eager_calls[0] += 1
        device = self._device
        aval = Aval(part.shape, node.aval.dtype)
        attrs = {"aval": aval}
        if aval.bounded:                                    # the range that is known of all is known of a part
            attrs = (node.attrs if node.fn is _DATA else known_of(node)) | attrs
        view = holding(device, aval, attrs, None, part)
        view._source = weakref.ref(node), self._versions if self._base is None else self._version
        view._base, view._steps = self, Subscript(node.aval.shape, items)
        view._layout, view._detached = len(self._moved), False
        return view

    return __getitem__


def _picked(x: Tensor, key: tuple[Any, ...]) -> Tensor | None:
    """x[key], a tensor of its own, for a key with index arrays; None where NumPy does not hold x, or the result is large."""
    held, node = x._held(), x._n
    if held is None or node.needs_grad:
        return None
    try:
        part = held[key]
    except IndexError:
        return None
    if part.nbytes > COPIED:                                # has been computed for nothing, which is little beside what comes
        return None
    eager_calls[0] += 1
    aval = Aval(part.shape, node.aval.dtype)
    known = node.attrs if node.fn is _DATA else known_of(node)
    return holding(x._device, aval, (known if aval.bounded else {}) | {"aval": aval}, None, np.ascontiguousarray(part), True)


def writing(at_length: Callable[[Tensor, Any, Any], None]) -> Callable[[Tensor, Any, Any], None]:
    """Decorator of `Tensor.__setitem__`."""
    @wraps(at_length)
    def __setitem__(self: Tensor, key: Any, value: Any) -> None:
        if not (state.usual and config.eager and config.recall and _write(self, key, value)):
            at_length(self, key, value)

    return __setitem__


def _write(x: Tensor, key: Any, value: Any) -> bool:
    """x[key] = value, where NumPy holds all of it; False where nothing was done."""
    items, given = _forward(key), value
    if items is None:
        if (found := _chosen(x, key)) is None:
            return False
        items, _ = found
    if isinstance(value, Tensor):
        given = value._held() if value._device is x._device and not value._n.needs_grad else None
        if given is None or given.dtype is not x._n.aval.dtype:
            return False
    elif not _fits(value, x._n.aval.dtype.kind):
        return False
    return write_held(x, items, given)


def _fits(value: Any, kind: str) -> bool:
    """Whether a Python number is one of every dtype of that kind. (Integers that are too large for theirs NumPy refuses.)"""
    cls = value.__class__
    if kind == "f":
        return (cls is float or cls is int) and -LARGEST < value < LARGEST
    return cls is int if kind in "iu" else cls is bool and kind == "b"
