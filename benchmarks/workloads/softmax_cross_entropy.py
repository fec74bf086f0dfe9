"""Softmax cross-entropy of 8192 rows of 4096 classes, and of many rows of ten: the mean loss, and its gradient by the logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.derived import Derived, normal


class CrossEntropyValue(Derived):
    name = "softmax-xent-value"
    title = "softmax cross-entropy 8192x4096: value"
    dtype = np.float32
    rows, classes = 8192, 4096

    def data(self, rng):
        labels = rng.integers(0, self.classes, self.rows)
        return {"logits": normal(rng, self.rows, self.classes, scale=3.0, dtype=self.dtype), "labels": labels}

    def function(self, t, F, logits, labels):
        return F.cross_entropy(logits, labels)

    def jax_function(self, logits, labels):
        import jax

        picked = jax.numpy.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        return (jax.nn.logsumexp(logits, axis=1) - picked).mean()

    def pytensor_function(self, pt, logits, labels):
        return (pt.logsumexp(logits, axis=1) - logits[pt.arange(self.rows), labels]).mean()

    def reference(self, logits, labels):
        z = logits.astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        return ((np.log(np.exp(z).sum(axis=1)) - z[np.arange(self.rows), labels]).mean(),)


class CrossEntropyGradient(CrossEntropyValue):
    wrt, value_wanted = ("logits",), False

    def __init__(self, dtype: Any = np.float32) -> None:
        self.dtype, wide = np.dtype(dtype), np.dtype(dtype) == np.float64
        self.name = "softmax-xent-gradient-f64" if wide else "softmax-xent-gradient"
        self.title = f"softmax cross-entropy 8192x4096{', float64' if wide else ''}: gradient"

    def program(self, grad, value_and_grad, f, names):
        gradient = grad(f)
        return lambda logits, labels: (gradient(logits, labels),)

    def torch(self, logits, labels):
        import torch
        from torch.nn import functional as F

        logits.requires_grad_()
        return lambda: torch.autograd.grad(F.cross_entropy(logits, labels), logits)

    def reference(self, logits, labels):
        z = logits.astype(np.float64)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(self.rows), labels] -= 1
        return (p / self.rows,)


class CrossEntropyOfTen(CrossEntropyGradient):
    """As of a classifier of digits."""

    rows, classes = 100_000, 10

    def __init__(self) -> None:
        super().__init__()
        self.name = "softmax-xent-10"
        self.title = "softmax cross-entropy 100000x10: gradient"
