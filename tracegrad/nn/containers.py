"""Modules that hold modules or parameters: Sequential, ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tracegrad.errors import ArgumentError, ArgumentTypeError, IndexOutOfRange
from tracegrad.nn.module import Module
from tracegrad.nn.parameter import Parameter


class _Numbered(Module):
    """Base of containers whose modules are named "0", "1", ..."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> Any:
        """Add a module at the end; returns self."""
        self.add_module(str(len(self._modules)), self._checked(module))
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add modules at the end; returns self."""
        for module in modules:
            self.append(module)
        return self

    def __iadd__(self, modules: Iterable[Module]) -> Any:
        return self.extend(modules)

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
        self._modules[self._key(index)] = self._checked(module)

    def __delitem__(self, index: int | slice) -> None:
        doomed = set(list(self._modules)[index]) if isinstance(index, slice) else {self._key(index)}
        self._refill([m for name, m in self._modules.items() if name not in doomed])

    def insert(self, index: int, module: Module) -> Any:
        """Add a module before the one at `index`; returns self."""
        modules = list(self._modules.values())
        modules.insert(index, self._checked(module))
        self._refill(modules)
        return self

    def pop(self, index: int = -1) -> Any:
        """Remove the module at `index` and return it."""
        module = self[index]
        del self[index]
        return module

    def _checked(self, module: Any) -> Any:
        if module is not None and not isinstance(module, Module):
            raise ArgumentError(f"{type(self).__name__}: expected a Module, got {type(module).__name__}")
        return module

    def _refill(self, modules: list[Any]) -> None:
        self._modules.clear()
        self._modules.update((str(k), m) for k, m in enumerate(modules))

    def _key(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"{type(self).__name__}: index {index} is out of range, there are {len(self)} modules")
        return list(self._modules)[index]

    _get_abs_string_index = _key                            # torch's name, which subclasses of ModuleList call


class Sequential(_Numbered):
    """Modules applied one after the other. Takes modules, or one mapping of names to modules.

    Raises ArgumentError for what is no Module; dtypes as of its modules.

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


    def __add__(self, other: Sequential) -> Sequential:
        if not isinstance(other, Sequential):
            raise ArgumentTypeError(f"Sequential: only another Sequential can be added, got {type(other).__name__}")
        return Sequential(*self, *other)

    def __mul__(self, times: int) -> Sequential:
        """The same modules `times` times over: they share their parameters."""
        if times < 1:
            raise ArgumentError(f"Sequential: it can be multiplied by positive integers, got {times!r}")
        return Sequential(*list(self) * times)

    __rmul__ = __mul__


class ModuleList(_Numbered):
    """A list of modules whose parameters count as the owner's.

    Any modules, of parameters of any shape and dtype. Raises ArgumentError for what is no Module.

    >>> layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])
    """

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def _tg_described(self) -> Iterator[tuple[str, str]]:
        texts = [repr(module) for module in self]
        first = 0
        for i, text in enumerate(texts):
            if i + 1 == len(texts) or texts[i + 1] != text:
                yield (f"{first}-{i}", f"{i + 1 - first} x {text}") if first < i else (str(i), text)
                first = i + 1


class ModuleDict(Module):
    """Modules by name, whose parameters count as the owner's.

    Any modules, of parameters of any shape and dtype. Raises ArgumentError for what is no Module.

    >>> layers = nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 2)})
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        if modules is not None:                                 # a subclass's update may need what it has not set yet
            self.update(modules)

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace the modules of a mapping, or of pairs."""
        for name, module in dict(modules).items():
            self[name] = module

    def pop(self, key: str) -> Any:
        """Remove the module of that name and return it."""
        return self._modules.pop(key)

    def clear(self) -> None:
        """Remove all."""
        self._modules.clear()

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise ArgumentError(f"ModuleDict: {name!r}: expected a Module, got {type(module).__name__}")
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

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


def _parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


class ParameterList(Module):
    """A list of parameters that count as the owner's; tensors become parameters. Of any shapes; float or complex, else DTypeError.

    >>> weights = nn.ParameterList([tg.zeros(2), tg.zeros(3)])
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__()
        self.extend(values)

    def append(self, value: Any) -> ParameterList:
        """Add a parameter at the end; returns self."""
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters at the end; returns self."""
        for value in values:
            self.append(value)
        return self

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._parameters.values()))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ParameterList(list(self)[index])
        return self._parameters[self._key(index)]

    def __setitem__(self, index: int, value: Any) -> None:
        self.register_parameter(self._key(index), _parameter(value))

    def _key(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexOutOfRange(f"ParameterList: index {index} is out of range, there are {len(self)} parameters")
        return str(index % len(self))

    def extra_repr(self) -> str:
        return _listed(self._parameters, lambda p: p.dtype)


class ParameterDict(Module):
    """Parameters by name that count as the owner's; tensors become parameters. Of any shapes; float or complex, else DTypeError.

    >>> weights = nn.ParameterDict({"a": tg.zeros(2)})
    """

    def __init__(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None) -> None:
        super().__init__()
        if parameters is not None:
            self.update(parameters)

    def update(self, parameters: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Add or replace the parameters of a mapping, or of pairs."""
        for name, value in dict(parameters).items():
            self[name] = value

    def pop(self, key: str) -> Any:
        """Remove the parameter of that name and return it."""
        return self._parameters.pop(key)

    def clear(self) -> None:
        """Remove all."""
        self._parameters.clear()

    def popitem(self) -> tuple[str, Any]:
        """Remove the last one; its name and itself."""
        return self._parameters.popitem()

    def get(self, key: str, default: Any = None) -> Any:
        """The parameter of that name, or `default`."""
        return self._parameters.get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The parameter of that name, which is made of `default` if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """A new one with `default` under each name."""
        return ParameterDict((key, default) for key in keys)

    def copy(self) -> ParameterDict:
        """A new one with the same parameters."""
        return ParameterDict(self._parameters)

    def __setitem__(self, name: str, value: Any) -> None:
        self._parameters[name] = _parameter(value)      # not as an attribute: a name such as "keys" hides no method

    def __getitem__(self, name: str) -> Any:
        return self._parameters[name]

    def __delitem__(self, name: str) -> None:
        del self._parameters[name]

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._parameters))

    def keys(self) -> Any:
        """The names."""
        return self._parameters.keys()

    def values(self) -> Any:
        """The parameters."""
        return self._parameters.values()

    def items(self) -> Any:
        """Names and parameters."""
        return self._parameters.items()

    def extra_repr(self) -> str:
        return _listed(self._parameters, lambda p: p.type())


def _listed(parameters: Mapping[str, Any], word: Callable[[Any], Any]) -> str:
    return "\n".join(f"  ({name}): Parameter containing: [{word(p)} of size {'x'.join(map(str, p.shape))}]"
                     for name, p in parameters.items())
