"""Twelve elementwise operations on 16M floats: the value, and the gradient of its sum."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.base import Workload

SIZE = 1 << 24


def chain(x, exp, tanh, relu):
    a = x * 0.5 + 1.0
    b = exp(-(a * a))
    c = b / (b + 1.0)
    d = relu(tanh(c - x))
    return d * a + b


class Chain(Workload):
    target = 0.6

    def data(self, rng):
        return {"x": rng.standard_normal(SIZE, dtype=np.float32)}


class ChainValue(Chain):
    name = "chain-value"
    title = "12-op elementwise chain, 16M floats: value"

    def reference(self, x):
        x = x.astype(np.float64)
        return (chain(x, np.exp, np.tanh, lambda v: np.maximum(v, 0)),)

    def tracegrad(self, x):
        import tracegrad as tg

        f = tg.trace(lambda x: chain(x, tg.exp, tg.tanh, tg.relu))
        return lambda: (f(x),)

    def torch(self, x):
        import torch

        return lambda: (chain(x, torch.exp, torch.tanh, torch.relu),)

    def jax(self, x):
        import jax
        import jax.numpy as jnp

        f = jax.jit(lambda x: chain(x, jnp.exp, jnp.tanh, jax.nn.relu))
        return lambda: (f(x),)


class ChainGradient(Chain):
    name = "chain-gradient"
    title = "12-op elementwise chain, 16M floats: gradient of the sum"

    def reference(self, x):
        x = x.astype(np.float64)
        a = x * 0.5 + 1.0
        b = np.exp(-(a * a))
        db = b * -2 * a * 0.5
        t = np.tanh(b / (b + 1.0) - x)
        dt = (1 - t * t) * (db / (b + 1.0) ** 2 - 1)
        return (np.where(t > 0, dt, 0) * a + np.maximum(t, 0) * 0.5 + db,)

    def tracegrad(self, x):
        import tracegrad as tg

        f = tg.trace(tg.grad(lambda x: chain(x, tg.exp, tg.tanh, tg.relu).sum()))
        return lambda: (f(x),)

    def torch(self, x):
        import torch

        x.requires_grad_()

        def run():
            return torch.autograd.grad(chain(x, torch.exp, torch.tanh, torch.relu).sum(), x)

        return run

    def jax(self, x):
        import jax
        import jax.numpy as jnp

        f = jax.jit(jax.grad(lambda x: chain(x, jnp.exp, jnp.tanh, jax.nn.relu).sum()))
        return lambda: (f(x),)
