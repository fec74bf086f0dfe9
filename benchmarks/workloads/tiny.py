"""Ten operations on ten elements, value and gradient: what a call costs when there is nothing to compute."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.derived import Derived


def ten_operations(x, sin, exp):
    a = sin(x) * 2.0
    b = exp(a - 1.0) + x
    return ((b * b + 1.0) * a / 3.0).sum()


class Tiny(Derived):
    name = "tiny"
    title = "10-op function of 10 elements: value and gradient, per call"
    burst = 100
    wrt = ("x",)

    def data(self, rng):
        return {"x": rng.standard_normal(10, dtype=np.float32)}

    def function(self, t, F, x):
        return ten_operations(x, t.sin, t.exp)

    def program(self, grad, value_and_grad, f, names):
        return value_and_grad(f)

    def jax_function(self, x):
        import jax.numpy as jnp

        return ten_operations(x, jnp.sin, jnp.exp)

    def pytensor_function(self, pt, x):
        return ten_operations(x, pt.sin, pt.exp)

    def tinygrad_function(self, x):
        return ten_operations(x, type(x).sin, type(x).exp)

    def reference(self, x):
        x = x.astype(np.float64)
        a, da = np.sin(x) * 2, np.cos(x) * 2
        b, db = np.exp(a - 1) + x, np.exp(a - 1) * da + 1
        return ((b * b + 1) * a / 3).sum(), (2 * b * db * a + (b * b + 1) * da) / 3
