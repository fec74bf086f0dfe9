"""Twelve elementwise operations on 16M floats: the value, and the gradient of its sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.derived import Derived, normal

SIZE = 1 << 24


def chain(x, exp, tanh, relu):
    a = x * 0.5 + 1.0
    b = exp(-(a * a))
    c = b / (b + 1.0)
    d = relu(tanh(c - x))
    return d * a + b


def relu(v):
    """Dr.Jit's. Its maximum ends the process where LLVM is old and the CPU has AVX-512."""
    import drjit as dr

    return dr.select(v > 0, v, 0)


class ChainValue(Derived):

    def __init__(self, dtype: Any = np.float32) -> None:
        self.dtype, wide = np.dtype(dtype), np.dtype(dtype) == np.float64
        self.name = "chain-value-f64" if wide else "chain-value"
        self.title = f"12-op elementwise chain, 16M {'doubles' if wide else 'floats'}: value"

    def data(self, rng):
        return {"x": normal(rng, SIZE, dtype=self.dtype)}

    def function(self, t, F, x):
        return chain(x, t.exp, t.tanh, t.relu)

    def jax_function(self, x):
        import jax
        import jax.numpy as jnp

        return chain(x, jnp.exp, jnp.tanh, jax.nn.relu)

    def pytensor_function(self, pt, x):
        return chain(x, pt.exp, pt.tanh, lambda v: pt.maximum(v, 0))

    def tinygrad_function(self, x):
        return chain(x, type(x).exp, type(x).tanh, type(x).relu)

    def reference(self, x):
        return (chain(x.astype(np.float64), np.exp, np.tanh, lambda v: np.maximum(v, 0)),)

    def drjit(self, x):
        import drjit as dr

        return lambda: (chain(x, dr.exp, dr.tanh, relu),)


class ChainGradient(ChainValue):
    wrt, value_wanted = ("x",), False

    def __init__(self) -> None:
        super().__init__()
        self.name, self.title = "chain-gradient", "12-op elementwise chain, 16M floats: gradient of the sum"

    def program(self, grad, value_and_grad, f, names):
        gradient = grad(lambda x: f(x).sum())
        return lambda x: (gradient(x),)

    def torch(self, x):
        import torch
        from torch.nn import functional as F

        x.requires_grad_()
        return lambda: torch.autograd.grad(self.function(torch, F, x).sum(), x)

    def pytensor_function(self, pt, x):
        return super().pytensor_function(pt, x).sum()

    def tinygrad_function(self, x):
        return super().tinygrad_function(x).sum()

    def drjit(self, x):
        import drjit as dr

        def run():
            given = type(x)(x)
            dr.enable_grad(given)
            dr.backward(chain(given, dr.exp, dr.tanh, relu))
            return (dr.grad(given),)

        return run

    def reference(self, x):
        x = x.astype(np.float64)
        a = x * 0.5 + 1.0
        b = np.exp(-(a * a))
        db = b * -2 * a * 0.5
        t = np.tanh(b / (b + 1.0) - x)
        dt = (1 - t * t) * (db / (b + 1.0) ** 2 - 1)
        return (np.where(t > 0, dt, 0) * a + np.maximum(t, 0) * 0.5 + db,)
