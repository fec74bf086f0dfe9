"""torch.jit: its functions run as the Python code that they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

from tracegrad.errors import UnsupportedError
from tracegrad.torch_api.names._markers import Unchanged, unchanged

__all__ = ["Final"]

ignore = export = unused = script_if_tracing = _script_if_tracing = interface = unchanged



class optimized_execution(Unchanged):
    """A block in which nothing changes: there is no executor of scripts."""


class TracerWarning(Warning):
    """torch warns of what its tracer cannot see."""

    @staticmethod
    def ignore_lib_warnings() -> None:
        """Nothing."""


class ScriptModule:
    """None is made here: `isinstance` says so."""


RecursiveScriptModule = ScriptFunction = ScriptModule


def _warn(name: str) -> None:
    warnings.warn(f"torch.jit.{name} is deprecated, as in torch, and changes nothing here; torch.compile makes a program of a function or "
                  "module", FutureWarning, stacklevel=3)


def script(obj: Any = None, **_: Any) -> Any:
    """The function, class or module itself, with a FutureWarning, as torch gives one."""
    _warn("script")
    return unchanged(obj)


def trace(func: Callable[..., Any], example_inputs: Any = None, **_: Any) -> Callable[..., Any]:
    """The function itself, which is right for all inputs and is not called here, with a FutureWarning, as torch gives one."""
    _warn("trace")
    return func


def freeze(mod: Any, *_: Any, **__: Any) -> Any:
    """The module itself."""
    return mod


optimize_for_inference = freeze


def save(m: Any, f: Any, *_: Any, **__: Any) -> None:
    raise UnsupportedError("torch.jit.save: tracegrad writes no TorchScript files; torch.save(model.state_dict(), file) keeps the weights, "
                           "and torch.save(model, file) the whole module")


def load(f: Any, *_: Any, **__: Any) -> Any:
    raise UnsupportedError("torch.jit.load: tracegrad runs no TorchScript files; with torch, torch.save(torch.jit.load(file).state_dict(), "
                           "other) writes the weights, which torch.load reads here")


def is_scripting() -> bool:
    """False."""
    return False


is_tracing = is_scripting


class Future:
    """What `fork` gives: the function was called already."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def wait(self) -> Any:
        return self._result

    @classmethod
    def __class_getitem__(cls, kind: Any) -> Any:
        return cls


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
    """Call the function, at once; what it returns is what `wait` gives."""
    return Future(func(*args, **kwargs))


def wait(future: Future) -> Any:
    """What the function returned."""
    return future.wait()


def annotate(the_type: Any, the_value: Any) -> Any:
    """The value."""
    return the_value


def _isinstance(obj: Any, kind: Any) -> bool:
    return isinstance(obj, kind)


def _overload(fn: Any) -> Any:
    return fn


_overload_method = _overload


def __getattr__(name: str) -> Any:
    if name == "isinstance":
        return _isinstance
    raise AttributeError(name)
