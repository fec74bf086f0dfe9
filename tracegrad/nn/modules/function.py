"""`FunctionModule`: the base of modules that are one function of nn.functional and its arguments."""

from __future__ import annotations

from inspect import unwrap
from typing import Any, ClassVar

from tracegrad.nn import functional as F
from tracegrad.nn.module import Module
from tracegrad.tensors.tensor import Tensor


class FunctionModule(Module):
    """Calls F.<function>(input, **options).

    A class that names its `function` takes the function's other arguments in `__init__`, and keeps each under its own name: these names
    are `options`. `shown`: those that `repr` shows, all unless given.
    """

    function: ClassVar[str] = ""
    options: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[str, ...] | None] = None
    inplace: bool

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "function" in vars(cls) and "options" not in vars(cls):
            code = unwrap(cls.__init__).__code__
            cls.options = code.co_varnames[1:code.co_argcount + code.co_kwonlyargcount]

    def forward(self, input: Tensor) -> Any:
        return self._of(input)

    def _of(self, *inputs: Any) -> Tensor:
        """The function of inputs."""
        options = {name: getattr(self, name) for name in self.options}
        return getattr(F, self.function)(*inputs, **options)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        shown = (name for name in (self.options if self.shown is None else self.shown) if name != "inplace" or self.inplace)
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
