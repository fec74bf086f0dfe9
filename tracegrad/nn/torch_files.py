"""Checkpoints that torch.save wrote, read without torch and without running anything of them. Start at `read`.

A checkpoint is a zip archive: data.pkl is a pickle in which storages are persistent ids, and data/<key> is each storage's bytes. Only
the instructions and names that data needs are known here (`pickles.Reader`, `_Contents.named`); everything else is an error that says
what it was. What a file costs is bounded by its size: entries are not compressed and do not overlap, and tensors that share a storage,
or read an element several times, may take `_MORE` bytes and `_TIMES` the file's together.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import IO, Any, Literal

import numpy as np

from tracegrad.errors import ArgumentError, AutogradError, DeviceError, printable
from tracegrad.execute.devices import find_device
from tracegrad.graph.ir import Size
from tracegrad.nn.parameter import Parameter
from tracegrad.nn.pickles import PickleError, Reader, check_keys, check_size
from tracegrad.support.dtypes import as_dtype, is_dtype, users
from tracegrad.tensors.tensor import Tensor, from_array

_DTYPES = {"float64": "f8", "float32": "f4", "float16": "f2", "bfloat16": "u2", "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1",
           "uint8": "u1", "uint64": "u8", "uint32": "u4", "uint16": "u2", "bool": "?", "complex64": "c8", "complex128": "c16"}
_STORAGES = {"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
             "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
             "BoolStorage": "bool", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128"}
_MORE, _TIMES = 16 << 20, 16                 # bytes, and times the size of the file: what all tensors may take
_DIMS = 64                                   # what NumPy has at most
device_of: list[Callable[..., Any]] = [find_device]         # what finds a device by its name: a setting, for programs written for torch


class _Kind:
    """A storage's type."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class _Storage:
    """A storage as a type sees it. elements: of `dtype`, in the file's order of bytes, which numpy has of bfloat16's bits only."""

    __slots__ = ("dtype", "elements")

    def __init__(self, elements: np.ndarray[Any, Any], dtype: str) -> None:
        self.elements, self.dtype = elements, np.dtype(dtype)


def read(file: IO[bytes], name: str, device: Any) -> Any:
    """What torch.save wrote: nested containers, with Tensors on `device`. Raises ArgumentError for what is no plain data, or damaged."""
    data = file.read()
    try:
        contents = _Contents(_Archive(data), name, device)
        value = Reader(contents.pickle, contents.named, contents.called, contents.storage).read()
        check_size(value, len(contents.pickle))
    except PickleError as error:
        raise ArgumentError(f"load: {name} {error}") from None
    except ArgumentError:
        raise
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError, KeyError, IndexError, TypeError, AttributeError,
            ValueError, OverflowError, struct.error, AutogradError) as error:
        raise ArgumentError(f"load: {name} is not a whole checkpoint of torch.save: {type(error).__name__}: "
                            f"{_short(str(error))}; write it again with torch.save") from error
    return value


def _short(text: str) -> str:
    """Text of a file in a message."""
    return printable(text if len(text) <= 200 else text[:200] + "...")


