"""torch.profiler: its marks. `profile` of torch's is not here (`modules.ABSENT`)."""

from __future__ import annotations

from enum import Enum, auto

from tracegrad.torch_api.names._markers import Unchanged


class ProfilerActivity(Enum):
    """What torch's profiler would record."""

    CPU, XPU, MTIA, CUDA, HPU, PrivateUse1 = auto(), auto(), auto(), auto(), auto(), auto()


class ProfilerAction(Enum):
    """What a step of a schedule would do."""

    NONE, WARMUP, RECORD, RECORD_AND_SAVE = auto(), auto(), auto(), auto()


class record_function(Unchanged):
    """A block with a name, which nothing is done with."""


def kineto_available() -> bool:
    """False."""
    return False
