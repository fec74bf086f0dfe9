"""`Function`: the base of modules that are one function of nn.functional and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tracegrad.nn import functional as F
from tracegrad.nn.module import Module


def arguments(name: str, options: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, by their names: `options` and their defaults (`...` where there is none)."""
    if len(args) > len(options) or not kwargs.keys() <= options.keys():
        unknown = [key for key in kwargs if key not in options]
        raise TypeError(f"{name}: takes {', '.join(options) or 'no arguments'}, got {unknown or args}")
    given = dict(zip(options, args, strict=False))
    if repeated := given.keys() & kwargs.keys():
        raise TypeError(f"{name}: got several values for {', '.join(sorted(repeated))}")
    found = {**options, **given, **kwargs}
    if missing := [key for key, value in found.items() if value is ...]:
        raise TypeError(f"{name}: needs {', '.join(missing)}")
    return found


class FunctionModule(Module):
    """Calls F.<function>(*inputs, **options). `options`: the arguments' names, with their defaults (`...` where there is none)."""

    function: ClassVar[str] = ""
    options: ClassVar[dict[str, Any]] = {}
    shown: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in arguments(type(self).__name__, self.options, args, kwargs).items():
            setattr(self, name, value)

    def forward(self, *inputs: Any) -> Any:
        return getattr(F, self.function)(*inputs, **{name: getattr(self, name) for name in self.options})

    def extra_repr(self) -> str:
        shown = (name for name in (self.options if self.shown is None else self.shown) if name != "inplace" or self.inplace)
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
