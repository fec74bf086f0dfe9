"""In which order samples are taken: what gives their numbers, or lists of numbers for batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar

from tracegrad.errors import ArgumentError, ArgumentTypeError
from tracegrad.support.dtypes import float64, int64
from tracegrad.support.random_state import Generator, torchs, using
from tracegrad.tensors.creation.from_data import tensor
from tracegrad.tensors.creation.random_numbers import multinomial, randint, randperm

T_co = TypeVar("T_co", covariant=True)


class Sampler(Generic[T_co]):
    """Base of samplers: a subclass gives `__iter__`, and mostly `__len__`."""

    def __init__(self, data_source: Any = None) -> None:
        del data_source

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__}: a Sampler needs an __iter__ that gives numbers of samples")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ... up to the last sample of `data_source`."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """All numbers in another order at every pass, num_samples of them (default: all); replacement: each drawn by itself.

    generator: what to draw with; default: one that is seeded from the global one at every pass. Raises ArgumentError.
    """

    def __init__(self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Any = None) -> None:
        if not isinstance(replacement, bool):
            raise ArgumentTypeError(f"RandomSampler: replacement is True or False, not {replacement!r}")
        if num_samples is not None:
            _positive("RandomSampler", "num_samples", num_samples)
        self.data_source, self.replacement, self._num_samples, self.generator = data_source, replacement, num_samples, generator

    @property
    def num_samples(self) -> int:
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        n, count, generator = len(self.data_source), self.num_samples, self.generator
        if generator is None and (host := torchs(1)) is not None:
            generator = Generator().manual_seed(int(host.any_integers((), int64)))
        if self.replacement:
            for start in range(0, count, 32):                    # as torch does: a count may stand for "for ever"
                with using("RandomSampler", generator):
                    drawn = randint(0, n, (min(32, count - start),)).tolist()
                yield from drawn
            return
        for _ in range(count // n if n else 0):
            yield from permutation("RandomSampler", n, generator)
        if n and (count % n or self.generator is not None):     # as torch, which draws from a generator that is given once more
            yield from permutation("RandomSampler", n, generator)[:count % n]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """These numbers, in another order at every pass."""

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        for i in permutation("SubsetRandomSampler", len(self.indices), self.generator):
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """num_samples numbers, i with a probability in proportion to weights[i]. Raises ArgumentError."""

    def __init__(self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Any = None) -> None:
        _positive("WeightedRandomSampler", "num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise ArgumentTypeError(f"WeightedRandomSampler: replacement is True or False, not {replacement!r}")
        self.weights = tensor(weights if isinstance(weights, (list, tuple)) else list(weights), dtype=float64)
        if self.weights.ndim != 1:
            raise ArgumentError(f"WeightedRandomSampler: weights is a vector, got the shape {tuple(self.weights.shape)}")
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        with using("WeightedRandomSampler", self.generator):
            drawn = multinomial(self.weights, self.num_samples, self.replacement).tolist()
        yield from drawn

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """The numbers that `sampler` gives in lists of batch_size; drop_last: without the last one, if it is shorter.

    >>> list(BatchSampler(range(7), batch_size=3, drop_last=False))
    [[0, 1, 2], [3, 4, 5], [6]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        _positive("BatchSampler", "batch_size", batch_size)
        if not isinstance(drop_last, bool):
            raise ArgumentTypeError(f"BatchSampler: drop_last is True or False, not {drop_last!r}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        rest = iter(self.sampler)
        while batch := list(islice(rest, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        n: int = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


def permutation(who: str, n: int, generator: Any) -> list[int]:
    """0 to n - 1 in a random order."""
    with using(who, generator):
        order: list[int] = randperm(n).tolist()
    return order


def _positive(who: str, name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ArgumentError(f"{who}: {name} is a positive integer, got {value!r}")
