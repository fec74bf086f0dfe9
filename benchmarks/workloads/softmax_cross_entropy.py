"""Softmax cross-entropy of 8192 rows of 4096 classes: the mean loss, and its gradient with respect to the logits."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.base import Workload

ROWS, CLASSES = 8192, 4096


def jax_cross_entropy(logits, labels):
    import jax

    picked = jax.numpy.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - picked).mean()


class CrossEntropy(Workload):
    target = 0.8

    def data(self, rng):
        return {
            "logits": 3 * rng.standard_normal((ROWS, CLASSES), dtype=np.float32),
            "labels": rng.integers(0, CLASSES, ROWS),
        }


class CrossEntropyValue(CrossEntropy):
    name = "softmax-xent-value"
    title = "softmax cross-entropy 8192x4096: value"

    def reference(self, logits, labels):
        z = logits.astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        return ((np.log(np.exp(z).sum(axis=1)) - z[np.arange(ROWS), labels]).mean(),)

    def tracegrad(self, logits, labels):
        import tracegrad as tg
        from tracegrad.nn import functional as F

        f = tg.trace(F.cross_entropy)
        return lambda: (f(logits, labels),)

    def torch(self, logits, labels):
        from torch.nn import functional as F

        return lambda: (F.cross_entropy(logits, labels),)

    def jax(self, logits, labels):
        import jax

        f = jax.jit(jax_cross_entropy)
        return lambda: (f(logits, labels),)


class CrossEntropyGradient(CrossEntropy):
    name = "softmax-xent-gradient"
    title = "softmax cross-entropy 8192x4096: gradient"

    def reference(self, logits, labels):
        z = logits.astype(np.float64)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(ROWS), labels] -= 1
        return (p / ROWS,)

    def tracegrad(self, logits, labels):
        import tracegrad as tg
        from tracegrad.nn import functional as F

        f = tg.trace(tg.grad(F.cross_entropy))
        return lambda: (f(logits, labels),)

    def torch(self, logits, labels):
        import torch
        from torch.nn import functional as F

        logits.requires_grad_()
        return lambda: torch.autograd.grad(F.cross_entropy(logits, labels), logits)

    def jax(self, logits, labels):
        import jax

        f = jax.jit(jax.grad(jax_cross_entropy))
        return lambda: (f(logits, labels),)
