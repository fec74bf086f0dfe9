"""Parts of what NumPy holds, read and written by indices and by methods: `reading`, `writing`, `rebinding`. Start at `_forward`.

Data sets read and write parts by indices and lengths that are others each time. No signature recurs then (graph/cached_calls.py), and
what the operations are composed of takes a hundred times what NumPy takes for few elements. For these keys NumPy's rule is torch's, so
NumPy's own view is the part, and its own assignment, to a copy, the write: others may have the array. What is to be differentiated,
whatever a kernel has, and all errors go at length.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial, wraps
from operator import itemgetter
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.execute.devices import Device
from tracegrad.execute.eager_executor import constant_value, known_of, made_eagerly, value_of
from tracegrad.execute.policy import eager_calls
from tracegrad.execute.program import contents, host_part
from tracegrad.execute.realize import computed_early
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Aval, Node
from tracegrad.graph.primitive import REGISTRY, data, renewed
from tracegrad.ops.arrays.subscripts import Subscript
from tracegrad.runtime.buffer import Buffer, HostBuffer
from tracegrad.support.modes import state, unusual
from tracegrad.tensors.bases.history import leaves
from tracegrad.tensors.tensor import Tensor, holding

COPIED = 1 << 16        # bytes that are copied, of a tensor where a part is written, and of a part of what a kernel has
_WRITTEN = frozenset(("reshape", "slice"))       # steps to views that may be written so. (Through a transpose, it lies otherwise then.)
LARGEST = 1 << 15       # numbers below it fit into every dtype of floats
_DATA, _VARIABLE = REGISTRY["data"], REGISTRY["variable"]
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


def _chosen(x: Tensor, key: Any) -> tuple[Any, ...] | None:
    """A key with lists, arrays and tensors of integers or bools as NumPy takes it. (Where arrays are left the part is a tensor of its own.)

    None where NumPy means something else (integers, or several arrays and '...'), or does not hold a tensor.
    """
    items, arrays, integers = list[Any](), 0, False
    for k in key if type(key) is tuple else (key,):
        if isinstance(k, Tensor):
            found = k._held() if k._device is x._device else None
            if found is None and k._n.aval.dtype.kind == "b" and k._device is x._device:
                found = _array(k._node(), k._device)        # a mask: how many are chosen has to be known
            if found is None or found.dtype.char not in _INDICES:
                return None
            k = found if found.ndim else int(found) if found.dtype.kind == "i" else None
            if k is None:
                return None
        elif type(k) is list and k and all(type(v) is int for v in k):
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
    if basic is None or (arrays and integers) or (arrays > 1 and any(k is Ellipsis for k in items)):
        return None
    return tuple(items) if arrays else basic


def _place(key: tuple[Any, ...], ndim: int) -> tuple[int, int]:
    """Where the dimensions of index arrays are in the part that such a key takes of `ndim` dimensions, and how many these are."""
    at = [i for i, k in enumerate(key) if isinstance(k, np.ndarray)]
    masks = [key[i].ndim if key[i].dtype.kind == "b" else 0 for i in at]
    count = max(1 if mask else key[i].ndim for i, mask in zip(at, masks, strict=True))
    if at[-1] - at[0] >= len(at):                           # apart
        return 0, count
    rest = ndim - sum(mask or 1 for mask in masks) - sum(type(k) is slice for k in key)
    return sum(rest if k is Ellipsis else 1 for k in key[:at[0]]), count


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
        if self._n.needs_grad or (unusual[0] and not state.plain) or not (config.eager and config.recall):
            return at_length(self, key)
        items = (key, ...) if key.__class__ is int else _forward(key)
        if items is None:
            items = _chosen(self, key)
            if items is None:
                return at_length(self, key)
            if any(isinstance(k, np.ndarray) for k in items):
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
    place, count = _place(key, held.ndim)                   # as it is composed: rows are taken of what has the indexed dimensions in front
    there, front = range(place, place + count), range(count)
    part = np.ascontiguousarray(np.moveaxis(part, there, front) if place else part)
    part = np.moveaxis(part, front, there) if place else part
    return holding(x._device, aval, (known if aval.bounded else {}) | {"aval": aval}, None, part)


def joining(at_length: Callable[..., Tensor], rule: Callable[..., Any]) -> Callable[..., Tensor]:
    """Decorator of `cat` and `stack`, which are `rule` to NumPy: samples come in lists of other lengths each time."""
    @wraps(at_length)
    def joined(*args: Any, **kwargs: Any) -> Tensor:
        if (not kwargs or kwargs.keys() == {"dim"}) and 1 <= len(args) <= 2 - len(kwargs) and config.eager and config.recall and not (
                unusual[0] and not state.plain):
            found = _joined(rule, args[0], kwargs["dim"] if kwargs else args[1] if len(args) == 2 else 0)
            if found is not None:
                return found
        return at_length(*args, **kwargs)

    return joined


def stacked(arrays: list[Any], dim: int) -> Any:
    """np.stack of arrays of one shape, in fewer steps along the first dimension."""
    if dim:
        return np.stack(arrays, dim)
    first = arrays[0]
    if not first.ndim:
        return np.array([a.item() for a in arrays], first.dtype)
    return np.concatenate(arrays).reshape((len(arrays), *first.shape))


def _joined(rule: Callable[..., Any], tensors: Any, dim: Any) -> Tensor | None:
    """rule(arrays, dim) of tensors of one dtype that NumPy holds row by row; None of others, and of large ones."""
    if type(tensors) not in (list, tuple) or len(tensors) < 2 or type(dim) is not int or type(tensors[0]) is not Tensor:
        return None
    device, first, arrays, nbytes, alike = tensors[0]._device, tensors[0]._n.aval, [], 0, rule is stacked
    dtype = first.dtype
    for x in tensors:
        if type(x) is not Tensor or x._device is not device or x._trace is not None:
            return None
        node = x._n if x._base is None else x._node()
        value, aval = node.value, node.aval
        if type(value) is not HostBuffer or node.needs_grad or value.deferred_checks or (
                aval is not first and (alike or aval.dtype is not dtype or aval.shape == (0,))):     # (cat leaves empty vectors out)
            return None
        array = value.array if value.fits is aval else contents(value, aval)
        if array is None or not array.flags.c_contiguous:
            return None
        arrays.append(array)
        nbytes += aval.nbytes
    if nbytes > COPIED or first.shape == (0,):
        return None
    try:
        made = rule(arrays, dim)
    except (ValueError, IndexError):
        return None
    eager_calls[0] += 1
    aval = Aval(made.shape, dtype)
    return holding(device, aval, {"aval": aval}, None, made)


def writing(at_length: Callable[[Tensor, Any, Any], None]) -> Callable[[Tensor, Any, Any], None]:
    """Decorator of `Tensor.__setitem__`."""
    @wraps(at_length)
    def __setitem__(self: Tensor, key: Any, value: Any) -> None:
        if (unusual[0] and not state.usual) or not (config.eager and config.recall and _write(self, key, value)):
            at_length(self, key, value)

    return __setitem__


def _write(x: Tensor, key: Any, value: Any) -> bool:
    """x[key] = value, where NumPy holds all of it; False where nothing was done."""
    items, given = _forward(key), value
    if items is None:
        items = _chosen(x, key)
        if items is None:
            return False
        arrays = [k for k in items if isinstance(k, np.ndarray)]
        select = len(arrays) == 1 and arrays[0].dtype.kind == "b" and not isinstance(value, Tensor)
        if arrays and not select and _place(items, x.ndim)[0]:          # composed, it lies otherwise in memory
            return False
        if not arrays and _is_part(x, items, value):
            return True
    elif _is_part(x, items, value):
        return True
    if isinstance(value, Tensor):
        given = value._held() if value._device is x._device and not value._n.needs_grad else None
        if given is None or given.dtype is not x._n.aval.dtype:
            return False
    elif not _fits(value, x._n.aval.dtype.kind):
        return False
    return _write_held(x, items, given)


def _is_part(x: Tensor, key: tuple[Any, ...], value: Any) -> bool:
    """Whether `value` is the view x[key], as it is now: `x[i] += 1` gives x[i] what it is already. x counts that as a write."""
    if type(value) is not Tensor or value._base is not x or x._base is not None or x._trace is not None:
        return False
    steps, source = value._steps, value._source
    if source is None or type(steps) is not Subscript or steps.key != key or not value._is_current():
        return False
    x._versions += 1
    value._source = source[0], x._versions
    return True


def rebinding(at_length: Callable[[Tensor, Any, str], Tensor]) -> Callable[[Tensor, Any, str], Tensor]:
    """Decorator of `Tensor._rebind`, through which all writing goes: what NumPy holds stays so when it, or a view of it, is written."""
    @wraps(at_length)
    def _rebind(self: Tensor, node: Node, call: str) -> Tensor:
        if (unusual[0] and not state.usual) or node.needs_grad:
            return at_length(self, node, call)
        old = self._n
        if node.fn is _DATA and node.aval is old.aval and _rebound(self, old, node):
            return self
        if self._base is not None:
            fits = node.aval is old.aval and self.shape == old.aval.shape
            return self if fits and _write_held(self, None, node) else at_length(self, node, call)
        at_length(self, node, call)
        now = self._n
        pending = now.value is None and (not now.needs_grad or now.fn is _VARIABLE)
        if pending and config.eager and config.recall and type(resolve(old).value) is HostBuffer:
            computed_early(now, self._device)
        return self

    return _rebind


def _rebound(x: Tensor, old: Node, node: Node) -> bool:
    """x, whose node is `old`, gets `node`, a leaf of its aval, as at length but in few steps, where nothing has to be computed for it.

    x: what is no view, or what detach() gave of such. A leaf that requires grad stays that leaf.
    """
    if (value := node.value) is None or x._trace is not None:
        return False
    base = x._base
    if base is None:
        if not old.needs_grad:
            x._n = node
        elif state.grad or old.fn is not _VARIABLE or leaves.get(old.attrs["uid"]) is not x:
            return False
        else:
            x._set_node(renewed(old, value))
        x._versions += 1
        return True
    behind = base._n
    if (x._steps != () or not x._detached or base._base is not None or base._trace is not None or base._moved or old.needs_grad
            or behind.aval is not node.aval or type(value) is not HostBuffer or value.array is None or not value.array.flags.c_contiguous):
        return False
    if behind.needs_grad and (behind.fn is not _VARIABLE or leaves.get(behind.attrs["uid"]) is not base):
        return False
    base._set_node(renewed(behind, value) if behind.needs_grad else node)
    base._versions += 1
    if hasattr(x, "_untold"):
        base._untold = getattr(base, "_untold", 0) + 1
    x._n, x._source = node, (weakref.ref(base._n), base._versions)
    return True


def _array(node: Node, device: Device) -> Any:
    """The array with the node's value, which nobody writes, if NumPy holds it, makes it of numbers alone, or computes it early."""
    if node.constant:                                       # others have it, too: it gets no value
        return constant_value(node) if made_eagerly(device, node.aval) else None
    found = resolve(node)
    if type(found.value) is not HostBuffer and not (made_eagerly(device, node.aval) and type(value_of(node, device)) is HostBuffer):
        computed_early(node, device)
    value = found.value
    if type(value) is not HostBuffer or value.deferred_checks or value.array is None:
        return None
    return contents(value, node.aval)


