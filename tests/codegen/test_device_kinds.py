"""A kind of device is one row of `device_kinds.KINDS`: another one has kernels, which are right, by its facts alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

import tracegrad as tg
from tests.helpers.corpus import N, programs
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.codegen.compiler import compile_graph
from tracegrad.execute.compile import executable_graph
from tracegrad.runtime.queries import kind_of, target_of
from tracegrad.support.device_kinds import KINDS

PROGRAMS = programs()
SOME = ("row sum", "column sum", "several sums", "softmax", "cumsum", "argmax", "sort", "topk", "index add", "cat", "matmul", "conv",
        "attention", "max pool", "update", "gradient of layer norm", "gradient of embedding", "gradient of max pool")
MIXED = {
    "many work-items, one a row, no vectors": KINDS["cpu"]._replace(long_items=False, vectors=False),
    "many work-items with vectors, one a row": KINDS["cpu"]._replace(long_items=False),
    "long work-items without vectors, one a row": KINDS["cpu"]._replace(vectors=False, idle_launches=True),
    "many work-items with vectors": KINDS["gpu"]._replace(vectors=True, quick_float64=True, idle_launches=False),
    "long work-items with vectors, which make a row together": KINDS["gpu"]._replace(long_items=True, vectors=True),
}


def traced(name: str) -> Any:
    rng = np.random.default_rng(0)
    x, y = (tg.tensor(rng.standard_normal(N).astype(np.float32)) for _ in range(2))
    f = tg.trace(PROGRAMS[name])
    f(x, y, 0.5)
    return f


@pytest.fixture(autouse=True)
def on_the_interpreter() -> Any:
    before = tg.device()
    tg.set_device("numpy")
    yield
    tg.set_device(before)


@pytest.mark.parametrize("name", SOME)
def test_a_kind_with_the_facts_of_another_has_its_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = executable_graph(traced(name)._seen().program.graph)
    for row, target in (("cpu", TARGETS["avx2"]), ("gpu", TARGETS["gpu"])):
        monkeypatch.setitem(KINDS, "third", KINDS[row])
        assert compile_graph(graph, replace(target, kind="third")).source == compile_graph(graph, target).source


@pytest.mark.parametrize("kind", MIXED)
def test_a_kind_with_facts_of_several_computes_what_the_interpreter_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "third", MIXED[kind])
    with Checked({kind: replace(TARGETS["gpu"], kind="third", simd_bytes=32)}) as checked:
        for name in SOME:
            traced(name)
    assert checked.count >= len(SOME)


def test_what_a_driver_states_is_read_by_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = SimpleNamespace(type=cl.device_type.ACCELERATOR, extensions="", native_vector_width_float=16, max_compute_units=8,
                                  max_work_group_size=64, local_mem_type=cl.device_local_mem_type.GLOBAL, local_mem_size=1 << 15)
    assert kind_of(device) == "gpu"                              # as long as there is no row for it
    monkeypatch.setitem(KINDS, "third", KINDS["cpu"]._replace(opencl="ACCELERATOR"))
    assert kind_of(device) == "third"
    found = target_of(device, "third", clang_builtins=False)
    assert (found.kind, found.simd_bytes, found.local_memory, found.cores, found.parts) == ("third", 64, 0, 8, 32)
