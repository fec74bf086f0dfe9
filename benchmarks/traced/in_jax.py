"""Training programs of this folder as they are written for JAX: pure functions under `jax.jit`, for the time of their first call.

Each gives a function of no arguments that makes one step and returns its loss, like `program` in the file of the same name, with the same
layers, sizes and optimizer (not the same random numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.traced import convnet as digits
from benchmarks.traced import dcgan as gan
from benchmarks.traced import neural_ode as ode
from benchmarks.traced import recurrent
from benchmarks.traced import transformer as letters
from benchmarks.traced import vit as images


def _weights(**shapes: tuple[int, ...]) -> dict[str, Any]:
    import jax.numpy as jnp

    draw = np.random.default_rng(0).standard_normal

    def one(name: str, shape: tuple[int, ...]) -> Any:
        return draw(shape, np.float32) * np.float32(0.02) if len(shape) > 1 else np.full(shape, name.startswith("scale"), np.float32)

    return {name: jnp.asarray(one(name, shape)) for name, shape in shapes.items()}


def _adam(weights: Any, moments: Any, gradients: Any, rate: float, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0.0) -> Any:
    import jax
    import jax.numpy as jnp

    t, first, second = moments
    t = t + 1
    first = jax.tree.map(lambda m, g: betas[0] * m + (1 - betas[0]) * g, first, gradients)
    second = jax.tree.map(lambda v, g: betas[1] * v + (1 - betas[1]) * g * g, second, gradients)

    def moved(w: Any, m: Any, v: Any) -> Any:
        return w * (1 - rate * decay) - rate * (m / (1 - betas[0] ** t)) / (jnp.sqrt(v / (1 - betas[1] ** t)) + 1e-8)

    return jax.tree.map(moved, weights, first, second), (t, first, second)


def _start(weights: Any) -> Any:
    import jax
    import jax.numpy as jnp

    zeros = jax.tree.map(jnp.zeros_like, weights)
    return weights, (jnp.zeros((), jnp.float32), zeros, zeros)         # of float64, as jax has it by default here, all weights would be


def _stepping(step: Any, state: Any, *data: Any) -> Callable[[], float]:
    held = [state]

    def call() -> float:
        held[0], loss = step(held[0], *data)
        return float(loss)

    return call


def neural_ode() -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    h = 1.0 / ode.STEPS

    def loss(w: Any, y: Any, seen: Any) -> Any:
        def model(y: Any) -> Any:
            return jnp.tanh(y @ w["in"] + w["b"]) @ w["out"] + w["c"]

        for _ in range(ode.STEPS):
            k1 = model(y)
            k2 = model(y + 0.5 * h * k1)
            k3 = model(y + 0.5 * h * k2)
            k4 = model(y + h * k3)
            y = y + (h / 6.0) * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        return ((y - seen) ** 2).mean()

    @jax.jit
    def step(state: Any, y: Any, seen: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], y, seen)
        return _adam(*state, gradients, 1e-3), value

    t = jnp.linspace(0.0, 6.0, ode.BATCH)
    y, seen = (jnp.stack([jnp.cos(t + s), jnp.sin(t + s)], 1) for s in (0.0, 1.0))
    weights = _weights(**{"in": (ode.WIDTH, ode.HIDDEN), "b": (ode.HIDDEN,), "out": (ode.HIDDEN, ode.WIDTH), "c": (ode.WIDTH,)})
    return _stepping(step, _start(weights), y, seen)


def transformer() -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    width, heads = letters.WIDTH, letters.HEADS

    def norm(w: Any, k: str, x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[f"scale_{k}"] + w[f"shift_{k}"]

    def loss(w: Any, text: Any, wanted: Any) -> Any:
        b, n = text.shape
        x = w["letters"][text] + w["places"][jnp.arange(n)]
        seen = jnp.tril(jnp.ones((n, n), bool))
        for i in range(2):
            q, k, v = jnp.split(norm(w, f"first{i}", x) @ w[f"qkv{i}"] + w[f"qkv_b{i}"], 3, -1)
            q, k, v = (p.reshape(b, n, heads, width // heads).transpose(0, 2, 1, 3) for p in (q, k, v))
            scores = jnp.where(seen, q @ k.transpose(0, 1, 3, 2) / (width // heads) ** 0.5, -jnp.inf)
            made = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, n, width)
            x = x + made @ w[f"out{i}"] + w[f"out_b{i}"]
            up = norm(w, f"second{i}", x) @ w[f"up{i}"] + w[f"up_b{i}"]
            x = x + jax.nn.gelu(up, approximate=False) @ w[f"down{i}"] + w[f"down_b{i}"]
        logits = norm(w, "last", x) @ w["head"] + w["head_b"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], -1).mean()

    @jax.jit
    def step(state: Any, text: Any, wanted: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], text, wanted)
        return _adam(*state, gradients, 3e-4, decay=0.01), value

    shapes: dict[str, tuple[int, ...]] = {"letters": (letters.LETTERS, width), "places": (letters.LENGTH, width),
                                          "head": (width, letters.LETTERS), "head_b": (letters.LETTERS,)}
    for i in range(2):
        for k, columns, rows in (("qkv", 3 * width, width), ("out", width, width), ("up", 4 * width, width), ("down", width, 4 * width)):
            shapes |= {f"{k}{i}": (rows, columns), f"{k}_b{i}": (columns,)}
    for k in ("first0", "second0", "first1", "second1", "last"):
        shapes |= {f"scale_{k}": (width,), f"shift_{k}": (width,)}
    text = (jnp.arange(letters.BATCH * (letters.LENGTH + 1)) * 7 % letters.LETTERS).reshape(letters.BATCH, letters.LENGTH + 1)
    return _stepping(step, _start(_weights(**shapes)), text[:, :-1], text[:, 1:])


def dcgan() -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    width, names = gan.WIDTH, ("NCHW", "OIHW", "NCHW")
    sizes = [(gan.NOISE, 4 * width, 1, 0), (4 * width, 2 * width, 2, 1), (2 * width, width, 2, 1), (width, 1, 2, 1)]

    def normal(w: Any, k: int, x: Any) -> Any:
        x = x - x.mean((0, 2, 3), keepdims=True)
        x = x * jax.lax.rsqrt((x * x).mean((0, 2, 3), keepdims=True) + 1e-5)
        return x * w[f"scale{k}"][:, None, None] + w[f"shift{k}"][:, None, None]

    def made(w: Any, x: Any) -> Any:
        for k, (_, _, stride, padding) in enumerate(sizes):
            edges = [(3 - padding, 3 - padding)] * 2
            x = jax.lax.conv_general_dilated(x, w[f"w{k}"], (1, 1), edges, (stride, stride), dimension_numbers=names)
            x = jnp.tanh(x) if k == 3 else jax.nn.relu(normal(w, k, x))
        return x

    def judged(w: Any, x: Any) -> Any:
        for k, (_, _, stride, padding) in enumerate(reversed(sizes)):
            x = jax.lax.conv_general_dilated(x, w[f"w{k}"], (stride, stride), [(padding, padding)] * 2, dimension_numbers=names)
            x = x.reshape(-1) if k == 3 else jax.nn.leaky_relu(normal(w, k, x) if k else x, 0.2)
        return x

    def entropy(logits: Any, truth: float) -> Any:
        return (jax.nn.softplus(logits) - truth * logits).mean()

    @jax.jit
    def step(state: Any, real: Any, noise: Any) -> Any:
        (maker, makers), (judge, judges) = state
        fake = jax.lax.stop_gradient(made(maker, noise))
        first, gradients = jax.value_and_grad(lambda w: entropy(judged(w, real), 1.0) + entropy(judged(w, fake), 0.0))(judge)
        judge, judges = _adam(judge, judges, gradients, 2e-4, (0.5, 0.999))
        second, gradients = jax.value_and_grad(lambda w: entropy(judged(judge, made(w, noise)), 1.0))(maker)
        maker, makers = _adam(maker, makers, gradients, 2e-4, (0.5, 0.999))
        return ((maker, makers), (judge, judges)), first + second

    maker = {f"w{k}": (o, i, 4, 4) for k, (i, o, *_) in enumerate(sizes)}
    judge = {f"w{k}": (o, i, 4, 4) for k, (i, o) in enumerate([(1, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 1)])}
    maker |= {f"{n}{k}": (sizes[k][1],) for k in range(3) for n in ("scale", "shift")}  # type: ignore[misc]
    judge |= {f"{n}{k}": (width << k,) for k in (1, 2) for n in ("scale", "shift")}  # type: ignore[misc]
    draw = np.random.default_rng(1).standard_normal
    real, noise = (jnp.asarray(draw(s, np.float32)) for s in ((gan.BATCH, 1, 32, 32), (gan.BATCH, gan.NOISE, 1, 1)))
    return _stepping(step, (_start(_weights(**maker)), _start(_weights(**judge))), real, noise)


def _cross_entropy(logits: Any, classes: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], -1).mean()


def convnet() -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    def part(w: Any, k: int, x: Any) -> Any:
        x = jax.lax.conv_general_dilated(x, w[f"conv{k}"], (1, 1), [(1, 1), (1, 1)], dimension_numbers=("NCHW", "OIHW", "NCHW"))
        x = jax.nn.relu(x + w[f"conv_b{k}"][:, None, None])
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss(w: Any, x: Any, y: Any) -> Any:
        x = part(w, 2, part(w, 1, x)).reshape(x.shape[0], -1)
        return _cross_entropy(jax.nn.relu(x @ w["hidden"] + w["hidden_b"]) @ w["head"] + w["head_b"], y)

    @jax.jit
    def step(state: Any, x: Any, y: Any) -> Any:
        w, momenta = state
        value, gradients = jax.value_and_grad(loss)(w, x, y)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return (jax.tree.map(lambda w, m: w - 0.05 * m, w, momenta), momenta), value

    w = _weights(conv1=(16, 1, 3, 3), conv_b1=(16,), conv2=(32, 16, 3, 3), conv_b2=(32,), hidden=(32 * 49, 64), hidden_b=(64,),
                 head=(64, digits.CLASSES), head_b=(digits.CLASSES,))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((digits.BATCH, 1, 28, 28), np.float32))
    return _stepping(step, (w, jax.tree.map(jnp.zeros_like, w)), x, jnp.arange(digits.BATCH) % digits.CLASSES)


def vit() -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    width, heads, patch, count = images.WIDTH, images.HEADS, images.PATCH, (images.SIZE // images.PATCH) ** 2

    def norm(w: Any, k: str, x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[f"scale_{k}"] + w[f"shift_{k}"]

    def loss(w: Any, x: Any, y: Any) -> Any:
        names = ("NCHW", "OIHW", "NCHW")
        x = jax.lax.conv_general_dilated(x, w["patches"], (patch, patch), "VALID", dimension_numbers=names)
        x = x.reshape(x.shape[0], width, count).transpose(0, 2, 1) + w["patches_b"]
        x = jnp.concatenate([jnp.broadcast_to(w["token"], (x.shape[0], 1, width)), x], 1) + w["places"]
        b, n, _ = x.shape
        for i in range(2):
            q, k, v = jnp.split(norm(w, f"first{i}", x) @ w[f"qkv{i}"] + w[f"qkv_b{i}"], 3, -1)
            q, k, v = (p.reshape(b, n, heads, width // heads).transpose(0, 2, 1, 3) for p in (q, k, v))
            made = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (width // heads) ** 0.5) @ v
            x = x + made.transpose(0, 2, 1, 3).reshape(b, n, width) @ w[f"out{i}"] + w[f"out_b{i}"]
            up = norm(w, f"second{i}", x) @ w[f"up{i}"] + w[f"up_b{i}"]
            x = x + jax.nn.gelu(up, approximate=False) @ w[f"down{i}"] + w[f"down_b{i}"]
        return _cross_entropy(norm(w, "last", x[:, 0]) @ w["head"] + w["head_b"], y)

    @jax.jit
    def step(state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], x, y)
        return _adam(*state, gradients, 3e-4, decay=0.01), value

    shapes: dict[str, tuple[int, ...]] = {
        "patches": (width, 3, patch, patch), "patches_b": (width,), "token": (1, 1, width), "places": (1, count + 1, width),
        "head": (width, images.CLASSES), "head_b": (images.CLASSES,)}
    for i in range(2):
        for name, columns, rows in (("qkv", 3 * width, width), ("out", width, width), ("up", 4 * width, width), ("down", width, 4 * width)):
            shapes |= {f"{name}{i}": (rows, columns), f"{name}_b{i}": (columns,)}
    for part in ("first0", "second0", "first1", "second1", "last"):
        shapes |= {f"scale_{part}": (width,), f"shift_{part}": (width,)}
    x = jnp.asarray(np.random.default_rng(1).standard_normal((images.BATCH, 3, images.SIZE, images.SIZE), np.float32))
    return _stepping(step, _start(_weights(**shapes)), x, jnp.arange(images.BATCH) % images.CLASSES)


def gru() -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    inputs, hidden = recurrent.INPUTS, recurrent.HIDDEN

    def cell(w: Any, h: Any, a: Any) -> Any:
        b = h @ w["recurrent"] + w["recurrent_b"]
        reset, update = jax.nn.sigmoid(a[:, :hidden] + b[:, :hidden]), jax.nn.sigmoid(a[:, hidden:-hidden] + b[:, hidden:-hidden])
        new = jnp.tanh(a[:, -hidden:] + reset * b[:, -hidden:])
        h = new + update * (h - new)
        return h, h

    return _recurrent(cell, 3, jnp.zeros((recurrent.BATCH, hidden), jnp.float32), inputs, hidden)


def lstm() -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    def cell(w: Any, carry: Any, a: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(a + h @ w["recurrent"] + w["recurrent_b"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((recurrent.BATCH, recurrent.HIDDEN), jnp.float32)
    return _recurrent(cell, 4, (zeros, zeros), recurrent.INPUTS, recurrent.HIDDEN)


def _recurrent(cell: Any, gates: int, start: Any, inputs: int, hidden: int) -> Callable[[], float]:
    import jax
    import jax.numpy as jnp

    def loss(w: Any, x: Any) -> Any:
        a = (x[:, :-1] @ w["in"] + w["in_b"]).transpose(1, 0, 2)
        _, states = jax.lax.scan(partial(cell, w), start, a)
        return ((states @ w["head"] + w["head_b"] - x[:, 1:].transpose(1, 0, 2)) ** 2).mean()

    @jax.jit
    def step(state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], x)
        return _adam(*state, gradients, 1e-3), value

    w = _weights(**{"in": (inputs, gates * hidden), "in_b": (gates * hidden,), "recurrent": (hidden, gates * hidden),
                    "recurrent_b": (gates * hidden,), "head": (hidden, inputs), "head_b": (inputs,)})
    t = np.arange(recurrent.STEPS + 1)[None, :, None] * 0.1
    x = np.sin(t + np.linspace(0.0, 3.0, recurrent.BATCH)[:, None, None] + np.linspace(0.0, 1.0, inputs)[None, None, :])
    return _stepping(step, _start(w), jnp.asarray(x.astype(np.float32)))


PROGRAMS = {"neural_ode": neural_ode, "transformer": transformer, "dcgan": dcgan, "convnet": convnet, "vit": vit, "gru": gru, "lstm": lstm}
