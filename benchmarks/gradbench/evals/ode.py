"""Runge-Kutta's method for a chain of equations, and the gradient of the last value."""

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def solve(x, steps):
    h, first = 2.0 / steps, tg.ones(1, dtype=x.dtype)

    def slope(y):
        return x * tg.cat([first, y[:-1]])

    def step(y, _):
        k1 = slope(y)
        k2 = slope(y + h / 2 * k1)
        k3 = slope(y + h / 2 * k2)
        k4 = slope(y + h * k3)
        return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return tg.scan(step, tg.zeros_like(x), tg.arange(steps))[0]


def prepare(given):
    return array(given["x"]), given["s"]


primal = timed(prepare)(tg.trace(solve))
gradient = timed(prepare)(tg.trace(tg.grad(lambda x, steps: solve(x, steps)[-1])))
