"""torch.utils._pytree, by optree."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import optree

_OPTIONS: dict[str, Any] = {"none_is_leaf": True, "namespace": "torch"}
PyTree = Any
Context = Any


class _IsSpec(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, optree.PyTreeSpec)


class TreeSpec(metaclass=_IsSpec):
    """How a tree is put together: an optree.PyTreeSpec, made of a container's type, its context and the specs of what is in it."""

    def __new__(cls, type: Any, context: Any, children_specs: list[Any]) -> Any:
        return optree.treespec_from_collection(SUPPORTED_NODES[type].unflatten_fn(children_specs, context), **_OPTIONS)


PyTreeSpec = TreeSpec


def LeafSpec() -> Any:
    """The spec of what is no container."""
    return optree.treespec_leaf(**_OPTIONS)


class NodeDef(NamedTuple):
    """How containers of a type are taken apart, and put together again."""

    type: Any
    flatten_fn: Callable[[Any], tuple[Any, Any]]
    unflatten_fn: Callable[[Any, Any], Any]


class _Nodes:
    """The types of containers, those of users too."""

    def _entry(self, kind: Any) -> Any:
        return optree.register_pytree_node.get(kind, namespace="torch")

    def __contains__(self, kind: Any) -> bool:
        return kind is not type(None) and self._entry(kind) is not None

    def __getitem__(self, kind: Any) -> NodeDef:
        if kind not in self:
            raise KeyError(kind)
        entry = self._entry(kind)
        return NodeDef(kind, lambda tree: entry.flatten_func(tree)[:2], lambda children, context: entry.unflatten_func(context, children))


    def __setitem__(self, kind: Any, node: NodeDef) -> None:
        register_pytree_node(kind, node.flatten_fn, node.unflatten_fn)

    def pop(self, kind: Any, default: Any = None) -> Any:
        """How containers of a type were taken apart; from now on they are leaves."""
        if kind not in self:
            return default
        found = self[kind]
        optree.unregister_pytree_node(kind, namespace="torch")
        return found


SUPPORTED_NODES = _Nodes()
is_namedtuple, is_namedtuple_class, is_namedtuple_instance = optree.is_namedtuple, optree.is_namedtuple_class, optree.is_namedtuple_instance
is_structseq, is_structseq_class, is_structseq_instance = optree.is_structseq, optree.is_structseq_class, optree.is_structseq_instance


def _get_node_type(tree: Any) -> Any:
    return namedtuple if optree.is_namedtuple(tree) else type(tree)


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    return optree.tree_flatten(tree, is_leaf=is_leaf, **_OPTIONS)


def tree_unflatten(leaves: Any, treespec: Any) -> Any:
    return optree.tree_unflatten(treespec, leaves)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    return optree.tree_leaves(tree, is_leaf=is_leaf, **_OPTIONS)


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    return optree.tree_map(func, tree, *rests, is_leaf=is_leaf, **_OPTIONS)


def tree_is_leaf(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether it is no container."""
    return optree.tree_is_leaf(tree, is_leaf=is_leaf, **_OPTIONS)


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
