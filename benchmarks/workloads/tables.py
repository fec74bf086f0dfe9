"""The mean of bags of rows of a table, and its gradient: a scatter of 131,072 rows into 50,000."""

from __future__ import annotations

from benchmarks.workloads.derived import Derived, normal

ROWS, COLUMNS, BAGS, EACH = 50_000, 64, 8192, 16


class EmbeddingBag(Derived):
    name = "embedding-bag"
    title = "embedding 50k x 64, means of 8192 bags of 16: value and gradient"
    wrt = ("table",)
    tolerance = 1e-4

    def data(self, rng):
        return {"table": normal(rng, ROWS, COLUMNS), "index": rng.integers(0, ROWS, (BAGS, EACH)), "factor": normal(rng, BAGS, COLUMNS)}

    def function(self, t, F, table, index, factor):
        return (F.embedding_bag(index, table, mode="mean") * factor).sum()

    def jax_function(self, table, index, factor):
        return (table[index].mean(1) * factor).sum()

    def pytensor_function(self, pt, table, index, factor):
        return (table[index].mean(1) * factor).sum()
