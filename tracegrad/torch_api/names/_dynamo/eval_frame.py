"""torch._dynamo.eval_frame: `OptimizedModule`, what torch.compile makes of a module."""

from __future__ import annotations

from typing import Any

from tracegrad.nn.module import Module


class OptimizedModule(Module):
    """A module around one whose forward is traced: `torch.compile(model)`. The other one is `_orig_mod`, a prefix of parameters' names.

    Attributes, methods and the length are those of the other module, and what is set is set there. Raises TypeError for `len` of one
    without a length.

    >>> model = torch.compile(torch.nn.Linear(2, 1))
    >>> [*model.state_dict()], model.in_features
    (['_orig_mod.weight', '_orig_mod.bias'], 2)
    """

    def __init__(self, mod: Module, dynamo_ctx: Any = None) -> None:
        super().__init__()
        self._modules["_orig_mod"] = mod
        Module.compile(mod)                                     # (a program's class may have a `compile` of its own)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)

    @property
    def training(self) -> bool:
        return self._orig_mod.training  # type: ignore[no-any-return]

    @training.setter
    def training(self, value: bool) -> None:
        inner = self.__dict__.get("_modules", {}).get("_orig_mod")
        if inner is not None:                                   # (before, a module's constructor says what all begin with)
            inner.training = value

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules")
        if not modules:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return modules[name] if name == "_orig_mod" else getattr(modules["_orig_mod"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = not self.__dict__.get("_modules") or name in ("_orig_mod", "forward") or hasattr(type(self), name)
        (super().__setattr__ if own or name in self.__dict__ else self._orig_mod.__setattr__)(name, value)

    def __delattr__(self, name: str) -> None:
        own = name == "_orig_mod" or name in self.__dict__ or hasattr(type(self), name)
        (super().__delattr__ if own else self._orig_mod.__delattr__)(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._orig_mod)})

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __bool__(self) -> bool:
        return True


def is_dynamo_supported() -> bool:
    """True: `torch.compile` traces, wherever Python runs."""
    return True


def innermost_fn(fn: Any) -> Any:
    """The function that was compiled."""
    return fn
