"""torch's storages: the memory that a tensor and its views share, and the bytes of a file. Start at `UntypedStorage`."""

from __future__ import annotations

import weakref
from os import PathLike
from typing import Any

import numpy as np

from tracegrad.support.modes import state
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import dtypes


def root(tensor: Tensor) -> Tensor:
    """The tensor that owns the memory of a view; of any other, itself."""
    while tensor._base is not None:
        tensor = tensor._base
    return tensor


_copies: dict[int, tuple[weakref.ref[Tensor], np.ndarray[Any, Any]]] = {}       # by the identity of the tensor


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


class TypedStorage:
    """The elements of a tensor's memory, as torch's TypedStorage tells of them."""

    is_cuda = False

    def __init__(self, memory: Any) -> None:
        self._owner = root(memory) if isinstance(memory, Tensor) else np.zeros(memory, np.uint8) if isinstance(memory, int) else memory

    @property
    def dtype(self) -> Any:
        """Of the elements."""
        return self._owner.dtype

    @property
    def device(self) -> Any:
        """Where they are."""
        return getattr(self._owner, "device", "cpu")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self._owner.detach().numpy() if isinstance(self._owner, Tensor) else self._owner
        own = np.dtype(self.dtype)
        flat: np.ndarray[Any, Any] = np.ascontiguousarray(array).reshape(-1).view(own)
        return flat.astype(dtype or own, copy=bool(copy))

    def size(self) -> int:
        """How many elements (bytes, of an untyped one) it has."""
        return self.nbytes() // int(np.dtype(self.dtype).itemsize)

    __len__ = size

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + self.nbytes()

    def nbytes(self) -> int:
        """How many bytes it has."""
        return int(self._owner.nbytes)

    def data_ptr(self) -> int:
        """Where the bytes can be read: see `address`. Tensors that share the memory have it in common."""
        return address(self._owner) if isinstance(self._owner, Tensor) else int(self._owner.ctypes.data)

    def untyped(self) -> UntypedStorage:
        """The same, of bytes."""
        return UntypedStorage(self._owner)

    def tolist(self) -> list[Any]:
        """The elements."""
        return self.__array__().tolist()  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Any:
        return self.tolist()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypedStorage) and other._owner is self._owner

    def __hash__(self) -> int:
        return id(self._owner)


class UntypedStorage(TypedStorage):
    """The bytes of a tensor's memory or of a file. storage[i:j] shares those of a file, and is a copy of a tensor's."""

    dtype = property(lambda self: dtypes.NAMES["uint8"])

    @classmethod
    def from_file(cls, filename: str | PathLike[str], shared: bool = False, nbytes: int = 0) -> UntypedStorage:
        """The first nbytes of a file, which are read where they are asked for. They cannot be written to."""
        return cls(np.memmap(filename, np.uint8, "r", shape=(nbytes,)))

    def __getitem__(self, index: Any) -> Any:
        return UntypedStorage(self.__array__()[index]) if isinstance(index, slice) else self.__array__()[index].item()
