"""torch.jit: its functions run as the Python code that they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tracegrad.torch_api.names._markers import unchanged

__all__ = ["Final"]

ignore = export = unused = script_if_tracing = _script_if_tracing = interface = unchanged



class TracerWarning(Warning):
    """torch warns of what its tracer cannot see."""

    @staticmethod
    def ignore_lib_warnings() -> None:
        """Nothing."""


class ScriptModule:
    """None is made here: `isinstance` says so."""


RecursiveScriptModule = ScriptFunction = ScriptModule


def script(obj: Any = None, **_: Any) -> Any:
    """The function, class or module itself."""
    return unchanged(obj)


def trace(func: Callable[..., Any], example_inputs: Any = None, **_: Any) -> Callable[..., Any]:
    """The function itself, which is right for all inputs."""
    return func


def is_scripting() -> bool:
    """False."""
    return False


is_tracing = is_scripting


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
