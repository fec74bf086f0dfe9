"""Random training loops, step by step, as torch does them."""

from __future__ import annotations

import pytest

import tracegrad as tg
from tests.random_programs import random_loops
from tracegrad.config import config

torch = pytest.importorskip("torch", reason="torch, the reference of these comparisons, is not installed")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("start", range(1000, 1500, 25))
def test_every_iteration_is_torchs(start, eager, monkeypatch):
    monkeypatch.setattr(config, "eager", eager)
    for seed in range(start, start + (25 if eager else 2)):
        text = random_loops.loop(seed)
        wrong = random_loops.difference(random_loops.run(text, tg), random_loops.run(text, torch))
        assert not wrong, f"{seed}: {wrong}\n{text}"
