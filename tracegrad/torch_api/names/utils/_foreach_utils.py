"""torch.utils._foreach_utils: the grouping that optimizers over lists of tensors begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _group_tensors_by_device_and_dtype(tensorlistlist: Sequence[Sequence[Any]], with_indices: bool = False) -> dict[Any, Any]:
    """By (device, dtype) of the first list's tensors: the rows of all lists there, and the numbers of these rows if they are asked for."""
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    for number, row in enumerate(zip(*tensorlistlist, strict=True)):
        lists, numbers = groups.setdefault((row[0].device, row[0].dtype), ([[] for _ in row], []))
        for one, tensor in zip(lists, row, strict=True):
            one.append(tensor)
        numbers.append(number)
    return {key: (lists, numbers if with_indices else []) for key, (lists, numbers) in groups.items()}
