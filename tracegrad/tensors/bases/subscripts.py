"""Reading and writing by index, and what else containers have. Start at `Subscripts.__getitem__`; ops/arrays/subscripts.py has the rules.

`Subscripts` is a base of Tensor: what it reads of the handle is Tensor's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from tracegrad.errors import DTypeError, warn
from tracegrad.graph.ir import own_nodes
from tracegrad.graph.operators import PUBLIC, Operators
from tracegrad.ops.arrays import subscripts
from tracegrad.support import dtypes
from tracegrad.support.dtypes import dtype_kind
from tracegrad.support.modes import state
from tracegrad.tensors.bases.handle import Handle
from tracegrad.tensors.bases.view_steps import apart, is_placed


class Subscripts(Handle):
    """The methods of a tensor that take a part of it by index."""

    __slots__ = ()

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError("len: a 0-d tensor has no length")
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        if type(key) is list:
            key = subscripts.sequence(key)
        if not state.symbolic:
            key = _known_places(key)
        if subscripts.is_basic(key):
            return self._view(subscripts.getitem(self, key, True, apart()))
        if state.symbolic and (like := _places_as_0(key)) is not None:
            return self._placed(key, like)
        return subscripts.getitem(self, self._known_masks(_masks_of_bytes("getitem", key)), False, apart())

    def _placed(self, key: Any, like: Any) -> Any:
        """The view x[key] of a key with tensors of no dimensions, of which nobody knows what they hold. like: the key with 0 there."""
        source = self._node()
        node = self._operand() if source.needs_grad and not state.grad else source
        nodes = tuple([k._operand() if isinstance(k, Subscripts) else k for k in (key if type(key) is tuple else (key,))])
        with own_nodes():
            view = self._handle(subscripts.PLACED.read(node, nodes), self._device, state.trace)
        given = _versions(key)
        view._base, view._detached, view._source = self, node is not source, (weakref.ref(source), self._version)
        view._chain = ((subscripts.PLACED, {"key": nodes, "given": given, "like": subscripts.Subscript(self.shape, like).steps()}),)
        return view

    def _is_placed_at(self, base: Any, key: Any) -> bool:
        """Whether this is the view base[key] of such a key, as it was made: `x[i] += 1` gives x[i] what it is already."""
        chain = self._chain if self._base is base else ()
        if len(chain) != 1 or not is_placed(chain[0][0]):
            return False
        given, now = chain[0][1]["given"], _versions(key)
        return len(given) == len(now) and all(a is b and m == n if isinstance(a, Subscripts) else a == b
                                              for (a, m), (b, n) in zip(given, now, strict=True))

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) is list:
            key = subscripts.sequence(key)
        if isinstance(value, Subscripts) and value._is_placed_at(self, key):
            return
        if not isinstance(value, Operators) and not np.isscalar(value):
            array = np.asarray(value)
            if dtype_kind(array.dtype) not in "biufc":
                raise DTypeError(f"setitem: cannot assign {type(value).__name__}; give a tensor, a number, or lists or arrays of numbers")
            value = PUBLIC["tensor"](array, device=self._device)
        if isinstance(value, Subscripts) and value._device is not self._device and (not value.ndim or subscripts.is_basic(key)):
            value = value.to(device=self._device)           # as copy_ does; by other indices torch, too, takes one device's only
        key = _masks_of_bytes("setitem", key)
        if state.trace is None and not state.examples and _masks(key) and not subscripts.selects(self, key, value):
            key = self._known_masks(key)
        place, at = (self[key], ...) if self._has_windows() and subscripts.is_basic(key) else (self, key)
        place._rebind(subscripts.setitem(place, at, value, apart())._node(), "setitem")

    def _known_masks(self, key: Any) -> Any:
        """The key with boolean masks read and turned into index arrays (their number of hits is a shape: it must be known)."""
        if not _masks(key):
            return key
        return tuple(
            k._value("indexing with a boolean mask (its result's shape depends on values)")
            if isinstance(k, Subscripts) and k.dtype == dtypes.bool_
            else k
            for k in (key if isinstance(key, tuple) else (key,))
        )

    def __contains__(self, item: Any) -> bool:
        return bool((self == item).any())

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise DTypeError("iter: a 0-d tensor has nothing to iterate over")
        return (self[i] for i in range(self.shape[0]))

    def __reversed__(self) -> Any:
        """The tensor with its first dimension the other way round, as torch has it: no iterator."""
        return self.flip(0) if self.shape else self


def _known_places(key: Any) -> Any:
    """The key with integer tensors of no dimensions as what they hold, if only these keep it from being one of a view, as in torch."""
    places = [k for k in (key if type(key) is tuple else (key,)) if isinstance(k, Subscripts) and not k.ndim and dtypes.is_int(k.dtype)]
    if not places or any(k.dtype == dtypes.uint8 or not k._device.has_values for k in places):
        return key
    known = {id(k): k.item() for k in places}
    found = tuple([known.get(id(k), k) for k in key]) if type(key) is tuple else known[id(key)]
    return found if subscripts.is_basic(found) else key


def _places_as_0(key: Any) -> Any:
    """The key, as a tuple, with 0 for integer tensors of no dimensions, if it is one of a view then; else None."""
    def is_place(k: Any) -> bool:
        return isinstance(k, Subscripts) and not k.ndim and dtypes.is_int(k.dtype) and k.dtype != dtypes.uint8

    found = tuple([0 if is_place(k) else k for k in (key if type(key) is tuple else (key,))])
    return found if subscripts.is_basic(found) else None


def _versions(key: Any) -> list[tuple[Any, int]]:
    """The items of a key, tensors with their versions."""
    return [(k, k._version if isinstance(k, Subscripts) else 0) for k in (key if type(key) is tuple else (key,))]


def _masks_of_bytes(call: str, key: Any) -> Any:
    """The key with tensors of uint8 as the masks that torch takes them for."""
    items = key if isinstance(key, tuple) else (key,)
    if not any(isinstance(k, Subscripts) and k.dtype == dtypes.uint8 for k in items):
        return key
    warn(f"{call}: an index of uint8 is a mask, as in torch; say so with .bool(), or use .long() for places")
    return tuple([PUBLIC["ne"](k, 0) if isinstance(k, Subscripts) and k.dtype == dtypes.uint8 else k for k in items])


def _masks(key: Any) -> bool:
    """Whether an index holds a tensor of bools."""
    return any(isinstance(k, Subscripts) and k.dtype == dtypes.bool_ for k in (key if isinstance(key, tuple) else (key,)))
