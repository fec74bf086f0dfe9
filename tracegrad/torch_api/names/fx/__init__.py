"""torch.fx: the marks that programs put on functions and modules for its tracer."""

from __future__ import annotations

from typing import Any


class Proxy:
    """None is made here: `isinstance` says so."""


class Node(Proxy):
    """None is made here."""


class Graph(Proxy):
    """None is made here."""


class GraphModule(Proxy):
    """None is made here."""


class Tracer:
    """No function is traced by torch.fx here."""


def wrap(fn_or_name: Any) -> Any:
    """The function, as it is."""
    return fn_or_name
