"""State in files, in the safetensors format, which torch and JAX read too: `save` and `load` of nested state, `save_file` of state dicts.

Nothing in a file is executed when it is loaded. Nested state is a safetensors file whose metadata holds its structure as JSON.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from os import PathLike
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors import numpy as files

from tracegrad.errors import ArgumentError, printable
from tracegrad.graph.ir import Size
from tracegrad.graph.operators import named
from tracegrad.nn import torch_files
from tracegrad.nn.parameter import Parameter
from tracegrad.nn.pickles import PickleError, check_hashes
from tracegrad.runtime.disk import replaced
from tracegrad.support.dtypes import SUPPORTED, bfloat16, bool_, dtype_kind
from tracegrad.tensors.tensor import Tensor, from_array

# What is raised for a damaged file: by safetensors, and by what reads the structure (RecursionError: by what is nested a thousand deep).
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, StopIteration, RecursionError, SafetensorError)


@named
def save_file(tensors: Mapping[str, Any], path: str | PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors (a `state_dict()`) to a safetensors file. metadata: short texts to store beside them.

    Tensors of any dtype. Raises ArgumentError for what is no tensor.

    >>> model = nn.Linear(3, 2)
    >>> nn.save_file(model.state_dict(), "model.safetensors")
    """
    wrong = [name for name, t in tensors.items() if not isinstance(t, Tensor)]
    if wrong:
        raise ArgumentError(f"save_file: {wrong[0]!r} is not a Tensor; an optimizer's state_dict is nested, save its tensors by name")
    arrays = {name: np.asarray(t.detach(), order="C") for name, t in tensors.items()}
    with replaced(path) as file:
        files.save_file(arrays, file.name, dict(metadata) if metadata else None)


def load_file(path: str | PathLike[str], device: Any = None) -> dict[str, Tensor]:
    """The named tensors of a safetensors file, on `device` (default: the current one). Shapes and dtypes as there.

    Raises ArgumentError for a file that is no safetensors file, or damaged.

    >>> model = nn.Linear(3, 2)
    >>> nn.save_file(model.state_dict(), "model.safetensors")
    >>> model.load_state_dict(nn.load_file("model.safetensors"))
    """
    try:
        found = files.load_file(path)
    except _DAMAGE as error:
        raise ArgumentError(f"load_file: {printable(str(path))} is no safetensors file, or damaged: {_short(error)}") from error
    return {name: from_array(array, device) for name, array in found.items()}


# ----------------------------------------------------------------------------------------------------------- nested state

_KEY = "tracegrad.structure"            # of the metadata


def save(obj: Any, f: str | PathLike[str] | IO[bytes]) -> None:
    """Write nested state to a file (a path, or a binary file): containers of tensors, numpy arrays, numbers, strings, bytes and None.

    Containers are dict, OrderedDict, list, tuple and set. A tensor that occurs twice is written once and is one tensor again when loaded;
    dtypes, requires_grad and Parameters are kept, histories, gradients and devices are not. Other objects are refused (ArgumentError,
    naming where), before the file is touched: save the state_dict() of a module or optimizer. A file at the path stays whole until the new
    one is, also if the process is killed.

    >>> model = nn.Linear(3, 2)
    >>> opt = tg.optim.Adam(model.parameters())
    >>> tg.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}, "checkpoint.tg")
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    structure = json.dumps(_encoded(obj, "obj", arrays, {}), allow_nan=False)
    data = files.save(arrays, {_KEY: structure})
    if isinstance(f, (str, PathLike)):
        with replaced(f) as file:
            file.write(data)
    else:
        f.write(data)


def load(f: str | PathLike[str] | IO[bytes], map_location: Any = None, *, weights_only: bool = True) -> Any:
    """What `save` wrote, or a checkpoint of torch.save (a .pt or .pth file), or the named tensors of any safetensors file. dtypes as there.

    map_location: the device for the tensors (default: the current one). Nothing in the file is executed: of a torch checkpoint tensors,
    numbers, strings and containers are loaded, and whatever else it holds is an ArgumentError that names it (torch is not needed).
    A file that is damaged, or made to take more time or memory than its size gives, is an ArgumentError that says which limit it passes.
    weights_only: accepted for programs written for torch; True is all there is.

    >>> model = nn.Linear(3, 2)
    >>> tg.save({"model": model.state_dict(), "epoch": 3}, "checkpoint.tg")
    >>> checkpoint = tg.load("checkpoint.tg")
    >>> model.load_state_dict(checkpoint["model"])
    """
    if not weights_only:
        raise ArgumentError("load: weights_only=False would run code that the file holds, which is not supported; save a state_dict")
    if callable(map_location) or isinstance(map_location, Mapping):
        raise ArgumentError(f"load: map_location is one device for all tensors, got a {type(map_location).__name__}")
    if isinstance(f, (str, PathLike)):
        with open(f, "rb") as file:
            return _read(file, printable(str(f)), map_location)
    return _read(f, printable(str(getattr(f, "name", "the file"))), map_location)


def _read(file: IO[bytes], name: str, device: Any) -> Any:
    data = file.read()
    size = int.from_bytes(data[:8], "little")                   # of a safetensors file's header, whatever its bytes look like
    plain = data[8:9] == b"{" and size <= len(data) - 8
    if not plain and data.startswith(b"PK"):
        return torch_files.read(io.BytesIO(data), name, device)
    if not plain and data[:1] in (b"\x80", b"(", b"}", b"]"):
        raise ArgumentError(f"load: {name} is a pickle (torch's format before version 1.6, or another program's), which could run code; in "
                            "torch, load it and torch.save it again, which writes an archive")
    try:
        arrays = _arrays(data)
        structure = json.loads(data[8:8 + size]).get("__metadata__", {}).get(_KEY)
    except _DAMAGE as error:
        raise ArgumentError(f"load: {name} is neither a file of tg.save nor a safetensors file nor a checkpoint of torch.save: "
                            f"{_short(error)}") from error
    if structure is None:
        return {key: from_array(array, device) for key, array in arrays.items()}
    try:
        return _decoded(json.loads(structure), arrays, device, {})
    except PickleError as error:
        raise ArgumentError(f"load: {name} {error}") from error
    except _DAMAGE as error:
        raise ArgumentError(f"load: {name} is damaged: its structure is {type(error).__name__}: {_short(error)}; write it again with "
                            "tg.save") from error


def _arrays(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a safetensors file. (As safetensors' own function, which lacks bfloat16.)"""
    return {name: np.frombuffer(found["data"], _FORMATS[found["dtype"]]).reshape(found["shape"]) for name, found in _read_all(data)}


