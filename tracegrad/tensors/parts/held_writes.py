"""A part of what NumPy holds is written: a copy of the whole, with the part changed, takes its place. Start at `write_held`.

At length a write is nodes for each step of the view, back and forth, which are computed later; for few elements NumPy is done before.
Nothing is written where it lies: others may have the array. What has a history, whatever a kernel has, and all errors go at length.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.execute.devices import Device
from tracegrad.execute.eager_executor import computed_early, constant_value, made_eagerly, value_of
from tracegrad.execute.policy import eager_calls
from tracegrad.execute.program import contents, host_part
from tracegrad.graph.canonical import resolve
from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import data, renewed
from tracegrad.ops.arrays.subscripts import Subscript
from tracegrad.runtime.buffer import HostBuffer
from tracegrad.support.modes import state

COPIED = 1 << 16        # bytes that are copied of a tensor where a part is written: of more, many writes are one piece of work
_WRITTEN = frozenset(("reshape", "permute", "slice", "flip"))       # steps to a view that NumPy has a view for, which may be written


def held_array(node: Node, device: Device) -> Any:
    """The array with the node's value, which nobody writes, if NumPy holds it, or makes it of numbers alone; else None."""
    value, aval = node.value, node.aval
    if value is None and made_eagerly(device, aval):
        value = value_of(node, device)
    if type(value) is not HostBuffer or value.deferred_checks or (array := value.array) is None:
        return None
    return array if value.fits is aval else contents(value, aval)


def computed_array(node: Node, device: Device) -> Any:
    """As `held_array`, where need be after computing it. It is what an operation gives that was not met before: it would be deferred, and so

    all that is made of what is written, until somebody reads it.
    """
    if node.constant:                                       # others have it, too: it gets no value
        return constant_value(node) if made_eagerly(device, node.aval) else None
    array = held_array(node, device)
    if array is None and computed_early(node, device):
        array = held_array(resolve(node), device)
    return array


def write_held(x: Any, key: tuple[Any, ...] | None, given: Any) -> bool:
    """x[key] = given: a number, an array of x's dtype, or a node of it. False where nothing was done. x: a tensor, or a view of one.

    key: what means to NumPy what it means here; None: all of x.
    """
    if not (state.usual and config.eager and config.recall):
        return False
    path: list[Callable[[Any], Any]] = []
    root, recorded = x, state.grad
    while root._base is not None:                           # a part of a part ... of what has the memory
        if root._n.needs_grad:
            return False
        steps, base, recorded = root._steps, root._base, recorded and not root._detached
        if type(steps) is Subscript and root._layout == len(base._moved):
            path.append(itemgetter(steps.key))
        else:
            chain = root._chain
            if any(fn.name not in _WRITTEN for fn, _ in chain):
                return False
            path += [partial(fn.numpy, **attrs) for fn, attrs in reversed(chain)]
        root = base
    node = root._n
    if root._trace is not None or node.aval.nbytes > COPIED or (node.needs_grad and (recorded or not root._is_leaf())):
        return False
    array = computed_array(node, root._device)
    if array is None or not array.flags.c_contiguous:
        return False
    if isinstance(given, Node) and (given := computed_array(given, x._device)) is None:
        return False
    made = part = np.array(array)                           # also of what NumPy has made a scalar
    try:
        for step in reversed(path):
            part = step(part)
        if part is not made and part.base is not made:      # a reshape that moves elements
            return False
        part[... if key is None else key] = given
    except (IndexError, ValueError, TypeError, OverflowError):
        return False
    eager_calls[0] += 1
    value = HostBuffer(root._device, made)
    root._set_node(renewed(node, value) if node.needs_grad else data(node.aval, value))
    root._versions += 1
    if x._base is root and key is None and not x._n.needs_grad:            # what was written is what the view shows
        x._n = data(x._n.aval, host_part(x._device, part))
        x._source = weakref.ref(root._n), root._versions
    return True
