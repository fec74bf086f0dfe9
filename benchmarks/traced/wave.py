"""The 2-D wave equation u_tt = c^2 (u_xx + u_yy), by leapfrog steps in a Python loop; which initial state gave this end?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SIZE, STEPS = 128, 200


def program(f: Any, padded: bool = False) -> Callable[[], float]:
    """On a torus; padded: between fixed walls, the neighbours by a pad and slices."""
    T = f.T

    def laplacian(u: Any) -> Any:
        if padded:
            p = f.F.pad(u, (1, 1, 1, 1))
            return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4.0 * u
        return T.roll(u, 1, 0) + T.roll(u, -1, 0) + T.roll(u, 1, 1) + T.roll(u, -1, 1) - 4.0 * u

    @f.trace
    def loss_and_gradient(start: Any, seen: Any) -> Any:
        def loss(start: Any) -> Any:
            before, now = start, start
            for _ in range(STEPS):
                before, now = now, 2.0 * now - before + 0.1 * laplacian(now)
            return ((now - seen) ** 2).mean()

        return f.value_and_grad(loss)(start)

    x = T.linspace(-1.0, 1.0, SIZE, dtype=T.float64)
    start = T.exp(-20.0 * (x[:, None] ** 2 + x[None, :] ** 2))
    seen = T.exp(-20.0 * ((x[:, None] - 0.2) ** 2 + x[None, :] ** 2))

    def call() -> float:
        value, gradient = loss_and_gradient(start, seen)
        return float(value) + float(abs(gradient).sum())

    return call
