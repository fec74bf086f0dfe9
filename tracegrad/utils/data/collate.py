"""From a list of samples to a batch: `default_collate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracegrad.errors import ArgumentError, ArgumentTypeError
from tracegrad.graph.operators import PUBLIC
from tracegrad.support.cache import listed
from tracegrad.support.dtypes import float64
from tracegrad.tensors.creation.from_data import as_tensor, tensor
from tracegrad.tensors.tensor import Tensor

default_collate_fn_map: dict[Any, Callable[..., Any]] = listed("functions that collate", {})    # that programs add, by the class of samples


def default_convert(data: Any) -> Any:
    """numpy arrays and numbers in containers as tensors; anything else stays as it is."""
    if isinstance(data, (np.ndarray, np.generic)) and data.dtype.kind not in "OSU":
        return as_tensor(data)
    return data if isinstance(data, (Tensor, str, bytes)) else _inside(data, default_convert)


def default_collate(batch: Sequence[Any]) -> Any:
    """A batch of samples that are built alike: tensors and arrays are stacked along a new first dimension, numbers become a tensor (floats

    in float64, as in torch), mappings mappings and sequences lists of batches; strings stay what they are in. Raises ArgumentTypeError for
    anything else, and ArgumentError where sequences of samples differ in length.

    >>> default_collate([(tg.tensor([1.0, 2.0]), 3), (tg.tensor([4.0, 5.0]), 6)])
    [Tensor([[1., 2.],
            [4., 5.]], device='cpu'), Tensor([3, 6], device='cpu')]
    """
    first = batch[0]
    if default_collate_fn_map and (own := _added(first)):
        return own(batch, collate_fn_map=default_collate_fn_map)
    if isinstance(first, Tensor):
        return collate_tensor_fn(batch)
    if isinstance(first, (np.ndarray, np.generic)) and first.dtype.kind not in "OSU":
        return as_tensor(np.stack([np.asarray(b) for b in batch]))
    if isinstance(first, float):
        return tensor(batch, dtype=float64)
    if isinstance(first, int):
        return tensor(batch)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _like(first, {key: default_collate([sample[key] for sample in batch]) for key in first})
    if isinstance(first, Sequence):
        if len({len(sample) for sample in batch}) > 1:
            raise ArgumentError(f"default_collate: samples have {sorted({len(s) for s in batch})} elements; all need equally many")
        parts = [default_collate(part) for part in zip(*batch, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts if isinstance(first, tuple) else _like(first, parts)
    raise ArgumentTypeError("default_collate: samples are made of tensors, numpy arrays, numbers, strings, dicts and lists, not "
                            f"{type(first).__name__}; give a collate_fn")


def collate_tensor_fn(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    """Tensors of one shape along a new first dimension: what functions in `default_collate_fn_map` call, under torch's name."""
    found: Tensor = PUBLIC["stack"](list(batch), 0)
    return found


def _added(first: Any) -> Callable[..., Any] | None:
    """The function that a program has added for such samples, their own class first."""
    classes = default_collate_fn_map
    return classes.get(type(first)) or next((fn for cls, fn in classes.items() if isinstance(first, cls)), None)


def _inside(data: Any, convert: Any) -> Any:
    if isinstance(data, Mapping):
        return _like(data, {key: convert(value) for key, value in data.items()})
    if isinstance(data, tuple):
        parts = [convert(part) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else parts
    return _like(data, [convert(part) for part in data]) if isinstance(data, Sequence) else data


def _like(data: Any, parts: Any) -> Any:
    """The parts in a container like `data`, if its class takes them."""
    try:
        return type(data)(parts)
    except TypeError:
        return parts
