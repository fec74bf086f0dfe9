"""torch.utils.data.distributed: which samples each of several processes takes."""

from __future__ import annotations

from tracegrad.graph.operators import PUBLIC
from tracegrad.torch_api.random_numbers import Generator
from tracegrad.utils.data import distributed


class DistributedSampler(distributed.DistributedSampler):
    """tracegrad.utils.data's, with the orders that torch's has for a seed and an epoch."""

    def _shuffled(self, n: int) -> list[int]:
        found: list[int] = PUBLIC["randperm"](n, generator=Generator().manual_seed(self.seed + self.epoch)).tolist()
        return found
