"""An LSTM of 8 steps that classifies sequences; one step of AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH, STEPS, INPUTS, HIDDEN, CLASSES = 32, 8, 16, 64, 10


def program(f: Any) -> Callable[[], float]:
    T, nn = f.T, f.T.nn
    T.manual_seed(0)
    cell, head = nn.LSTM(INPUTS, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)
    optimizer = T.optim.AdamW([*cell.parameters(), *head.parameters()], lr=1e-3)

    @f.trace
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        states, _ = cell(x)
        loss = f.F.cross_entropy(head(states[:, -1]), y)
        loss.backward()
        optimizer.step()
        return loss

    x = T.randn(BATCH, STEPS, INPUTS)
    y = T.arange(BATCH) % CLASSES
    return lambda: float(step(x, y))
