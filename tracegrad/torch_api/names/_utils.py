"""torch._utils: what checkpoints call to rebuild tensors. See `torch_api/checkpoints.py`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tracegrad.graph.operators import PUBLIC
from tracegrad.nn.parameter import Parameter
from tracegrad.support.layouts import layout
from tracegrad.tensors.tensor import Tensor, from_array

_layouts = layout


def _rebuild_tensor(storage: Any, storage_offset: int, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A copy of some elements of a storage. ValueError where they are not all in there."""
    elements = storage.elements
    last = storage_offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if min(storage_offset, *size, *stride, 0) < 0 or (0 not in size and last >= len(elements)):
        raise ValueError(f"load: a tensor of {tuple(size)} with strides {tuple(stride)} reaches beyond its {len(elements)} elements")
    steps = [s * elements.itemsize for s in stride]
    array = np.lib.stride_tricks.as_strided(elements[storage_offset:], size, steps) if 0 not in size else np.zeros(size, elements.dtype)
    return from_array(np.array(array), storage.device)


def _rebuild_tensor_v2(storage: Any, storage_offset: int, size: Sequence[int], stride: Sequence[int], requires_grad: bool = False,
                       backward_hooks: Any = None, metadata: Any = None) -> Tensor:
    """The same, which may require grad."""
    tensor = _rebuild_tensor(storage, storage_offset, size, stride)
    return tensor.requires_grad_() if requires_grad else tensor


def _rebuild_parameter(data: Tensor, requires_grad: bool = True, backward_hooks: Any = None) -> Parameter:
    return Parameter(data, requires_grad)


def _rebuild_parameter_with_state(data: Tensor, requires_grad: bool, backward_hooks: Any, state: Any) -> Parameter:
    """A parameter with attributes of its user's own."""
    made = Parameter(data, requires_grad)
    vars(made).update(state)
    return made


def _rebuild_sparse_tensor(layout: layout, data: Any) -> Any:
    """A sparse tensor of its indices, values and size."""
    made = import_module("tracegrad.torch_api.sparse")
    if layout is not _layouts.sparse_coo:
        return made.sparse_compressed_tensor(*data, layout=layout)
    indices, values, size, *coalesced = data
    return made.sparse_coo_tensor(indices, values, size, is_coalesced=bool(coalesced and coalesced[0]))


for _made in (_rebuild_tensor, _rebuild_tensor_v2, _rebuild_parameter, _rebuild_parameter_with_state, _rebuild_sparse_tensor):
    _made.__module__ = "torch._utils"                   # under this name they are written, and found again


class ExceptionWrapper:
    """An exception of another thread, which `reraise` raises."""

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        self.error, self.where = exc_info[1] if exc_info else None, where

    def reraise(self) -> None:
        if self.error is not None:
            raise self.error


def _flatten_dense_tensors(tensors: Sequence[Tensor]) -> Any:
    """All elements in one row."""
    return PUBLIC["cat"]([t.reshape(-1) for t in tensors])


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Of such a row, tensors of the shapes of these."""
    parts = flat.split([t.numel() for t in tensors])
    return tuple(part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True))


def _get_all_device_indices() -> list[int]:
    return []


def _get_available_device_type() -> str | None:
    return None


def _get_device_module(device_type: str) -> Any:
    """torch.cuda for "cuda", and so on. RuntimeError for what there is no module of."""
    try:
        return import_module(f"torch.{device_type}")
    except ModuleNotFoundError as error:
        raise RuntimeError(f"Device {device_type!r} has no module torch.{device_type}") from error
