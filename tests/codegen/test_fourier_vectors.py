"""Fourier transforms by a CPU's vectors: run without a driver, verified, against NumPy. Start at `along`."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import scipy.fft

import tracegrad as tg
from tests.codegen.gpu.test_fourier_kernels import check, draw, planned
from tests.helpers.kernels import TARGETS, random_target, random_tuning
from tests.helpers.marks import one_of
from tracegrad.codegen.graph.fourier.vectors_cpu import stages
from tracegrad.graph.ir import Node
from tracegrad.ops.fourier import transforms
from tracegrad.ops.primitives.movement import permute
from tracegrad.support.plan import Target
from tracegrad.support.tuning import Tuning

CPUS = {name: target for name, target in TARGETS.items() if target.traits.vectors}


def along(z: Any, d: int, target: Target, tuning: Tuning | None = None) -> None:
    """Forward, backward, of real numbers and to real ones along dimension d, all by one kernel."""
    n, real, e = z.shape[d], z.real.copy(), d - z.ndim
    half = z.take(range(n // 2 + 1), d).copy()
    for fn, wanted, x in (
        (lambda x: transforms.dft(x, (e,)), np.fft.fft(z, axis=d), z),
        (lambda x: transforms.dft(x, (e,), True, "whole"), np.fft.ifft(z, axis=d), z),
        (lambda x: transforms.real_dft(x, e, "root"), np.fft.rfft(real, axis=d, norm="ortho"), real),
        (lambda x: transforms.half_dft(x, e, n, "whole"), np.fft.irfft(half, n, axis=d), half),
    ):
        plan = check(fn, wanted.astype(z.dtype if wanted.dtype.kind == "c" else z.real.dtype), x, target=target, tuning=tuning)
        assert len(plan.launches) == 1


@pytest.mark.parametrize("device", CPUS)
def test_rows_and_columns(device: str) -> None:
    """Where vectors end with the row, and where the last one begins before; one stage and several."""
    along(draw(3, 80), 1, CPUS[device])
    along(draw(2, 12, 21), 1, CPUS[device])
    along(draw(8, 33), 0, CPUS[device])
    along(draw(1, 256), 1, CPUS[device])


@one_of(5, "n", (64, 96, 144, 160, 200, 240, 448, 512, 840, 576, 1000, 1024, 1728, 2048))
def test_rows_of_every_radix(n: int) -> None:
    for device in ("avx2", "avx512"):
        along(draw(2, n), 1, CPUS[device])
    along(draw(2, n, dtype="complex128"), 1, CPUS["avx512"])


@one_of(5, "n", (4, 6, 8, 10, 14, 16, 18, 30, 42, 50, 64, 70, 98, 128))
def test_columns_of_every_radix(n: int) -> None:
    along(draw(n, 32), 0, CPUS["avx512"])
    along(draw(2, n, 5), 1, CPUS["avx2"])
    along(draw(n, 16, dtype="complex128"), 0, CPUS["avx2"])


def test_radices() -> None:
    """Rows begin with 8 or 4 points; the others have 8 at most, which are none of 11; columns may have any."""
    assert [stages(n, True) for n in (1024, 64, 12, 100, 88, 30)] == [(8, 8, 4, 4), (8, 8), None, (4, 5, 5), None, None]
    assert [stages(n, False) for n in (2, 30, 22)] == [(2,), (6, 5), None]


def _hosts(fn: Any, x: Any) -> int:
    plan = planned(fn, x, target=CPUS["avx512"])
    return len(plan.steps) - len(plan.launches)


def test_what_the_host_does() -> None:
    """Odd real rows, large primes, rows of few points, few columns, and what would not stay in a core's cache."""
    assert _hosts(lambda x: transforms.real_dft(x, -1), np.empty((3, 105), np.float32)) == 1
    assert _hosts(lambda x: transforms.dft(x, (-1,)), np.empty((3, 88), np.complex64)) == 1
    assert _hosts(lambda x: transforms.dft(x, (-1,)), np.empty((3, 8), np.complex64)) == 1
    assert _hosts(lambda x: transforms.dft(x, (-2,)), np.empty((64, 3), np.complex64)) == 1
    assert _hosts(lambda x: transforms.dft(x, (-1,)), np.empty((1, 1 << 17), np.complex64)) == 1
    assert _hosts(lambda x: transforms.dft(x, (-2, -1)), np.empty((64, 64), np.complex64)) == 0


