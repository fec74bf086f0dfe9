"""torch.utils.data's names: datasets, samplers and a loader of batches. Start at `DataLoader` (loader.py).

    from tracegrad.utils.data import DataLoader, TensorDataset

Everything is done in the process and thread that asks for the next batch.
"""

from __future__ import annotations

from tracegrad.utils.data.collate import default_collate, default_convert
from tracegrad.utils.data.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from tracegrad.utils.data.distributed import DistributedSampler
from tracegrad.utils.data.loader import DataLoader, get_worker_info
from tracegrad.utils.data.samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = ["BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler", "IterableDataset",
           "RandomSampler", "Sampler", "SequentialSampler", "StackDataset", "Subset", "SubsetRandomSampler", "TensorDataset",
           "WeightedRandomSampler", "default_collate", "default_convert", "get_worker_info", "random_split"]  # fmt: skip
