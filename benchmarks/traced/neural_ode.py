"""A neural ODE: dy/dt = MLP(y), by 40 steps of Runge-Kutta 4 in a Python loop; one step of Adam on all weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BATCH, WIDTH, HIDDEN, STEPS = 64, 2, 50, 40


def program(f: Any) -> Callable[[], float]:
    T, nn = f.T, f.T.nn
    T.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WIDTH))
    optimizer = T.optim.Adam(model.parameters(), lr=1e-3)
    h = 1.0 / STEPS

    @f.trace
    def step(y: Any, seen: Any) -> Any:
        optimizer.zero_grad()
        for _ in range(STEPS):
            k1 = model(y)
            k2 = model(y + 0.5 * h * k1)
            k3 = model(y + 0.5 * h * k2)
            k4 = model(y + h * k3)
            y = y + (h / 6.0) * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        loss = ((y - seen) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    t = T.linspace(0.0, 6.0, BATCH)
    y = T.stack([T.cos(t), T.sin(t)], 1)
    seen = T.stack([T.cos(t + 1.0), T.sin(t + 1.0)], 1)
    return lambda: float(step(y, seen))
