"""PoCL on a CPU that is newer than the LLVM inside it. Start at `name_unknown_cpu`.

PoCL asks its LLVM for the CPU's name and gives it to its compiler. An LLVM that has never heard of the CPU says "generic", which the
compiler does not take for x86: every program fails with "unknown target CPU 'generic'". (Seen with PoCL 3.0, whose LLVM is of 2022, on
AMD's family 26, Zen 5.) Later releases read POCL_LLVM_CPU_NAME; 3.0, the one on PyPI, has no setting. So the name in PoCL's record of the
device is replaced by that of a CPU which has the instructions that this one has, the same that PoCL's own built-in library was made for.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from itertools import pairwise
from pathlib import Path

import pyopencl as cl

PLATFORM = "Portable Computing Language"
_RECORD = 4096                        # bytes of the device's record that are looked at; the name is at 640 in PoCL 3.0
_TRIPLE = b"x86_64-"                  # what the word before the name points to

# PoCL's library is one of these by the CPU's features, the last that fits; each with the CPU it was compiled for.
_NAMES: tuple[tuple[bytes, frozenset[str]], ...] = (
    (b"x86-64", frozenset()),
    (b"haswell", frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"))),
    (b"skylake-avx512", frozenset(("avx2", "fma", "bmi2", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "clwb", "adx"))),
)
_named = {name: ctypes.create_string_buffer(name) for name, _ in _NAMES}      # PoCL keeps the pointer


def is_pocl(device: cl.Device) -> bool:
    """Whether PoCL is the driver."""
    return bool(device.platform.name.strip() == PLATFORM)


def name_unknown_cpu(device: cl.Device) -> str:
    """Give PoCL's `device` the name of a CPU that its compiler knows, if it has none; returns that name, or "" if nothing was changed."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return ""
    try:
        flags = _cpu_flags()
        with open("/proc/self/mem", "rb", buffering=0) as memory:             # reading what is not mapped fails, instead of crashing
            at = _place(memory.fileno(), device.int_ptr)
    except OSError:
        return ""
    if at is None or not flags:
        return ""
    name = [name for name, needed in _NAMES if needed <= flags][-1]
    ctypes.c_void_p.from_address(at).value = ctypes.addressof(_named[name])
    return name.decode()


def _cpu_flags() -> frozenset[str]:
    """The instruction sets of this CPU, in Linux's words."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _place(memory: int, record: int) -> int | None:
    """The address of the pointer to "generic" in a device's record; it follows the pointer to the target's triple."""
    words = struct.unpack(f"<{_RECORD // 8}Q", _read(memory, record, _RECORD).ljust(_RECORD, b"\0"))
    for number, (triple, name) in enumerate(pairwise(words), 1):
        if _read(memory, triple, len(_TRIPLE)) == _TRIPLE and _read(memory, name, 8) == b"generic\0":
            return record + 8 * number
    return None


def _read(memory: int, address: int, size: int) -> bytes:
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""
