"""The linearised-momentum shallow-water equations on a torus: height and two velocities, forward-backward steps in a Python loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SIZE, STEPS = 96, 100
GRAVITY, CORIOLIS, DRAG, STEP = 1.0, 0.05, 0.01, 0.1


def program(f: Any) -> Callable[[], float]:
    T = f.T

    def difference(u: Any, axis: int) -> Any:
        return 0.5 * (T.roll(u, -1, axis) - T.roll(u, 1, axis))

    def step(h: Any, u: Any, v: Any) -> Any:
        u, v = (u + STEP * (CORIOLIS * v - GRAVITY * difference(h, 1) - DRAG * u - u * difference(u, 1) - v * difference(u, 0)),
                v + STEP * (-CORIOLIS * u - GRAVITY * difference(h, 0) - DRAG * v - u * difference(v, 1) - v * difference(v, 0)))
        h = h - STEP * (difference((1.0 + h) * u, 1) + difference((1.0 + h) * v, 0))
        return h, u, v

    @f.trace
    def loss_and_gradient(start: Any, seen: Any) -> Any:
        def loss(start: Any) -> Any:
            h, u, v = start, T.zeros_like(start), T.zeros_like(start)
            for _ in range(STEPS):
                h, u, v = step(h, u, v)
            return ((h - seen) ** 2).mean()

        return f.value_and_grad(loss)(start)

    x = T.linspace(-1.0, 1.0, SIZE, dtype=T.float64)
    start = 0.1 * T.exp(-20.0 * (x[:, None] ** 2 + x[None, :] ** 2))
    seen = 0.1 * T.exp(-20.0 * ((x[:, None] - 0.2) ** 2 + x[None, :] ** 2))

    def call() -> float:
        value, gradient = loss_and_gradient(start, seen)
        return float(value) + float(abs(gradient).sum())

    return call
