"""The sum of squared distances to the nearest of some centres, and its gradient: GradBench's k-means."""

from __future__ import annotations

from benchmarks.workloads.derived import Derived

POINTS, CENTRES, COORDINATES = 10_000, 100, 16


class NearestCentre(Derived):
    name = "kmeans-16"
    title = "k-means, 10,000 points of 16 coordinates, 100 centres, float64: value and gradient"
    wrt = ("centres",)
    tolerance = 1e-10

    def data(self, rng):
        return {"centres": rng.standard_normal((CENTRES, COORDINATES)), "points": rng.standard_normal((POINTS, COORDINATES))}

    def function(self, t, F, centres, points):
        return ((points[:, None] - centres) ** 2).sum(-1).amin(1).sum()

    def jax_function(self, centres, points):
        return ((points[:, None] - centres) ** 2).sum(-1).min(1).sum()
