"""One training step of the classic two-layer network: forward, backward and update. N=64, D_in=1000, H=100, D_out=10."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.derived import TrainingStep

N, D_IN, H, D_OUT = 64, 1000, 100, 10
LEARNING_RATE = 1e-6


class TwoLayerStep(TrainingStep):
    name = "two-layer-step"
    title = "two-layer network: training step"
    weights, rate = ("w1", "w2"), LEARNING_RATE

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

    def loss(self, t, F, weights, x, y):
        w1, w2 = weights
        return ((t.relu(x @ w1) @ w2 - y) ** 2).sum()

    def jax_loss(self, weights, x, y):
        import jax

        return ((jax.nn.relu(x @ weights[0]) @ weights[1] - y) ** 2).sum()

    def pytensor(self, x, y, w1, w2):
        import pytensor
        import pytensor.tensor as pt

        x, y, w1, w2 = (pytensor.shared(a, borrow=True) for a in (x, y, w1, w2))
        loss = ((pt.maximum(x @ w1, 0) @ w2 - y) ** 2).sum()
        updates = [(w, w - np.float32(LEARNING_RATE) * g) for w, g in zip((w1, w2), pt.grad(loss, [w1, w2]), strict=True)]
        step = pytensor.function([], loss, updates=updates)
        return lambda: (step(), w1.get_value(borrow=True), w2.get_value(borrow=True))
