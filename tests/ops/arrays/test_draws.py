"""Random numbers are those of the stream, whether they are drawn eagerly, deferred, in a trace, or by another thread beside it."""

from __future__ import annotations

import threading
from itertools import product

import numpy as np
import pytest

import tracegrad as tg
from tests.helpers.marks import one_of
from tracegrad.support import philox
from tracegrad.support.mersenne.generator import exchanged
from tracegrad.support.philox import philox_block, philox_numpy
from tracegrad.utils.checkpoint import checkpoint

DRAWS = {
    "rand": tg.rand,
    "rand64": lambda shape, **on: tg.rand(shape, dtype=tg.float64, **on),
    "rand16": lambda shape, **on: tg.rand(shape, dtype=tg.float16, **on),
    "randn": tg.randn,
    "randn64": lambda shape, **on: tg.randn(shape, dtype=tg.float64, **on),
    "complex": lambda shape, **on: tg.randn(shape, dtype=tg.complex64, **on),
    "randint": lambda shape, **on: tg.randint(-5, 100, shape, **on),
    "wide": lambda shape, **on: tg.randint(0, 2**40, shape, **on),
    "bytes": lambda shape, **on: tg.randint(0, 256, shape, dtype=tg.uint8, **on),
}
SHAPES = [(), (1,), (5,), (12,), (3, 11), (0, 4), (1000,), (1600,), (30, 100), (40_000,)]      # a few are eager, many deferred


@pytest.mark.parametrize("turns", [1, 40])
def test_numbers_made_ahead_are_what_each_draw_makes_alone(turns, device, monkeypatch):
    """Of any kinds by turns, of two streams, with places that are set back: to the bit (but for the last one of logarithms and cosines)."""
    rng, g = np.random.default_rng(turns), tg.Generator().manual_seed(9)
    names = list(DRAWS)
    for _ in range(4):
        steps = [(names[rng.integers(len(names))], int(rng.integers(1, 80)), bool(rng.integers(4) == 0)) for _ in range(turns)]
        places, found = [], []
        for name, count, other in steps:
            places.append(g.get_state() if other else tg.get_rng_state())
            found.append(DRAWS[name]((count,), **({"generator": g} if other else {})))
        for place, array, (name, count, _) in zip(places, found, steps, strict=True):
            alone = tg.Generator().set_state(place)
            with monkeypatch.context() as patch:
                patch.setattr(tg.config, "recall", False)
                wanted = DRAWS[name]((count,), generator=alone).numpy()
            tolerance = 2e-6 if "randn" in name or name == "complex" else 0.0
            np.testing.assert_allclose(array.numpy(), wanted, rtol=tolerance, atol=tolerance / 10)
        tg.set_rng_state(places[0] if not steps[0][2] else tg.get_rng_state())


@pytest.mark.recall
@pytest.mark.skipif(not tg.device().in_host_memory, reason="draws of few numbers are kernels there")
def test_few_numbers_are_made_at_once(device, monkeypatch):
    monkeypatch.setattr(tg.config, "eager", True)
    tg.manual_seed(12)
    made = []
    rounds = philox._rounds
    monkeypatch.setattr(philox, "_rounds", lambda *args: made.append(0) or rounds(*args))
    drawn = [tg.randn(64) for _ in range(100)]
    assert len(made) < 10
    drawn[0].zero_()
    assert (drawn[1].numpy() != 0).all()                        # each has memory of its own


@one_of(7, ("name", "shape"), product(DRAWS, SHAPES), ids=str)
def test_every_iteration_draws_what_the_interpreter_draws(name, shape, device, monkeypatch):
    draw, near = DRAWS[name], "randn" in name or name == "complex"
    for eager in (True, False):
        monkeypatch.setattr(tg.config, "eager", eager)
        tg.manual_seed(7)
        found = [draw(shape).numpy().copy() for _ in range(5 if eager else 2)]
        offset = tg.get_rng_state()[1]
        tg.manual_seed(7)
        for step, array in enumerate(found):
            wanted = draw(shape, device="numpy").numpy()
            assert array.dtype == wanted.dtype
            if near:
                np.testing.assert_allclose(array, wanted, rtol=2e-6, atol=2e-7, err_msg=f"iteration {step}")
            else:
                np.testing.assert_array_equal(array, wanted, err_msg=f"iteration {step}")
        assert tg.get_rng_state()[1] == offset
    if found[0].size > 10:
        assert (found[0] != found[1]).mean() > 0.9


