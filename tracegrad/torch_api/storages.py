"""torch's storages: the memory that a tensor and its views share, and the bytes of a file. Start at `TypedStorage`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, Self

import numpy as np

from tracegrad.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from tracegrad.execute.devices import find_device
from tracegrad.graph.operators import PUBLIC
from tracegrad.support.dtypes import as_dtype, get_default_dtype
from tracegrad.support.modes import no_grad, state
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import dtypes

# Names of torch's for storages of one dtype.
KINDS = {"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
         "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
         "BoolStorage": "bool",
         "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128"}
NAMES = {dtype: name for name, dtype in KINDS.items()}


def root(tensor: Tensor) -> Tensor:
    """The tensor that owns the memory of a view; of any other, itself."""
    while tensor._base is not None:
        tensor = tensor._base
    return tensor


_copies: dict[int, tuple[weakref.ref[Tensor], np.ndarray[Any, Any]]] = {}       # by the identity of the tensor
_shared: dict[int, weakref.ref[Any]] = {}                                       # what `share_memory_` was called of, by its identity


def share(owner: Any) -> None:
    """Let `is_shared` be True of this memory. Threads share it as it is."""
    if id(owner) not in _shared:
        _shared[id(owner)] = weakref.ref(owner)
        weakref.finalize(owner, _shared.pop, id(owner), None)


def shares(owner: Any) -> bool:
    """Whether `share` was called of it."""
    return (kept := _shared.get(id(owner))) is not None and kept() is owner


def address(owner: Tensor) -> int:
    """Where a tensor's values can be read, as long as it lives: a copy of them, in one place, which each call brings up to date.

    (Tensors change places when they are written, and programs take addresses for names.) Without values in the host's memory, a number
    that nothing else has. 0 without elements.
    """
    if not owner.numel() or not owner.device.has_values:
        return 0
    if owner._trace is not None or state.trace is not None or not owner.device.in_host_memory:
        return id(owner)
    values = owner.detach()._value("data_ptr()", shared=True)
    kept = _copies.get(id(owner))
    if kept is None or kept[0]() is not owner or kept[1].nbytes != values.nbytes:
        weakref.finalize(owner, _copies.pop, id(owner), None)
        kept = _copies[id(owner)] = weakref.ref(owner), np.empty(values.nbytes, np.uint8)
    kept[1][:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return int(kept[1].ctypes.data)


def mapped(filename: str | PathLike[str], dtype: Any, count: int, shared: bool | None) -> np.ndarray[Any, Any]:
    """The first `count` elements of a file, which are read where they are asked for, and cannot be written to."""
    if shared:
        raise UnsupportedError("from_file: what is written to a tensor reaches no file here (docs/torch.md); read it with shared=False, "
                               "and write it with tensor.numpy().tofile(filename) or a numpy.memmap")
    if not count:
        return np.zeros(0, dtype)
    try:
        return np.memmap(filename, dtype, "r", shape=(count,))
    except ValueError as error:
        raise ArgumentError(f"from_file: {count} elements of {np.dtype(dtype)} are asked for, more than {filename} has: {error}") from None


class TypedStorage:
    """The elements of a tensor's memory, as torch's TypedStorage tells of them. What is written to it is written to the tensor.

    TypedStorage(count) or TypedStorage(numbers), of `dtype`, has memory of its own; so has what `clone` gives.
    """

    is_cuda = is_sparse = False
    _kind: np.dtype[Any] | None = None          # of the elements, where they are taken as others than the memory's own

    def __init__(self, *args: Any, wrap_storage: TypedStorage | None = None, dtype: Any = None, device: Any = None, _internal: bool = False
                 ) -> None:
        if len(args) + (wrap_storage is not None) > 1:
            raise ArgumentTypeError(f"{type(self).__name__}: takes one count, sequence of numbers or storage, got {len(args)} arguments")
        given: Any = args[0] if args else 0 if wrap_storage is None else wrap_storage
        if dtype is not None:
            self._kind = as_dtype(dtype)
        self._owner: Any = given
        if isinstance(given, TypedStorage):
            self._owner = given._owner
        elif isinstance(given, Tensor):
            self._owner = root(given)
        elif not isinstance(given, np.ndarray):
            own = self._kind or as_dtype(get_default_dtype())
            self._owner = np.zeros(given, own) if isinstance(given, int) else np.array(given, own)

    @property
    def dtype(self) -> Any:
        """Of the elements."""
        return dtypes.NAMES[as_dtype(self._kind or self._owner.dtype).name]

    @property
    def device(self) -> Any:
        """Where they are."""
        return getattr(self._owner, "device", None) or find_device("cpu")

    @property
    def filename(self) -> str | None:
        """The file that the elements are read from, if one is mapped."""
        name = getattr(self._owner, "filename", None)
        return None if name is None else str(name)

    @property
    def _cdata(self) -> int:
        return id(self._owner)

    @property
    def _untyped_storage(self) -> UntypedStorage:
        return self.untyped()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self._owner.detach().numpy() if isinstance(self._owner, Tensor) else self._owner
        own = as_dtype(self.dtype)
        flat: np.ndarray[Any, Any] = np.ascontiguousarray(array).reshape(-1).view(own)
        return flat.astype(dtype or own, copy=bool(copy))

    def _write(self, elements: np.ndarray[Any, Any]) -> Self:
        """Put these, as many as there are, in place of the elements."""
        if isinstance(self._owner, Tensor):
            with no_grad():
                self._owner.copy_(PUBLIC["from_numpy"](elements.view(as_dtype(self._owner.dtype)).reshape(self._owner.shape)))
        else:
            self._owner.reshape(-1).view(elements.dtype)[...] = elements
        return self

    def size(self) -> int:
        """How many elements (bytes, of an untyped one) it has."""
        return self.nbytes() // self.element_size()

    __len__ = _size = size

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes()

    def element_size(self) -> int:
        """How many bytes an element has."""
        return int(as_dtype(self.dtype).itemsize)

    def nbytes(self) -> int:
        """How many bytes it has."""
        return int(self._owner.nbytes)

    def data_ptr(self) -> int:
        """Where the bytes can be read: see `address`. Tensors that share the memory have it in common."""
        return address(self._owner) if isinstance(self._owner, Tensor) else int(self._owner.ctypes.data)

    _data_ptr, _nbytes, _element_size = data_ptr, nbytes, element_size

    def untyped(self) -> UntypedStorage:
        """The same, of bytes."""
        return UntypedStorage(self)

    def tolist(self) -> list[Any]:
        """The elements."""
        return self.__array__().tolist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __getitem__(self, index: Any) -> Any:
        return self.tolist()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        elements = self.__array__(copy=True)
        elements[index] = value
        self._write(elements)

    def fill_(self, value: Any) -> Self:
        """Put `value` in place of every element."""
        return self._write(np.full(self.size(), value, as_dtype(self.dtype)))

    def copy_(self, source: Any, non_blocking: bool | None = None) -> Self:
        """Put the elements of another storage of this size in place of the own ones."""
        given = np.asarray(source)
        if given.size != self.size():
            raise ArgumentError(f"copy_: a storage of {self.size()} elements cannot take {given.size}; make one of that size")
        return self._write(given.astype(as_dtype(self.dtype)))

    def byteswap(self, dtype: Any) -> None:
        """Turn the order of the bytes in each element of `dtype` round."""
        own = as_dtype(self.dtype)
        self._write(self.__array__(copy=True).view(as_dtype(dtype)).byteswap().view(own))

    def resize_(self, size: int) -> Self:
        """Give a storage with memory of its own another number of elements; that of a tensor has those that its tensor has."""
        if size != self.size():
            if isinstance(self._owner, Tensor):
                raise UnsupportedError(f"resize_: this storage is a tensor's, of {self.size()} elements, and keeps its size here "
                                       "(docs/torch.md); use tensor.resize_(...), or let the tensor go to free its memory")
            self._owner = np.concatenate([self.__array__()[:size], np.zeros(max(0, size - self.size()), as_dtype(self.dtype))])
        return self

    def clone(self) -> Self:
        """The same elements in memory of its own."""
        return type(self)(self.__array__(copy=True))

    def __copy__(self) -> Self:
        return self.clone()

    def __deepcopy__(self, memo: Any) -> Self:
        return self.clone()

    def to(self, device: Any = None, non_blocking: bool = False, *, dtype: Any = None) -> Self:
        """On another device."""
        if device is None or find_device(device) is self.device:
            return self
        return type(self)(PUBLIC["from_numpy"](self.__array__()).to(device=find_device(device)))

    def cpu(self) -> Self:
        """On the CPU."""
        return self.to("cpu")

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """torch's name of its kind; with a dtype, the elements as that."""
        if dtype is None:
            return f"torch.{NAMES[as_dtype(self.dtype).name]}" if not isinstance(self, UntypedStorage) else "torch.storage.UntypedStorage"
        return TypedStorage(self.__array__().astype(as_dtype(getattr(dtype, "dtype", dtype))))

    def share_memory_(self) -> Self:
        """Itself: threads share it as it is."""
        share(self._owner)
        return self

    def is_shared(self) -> bool:
        """Whether `share_memory_` was called of it, or of a tensor that it is of."""
        return shares(self._owner)

    def pin_memory(self, device: Any = None) -> Self:
        """Itself."""
        return self

    def is_pinned(self, device: Any = None) -> bool:
        """False."""
        return False

    def get_device(self) -> int:
        """The number of its GPU; -1 on a CPU."""
        return PUBLIC["get_device"](self._owner) if isinstance(self._owner, Tensor) else -1

    @classmethod
    def _new_shared(cls, size: int, *, device: Any = None, dtype: Any = None) -> Self:
        return cls(size, dtype=dtype).share_memory_()

    @classmethod
    def from_file(cls, filename: str | PathLike[str], shared: bool = False, size: int = 0, nbytes: int = 0) -> Self:
        """The first elements of a file (of an untyped storage, bytes), which are read where they are asked for, and cannot be written."""
        return cls(mapped(filename, cls._kind or as_dtype(get_default_dtype()), size or nbytes, shared))

    def __str__(self) -> str:
        kind = "" if isinstance(self, UntypedStorage) else f"dtype={self.dtype}, "
        name = "UntypedStorage" if isinstance(self, UntypedStorage) else "TypedStorage"
        return "\n".join(f" {x}" for x in self) + f"\n[torch.storage.{name}({kind}device={self.device.type}) of size {len(self)}]"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypedStorage) and other._owner is self._owner

    def __hash__(self) -> int:
        return id(self._owner)


