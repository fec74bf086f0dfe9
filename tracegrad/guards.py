"""What a traced function reaches besides its arguments, and whether that is still the same. Start at `Reach`.

A trace bakes in every Python value that the function read from globals, closures and attributes, and takes the Tensors it
found there as inputs by reference. `Reach` walks from the function over everything its code can name and notes where each
scalar, container and Tensor was found; `holds()` looks again, so a changed value makes a new trace instead of a stale result.
Attributes are followed where the code (or that of a function it calls) mentions their name.
"""

from __future__ import annotations

import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable
from os.path import dirname
from typing import Any

import numpy as np

from tracegrad.tensor import Tensor

_SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
_FOREIGN = (dirname(__file__), dirname(np.__file__), sysconfig.get_paths()["stdlib"])
_LIMIT = 100_000


class Reach:
    """Everything that `fn` (and `objects`, its static arguments) can name, as it is now."""

    def __init__(self, fn: Callable[..., Any], objects: Iterable[Any] = ()) -> None:
        self.tensors: set[int] = set()
        self._items: list[tuple[Any, Any, Any]] = []         # (dict or list, key, what was there)
        self._cells: list[tuple[Any, Any]] = []
        self._cell_names: dict[int, str] = {}
        self._lengths: list[tuple[Any, int]] = []
        self._names: set[str] = {"__call__", "forward", "backward"}
        self._functions: list[types.FunctionType] = []
        self._instances: list[Any] = []
        self._seen: set[int] = set()
        self._noted: set[tuple[int, Any]] = set()
        self._alive: list[Any] = []                          # ids stay valid as long as we hold the objects
        self._visit(fn)
        for o in objects:
            self._visit(o)
        functions, instances = 0, 0                          # how many were looked into
        known: set[str] = set()                              # the names that those instances were asked for
        while len(self._seen) <= _LIMIT:                     # attribute names may come from functions found later
            names = set(self._names)
            before = (len(self._functions), len(self._instances))
            if before == (functions, instances) and names == known:
                break
            for f in self._functions[functions:before[0]]:
                self._globals(f)
            for k, o in enumerate(self._instances[:before[1]]):
                self._attributes(o, names - known if k < instances else names)
            known, (functions, instances) = names, before

    def holds(self) -> bool:
        """Whether everything noted is still what it was."""
        for container, key, value in self._items:
            try:
                now = container[key]
            except (KeyError, IndexError):
                return False
            if now is not value and not _same(now, value):
                return False
        for cell, value in self._cells:
            if cell.cell_contents is not value and not _same(cell.cell_contents, value):
                return False
        return all(len(container) == n for container, n in self._lengths)

    def change(self) -> str:
        """What is no longer what it was, in words; empty if everything is."""
        for container, key, value in self._items:
            try:
                now = container[key]
            except (KeyError, IndexError):
                return f"{key!r} is gone"
            if now is not value and not _same(now, value):
                return f"{key if isinstance(key, str) else f'item {key}'} was {_shown(value)} and is {_shown(now)}"
        for cell, value in self._cells:
            if cell.cell_contents is not value and not _same(cell.cell_contents, value):
                return f"the closure variable {self._cell_names.get(id(cell), '?')} was {_shown(value)} and is {_shown(cell.cell_contents)}"
        return next((f"a {type(c).__name__} of {n} items has {len(c)} now" for c, n in self._lengths if len(c) != n), "")

    def _note(self, container: Any, key: Any, value: Any) -> None:
        if (id(container), key) not in self._noted:
            self._noted.add((id(container), key))
            self._items.append((container, key, value))
            self._visit(value)

    def _visit(self, value: Any) -> None:
        if isinstance(value, _SCALARS) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, Tensor):
            self.tensors.add(id(value))
            if value._base is not None:
                self._visit(value._base)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._visit(value.__func__)
            self._visit(value.__self__)
        elif isinstance(value, (list, tuple)):
            if isinstance(value, list):
                self._lengths.append((value, len(value)))
            for i, item in enumerate(value):
                self._note(value, i, item)
        elif isinstance(value, dict):
            self._lengths.append((value, len(value)))
            for key, item in list(value.items()):
                self._note(value, key, item)
        elif isinstance(value, (set, frozenset)):
            for item in value:
                self._visit(item)
        elif hasattr(value, "__wrapped__"):
            self._visit(value.__wrapped__)
            self._instances.append(value)
        elif hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            self._instances.append(value)

    def _function(self, f: types.FunctionType) -> None:
        if _foreign(f):
            self._visit(getattr(f, "__wrapped__", None))
            return
        self._functions.append(f)
        self._names.update(_names(f.__code__))
        for variable, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            self._cells.append((cell, value))
            self._cell_names[id(cell)] = variable
            self._visit(value)
        for value in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
            self._visit(value)
        self._visit(getattr(f, "__wrapped__", None))

    def _globals(self, f: types.FunctionType) -> None:
        for name in _names(f.__code__):
            if name in f.__globals__:
                self._note(f.__globals__, name, f.__globals__[name])

    def _attributes(self, o: Any, names: set[str]) -> None:
        attributes = getattr(o, "__dict__", None)
        everything = getattr(type(o), "_trace_all_attributes", False)     # nn.Module, optimisers
        if isinstance(attributes, dict):
            for name in sorted(attributes) if everything else sorted(names & attributes.keys()):
                if name not in getattr(type(o), "_trace_by_reference", ()):
                    self._note(attributes, name, attributes[name])
        elif isinstance(o, type) or isinstance(attributes, types.MappingProxyType):
            for name in sorted(names & set(attributes or ())):
                self._note(attributes, name, (attributes or {})[name])
        if not isinstance(o, (type, types.ModuleType)):
            for base in type(o).__mro__:
                for name in sorted(names & vars(base).keys()):
                    member = vars(base)[name]
                    self._visit(member.fget if isinstance(member, property) else getattr(member, "__func__", member))
            for name in getattr(type(o), "__slots__", ()):
                if isinstance(name, str) and name in names and hasattr(o, name):
                    self._visit(getattr(o, name))


