"""An ordinary differential equation whose parameters are fitted: Runge and Kutta's method in float64 on two numbers, `autograd.grad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STEPS, H = 30, 0.05


def make(f: Any) -> Callable[[], float]:
    """One step of gradient descent; the loss."""
    T = f.T
    T.manual_seed(0)
    seen = T.rand(STEPS + 1, 2, dtype=T.float64) * 8.0 + 1.0
    p = T.tensor([1.1, 0.4, 0.1, 0.4], dtype=T.float64)

    def slope(z: Any, p: Any) -> Any:
        prey, predators = z[0], z[1]
        return T.stack([p[0] * prey - p[1] * prey * predators, p[2] * prey * predators - p[3] * predators])

    def step() -> float:
        nonlocal p
        p = p.detach().requires_grad_()
        z = T.tensor([10.0, 5.0], dtype=T.float64)
        path = [z]
        for _ in range(STEPS):
            k1 = slope(z, p)
            k2 = slope(z + H / 2 * k1, p)
            k3 = slope(z + H / 2 * k2, p)
            k4 = slope(z + H * k3, p)
            z = z + H / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(z)
        loss = ((T.stack(path) - seen) ** 2).mean()
        gradient, = T.autograd.grad(loss, p)
        with T.no_grad():
            p = p - 1e-5 * gradient
        return float(loss.detach())

    return step
