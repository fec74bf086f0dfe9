"""`DataLoader`: a dataset in batches, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.ops.arguments import integer
from tracegrad.support.random_state import torchs, using
from tracegrad.tensors.creation.from_data import tensor
from tracegrad.utils.data.collate import default_collate, default_convert
from tracegrad.utils.data.datasets import IterableDataset, Subset, TensorDataset, samples
from tracegrad.utils.data.samplers import BatchSampler, RandomSampler, SequentialSampler


class DataLoader:
    """Batches of a dataset: `for x, y in DataLoader(TensorDataset(xs, ys), batch_size=32, shuffle=True): ...`.

    dataset: with numbered samples (anything that has `__getitem__` and `__len__`), or an IterableDataset. batch_size: samples in a batch;
    None: no batches, samples one by one. shuffle: in another order at every pass. sampler: what gives the numbers of samples instead;
    batch_sampler: what gives lists of them. collate_fn: makes a batch of a list of samples (default: `default_collate`). drop_last: leave
    out the last batch where it is shorter. generator: what to draw with, as in `RandomSampler`.

    num_workers and what goes with it are checked, and change nothing: a batch is made when it is asked for, in the process and thread
    that does so, as with torch's num_workers=0 (so worker_init_fn is not called); batches and their order are the same. pin_memory
    changes nothing, either. Rows of a TensorDataset are taken all at once.

    Raises ArgumentError for arguments that exclude each other.

    >>> xs = tg.arange(10.0).reshape(5, 2)
    >>> [x.shape for x, in tg.utils.data.DataLoader(tg.utils.data.TensorDataset(xs), batch_size=2)]
    [(2, 2), (2, 2), (1, 2)]
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, sampler: Iterable[Any] | None = None,
                 batch_sampler: Iterable[Any] | None = None, num_workers: int = 0, collate_fn: Callable[[Any], Any] | None = None,
                 pin_memory: bool = False, drop_last: bool = False, timeout: float = 0, worker_init_fn: Any = None,
                 multiprocessing_context: Any = None, generator: Any = None, *, prefetch_factor: int | None = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True) -> None:
        integer("DataLoader", "num_workers", num_workers)
        if prefetch_factor is not None:
            integer("DataLoader", "prefetch_factor", prefetch_factor)
        for name, value in (("num_workers", num_workers), ("timeout", timeout), ("prefetch_factor", prefetch_factor or 0)):
            if value < 0:
                raise ArgumentError(f"DataLoader: {name} is not negative, got {value}")
        if num_workers == 0 and (prefetch_factor is not None or persistent_workers):
            raise ArgumentError("DataLoader: prefetch_factor and persistent_workers need num_workers > 0")
        iterable = isinstance(dataset, IterableDataset)
        if iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ArgumentError("DataLoader: an IterableDataset has an order of its own: leave shuffle, sampler and batch_sampler out")
        if sampler is not None and shuffle:
            raise ArgumentError("DataLoader: give sampler or shuffle, not both")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ArgumentError("DataLoader: a batch_sampler says what batches are: leave batch_size, shuffle, sampler and drop_last out")
        if batch_size is None and drop_last:
            raise ArgumentError("DataLoader: drop_last needs batches, and batch_size is None")
        self.batch_size = batch_size if batch_sampler is None else None
        if sampler is None and not iterable and batch_sampler is None:
            sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_sampler is None and batch_size is not None:
            batch_sampler = BatchSampler(() if sampler is None else sampler, batch_size, drop_last)      # (which checks the size)
        self.dataset, self.sampler, self.generator, self.drop_last = dataset, sampler, generator, drop_last
        self.batch_sampler: Any = None if iterable else batch_sampler
        self.collate_fn = collate_fn or (default_convert if batch_size is None else default_collate)
        self.num_workers, self.pin_memory, self.timeout, self.worker_init_fn = num_workers, pin_memory, timeout, worker_init_fn
        self.multiprocessing_context, self.prefetch_factor = multiprocessing_context, prefetch_factor
        self.persistent_workers, self.pin_memory_device, self.in_order = persistent_workers, pin_memory_device, in_order

    def __iter__(self) -> Iterator[Any]:
        with using("DataLoader", self.generator):
            if (host := torchs(1)) is not None:
                host.long(1)                                    # the seed of torch's workers
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            yield from self._streamed(iter(self.dataset))
        elif self.batch_sampler is None:
            for i in self.sampler or ():
                yield self.collate_fn(self.dataset[i])
        else:
            for indices in self.batch_sampler:
                yield self._batch(indices)

    def _streamed(self, rest: Iterator[Any]) -> Iterator[Any]:
        if self.batch_size is None:
            yield from map(self.collate_fn, rest)
            return
        while batch := list(islice(rest, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self.collate_fn(batch)

    def _batch(self, indices: Sequence[int]) -> Any:
        rows = _rows(self.dataset, indices) if self.collate_fn is default_collate else None
        return self.collate_fn(samples(self.dataset, indices)) if rows is None else rows

    def __len__(self) -> int:
        """How many batches there are (or samples, without batches). Raises TypeError where the dataset has no length."""
        if not isinstance(self.dataset, IterableDataset):
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]
        n: int = len(self.dataset)  # type: ignore[arg-type]
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


def _rows(dataset: Any, indices: Sequence[int]) -> list[Any] | None:
    """What `default_collate` makes of these samples of a TensorDataset, or of a part of one; None for any other dataset."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[i] for i in indices]
    if type(dataset) is not TensorDataset or not len(indices):
        return None
    rows = tensor([int(i) for i in indices])
    return [t[rows.to(t.device)] for t in dataset.tensors]


def get_worker_info() -> None:
    """None: no batch is made by a worker."""
    return
