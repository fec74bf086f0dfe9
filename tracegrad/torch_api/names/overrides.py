"""torch.overrides: what is asked about `__torch_function__`. The mechanism is `torch_api/overrides.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import wraps
from types import FunctionType
from typing import Any

import tracegrad as tg
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import overrides
from tracegrad.torch_api.overrides import Mode as TorchFunctionMode

__all__ = ["TorchFunctionMode"]
BaseTorchFunctionMode = TorchFunctionMode


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Whether a call with these arguments goes to a `__torch_function__`."""
    return bool(overrides.modes_entered() or (overrides.enabled() and overrides.overriding(relevant_args)))


def has_torch_function_variadic(*args: Any) -> bool:
    """`has_torch_function` of all arguments."""
    return has_torch_function(args)


has_torch_function_unary = has_torch_function_variadic


def handle_torch_function(public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
    """What the `__torch_function__` of modes, or of one of `relevant_args`, gives for the call. Raises TypeError where none wants it."""
    return overrides.overridden(public_api, public_api, args, kwargs, relevant_args)


def wrap_torch_function(dispatcher: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function goes to the `__torch_function__` of what `dispatcher` says of its arguments."""
    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def entry(*args: Any, **kwargs: Any) -> Any:
            relevant = dispatcher(*args, **kwargs)
            return overrides.overridden(entry, fn, args, kwargs, relevant) if has_torch_function(relevant) else fn(*args, **kwargs)

        return entry

    return decorate


def is_tensor_like(value: Any) -> bool:
    """Whether it is a tensor or has `__torch_function__`."""
    return type(value) is Tensor or hasattr(value, "__torch_function__")


def get_default_nowrap_functions() -> set[Any]:
    """What gives plain tensors for subclasses, too."""
    return overrides.NOT_CONVERTED


def get_overridable_functions() -> dict[Any, list[Any]]:
    """The functions that `__torch_function__` sees, by their modules."""
    torch = importlib.import_module("torch")            # this library's: the module is there under the hook only
    found: dict[Any, list[Any]] = {}
    for module in (torch, torch.nn.functional, torch.linalg, torch.fft, torch.special, torch.nn.init):
        named = (getattr(module, name) for name in dir(module) if hasattr(module, name))
        found[module] = [fn for fn in named if overrides.is_overridable(fn)]
    found[Tensor] = [getattr(Tensor, name) for name in dir(Tensor) if is_tensor_method_or_property(getattr(Tensor, name))]
    return found


def is_tensor_method_or_property(func: Any) -> bool:
    """Whether it is a method of Tensor's, or the `__get__` of a property's."""
    if isinstance(getattr(func, "__self__", None), property):
        return True
    return isinstance(func, FunctionType) and getattr(Tensor, func.__name__, None) is func


def resolve_name(func: Callable[..., Any]) -> str | None:
    """The name by which programs call a function: "torch.Tensor.add"; None of one that is none of torch's."""
    if is_tensor_method_or_property(func):
        return f"torch.Tensor.{func.__name__}"
    for module in (tg, tg.nn.functional, tg.linalg, tg.fft, tg.special):
        if overrides.overridable(getattr(module, getattr(func, "__name__", ""), None)) is func:
            return f"{module.__name__.replace('tracegrad', 'torch')}.{func.__name__}"
    return None
