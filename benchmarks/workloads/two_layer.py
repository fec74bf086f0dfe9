"""One training step of the classic two-layer network: forward, backward and update. N=64, D_in=1000, H=100, D_out=10."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.base import Workload

N, D_IN, H, D_OUT = 64, 1000, 100, 10
LEARNING_RATE = 1e-6


class TwoLayerStep(Workload):
    name = "two-layer-step"
    title = "two-layer network: training step"
    target = 1.0
    checked = 3
    tolerance = 1e-4
    burst, wait = 10, "burst"

    def data(self, rng):
        shapes = {"x": (N, D_IN), "y": (N, D_OUT), "w1": (D_IN, H), "w2": (H, D_OUT)}
        return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}

    def reference(self, **inputs):
        x, y, w1, w2 = (inputs[name].astype(np.float64) for name in ("x", "y", "w1", "w2"))
        for _ in range(self.checked):
            h = x @ w1
            h_relu = np.maximum(h, 0)
            difference = h_relu @ w2 - y
            loss = (difference**2).sum()
            g = 2 * difference
            w2, g_h = w2 - LEARNING_RATE * h_relu.T @ g, (g @ w2.T) * (h > 0)
            w1 = w1 - LEARNING_RATE * x.T @ g_h
        return loss, w1, w2

    def tracegrad(self, x, y, w1, w2):
        import tracegrad as tg

        w1.requires_grad_()
        w2.requires_grad_()

        @tg.trace
        def step(x, y):
            loss = ((tg.relu(x @ w1) @ w2 - y) ** 2).sum()
            loss.backward()
            with tg.no_grad():
                for w in (w1, w2):
                    w.sub_(w.grad, alpha=LEARNING_RATE)
                    w.grad = None
            return loss

        return lambda: (step(x, y), w1, w2)

    def torch(self, x, y, w1, w2):
        import torch

        w1.requires_grad_()
        w2.requires_grad_()

        def step(x, y):
            loss = ((torch.relu(x @ w1) @ w2 - y) ** 2).sum()
            loss.backward()
            with torch.no_grad():
                for w in (w1, w2):
                    w.sub_(w.grad, alpha=LEARNING_RATE)
                    w.grad = None
            return loss

        return lambda: (step(x, y), w1, w2)

    def jax(self, x, y, w1, w2):
        import jax

        def loss_of(weights, x, y):
            return ((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2).sum()

        def step(weights, x, y):
            loss, grads = jax.value_and_grad(loss_of)(weights, x, y)
            return loss, tuple(w - LEARNING_RATE * g for w, g in zip(weights, grads, strict=True))

        step = jax.jit(step, donate_argnums=0)
        weights = (w1, w2)

        def run():
            nonlocal weights
            loss, weights = step(weights, x, y)
            return loss, *weights

        return run
