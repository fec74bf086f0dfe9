"""PoCL on a CPU that its LLVM does not know, or takes for another: the name in its record of the device is made that of its built-in
functions, and nothing else is touched."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.runtime.device import find
from tracegrad.runtime.drivers import pocl_cpu

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
    answer = pocl_cpu.name_cpu(SimpleNamespace(int_ptr=ctypes.addressof(words)))  # type: ignore[arg-type]
    assert texts
    return answer, ctypes.string_at(words[81] or 0)


def test_an_unknown_cpu_gets_the_name_of_one_with_its_instructions() -> None:
    answer, found = named(b"x86_64-unknown-linux-gnu", b"generic")
    assert answer
    assert found == answer.encode()
    flags = Path("/proc/cpuinfo").read_text()
    assert (answer == "skylake-avx512") == ("avx512f" in flags)
    assert (answer == "haswell") <= ("avx2" in flags)


@pytest.mark.parametrize(("triple", "name"), [(b"aarch64-linux-gnu", b"generic"), (b"x86_64-unknown-linux-gnu", b"no name at all"),
                                              (b"x86_64-unknown-linux-gnu", b"x" * 40), (b"", b""),
                                              (b"x86_64-unknown-linux-gnu", b"avx512"), (b"x86_64-unknown-linux-gnu", b"sse2")])
def test_what_is_no_name_is_left_alone(triple: bytes, name: bytes) -> None:
    assert named(triple, name) == ("", name)


SSE = frozenset(("ssse3", "cx16", "sse4_1", "popcnt"))
AVX2 = SSE | {"avx", "avx2", "abm", "f16c", "fma", "bmi1", "bmi2", "movbe"}
AVX512 = AVX2 | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
ALL = frozenset(library for library, _, _, _ in pocl_cpu._LIBRARIES)


@pytest.mark.parametrize(("name", "flags", "libraries", "right"), [
    ("znver3", AVX512, ALL, "skylake-avx512"),               # Zen 4 by an LLVM of 2022: sin of a float16 was read from other registers
    ("znver4", AVX512, ALL, "znver4"),
    ("znver3", AVX2, ALL, "znver3"),
    ("alderlake", AVX512, ALL, "skylake-avx512"),            # the early ones had AVX-512
    ("alderlake", AVX2, ALL, "alderlake"),
    ("cpu-of-2031", AVX512, ALL, "skylake-avx512"),
    ("skylake-avx512", AVX512, ALL, "skylake-avx512"),
    ("skylake-avx512", AVX2, ALL, "haswell"),                # a hypervisor hides AVX-512
    ("icelake-server", SSE, ALL, "penryn"),
    ("cascadelake", SSE | {"avx"}, ALL, "sandybridge"),
    ("generic", AVX512, ALL, "skylake-avx512"),
    ("generic", AVX2, ALL, "haswell"),
    ("generic", SSE | {"avx"}, ALL, "sandybridge"),
    ("generic", frozenset(), ALL, "x86-64"),
    ("znver3", AVX512, {"znver3"}, "znver3"),                # compiled for this machine alone
    ("znver3", AVX512, frozenset(), "znver3"),
    ("generic", AVX2, frozenset(), "haswell"),
])
def test_the_cpu_compiled_for_is_that_of_the_built_in_functions(name: str, flags: Any, libraries: Any, right: str) -> None:
    assert pocl_cpu.right_name(name.encode(), flags, frozenset(libraries)) == right.encode()


def test_the_built_in_functions_of_the_pocl_in_use_are_found() -> None:
    device = find()
    if not device.driver.startswith("PoCL 3.0"):
        pytest.skip("another driver is the default")
    assert pocl_cpu._libraries() >= {"avx2", "avx512"}


@pytest.mark.matrix
def test_vectors_are_passed_in_the_registers_where_functions_look_for_them(device: str) -> None:
    for dtype in (np.float32, np.float64):
        if dtype == np.float64 and not find().target.fp64:
            continue
        x = np.linspace(-3, 3, 1000, dtype=dtype)
        got = tg.trace(lambda x: (tg.sin(x) * x, tg.exp(x), tg.hypot(x, x + 1)))(tg.tensor(x))
        for g, wanted in zip(got, (np.sin(x) * x, np.exp(x), np.hypot(x, x + 1)), strict=True):
            np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-5, atol=1e-6)
