"""torch._C._functorch: what containers of tensors (TensorDict) ask for, to be mapped by `vmap`. A level is the vmap's scope."""

from __future__ import annotations

from typing import Any

from tracegrad.autograd.vmap_transform import example_of, whole_of
from tracegrad.graph.ir import topological
from tracegrad.support.modes import state
from tracegrad.tensors.scopes import Examples
from tracegrad.tensors.tensor import Tensor


def is_batchedtensor(tensor: Any) -> bool:
    """Whether each example of a vmap that goes on has its own."""
    return isinstance(tensor, Tensor) and _scope(tensor) is not None


def _scope(tensor: Tensor) -> Examples | None:
    """The innermost vmap that maps it."""
    scopes = [scope for scope in reversed(state.scopes) if isinstance(scope, Examples)]
    nodes = topological([tensor._node()]) if scopes else []
    return next((scope for scope in scopes if any(node in scope.mapped for node in nodes)), None)


def _add_batch_dim(tensor: Tensor, in_dim: int, level: Examples) -> Tensor:
    """What stands for one example of it, along a dimension."""
    return example_of(level, tensor, in_dim)


def _remove_batch_dim(tensor: Tensor, level: Examples, batch_size: int, out_dim: int) -> Tensor:
    """The whole batch of it, which has a dimension more."""
    return whole_of(level, tensor, out_dim)  # type: ignore[no-any-return]


def get_unwrapped(tensor: Tensor) -> Tensor:
    """The batch of an example, which comes first; another tensor as it is."""
    scope = _scope(tensor)
    return tensor if scope is None else whole_of(scope, tensor, 0)
