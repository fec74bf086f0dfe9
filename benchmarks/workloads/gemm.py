"""A product of two 1024 x 1024 matrices, either operand transposed."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.base import Workload

N = 1024


class Gemm(Workload):
    target = 1.2

    def __init__(self, transpose_a: bool, transpose_b: bool) -> None:
        self.transpose_a, self.transpose_b = transpose_a, transpose_b
        self.name = f"gemm-{'t' if transpose_a else 'n'}{'t' if transpose_b else 'n'}"
        self.title = f"GEMM 1024: {'Aᵀ' if transpose_a else 'A'}{'Bᵀ' if transpose_b else 'B'}"

    def data(self, rng):
        return {"a": rng.standard_normal((N, N), dtype=np.float32), "b": rng.standard_normal((N, N), dtype=np.float32)}

    def product(self, a, b):
        return (a.T if self.transpose_a else a) @ (b.T if self.transpose_b else b)

    def reference(self, a, b):
        return (self.product(a.astype(np.float64), b.astype(np.float64)),)

    def tracegrad(self, a, b):
        import tracegrad as tg

        f = tg.trace(self.product)
        return lambda: (f(a, b),)

    def torch(self, a, b):
        return lambda: (self.product(a, b),)

    def jax(self, a, b):
        import jax

        f = jax.jit(self.product)
        return lambda: (f(a, b),)