@pytest.mark.parametrize("state", [(0, 2**32 - 6), (2**62 + 5, 2**32 - 1), (1, 2**33), (2**32, 0), (3, 2**40 + 2**32 - 8)])
def test_seeds_and_offsets_of_more_than_32_bits(state, device):
    for _ in range(4):
        tg.set_rng_state(state)
        found = [tg.rand(12).numpy(), tg.rand(3, 5).numpy()]
        for array, offset in zip(found, (state[1], state[1] + 12), strict=True):
            counters = np.array([[(offset + i) & 0xFFFFFFFF, (offset + i) >> 32, 0, 0] for i in range(array.size)], np.uint32)
            words = philox_numpy((state[0] & 0xFFFFFFFF, state[0] >> 32), counters)[:, 0]
            np.testing.assert_array_equal(array.ravel(), (words >> 8) * np.float32(2.0**-24))


def test_draws_of_few_that_follow_each_other_are_made_ahead(monkeypatch):
    """The numbers are those of the stream, wherever a draw begins and ends, and whoever draws in between."""
    monkeypatch.setattr(tg.config, "eager", True)
    g, counts = tg.Generator(), (1, 1, 2, 16, 5, 40, 1)
    for seed, start in ((2**62 + 5, 2**32 - 30), (7, 0)):
        tg.set_rng_state((seed, start))
        at = start
        for k in range(700):
            count = counts[k % 7] if k % 50 > 30 else 1
            numbers = np.arange(at, at + count, dtype=np.uint64)
            counters = np.stack([numbers & 0xFFFFFFFF, numbers >> 32, 0 * numbers, 0 * numbers], -1).astype(np.uint32)
            words = philox_numpy((seed & 0xFFFFFFFF, seed >> 32), counters)[:, 0]
            wanted = (words >> 8) * np.float32(2.0**-24)
            np.testing.assert_array_equal(tg.rand(count).numpy(), wanted)
            if k % 90 == 0:
                np.testing.assert_array_equal(tg.rand(count, generator=g.set_state((seed, at))).numpy(), wanted)
            at += count


def test_draws_of_several_shapes_and_generators_by_turns(device):
    g = tg.Generator().manual_seed(3)
    tg.manual_seed(1)
    found = []
    for step in range(6):
        found += [tg.randn(4, 3), tg.rand(7, generator=g), tg.nn.functional.dropout(tg.ones(40), 0.4), tg.randint(0, 9, (5,), generator=g),
                  tg.bernoulli(tg.full((33,), 0.3)), tg.randperm(12), tg.normal(0.0, 1.0 + step, (6,))]
    tg.manual_seed(1)
    g.manual_seed(3)
    again = []
    for step in range(6):
        again += [tg.randn(4, 3, device="numpy"), tg.rand(7, generator=g, device="numpy"),
                  tg.nn.functional.dropout(tg.ones(40, device="numpy"), 0.4), tg.randint(0, 9, (5,), generator=g, device="numpy"),
                  tg.bernoulli(tg.full((33,), 0.3, device="numpy")), tg.randperm(12, device="numpy"),
                  tg.normal(0.0, 1.0 + step, (6,), device="numpy")]
    for a, b in zip(found, again, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=2e-7)


