"""examples/sharded_scan.py: a recurrence that is cut in time over the ranks gives the values, gradients and losses of a whole one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.ranks import example, losses

PIECES = """
    import runpy
    made = runpy.run_path("examples/sharded_scan.py", run_name="example")
    length, rng = 11, np.random.default_rng(0)
    low, high = made["own_range"](length, dist.get_rank())
    rows, weights, rates = (rng.normal(size=size) for size in ((length, 4), (length, 4), 4))

    def begin():
        return tg.from_numpy(rates).sigmoid().detach().requires_grad_(), tg.from_numpy(rows).requires_grad_()

    decay, whole = begin()
    last, wanted = tg.scan(lambda h, row: (decay * h + row,) * 2, tg.zeros_like(decay), whole)
    (wanted * tg.from_numpy(weights)).sum().backward()
    for traced in (False, True):
        own_decay, x = begin()
        mine = x.detach()[low:high].clone().requires_grad_()
        scan = tg.trace(made["sharded_scan"]) if traced else made["sharded_scan"]
        found = scan(own_decay, mine, length=length)
        same(found, wanted.detach().numpy()[low:high], 1e-12)
        (found * tg.from_numpy(weights[low:high].copy())).sum().backward()
        same(mine.grad, whole.grad.numpy()[low:high], 1e-11)
        same(dist.functional.all_reduce(own_decay.grad), decay.grad.numpy(), 1e-11)
"""
PROGRAM = example("sharded_scan", "--steps", "41", "--length", "300")


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_pieces_and_their_gradients_are_those_of_a_whole_scan(ranks, count):
    """Also where the pieces of ranks differ in length, untraced and in a trace."""
    ranks(count, PIECES)


@pytest.mark.long
def test_any_number_of_ranks_has_the_losses_of_one(ranks):
    found = {count: losses(ranks(count, PROGRAM)) for count in (1, 2, 3)}
    assert len(found[1]) == 3
    assert found[1][-1] < 0.2 * found[1][0]
    for count in (2, 3):
        np.testing.assert_allclose(found[count], found[1], atol=2e-9)
