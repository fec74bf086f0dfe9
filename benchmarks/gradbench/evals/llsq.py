"""Least squares of a polynomial on the sign of its argument, and the gradient in its coefficients."""

import tracegrad as tg
from benchmarks.gradbench.runs import array, timed


def objective(x, t):
    value, _ = tg.scan(lambda value, c: (value * t + c, None), tg.zeros_like(t), x.flip(0))         # Horner's scheme
    return 0.5 * ((tg.sign(t) - value) ** 2).sum()


def prepare(given):
    n = given["n"]
    return array(given["x"]), array([-1 + i * 2 / (n - 1) for i in range(n)])


primal = timed(prepare)(tg.trace(objective))
gradient = timed(prepare)(tg.trace(tg.grad(objective)))
