"""torch.save and torch.load for programs written for torch: torch's own format, both ways, and whole objects. Start at `save` and `load`.

A file is a zip archive of a pickle, in which storages are persistent ids, and of each storage's bytes. What is plain data is read by
`nn.torch_files`, which runs nothing; objects of classes are unpickled by Python, any with weights_only=False, else those that were allowed.
"""

from __future__ import annotations

import io
import pickle
import threading
import zipfile
from _compat_pickle import NAME_MAPPING
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from os import PathLike
from typing import IO, Any

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.execute.devices import find_device
from tracegrad.nn import saving
from tracegrad.nn.parameter import Buffer, Parameter
from tracegrad.runtime.disk import replaced
from tracegrad.support.dtypes import as_dtype
from tracegrad.support.layouts import layout
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import storages
from tracegrad.torch_api.dtypes import NAMES
from tracegrad.torch_api.names import _tensor, _utils

_REDUCES = {cls.__reduce__ for cls in (Tensor, Parameter, Buffer)}
_REBUILD = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_parameter_with_state"}
_PLAIN = {("collections", "OrderedDict"), ("collections", "Counter"), ("torch", "Size"), ("builtins", "set"), ("builtins", "complex"),
          ("builtins", "bytearray"), ("_codecs", "encode"), ("torch", "device")}


class _Storage:
    """What a function that is given as map_location gets: it stands for each storage of the file, and notes where it is moved to."""

    def __init__(self) -> None:
        self.device: Any = None                                 # the current one

    def to(self, device: Any = None, **_: Any) -> _Storage:
        self.device = device
        return self

    def cuda(self, device: Any = None, **_: Any) -> _Storage:
        return self.to("cuda" if device is None or isinstance(device, int) else device)

    def cpu(self) -> _Storage:
        return self.to("cpu")


def _place(map_location: Any) -> Any:
    """The device that a map_location of torch's names: a device, a table of names, or a function of a storage and of where it was."""
    if isinstance(map_location, Mapping):
        map_location = map_location.get("cpu")
    elif callable(map_location) and not hasattr(map_location, "kind"):          # (a device is a decorator, too)
        storage = map_location(_Storage(), "cpu")
        map_location = None if storage is None else storage.device
    return map_location if map_location is None or isinstance(map_location, str) else find_device(map_location)


class _Elements:
    """The elements of a storage, as they are written and read."""

    def __init__(self, elements: np.ndarray[Any, Any], device: Any = None, key: str = "") -> None:
        self.elements, self.device, self.key = elements, device, key


class _Pickler(pickle.Pickler):
    """Tensors are calls that rebuild them of storages, which are written beside the pickle."""

    def __init__(self, file: Any, protocol: int) -> None:
        super().__init__(file, protocol)
        self.storages: list[_Elements] = []
        self._known: dict[int, tuple[Tensor, _Elements]] = {}       # by the identity of the tensor that owns the memory

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, layout):
            return import_module("torch.serialization")._get_layout, (f"torch.{obj.value}",)
        if not isinstance(obj, Tensor) or obj.layout is not layout.strided:         # (a sparse tensor tells of its parts)
            return NotImplemented
        if type(obj) in (Tensor, Buffer) and not vars(obj):
            return self._plain(obj)
        if type(obj).__reduce_ex__ is not Tensor.__reduce_ex__ or type(obj).__reduce__ not in _REDUCES:
            return NotImplemented                       # (its class says how)
        function, args = self._plain(obj)
        if isinstance(obj, Parameter):                  # (as in torch, a parameter of a class of one's own comes back as a Parameter)
            return (_utils._rebuild_parameter_with_state, (*args, vars(obj))) if vars(obj) else (function, args)
        return _tensor._rebuild_from_type_v2, (function, Tensor if type(obj) is Buffer else type(obj), args, vars(obj))

    def _plain(self, obj: Tensor) -> tuple[Any, tuple[Any, ...]]:
        """What rebuilds a tensor without its class and its attributes, and of what."""
        if isinstance(obj, Parameter):
            return _utils._rebuild_parameter, (obj.detach(), obj.requires_grad, OrderedDict())
        strides = [1]
        for n in reversed(obj.shape[1:]):
            strides.append(strides[-1] * n)
        return _utils._rebuild_tensor_v2, (self._elements(obj), 0, tuple(obj.shape), tuple(reversed(strides[:obj.ndim])), obj.requires_grad,
                                           OrderedDict())

    def _elements(self, tensor: Tensor) -> _Elements:
        root = tensor
        while root._base is not None and root._base.shape == tensor.shape:          # what detach() gave shares its memory
            root = root._base
        if id(root) not in self._known:
            made = _Elements(np.ascontiguousarray(root.detach().numpy()).reshape(-1), key=str(len(self.storages)))
            self.storages.append(made)
            self._known[id(root)] = root, made
        return self._known[id(root)][1]

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, _Elements):
            return None
        kind = getattr(import_module("torch"), storages.NAMES[obj.elements.dtype.name])
        return "storage", kind, obj.key, "cpu", obj.elements.size


