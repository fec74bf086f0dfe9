"""`Function`: the base of modules that are one function of nn.functional and its arguments."""

from __future__ import annotations

from typing import Any, ClassVar

from tracegrad.nn import functional as F
from tracegrad.nn.module import Module


class FunctionModule(Module):
    """Calls F.<function>(*inputs, **options). `options`: the arguments' names, with their defaults (`...` where there is none)."""

    function: ClassVar[str] = ""
    options: ClassVar[dict[str, Any]] = {}
    shown: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        names = list(self.options)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        unknown = [name for name in given if name not in self.options]
        if unknown or len(args) > len(names):
            raise TypeError(f"{type(self).__name__}: takes {', '.join(names) or 'no arguments'}, got {unknown or args}")
        for name, default in self.options.items():
            value = given.get(name, default)
            if value is ...:
                raise TypeError(f"{type(self).__name__}: needs {name}")
            setattr(self, name, value)

    def forward(self, *inputs: Any) -> Any:
        return getattr(F, self.function)(*inputs, **{name: getattr(self, name) for name in self.options})

    def extra_repr(self) -> str:
        shown = (name for name in (self.options if self.shown is None else self.shown) if name != "inplace" or self.inplace)
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
