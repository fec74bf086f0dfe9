"""Factorizations of large matrices block by block: run without a driver, verified, against LAPACK. Start at `check`."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.helpers.kernels import random_target, random_tuning
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.graph.large_matrices import in_blocks
from tracegrad.codegen.kernel.run import run_plan
from tracegrad.graph.ir import Aval, Graph, Node
from tracegrad.graph.primitive import bind, placeholder
from tracegrad.ops.linalg import factorizations, inverses
from tracegrad.support.plan import LargeMatrixCheck, Plan, Target
from tracegrad.support.tuning import Tuning, tuned

GPU = Target("gpu", 16, 16, 4, 64, 49152, plain_math=False, clang_builtins=False, host_memory=False)
SMALL = Tuning(factor_block=4, factor_rows=4, factor_items=4, matrix_size=2)
RNG = np.random.default_rng(0)


def planned(fn: Any, *arrays: Any, target: Target = GPU, tuning: Tuning = SMALL) -> Plan:
    leaves = [placeholder(Aval(a.shape, a.dtype)) for a in arrays]
    with tuned(tuning):
        return compile_graph(Graph.capture(leaves, fn(*leaves)), target)


def check(op: Any, *arrays: Any, results: int = 1, slack: float = 1.0, target: Target = GPU, tuning: Tuning = SMALL, **attrs: Any) -> Plan:
    """The kernels of all results of a call give LAPACK's."""
    plan = planned(lambda *x: [bind(op, x, {**attrs, "index": k}) for k in range(results)], *arrays, target=target, tuning=tuning)
    assert len(plan.launches) == len(plan.steps), "a step of the host"
    found = run_plan(plan, arrays)
    wanted = op.results(*(a.astype(np.float64) for a in arrays), **attrs)
    for k in range(results):
        assert found[k].shape == wanted[k].shape
        precision = 0 if found[k].dtype.kind == "i" else slack * {"float32": 2e-5, "float64": 1e-13}[str(found[k].dtype)]
        assert np.abs(found[k] - wanted[k]).max() <= precision * np.abs(wanted[k]).max(), (op.name, k)
    return plan


def positive(*shape: int, dtype: Any = np.float64) -> Any:
    x = RNG.standard_normal(shape)
    return (x @ x.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1])).astype(dtype)


def general(*shape: int, dtype: Any = np.float64) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def triangular(*shape: int) -> Any:
    return general(*shape) / shape[-1] + 2 * np.eye(shape[-1])


def test_cholesky() -> None:
    """Sizes with and without a rest, a batch, both dtypes, by matrix instructions too: the kernels of all steps are four."""
    plan = check(factorizations.CHOLESKY, positive(2, 14, 14))
    assert len(plan.launches) == 9
    assert plan.source.count("__kernel") == 4
    check(factorizations.CHOLESKY, positive(12, 12, dtype=np.float32))
    check(factorizations.CHOLESKY, positive(12, 12), target=replace(GPU, matrix=("MMA_F64",)), tuning=SMALL._replace(factor_block=8))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangles(upper: bool, unit: bool) -> None:
    check(inverses.TRIANGLE, triangular(9, 9), general(9, 5), upper=upper, unit=unit)


@pytest.mark.parametrize("shape", [(10, 10), (2, 7, 11), (11, 6)])
def test_lu(shape: tuple[int, ...]) -> None:
    """Factors, LAPACK's pivots, the order of rows: square, wide and tall."""
    check(factorizations.LU_, general(*shape), results=3)


def test_what_is_composed_of_it() -> None:
    a = general(2, 9, 9) + 2 * np.eye(9)
    check(inverses.SOLVE, a, general(2, 9, 3), slack=20)
    check(inverses.INV, a[0], slack=20)
    check(inverses.DET, a, slack=20)
    check(inverses.SLOGDET, a, results=2, slack=20)


def test_pivots_of_equal_size_and_zeros() -> None:
    """The first of equal numbers is the pivot, as LAPACK's; where all are 0 nothing is divided by it."""
    check(factorizations.LU_, np.array([[0.0, 1, 2, 1], [1, 0, 1, 2], [-1, 3, 0, 1], [0, 0, 0, 0]]), results=3)
    check(factorizations.LU_, np.zeros((5, 5)), results=3)


