"""The CPU that PoCL compiles for, where its LLVM is older than the CPU. Start at `name_cpu`.

PoCL asks its LLVM for the CPU's name, which it gives to its compiler, and for the CPU's features, by which it chooses the bitcode of the
built-in functions. The two disagree where LLVM has not heard of the CPU, or where a hypervisor hides instructions that the CPU has by
its name:

- The name is "generic", which the compiler does not take for x86: every program fails with "unknown target CPU 'generic'" (PoCL 3.0, whose
  LLVM is of 2022, on AMD's family 26, Zen 5).
- The name is that of an older relative without AVX-512, and the built-in functions are those with AVX-512 (PoCL 3.0 on AMD's Zen 4, named
  znver3). A kernel then passes a float16 in two registers of 256 bits, and `sin` looks for it in one of 512: results are silently
  wrong, or the process crashes. The other way round where AVX-512 is hidden.

PoCL 3.1 chooses both together, and later releases read POCL_LLVM_CPU_NAME; 3.0, the one on PyPI, has no setting. So the name in PoCL's
record of the device is replaced by that of the CPU for which the chosen built-in functions were compiled: it has no instruction that this
CPU lacks.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import sys
from itertools import pairwise
from pathlib import Path

import pyopencl as cl

PLATFORM = "Portable Computing Language"
_RECORD = 4096                        # bytes of the device's record that are looked at; the name is at 640 in PoCL 3.0
_TRIPLE = b"x86_64-"                  # what the word before the name points to
_LONGEST = 32                         # bytes that the name of a CPU may have

# PoCL's files of built-in functions, of which it takes the last that the CPU's features (here in Linux's words) allow; each with the CPU it
# was compiled for, and the bytes of the registers in which that one's functions pass vectors.
_LIBRARIES: tuple[tuple[str, bytes, int, frozenset[str]], ...] = (
    ("sse2", b"x86-64", 16, frozenset()),
    ("ssse3", b"core2", 16, frozenset(("ssse3", "cx16"))),
    ("sse41", b"penryn", 16, frozenset(("sse4_1", "cx16"))),
    ("avx", b"sandybridge", 32, frozenset(("avx", "cx16", "popcnt"))),
    ("avx_f16c", b"ivybridge", 32, frozenset(("avx", "cx16", "popcnt", "f16c"))),
    ("avx_fma4", b"bdver1", 32, frozenset(("avx", "cx16", "popcnt", "xop", "fma4"))),
    ("avx2", b"haswell", 32, frozenset(("avx", "avx2", "cx16", "popcnt", "abm", "f16c", "fma", "bmi1", "bmi2"))),
    ("avx512", b"skylake-avx512", 64, frozenset(("avx512f",))),
)
# LLVM's names of CPUs with registers of 512 bits. One that is newer than this list is compiled for as skylake-avx512, no more.
_AVX512 = frozenset((b"knl", b"knm", b"skylake-avx512", b"cascadelake", b"cooperlake", b"cannonlake", b"icelake-client",
                     b"icelake-server", b"tigerlake", b"rocketlake", b"sapphirerapids", b"emeraldrapids", b"graniterapids",
                     b"graniterapids-d", b"diamondrapids", b"znver4", b"znver5", b"znver6", b"x86-64-v4"))
_KINDS = frozenset(library.encode() for library, _, _, _ in _LIBRARIES)
_WHEEL = "pocl_binary_distribution/.libs"                     # where the PoCL inside pyopencl's wheel has its files
_named = {name: ctypes.create_string_buffer(name) for _, name, _, _ in _LIBRARIES}        # PoCL keeps the pointer


def is_pocl(device: cl.Device) -> bool:
    """Whether PoCL is the driver."""
    return bool(device.platform.name.strip() == PLATFORM)


def name_cpu(device: cl.Device) -> str:
    """Give PoCL's `device` the name of a CPU that its compiler knows and its built-in functions were made for, if it has another.

    Returns that name, or "" if nothing was changed.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return ""
    try:
        flags = _cpu_flags()
        with open("/proc/self/mem", "rb", buffering=0) as memory:             # reading what is not mapped fails, instead of crashing
            found = _place(memory.fileno(), device.int_ptr)
        if found is None or not flags:
            return ""
        at, name = found
        right = right_name(name, flags, _libraries())
    except OSError:
        return ""
    if right != name:
        ctypes.c_void_p.from_address(at).value = ctypes.addressof(_named[right])
    return "" if right == name else right.decode()


def right_name(name: bytes, flags: frozenset[str], libraries: frozenset[str]) -> bytes:
    """What a CPU with these features is to be compiled for where PoCL calls it `name` and has these files of built-in functions.

    A PoCL that was compiled for one CPU has one file, made for the CPU of that name; it is left alone, but for "generic".
    """
    library, compiled_for, width, _ = [row for row in _LIBRARIES if row[3] <= flags][-1]
    if name == b"generic":
        return compiled_for
    passed = 64 if name in _AVX512 else min(width, 32)                        # of 16 and 32, the name is taken to be right
    return compiled_for if passed != width and library in libraries else name


def _cpu_flags() -> frozenset[str]:
    """The instruction sets of this CPU, in Linux's words."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _libraries() -> frozenset[str]:
    """Which files of built-in functions lie beside the PoCL that this process has loaded (kernel-x86_64-...-NAME.bc)."""
    loaded = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines() if "libpocl" in line}
    folders = {parent / home / "share" / "pocl" for path in loaded for parent in Path(path).parents for home in ("", _WHEEL)}
    return frozenset(file.stem.rpartition("-")[2] for folder in folders for file in folder.glob("kernel-x86_64-*.bc"))


def _place(memory: int, record: int) -> tuple[int, bytes] | None:
    """The address of the pointer to the CPU's name in a device's record, and the name; it follows the pointer to the target's triple.

    In PoCL 3.1, the library's name stands between them: it chooses both together, so there is nothing to find.
    """
    words = struct.unpack(f"<{_RECORD // 8}Q", _read(memory, record, _RECORD).ljust(_RECORD, b"\0"))
    for number, (triple, name) in enumerate(pairwise(words), 1):
        if _read(memory, triple, len(_TRIPLE)) == _TRIPLE:
            text, end, _ = _read(memory, name, _LONGEST).partition(b"\0")
            if end and re.fullmatch(rb"[a-z0-9][a-z0-9_.-]*", text):
                return None if text in _KINDS else (record + 8 * number, text)
    return None


def _read(memory: int, address: int, size: int) -> bytes:
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""
