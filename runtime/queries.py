"""What a driver states of a device, as numbers: its kind, its memory, the `Target` of code generation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyopencl as cl

from tracegrad.support.device_kinds import KINDS
from tracegrad.support.plan import Target


def kind_of(device: cl.Device) -> str:
    """Its row of `KINDS`; one of no type that is there is taken for a GPU."""
    return next((kind for kind, traits in KINDS.items() if device.type & getattr(cl.device_type, traits.opencl)), "gpu")


def ask(device: cl.Device, name: str, default: Any) -> Any:
    """A device query, or `default` where the driver does not know it."""
    try:
        return getattr(device, name)
    except (cl.Error, AttributeError):
        return default


def target_of(device: cl.Device, kind: str, clang_builtins: bool) -> Target:
    """The device as numbers; nothing is assumed that the driver does not state or a trial did not show."""
    extensions, traits = set(device.extensions.split()), KINDS[kind]
    width = 4 * int(ask(device, "native_vector_width_float", 0))
    simd = max(16, width) if traits.vectors else 16              # 1 is a driver's way of saying "leave it to me"
    # A CPU's is emulated, and of no use. So is that of some GPUs (ARM's), but what items share in it they need not all read or compute.
    real_local = traits.row_groups or device.local_mem_type == cl.device_local_mem_type.LOCAL
    cache = int(ask(device, "global_mem_cache_size", 0))
    # A CPU driver that prefers scalars (1) joins work-items to vectors itself, with math functions for vectors. One that prefers vectors
    # leaves both to the author: a call of a builtin stays a call, and what is around it scalar.
    by_hand = traits.vectors and int(ask(device, "preferred_vector_width_float", 0)) > 1
    units, lanes, resident = (1, Target.lanes, Target.resident) if traits.long_items else _core(device)
    return Target(
        kind=kind,
        simd_bytes=simd,
        registers=32 if simd >= 64 else 16,
        cores=max(1, device.max_compute_units // units),
        max_work_group=device.max_work_group_size,
        local_memory=int(device.local_mem_size) if real_local else 0,
        l2_bytes=cache if cache and not traits.host_memory else Target.l2_bytes,
        fp64="cl_khr_fp64" in extensions or bool(ask(device, "double_fp_config", 0)),
        plain_math=by_hand,
        clang_builtins=clang_builtins,
        gathers=by_hand and clang_builtins and simd >= 32 and gathers_fast(device),
        atomics64="cl_khr_int64_base_atomics" in extensions,
        lanes=lanes,
        resident=resident,
    )


def gathers_fast(device: cl.Device) -> bool:
    """Whether the host's processor has a fast instruction for it: Intel's do, unless microcode slows it down against Downfall (2023),
    which Linux tells. (AMD's take as long as for the loads one by one.)"""
    try:
        state = _DOWNFALL.read_text()
    except OSError:
        return False
    return int(ask(device, "vendor_id", 0)) == _INTEL and state.strip() in ("Not affected", "Vulnerable")


_INTEL = 0x8086
_DOWNFALL = Path("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling")

# What a compute unit is, by the vendor's PCI id: how many of them share local memory and schedule together (a core), the work-items
# that run in step, and how many of those a core holds. NVIDIA's is a multiprocessor (64 warps), AMD's a CU (40 wavefronts of 64, about as
# many of 32), Intel's an execution unit of 8 threads, of which a sub-slice has 8 (16 in Xe2), Qualcomm's a shader processor, ARM's a shader
# core. Queries come before these numbers.
_CORES = {0x10DE: (1, 32, 64), 0x1002: (1, 64, 40), 0x8086: (8, 16, 64), 0x5143: (1, 64, 16), 0x13B5: (1, 16, 64)}


def _core(device: cl.Device) -> tuple[int, int, int]:
    """Compute units of a core of a GPU, work-items that run in step, and work-items that a core holds."""
    units, lanes, held = _CORES.get(int(ask(device, "vendor_id", 0)), (1, 32, 32))
    for name in ("warp_size_nv", "wavefront_width_amd"):
        lanes = int(ask(device, name, 0)) or lanes
    return units, lanes, lanes * held


def memory_of(device: cl.Device, kind: str) -> int:
    """Bytes that all buffers together may take. PoCL grants more than it states, so the limit of the host's is the machine's."""
    stated = int(device.global_mem_size)
    if KINDS[kind].host_memory and hasattr(os, "sysconf"):
        return max(stated, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return stated
