"""What clusters and mixtures compute (GradBench's k-means and Gaussian mixture): distances to the nearest centre, products in batches."""

from __future__ import annotations

from benchmarks.workloads.derived import Derived

POINTS, CENTRES = 10_000, 100


class NearestCentre(Derived):
    wrt = ("centres",)
    tolerance = 1e-10

    def __init__(self, coordinates: int) -> None:
        self.coordinates, self.name = coordinates, f"kmeans-{coordinates}"
        self.title = f"k-means, 10,000 points of {coordinates} coordinates, 100 centres, float64: value and gradient"

    def data(self, rng):
        return {"centres": rng.standard_normal((CENTRES, self.coordinates)), "points": rng.standard_normal((POINTS, self.coordinates))}

    def function(self, t, F, centres, points):
        return ((points[:, None] - centres) ** 2).sum(-1).amin(1).sum()

    def jax_function(self, centres, points):
        return ((points[:, None] - centres) ** 2).sum(-1).min(1).sum()


class MixtureProduct(Derived):
    name = "einsum-middle"
    title = "einsum kij,nkj->nki, 200 matrices of 20 x 20 by 1000 x 200 vectors, float64 (a mixture model's)"
    tolerance = 1e-10

    def data(self, rng):
        return {"matrices": rng.standard_normal((200, 20, 20)), "points": rng.standard_normal((1000, 200, 20))}

    def function(self, t, F, matrices, points):
        return t.einsum("kij,nkj->nki", matrices, points)

    def jax_function(self, matrices, points):
        import jax.numpy as jnp

        return jnp.einsum("kij,nkj->nki", matrices, points)
