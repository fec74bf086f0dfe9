"""What `cond`, `while_loop` and `scan` do with a function that they record: its values, what it reads, and it as a function of nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from tracegrad.errors import DTypeError, ShapeError
from tracegrad.graph.ir import Node, topological
from tracegrad.graph.primitive import as_node, cast, different_devices
from tracegrad.graph.substitution import substituted
from tracegrad.tensors.tensor import Tensor

NodeFn = Callable[[Sequence[Node]], list[Node]]


def on_one_device(call: str, values: Sequence[Any]) -> None:
    """DeviceError for tensors on several devices where a function is recorded, to be one program. (A run-time number is on any.)"""
    tensors = [x for x in values if isinstance(x, Tensor) and not x._n.aval.weak]
    for x in tensors:
        if x.device is not tensors[0].device:
            raise different_devices(call, tensors[0], x)


def flattened(call: str, value: Any, beside: Any, none_is_leaf: bool = True) -> tuple[list[Node], Any]:
    """The nodes of a nested container of tensors and numbers, and how it is put together. Raises DTypeError for anything else, DeviceError

    for tensors that are not on the device of `beside`, a tensor.
    """
    leaves, tree = optree.tree_flatten(value, none_is_leaf=none_is_leaf)
    on_one_device(call, [beside, *leaves])
    for x in leaves:
        if not isinstance(x, (Tensor, bool, int, float, complex, np.generic)):
            raise DTypeError(f"{call}: a function returned {type(x).__name__}; it must return tensors, or nested containers of them")
    return [x._node() if isinstance(x, Tensor) else as_node(x) for x in leaves], tree


def agreed(what: str, a: Node, b: Node) -> tuple[Node, Node]:
    """The two, which must be alike; a Python scalar takes the other's dtype."""
    if a.aval.weak != b.aval.weak:
        a, b = (cast(a, b.dtype), b) if a.aval.weak else (a, cast(b, a.dtype))
    if a.shape != b.shape:
        raise ShapeError(f"{what} different shapes, {a.shape} and {b.shape}")
    if a.dtype != b.dtype:
        raise DTypeError(f"{what} different dtypes, {a.dtype} and {b.dtype}; cast one of them")
    return a, b


def read_outside(outs: Sequence[Node], inputs: set[Node], wanted: Callable[[Node], bool]) -> list[Node]:
    """What a recorded function reads from outside: the last nodes before its own that depend on none of `inputs`."""
    order = topological(outs, inputs.__contains__)
    inside = set(inputs)
    for node in order:
        if any(o in inside for o in node.operands):
            inside.add(node)
    edges = [*(o for n in order if n in inside and n not in inputs for o in n.operands), *outs]
    return [n for n in dict.fromkeys(edges) if n not in inside and wanted(n)]


def function_of(inputs: Sequence[Node], outs: Sequence[Node]) -> NodeFn:
    """The recorded graph as a function of nodes in the place of `inputs`."""
    return lambda values: substituted(outs, dict(zip(inputs, values, strict=True)))
