"""The 2-D wave equation u_tt = c^2 (u_xx + u_yy) on a torus, by leapfrog steps in a Python loop; which initial state gave this end?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SIZE, STEPS = 128, 200


def laplacian(T: Any, u: Any) -> Any:
    return T.roll(u, 1, 0) + T.roll(u, -1, 0) + T.roll(u, 1, 1) + T.roll(u, -1, 1) - 4.0 * u


def program(f: Any) -> Callable[[], float]:
    T = f.T

    @f.trace
    def loss_and_gradient(start: Any, seen: Any) -> Any:
        def loss(start: Any) -> Any:
            before, now = start, start
            for _ in range(STEPS):
                before, now = now, 2.0 * now - before + 0.1 * laplacian(T, now)
            return ((now - seen) ** 2).mean()

        return f.value_and_grad(loss)(start)

    x = T.linspace(-1.0, 1.0, SIZE, dtype=T.float64)
    start = T.exp(-20.0 * (x[:, None] ** 2 + x[None, :] ** 2))
    seen = T.exp(-20.0 * ((x[:, None] - 0.2) ** 2 + x[None, :] ** 2))

    def call() -> float:
        value, gradient = loss_and_gradient(start, seen)
        return float(value) + float(gradient.abs().sum())

    return call
