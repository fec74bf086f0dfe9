"""The 2-D heat equation by explicit steps (a 5-point stencil, cold edges): one step, and the adjoint of eight."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.base import Workload

RATE = 0.2


def step(u, pad):
    p = pad(u)
    return u + RATE * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4.0 * u)


def energy(u, steps, pad):
    for _ in range(steps):
        u = step(u, pad)
    return 0.5 * (u * u).sum()


class Heat(Workload):
    size: int

    def data(self, rng):
        return {"u": rng.standard_normal((self.size, self.size), dtype=np.float32)}


class HeatStep(Heat):
    name, size, target = "heat-step", 2048, 1.0
    title = "heat equation, 2048x2048: one explicit step"

    def reference(self, u):
        return (step(u.astype(np.float64), lambda u: np.pad(u, 1)),)

    def tracegrad(self, u):
        import tracegrad as tg
        import tracegrad.nn.functional as F

        f = tg.trace(lambda u: step(u, lambda u: F.pad(u, (1, 1, 1, 1))))
        return lambda: (f(u),)

    def torch(self, u):
        import torch.nn.functional as F

        return lambda: (step(u, lambda u: F.pad(u, (1, 1, 1, 1))),)

    def jax(self, u):
        import jax
        import jax.numpy as jnp

        f = jax.jit(lambda u: step(u, lambda u: jnp.pad(u, 1)))
        return lambda: (f(u),)


class HeatAdjoint(Heat):
    name, size, steps, target = "heat-adjoint", 512, 8, 1.0
    title = "heat equation, 512x512: gradient of the energy after 8 steps"

    def reference(self, u):
        u = u.astype(np.float64)
        for _ in range(2 * self.steps):               # a step is its own adjoint, and the energy's gradient is the field
            u = step(u, lambda u: np.pad(u, 1))
        return (u,)

    def tracegrad(self, u):
        import tracegrad as tg
        import tracegrad.nn.functional as F

        f = tg.trace(tg.grad(lambda u: energy(u, self.steps, lambda u: F.pad(u, (1, 1, 1, 1)))))
        return lambda: (f(u),)

    def torch(self, u):
        import torch
        import torch.nn.functional as F

        u.requires_grad_()
        return lambda: torch.autograd.grad(energy(u, self.steps, lambda u: F.pad(u, (1, 1, 1, 1))), u)

    def jax(self, u):
        import jax
        import jax.numpy as jnp

        f = jax.jit(jax.grad(lambda u: energy(u, self.steps, lambda u: jnp.pad(u, 1))))
        return lambda: (f(u),)
