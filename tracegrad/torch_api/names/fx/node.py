"""torch.fx.node: one operation of a graph, and what walks arguments."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from tracegrad.torch_api.names.fx._naming import is_from_torch, node_name, target_text, type_text
from tracegrad.torch_api.names.fx._naming import qualified_name as _get_qualified_name
from tracegrad.torch_api.names.fx.immutable_collections import immutable_dict, immutable_list

__all__ = ["Argument", "Node", "Target", "_get_qualified_name", "has_side_effect", "map_aggregate", "map_arg"]

Argument = Any
Target = str | Callable[..., Any]
OPS = "call_function", "call_method", "get_attr", "call_module", "placeholder", "output"
base_types = (str, int, float, bool, complex)
# What changes a tensor in place, and what draws random numbers.
_EFFECT = re.compile(r"[a-z].*[a-z0-9]_|rand|randn|randint|randperm|(rand|randn|randint)_like|normal|bernoulli|multinomial|"
                     "poisson")
_with_side_effects: set[Any] = {operator.setitem}


def has_side_effect(fn: Any) -> Any:
    """Tell `eliminate_dead_code` to keep calls of a function. Returns it."""
    _with_side_effects.add(fn)
    return fn


def map_aggregate(a: Any, fn: Callable[[Any], Any]) -> Any:
    """`fn` of everything that is no container in `a`; lists and dictionaries come out as those that do not change."""
    if isinstance(a, tuple):
        parts = tuple(map_aggregate(x, fn) for x in a)
        return type(a)(*parts) if hasattr(a, "_fields") else parts
    if isinstance(a, list):
        return immutable_list(map_aggregate(x, fn) for x in a)
    if isinstance(a, dict):
        return immutable_dict((k, map_aggregate(v, fn)) for k, v in a.items())
    if isinstance(a, slice):
        return slice(map_aggregate(a.start, fn), map_aggregate(a.stop, fn), map_aggregate(a.step, fn))
    return fn(a)


def map_arg(a: Any, fn: Callable[[Node], Any]) -> Any:
    """`fn` of every node in `a`; anything else stays."""
    return map_aggregate(a, lambda x: fn(x) if isinstance(x, Node) else x)


def _sequence_text(items: list[Any] | tuple[Any, ...], text: Callable[[Any], str]) -> str:
    """A list or tuple as Python writes it, each item as `text` does."""
    inside = ", ".join(map(text, items))
    return f"[{inside}]" if isinstance(items, list) else f"({inside}{',' * (len(items) == 1)})"


def _text(arg: Any) -> str:
    """An argument as listings show it."""
    if isinstance(arg, (list, tuple)):
        return _sequence_text(arg, _text)
    if isinstance(arg, dict):
        return f"{{{', '.join(f'{k}: {_text(v)}' for k, v in arg.items())}}}"
    return f"%{arg}" if isinstance(arg, Node) else str(arg)


class Node:
    """One operation of a graph.

    op: "placeholder" (an argument of the function), "get_attr" (a tensor of the module), "call_function", "call_method", "call_module"
    or "output". target: the function, or the name of the method, module, attribute or argument. args and kwargs: what it is called with,
    in which other nodes stand for their results. users: the nodes that use it, as a dictionary's keys. meta: whatever programs keep here.
    """

    def __init__(self, graph: Any, name: str, op: str, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any],
                 return_type: Any = None) -> None:
        if op == "call_function":
            if not callable(target):
                raise ValueError(f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target).__name__} but a "
                                 "Callable is expected")
        elif not isinstance(target, str):
            raise ValueError(f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target).__name__} but a str is "
                             "expected")
        self.graph, self.name, self.op, self.target, self.type = graph, name, op, target, return_type
        self.meta: dict[str, Any] = {}
        self.users: dict[Node, None] = {}
        self._input_nodes: dict[Node, None] = {}
        self._prev = self._next = self
        self._erased = False
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._update(args, kwargs)

    def __repr__(self) -> str:
        return self.name

    # ------------------------------------------------------------------------------------------------------- arguments

    @property
    def args(self) -> tuple[Any, ...]:
        return self._args

    @args.setter
    def args(self, args: tuple[Any, ...]) -> None:
        self._update(args, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs: dict[str, Any]) -> None:
        self._update(self._args, kwargs)

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes among its arguments, each once."""
        return list(self._input_nodes)

    def _update(self, args: Any, kwargs: Any) -> None:
        for old in self._input_nodes:
            old.users.pop(self)
        self._input_nodes = {}

        def used(node: Node) -> Node:
            self._input_nodes[node] = None
            node.users[self] = None
            return node

        self._args, self._kwargs = map_arg(tuple(args), used), map_arg(dict(kwargs), used)

    def update_arg(self, idx: int, arg: Any) -> None:
        """Make `arg` the argument at `idx`."""
        self.args = (*self.args[:idx], arg, *self.args[idx + 1:])

    def insert_arg(self, idx: int, arg: Any) -> None:
        """Put `arg` before the argument at `idx`."""
        if not 0 <= idx <= len(self.args):
            raise AssertionError(f"insert_arg index must be between 0 and len(self.args), got {idx}")
        self.args = (*self.args[:idx], arg, *self.args[idx:])

    def update_kwarg(self, key: str, arg: Any) -> None:
        """Make `arg` the argument of that name."""
        self.kwargs = {**self.kwargs, key: arg}

    def replace_input_with(self, old_input: Node, new_input: Node) -> None:
        """Use `new_input` wherever an argument is `old_input`."""
        def replaced(node: Node) -> Node:
            return new_input if node is old_input else node

        self._update(map_arg(self._args, replaced), map_arg(self._kwargs, replaced))

    def replace_all_uses_with(self, replace_with: Node, delete_user_cb: Callable[[Node], bool] | None = None, *,
                              propagate_meta: bool = False) -> list[Node]:
        """Use another node wherever this one is used. delete_user_cb: of which users; all if None. propagate_meta: copy `meta`, too.

        Returns the users that were changed.
        """
        if propagate_meta:
            if replace_with.meta:
                raise AssertionError("Called node.replace_all_uses_with(replace_with, propagate_meta=True), but replace_with already has "
                                     ".meta keys")
            replace_with.meta.update(self.meta)
        users = [user for user in self.users if delete_user_cb is None or delete_user_cb(user)]
        for user in users:
            user.replace_input_with(self, replace_with)
        return users

    # ----------------------------------------------------------------------------------------------------------- order

    @property
    def next(self) -> Node:
        """The node after it."""
        return self._next

    @property
    def prev(self) -> Node:
        """The node before it."""
        return self._prev

    def prepend(self, x: Node) -> None:
        """Move `x` before this node."""
        if self.graph is not x.graph:
            raise AssertionError("Attempting to move a Node into a different Graph")
        if self is x:
            return
        x._unlink()
        before = self._prev
        before._next, x._prev, x._next, self._prev = x, before, self, x

    def append(self, x: Node) -> None:
        """Move `x` after this node."""
        self._next.prepend(x)

    def _unlink(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    # ------------------------------------------------------------------------------------------------------------ text

    @property
    def stack_trace(self) -> str | None:
        """Where the program made it, if its tracer recorded that."""
        return self.meta.get("stack_trace")

    @stack_trace.setter
    def stack_trace(self, trace: str | None) -> None:
        self.meta["stack_trace"] = trace

    @staticmethod
    def _pretty_print_target(target: Any) -> str:
        return target_text(target)

    def format_node(self, placeholder_names: list[str] | None = None) -> str | None:
        """The node's line of a listing. With names in `placeholder_names`, a placeholder is added there, and None is returned."""
        kind = f"{type_text(self.type)} " if self.type is not None else ""
        head = f"%{self.name} : {kind}[num_users={len(self.users)}] = {self.op}"
        if self.op == "placeholder":
            if placeholder_names:
                placeholder_names.append(f"{self.target}{f'{self.target}: {type_text(self.type)}' if self.type else ''}")
                return None
            return f"{head}[target={self.target}]{f'(default={self.args[0]})' if self.args else ''}"
        if self.op == "get_attr":
            return f"{head}[target={target_text(self.target)}]"
        if self.op == "output":
            return f"return {self.args[0]}"
        return f"{head}[target={target_text(self.target)}](args = {_text(self.args)}, kwargs = {_text(self.kwargs)})"

    def is_impure(self, impure_random: bool = True) -> bool:
        """Whether it must be kept where nobody uses it: an argument, the output, a write in place, a random number."""
        if self.op in ("placeholder", "output"):
            return True
        if self.op in ("call_function", "call_method"):
            in_place = isinstance(self.target, str) or is_from_torch(self.target)
            return self.target in _with_side_effects or (in_place and bool(_EFFECT.fullmatch(node_name(self.target))))
        if self.op == "call_module":
            owner = self.graph.owning_module
            if owner is None:
                raise AssertionError("self.graph.owning_module not set for purity check")
            return bool(getattr(owner.get_submodule(str(self.target)), "_is_impure", False))
        return False
