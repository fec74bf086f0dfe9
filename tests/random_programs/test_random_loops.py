"""Random training loops, step by step: as users have them (numpy, recalled calls and backwards), and by the interpreter."""

from __future__ import annotations

import tracegrad as tg
from tests.helpers.marks import one_of
from tests.random_programs import random_loops
from tracegrad.config import config


@one_of(3, "seeds", [range(k, k + 10) for k in range(0, 60, 10)], ids=str)
def test_every_iteration_is_what_the_interpreter_finds(seeds, monkeypatch):
    for seed in seeds:
        text = random_loops.loop(seed)
        monkeypatch.setattr(config, "eager", True)
        found = random_loops.run(text, tg)
        monkeypatch.setattr(config, "eager", False)
        before = tg.zeros(1).device
        tg.set_device("numpy")
        try:
            expected = random_loops.run(text, tg)
        finally:
            tg.set_device(before)
        wrong = random_loops.difference(found, expected)
        assert not wrong, f"{seed}: {wrong}\n{text}"
