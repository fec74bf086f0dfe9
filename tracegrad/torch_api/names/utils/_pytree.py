"""torch.utils._pytree, by optree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

_OPTIONS: dict[str, Any] = {"none_is_leaf": True, "namespace": "torch"}
TreeSpec = PyTreeSpec = optree.PyTreeSpec
PyTree = Any
Context = Any


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    return optree.tree_flatten(tree, is_leaf=is_leaf, **_OPTIONS)


def tree_unflatten(leaves: Any, treespec: Any) -> Any:
    return optree.tree_unflatten(treespec, leaves)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    return optree.tree_leaves(tree, is_leaf=is_leaf, **_OPTIONS)


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    return optree.tree_map(func, tree, *rests, is_leaf=is_leaf, **_OPTIONS)


def tree_map_only(kinds: Any, func: Callable[..., Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    return tree_map(lambda x: func(x) if isinstance(x, kinds) else x, tree, is_leaf=is_leaf)


def register_pytree_node(cls: type, flatten_fn: Callable[[Any], Any], unflatten_fn: Callable[..., Any], **_: Any) -> None:
    """Tell how a container is taken apart and put together: torch's flatten gives children and context, and its unflatten takes them."""
    optree.register_pytree_node(cls, flatten_fn, lambda context, children: unflatten_fn(list(children), context), namespace="torch")


_register_pytree_node = register_pytree_node


class MappingKey:
    """A place in a mapping."""

    def __init__(self, key: Any) -> None:
        self.key = key


class SequenceKey:
    """A place in a list or tuple."""

    def __init__(self, idx: int) -> None:
        self.idx = idx


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Any, context: Any) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def _dict_flatten_with_keys(d: dict[Any, Any]) -> tuple[list[tuple[MappingKey, Any]], list[Any]]:
    return [(MappingKey(k), v) for k, v in d.items()], list(d)


def _list_flatten(values: list[Any]) -> tuple[list[Any], None]:
    return list(values), None


def _list_unflatten(values: Any, context: Any) -> list[Any]:
    return list(values)


def _list_flatten_with_keys(values: list[Any]) -> tuple[list[tuple[SequenceKey, Any]], None]:
    return [(SequenceKey(i), v) for i, v in enumerate(values)], None
