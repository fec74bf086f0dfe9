"""Parts of networks, forward and backward: causal attention, layer norm, a transformer block, recurrent layers, an MLP with Adam."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.base import Iteration, Workload
from benchmarks.workloads.derived import Derived, TrainingStep, by_interpreter, normal


class Attention(Derived):
    name = "attention"
    title = "causal attention, B4 H8 T1024 d64: value and gradients"
    wrt = ("query", "key", "value")
    tolerance = 1e-4
    shape = (4, 8, 1024, 64)

    def data(self, rng):
        return {name: normal(rng, *self.shape) for name in ("query", "key", "value", "factor")}

    def function(self, t, F, query, key, value, factor):
        return (F.scaled_dot_product_attention(query, key, value, is_causal=True) * factor).sum()

    def jax_function(self, query, key, value, factor):
        import jax

        q, k, v = (x.swapaxes(1, 2) for x in (query, key, value))
        return (jax.nn.dot_product_attention(q, k, v, is_causal=True).swapaxes(1, 2) * factor).sum()

    def tinygrad_function(self, query, key, value, factor):
        return (query.scaled_dot_product_attention(key, value, is_causal=True) * factor).sum()


class WrittenAttention(Attention):
    """The same in the operations that it is made of."""

    name = "attention-written-out"
    tinygrad_function = None
    title = "causal attention as softmax(q kᵀ + mask) v: value and gradients"

    def function(self, t, F, query, key, value, factor):
        length = query.shape[-2]
        mask = t.ones(length, length, dtype=t.bool).triu(1)
        scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(mask, float("-inf"))
        return ((t.softmax(scores, -1) @ value) * factor).sum()

    def jax_function(self, query, key, value, factor):
        import jax
        import jax.numpy as jnp

        length = query.shape[-2]
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        scores = jnp.where(jnp.triu(jnp.ones((length, length), bool), 1), -jnp.inf, scores)
        return ((jax.nn.softmax(scores, -1) @ value) * factor).sum()


class LayerNorm(Derived):
    wrt = ("x", "weight", "bias")
    tolerance = 1e-4

    def __init__(self, dtype: Any = np.float32, rows: int = 8192, columns: int = 1024) -> None:
        self.dtype, self.rows, self.columns = np.dtype(dtype), rows, columns
        wide = self.dtype == np.float64
        self.name = f"layernorm{'-f64' * wide}{f'-{columns}' if columns != 1024 else ''}"
        self.title = f"layer norm {rows} x {columns}{', float64' if wide else ''}: value and gradients"

    def data(self, rng):
        shapes = {"x": (self.rows, self.columns), "weight": (self.columns,), "bias": (self.columns,), "factor": (self.rows, self.columns)}
        return {name: normal(rng, *shape, dtype=self.dtype) for name, shape in shapes.items()}

    def function(self, t, F, x, weight, bias, factor):
        return (F.layer_norm(x, (self.columns,), weight, bias) * factor).sum()

    def jax_function(self, x, weight, bias, factor):
        return (jax_norm(x, weight, bias) * factor).sum()

    def pytensor_function(self, pt, x, weight, bias, factor):
        centred = x - x.mean(-1, keepdims=True)
        spread = pt.sqrt((centred * centred).mean(-1, keepdims=True) + np.array(1e-5, self.dtype))
        return ((centred / spread * weight + bias) * factor).sum()


def jax_norm(x, weight, bias):
    import jax

    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight + bias


class TransformerBlock(Derived):
    name = "transformer-block"
    title = "transformer block, B8 T256 d256, 4 heads: value and gradients"
    shapes = {"norm1": (256,), "shift1": (256,), "project": (256, 768), "out": (256, 256),
              "norm2": (256,), "shift2": (256,), "up": (256, 1024), "down": (1024, 256)}
    wrt = tuple(shapes)
    tolerance = 1e-3
    heads = 4

    def data(self, rng):
        return {"x": normal(rng, 8, 256, 256)} | {
            name: normal(rng, *shape, scale=shape[0] ** -0.5 if len(shape) > 1 else 1.0) for name, shape in self.shapes.items()}

    def _block(self, x, norm, attend, gelu, norm1, shift1, project, out, norm2, shift2, up, down):
        n, length, size = x.shape
        parts = (norm(x, norm1, shift1) @ project).reshape(n, length, 3, self.heads, size // self.heads)
        x = x + attend(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]).reshape(n, length, size) @ out
        x = x + gelu(norm(x, norm2, shift2) @ up) @ down
        return (x * x).mean()

    def function(self, t, F, x, *weights):
        def attend(q, k, v):
            q, k, v = (a.transpose(1, 2) for a in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

        return self._block(x, lambda x, w, b: F.layer_norm(x, (256,), w, b), attend, F.gelu, *weights)

    def jax_function(self, x, *weights):
        import jax

        return self._block(x, jax_norm, lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True),
                           lambda x: jax.nn.gelu(x, approximate=False), *weights)

    def tinygrad_function(self, x, *weights):
        def attend(q, k, v):
            q, k, v = (a.transpose(1, 2) for a in (q, k, v))
            return q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2)

        return self._block(x, lambda x, w, b: x.layernorm() * w + b, attend, lambda x: x.gelu("none"), *weights)


class Recurrent(Workload):
    """A layer of nn over a sequence. (torch.compile leaves these layers as they are.)"""

    tolerance = 1e-3
    length, batch, size, hidden = 64, 32, 64, 128
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")

    def __init__(self, kind: str, gates: int) -> None:
        self.kind, self.gates, self.name = kind, gates, kind.lower()
        self.title = f"{kind}, 64 steps of 32 x 64, 128 hidden: value and gradients"

    def data(self, rng):
        rows = self.gates * self.hidden
        shapes = [(rows, self.size), (rows, self.hidden), (rows,), (rows,)]
        return {"x": normal(rng, self.length, self.batch, self.size)} | {
            name: normal(rng, *shape, scale=self.hidden**-0.5) for name, shape in zip(self.names, shapes, strict=True)}

    def _run(self, t: Any, nn: Any, wrap: Any, x: Any, weights: dict[str, Any]) -> Iteration:
        layer = getattr(nn, self.kind)(self.size, self.hidden, dtype=x.dtype)
        with t.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.copy_(weights[name])

        def step(x):
            loss = (layer(x)[0] ** 2).mean()
            return loss, *t.autograd.grad(loss, [getattr(layer, name) for name in self.names])

        self.traced = step = wrap(step)
        return lambda: step(x)

    def tracegrad(self, x, **weights):
        import tracegrad as tg
        from tracegrad import nn

        return self._run(tg, nn, tg.trace, x, weights)

    def torch(self, x, **weights):
        import torch

        return self._run(torch, torch.nn, lambda step: step, x, weights)

    def jax(self, x, **weights):
        import jax
        import jax.numpy as jnp

        def turn(state, gates, w_hh, b_hh):
            h = state[0]
            back = h @ w_hh.T + b_hh
            if self.kind == "LSTM":
                i, f, g, o = jnp.split(gates + back, 4, -1)
                c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
                return jax.nn.sigmoid(o) * jnp.tanh(c), c
            (r, z, n), (r_h, z_h, n_h) = jnp.split(gates, 3, -1), jnp.split(back, 3, -1)
            z = jax.nn.sigmoid(z + z_h)
            n = jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h)
            return (n + z * (h - n),)

        def loss(weights, x):
            w_ih, w_hh, b_ih, b_hh = weights
            zero = jnp.zeros((self.batch, self.hidden))

            def body(state, gates):
                state = turn(state, gates, w_hh, b_hh)
                return state, state[0]

            _, out = jax.lax.scan(body, (zero, zero) if self.kind == "LSTM" else (zero,), x @ w_ih.T + b_ih)
            return (out * out).mean()

        both = jax.jit(jax.value_and_grad(loss))
        given = tuple(weights[name] for name in self.names)

        def run():
            value, gradients = both(given, x)
            return value, *gradients

        return run

    def reference(self, **inputs):
        return by_interpreter(self, inputs)


class MlpAdam(TrainingStep):
    name = "mlp-adam"
    title = "MLP 784-512-512-10, batch 256: a step with Adam"
    weights = ("w1", "b1", "w2", "b2", "w3", "b3")
    rate, adam = 1e-3, True
    tolerance = 1e-2                                        # Adam divides a gradient by its own size: near zero its sign is noise
    shapes = {"w1": (512, 784), "b1": (512,), "w2": (512, 512), "b2": (512,), "w3": (10, 512), "b3": (10,)}

    def data(self, rng):
        weights = {name: normal(rng, *shape, scale=shape[-1] ** -0.5) for name, shape in self.shapes.items()}
        return weights | {"x": normal(rng, 256, 784), "labels": rng.integers(0, 10, 256)}

    def loss(self, t, F, weights, x, labels):
        w1, b1, w2, b2, w3, b3 = weights
        h = F.relu(F.linear(x, w1, b1))
        return F.cross_entropy(F.linear(F.relu(F.linear(h, w2, b2)), w3, b3), labels)

    def tinygrad_loss(self, weights, x, labels):
        w1, b1, w2, b2, w3, b3 = weights
        h = x.linear(w1.T, b1).relu().linear(w2.T, b2).relu()
        return h.linear(w3.T, b3).cross_entropy(labels)

    def jax_loss(self, weights, x, labels):
        import jax

        w1, b1, w2, b2, w3, b3 = weights
        h = jax.nn.relu(jax.nn.relu(x @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
        picked = jax.numpy.take_along_axis(h, labels[:, None], axis=1)[:, 0]
        return (jax.nn.logsumexp(h, axis=1) - picked).mean()


class MlpUntraced(MlpAdam):
    """Without a trace or jit: what untraced lines cost."""

    name = "mlp-untraced"
    title = "MLP 784-512-512-10, batch 256: an untraced step with SGD"
    rate, adam = 0.05, False
    tolerance = 1e-3
    torch_compile = jax = tinygrad_loss = None

    def tracegrad(self, **inputs):
        import tracegrad as tg
        from tracegrad import optim
        from tracegrad.nn import functional as F

        iterate = self._idiomatic(tg, F, optim, lambda step: step, inputs)
        self.traced = None
        return iterate
