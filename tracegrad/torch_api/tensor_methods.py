"""Methods that only programs written for torch call: older argument orders, storages, `new`. Start at `install`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, DTypeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.nn.parameter import Parameter
from tracegrad.ops.arrays.subscripts import parts_of_tuples
from tracegrad.runtime.device import Placed
from tracegrad.support.dtypes import as_dtype
from tracegrad.support.layouts import layout, memory_format
from tracegrad.support.modes import state
from tracegrad.tensors.bases.view_steps import plain_steps
from tracegrad.tensors.tensor import Tensor
from tracegrad.torch_api import devices, printing
from tracegrad.torch_api.storages import TypedStorage, UntypedStorage, address, root, share, shares

# How many tensors a method takes, and what a number before them means.
_NUMBER_FIRST = {"add": (1, ("alpha",)), "sub": (1, ("alpha",)), "addcmul": (2, ("value",)), "addcdiv": (2, ("value",)),
                 **dict.fromkeys(("addmm", "addmv", "addr", "addbmm", "baddbmm"), (2, ("beta", "alpha")))}


_SPARSE_ONLY = ["coalesce", "is_coalesced", "indices", "values", "sparse_dim", "dense_dim", "crow_indices", "col_indices", "ccol_indices",
                "row_indices", "sparse_mask", "_indices", "_values", "_nnz"]


def _number_first(real: Callable[..., Any], count: int, names: tuple[str, ...]) -> Callable[..., Any]:
    """The method `real`, which also takes torch's older order of arguments: x.add_(2, y) is x.add_(y, alpha=2)."""

    @wraps(real)
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        more = len(args) - count
        if 0 < more <= len(names) and isinstance(args[-1], Tensor) and not isinstance(args[0], Tensor):
            return real(self, *args[more:], **dict(zip(names, args[:more], strict=False)), **kwargs)
        return real(self, *args, **kwargs)

    return method


def _data_ptr(self: Tensor) -> int:
    """The storage's `data_ptr`, and how many bytes after its beginning the first element is."""
    owner, steps, view = root(self), list[Any](), self
    while view._base is not None:
        steps, view = [*view._chain, *steps], view._base
    if not steps or not self.numel() or prod(self.shape) == owner.numel():
        return address(owner)
    places: Any = np.arange(owner.numel()).reshape(owner.shape)
    for fn, attrs in plain_steps(tuple(steps)):
        places = fn.numpy(places, **attrs)
    return address(owner) + int(places.reshape(-1)[0]) * self.element_size()


def _new(self: Tensor, *args: Any, device: Any = None) -> Any:
    """x.new(2, 3): a tensor of that shape, x.new([1, 2]): of these values, with this one's dtype and device."""
    if len(args) == 1 and not isinstance(args[0], int):
        if isinstance(args[0], tuple):
            return self.new_empty(args[0])
        return PUBLIC["tensor"](args[0], dtype=self.dtype, device=device or self.device)
    return PUBLIC["empty"](args or (0,), dtype=self.dtype, device=device or self.device)


def _untyped_storage(self: Tensor) -> UntypedStorage:
    return UntypedStorage(self)


def _storage(self: Tensor) -> TypedStorage:
    return TypedStorage(self)


