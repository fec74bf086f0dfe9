"""torch.utils.data.dataloader, beside what tracegrad.utils.data has: what loaders of other libraries read batches by."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_collate_fn_t, _worker_init_fn_t = Callable[[list[Any]], Any], Callable[[int], None]            # for annotations
np_str_obj_array_pattern = re.compile(r"[SaUO]")                                                # of dtypes of NumPy's that make no tensors


class _DatasetKind:
    """How a data set is read: by index, or as it comes."""

    Map, Iterable = 0, 1


class _SingleProcessDataLoaderIter:
    """Batches of a loader (torch's, or an object with the same attributes) that has a data set, an order and a function to collate."""

    def __init__(self, loader: Any) -> None:
        self._whole, self._collate = loader._auto_collation, loader.collate_fn
        self._dataset, self._order = loader.dataset, iter(loader._index_sampler)
        self._samples = iter(loader.dataset) if loader._dataset_kind == _DatasetKind.Iterable else None

    def __iter__(self) -> _SingleProcessDataLoaderIter:
        return self

    def __next__(self) -> Any:
        index, samples = next(self._order), self._samples
        if not self._whole:
            return self._collate(self._dataset[index] if samples is None else next(samples))
        if samples is None:
            return self._collate([self._dataset[i] for i in index])
        found = [sample for _, sample in zip(index, samples, strict=False)]
        if not found:
            raise StopIteration
        return self._collate(found)
