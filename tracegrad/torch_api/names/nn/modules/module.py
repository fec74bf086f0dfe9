"""torch.nn.modules.module: the hooks of all modules. They are called before a module's own; see `nn/hooks.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tracegrad.nn.hooks import RemovableHandle, register
from tracegrad.support.modes import every_module

__all__ = ["register_module_backward_hook", "register_module_buffer_registration_hook", "register_module_forward_hook",
           "register_module_forward_pre_hook", "register_module_full_backward_hook", "register_module_full_backward_pre_hook",
           "register_module_module_registration_hook", "register_module_parameter_registration_hook"]


class _Hooks(Mapping[int, Any]):
    """The hooks of all modules of one kind, as torch's table of them."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getitem__(self, key: int) -> Any:
        return every_module.get(self._kind, {})[key]

    def __iter__(self) -> Iterator[int]:
        return iter(every_module.get(self._kind, {}))

    def __len__(self) -> int:
        return len(every_module.get(self._kind, {}))


_global_parameter_registration_hooks, _global_buffer_registration_hooks = _Hooks("parameter"), _Hooks("buffer")
_global_module_registration_hooks = _Hooks("module")


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call hook(module, args) before each forward of any module; what it returns, unless None, replaces the arguments."""
    return register(every_module, "forward_pre", (hook, False))


def register_module_forward_hook(hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False) -> RemovableHandle:
    """Call hook(module, args, output) after each forward of any module: see `Module.register_forward_hook`."""
    return register(every_module, "forward", (hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call hook(module, grad_output) of any module: see `Module.register_full_backward_pre_hook`."""
    return register(every_module, "backward_pre", hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call hook(module, grad_input, grad_output) of any module: see `Module.register_full_backward_hook`."""
    return register(every_module, "backward", hook)


register_module_backward_hook = register_module_full_backward_hook          # torch's older one


def register_module_parameter_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call hook(module, name, parameter) where a module gets a parameter; what it returns, unless None, takes its place."""
    return register(every_module, "parameter", hook)


def register_module_buffer_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call hook(module, name, buffer) where a module gets a buffer; what it returns, unless None, takes its place."""
    return register(every_module, "buffer", hook)


def register_module_module_registration_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Call hook(module, name, submodule) where a module gets a submodule; what it returns, unless None, takes its place."""
    return register(every_module, "module", hook)
