"""The steps that lead from a tensor to a view of it, on nodes: made again (`stepped`), and undone where a view is written (`put_back`)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Protocol

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import REGISTRY, bind, cast, const
from tracegrad.ops.primitives.dynamic_slice import parts, put_slice, slice_at
from tracegrad.ops.primitives.movement import expand, flip, inverse, permute, reshape
from tracegrad.ops.primitives.reduction import sum_to
from tracegrad.support import dtypes
from tracegrad.support.modes import state

_SLICE = REGISTRY["slice"]
Step = tuple[Any, dict[str, Any]]  # a movement op, or `subscripts.PLACED`, and its attributes
Steps = tuple[Step, ...]


def is_placed(fn: Any) -> bool:
    """Whether a step leads to a place that a tensor tells, in a trace (`tracegrad.ops.arrays.subscripts.Placed`)."""
    return bool(fn.name == "placed")


def plain_steps(steps: Steps) -> Steps:
    """The steps, as if what a key holds were 0: sizes and distances in memory are the same."""
    return tuple([step for fn, attrs in steps for step in (attrs["like"] if is_placed(fn) else ((fn, attrs),))])


class Unmade(Protocol):
    """In the place of steps for which few ask (ops.arrays.subscripts.Subscript)."""

    def steps(self) -> Steps:
        """Make them."""


def apart() -> bool:
    """Whether where slices start is no part of the structure: in what is done untraced, by nobody's rule (see
    ops/primitives/dynamic_slice.py)."""
    return state.plain


def stepped(node: Node, fn: Any, attrs: dict[str, Any]) -> Node:
    """A step of a view's chain."""
    if is_placed(fn):
        read: Node = fn.read(node, attrs["key"])
        return read
    if fn is _SLICE and apart():
        size = fn.aval(node.aval, **attrs).shape
        dims = parts(size, node.shape)
        if dims:
            return slice_at(node, attrs["start"], size, attrs["step"], dims)
    return bind(fn, (node,), attrs)


# The parts of complex tensors are views, and so are bytes as another dtype: (value, source) -> what the source becomes when its part is
# given a value.
_PARTS: dict[str, Callable[[Node, Node], Node]] = {
    "real": lambda value, source: REGISTRY["complex"](value, REGISTRY["imag"](source)),
    "imag": lambda value, source: REGISTRY["complex"](REGISTRY["real"](source), value),
    "view_as_real": lambda value, source: bind(REGISTRY["view_as_complex"], (value,), {}),
    "view_as_complex": lambda value, source: bind(REGISTRY["view_as_real"], (value,), {}),
    "bits": lambda value, source: (REGISTRY["ne"](value, 0) if source.dtype == dtypes.bool_ and value.dtype.itemsize == 1
                                   else bind(REGISTRY["bits"], (value,), {"dtype": source.dtype, "index": 0})),
}


def overlap(steps: Steps) -> bool:
    """Whether an element may have several places once these steps were made."""
    return any(fn.name in ("expand", "unfold") for fn, _ in steps)


def _are_apart(shape: tuple[int, ...], steps: Steps) -> bool:
    """Whether the elements of such a view of a base of that shape are memory locations of their own."""
    places: Any = np.arange(prod(shape)).reshape(shape)
    for fn, attrs in plain_steps(steps):
        if fn.name in _PARTS:
            return False
        places = fn.numpy(places, **attrs)
    return bool(len(np.unique(places)) == places.size)


def put_back(base: Node, steps: Steps, value: Node, call: str) -> Node:
    """The base's new node once the view of it that `steps` make holds `value`: they are undone from their end."""
    stages = [base]
    for fn, attrs in steps:
        stages.append(fn.read(stages[-1], attrs["key"]) if is_placed(fn) else bind(fn, (stages[-1],), attrs))
    back = list(zip(reversed(steps), reversed(stages[:-1]), strict=True))
    if overlap(steps):
        if not _are_apart(base.shape, steps):
            raise ArgumentError(f"{call}: several elements of an expanded tensor, or of windows that overlap, are one memory location; "
                                "clone() it first")
        covered: Any = expand(const(1, dtypes.int32), value.shape)
        value = cast(value, dtypes.int32) if value.dtype == dtypes.bool_ else value
        for (fn, attrs), source in back:  # each element of the base gets one of the view's, or none
            covered, value = (_pulled(fn, attrs, v, source) for v in (covered, value))
        written: Node = REGISTRY["where"](covered > 0, cast(value, base.dtype), base)
        return written
    for (fn, attrs), source in back:
        if fn.name == "reshape":
            value = reshape(value, source.shape)
        elif fn.name == "permute":
            value = permute(value, inverse(attrs["dims"]))
        elif fn.name == "flip":
            value = flip(value, attrs["dims"])
        elif fn.name == "slice":
            dims = parts(value.shape, source.shape) if apart() else ()
            value = put_slice(source, value, attrs["start"], attrs["step"], dims)
        elif is_placed(fn):
            value = fn.write(source, attrs["key"], value)
        elif fn.name in _PARTS:
            value = _PARTS[fn.name](value, source)
        else:  # the padding of a diagonal: what it holds is seen by nobody
            value = fn.vjp(value, value, source, **attrs)[0]
    return value


def _pulled(fn: Any, attrs: dict[str, Any], value: Node, source: Node) -> Node:
    """The sum of the elements of a view over those of the source that each of them is."""
    found: Node
    if is_placed(fn):
        found = fn.write(expand(const(0, value.dtype), source.shape), attrs["key"], value)
        return found
    found = sum_to(fn.vjp(value, value, source, **attrs)[0], source.shape)
    return found


def own_copy(node: Node) -> Node:
    """The same value as a step of a history of its own."""
    return bind(REGISTRY["copy"], (node,), {}) if not node.needs_grad else Node(REGISTRY["copy"], (node,), {}, node.aval, True)