_read_all: Any = deserialize
_FORMATS = {"BF16": bfloat16, "BOOL": bool_} | {
    f"{d.kind.upper()}{8 * d.itemsize}": d for d in SUPPORTED if d not in (bfloat16, bool_)}      # F32, I64, U8, C64, ...


def _short(error: BaseException) -> str:
    """What an error says, without all that it quotes of the file."""
    text = printable(str(error))
    return text if len(text) <= 200 else f"{text[:200]}..."


def _encoded(value: Any, path: str, arrays: dict[str, np.ndarray[Any, Any]], known: dict[int, Any]) -> Any:
    """`value` as JSON: None, bools, ints, strings, finite floats and lists are themselves, all else is {kind: ...}."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is complex:
        return {"complex": [_encoded(value.real, path, arrays, known), _encoded(value.imag, path, arrays, known)]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        if id(value) not in known:
            number = str(len(arrays))
            if isinstance(value, Tensor):
                known[id(value)] = {"parameter" if isinstance(value, Parameter) else "tensor": number, "grad": value.requires_grad}
                arrays[number] = np.asarray(value.detach(), order="C")
                if arrays[number].dtype == np.complex128:       # which safetensors lacks: as its parts
                    arrays[number] = arrays[number].reshape(*value.shape, 1).view(np.float64)
                    known[id(value)]["complex"] = True
            else:
                if dtype_kind(value.dtype) not in "fiubc":
                    raise ArgumentError(f"save: {path} is a numpy {kind.__name__} of {value.dtype}, which cannot be saved")
                known[id(value)] = {"array" if isinstance(value, np.ndarray) else "scalar": number}
                arrays[number] = np.array(value, order="C")
                if value.dtype == np.complex128:
                    arrays[number] = arrays[number].reshape(*value.shape, 1).view(np.float64)
                    known[id(value)]["complex"] = True
        return known[id(value)]
    if kind is list:
        return [_encoded(v, f"{path}[{k}]", arrays, known) for k, v in enumerate(value)]
    if kind in (tuple, Size, set):
        return {kind.__name__: [_encoded(v, f"{path}[{k}]", arrays, known) for k, v in enumerate(value)]}
    if kind in (dict, OrderedDict):
        for key in value:
            if not (key is None or type(key) in (bool, int, float, str, bytes, tuple)):
                raise ArgumentError(f"save: {path} has a key of type {type(key).__name__}; keys are strings, numbers and tuples of them")
        return {kind.__name__: [[_encoded(k, f"a key of {path}", arrays, known), _encoded(v, f"{path}[{k!r}]", arrays, known)]
                                for k, v in value.items()]}
    raise ArgumentError(f"save: {path} is a {kind.__module__}.{kind.__qualname__}; only containers (dict, list, tuple, set) of tensors, "
                        "arrays, numbers, strings and None are saved; of a module or an optimizer save state_dict()")


def _decoded(value: Any, arrays: Mapping[str, np.ndarray[Any, Any]], device: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decoded(v, arrays, device, known) for v in value]
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()))
    if kind in ("tensor", "parameter", "array", "scalar"):
        if content not in known:
            array = arrays[content]
            if kind in ("array", "scalar"):
                array = array.view(np.complex128).reshape(array.shape[:-1]) if value.get("complex") else array
                known[content] = array.copy() if kind == "array" else array[()]
            else:
                tensor = from_array(array.view(np.complex128).reshape(array.shape[:-1]) if value.get("complex") else array, device)
                known[content] = Parameter(tensor, value["grad"]) if kind == "parameter" else (
                    tensor.requires_grad_() if value["grad"] else tensor)
        return known[content]
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    inner = _decoded(content, arrays, device, known)
    if kind == "complex":
        return complex(*inner)
    if kind in ("set", "dict", "OrderedDict"):
        check_hashes([item if kind == "set" else item[0] for item in inner], {})
    makers: dict[str, Any] = {"tuple": tuple, "Size": Size, "set": set, "dict": dict, "OrderedDict": OrderedDict}
    return makers[kind](inner)


__all__ = ["load", "load_file", "save", "save_file"]
