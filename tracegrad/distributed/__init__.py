"""torch.distributed's names over MPI (mpi4py, extra `mpi`): one program, started by mpiexec as several ranks. Start at `collectives.py`.

`world.py` has the process group and what happens when a rank fails, `exchange.py` moves arrays,
`functional.py` has the forms that differentiate, `fsdp.py` what trains by parts.
"""

from __future__ import annotations

from tracegrad.distributed import checkpoint, functional
from tracegrad.distributed.collectives import (
    Work,
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    broadcast_object_list,
    gather,
    gather_object,
    irecv,
    isend,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    scatter_object_list,
    send,
)
from tracegrad.distributed.exchange import ReduceOp
from tracegrad.distributed.fsdp import FSDPModule, fully_shard
from tracegrad.distributed.grid import halo
from tracegrad.distributed.world import (
    GroupMember,
    ProcessGroup,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_initialized,
    is_mpi_available,
    new_group,
)

__all__ = ["FSDPModule", "GroupMember", "ProcessGroup", "ReduceOp", "Work", "all_gather", "all_gather_into_tensor", "all_gather_object",
           "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "checkpoint",
           "destroy_process_group", "fully_shard", "functional", "gather", "gather_object", "get_backend", "get_global_rank",
           "get_group_rank", "get_node_local_rank", "get_process_group_ranks", "get_rank", "get_world_size", "group", "halo",
           "init_process_group", "irecv", "is_available", "is_initialized", "is_mpi_available", "isend", "new_group", "recv", "reduce",
           "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send"]