def _as(name: str) -> Callable[[TypedStorage], TypedStorage]:
    def method(self: TypedStorage) -> TypedStorage:
        return self.type(as_dtype(name))  # type: ignore[no-any-return]

    method.__doc__ = f"The elements as {name}, in memory of its own."
    return method


for _method, _name in {"double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16", "long": "int64", "int": "int32",
                       "short": "int16", "char": "int8", "byte": "uint8", "bool": "bool"}.items():
    setattr(TypedStorage, _method, _as(_name))


class UntypedStorage(TypedStorage):
    """The bytes of a tensor's memory or of a file. storage[i:j] shares those of a file, and is a copy of a tensor's."""

    _kind = np.dtype(np.uint8)

    def __getitem__(self, index: Any) -> Any:
        return UntypedStorage(self.__array__()[index]) if isinstance(index, slice) else self.__array__()[index].item()


class _Kind(type):
    """torch's classes of storages of one dtype: calls give a TypedStorage, which is an instance."""

    dtype: Any

    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is TypedStorage and as_dtype(instance.dtype) == cls.dtype

    def __call__(cls, *args: Any, **options: Any) -> TypedStorage:
        return TypedStorage(*args, **{"dtype": cls.dtype, **options})

    def from_file(cls, filename: str | PathLike[str], shared: bool = False, size: int = 0) -> TypedStorage:
        return TypedStorage(mapped(filename, cls.dtype, size, shared))


_StorageBase = TypedStorage
kinds = {name: _Kind(name, (), {"__module__": "torch", "dtype": as_dtype(of), "__doc__": f"Storages of {of}."})
         for name, of in KINDS.items()}
for _made in (TypedStorage, UntypedStorage):
    _made.__module__ = "torch.storage"                  # so programs see whose they are, and pickles find them
