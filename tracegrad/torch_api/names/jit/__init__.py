"""torch.jit: its functions run as the Python code that they are; files of `save` are tracegrad's own."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from tracegrad.errors import ArgumentError, UnsupportedError
from tracegrad.nn.module import Module
from tracegrad.torch_api import checkpoints
from tracegrad.torch_api.names._markers import ScriptError, Unchanged, unchanged
from tracegrad.torch_api.names.futures import Future as Future

__all__ = ["Final"]
_SCRIPTED = "_tg_scripted"
_MARK = "written by tracegrad's torch.jit.save"

ignore = export = unused = script_if_tracing = _script_if_tracing = interface = unchanged


class optimized_execution(Unchanged):
    """A block in which nothing changes: there is no executor of scripts."""


class TracerWarning(Warning):
    """torch warns of what its tracer cannot see."""

    @staticmethod
    def ignore_lib_warnings() -> None:
        """Nothing."""


Error = ScriptError


class _Scripted(type):
    """A class whose objects are what `script` or `trace` was given: these are marked."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Module) is cls.modules and _SCRIPTED in getattr(value, "__dict__", ())

    modules: bool


class ScriptModule(metaclass=_Scripted):
    """None is made here: `isinstance` says of a module whether `script` or `trace` was called with it."""

    modules = True


class ScriptFunction(metaclass=_Scripted):
    """As ScriptModule, of functions."""

    modules = False


RecursiveScriptModule = TopLevelTracedModule = ScriptModule


def _warn(name: str) -> None:
    warnings.warn(f"torch.jit.{name} is deprecated, as in torch, and changes nothing here; torch.compile makes a program of a function or "
                  "module", FutureWarning, stacklevel=3)


def _scripted(obj: Any) -> Any:
    """The same, marked as a script; a module with the method `save` of scripts, unless it has one."""
    if isinstance(obj, Module) and not hasattr(obj, "save"):
        vars(obj)["save"] = partial(save, obj)
    if isinstance(obj, (Module, FunctionType)):
        vars(obj)[_SCRIPTED] = True
    return obj


def script(obj: Any = None, **_: Any) -> Any:
    """The function, class or module itself, with a FutureWarning, as torch gives one."""
    _warn("script")
    return _scripted(unchanged(obj))


def trace(func: Callable[..., Any], example_inputs: Any = None, **_: Any) -> Callable[..., Any]:
    """The function itself, which is right for all inputs and is not called here, with a FutureWarning, as torch gives one."""
    _warn("trace")
    return _scripted(func)  # type: ignore[no-any-return]


def trace_module(mod: Any, inputs: Any = None, *_: Any, **__: Any) -> Any:
    """The module itself, as of `trace`; `inputs` names its methods, which are not called."""
    _warn("trace_module")
    return _scripted(mod)


def _get_trace_graph(*_: Any, **__: Any) -> Any:
    """torch's graph of a call: not here. Packages import it (fvcore.nn), and most of what they have does not call it."""
    raise UnsupportedError("torch.jit._get_trace_graph: there is no TorchScript graph here; torch.utils.flop_counter counts operations, "
                           "and tg.trace(f).explain() tells of a function's graph")


def freeze(mod: Any, *_: Any, **__: Any) -> Any:
    """The module itself."""
    return mod


optimize_for_inference = freeze


def save(m: Any, f: Any, _extra_files: dict[str, Any] | None = None) -> None:
    """Write a module or function, and texts beside it, to a file that `load` reads here. It is no TorchScript.

    Classes and functions are named by their modules, as pickle does, and have to be there to be read.
    """
    checkpoints.save({_MARK: m, "extra": {name: str(text) for name, text in (_extra_files or {}).items()}}, f)


def load(f: Any, map_location: Any = None, _extra_files: dict[str, Any] | None = None, _restore_shapes: bool = False) -> Any:
    """What `save` wrote here. _extra_files: its values become the texts of these names, as bytes. Like any pickle, a file can run code.

    Raises UnsupportedError for TorchScript's own files, ArgumentError for others.
    """
    data = f.read() if hasattr(f, "read") else Path(f).read_bytes()
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if any(name.endswith("constants.pkl") for name in archive.namelist()):
                raise UnsupportedError(
                    "torch.jit.load: tracegrad runs no TorchScript files; with torch, torch.save(torch.jit.load(file).state_dict(), other) "
                    "writes the weights, which torch.load reads here")
    found = checkpoints.load(io.BytesIO(data), map_location, weights_only=False)
    if not isinstance(found, dict) or _MARK not in found:
        raise ArgumentError("torch.jit.load: the file was not written by torch.jit.save; torch.load reads what torch.save wrote")
    for name in _extra_files or {}:
        _extra_files[name] = found["extra"].get(name, "").encode()  # type: ignore[index]
    return found[_MARK]


def is_scripting() -> bool:
    """False."""
    return False


is_tracing = is_scripting


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
    """Call the function, at once; what it returns is what `wait` gives."""
    future = Future()
    future.set_result(func(*args, **kwargs))
    return future


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
