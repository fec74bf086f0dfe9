"""Recurrent layers: one over 64 steps that predicts the next value of a wave, and an LSTM of 8 steps that classifies sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH, STEPS, INPUTS, HIDDEN = 16, 64, 8, 64


def program(f: Any, layer: str) -> Callable[[], float]:
    """One step of Adam; layer: "GRU" or "LSTM"."""
    T, nn = f.T, f.T.nn
    T.manual_seed(0)
    cell, head = getattr(nn, layer)(INPUTS, HIDDEN, batch_first=True), nn.Linear(HIDDEN, INPUTS)
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


def classifier(f: Any) -> Callable[[], float]:
    """One step of AdamW."""
    T, nn = f.T, f.T.nn
    T.manual_seed(0)
    batch, length, inputs, hidden, classes = 32, 8, 16, 64, 10
    cell, head = nn.LSTM(inputs, hidden, batch_first=True), nn.Linear(hidden, classes)
    optimizer = T.optim.AdamW([*cell.parameters(), *head.parameters()], lr=1e-3)

    @f.trace
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        states, _ = cell(x)
        loss = f.F.cross_entropy(head(states[:, -1]), y)
        loss.backward()
        optimizer.step()
        return loss

    x = T.randn(batch, length, inputs)
    y = T.arange(batch) % classes
    return lambda: float(step(x, y))
