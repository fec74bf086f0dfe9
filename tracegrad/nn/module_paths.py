"""Which module made a node of a trace: the path, as `model.0`, stands in the node's location. Start at `called_in_trace`.

When a module's call ends, the nodes between its results and its arguments are its own, but for those that a module inside it made.
A derivative's nodes inherit the path with the line.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import optree

from tracegrad.errors import printable
from tracegrad.graph.ir import Node
from tracegrad.support.modes import every_module, state
from tracegrad.tensors.tensor import Tensor

if TYPE_CHECKING:
    from tracegrad.nn.module import Module


class _Running(threading.local):
    """Per thread: the modules whose calls are being recorded, outermost first, with their paths."""

    def __init__(self) -> None:
        self.modules: list[tuple[Module, str]] = []


_RUNNING = _Running()


def called_in_trace(module: Module, args: Any, kwargs: Any) -> Any:
    """The result of a module's call; its nodes learn its path."""
    path = _path(module)
    _RUNNING.modules.append((module, path))
    try:
        result = module._tg_call_hooked(args, kwargs) if module._tg_hooks or every_module else module.forward(*args, **kwargs)
    finally:
        _RUNNING.modules.pop()
    _mark(path, _nodes(result), {*_nodes((args, kwargs))})
    return result


def _path(module: Module) -> str:
    """How the user reaches the module: through the module around it, or as the trace calls one of its parameters; else its class."""
    for outer, path in reversed(_RUNNING.modules):
        for name, child in outer.named_modules():
            if child is module:
                return f"{path}.{printable(name)}" if name else path
    names = getattr(state.trace, "names", {})
    for name, parameter in module.named_parameters():
        label = names.get(id(parameter), "")
        if label.endswith(f".{printable(name)}"):
            return str(label[:-len(name) - 1])
    return printable(type(module).__name__)


def _nodes(tree: Any) -> list[Node]:
    return [x._node() for x in optree.tree_leaves(tree, none_is_leaf=True) if isinstance(x, Tensor) and x._trace is state.trace]


def _mark(path: str, results: list[Node], given: set[Node]) -> None:
    """Tell the nodes that lead from `given` to `results`. The walk ends at what another module made, which was there before."""
    todo, seen = results, set(given)
    while todo:
        node = todo.pop()
        module = node.loc.module
        if node in seen or not node.operands or (module and module != path and not module.startswith(f"{path}.")):
            continue
        seen.add(node)
        if not module:
            node.loc = node.loc.in_module(path)
        todo += node.operands
