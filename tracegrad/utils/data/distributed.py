"""DistributedSampler: each rank's part of a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

from tracegrad import distributed
from tracegrad.errors import ArgumentError
from tracegrad.support.random_state import Generator
from tracegrad.utils.data.samplers import Sampler, permutation


class DistributedSampler(Sampler[int]):
    """Every num_replicas-th number from `rank` on, of an order that is the same on all ranks and another after set_epoch(epoch).

    All ranks get equally many: the first ones again at the end, or (drop_last) the last ones left out. num_replicas and rank: default,
    those of the process group. Raises ArgumentError for a rank that is none.
    """

    def __init__(self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False) -> None:
        self.dataset, self.shuffle, self.seed, self.drop_last, self.epoch = dataset, shuffle, seed, drop_last, 0
        self.num_replicas = distributed.get_world_size() if num_replicas is None else num_replicas
        self.rank = distributed.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(f"DistributedSampler: rank is from 0 to {self.num_replicas - 1}, got {self.rank}")
        n = len(dataset)
        self.num_samples = n // self.num_replicas if drop_last else math.ceil(n / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        n = len(self.dataset)
        order = self._shuffled(n) if self.shuffle else list(range(n))
        if n:
            order = (order * math.ceil(self.total_size / n))[:self.total_size]
        return iter(order[self.rank::self.num_replicas])

    def _shuffled(self, n: int) -> list[int]:
        return permutation("DistributedSampler", n, Generator().manual_seed(self.seed + self.epoch))

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Another order from now on; call it on all ranks, with the same number."""
        self.epoch = epoch