class _Archive:
    """The entries of a zip archive as torch.save writes it: each once, side by side, not compressed. Raises PickleError for any other."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._archive = zipfile.ZipFile(io.BytesIO(data))
        entries = sorted(self._archive.infolist(), key=lambda entry: entry.header_offset)
        self.entries = {entry.filename: entry for entry in entries}
        if len(self.entries) != len(entries):
            raise PickleError("has two entries of one name; torch.save writes each once, so write it again with torch.save")
        end = 0
        for entry in entries:
            if entry.header_offset < end or entry.file_size < 0 or entry.header_offset + 30 + entry.compress_size > len(data):
                raise PickleError(f"has an entry {_short(entry.filename)!r} that overlaps another, or reaches beyond the {len(data)} bytes "
                                  "of the file, which is damaged: get it again")
            end = entry.header_offset + 30 + entry.compress_size

    def bytes_of(self, name: str, most: int) -> bytes:
        """What an entry holds, not more than `most` bytes."""
        entry = self.entries[name]
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise PickleError(f"has a compressed or encrypted entry {_short(name)!r}; torch.save does neither: unpack the archive and "
                              "pack it again with zip -0")
        if entry.file_size != entry.compress_size or entry.file_size > most:
            raise PickleError(f"has an entry {_short(name)!r} of {entry.file_size} bytes, where {min(most, entry.compress_size)} are the "
                              "most; the file is damaged: get it again")
        return self._archive.read(entry)


class _Contents:
    """What the names and storages of a checkpoint stand for."""

    def __init__(self, archive: _Archive, name: str, device: Any) -> None:
        self._archive, self._name, self._device = archive, name, device
        pickles = [n for n in archive.entries if n.endswith("/data.pkl") or n == "data.pkl"]
        if len(pickles) != 1:
            raise PickleError("is a zip archive, but not a checkpoint of torch.save: it has no data.pkl" + (
                "; a TorchScript archive holds code, which is not loaded" if "constants.pkl" in archive.entries else ""))
        self._root = pickles[0].removesuffix("data.pkl")
        order = archive.bytes_of(self._root + "byteorder", 6) if self._root + "byteorder" in archive.entries else b"little"
        if order not in (b"little", b"big"):
            raise PickleError(f"has a byte order {order!r}; torch.save writes 'little' or 'big'")
        self._order: Literal["<", ">"] = "<" if order == b"little" else ">"
        self.pickle = archive.bytes_of(pickles[0], archive.size)
        self._storages: dict[str, np.ndarray[Any, Any]] = {}
        self._left = _MORE + _TIMES * archive.size
        self._calls: dict[Any, Callable[..., Any]] = {
            "_rebuild_tensor_v2": self._tensor, "_rebuild_tensor": self._tensor, "_rebuild_tensor_v3": self._typed,
                                                      "_rebuild_parameter": self._parameter,
            "OrderedDict": _ordered, "set": _set, "complex": _complex, "Size": _size, "device": _device}

    def named(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for. Never an import."""
        if (module, name) in (("collections", "OrderedDict"), ("torch", "Size"), ("torch", "device")) or (
                module in ("builtins", "__builtin__") and name in ("set", "complex")):
            return self._calls[name]
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _Kind(_STORAGES[name])
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return _Kind("uint8")
        if module == "torch" and name in _DTYPES:
            return users.get(np.dtype(name), np.dtype(name))
        if module == "torch._utils" and name in self._calls and name.startswith("_rebuild"):
            return self._calls[name]
        hint = "; save what it holds as tensors, numbers, strings and containers of them (a state_dict)"
        if module == "torch" and (name.endswith("Storage") or name == "complex32"):
            hint = "; tracegrad has no such dtype: convert the tensors before saving, for instance with x.float()"
        raise PickleError(f"holds {_short(module)}.{_short(name)}, which is not loaded: only plain data is, as anything else could "
                          f"run code{hint}")

    def called(self, what: Any, args: Any) -> Any:
        """What a call in the pickle gives."""
        if not callable(what) or what not in self._calls.values() or type(args) is not tuple:
            raise PickleError(f"calls a {type(what).__name__}, which is not loaded: only tensors and plain containers are rebuilt; save a "
                              "state_dict")
        return what(*args)

    def storage(self, pid: Any) -> _Storage:
        """The storage of an id ("storage", type, key, where it was, how many elements)."""
        if type(pid) is not tuple or len(pid) != 5 or pid[0] != "storage" or type(pid[1]) is not _Kind or type(pid[2]) is not str:
            raise PickleError("holds an unknown kind of storage; torch.save writes ('storage', type, key, location, elements)")
        _, kind, key, _, count = pid
        dtype = np.dtype(self._order + _DTYPES[kind.dtype])
        if key not in self._storages:
            self._storages[key] = np.frombuffer(self._archive.bytes_of(f"{self._root}data/{key}", self._archive.size), np.uint8)
        found = self._storages[key]
        if type(count) is not int or not 0 <= count * dtype.itemsize <= found.size:
            raise PickleError(f"has a storage {_short(key)} of {found.size} bytes, where {_number(count)} elements of {dtype} are said to "
                              "be; the file is damaged: get it again")
        return _Storage(found[:count * dtype.itemsize].view(dtype), kind.dtype)

    def _tensor(self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any = False, *_: Any) -> Tensor:
        if type(storage) is not _Storage or type(size) is not tuple or type(stride) is not tuple or len(size) != len(stride) or any(
                type(n) is not int for n in (offset, *size, *stride)) or type(requires_grad) is not bool:
            raise PickleError("rebuilds a tensor of something else than a storage, whole numbers and a bool; the file is damaged")
        if len(size) > _DIMS:
            raise PickleError(f"holds a tensor of {len(size)} dimensions; the most are {_DIMS}")
        elements = storage.elements
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if min(offset, *size, *stride, 0) < 0 or (last >= len(elements) if 0 not in size else prod(n for n in size if n) >= 2**63):
            shown = f"({', '.join(map(_number, size))}) with strides ({', '.join(map(_number, stride))})"
            raise PickleError(f"holds a tensor of {shown} that reaches beyond its storage of {len(elements)} elements; the file is "
                              "damaged: get it again")
        nbytes = prod(size) * elements.itemsize
        self._left -= nbytes
        if self._left < 0:
            raise PickleError(f"holds tensors that read few elements many times: with one of {size}, {nbytes} bytes, they are larger than "
                              f"{_TIMES} times the file ({self._archive.size} bytes) and {_MORE >> 20} MiB; save x.contiguous() of what "
                              "was expanded, or what it was expanded from")
        if 0 in size:
            array = np.zeros(size, elements.dtype)
        else:
            array = np.lib.stride_tricks.as_strided(elements[offset:], size, [s * elements.itemsize for s in stride])
        tensor = from_array(np.array(array, array.dtype.newbyteorder("=")).view(storage.dtype), self._device)
        return tensor.requires_grad_() if requires_grad else tensor

    def _typed(self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any, *_: Any) -> Tensor:
        """A tensor of a dtype that no type of storages is of: the storage is bytes."""
        if type(storage) is not _Storage or not is_dtype(dtype):
            raise PickleError("rebuilds a tensor of something else than a storage and a dtype; the file is damaged")
        dtype = as_dtype(dtype)
        whole = storage.elements.view(np.uint8)
        elements = whole[:whole.size // dtype.itemsize * dtype.itemsize].view(self._order + _DTYPES[dtype.name])
        return self._tensor(_Storage(elements, dtype.name), offset, size, stride, requires_grad)

    def _parameter(self, data: Any, requires_grad: Any = True, *_: Any) -> Parameter:
        if not isinstance(data, Tensor) or type(requires_grad) is not bool:
            raise PickleError("rebuilds a parameter of something else than a tensor and a bool; the file is damaged")
        return Parameter(data, requires_grad)


def _number(n: Any) -> str:
    return str(n) if type(n) is int and abs(n) < 1 << 70 else "a number beyond 2**70" if type(n) is int else f"a {type(n).__name__}"


def _ordered(pairs: Any = ()) -> OrderedDict[Any, Any]:
    check_keys([key for key, _ in pairs], {})
    return OrderedDict(pairs)


def _set(items: Any = ()) -> set[Any]:
    check_keys(items, {})
    return set(items)


def _complex(real: Any, imag: Any = 0.0) -> complex:
    if not {type(real), type(imag)} <= {int, float}:
        raise PickleError("makes a complex number of something else than two numbers; the file is damaged")
    return complex(real, imag)


def _device(kind: Any, index: Any = None) -> Any:
    if type(kind) is not str or (index is not None and type(index) is not int):
        raise PickleError("has a torch.device of something else than a name and a whole number; the file is damaged")
    try:
        return device_of[0](kind)
    except DeviceError:                         # none like it is here; nothing in the file lies on it
        return kind


def _size(sizes: Any = ()) -> Size:
    if type(sizes) is not tuple or any(type(n) is not int for n in sizes):
        raise PickleError("has a torch.Size of something else than whole numbers; the file is damaged")
    return Size(sizes)
