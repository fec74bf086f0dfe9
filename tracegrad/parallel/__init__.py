"""One process on several devices. (Several processes: `tracegrad.distributed`.)"""

from tracegrad.parallel.batches import split_batch

__all__ = ["split_batch"]
