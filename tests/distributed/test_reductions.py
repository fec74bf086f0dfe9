"""The order in which numbers of several ranks are added, and how many messages it takes: ranks are threads here, and there is no MPI."""

from __future__ import annotations

import queue
import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from tracegrad.distributed import exchange
from tracegrad.distributed.exchange import Exchange, factors, levels, reduced

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 30]


class Rank(Exchange):
    """A rank whose messages go through queues. late: seconds that it may be late with each."""

    def __init__(self, rank, size, wires, late=0.0):
        self.rank, self.size, self.wires, self.late = rank, size, wires, late
        self.messages = self.numbers = 0

    def _swap(self, level, given, got):
        others = [(k, peer) for k, peer in enumerate(level.peers) if k != level.own]
        for k, peer in others:
            time.sleep(random.random() * self.late)
            self.messages, self.numbers = self.messages + 1, self.numbers + given[k].size
            self.wires[self.rank, peer].put(given[k].copy())
        for k, peer in others:
            got[k][:] = self.wires[peer, self.rank].get(timeout=60)

    def gather(self, array):
        everybody = exchange.Level([*range(self.size)], self.rank, [])
        out = np.empty((self.size, *array.shape), array.dtype)
        out[self.rank] = array
        self._swap(everybody, [array] * self.size, list(out))
        return out


def on_all(size, call, late=0.0):
    """What `call` returns on each rank, and the ranks."""
    wires = defaultdict(queue.SimpleQueue)
    for a in range(size):
        for b in range(size):
            wires[a, b]                                             # (threads must not make them)
    ranks = [Rank(r, size, wires, late) for r in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, ranks)), ranks


def drawn(size, n, dtype=np.float32):
    """A vector for each rank, of numbers whose sum depends on the order."""
    rng = np.random.default_rng(size + n)
    if np.dtype(dtype).kind in "iu":
        return [rng.integers(0, 100, n).astype(dtype) for _ in range(size)]
    return [(rng.normal(size=n) * 10.0 ** rng.integers(-3, 4, n)).astype(dtype) for _ in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_the_bits_of_one_order(size, monkeypatch):
    """That of `reduced`, whichever way the numbers go; and a vector's numbers have the bits that they have alone."""
    for n in (0, 1, 7, 1001):
        for op, dtype in (("sum", np.float32), ("avg", np.float64), ("avg", ml_dtypes.bfloat16), ("max", np.int64)):
            parts = drawn(size, n, dtype)
            want = reduced(parts, op).tobytes()
            for small in (-1, 1 << 15):
                monkeypatch.setattr(exchange, "_SMALL", small)
                found, _ = on_all(size, lambda e, parts=parts, op=op: e.all_reduce(parts[e.rank], op))
                assert [a.tobytes() for a in found] == [want] * size, (n, op, dtype, small)
    whole = reduced(parts := drawn(size, 1001), "sum")
    for k in (0, 500, 1000):
        assert reduced([p[k:k + 1] for p in parts], "sum").tobytes() == whole[k:k + 1].tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_gets_its_own_piece(size):
    counts = [(3 * r) % 5 for r in range(size)]                     # some have none
    starts, parts = np.cumsum([0, *counts]), drawn(size, sum(counts))
    whole = reduced(parts, "avg")
    found, _ = on_all(size, lambda e: e.reduce_scatter(parts[e.rank], counts, "avg"))
    assert [a.tobytes() for a in found] == [whole[a:a + n].tobytes() for a, n in zip(starts, counts, strict=False)]


def test_who_is_late_changes_no_bit(monkeypatch):
    monkeypatch.setattr(exchange, "_SMALL", -1)
    parts = drawn(6, 1001)
    found = [on_all(6, lambda e: e.all_reduce(parts[e.rank], "sum"), late)[0] for late in (0.0, 0.003, 0.003)]
    assert len({a.tobytes() for once in found for a in once}) == 1


def test_neighbours_are_added_first():
    x = [np.array([v], np.float32) for v in (1e8, 1.0, -1e8, 1.0, 0.25, 1e-9)]
    assert reduced(x, "sum") == ((x[0] + x[1]) + (x[2] + x[3])) + (x[4] + x[5])
    assert reduced(x[:5], "sum") == (((x[0] + x[1]) + x[2]) + x[3]) + x[4]
    assert reduced(x[:4], "avg") == ((x[0] + x[1]) + (x[2] + x[3])) / 4


@pytest.mark.parametrize("size", SIZES)
def test_messages_are_few_and_no_longer_than_they_have_to_be(size, monkeypatch):
    """2 (f - 1) messages for each prime factor f: 20 for 1,024 ranks; all that a rank sends is 2 (n - n / ranks) numbers."""
    monkeypatch.setattr(exchange, "_SMALL", -1)
    n = 60 * size
    _, ranks = on_all(size, lambda e: e.all_reduce(np.ones(n, np.float32), "sum"))
    assert {(e.messages, e.numbers) for e in ranks} == {(2 * sum(f - 1 for f in factors(size)), 2 * (n - 60))}


def test_levels():
    assert factors(1) == []
    assert factors(360) == [2, 2, 2, 3, 3, 5]
    assert factors(1009) == [1009]
    for size in SIZES:
        rounds = [levels(r, size) for r in range(size)]
        for r, own in enumerate(rounds):
            for k, level in enumerate(own):
                assert level.peers[level.own] == r
                for peer in level.peers:                            # all of a group say the same of it
                    assert rounds[peer][k]._replace(own=0) == level._replace(own=0)
        assert sorted(own[-1].cuts[own[-1].own] for own in rounds if own) == list(range(size if size > 1 else 0))
    assert 2 * sum(f - 1 for f in factors(1024)) == 20
