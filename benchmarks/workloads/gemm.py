"""A product of two 1024 x 1024 matrices, either operand transposed, and other products of two matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.derived import Derived, normal


class Product(Derived):
    """A product of matrices (several at a time, if there are three sizes), either operand transposed."""

    tolerance = 1e-4

    def __init__(self, name: str, title: str, a: tuple[int, ...], b: tuple[int, ...], dtype: Any = np.float32,
                 transposed: str = "nn") -> None:
        self.name, self.title, self.shapes, self.dtype, self.transposed = name, title, (a, b), dtype, transposed

    def data(self, rng):
        return {name: normal(rng, *shape, dtype=self.dtype) for name, shape in zip("ab", self.shapes, strict=True)}

    def product(self, a, b):
        return (a.T if self.transposed[0] == "t" else a) @ (b.T if self.transposed[1] == "t" else b)

    def function(self, t, F, a, b):
        return self.product(a, b)

    def jax_function(self, a, b):
        return self.product(a, b)

    def pytensor_function(self, pt, a, b):
        return self.function(pt, None, a, b)

    def tinygrad_function(self, a, b):
        return self.product(a, b)

    def reference(self, a, b):
        return (self.product(a.astype(np.float64), b.astype(np.float64)),)


class Gemm(Product):
    tolerance = 1e-5

    def __init__(self, transpose_a: bool, transpose_b: bool) -> None:
        kind = f"{'t' if transpose_a else 'n'}{'t' if transpose_b else 'n'}"
        title = f"GEMM 1024: {'Aᵀ' if transpose_a else 'A'}{'Bᵀ' if transpose_b else 'B'}"
        super().__init__(f"gemm-{kind}", title, (1024, 1024), (1024, 1024), transposed=kind)


class SkinnyGradient(Product):
    """The product's mean square and both gradients: tall times narrow, and what comes back."""

    wrt = ("a", "b")
    tolerance = 1e-3

    def function(self, t, F, a, b):
        return ((a @ b) ** 2).mean()

    def jax_function(self, a, b):
        return ((a @ b) ** 2).mean()

    def reference(self, a, b):
        a, b = a.astype(np.float64), b.astype(np.float64)
        c = a @ b
        g = 2.0 * c / c.size
        return (c * c).mean(), g @ b.T, a.T @ g


LARGE_PRODUCTS = [
    *(Gemm(transpose_a, transpose_b) for transpose_a in (False, True) for transpose_b in (False, True)),
    Product("gemm-2048", "GEMM 2048", (2048, 2048), (2048, 2048)),
]
PRODUCTS = [
    Product("gemm-1024-f64", "GEMM 1024, float64", (1024, 1024), (1024, 1024), np.float64),
    Product("gemm-2048-f64", "GEMM 2048, float64", (2048, 2048), (2048, 2048), np.float64),
    Product("batched", "64 products of 128x128", (64, 128, 128), (64, 128, 128)),
    Product("weight-gradient", "32768x64 transposed, times 32768x192: a weight's gradient", (32768, 64), (32768, 192), transposed="tn"),
    Product("weight-gradient-f64", "32768x32 transposed, times 32768x192, float64", (32768, 32), (32768, 192), np.float64, "tn"),
    SkinnyGradient("skinny", "16384x256 times 256x8: mean square and gradients", (16384, 256), (256, 8)),
]