def test_what_was_drawn_may_be_written_over(device):
    for _ in range(5):
        tg.manual_seed(2)
        a = tg.rand(12)
        b = a.clone()
        a.mul_(0.0).add_(1.0)
        tg.manual_seed(2)
        np.testing.assert_array_equal(tg.rand(12).numpy(), b.numpy())
        np.testing.assert_array_equal(a.numpy(), np.ones(12, np.float32))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_draws_inside_vmap_after_ordinary_ones(randomness, device):
    for _ in range(4):
        tg.manual_seed(5)
        plain = tg.rand(3, 12).numpy()
        tg.manual_seed(5)
        mapped = tg.vmap(lambda x: x + tg.rand(12), randomness=randomness)(tg.zeros(3, 12)).numpy()
        np.testing.assert_array_equal(mapped, plain if randomness == "different" else np.broadcast_to(plain[:1], (3, 12)))


def test_a_trace_draws_the_same_stream_as_calls(device):
    noisy = tg.trace(lambda x: x + tg.rand(12))
    for _ in range(4):
        tg.manual_seed(9)
        plain = [tg.rand(12).numpy() for _ in range(3)]
        tg.manual_seed(9)
        for wanted in plain:
            np.testing.assert_array_equal(noisy(tg.zeros(12)).numpy(), wanted)


def test_gradients_of_what_was_drawn_and_checkpoints(device):
    def noisy(w):
        return (tg.nn.functional.dropout(w * tg.rand(12), 0.5) ** 2).sum()

    w = tg.full((12,), 0.5, requires_grad=True)
    for _ in range(5):
        grads = []
        for again in (False, True):
            tg.manual_seed(4)
            loss = checkpoint(noisy, w, use_reentrant=False) if again else noisy(w)
            grads.append(tg.autograd.grad(loss, w)[0].numpy())
        np.testing.assert_allclose(grads[0], grads[1], rtol=1e-6)


def test_words_of_the_last_block_are_not_taken_for_anothers():
    rng = np.random.default_rng(0)
    for n in (1, 12, 40_000):
        low, high = (rng.integers(0, 2**32, n, dtype=np.uint32) for _ in range(2))
        for key in (np.uint32(5), np.uint32(6), low[::-1].copy()):
            first = [word.copy() for word in philox_block(key, np.uint32(7), low, high)]
            low[0] += np.uint32(1)                                    # the same array with other numbers
            other = philox_block(key, np.uint32(7), low, high)
            assert all(a[0] != b[0] for a, b in zip(first, other, strict=True))
            assert all((a[1:] == b[1:]).all() for a, b in zip(first, other, strict=True)) or key.ndim
            i = n // 2
            k = int(np.broadcast_to(key, (n,))[i])
            np.testing.assert_array_equal([word[i] for word in other], philox_numpy((k, 7), np.array([low[i], high[i], 0, 0], np.uint32)))
    a = philox_block(np.uint32(1), np.uint32(2), np.arange(6, dtype=np.uint32), np.uint32(0))
    b = philox_block(np.uint32(1), np.uint32(2), np.arange(6, dtype=np.uint32).reshape(2, 3), np.uint32(0))
    assert [w.shape for w in a + b] == [(6,)] * 4 + [(2, 3)] * 4


def test_threads_draw_each_from_its_generator():
    wanted = {}

    def draw(seed, into):
        g = tg.Generator().manual_seed(seed)
        into[seed] = [tg.randn(12, generator=g).numpy().copy() for _ in range(40)]

    for seed in range(4):
        draw(seed, wanted)
    found = {}
    threads = [threading.Thread(target=draw, args=(seed, found)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for seed in range(4):
        for a, b in zip(found[seed], wanted[seed], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("n", [1, 2, 5, 64, 1000])
def test_exchanges_at_once_are_those_in_turn(n):
    rng = np.random.default_rng(n)
    last = np.arange(n - 1, 0, -1)
    for steps in (rng.integers(0, last + 1), last, last * 0, np.minimum(last, 1), last * (rng.random(n - 1) < 0.5)):
        order = list(range(n))
        for i, step in enumerate(steps.tolist()):
            order[i], order[i + step] = order[i + step], order[i]
        np.testing.assert_array_equal(exchanged(steps.astype(np.int64)), order)
