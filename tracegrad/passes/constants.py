"""What passes ask about numbers in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracegrad.graph.ir import Node
from tracegrad.support.dtypes import dtype_kind


def constant_of(node: Node) -> Any:
    """The number that every element of `node` is, if it is known; else None."""
    while node.fn.name in ("expand", "reshape"):
        node = node.operands[0]
    return node.attrs["value"] if node.fn.name == "const" else None


def exactly(value: Any, number: float) -> bool:
    """Whether a constant is this number, the sign of zero included."""
    return value is not None and bool(value == number) and (number != 0 or dtype_kind(value.dtype) != "f" or not np.signbit(value))
