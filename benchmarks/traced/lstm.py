"""An LSTM over 64 steps that predicts the next value of a wave; one step of Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH, STEPS, INPUTS, HIDDEN = 16, 64, 8, 64


def program(f: Any) -> Callable[[], float]:
    T, nn = f.T, f.T.nn
    T.manual_seed(0)
    cell, head = nn.LSTM(INPUTS, HIDDEN, batch_first=True), nn.Linear(HIDDEN, INPUTS)
    optimizer = T.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-3)

    @f.trace
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        states, _ = cell(x[:, :-1])
        loss = ((head(states) - x[:, 1:]) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    t = T.arange(STEPS + 1).float()
    x = T.sin(0.1 * t[None, :, None] + T.linspace(0.0, 3.0, BATCH)[:, None, None] + T.linspace(0.0, 1.0, INPUTS)[None, None, :])
    return lambda: float(step(x))
