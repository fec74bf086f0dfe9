"""PoCL on a CPU that its LLVM does not know: the name in its record of the device is found, and nothing else is touched."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracegrad.runtime import pocl_cpu

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux") or os.uname().machine != "x86_64", reason="for Linux on x86-64")


def record(triple: bytes, name: bytes) -> tuple[ctypes.Array[ctypes.c_void_p], list[object]]:
    """A record of a device like PoCL's: 600 words, mostly no pointers, at 80 and 81 the triple and the CPU's name."""
    words = (ctypes.c_void_p * 600)()
    texts = [ctypes.create_string_buffer(triple), ctypes.create_string_buffer(name)]
    words[0], words[1], words[2] = 1, 0xFFFFFFFFFFFFFFF8, 4096                  # no pointers: reading them must not crash
    words[80], words[81] = (ctypes.addressof(text) for text in texts)
    return words, texts


def named(triple: bytes, name: bytes) -> tuple[str, bytes]:
    words, texts = record(triple, name)
    answer = pocl_cpu.name_unknown_cpu(SimpleNamespace(int_ptr=ctypes.addressof(words)))  # type: ignore[arg-type]
    assert texts
    return answer, ctypes.string_at(words[81] or 0)


def test_an_unknown_cpu_gets_the_name_of_one_with_its_instructions() -> None:
    answer, found = named(b"x86_64-unknown-linux-gnu", b"generic")
    assert answer in ("x86-64", "haswell", "skylake-avx512")
    assert found == answer.encode()
    flags = Path("/proc/cpuinfo").read_text()
    assert (answer == "skylake-avx512") <= ("avx512f" in flags)
    assert (answer == "x86-64") <= ("avx2" not in flags or "fma" not in flags or "movbe" not in flags)


@pytest.mark.parametrize(("triple", "name"), [(b"x86_64-unknown-linux-gnu", b"znver3"), (b"aarch64-linux-gnu", b"generic"),
                                              (b"x86_64-unknown-linux-gnu", b"generically"), (b"", b"")])
def test_a_known_cpu_keeps_its_name(triple: bytes, name: bytes) -> None:
    assert named(triple, name) == ("", name)


def test_feature_sets_grow() -> None:
    assert pocl_cpu._NAMES[0][1] < pocl_cpu._NAMES[1][1]
    assert pocl_cpu._NAMES[1][1] - pocl_cpu._NAMES[2][1] == {"f16c", "bmi1", "abm", "movbe"}      # every AVX-512 CPU has them
