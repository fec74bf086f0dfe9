"""Forces between particles, and stencils in one and three dimensions."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.derived import Derived, normal


class LennardJones(Derived):
    name = "lennard-jones"
    title = "Lennard-Jones, 2000 particles: energy and forces"
    wrt = ("x",)
    tolerance = 1e-3
    count = 2000

    def data(self, rng):
        grid = np.stack(np.meshgrid(*[np.arange(13)] * 3, indexing="ij"), -1).reshape(-1, 3)[: self.count] * 1.2
        return {"x": (grid + 0.05 * rng.standard_normal(grid.shape)).astype(np.float32), "same": np.eye(self.count, dtype=np.float32)}

    def _energy(self, x, same):
        apart = x[:, None, :] - x[None, :, :]
        inverse = 1.0 / ((apart * apart).sum(-1) + same)
        sixth = inverse * inverse * inverse
        return 2.0 * ((sixth * sixth - sixth) * (1.0 - same)).sum()

    def function(self, t, F, x, same):
        return self._energy(x, same)

    def jax_function(self, x, same):
        return self._energy(x, same)

    def tinygrad_function(self, x, same):
        return self._energy(x, same)

    def pytensor_function(self, pt, x, same):
        return self._energy(x, same)

    def drjit(self, x, same):
        """The derivative by hand, as forces are: backward through a loop of gathers would be a scatter a pair."""
        import drjit as dr
        from drjit.llvm.ad import Array3f, Float, UInt32

        n = self.count

        def run():
            i = dr.arange(UInt32, n)
            own = dr.gather(Array3f, x, i)

            def turn(energy, force, j):
                apart = own - dr.gather(Array3f, x, j)
                inverse = dr.select(j == i, 0.0, dr.rcp(dr.squared_norm(apart)))
                sixth = inverse * inverse * inverse
                energy = energy + 2.0 * (sixth * sixth - sixth)
                return energy, force + apart * (inverse * (24.0 * sixth - 48.0 * sixth * sixth)), j + 1

            start = dr.zeros(Float, n), dr.zeros(Array3f, n), dr.zeros(UInt32, n)
            energy, force, _ = dr.while_loop(start, lambda energy, force, j: j < n, turn)
            return dr.sum(energy), dr.ravel(force)

        return run


class Stencil(Derived):
    """The discrete Laplacian, zero outside, in `dimensions` dimensions, and the gradient of its energy."""

    wrt = ("u",)
    tolerance = 1e-4

    def __init__(self, size: int, dimensions: int) -> None:
        self.shape = (size,) * dimensions
        self.name = f"stencil-{dimensions}d"
        if dimensions == 3:
            self.pytensor_function = None                    # it takes minutes to compile three dimensions of padding
        self.title = f"{dimensions}-d stencil, {'x'.join(map(str, self.shape))}: value and gradient"

    def data(self, rng):
        return {"u": normal(rng, *self.shape)}

    def _energy(self, u, padded):
        inside = slice(1, -1)
        total = -2.0 * len(self.shape) * u
        for axis in range(len(self.shape)):
            for side in (slice(2, None), slice(None, -2)):
                total = total + padded[tuple(side if k == axis else inside for k in range(len(self.shape)))]
        return (total * total).sum()

    def function(self, t, F, u):
        return self._energy(u, F.pad(u, (1, 1) * len(self.shape)))

    def jax_function(self, u):
        import jax.numpy as jnp

        return self._energy(u, jnp.pad(u, 1))

    def pytensor_function(self, pt, u):
        return self._energy(u, pt.pad(u, [(1, 1)] * len(self.shape)))


class Trajectories(Derived):
    """Pendulums by symplectic steps in a Python loop, their states stacked, and how far from what was seen: with its gradient."""

    name = "trajectories"
    title = "1000 pendulums, 60 steps stacked: misfit and gradient, float64"
    wrt = ("angle", "speed")
    tolerance = 1e-9
    steps = 60

    def data(self, rng):
        return {"angle": normal(rng, 1000, dtype=np.float64), "speed": normal(rng, 1000, dtype=np.float64),
                "seen": normal(rng, 1000, self.steps, dtype=np.float64)}

    def _misfit(self, m, stack, angle, speed, seen):
        angles = []
        for _ in range(self.steps):
            speed = speed - 0.05 * m.sin(angle)
            angle = angle + 0.05 * speed
            angles.append(angle)
        return ((stack(angles, 1) - seen) ** 2).sum()

    def function(self, t, F, angle, speed, seen):
        return self._misfit(t, t.stack, angle, speed, seen)

    def jax_function(self, angle, speed, seen):
        import jax.numpy as jnp

        return self._misfit(jnp, jnp.stack, angle, speed, seen)