def test_what_is_noted_of_a_matrix() -> None:
    """The first pivot of the first matrix is the largest note, however large the matrices are."""
    found = LargeMatrixCheck("cholesky", (3, 5000, 5000), factorizations.CHOLESKY.impossible)
    most = LargeMatrixCheck.PIVOTS
    notes = {(matrix, pivot): (3 - matrix) * most + most - pivot for matrix in range(3) for pivot in (1, 2, 4999)}
    assert max(notes, key=notes.__getitem__) == (0, 1)
    assert all(notes[m, p] > notes[m, q] for m, p in notes for n, q in notes if m == n and p < q)
    assert "matrix 1 of the batch (3,) (5000x5000) is not positive definite (pivot 4999)" in str(found.error(notes[1, 4999], 0, "line 1"))


def test_what_stays_the_hosts() -> None:
    """Complex and small matrices, QR, eigenvalues; all of them without local memory; medium ones where memory is the host's."""
    def left(op: Any, x: Any, target: Target, **attrs: Any) -> bool:
        leaf = placeholder(Aval(x.shape, x.dtype))
        node = bind(op, (leaf,), {**attrs, "index": 0})
        graph = Graph.capture([leaf], [node])
        return node in set(in_blocks(graph, target))

    a = np.empty((100, 100))
    assert not left(factorizations.CHOLESKY, a, GPU)
    assert left(factorizations.CHOLESKY, a.astype(complex), GPU)
    assert left(factorizations.CHOLESKY, a[:16, :16], GPU)
    assert left(factorizations.QR_, a, GPU, complete=False)
    assert left(factorizations.CHOLESKY, a, replace(GPU, local_memory=0))
    assert left(factorizations.CHOLESKY, a, replace(GPU, host_memory=True))
    assert not left(factorizations.CHOLESKY, np.empty((513, 513)), replace(GPU, host_memory=True))


def test_two_of_a_form_share_kernels() -> None:
    """Where a step begins is an argument with a value that is known: it is the same for others of the form."""
    def several(*x: Node) -> list[Node]:
        return [bind(factorizations.CHOLESKY, (leaf,), {"index": 0}) for leaf in x]

    arrays = [positive(6, 6) for _ in range(5)]
    plan = planned(several, *arrays)
    for found, a in zip(run_plan(plan, arrays), arrays, strict=True):
        np.testing.assert_allclose(found, np.linalg.cholesky(a), atol=1e-13)


def test_a_cpu_with_local_memory() -> None:
    """Its work-groups do what a GPU's do, though its products are of another schedule."""
    for op, a, results in ((factorizations.CHOLESKY, positive(9, 9), 1), (factorizations.LU_, general(9, 9), 3)):
        check(op, a, results=results, target=replace(GPU, kind="cpu"))


@pytest.mark.long
def test_local_memory_and_items_are_what_there_are() -> None:
    """A 2048 matrix, two launches a step; little local memory: narrower blocks; a work-group of one item."""
    plan = planned(lambda a: [bind(factorizations.CHOLESKY, (a,), {"index": 0})], np.empty((2048, 2048)), tuning=Tuning())
    assert len(plan.launches) == 2 * 64 + 1
    assert plan.source.count("__kernel") <= 8
    for target in (replace(GPU, local_memory=512), replace(GPU, max_work_group=1)):
        check(factorizations.CHOLESKY, positive(9, 9), target=target)
        check(factorizations.LU_, general(9, 9), results=3, target=target)
        check(inverses.TRIANGLE, triangular(9, 9), general(9, 5), upper=True, unit=False, target=target)


@pytest.mark.long
def test_drawn_tunings_and_devices() -> None:
    rng = Random(0)
    for _ in range(25):
        target, tuning = replace(random_target(rng, "gpu"), fp64=True, host_memory=False), random_tuning(rng)
        if not target.local_memory:
            continue
        tuning, n = tuning._replace(matrix_size=2), rng.choice([3, 8, 17])
        check(factorizations.CHOLESKY, positive(2, n, n), target=target, tuning=tuning)
        check(factorizations.LU_, general(n, n + 3), results=3, target=target, tuning=tuning)
        check(inverses.TRIANGLE, triangular(n, n), general(n, 3), upper=False, unit=False, target=target, tuning=tuning)
