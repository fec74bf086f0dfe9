"""Fourier transforms in local memory: run without a driver, verified, against NumPy. Start at `check`."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import in_pairs, random_target, random_tuning
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.graph.fourier.lines_gpu import radices, shape_of
from tracegrad.codegen.kernel.run import run_plan
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import placeholder
from tracegrad.ops.fourier import transforms
from tracegrad.ops.primitives.movement import permute
from tracegrad.support.plan import Plan, Target
from tracegrad.support.tuning import Tuning, tuned

GPU = Target("gpu", 16, 16, 4, 1024, 49152, plain_math=False, clang_builtins=False, host_memory=False)
DEVICES = {"groups of 16": replace(GPU, max_work_group=16), "little local memory": replace(GPU, local_memory=1024),
           "memory of the host": replace(GPU, host_memory=True)}
RNG = np.random.default_rng(0)


def draw(*shape: int, dtype: str = "complex64") -> Any:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


def planned(fn: Any, *arrays: Any, target: Target = GPU) -> Plan:
    leaves = [placeholder(Aval(a.shape, a.dtype)) for a in arrays]
    return compile_graph(Graph.capture(leaves, [fn(*leaves)]), target)


def check(fn: Any, wanted: Any, *arrays: Any, target: Target = GPU, tuning: Tuning | None = None) -> Plan:
    """The kernels of fn(*arrays) compute `wanted`, to some roundings of its largest number."""
    with tuned(tuning or Tuning()):
        plan = planned(fn, *arrays, target=target)
        assert len(plan.launches) == len(plan.steps), "a step of the host"
        found = run_plan(plan, [in_pairs(a) for a in arrays])[0]
    if wanted.dtype.kind == "c":
        found = found.view(wanted.dtype).reshape(wanted.shape)
    precision = 1e-6 if found.dtype.itemsize <= 8 and wanted.dtype.name in ("complex64", "float32") else 2e-15
    assert np.abs(found - wanted).max() <= precision * np.abs(wanted).max(initial=1e-30)
    return plan


@pytest.fixture(autouse=True)
def _in_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tg.config, "fourier", "kernels")


def along(z: Any, d: int, target: Target = GPU, tuning: Tuning | None = None) -> None:
    """Forward, backward, of real numbers and to real ones along dimension d."""
    n, real, e = z.shape[d], z.real.copy(), d - z.ndim
    norm = 1 / np.sqrt(2 * n - 1)
    for fn, wanted, x in (
        (lambda x: transforms.dft(x, (e,)), np.fft.fft(z, axis=d), z),
        (lambda x: transforms.dft(x, (e,), True, "whole"), np.fft.ifft(z, axis=d), z),
        (lambda x: transforms.real_dft(x, e), np.fft.rfft(real, axis=d), real),
        (lambda x: transforms.half_dft(x, e, 2 * n - 1, "root"), np.fft.irfft(z, 2 * n - 1, axis=d) * norm * (2 * n - 1), z),
    ):
        check(fn, wanted.astype(z.dtype if wanted.dtype.kind == "c" else z.real.dtype), x, target=target, tuning=tuning)


SIZES = (1, 2, 3, 4, 5, 7, 9, 11, 13, 14, 16, 17, 26, 30, 33, 45, 64, 77, 100, 125, 128, 143, 169, 210, 243, 256)


@pytest.mark.parametrize("n", SIZES[1::5])
def test_rows_of_every_radix(n: int) -> None:
    along(draw(3, n), 1)


@pytest.mark.long
@pytest.mark.parametrize("n", SIZES)
def test_rows_and_columns_of_every_size(n: int) -> None:
    along(draw(2, n, 3), 1)
    along(draw(n, 5), 0)
    along(draw(3, n, dtype="complex128"), 1)


def test_columns() -> None:
    along(draw(2, 12, 5), 1)
    along(draw(32, 40), 0, tuning=Tuning(fourier_group=32))


SMALL = (Tuning(fourier_points=8), Tuning(fourier_points=16, fourier_radix=4, fourier_group=16, fourier_across=16))


@pytest.mark.parametrize("tuning", SMALL)
def test_long_lines_take_several_kernels(tuning: Tuning) -> None:
    """Two where n = a b fits, three where b does not: rows, columns, forwards and backwards, cut off in the middle."""
    for shape, d in (((2, 48), 1), ((2, 48, 3), 1), ((1, 420), 1)):
        along(draw(*shape), d, tuning=tuning)


@pytest.mark.parametrize("device", DEVICES)
def test_small_devices(device: str) -> None:
    along(draw(3, 120), 1, DEVICES[device])
    along(draw(60, 3), 0, DEVICES[device])


def test_two_dimensions_are_two_kernels() -> None:
    """And nothing else: no copies, transposes or parts apart. Numbers are read in pairs where the memory is the device's own."""
    z = draw(32, 64)
    plan = check(lambda x: transforms.dft(x, (-2, -1), True, "whole"), np.fft.ifft2(z).astype(z.dtype), z)
    assert len(plan.launches) == 2
    assert all(f"{how}_ALIGNED(float2" in plan.source for how in ("LOAD", "STORE"))
    large = planned(lambda x: transforms.dft(x, (-2, -1)), np.empty((4096, 4096), np.complex64))
    assert [(launch.global_size, launch.local_size) for launch in large.launches] == [((4096, 256), (2, 256)), ((256, 4096), (256, 1))]
    assert all(launch.bytes <= 2 * 8 * 4096 ** 2 + (1 << 16) for launch in large.launches)


def test_what_stands_before_is_fused() -> None:
    """Arithmetic, real operands, padding and transposes are read where they lie; of real results only those are written."""
    z, x = draw(5, 16), draw(5, 16).real.copy()

    def products(z: Node) -> Node:
        return transforms.dft(permute(z * 2.0, (1, 0)), (-1,))

    assert len(check(products, np.fft.fft(z.T * 2).astype(z.dtype), z).launches) == 1
    assert len(check(lambda x: transforms.real_dft(x * x, -1), np.fft.rfft(x * x).astype(np.complex64), x).launches) == 1
    half = np.fft.rfft(x).astype(np.complex64)
    assert len(check(lambda y: transforms.half_dft(y, -1, 16, "whole"), x, half).launches) == 1


def test_shapes_of_groups() -> None:
    """No more local memory or items than there are; few radices, none above 16; columns are read 64 bytes wide where there is room."""
    assert [radices(n, 16) for n in (4096, 1024, 17)] == [(16, 16, 16), (16, 8, 8), None]
    for dtype in ("float32", "float64"):
        for n in range(2, 8193):
            found = shape_of(n, True, 1 << 20, np.dtype(dtype), GPU)
            if found is None:
                continue
            assert np.prod(found.radices) == n
            assert max(found.radices) <= 16
            assert found.items * found.lines <= 1024
            assert len(found.radices) == 1 or found.arrays * found.lines * found.pitch * np.dtype(dtype).itemsize <= 49152
    across = shape_of(1024, True, 1 << 20, np.dtype("float32"), GPU)
    assert across is not None
    assert across.lines == 8


@pytest.mark.long
def test_drawn_tunings_and_devices() -> None:

    rng = Random(0)
    for _ in range(16):
        target, tuning = replace(random_target(rng, "gpu"), fp64=True), random_tuning(rng)
        n = rng.choice(SIZES[:20])
        along(draw(*((3, n) if rng.random() < 0.5 else (2, n, 3))), 1, target, tuning)
