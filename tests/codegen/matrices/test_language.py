"""Kernels of small matrices are statements that are verified, written in a language of their own: its loops, numbers and updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tests.codegen.gpu.test_tile_programs import lowered
from tests.helpers.kernels import TARGETS
from tracegrad import linalg as L
from tracegrad.codegen.kernel.ir.statements import Report
from tracegrad.codegen.lower.matrices import small_matrices
from tracegrad.errors import CompilerBug

KINDS: dict[str, Callable[[Any], Any]] = {
    "elimination": lambda a: (L.solve(a, a), L.det(a), *L.lu(a), L.cholesky(a)),
    "reflections": L.qr,
    "rotations": lambda a: (*L.eigh(a), *L.svd(a[:, :, 1:])),
    "QR steps": L.eig,
    "exponentials": L.matrix_exp,
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_statements_that_are_verified(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, size in (("float32", (9, 3, 3)), ("complex128", (8, 4, 4))):
        for target in (TARGETS["avx2"], TARGETS["gpu"]):
            found = lowered(monkeypatch, KINDS[kind], np.zeros(size, dtype), target=target)
            assert [kernel for kernel in found if "at a time in a work-item" in kernel.note]
            monkeypatch.undo()


def instead_of_det(monkeypatch: pytest.MonkeyPatch, algorithm: Callable[[Any], None], a: Any) -> Any:
    """What it gives in place of a determinant, computed in kernels."""
    monkeypatch.setitem(small_matrices.ALGORITHMS, "det", algorithm)
    return tg.trace(L.det)(tg.tensor(a)).numpy()


def test_what_reads_beyond_a_matrix_is_not_compiled(monkeypatch: pytest.MonkeyPatch, kernels: None) -> None:
    def trace(k: Any) -> None:
        a, total = k.load(0, "a"), k.variable("total", k.number(0))
        for i in k.range("i", k.n + 1):
            total += a[i, i]
        k.store_number(0, total)

    with pytest.raises(CompilerBug, match=r"elements 0\.\.12 of a1? are read, of 9 that it has"):
        instead_of_det(monkeypatch, trace, np.zeros((5, 3, 3)))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_one_algorithm_is_for_real_and_complex_numbers(dtype: str, monkeypatch: pytest.MonkeyPatch, kernels: None) -> None:
    """A part that is computed of the part before it is computed before that changes; loops go down, or not at all."""
    def product(k: Any) -> None:
        a, found = k.load(0, "a"), k.variable("found", k.complex(k.number(1)))
        for j in k.range("j", k.n, down=True):
            a[j, j] = a[j, j] * a[j, j].conj * 2 - a[j, j]
            a[j, j] *= 0.5
            found.assign(k.where(k.at(j) != 1, found * a[j, j] / (1 + a[j, j].squared), found))
            for i in k.range("i", j + 1, k.n):
                a[i, j] += found * a[j, j]
                found += a[i, j]
            for _ in k.range("none", k.n, 1):
                found.assign(k.zero(k.parts))
        k.store_number(0, found)

    rng = np.random.default_rng(0)
    a = rng.standard_normal((6, 3, 3)) + (1j * rng.standard_normal((6, 3, 3)) if dtype == "complex128" else 0)
    wanted = []
    for m in a.copy():
        found = 1
        for j in (2, 1, 0):
            m[j, j] = (m[j, j] * m[j, j].conj() * 2 - m[j, j]) / 2
            found = found * m[j, j] / (1 + abs(m[j, j]) ** 2) if j != 1 else found
            for i in range(j + 1, 3):
                m[i, j] += found * m[j, j]
                found = found + m[i, j]
        wanted.append(found)
    np.testing.assert_allclose(instead_of_det(monkeypatch, product, a), wanted, rtol=1e-12)


def test_what_is_wrong_is_reported_by_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lowered(monkeypatch, L.inv, np.zeros((4, 2, 2), np.float32))
    assert [s.function for kernel in found for s in kernel.statements() if isinstance(s, Report)] == ["IMPOSSIBLE"]
