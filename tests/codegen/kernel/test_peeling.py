"""Loops over columns, cut where a guard changes: against the columns one by one, and in what is written for things put side by side."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.kernels import TARGETS, Checked
from tracegrad.codegen.compiler import compile_graph
from tracegrad.codegen.kernel.index.index import Var
from tracegrad.codegen.kernel.index.peeling import peeled
from tracegrad.execute.compile import executable_graph


@pytest.mark.parametrize("seed", range(200))
def test_inside_a_range_every_guard_is_certain(seed):
    """Or undecided in each vector of it, at the edges."""
    rng = random.Random(seed)
    n, step = rng.choice((16, 31, 64, 65, 100, 129, 257, 300)), rng.choice((4, 8, 16))
    col, row = Var("col", n), Var("row", 3)
    guards = []
    for _ in range(rng.randrange(1, 5)):
        low = rng.choice((rng.randrange(-20, n), rng.randrange(0, n // step + 1) * step))
        guards.append(("range", col.index + rng.choice((0, 0, row.index)), low, rng.choice((low + rng.randrange(1, n), n + 50))))
    ranges = peeled(guards, col, n, step, 8)
    whole = n - n % step
    assert [c for a, b in ranges for c in range(a, b)] == list(range(whole))
    assert len(ranges) <= 8
    assert all(a % step == b % step == 0 for a, b in ranges)
    if len(ranges) == 1:
        return

    def states(start: int, stop: int, guard: tuple) -> set[bool]:
        _, x, low, high = guard
        shifts = {0} if not (x - col.index).vars else {0, 1, 2}
        return {low <= c + shift < high for c in range(start, stop) for shift in shifts}

    for a, b in ranges:
        vectors = [all(len(states(v, v + step, g)) == 1 for g in guards) for v in range(a, b, step)]
        assert all(vectors) or not any(vectors)
        if all(vectors):
            assert all(len(states(a, b, g)) == 1 for g in guards)


def gates(x, y):
    return tg.cat([x * 2.0, y.tanh(), x - y, y], 1)


def split_and_joined(x, y):
    def loss(x):
        a, b, c = x.chunk(3, 1)
        return (a * b).sum() + c.tanh().sum()

    return tg.grad(loss)(x) * 2.0


def stencil(x, y):
    padded = tg.nn.functional.pad(x, (2, 2))
    n = x.shape[1]
    return padded[:, :n] - 2.0 * x + padded[:, 4:]


@pytest.mark.parametrize("columns", [33, 96, 100, 129])
@pytest.mark.parametrize("program", [gates, split_and_joined, stencil])
def test_on_targets(program, columns, on_numpy):
    names = ("avx2", "avx512", "sse, 16 cores")
    x, y = (tg.tensor(a) for a in np.random.default_rng(columns).standard_normal((2, 5, columns), np.float32))
    with Checked({name: TARGETS[name] for name in names}) as checked:
        tg.trace(program)(x, y)
    assert checked.count == len(names)


@pytest.mark.parametrize("program", [gates, split_and_joined])
def test_what_is_put_side_by_side_is_read_in_vectors(program, on_numpy):
    traced = tg.trace(program)
    traced(tg.ones(7, 96), tg.ones(7, 96))
    graph = executable_graph(traced._seen().program.graph)
    for name in ("avx2", "avx512"):
        assert "_IF(" not in compile_graph(graph, TARGETS[name]).source.split("__kernel", 1)[1]
