"""The 2-D heat equation by explicit steps (a 5-point stencil): a step, and adjoints with cold edges, without any, of small fields."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.derived import Derived, normal

RATE = 0.2


def step(u, pad):
    p = pad(u)
    return u + RATE * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4.0 * u)


class HeatStep(Derived):
    name, size = "heat-step", 2048
    title = "heat equation, 2048x2048: one explicit step"

    def data(self, rng):
        return {"u": normal(rng, self.size, self.size)}

    def function(self, t, F, u):
        return step(u, lambda u: F.pad(u, (1, 1, 1, 1)))

    def jax_function(self, u):
        import jax.numpy as jnp

        return step(u, lambda u: jnp.pad(u, 1))

    def pytensor_function(self, pt, u):
        return step(u, lambda u: pt.pad(u, [(1, 1), (1, 1)]))

    def reference(self, u):
        return (step(u.astype(np.float64), lambda u: np.pad(u, 1)),)


class HeatAdjoint(HeatStep):
    wrt, value_wanted = ("u",), False
    name, size, steps = "heat-adjoint", 512, 8
    title = "heat equation, 512x512: gradient of the energy after 8 steps"

    def energy(self, u, one_step):
        for _ in range(self.steps):
            u = one_step(u)
        return 0.5 * (u * u).sum()

    def function(self, t, F, u):
        return self.energy(u, lambda u: step(u, lambda u: F.pad(u, (1, 1, 1, 1))))

    def jax_function(self, u):
        import jax.numpy as jnp

        return self.energy(u, lambda u: step(u, lambda u: jnp.pad(u, 1)))

    def pytensor_function(self, pt, u):
        return self.energy(u, lambda u: step(u, lambda u: pt.pad(u, [(1, 1), (1, 1)])))

    def program(self, grad, value_and_grad, f, names):
        gradient = grad(f)
        return lambda u: (gradient(u),)

    def torch(self, u):
        import torch
        from torch.nn import functional as F

        u.requires_grad_()
        return lambda: torch.autograd.grad(self.function(torch, F, u), u)

    def reference(self, u):
        u = u.astype(np.float64)
        for _ in range(2 * self.steps):               # a step is its own adjoint, and the energy's gradient is the field
            u = step(u, lambda u: np.pad(u, 1))
        return (u,)


def periodic(u, roll):
    return u + RATE * (roll(u, 1, 0) + roll(u, -1, 0) + roll(u, 1, 1) + roll(u, -1, 1) - 4.0 * u)


class PeriodicHeat(HeatAdjoint):
    name, steps = "heat-periodic", 50
    pytensor_function = None                # it takes minutes to compile the fifty steps
    title = "periodic heat equation, 512x512: gradient of the energy after 50 steps"

    def function(self, t, F, u):
        return self.energy(u, lambda u: periodic(u, t.roll))

    def jax_function(self, u):
        import jax.numpy as jnp

        return self.energy(u, lambda u: periodic(u, jnp.roll))

    def reference(self, u):
        u = u.astype(np.float64)
        for _ in range(2 * self.steps):
            u = periodic(u, np.roll)
        return (u,)


class SmallFields(HeatAdjoint):
    """Rows of two or four vectors, which are mostly edges."""

    name, size, fields = "heat-32", 32, 200
    pytensor_function = None
    title = "periodic heat equation, 200 fields of 32x32: gradient of the energy after 8 steps"

    def data(self, rng):
        return {"u": normal(rng, self.fields, self.size, self.size)}

    def _step(self, u, roll):
        return u + RATE * (roll(u, 1, 1) + roll(u, -1, 1) + roll(u, 1, 2) + roll(u, -1, 2) - 4.0 * u)

    def function(self, t, F, u):
        return self.energy(u, lambda u: self._step(u, t.roll))

    def jax_function(self, u):
        import jax.numpy as jnp

        return self.energy(u, lambda u: self._step(u, jnp.roll))

    def reference(self, u):
        u = u.astype(np.float64)
        for _ in range(2 * self.steps):
            u = self._step(u, np.roll)
        return (u,)
