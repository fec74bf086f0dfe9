"""torch.fx._pytree: arguments that are trees, taken apart as they were when a function was traced."""

from __future__ import annotations

from typing import Any

from tracegrad.torch_api.names.utils._pytree import tree_flatten

__all__ = ["tree_flatten_spec"]


def tree_flatten_spec(pytree: Any, spec: Any) -> list[Any]:
    """The leaves of a tree. Raises RuntimeError where it is not of the structure `spec`."""
    leaves, found = tree_flatten(tuple(pytree))
    if found != spec:
        raise RuntimeError(f"Real spec {found} of object {pytree} is different from expected spec {spec}.")
    return leaves
