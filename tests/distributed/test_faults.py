"""What the other ranks do where one raises, ends, is killed or is slow: they end, with an error that names rank, operation and line."""

from __future__ import annotations

import pytest


def test_a_rank_that_raises_ends_the_others(ranks):
    """With an error that names it, and the operation and the line where they waited."""
    told = ranks(3, """
        if rank == 1:
            raise ValueError("no data here")
        dist.all_reduce(tg.ones(3))
    """, code=1)
    assert told.count("all_reduce: rank 1 failed with ValueError: no data here") >= 2
    assert "rank 0 waited for it at <string>:" in told
    assert "rank 2 waited for it at <string>:" in told


@pytest.mark.long
def test_a_rank_that_ends_or_is_killed_or_is_slow_ends_the_others(ranks):
    assert "all_reduce: rank 1 has ended its program" in ranks(2, "if rank == 0: dist.all_reduce(tg.ones(3))", code=1)
    assert ranks(2, "import os\nif rank == 1: os.kill(os.getpid(), 9)\ndist.all_reduce(tg.ones(3))", code=1)
    assert "recv from rank 1: rank 0 waited for 1 s" in ranks(2, """
        import time
        dist.destroy_process_group(); dist.init_process_group(timeout=1)
        if rank == 1: time.sleep(8)
        else: dist.recv(tg.ones(3), 1)
    """, code=1)


@pytest.mark.long
def test_other_operations_on_other_ranks_are_an_error(ranks):
    told = ranks(2, "dist.all_reduce(tg.ones(3 + rank))", code=1)
    assert "all_reduce(float32[3], sum) at <string>" in told
    assert "all_reduce(float32[4], sum) at <string>" in told
    assert "operation 1 of world" in told
