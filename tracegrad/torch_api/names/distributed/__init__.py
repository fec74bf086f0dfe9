"""torch.distributed: what `tracegrad.distributed` has, and, without a process group, one process."""

from __future__ import annotations

from typing import Any

from tracegrad import distributed


def _no() -> bool:
    """False: messages go by MPI."""
    return False


is_torchelastic_launched = is_nccl_available = is_gloo_available = _no


def get_rank(group: Any = None) -> int:
    """This process's number; 0 before init_process_group."""
    return distributed.get_rank(group) if distributed.is_initialized() else 0


def get_world_size(group: Any = None) -> int:
    """How many ranks there are; 1 before init_process_group."""
    return distributed.get_world_size(group) if distributed.is_initialized() else 1


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    """Wait for all ranks; before init_process_group, there is nobody to wait for."""
    return distributed.barrier(group, async_op, device_ids) if distributed.is_initialized() else None
