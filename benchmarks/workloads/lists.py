"""Arrays put together of arrays put together, as Jacobians by blocks are (GradBench's bundle adjustment)."""

from __future__ import annotations

from benchmarks.workloads.derived import Derived

BLOCKS = 30_000


class ListOfLists(Derived):
    name = "list-of-lists"
    title = "30,000 blocks of 2 x 11 beside 2 x 4, and 30,000 numbers behind them, in one list, float64"
    tolerance = 0.0

    def data(self, rng):
        shapes = {"left": (BLOCKS, 2, 11), "right": (BLOCKS, 2, 4), "last": (BLOCKS,)}
        return {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    def function(self, t, F, left, right, last):
        return t.cat([t.cat([left, right], -1).flatten(), last])

    def jax_function(self, left, right, last):
        import jax.numpy as jnp

        return jnp.concatenate([jnp.concatenate([left, right], -1).ravel(), last])
