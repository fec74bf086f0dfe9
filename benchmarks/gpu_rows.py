"""What `benchmarks.gpu` measures: classes of kernels, and training steps, written once for tracegrad and torch. Start at `ROWS`.

A row's function gets a namespace first (`T`, `F`, `grad`, as `benchmarks.frameworks.namespace` has them). How JAX writes it is in
`benchmarks/gpu_in_jax.py`, under the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FP32 = 4


@dataclass(frozen=True)
class Row:
    """A class: a function, its arguments for a size, and the least that it has to move and compute."""

    name: str
    fn: Callable[..., Any]                                # of the namespace and the arguments
    arguments: Callable[[Any, int], Sequence[Any]]        # of a generator and a scale (a power of two: 0 for CPUs)
    bytes: Callable[..., float]                           # of the arguments
    flops: Callable[..., float] = lambda *_: 0.0


def floats(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape, np.float32)


def halves(rng: Any, *shape: int) -> Any:
    return floats(rng, *shape).astype(np.float16)


def twice(*arrays: Any) -> float:
    """Each argument is read, and something like the first is written."""
    return float(sum(a.nbytes for a in arrays) + arrays[0].nbytes)


def once(*arrays: Any) -> float:
    """Each argument is read; little is written."""
    return float(sum(a.nbytes for a in arrays))


def product_bytes(a: Any, b: Any) -> float:
    return float(a.nbytes + b.nbytes + a.itemsize * a.size // a.shape[-1] * b.shape[-1])


def product_flops(a: Any, b: Any) -> float:
    return 2.0 * a.size * (b.shape[-1] if b.ndim > 1 else 1)


def conv_flops(x: Any, w: Any) -> float:
    return 2.0 * x.shape[0] * x.shape[2] * x.shape[3] * w.size


def conv_flops_apart(x: Any, w: Any) -> float:
    return 2.0 * x.size * w.shape[2] * w.shape[3]


def attention_flops(q: Any, k: Any, v: Any) -> float:
    return 4.0 * q.size * k.shape[-2]


def attended(n: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return (n.F.scaled_dot_product_attention(q, k, v, is_causal=causal) ** 2).sum()

    return n.grad(loss, argnums=(0, 1, 2))(q, k, v)


def updated(_: Any, *tensors: Any) -> Any:
    return tuple(p - 0.1 * g / (g.abs() + 1e-8) for p, g in zip(tensors[::2], tensors[1::2], strict=True))


def histogram(n: Any, i: Any) -> Any:
    ones = i.new_ones(i.shape[0], dtype=n.T.float32)
    return ones.new_zeros(16).index_add(0, i, ones)


HEADS = 12


def block(n: Any, x: Any, qkv: Any, out: Any, up: Any, down: Any) -> Any:
    """The loss of one block of GPT-2 (no biases) on x of (batch, time, width)."""
    batch, time, width = x.shape
    q, k, v = ((n.F.layer_norm(x, (width,)) @ qkv).reshape(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)[i] for i in range(3))
    mixed = n.F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + mixed.transpose(1, 2).reshape(batch, time, width) @ out
    x = x + n.F.gelu(n.F.layer_norm(x, (width,)) @ up, approximate="tanh") @ down
    return (x * x).mean()


def block_flops(x: Any, *weights: Any) -> float:
    tokens, time = x.shape[0] * x.shape[1], x.shape[1]
    return 3 * tokens * (2.0 * sum(w.size for w in weights) + 4.0 * time * x.shape[2])


def block_arguments(r: Any, s: int) -> Sequence[Any]:
    width = 12 * (64 if s else 8)
    return [floats(r, 1 << (s // 2), 128 << (s // 2), width),
            *(0.02 * floats(r, *shape) for shape in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)))]


def recurrent(n: Any, x: Any, h: Any, w: Any, u: Any) -> Any:
    """The loss of a GRU (no biases), unrolled over x of (time, batch, width)."""
    width = h.shape[-1]
    for part in (x @ w).unbind(0):
        inner = h @ u
        reset, update = ((part[:, a:b] + inner[:, a:b]).sigmoid() for a, b in ((0, width), (width, 2 * width)))
        h = update * h + (1 - update) * (part[:, 2 * width:] + reset * inner[:, 2 * width:]).tanh()
    return (h * h).mean()


def recurrent_arguments(r: Any, s: int) -> Sequence[Any]:
    return [floats(r, 64, 64, 256), floats(r, 64, 256), 0.05 * floats(r, 256, 768), 0.05 * floats(r, 256, 768)]


def images(r: Any, s: int) -> Sequence[Any]:
    return [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)]


def positive(r: Any, s: int) -> Sequence[Any]:
    a = r.standard_normal((32 << s, 32 << s))
    return [a @ a.T + (32 << s) * np.eye(32 << s)]


ROWS = [
    Row("elementwise, 3 operations", lambda n, x, y: n.T.tanh(x * y + 1), lambda r, s: [floats(r, 1 << (18 + s))] * 2, twice),
    Row("elementwise, halves", lambda n, x: x * 2 + 1, lambda r, s: [halves(r, 1 << (18 + s))], twice),
    Row("transposed read", lambda n, x, y: x.t() + y, lambda r, s: [floats(r, 512, 256 << s), floats(r, 256 << s, 512)], twice),
    Row("gather of rows of 64", lambda n, x, i: x[i], lambda r, s: [floats(r, 1 << (12 + s), 64), r.integers(0, 4096, 1 << (12 + s))],
        lambda x, i: i.nbytes + 2 * FP32 * 64 * i.size),
    Row("gather of rows of 64 halves", lambda n, x, i: n.F.embedding(i, x),
        lambda r, s: [halves(r, 1 << (12 + s), 64), r.integers(0, 4096, 1 << (12 + s))],
        lambda x, i: i.nbytes + FP32 * 64 * i.size),
    Row("permuted, rows of 64", lambda n, x: x.transpose(1, 2) + 1, lambda r, s: [floats(r, 4, 16 << s, 8, 64)], twice),
    Row("rows and a bias", lambda n, x, b: (x + b).relu(), lambda r, s: [floats(r, 256 << s, 1024), floats(r, 1024)], twice),
    Row("two small softmaxes", lambda n, x, y: (x.softmax(-1), y.softmax(-1)),
        lambda r, s: [floats(r, 32, 100), floats(r, 48, 100)], twice),
    Row("softmax of rows of 10", lambda n, x: x.softmax(-1), lambda r, s: [floats(r, 10_000 << s, 10)], twice),
    Row("softmax of rows of 1000", lambda n, x: x.softmax(-1), lambda r, s: [floats(r, 256 << s, 1000)], twice),
    Row("layer norm of rows of 768", lambda n, x: n.F.layer_norm(x, (768,)), lambda r, s: [floats(r, 256 << s, 768)], twice),
    Row("log softmax of 64 long rows", lambda n, x: x.log_softmax(-1), lambda r, s: [floats(r, 64, 4096 << s)], twice),
    Row("whole sum", lambda n, x: (x * x).sum(), lambda r, s: [floats(r, 1 << (18 + s))], once),
    Row("sum of 64 columns", lambda n, x: x.sum(0), lambda r, s: [floats(r, 1 << (12 + s), 64)], once),
    Row("matrix times vector", lambda n, a, b: a @ b,
        lambda r, s: [floats(r, 256 << (s // 2), 1024 << (s // 2)), floats(r, 1024 << (s // 2))], once, product_flops),
    Row("product", lambda n, a, b: a @ b, lambda r, s: [floats(r, 256 << (s // 2), 256 << (s // 2))] * 2, product_bytes, product_flops),
    Row("product, odd sizes", lambda n, a, b: a @ b,
        lambda r, s: [floats(r, 250 << (s // 2), 260 << (s // 2)), floats(r, 260 << (s // 2), 251)], product_bytes, product_flops),
    Row("product of 64 x long k x 64", lambda n, a, b: a @ b,
        lambda r, s: [floats(r, 64, 4096 << (s // 2)), floats(r, 4096 << (s // 2), 64)], product_bytes, product_flops),
    Row("batched products of 128 x 64 x 128", lambda n, a, b: a @ b, lambda r, s: [floats(r, 4 << s, 128, 64), floats(r, 4 << s, 64, 128)],
        product_bytes, product_flops),
    Row("convolution 3x3, 64 channels", lambda n, x, w: n.F.conv2d(x, w, padding=1),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)], twice, conv_flops),
    Row("its gradient by the image", lambda n, x, w: n.grad(lambda x: n.F.conv2d(x, w, padding=1).sum())(x),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)], twice, conv_flops),
    Row("its gradient by the weight", lambda n, x, w: n.grad(lambda w: (n.F.conv2d(x, w, padding=1) ** 2).sum())(w),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)], twice, lambda x, w: 2 * conv_flops(x, w)),
    Row("its gradient by the image, stride 2", lambda n, x, w: n.grad(lambda x: n.F.conv2d(x, w, stride=2, padding=1).sum())(x),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)], twice, lambda x, w: conv_flops(x, w) / 4),
    Row("depthwise convolution 3x3", lambda n, x, w: n.F.conv2d(x, w, padding=1, groups=64),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 1, 3, 3)], twice, conv_flops_apart),
    Row("gradient of max pooling 3x3, stride 2", lambda n, x: n.grad(lambda x: (n.F.max_pool2d(x, 3, 2, 1) ** 2).sum())(x),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28)], lambda x: 3.0 * x.nbytes),
    Row("cumsum", lambda n, x: x.cumsum(0), lambda r, s: [floats(r, 1 << (16 + s))], twice),
    Row("cumsum of rows of 1000", lambda n, x: x.cumsum(-1), lambda r, s: [floats(r, 256 << s, 1000)], twice),
    Row("cumsum of columns", lambda n, x: x.cumsum(0), lambda r, s: [floats(r, 256 << s, 256)], twice),
    Row("argmax", lambda n, x: x.argmax(), lambda r, s: [floats(r, 1 << (18 + s))], once),
    Row("argmax of rows of 1000", lambda n, x: x.argmax(-1), lambda r, s: [floats(r, 256 << s, 1000)], once),
    Row("argmax of 256 columns", lambda n, x: x.argmax(0), lambda r, s: [floats(r, 256 << s, 256)], once),
    Row("sort", lambda n, x: x.sort()[1], lambda r, s: [floats(r, 1 << (12 + s))], lambda x: 3.0 * x.nbytes),
    Row("sort of rows of 1000", lambda n, x: x.sort(-1)[1], lambda r, s: [floats(r, 16 << s, 1000)], lambda x: 3.0 * x.nbytes),
    Row("topk of 64 long rows", lambda n, x: x.topk(8)[1], lambda r, s: [floats(r, 64, 4096 << (s // 2))], once),
    Row("gradient of an embedding", lambda n, t, i: n.grad(lambda t: (n.F.embedding(i, t) ** 2).sum())(t),
        lambda r, s: [floats(r, 1 << (10 + s), 64), r.integers(0, 1 << (10 + s), 1 << (9 + s))],
        lambda t, i: t.nbytes + i.nbytes + 2 * FP32 * 64 * i.size),
    Row("scatter to 20 rows", lambda n, x, i, s: x.index_add(0, i, s),
        lambda r, s: [floats(r, 20, 64), r.integers(0, 20, 1 << (9 + s)), floats(r, 1 << (9 + s), 64)], once),
    Row("histogram of 16 bins", histogram,
        lambda r, s: [r.integers(0, 16, 1 << (12 + s))], once),
    Row("scatter of scalars", lambda n, x, i, s: x.index_add(0, i, s),
        lambda r, s: [floats(r, 1 << (12 + s)), r.integers(0, 1 << (12 + s), 1 << (13 + s)), floats(r, 1 << (13 + s))], twice),
    Row("attention", lambda n, q, k, v: n.F.scaled_dot_product_attention(q, k, v),
        lambda r, s: [floats(r, 2, 8, 64 << (s // 2), 64)] * 3, twice, attention_flops),
    Row("attention, 4 heads to each of the keys'", lambda n, q, k, v: n.F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        lambda r, s: [floats(r, 2, h, 64 << (s // 2), 64) for h in (8, 2, 2)], twice, attention_flops),
    Row("attention of a row to many keys", lambda n, q, k, v: n.F.scaled_dot_product_attention(q, k, v),
        lambda r, s: [floats(r, 4, 8, 1, 64), *(floats(r, 4, 8, 512 << (s // 2), 64) for _ in range(2))], twice, attention_flops),
    Row("product of halves", lambda n, a, b: a @ b, lambda r, s: [halves(r, 256 << (s // 2), 256 << (s // 2))] * 2,
        product_bytes, product_flops),
    Row("gradient of attention", lambda n, q, k, v: attended(n, q, k, v, False),
        lambda r, s: [floats(r, 2, 8, 64 << (s // 2), 64)] * 3, lambda q, k, v: 2 * twice(q, k, v),
        lambda q, k, v: 3.5 * attention_flops(q, k, v)),
    Row("updates of 20 small parameters", updated, lambda r, s: [floats(r, 1000) for _ in range(40)], once),
    Row("product 4096", lambda n, a, b: a @ b, lambda r, s: [floats(r, 64 << s, 64 << s)] * 2, product_bytes, product_flops),
    Row("product 4096, halves", lambda n, a, b: a @ b, lambda r, s: [halves(r, 64 << s, 64 << s)] * 2, product_bytes, product_flops),
    Row("product 2048, float64", lambda n, a, b: a @ b, lambda r, s: [r.standard_normal((32 << s, 32 << s))] * 2, product_bytes,
        product_flops),
    Row("product of 16 rows", lambda n, a, b: a @ b, lambda r, s: [floats(r, 16, 64 << s), floats(r, 64 << s, 64 << s)], product_bytes,
        product_flops),
    Row("convolution of 256 channels, 14x14", lambda n, x, w: n.F.conv2d(x, w, padding=1),
        lambda r, s: [floats(r, 2 << s, 256, 14, 14), floats(r, 256, 256, 3, 3)], twice, conv_flops),
    Row("GPT-2 block, gradients", lambda n, *a: n.grad(lambda *a: block(n, *a), argnums=(0, 1, 2, 3, 4))(*a), block_arguments,
        lambda *a: 3 * once(*a), block_flops),
    Row("causal attention, T2048, gradients", lambda n, q, k, v: attended(n, q, k, v, True),
        lambda r, s: [floats(r, 4, 16, 32 << s, 64)] * 3, lambda q, k, v: 2 * twice(q, k, v),
        lambda q, k, v: 1.75 * attention_flops(q, k, v)),
    Row("GRU of 64 steps, gradients", lambda n, *a: n.grad(lambda *a: recurrent(n, *a), argnums=(0, 1, 2, 3))(*a), recurrent_arguments,
        lambda *a: 3 * once(*a), lambda x, h, w, u: 6.0 * x.shape[0] * x.shape[1] * (w.size + u.size)),
    Row("embedding, means of bags of 16, gradient", lambda n, t, i: n.grad(lambda t: (n.F.embedding(i, t).mean(1) ** 2).sum())(t),
        lambda r, s: [floats(r, 1 << (14 + s), 64), r.integers(0, 1 << (14 + s), (1 << (10 + s), 16))],
        lambda t, i: t.nbytes + i.nbytes + FP32 * 64 * i.size),
    Row("sort of 16M", lambda n, x: x.sort()[0], lambda r, s: [floats(r, 1 << (18 + s))], twice),
    Row("sort of rows of 4096", lambda n, x: x.sort(-1)[0], lambda r, s: [floats(r, 64 << s, 4096)], twice),
    Row("FFT 4096x4096", lambda n, x: n.T.fft.fft2(x), lambda r, s: [(floats(r, 64 << s, 64 << s) + 1j).astype(np.complex64)], twice),
    Row("solve of systems of 16", lambda n, a, b: n.T.linalg.solve(a, b),
        lambda r, s: [floats(r, 128 << s, 16, 16) + 8 * np.eye(16, dtype=np.float32), floats(r, 128 << s, 16, 1)], twice),
    Row("Cholesky, float64", lambda n, a: n.T.linalg.cholesky(a), positive, twice),
]


def mlp(nn: Any, s: int) -> tuple[Any, Any]:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)), (32 << (s // 2), 784)


def wide_mlp(nn: Any, s: int) -> tuple[Any, Any]:
    width = 64 << s
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1000)), (width, width)


def convnet(nn: Any, s: int) -> tuple[Any, Any]:
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 64, 10)), (8 << (s // 2), 3, 32, 32)


def transformer(nn: Any, s: int) -> tuple[Any, Any]:
    """An encoder layer on rows, and a linear layer on their mean."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True), nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.layer(x).mean(1))

    return Classifier(), (4 << (s // 2), 64, 128)


# What makes the model and its input's shape, of the framework's `nn` and a scale.
STEPS: dict[str, Callable[[Any, int], tuple[Any, Any]]] = {
    "MLP 784-512-256-10, Adam": mlp, "MLP 4096-4096-1000, Adam": wide_mlp, "convnet, Adam": convnet, "transformer, Adam": transformer,
}
