"""Checkpoints that torch.save wrote, read without torch and without running anything of them. Start at `read`.

A checkpoint is a zip archive: data.pkl is a pickle in which storages are persistent ids, and data/<key> is each storage's bytes. A
pickle can call whatever it names, so names are looked up in a table here and nowhere else: the few that rebuild tensors and plain
containers. Everything else is an error that says what it was.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from tracegrad.errors import ArgumentError
from tracegrad.nn.parameter import Parameter
from tracegrad.tensor import Tensor, from_array

_DTYPES = {"float64": "f8", "float32": "f4", "float16": "f2", "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1", "uint8": "u1",
           "uint64": "u8", "uint32": "u4", "uint16": "u2", "bool": "?", "complex64": "c8", "complex128": "c16"}
_STORAGES = {"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "LongStorage": "int64", "IntStorage": "int32",
             "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
             "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128"}
_CONTAINERS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict, ("builtins", "set"): set, ("__builtin__", "set"): set, ("builtins", "complex"): complex,
    ("torch", "Size"): tuple,
}


class _Name:
    """A name of torch's in the pickle that means data here: a storage's type, a dtype, untyped storage."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str | None) -> None:
        self.dtype = dtype


def read(file: IO[bytes], name: str, device: Any) -> Any:
    """What torch.save wrote: nested containers, with Tensors on `device`. Raises ArgumentError for what is no plain data, or damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            pickles = [n for n in archive.namelist() if n.endswith("/data.pkl") or n == "data.pkl"]
            if len(pickles) != 1:
                raise ArgumentError(f"load: {name} is a zip archive, but not a checkpoint of torch.save: it has no data.pkl" + (
                    "; a TorchScript archive holds code, which is not loaded" if "constants.pkl" in archive.namelist() else ""))
            root = pickles[0].removesuffix("data.pkl")
            order = archive.read(root + "byteorder").decode() if root + "byteorder" in archive.namelist() else "little"
            return _Reader(archive, root, order, name, device).load()
    except (zipfile.BadZipFile, pickle.UnpicklingError, EOFError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"load: {name} is not a whole checkpoint of torch.save: {type(error).__name__}: {error}") from error


class _Reader(pickle.Unpickler):
    """An unpickler that knows tensors, numbers, strings and containers, and nothing else."""

    def __init__(self, archive: zipfile.ZipFile, root: str, order: str, name: str, device: Any) -> None:
        super().__init__(io.BytesIO(archive.read(root + "data.pkl")))
        self._archive, self._root, self._name, self._device = archive, root, name, device
        self._order = {"little": "<", "big": ">"}[order]
        self._storages: dict[str, np.ndarray[Any, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for. Never an import."""
        if (module, name) in _CONTAINERS:
            return _CONTAINERS[module, name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _Name(_STORAGES[name])
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return _Name(None)
        if module == "torch" and name in _DTYPES:
            return np.dtype(_DTYPES[name])
        rebuild: dict[str, Callable[..., Any]] = {"_rebuild_tensor_v2": self._tensor, "_rebuild_tensor": self._tensor,
                                                  "_rebuild_parameter": self._parameter}
        if module == "torch._utils" and name in rebuild:
            return _Call(rebuild[name])
        hint = "; save what it holds as tensors, numbers, strings and containers of them (a state_dict)"
        if module == "torch" and (name.endswith("Storage") or name in ("bfloat16", "complex32")):
            hint = "; tracegrad has no such dtype: convert the tensors before saving, for instance with x.float()"
        raise ArgumentError(f"load: {self._name} holds {module}.{name}, which is not loaded: only plain data is, as anything else could "
                            f"run code{hint}")

    def persistent_load(self, pid: Any) -> Any:
        """The storage of an id ("storage", type, key, where it was, how many elements)."""
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or not isinstance(pid[1], _Name):
            raise ArgumentError(f"load: {self._name} holds an unknown kind of storage, {pid!r}")
        _, kind, key, _, count = pid
        dtype = np.dtype(self._order + _DTYPES[kind.dtype or "uint8"])
        if key not in self._storages:
            entry = self._archive.getinfo(f"{self._root}data/{key}")
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size < count * dtype.itemsize:
                raise ArgumentError(f"load: {self._name}: storage {key} has {entry.file_size} bytes, {count} elements of {dtype} are "
                                    f"{count * dtype.itemsize}; the file is damaged")
            self._storages[key] = np.frombuffer(self._archive.read(entry), np.uint8)
        return self._storages[key][:count * dtype.itemsize].view(dtype)

    def _tensor(self, storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool = False, *_: Any) -> Tensor:
        shape, steps = tuple(size), tuple(stride)
        last = offset + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
        if any(n < 0 for n in shape) or any(s < 0 for s in steps) or offset < 0 or (0 not in shape and last >= len(storage)):
            raise ArgumentError(f"load: {self._name}: a tensor of {shape} with strides {steps} reaches beyond its storage; the file is "
                                "damaged")
        if 0 in shape:
            array = np.zeros(shape, storage.dtype)
        else:
            array = np.lib.stride_tricks.as_strided(storage[offset:], shape, [s * storage.dtype.itemsize for s in steps])
        tensor = from_array(np.array(array, dtype=array.dtype.newbyteorder("=")), self._device)
        return tensor.requires_grad_() if requires_grad else tensor

    def _parameter(self, data: Any, requires_grad: bool = True, *_: Any) -> Parameter:
        return Parameter(data, requires_grad)


class _Call:
    """A function that a pickle may call, without attributes that it could set."""

    __slots__ = ("_fn",)

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    def __call__(self, *args: Any) -> Any:
        return self._fn(*args)
