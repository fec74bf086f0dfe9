"""torch.utils.data.distributed: which samples each of several processes takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracegrad.errors import ArgumentError
from tracegrad.graph.operators import PUBLIC
from tracegrad.torch_api.random_numbers import Generator
from tracegrad.utils.data import Sampler


class DistributedSampler(Sampler[int]):
    """Every num_replicas-th index of `dataset`, from `rank` on; all processes take equally many.

    shuffle: in an order of `seed` and of the epoch that `set_epoch` tells. drop_last: leave out the last ones, which else are filled up
    with the first. Without num_replicas and rank there is one process. Raises ArgumentError for a rank that is none of num_replicas.
    """

    def __init__(self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False) -> None:
        self.dataset, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, shuffle, seed, drop_last, 0
        self.num_replicas, self.rank = 1 if num_replicas is None else num_replicas, 0 if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(f"DistributedSampler: rank must be between 0 and {self.num_replicas - 1}, got {self.rank}")
        n = len(dataset)
        self.num_samples = n // self.num_replicas if drop_last else -(-n // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        n = len(self.dataset)
        order = list(range(n))
        if self.shuffle:
            order = PUBLIC["randperm"](n, generator=Generator().manual_seed(self.seed + self.epoch)).tolist()
        while len(order) < self.total_size:
            order += order[:self.total_size - len(order)]
        return iter(order[self.rank:self.total_size:self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of this epoch: another order, the same in all processes."""
        self.epoch = epoch
