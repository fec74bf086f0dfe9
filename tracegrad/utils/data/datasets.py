"""What samples come from: by number (`Dataset`), or one after the other (`IterableDataset`)."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from tracegrad.errors import ArgumentError, IndexOutOfRange
from tracegrad.tensors.tensor import Tensor
from tracegrad.utils.data.samplers import permutation

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Base of datasets whose samples have numbers: a subclass gives `__getitem__(index)`, and mostly `__len__`.

    One that can give many at once gives `__getitems__(indices)`, a list of samples, too.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__}: a Dataset needs a __getitem__(index) that gives a sample")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Base of datasets that give one sample after the other: a subclass gives `__iter__`."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__}: an IterableDataset needs an __iter__ that gives samples")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is the tuple of the i-th rows of the tensors, which have equally many: (N, ...), (N, ...), ...

    Raises ArgumentError where they have not.

    >>> TensorDataset(tg.arange(6).reshape(3, 2), tg.tensor([7, 8, 9]))[1]
    (Tensor([2, 3], device='cpu'), Tensor(8, device='cpu'))
    """

    def __init__(self, *tensors: Tensor) -> None:
        if len({t.shape[0] for t in tensors}) > 1:
            raise ArgumentError(f"TensorDataset: the tensors have {[t.shape[0] for t in tensors]} rows; all need equally many")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple([t[index] for t in self.tensors])

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class StackDataset(Dataset[Any]):
    """Samples of datasets of one length side by side: tuples of those given by position, or dicts of those given by name."""

    def __init__(self, *args: Dataset[Any], **kwargs: Dataset[Any]) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentError("StackDataset: give datasets either by position, for tuples, or by name, for dicts")
        self.datasets: Any = args or kwargs
        lengths = [len(d) for d in self._each()]  # type: ignore[arg-type]
        if len(set(lengths)) > 1:
            raise ArgumentError(f"StackDataset: the datasets have {lengths} samples; all need equally many")
        self._length = lengths[0]

    def _each(self) -> list[Dataset[Any]]:
        return list(self.datasets.values() if isinstance(self.datasets, dict) else self.datasets)

    def _together(self, parts: Sequence[Any]) -> Any:
        return dict(zip(self.datasets, parts, strict=True)) if isinstance(self.datasets, dict) else tuple(parts)

    def __getitem__(self, index: Any) -> Any:
        return self._together([d[index] for d in self._each()])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self._together(parts) for parts in zip(*(samples(d, indices) for d in self._each()), strict=True)]

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset[Any]):
    """The samples of several datasets, one dataset behind the other. Raises ArgumentError for none, and for an IterableDataset."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError("ConcatDataset: no datasets were given")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise ArgumentError("ConcatDataset: an IterableDataset has no numbered samples; use ChainDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexOutOfRange(f"ConcatDataset: index {index} is out of range for {len(self)} samples")
        number = bisect.bisect_right(self.cumulative_sizes, at)
        return self.datasets[number][at - (self.cumulative_sizes[number - 1] if number else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[Any]):
    """The samples of several IterableDatasets, one after the other."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        super().__init__()
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            yield from self._checked(dataset)

    def __len__(self) -> int:
        return sum(len(self._checked(dataset)) for dataset in self.datasets)

    def _checked(self, dataset: Any) -> Any:
        if not isinstance(dataset, IterableDataset):
            raise ArgumentError(f"ChainDataset: {type(dataset).__name__} is no IterableDataset; use ConcatDataset")
        return dataset


class Subset(Dataset[T_co]):
    """The samples of `dataset` with these numbers."""

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return samples(self.dataset, [self.indices[i] for i in indices])

    def __len__(self) -> int:
        return len(self.indices)


def samples(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """The samples with these numbers: at once, where a dataset can give them so."""
    several = getattr(dataset, "__getitems__", None)
    return several(indices) if several is not None else [dataset[i] for i in indices]


def random_split(dataset: Dataset[T_co], lengths: Sequence[float], generator: Any = None) -> list[Subset[T_co]]:
    """The dataset in parts that do not overlap, drawn at random. lengths: how many samples each has, or fractions that sum to 1: what is

    left then of rounding down goes to the parts in turn. Raises ArgumentError where they do not add up.

    >>> [len(part) for part in random_split(range(10), [0.75, 0.25])]
    [8, 2]
    """
    total: int = len(dataset)  # type: ignore[arg-type]
    if sum(lengths) <= 1 and math.isclose(sum(lengths), 1):
        if not all(0 <= part <= 1 for part in lengths):
            raise ArgumentError(f"random_split: fractions lie between 0 and 1, got {list(lengths)}")
        sizes = [math.floor(total * part) for part in lengths]
        for k in range(total - sum(sizes)):
            sizes[k % len(sizes)] += 1
    else:
        sizes = [int(length) for length in lengths]
        if sum(lengths) != total or sizes != list(lengths):
            raise ArgumentError(f"random_split: the lengths {list(lengths)} do not sum to the dataset's {total} samples, nor to 1")
    order = permutation("random_split", total, generator)
    ends = list(itertools.accumulate(sizes))
    return [Subset(dataset, order[end - size:end]) for size, end in zip(sizes, ends, strict=True)]
