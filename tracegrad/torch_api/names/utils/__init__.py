"""torch.utils' names that are not in `tracegrad.utils`."""

from __future__ import annotations

from typing import Any

from tracegrad.autograd.hooks import accumulating
from tracegrad.errors import ArgumentError, ArgumentTypeError, type_name
from tracegrad.tensors.bases.handle import Handle
from tracegrad.tensors.bases.history import leaves
from tracegrad.tensors.tensor import Tensor

__all__ = ["swap_tensors"]


def swap_tensors(t1: Tensor, t2: Tensor) -> None:
    """Exchange all that two tensors are, but which is which: values, classes, gradients, attributes and hooks.

    Raises ArgumentError for views. Of those that were taken before, which torch refuses, nobody knows here: they stay with the handle.
    """
    for t in (t1, t2):
        if not isinstance(t, Tensor):
            raise ArgumentTypeError(f"swap_tensors: takes two tensors, got {type_name(t)}")
        if t._base is not None or t._trace is not None:
            raise ArgumentError(f"swap_tensors: a tensor of shape {tuple(t.shape)} is a view, or of a trace: swap what has its own memory")
        if id(t) in accumulating and t._post_hooks:
            raise ArgumentError("swap_tensors: a tensor has post-accumulate-grad hooks; remove them, and register them anew")
    one, two = _parts(t1), _parts(t2)
    first: Any = t1
    second: Any = t2
    first.__class__, second.__class__ = second.__class__, first.__class__
    for tensor, parts in ((t1, two), (t2, one)):
        for slot in Handle.__slots__:
            if slot in parts:
                setattr(tensor, slot, parts[slot])
            elif slot != "__weakref__" and hasattr(tensor, slot):
                delattr(tensor, slot)
        vars(tensor).clear()
        vars(tensor).update(parts["vars"])
        if tensor._n.fn.name == "variable":
            leaves[tensor._n.attrs["uid"]] = tensor


def _parts(tensor: Tensor) -> dict[str, Any]:
    """What the slots of a tensor hold, and its attributes."""
    held = {slot: getattr(tensor, slot) for slot in Handle.__slots__ if slot != "__weakref__" and hasattr(tensor, slot)}
    return held | {"vars": dict(vars(tensor))}
