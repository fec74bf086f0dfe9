"""Softmax cross-entropy of 8192 rows of 4096 classes: the mean loss, and its gradient with respect to the logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.derived import Derived, normal

ROWS, CLASSES = 8192, 4096


class CrossEntropyValue(Derived):
    name = "softmax-xent-value"
    title = "softmax cross-entropy 8192x4096: value"
    dtype = np.float32

    def data(self, rng):
        return {"logits": normal(rng, ROWS, CLASSES, scale=3.0, dtype=self.dtype), "labels": rng.integers(0, CLASSES, ROWS)}

    def function(self, t, F, logits, labels):
        return F.cross_entropy(logits, labels)

    def jax_function(self, logits, labels):
        import jax

        picked = jax.numpy.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        return (jax.nn.logsumexp(logits, axis=1) - picked).mean()

    def pytensor_function(self, pt, logits, labels):
        return (pt.logsumexp(logits, axis=1) - logits[pt.arange(ROWS), labels]).mean()

    def reference(self, logits, labels):
        z = logits.astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        return ((np.log(np.exp(z).sum(axis=1)) - z[np.arange(ROWS), labels]).mean(),)


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
        p[np.arange(ROWS), labels] -= 1
        return (p / ROWS,)
