"""Loops of small steps that end by a condition: as minimisers and root finders are (GradBench's particle and saddle)."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.derived import Derived

STEPS, ROWS = 20_000, 512


class WhileLoop(Derived):
    """The condition is read at every step; torch's loop would be Python's."""

    name = "while-loop"
    title = f"gradient descent in 4 dimensions until it has converged, some {STEPS:,} steps, float64"
    tolerance = 1e-9
    torch = torch_compile = None

    def data(self, rng):
        a = rng.standard_normal((4, 4))
        return {"a": np.eye(4) + 0.02 * (a + a.T), "b": rng.standard_normal(4)}

    def _functions(self):
        def goes_on(v):
            return ((v[1] * v[1]).sum() > 1e-20) & (v[2] < STEPS)

        def step(a, b):
            def of(v):
                x = v[0] - 0.001 * v[1]
                return x, a @ x - b, v[2] + 1
            return of

        return goes_on, step

    def function(self, t, F, a, b):
        goes_on, step = self._functions()
        return t.while_loop(goes_on, step(a, b), (b, a @ b - b, t.tensor(0)))[0]

    def jax_function(self, a, b):
        import jax

        goes_on, step = self._functions()
        return jax.lax.while_loop(goes_on, step(a, b), (b, a @ b - b, 0))[0]


class WhileLoopGradient(Derived):
    """In JAX a scan of masked steps, since its while_loop has no reverse."""

    name = "while-loop-gradient"
    title = f"damped Newton's method for 4 roots, a while_loop of some 460 of at most {ROWS} steps: value and gradient, float64"
    wrt = ("x",)
    tolerance = 1e-9
    torch = torch_compile = None

    def data(self, rng):
        return {"x": 1.0 + rng.random(4)}

    def _functions(self, exp, x):
        return lambda y: abs(exp(y) - x * x - 2).max() > 1e-11, lambda y: y - 0.05 * (exp(y) - x * x - 2) / exp(y)

    def function(self, t, F, x):
        goes_on, step = self._functions(t.exp, x)
        return t.while_loop(goes_on, step, x, max_iterations=ROWS).sum()

    def jax_function(self, x):
        import jax
        import jax.numpy as jnp

        goes_on, step = self._functions(jnp.exp, x)
        return jax.lax.scan(lambda y, _: (jnp.where(goes_on(y), step(y), y), None), x, None, length=ROWS)[0].sum()


class ScanUntil(Derived):
    """In JAX a scan of masked steps, since its while_loop has no reverse."""

    name = "scan-until"
    title = f"Newton's method for 8 roots, ended by their residuals after some 40 of at most {ROWS} steps: value and gradient, float64"
    wrt = ("x",)
    tolerance = 1e-9
    torch = torch_compile = None

    def data(self, rng):
        return {"x": 1.0 + rng.random(8)}

    def function(self, t, F, x):
        def step(y, _):
            return y - 0.5 * (y.exp() - x * x - 2) / y.exp(), None

        return t.scan(step, x, None, ROWS, until=lambda y: (y.exp() - x * x - 2).abs().amax() < 1e-11)[0].sum()

    def jax_function(self, x):
        import jax
        import jax.numpy as jnp

        def step(y, _):
            over = jnp.abs(jnp.exp(y) - x * x - 2).max() < 1e-11
            return jnp.where(over, y, y - 0.5 * (jnp.exp(y) - x * x - 2) / jnp.exp(y)), None

        return jax.lax.scan(step, x, None, length=ROWS)[0].sum()
