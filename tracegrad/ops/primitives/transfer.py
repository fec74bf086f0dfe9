"""The transfer of a tensor to another device, as an operation: its derivative is the transfer back. Start at `transfer`.

A program of one device never holds one: a graph over several is partitioned at its transfers, and what is sent is copied between two
programs (`tracegrad/execute/partition.py`). So the code generator knows nothing of it.
"""

from __future__ import annotations

from typing import Any

from tracegrad.graph.ir import Aval, Node, topological
from tracegrad.graph.operation_families import by_parts
from tracegrad.graph.primitive import REGISTRY, Primitive, bind
from tracegrad.support import dtypes


class Transfer(Primitive):
    """The same value on another device. `source`: the device that the operand lies on, `target`: that of the result."""

    name, family, boundary, saves, linear, pair = "transfer", "transfer", True, False, True, by_parts
    constant = structural = False           # its result lies on one device

    def aval(self, x: Aval, *, source: Any, target: Any) -> Aval:
        return Aval(x.shape, x.dtype)

    def numpy(self, x: Any, *, source: Any, target: Any) -> Any:
        return x

    def vjp(self, ct: Node, y: Node, x: Node, *, source: Any, target: Any) -> tuple[Any, ...]:
        return (transfer(ct, target, source),)


TRANSFER = REGISTRY["transfer"]


def transfer(x: Node, source: Any, target: Any) -> Node:
    """x, a value on the device `source`, on `target`. A constant that both can compute is the same everywhere: it comes back as it is."""
    if source is target or (x.constant and computes(target, *[n.dtype for n in topological([x])])):
        return x
    return bind(TRANSFER, (x,), {"source": source, "target": target})


def computes(device: Any, *kinds: Any) -> bool:
    """Whether a device computes in these dtypes."""
    return device.fp64 or not any(dtype in (dtypes.float64, dtypes.complex128) for dtype in kinds)
