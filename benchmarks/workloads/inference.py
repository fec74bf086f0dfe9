"""What statisticians compute: a Gaussian process' likelihood, Hamiltonian Monte Carlo, counts and sums of groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.derived import Derived, normal

POINTS, STEPS = 300, 20


class GaussianProcess(Derived):
    name, title = "gaussian-process", "Gaussian process, 300 points, float64: likelihood and its gradient"
    wrt = ("scales",)
    tolerance = 1e-9

    def data(self, rng):
        return {"x": rng.standard_normal((POINTS, 2)), "y": rng.standard_normal((POINTS, 1)), "scales": np.array([0.0, 0.0, -2.0])}

    def _likelihood(self, t: Any, solved: Any, x: Any, y: Any, scales: Any) -> Any:
        apart = x[:, None] - x
        likeness = t.exp(scales[0] - 0.5 * (apart * apart).sum(-1) * t.exp(scales[1])) + t.exp(scales[2]) * t.eye(POINTS, dtype=x.dtype)
        factor = t.linalg.cholesky(likeness)
        z = solved(factor, y)
        return 0.5 * (z * z).sum() + t.log(t.diagonal(factor)).sum()

    def function(self, t, F, x, y, scales):
        return self._likelihood(t, lambda a, b: t.linalg.solve_triangular(a, b, upper=False), x, y, scales)

    def jax_function(self, x, y, scales):
        import jax.numpy as jnp
        from jax.scipy.linalg import solve_triangular

        return self._likelihood(jnp, lambda a, b: solve_triangular(a, b, lower=True), x, y, scales)


class HamiltonianSteps(Derived):
    name, title = "hmc", "Hamiltonian Monte Carlo, logistic regression of 1000 x 20: 20 leapfrog steps"
    tolerance = 1e-4

    def data(self, rng):
        return {"x": normal(rng, 1000, 20), "y": np.sign(normal(rng, 1000)), "q": normal(rng, 20), "p": normal(rng, 20)}

    def _steps(self, grad: Any, log_sigmoid: Any, x: Any, y: Any, q: Any, p: Any) -> Any:
        force = grad(lambda q: 0.5 * (q * q).sum() - log_sigmoid(y * (x @ q)).sum())
        p = p - 0.005 * force(q)
        for _ in range(STEPS):
            q = q + 0.01 * p
            p = p - 0.01 * force(q)
        return q, p

    def function(self, t, F, x, y, q, p):
        return self._steps(t.func.grad, F.logsigmoid, x, y, q, p)

    def jax_function(self, x, y, q, p):
        import jax

        return self._steps(jax.grad, jax.nn.log_sigmoid, x, y, q, p)


class Histogram(Derived):
    name, title = "bincount", "counts of 256 values among a million"
    torch_compile = None

    def data(self, rng):
        return {"values": rng.integers(0, 256, 1 << 20)}

    def function(self, t, F, values):
        if t.__name__ == "torch":
            return t.bincount(values, minlength=256)
        return t.zeros(256, dtype=values.dtype).index_add(0, values, t.ones_like(values))        # in a trace no shape may depend on values

    def jax_function(self, values):
        import jax.numpy as jnp

        return jnp.bincount(values, length=256)


class GroupSums(Derived):
    name, title = "group-sums", "sums of 1000 groups of a million numbers in any order"
    tolerance = 1e-4

    def data(self, rng):
        return {"values": normal(rng, 1 << 20), "groups": rng.integers(0, 1000, 1 << 20)}

    def function(self, t, F, values, groups):
        return t.zeros(1000, dtype=values.dtype).index_add(0, groups, values)

    def jax_function(self, values, groups):
        import jax.numpy as jnp

        return jnp.zeros(1000, values.dtype).at[groups].add(values)