def tensor_names(fn: Callable[..., Any], arguments: Iterable[tuple[str, Any]] = ()) -> dict[int, str]:
    """What the user calls the tensors that `fn` reaches: id -> "w1", "model.0.weight", ... For reading only: it may miss some.

    Objects with `named_parameters` name their own; those with `_trace_names(names)` (optimizers) name theirs after the others are known.
    """
    names: dict[int, str] = {}
    late: list[Any] = []
    seen: set[int] = set()
    queue: deque[tuple[str, Any]] = deque([("", fn), *arguments])
    while queue:
        path, value = queue.popleft()
        if isinstance(value, (*_SCALARS, type, types.ModuleType)) or id(value) in seen or len(seen) > _LIMIT:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            names.setdefault(id(value), path)
        elif isinstance(value, types.FunctionType):
            queue.extend(_named_by(value))
        elif isinstance(value, types.MethodType):
            queue.extend([("", value.__self__), ("", value.__func__)])
        elif hasattr(value, "named_parameters"):
            for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
                names.setdefault(id(tensor), f"{path}.{name}")
        elif hasattr(value, "_trace_names"):
            late.append(value)
        elif isinstance(value, (list, tuple)):
            queue.extend((f"{path}.{i}", item) for i, item in enumerate(value))
        elif isinstance(value, dict):
            queue.extend((f"{path}.{key}", item) for key, item in value.items() if isinstance(key, str))
        else:
            queue.extend((f"{path}.{key}", item) for key, item in getattr(value, "__dict__", {}).items())
    for o in late:
        for name, tensor in o._trace_names(names):
            names.setdefault(id(tensor), name)
    return {key: name.removeprefix(".").removeprefix("self.") for key, name in names.items()}


def _named_by(f: types.FunctionType) -> list[tuple[str, Any]]:
    """Names and values of the closure variables and globals that a function's code mentions."""
    if f.__code__.co_filename.startswith(_FOREIGN):
        return [("", getattr(f, "__wrapped__", None))]
    found = [(name, f.__globals__[name]) for name in f.__code__.co_names if name in f.__globals__]
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        try:
            found.append((name, cell.cell_contents))
        except ValueError:                                   # not assigned yet
            continue
    return found


def _foreign(f: types.FunctionType) -> bool:
    """Whether a function cannot matter: numpy's, the standard library's, our own, or of an installed package that knows no tracegrad."""
    filename = f.__code__.co_filename
    if "site-packages" in filename.removeprefix(dirname(__file__)):
        return not any((getattr(v, "__module__", None) or getattr(v, "__name__", None) or "").startswith("tracegrad")
                       for v in list(f.__globals__.values()) if isinstance(v, (types.ModuleType, types.FunctionType, type)))
    return filename.startswith(_FOREIGN)


def _names(code: types.CodeType) -> set[str]:
    """Every global and attribute name that `code` and the functions inside it mention."""
    names: set[str] = set()
    stack = [code]
    while stack:
        c = stack.pop()
        names.update(c.co_names)
        stack.extend(k for k in c.co_consts if isinstance(k, types.CodeType))
    return names


def _shown(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        return f"a {value.dtype}{list(value.shape)} tensor" + (" (another object)" if value._trace is None else "")
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"


def _same(a: Any, b: Any) -> bool:
    """Equal as compile-time values: scalars by type and value (NaN is itself), everything else by identity."""
    return isinstance(a, _SCALARS) and type(a) is type(b) and bool(a == b or (a != a and b != b))
