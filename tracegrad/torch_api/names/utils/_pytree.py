"""torch.utils._pytree, by optree."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import optree

from tracegrad.graph.ir import NODES

_NAMESPACE = "torch"
_OPTIONS: dict[str, Any] = {"none_is_leaf": True, "namespace": _NAMESPACE}
_ordering = optree.dict_insertion_ordered(True, namespace=_NAMESPACE)      # torch goes through dicts in their own order
_ordering.__enter__()
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
        return optree.register_pytree_node.get(kind, namespace=_NAMESPACE)

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
        _deregister_pytree_node(kind)
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


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """How a tree is put together."""
    return optree.tree_structure(tree, is_leaf=is_leaf, **_OPTIONS)


def tree_iter(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """The leaves, one by one."""
    return iter(tree_leaves(tree, is_leaf))


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Call the function with each leaf, and return the tree as it is."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def _are(kinds: Any) -> Callable[[Any], bool]:
    """What tells leaves: a type, several, or a function."""
    return kinds if callable(kinds) and not isinstance(kinds, type) else lambda x: isinstance(x, kinds)


def map_only(kinds: Any) -> Callable[..., Any]:
    """A decorator: the function, and for values of other types the values themselves."""
    are = _are(kinds)
    return lambda func: lambda x: func(x) if are(x) else x


def tree_map_only(kinds: Any, func: Callable[..., Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    return tree_map(map_only(kinds)(func), tree, is_leaf=is_leaf)


def tree_map_only_(kinds: Any, func: Callable[..., Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Call the function with each leaf of these types, and return the tree as it is."""
    return tree_map_(map_only(kinds)(func), tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all_only(kinds: Any, pred: Callable[[Any], bool], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    return all(map(pred, filter(_are(kinds), tree_leaves(tree, is_leaf))))


def tree_any_only(kinds: Any, pred: Callable[[Any], bool], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    return any(map(pred, filter(_are(kinds), tree_leaves(tree, is_leaf))))


def arg_tree_leaves(*args: Any, **kwargs: Any) -> list[Any]:
    """The leaves of all arguments."""
    return [leaf for tree in (*args, *kwargs.values()) for leaf in tree_leaves(tree)]


_keyed: dict[type, Callable[[Any], tuple[list[Any], Any]]] = {}            # of users' containers: what is in them, with its places


def register_pytree_node(cls: type, flatten_fn: Callable[[Any], Any], unflatten_fn: Callable[..., Any], *,
                         flatten_with_keys_fn: Callable[[Any], tuple[list[Any], Any]] | None = None, **_: Any) -> None:
    """Tell how a container is taken apart and put together: torch's flatten gives children and context, and its unflatten takes them.

    vmap, grad and their like take it apart, too. Raises ValueError for a type that is known.
    """
    if cls in SUPPORTED_NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    for namespace in (_NAMESPACE, NODES):
        optree.register_pytree_node(cls, flatten_fn, lambda context, children: unflatten_fn(list(children), context), namespace=namespace)
    if flatten_with_keys_fn is not None:
        _keyed[cls] = flatten_with_keys_fn


_register_pytree_node = register_pytree_node


def _deregister_pytree_node(cls: type) -> None:
    """From now on it is a leaf."""
    for namespace in (_NAMESPACE, NODES):
        optree.unregister_pytree_node(cls, namespace=namespace)
    _keyed.pop(cls, None)


def register_dataclass(cls: Any, *, field_names: Sequence[str] | None = None, drop_field_names: Sequence[str] | None = None,
                       serialized_type_name: str | None = None) -> None:
    """Tell that a dataclass, or a class with `field_names`, is a container of the fields that its `__init__` takes; those that are None are

    none. Raises ValueError where `field_names` and `drop_field_names` are not a dataclass's fields.
    """
    fields = [f.name for f in dataclasses.fields(cls) if f.init] if dataclasses.is_dataclass(cls) else None
    if field_names is None and fields is None:
        raise ValueError(f"field_names must be specified with a list of all fields used to initialize {cls}, as it is not a dataclass.")
    if fields is not None and field_names is not None and set(fields) - set(drop_field_names or ()) != set(field_names):
        raise ValueError(f"field_names does not include all dataclass fields, or others: {fields}, less {drop_field_names or []}, are not "
                         f"{list(field_names)}")
    names = list(field_names if field_names is not None else fields or ())

    def keyed(value: Any) -> tuple[list[Any], Any]:
        there = [n for n in names if getattr(value, n) is not None]
        return [(GetAttrKey(n), getattr(value, n)) for n in there], [there, [n for n in names if n not in there]]

    def flat(value: Any) -> tuple[list[Any], Any]:
        pairs, context = keyed(value)
        return [x for _, x in pairs], context

    register_pytree_node(cls, flat, lambda children, context: cls(**dict(zip(context[0], children, strict=True)),
                                                                  **dict.fromkeys(context[1])), flatten_with_keys_fn=keyed)


def register_constant(cls: Any) -> None:
    """Tell that values of a type are containers of nothing, which are what they are."""
    register_pytree_node(cls, lambda value: ([], value), lambda _, value: value, flatten_with_keys_fn=lambda value: ([], value))


@dataclasses.dataclass(frozen=True)
class MappingKey:
    """A place in a mapping."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        return mapping[self.key]


@dataclasses.dataclass(frozen=True)
class SequenceKey:
    """A place in a list or tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        return sequence[self.idx]


@dataclasses.dataclass(frozen=True)
class GetAttrKey:
    """An attribute of a named tuple or a dataclass."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: Any) -> Any:
        return getattr(obj, self.name)


def keystr(kp: Sequence[Any]) -> str:
    """A path in words: `['a'][0].b`."""
    return "".join(map(str, kp))


def key_get(obj: Any, kp: Sequence[Any]) -> Any:
    """What is there in a tree."""
    for key in kp:
        obj = key.get(obj)
    return obj


def _with_keys(tree: Any) -> list[Any]:
    """The places in a container, and what is there. Raises ValueError where a user's container does not tell."""
    if optree.is_namedtuple(tree):
        return [(GetAttrKey(name), getattr(tree, name)) for name in tree._fields]
    if isinstance(tree, dict) and type(tree) in (dict, OrderedDict, defaultdict):
        return [(MappingKey(k), v) for k, v in tree.items()]
    if type(tree) in _keyed:
        return _keyed[type(tree)](tree)[0]
    if isinstance(tree, (list, tuple, deque)):
        return [(SequenceKey(i), v) for i, v in enumerate(tree)]
    raise ValueError(f"Did not find a flatten_with_keys_fn for type: {type(tree)}. Please pass a flatten_with_keys_fn argument to "
                     "register_pytree_node.")


def tree_leaves_with_path(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[tuple[Any, ...], Any]]:
    """The leaves, each with its path: a tuple of keys."""
    found: list[tuple[tuple[Any, ...], Any]] = []
    ahead: list[tuple[tuple[Any, ...], Any]] = [((), tree)]
    while ahead:
        path, part = ahead.pop()
        if tree_is_leaf(part, is_leaf):
            found.append((path, part))
        else:
            ahead += [((*path, key), child) for key, child in reversed(_with_keys(part))]
    return found


def tree_flatten_with_path(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[tuple[tuple[Any, ...], Any]], Any]:
    """The leaves with their paths, and how the tree is put together."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`tree_map` of a function that gets each leaf's path first."""
    leaves, spec = tree_flatten_with_path(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return tree_unflatten([func(path, leaf, *more) for (path, leaf), *more in zip(leaves, *others, strict=True)], spec)


treespec_leaf = LeafSpec
treespec_tuple, treespec_dict = partial(optree.treespec_tuple, **_OPTIONS), partial(optree.treespec_dict, **_OPTIONS)
BUILTIN_TYPES = frozenset({tuple, list, dict, namedtuple, OrderedDict, defaultdict, deque})
STANDARD_DICT_TYPES = frozenset({dict, OrderedDict, defaultdict})


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
