"""Ten operations on ten elements, value and gradient: what a call costs when there is nothing to compute."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.base import Workload


def ten_operations(x, sin, exp):
    a = sin(x) * 2.0
    b = exp(a - 1.0) + x
    return ((b * b + 1.0) * a / 3.0).sum()


class Tiny(Workload):
    name = "tiny"
    title = "10-op function of 10 elements: value and gradient, per call"
    target = 1.5
    burst = 100

    def data(self, rng):
        return {"x": rng.standard_normal(10, dtype=np.float32)}

    def reference(self, x):
        x = x.astype(np.float64)
        a, da = np.sin(x) * 2, np.cos(x) * 2
        b, db = np.exp(a - 1) + x, np.exp(a - 1) * da + 1
        return ((b * b + 1) * a / 3).sum(), (2 * b * db * a + (b * b + 1) * da) / 3

    def tracegrad(self, x):
        import tracegrad as tg

        f = tg.trace(tg.value_and_grad(lambda x: ten_operations(x, tg.sin, tg.exp)))
        return lambda: f(x)

    def torch(self, x):
        import torch

        x.requires_grad_()

        def run():
            value = ten_operations(x, torch.sin, torch.exp)
            return value, *torch.autograd.grad(value, x)

        return run

    def jax(self, x):
        import jax
        import jax.numpy as jnp

        f = jax.jit(jax.value_and_grad(lambda x: ten_operations(x, jnp.sin, jnp.exp)))
        return lambda: f(x)
