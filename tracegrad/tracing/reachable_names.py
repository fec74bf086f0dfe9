"""What code names: the names that functions load, whose code is foreign, and what the user calls the tensors that a function reaches."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from os.path import dirname
from typing import Any

import numpy as np

from tracegrad.errors import printable
from tracegrad.support.cache import Cache, memoize
from tracegrad.tensors.tensor import Tensor

_SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
_NAMELESS = (*_SCALARS, type, types.ModuleType)
_LIMIT = 100_000


_IMPORT = dis.opmap["IMPORT_NAME"]
_OWN = dirname(dirname(__file__))                   # the package
_FOREIGN = (_OWN, dirname(np.__file__), dirname(functools.__file__))
_INSTALLED = ("site-packages", "dist-packages")     # folders of installed packages; the second one is Debian's


def function_in(member: Any) -> Any:
    """The function behind a property, classmethod or staticmethod; other members as they are."""
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


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
        if isinstance(value, _NAMELESS) or id(value) in seen or len(seen) > _LIMIT:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            names.setdefault(id(value), path)
        elif isinstance(value, types.FunctionType):
            queue.extend(_named_by(value))
        elif isinstance(value, types.MethodType):
            queue.extend([("", value.__self__), ("", value.__func__)])
        elif hasattr(type(value), "named_parameters"):
            for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
                names.setdefault(id(tensor), f"{path}.{name}")
        elif hasattr(type(value), "_trace_names"):
            late.append(value)
        elif "__wrapped__" in getattr(value, "__dict__", ()) and type(value).__module__.startswith("tracegrad."):
            queue.append((path, value.__wrapped__))          # a traced function: what was recorded of it names nothing
        elif isinstance(value, (list, tuple)):
            queue.extend((f"{path}.{i}", item) for i, item in enumerate(value))
        elif isinstance(value, dict) and not hasattr(type(value), "_trace_all_attributes"):
            queue.extend((f"{path}.{key}", item) for key, item in value.items() if isinstance(key, str))
        else:
            queue.extend((f"{path}.{key}", item) for key, item in getattr(value, "__dict__", {}).items())
    for o in late:
        for name, tensor in o._trace_names(names):
            names.setdefault(id(tensor), name)
    return {key: printable(name.removeprefix(".").removeprefix("self.")) for key, name in names.items()}


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


def is_foreign_function(f: types.FunctionType) -> bool:
    """Whether a function cannot matter: numpy's, the standard library's, our own, or of an installed package that knows no tracegrad."""
    return _foreign_file(f.__code__.co_filename, f.__globals__)


def is_foreign(kind: type) -> bool:
    """The same of a class: whether what it holds cannot matter."""
    known: bool | None = _foreign_modules[kind.__module__]
    if known is None:
        module = sys.modules.get(kind.__module__)
        if module is None:                                   # what `exec` defined under a name of its own: the user's
            return False
        filename = getattr(module, "__file__", None)
        if filename is None:                                 # a builtin; or typed into an interpreter
            known = kind.__module__ != "__main__"
        else:
            known = _foreign_file(filename, vars(module))
        _foreign_modules[kind.__module__] = known
    return known


_foreign_modules = Cache("modules of classes", 10_000)


def _foreign_file(filename: str, names: Mapping[str, Any]) -> bool:
    if any(folder in filename.removeprefix(_OWN) for folder in _INSTALLED):
        found = (getattr(v, "__wrapped__", v) for v in list(names.values()) if isinstance(v, (types.ModuleType, types.FunctionType, type)))
        return not any((getattr(v, "__module__", None) or getattr(v, "__name__", None) or "").startswith("tracegrad") for v in found)
    return filename.startswith(_FOREIGN)


def codes_of(code: types.CodeType) -> list[types.CodeType]:
    """`code` and that of the functions inside it."""
    found = [code]
    for c in found:
        found += [k for k in c.co_consts if isinstance(k, types.CodeType)]
    return found


def names_of(code: types.CodeType) -> set[str]:
    """Every global and attribute name that `code` mentions, also as a string (getattr, globals()["name"])."""
    names: set[str] = set()
    for c in codes_of(code):
        names.update(c.co_names)
        names.update(k for k in c.co_consts if isinstance(k, str) and k.isidentifier())
    return names


def imported_names(f: types.FunctionType) -> set[str]:
    """The modules that a function imports in its body, by their full names, and the packages that they are in."""
    names: set[str] = set()
    for c in codes_of(f.__code__):
        level = 0
        for i in dis.get_instructions(c) if _IMPORT in c.co_code[::2] else ():
            if i.opname == "LOAD_CONST" and isinstance(i.argval, int):
                level = i.argval
            elif i.opcode == _IMPORT:
                package = (f.__globals__.get("__package__") or "").split(".")
                path = [*package[:len(package) + 1 - level], i.argval] if level else [i.argval]
                parts = ".".join(part for part in path if part).split(".")
                names.update(".".join(parts[:k]) for k in range(1, len(parts) + 1))
    return names


@memoize(1024)
def loaded_names(code: types.CodeType) -> frozenset[str]:
    """Those of the names that it does not only assign to."""
    return frozenset(i.argval for i in dis.get_instructions(code)
                     if isinstance(i.argval, str) and not i.opname.startswith(("STORE", "DELETE")))


def asks_for_any_attribute(code: types.CodeType) -> bool:
    """Whether code computes names of attributes: getattr with anything but a literal, vars, __dict__."""
    if not {"getattr", "vars", "__dict__", "attrgetter"} & set(code.co_names):
        return False
    if {"vars", "__dict__", "attrgetter"} & set(code.co_names):
        return True
    after: list[dis.Instruction] | None = None               # the instructions since a getattr was loaded
    for instruction in dis.get_instructions(code):
        if instruction.argval == "getattr":
            after = []
        elif after is not None and instruction.opname.startswith("CALL"):
            name = after[1 - (instruction.arg or 0)] if instruction.arg in (2, 3) and len(after) >= instruction.arg - 1 else None
            if name is None or name.opname != "LOAD_CONST" or not isinstance(name.argval, str):
                return True
            after = None
        elif after is not None and instruction.opname not in ("PRECALL", "CACHE", "PUSH_NULL"):
            after.append(instruction)
    return False
