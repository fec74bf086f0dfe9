"""Making nodes in passes: they carry the location of the node they replace (`at`)."""

from __future__ import annotations

from typing import Any

from tracegrad.graph.ir import Node
from tracegrad.graph.locations import located
from tracegrad.graph.primitive import REGISTRY, bind

at = located


def op(name: str, *operands: Node, **attrs: Any) -> Node:
    """The node that applies the op called `name`."""
    return bind(REGISTRY[name], operands, attrs)
