"""One training step of the digits convnet: two 3x3 convolutions, max-pool, linear, cross-entropy, SGD. Batch 128 of 8x8 images."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.derived import TrainingStep

BATCH = 128
LEARNING_RATE = 0.05
WEIGHTS = {"w1": (16, 1, 3, 3), "b1": (16,), "w2": (32, 16, 3, 3), "b2": (32,), "w3": (10, 512), "b3": (10,)}


def windows(x):
    """The 3x3 neighbourhoods of zero-padded images: (n, c, h, w) -> (n, c, h, w, 3, 3)."""
    return np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))


def conv(x, w, b):
    return np.einsum("nchwij,ocij->nohw", windows(x), w, optimize=True) + b[:, None, None]


def conv_backward(g, x, w):
    """The derivatives of `conv` with respect to its input, weight and bias."""
    g_x = np.einsum("nohwij,ocij->nchw", windows(g), w[:, :, ::-1, ::-1], optimize=True)
    return g_x, np.einsum("nohw,nchwij->ocij", g, windows(x), optimize=True), g.sum((0, 2, 3))


class ConvnetStep(TrainingStep):
    name = "convnet-step"
    title = "digits convnet: training step, batch 128"
    weights, rate = tuple(WEIGHTS), LEARNING_RATE

    def data(self, rng):
        weights = {
            name: rng.standard_normal(shape, dtype=np.float32) * np.float32(np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1)
            for name, shape in WEIGHTS.items()
        }
        return {"x": rng.random((BATCH, 1, 8, 8), dtype=np.float32), "labels": rng.integers(0, 10, BATCH), **weights}

    def reference(self, x, labels, **weights):
        x = x.astype(np.float64)
        w1, b1, w2, b2, w3, b3 = (weights[name].astype(np.float64) for name in WEIGHTS)
        rows = np.arange(BATCH)
        for _ in range(self.checked):
            h1 = np.maximum(conv(x, w1, b1), 0)
            h2 = np.maximum(conv(h1, w2, b2), 0)
            tiles = h2.reshape(BATCH, 32, 4, 2, 4, 2)
            pooled = tiles.max((3, 5))
            z = pooled.reshape(BATCH, 512) @ w3.T + b3
            p = np.exp(z - z.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            loss = -np.log(p[rows, labels]).mean()

            p[rows, labels] -= 1
            g = p / BATCH
            g_w3, g_b3 = g.T @ pooled.reshape(BATCH, 512), g.sum(0)
            g = (g @ w3).reshape(pooled.shape)[:, :, :, None, :, None] * (tiles == pooled[:, :, :, None, :, None])
            g, g_w2, g_b2 = conv_backward(g.reshape(h2.shape) * (h2 > 0), h1, w2)
            _, g_w1, g_b1 = conv_backward(g * (h1 > 0), x, w1)
            gradients = (g_w1, g_b1, g_w2, g_b2, g_w3, g_b3)
            w1, b1, w2, b2, w3, b3 = (
                w - LEARNING_RATE * g for w, g in zip((w1, b1, w2, b2, w3, b3), gradients, strict=True)
            )
        return loss, w1, b1, w2, b2, w3, b3

    def loss(self, t, F, weights, x, labels):
        w1, b1, w2, b2, w3, b3 = weights
        h = t.relu(F.conv2d(x, w1, b1, padding=1))
        h = t.relu(F.conv2d(h, w2, b2, padding=1))
        h = F.max_pool2d(h, 2).flatten(1)
        return F.cross_entropy(F.linear(h, w3, b3), labels)

    def tinygrad_loss(self, weights, x, labels):
        w1, b1, w2, b2, w3, b3 = weights
        h = x.conv2d(w1, b1, padding=1).relu().conv2d(w2, b2, padding=1).relu()
        return h.max_pool2d((2, 2)).flatten(1).linear(w3.T, b3).cross_entropy(labels)

    def jax_loss(self, weights, x, labels):
        import jax
        import jax.numpy as jnp
        from jax import lax

        def conv2d(x, w, b):
            return lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1))) + b[:, None, None]

        w1, b1, w2, b2, w3, b3 = weights
        h = jax.nn.relu(conv2d(x, w1, b1))
        h = jax.nn.relu(conv2d(h, w2, b2))
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID").reshape(BATCH, -1)
        z = h @ w3.T + b3
        return (jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, labels[:, None], axis=1)[:, 0]).mean()