def save(obj: Any, f: str | PathLike[str] | IO[bytes], pickle_module: Any = None, pickle_protocol: int = 2,
         _use_new_zipfile_serialization: bool = True, _disable_byteorder_record: bool = False) -> None:
    """Write what pickle takes as torch writes it: torch itself loads it, where it has only tensors, containers and numbers."""
    if not isinstance(f, (str, PathLike)) and not hasattr(f, "write"):
        raise AttributeError("expected 'f' to be string, path, or a file-like object with a 'write' attribute")
    data = io.BytesIO()
    pickler = _Pickler(data, pickle_protocol)
    pickler.dump(obj)
    with replaced(f) if isinstance(f, (str, PathLike)) else nullcontext(f) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data.getvalue())
        archive.writestr("archive/byteorder", "little")
        for storage in pickler.storages:
            archive.writestr(f"archive/data/{storage.key}", storage.elements.astype(storage.elements.dtype.newbyteorder("<")).tobytes())
        archive.writestr("archive/version", "3\n")


class _Unpickler(pickle.Unpickler):
    """Rebuilds tensors. allowed: the names that may be looked up beside torch's own of tensors; None: any."""

    def __init__(self, archive: zipfile.ZipFile, root: str, device: Any, allowed: dict[tuple[str, str], Any] | None) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}data.pkl")))
        self._archive, self._root, self._device, self._allowed = archive, root, device, allowed

    def find_class(self, module: str, name: str) -> Any:
        module, name = NAME_MAPPING.get((module, name), ({"__builtin__": "builtins"}.get(module, module), name))    # Python 2's names
        if module in ("torch", "torch.storage") and name in storages.KINDS:
            return storages.KINDS[name]
        if module == "torch._utils" and name in _REBUILD:
            return getattr(_utils, name)
        if (module, name) == ("torch._tensor", "_rebuild_from_type_v2"):
            return _tensor._rebuild_from_type_v2
        if module == "torch" and name in NAMES:
            return NAMES[name]
        if self._allowed is None or (module, name) in _PLAIN:
            return super().find_class(module, name)
        if (module, name) in self._allowed:
            return self._allowed[module, name]
        raise pickle.UnpicklingError(
            f"Weights only load failed. Unsupported global: GLOBAL {module}.{name} was not an allowed global by default. Please use "
            f"`torch.serialization.add_safe_globals([{name}])` to allowlist it, or weights_only=False if you trust the file, which can run "
            "any code")

    def persistent_load(self, pid: Any) -> _Elements:
        kind, dtype, key, _, count = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"load: the file has an unknown kind of storage {kind!r}")
        data = np.frombuffer(self._archive.read(f"{self._root}data/{key}"), as_dtype(dtype))
        return _Elements(data[:count], self._device)


def load(f: str | PathLike[str] | IO[bytes], map_location: Any = None, pickle_module: Any = None, *, weights_only: bool = True,
         mmap: bool | None = None, **_: Any) -> Any:
    """What `save` or torch wrote. weights_only: False unpickles any object, which can run code of the file; True only what is plain data,

    and classes that `add_safe_globals` allows. Raises pickle.UnpicklingError for others, as torch does. Where no class is allowed, time and
    memory are bounded by the file's size, as `tg.load`'s are. map_location: one device for all tensors, or what says one: a dict of names
    of devices, or a function of a storage and its place, which moves it (`lambda storage, place: storage` leaves it on the current one).
    """
    device = _place(map_location)
    if isinstance(f, (str, PathLike)):
        with open(f, "rb") as file:
            data, name = file.read(), str(f)
    else:
        data, name = f.read(), "the file"
    failed: Exception | None = None
    if weights_only or not data.startswith(b"PK"):
        try:
            return saving.load(io.BytesIO(data), map_location=device)
        except ArgumentError as error:
            failed = error
    if not data.startswith(b"PK"):
        assert failed is not None
        raise failed
    if weights_only and not _safe_now():                     # Python's unpickler, which bounds nothing, is for classes that were allowed
        raise pickle.UnpicklingError(
            f"Weights only load failed. {failed}; allow a class with `torch.serialization.add_safe_globals([...])`, or give "
            "weights_only=False if you trust the file, which can run any code") from failed
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        found = [n for n in archive.namelist() if n.endswith("data.pkl")]
        if len(found) != 1:
            raise ArgumentError(f"load: {name} is a zip archive, but no checkpoint: it has no data.pkl")
        return _Unpickler(archive, found[0].removesuffix("data.pkl"), device, _safe_now() if weights_only else None).load()


class _Safe(threading.local):
    classes: tuple[Any, ...] = ()


_safe = _Safe()
_known: list[Any] = []                      # what add_safe_globals allowed


def _safe_now() -> dict[tuple[str, str], Any]:
    found = {}
    for item in (*_known, *_safe.classes):
        cls, path = item if isinstance(item, tuple) else (item, f"{item.__module__}.{item.__qualname__}")
        module, _, name = path.rpartition(".")
        found[module, name] = cls
    return found


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Let `load` make objects of these classes and call these functions: each itself, or a pair of it and its path in files."""
    _known.extend(safe_globals)


def get_safe_globals() -> list[Any]:
    """What `add_safe_globals` allowed."""
    return list(_known)


def clear_safe_globals() -> None:
    """Allow nothing any more."""
    _known.clear()


class safe_globals:
    """A block in which `load` takes these classes, too: see `add_safe_globals`."""

    def __init__(self, safe_globals: list[Any]) -> None:
        self._classes = tuple(safe_globals)

    def __enter__(self) -> None:
        self._before, _safe.classes = _safe.classes, (*_safe.classes, *self._classes)

    def __exit__(self, *_: object) -> None:
        _safe.classes = self._before
