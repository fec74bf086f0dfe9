"""Optimal control of a pendulum: the gradient of the cost of a swing-up with respect to 100 torques; the state is two numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STEPS = 100


def program(f: Any) -> Callable[[], float]:
    T = f.T

    @f.trace
    def cost_and_gradient(torques: Any) -> Any:
        def cost(torques: Any) -> Any:
            angle, speed = T.zeros((), dtype=T.float64), T.zeros((), dtype=T.float64)
            total = 0.0
            for i in range(STEPS):
                speed = speed + 0.05 * (torques[i] - 9.81 * T.sin(angle) - 0.1 * speed)
                angle = angle + 0.05 * speed
                total = total + 0.001 * torques[i] ** 2
            return total + (T.cos(angle) + 1.0) ** 2 + 0.1 * speed**2

        return f.value_and_grad(cost)(torques)

    torques = 0.5 * T.cos(T.linspace(0.0, 12.0, STEPS, dtype=T.float64))

    def call() -> float:
        value, gradient = cost_and_gradient(torques)
        return float(value) + float(abs(gradient).sum())

    return call