def test_columns_are_shared_by_cores() -> None:
    """Also where one is left beside whole vectors, as in real spectra. Many columns that cannot be shared are the host's."""
    plan = planned(lambda x: transforms.dft(x, (-2,)), np.empty((64, 65), np.complex64), target=CPUS["avx2"])
    assert plan.launches[0].global_size[0] > 2
    assert _hosts(lambda x: transforms.dft(x, (-2,)), np.empty((256, 520), np.complex64)) == 1
    assert _hosts(lambda x: transforms.dft(x, (-2,)), np.empty((256, 513), np.complex64)) == 0


def _product(x: Node, y: Node) -> Node:
    a, b = (transforms.real_dft(z, -1) for z in (x, y))
    return transforms.half_dft(a * b, -1, 64, "whole")


def test_what_stands_before_is_fused() -> None:
    """A window, a transpose, the product of spectra."""
    z, target = draw(64, 16), CPUS["avx512"]
    x, y = z.real.T.copy(), z.imag.T.copy()
    wanted = np.fft.irfft(np.fft.rfft(x) * np.fft.rfft(y)).astype(np.float32)
    assert len(check(_product, wanted, x, y, target=target).launches) <= 3

    def turned(z: Node) -> Node:
        return transforms.dft(permute(z * 2.0, (1, 0)), (-1,))
    assert len(check(turned, np.fft.fft(z.T * 2).astype(z.dtype), z, target=target).launches) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_exact_as_pocketfft(dtype: str) -> None:
    """The error, beside more digits than the result has, is at most twice pocketfft's: of rows, columns, real numbers, there and back."""
    rng, wide = np.random.default_rng(1), np.longdouble
    for shape, dim in (((8, 1024), -1), ((8, 1000), -1), ((480, 16), -2)):
        x = rng.standard_normal(shape).astype(dtype)
        n = shape[dim]
        turns = 2 * np.arccos(wide(-1)) * (np.outer(np.arange(n), np.arange(n)) % n) / n
        lines = np.moveaxis(x, dim, -1).astype(wide)
        exact = np.moveaxis(lines @ np.cos(turns) - 1j * (lines @ np.sin(turns)), -1, dim)
        programs = [(tg.fft.fft, x.astype(f"complex{16 * x.itemsize}"), exact),
                    (tg.fft.rfft, x, exact.take(range(n // 2 + 1), dim))]
        for f, given, wanted in programs:
            made = tg.trace(lambda z, f=f, dim=dim: f(z, dim=dim))
            ours, theirs = made(tg.tensor(given)).numpy(), getattr(scipy.fft, f.__name__)(given, axis=dim)
            assert "factors" in str(made.kernels())
            assert _error(ours, wanted) <= 2 * _error(theirs, wanted)
        spectrum = exact.take(range(n // 2 + 1), dim).astype(f"complex{16 * x.itemsize}")
        back = tg.trace(lambda z, dim=dim: tg.fft.irfft(z, dim=dim))(tg.tensor(spectrum)).numpy()
        assert _error(back, x) <= 2 * _error(scipy.fft.irfft(spectrum, axis=dim), x)


def _error(found: Any, wanted: Any) -> float:
    return float(np.linalg.norm((found - wanted).ravel().astype(np.clongdouble)) / np.linalg.norm(wanted.ravel().astype(np.clongdouble)))


def test_sizes_that_vary() -> None:
    """Programs for one size do for others: of the batch, and of the lines, also where these are the host's."""
    f = tg.trace(lambda x: tg.fft.irfft(tg.fft.rfft(x * 2.0)))
    rng = np.random.default_rng(0)
    for shape in [(n, 64) for n in (5, 7, 9, 12, 30)] + [(4, n) for n in (64, 96, 80, 90, 160, 320)]:
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(f(tg.tensor(x)).numpy(), x * 2, atol=2e-6)


def test_inside_of_a_loop_and_batched() -> None:
    z = draw(4, 6, 48)
    x = tg.tensor(z)
    f = tg.trace(lambda x: tg.scan(lambda c, _: (tg.fft.ifft(tg.fft.fft(c) * 2.0), None), x, length=3)[0])
    np.testing.assert_allclose(f(x).numpy(), z * 8, atol=2e-5)
    by_one = tg.trace(tg.vmap(tg.fft.fft2))
    np.testing.assert_allclose(by_one(x).numpy(), np.fft.fft2(z), atol=1e-4)


@pytest.mark.long
def test_drawn_tunings_and_devices() -> None:
    rng = Random(0)
    for _ in range(16):
        target, tuning = replace(random_target(rng, "cpu"), fp64=True), random_tuning(rng)
        n = rng.choice((16, 32, 48, 64, 96, 256))
        z = draw(n, n)
        check(lambda x: transforms.dft(x, (-2, -1)), np.fft.fft2(z).astype(z.dtype), z, target=target, tuning=tuning)
