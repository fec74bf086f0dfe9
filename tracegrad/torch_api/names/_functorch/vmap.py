"""torch._functorch.vmap: what containers of tensors (TensorDict) ask for.

`vmap` is tracegrad's, which calls containers' own methods. What they put here in the place of its parts is not called.
"""

from __future__ import annotations

from typing import Any

import optree

from tracegrad.autograd.vmap_transform import vmap, whole_of
from tracegrad.tensors.scopes import Examples
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api.names._C._functorch import _add_batch_dim
from tracegrad.torch_api.names.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["Tensor", "_add_batch_dim", "tree_flatten", "tree_unflatten", "vmap"]


def _maybe_remove_batch_dim(name: str, batched_output: Any, vmap_level: Examples, batch_size: int, out_dim: int | None) -> Any:
    """The whole batch of what the function `name` made for one example; with out_dim None, what is the same for all."""
    return whole_of(vmap_level, batched_output, out_dim)


def _get_name(func: Any) -> str:
    return getattr(func, "__name__", None) or repr(func)


def _broadcast_to_and_flatten(tree: Any, treespec: Any, is_leaf: Any = None) -> list[Any] | None:
    """A value of `tree` for each leaf of the structure, of which its own leaves stand for all that is there; None if it does not fit."""
    whole: Any = optree.tree_unflatten(treespec, [0] * treespec.num_leaves)
    try:
        return optree.broadcast_prefix(tree, whole, is_leaf=is_leaf, none_is_leaf=True, namespace="torch")
    except ValueError:
        return None
