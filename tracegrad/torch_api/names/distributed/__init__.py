"""torch.distributed: there is one process."""

from __future__ import annotations

from typing import Any


def is_available() -> bool:
    """False: programs that ask go on alone."""
    return False


is_initialized = is_torchelastic_launched = is_nccl_available = is_gloo_available = is_mpi_available = is_available


def get_rank(group: Any = None) -> int:
    return 0


def get_world_size(group: Any = None) -> int:
    return 1


def barrier(*_: Any, **__: Any) -> None:
    """Nothing: nobody else is waited for."""


class ProcessGroup:
    """None is made here."""


class ReduceOp:
    """How values of several processes are put together."""

    SUM, AVG, PRODUCT, MIN, MAX = "sum", "avg", "product", "min", "max"


group = ProcessGroup