def _write_held(x: Tensor, key: tuple[Any, ...] | None, given: Any) -> bool:
    """x[key] = given: a number, an array of x's dtype, or a node of it. False where nothing was done. x: a tensor, or a view of one.

    key: what means to NumPy what it means here; None: all of x.
    """
    if (unusual[0] and not state.usual) or not (config.eager and config.recall):
        return False
    path: list[Callable[[Any], Any]] = []
    root, detached = x, False
    while root._base is not None:                           # a part of a part ... of what has the memory
        if root._n.needs_grad:
            return False
        steps, base, detached = root._steps, root._base, detached or root._detached
        if type(steps) is Subscript and root._layout == len(base._moved):
            path.append(itemgetter(steps.key))
        elif chain := root._chain:
            if any(fn.name not in _WRITTEN for fn, _ in chain):
                return False
            path += [partial(fn.numpy, **attrs) for fn, attrs in reversed(chain)]
        root = base
    node, device = root._n, root._device
    aval = node.aval
    if root._trace is not None or aval.nbytes > COPIED or (node.needs_grad and not ((detached or not state.grad) and root._is_leaf())):
        return False
    array = _array(node, device)
    if array is None or not array.flags.c_contiguous:
        return False
    result = None
    if isinstance(given, Node):
        result = given = _array(given, device)
        if result is None or not result.flags.c_contiguous:             # (what is written elsewhere as it lies)
            return False
    if key is None and not path and result is not None:     # all of it: nobody writes that array
        made = part = result
    else:
        made = part = np.array(array)                       # also of what NumPy has made a scalar
        try:
            for step in reversed(path):
                part = step(part)
            if part is not made and part.base is not made:  # a reshape that moves elements
                return False
            part[... if key is None else key] = given
        except (IndexError, ValueError, TypeError, OverflowError):
            return False
    eager_calls[0] += 1
    value = host_part(device, made)
    root._set_node(renewed(node, value) if node.needs_grad else data(aval, value))
    root._versions += 1
    if x._base is not None and x._through_data() is not None:
        root._untold = getattr(root, "_untold", 0) + 1
    if x._base is root and key is None and not x._n.needs_grad:            # what was written is what the view shows
        x._n = data(x._n.aval, host_part(device, part if result is None else result))
        x._source = weakref.ref(root._n), root._versions
    return True


def _fits(value: Any, kind: str) -> bool:
    """Whether a Python number is one of every dtype of that kind. (Integers that are too large for theirs NumPy refuses.)"""
    cls = value.__class__
    if kind == "f":
        return (cls is float or cls is int) and -LARGEST < value < LARGEST
    return cls is int if kind in "iu" else cls is bool and kind == "b"
