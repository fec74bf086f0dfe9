"""Modules that hold modules: Sequential, ModuleList, ModuleDict, ParameterList."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tracegrad.errors import ArgumentError, IndexOutOfRange
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter


class _Numbered(Module):
    """Base of containers whose modules are named "0", "1", ..."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> Any:
        """Add a module at the end; returns self."""
        if not isinstance(module, Module):
            raise ArgumentError(f"{type(self).__name__}: expected a Module, got {type(module).__name__}")
        self.add_module(str(len(self._modules)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add modules at the end; returns self."""
        for module in modules:
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._modules.values()))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            picked: Any = dict(list(self._modules.items())[index])
            return type(self)(picked if isinstance(self, Sequential) else picked.values())
        return self._modules[self._key(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        self._modules[self._key(index)] = module

    def _key(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"{type(self).__name__}: index {index} is out of range, there are {len(self)} modules")
        return list(self._modules)[index]


class Sequential(_Numbered):
    """Modules applied one after the other. Takes modules, or one mapping of names to modules.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    """

    def __init__(self, *modules: Any) -> None:
        named = modules[0] if len(modules) == 1 and isinstance(modules[0], Mapping) else None
        super().__init__(() if named is not None else modules)
        for name, module in (named or {}).items():
            self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            if module is not None:
                input = module(input)
        return input


class ModuleList(_Numbered):
    """A list of modules whose parameters count as the owner's."""


class ModuleDict(Module):
    """Modules by name, whose parameters count as the owner's."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        for name, module in (modules or {}).items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def items(self) -> Any:
        """Names and modules."""
        return self._modules.items()


class ParameterList(Module):
    """A list of parameters that count as the owner's."""

    def __init__(self, parameters: Iterable[Any] = ()) -> None:
        super().__init__()
        for p in parameters:
            self.append(p)

    def append(self, parameter: Any) -> ParameterList:
        """Add a parameter at the end; returns self."""
        self.register_parameter(str(len(self)), parameter if isinstance(parameter, Parameter) else Parameter(parameter))
        return self

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._parameters.values()))

    def __getitem__(self, index: int) -> Any:
        return list(self._parameters.values())[index]