def _cuda(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    """The tensor on the device that "cuda" leads to. Raises DeviceError where the user has named none."""
    named: Any = devices.device
    return self.to(device=named("cuda" if device is None or isinstance(device, int) else device))


def _is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Whether both are the same memory and shape."""
    return root(self) is root(tensor) and self.shape == tensor.shape and self.data_ptr() == tensor.data_ptr()


def _share_memory_(self: Tensor) -> Tensor:
    """The tensor: threads share memory as it is. From here on `is_shared` is True of it."""
    share(root(self))
    return self


def _set_(self: Tensor, source: Any = None, storage_offset: int = 0, size: Any = None, stride: Any = None) -> Tensor:
    """Become what lies in the memory of `source`, a tensor or a storage, of the same dtype: what is written to one is written to both.

    size, stride: how it lies there from element `storage_offset` on; by default a tensor as it is, a storage as one vector. Without a
    source: empty. A tensor that requires grad takes the values and shares nothing, as with `x.data = y`. Views that were taken of it
    before go on showing this tensor. Raises DTypeError for another dtype, ArgumentError inside @trace.
    """
    if state.trace is not None or self._trace is not None:
        raise ArgumentError("set_: inside @trace a tensor cannot get other memory, which a replay would not do; use the other tensor")
    held = source._owner if isinstance(source, TypedStorage) else source
    if held is None:
        held = PUBLIC["empty"]((0,), dtype=self.dtype, device=self.device)
    if isinstance(held, np.ndarray):
        source._owner = held = PUBLIC["from_numpy"](held.reshape(-1).view(as_dtype(self.dtype)))
    if held.dtype != self.dtype:
        raise DTypeError(f"set_: the tensor is {self.dtype} and what it is set to {held.dtype}; make an empty tensor of that dtype, "
                         "and set that")
    held = self._handle(held._node(), self._device) if root(held) is root(self) else held.detach()
    if size is not None:
        size = (size,) if isinstance(size, int) else tuple(size)
        found = held.as_strided(size, PUBLIC["empty"](size, device="meta").stride() if stride is None else stride, storage_offset)
    else:
        found = held.reshape(-1)[storage_offset:] if isinstance(source, TypedStorage) else held.view(held.shape)
    needs_grad = self._has_history()
    self._become(found)
    if not needs_grad and found._base is not None:
        self._base, self._detached, self._source, self._n, self._moved = found._base, found._detached, found._source, found._node(), ()
        self._chain = found._chain
    return self


def _to_dense(self: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
    """The tensor, which is dense, in another dtype if one is given."""
    return self if dtype is None else self.to(dtype=dtype)


def _to_sparse(kind: str | None) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **options: Any) -> Any:
        """The elements that are not 0 as a sparse tensor."""
        if kind is not None:
            options["layout"] = layout(kind)
        return import_module("tracegrad.torch_api.sparse").to_sparse(self, *args, **options)

    return method


def _of_sparse_only(name: str) -> Callable[..., Any]:
    def method(self: Tensor, *_: Any) -> Any:
        raise ArgumentError(f"{name}: is of sparse tensors, got a dense one of shape {tuple(self.shape)}; use x.to_sparse() first")

    return method


def install() -> None:
    """Give Tensor these methods."""
    cls: Any = Tensor
    cls.__module__, Parameter.__module__ = "torch", "torch.nn.parameter"       # so programs tell whose they are, and `type(x)` shows it
    parts_of_tuples.extend((list, tuple))
    for words in (layout, memory_format):
        words.__str__ = words.__repr__ = lambda self: f"torch.{self.value}"  # type: ignore[method-assign]
    for name, (count, names) in _NUMBER_FIRST.items():
        for method in (name, f"{name}_"):
            setattr(cls, method, _number_first(getattr(cls, method), count, names))
    cls.data_ptr, cls.new = _data_ptr, _new
    cls.cuda, cls.is_set_to = _cuda, _is_set_to
    cls.share_memory_, cls.to_dense, cls.set_ = _share_memory_, _to_dense, _set_
    cls.is_shared = lambda self: shares(root(self))
    cls._is_view, cls.const_data_ptr = lambda self: self._base is not None, _data_ptr
    for method, kind in {"to_sparse": None, "to_sparse_coo": None, "to_sparse_csr": "sparse_csr", "to_sparse_csc": "sparse_csc"}.items():
        setattr(cls, method, _to_sparse(kind))
    for method in _SPARSE_ONLY:
        setattr(cls, method, _of_sparse_only(method))
    cls.untyped_storage, cls.storage, cls._typed_storage = _untyped_storage, _storage, _storage
    cls._cdata = property(id)                           # by which programs tell tensors from others
    cls.is_meta = property(lambda self: getattr(self.device, "type", "") == "meta")
    printing.install(lambda tensor: not state.symbolic and tensor._trace is None)
    Placed.__str__ = lambda self: self.type  # type: ignore[attr-defined, method-assign]
