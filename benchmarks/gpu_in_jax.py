"""The rows of `benchmarks.gpu_rows` as they are written for JAX: what `jax.jit` gets, by the row's name.

A row without an entry has no time of JAX in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu_rows import HEADS


def rows() -> dict[str, Callable[..., Any]]:
    """jax is imported when this is called."""
    import jax

    return {**_operations(jax), **_networks(jax)}


def _norm(jax: Any) -> Callable[..., Any]:
    return lambda x: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def _networks(jax: Any) -> dict[str, Callable[..., Any]]:
    """Attention, parts of networks, and the updates of parameters."""
    norm = _norm(jax)

    def attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
        """Of (batch, heads, time, width); jax's own has the heads after the time."""
        return jax.nn.dot_product_attention(*(t.swapaxes(1, 2) for t in (q, k, v)), is_causal=causal).swapaxes(1, 2)

    def attended(causal: bool) -> Callable[..., Any]:
        return jax.grad(lambda q, k, v: (attention(q, k, v, causal) ** 2).sum(), argnums=(0, 1, 2))

    def block(x: Any, qkv: Any, out: Any, up: Any, down: Any) -> Any:
        batch, time, width = x.shape
        q, k, v = (norm(x) @ qkv).reshape(batch, time, 3, HEADS, -1).transpose(2, 0, 1, 3, 4)
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, time, width) @ out
        x = x + jax.nn.gelu(norm(x) @ up) @ down
        return (x * x).mean()

    def recurrent(x: Any, h: Any, w: Any, u: Any) -> Any:
        width = h.shape[-1]

        def step(h: Any, part: Any) -> Any:
            inner = h @ u
            reset, update = (jax.nn.sigmoid(part[:, a:b] + inner[:, a:b]) for a, b in ((0, width), (width, 2 * width)))
            return update * h + (1 - update) * jax.numpy.tanh(part[:, 2 * width:] + reset * inner[:, 2 * width:]), None

        h, _ = jax.lax.scan(step, h, x @ w)
        return (h * h).mean()

    def updated(*tensors: Any) -> Any:
        return tuple(p - 0.1 * g / (abs(g) + 1e-8) for p, g in zip(tensors[::2], tensors[1::2], strict=True))

    return {
        "attention": attention,
        "attention, 4 heads to each of the keys'": attention,
        "attention of a row to many keys": attention,
        "gradient of attention": attended(False),
        "causal attention, T2048, gradients": attended(True),
        "GPT-2 block, gradients": jax.grad(block, argnums=(0, 1, 2, 3, 4)),
        "GRU of 64 steps, gradients": jax.grad(recurrent, argnums=(0, 1, 2, 3)),
        "updates of 20 small parameters": updated,
    }


def _operations(jax: Any) -> dict[str, Callable[..., Any]]:
    """Single operations, their gradients, and a few of them together."""
    jnp = jax.numpy

    def conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), [(1, 1), (1, 1)], feature_group_count=groups)

    def max_pool(x: Any) -> Any:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)])

    softmax = jax.nn.softmax
    return {
        "elementwise, 3 operations": lambda x, y: jnp.tanh(x * y + 1),
        "elementwise, halves": lambda x: x * 2 + 1,
        "transposed read": lambda x, y: x.T + y,
        "gather of rows of 64": lambda x, i: x[i],
        "gather of rows of 64 halves": lambda x, i: x[i],
        "permuted, rows of 64": lambda x: x.swapaxes(1, 2) + 1,
        "rows and a bias": lambda x, b: jax.nn.relu(x + b),
        "two small softmaxes": lambda x, y: (softmax(x, -1), softmax(y, -1)),
        "softmax of rows of 10": lambda x: softmax(x, -1),
        "softmax of rows of 1000": lambda x: softmax(x, -1),
        "layer norm of rows of 768": _norm(jax),
        "log softmax of 64 long rows": lambda x: jax.nn.log_softmax(x, -1),
        "whole sum": lambda x: (x * x).sum(),
        "sum of 64 columns": lambda x: x.sum(0),
        "convolution 3x3, 64 channels": conv,
        "convolution of 256 channels, 14x14": conv,
        "its gradient by the image": lambda x, w: jax.grad(lambda x: conv(x, w).sum())(x),
        "its gradient by the weight": lambda x, w: jax.grad(lambda w: (conv(x, w) ** 2).sum())(w),
        "its gradient by the image, stride 2": lambda x, w: jax.grad(lambda x: conv(x, w, 2).sum())(x),
        "depthwise convolution 3x3": lambda x, w: conv(x, w, 1, 64),
        "gradient of max pooling 3x3, stride 2": jax.grad(lambda x: (max_pool(x) ** 2).sum()),
        "cumsum": lambda x: x.cumsum(0),
        "cumsum of rows of 1000": lambda x: x.cumsum(-1),
        "cumsum of columns": lambda x: x.cumsum(0),
        "argmax": lambda x: x.argmax(),
        "argmax of rows of 1000": lambda x: x.argmax(-1),
        "argmax of 256 columns": lambda x: x.argmax(0),
        "sort": lambda x: x.argsort(),
        "sort of rows of 1000": lambda x: x.argsort(-1),
        "sort of 16M": lambda x: jnp.sort(x),
        "sort of rows of 4096": lambda x: jnp.sort(x, -1),
        "topk of 64 long rows": lambda x: jax.lax.top_k(x, 8)[1],
        "gradient of an embedding": lambda t, i: jax.grad(lambda t: (t[i] ** 2).sum())(t),
        "embedding, means of bags of 16, gradient": lambda t, i: jax.grad(lambda t: (t[i].mean(1) ** 2).sum())(t),
        "scatter to 20 rows": lambda x, i, s: x.at[i].add(s),
        "histogram of 16 bins": lambda i: jnp.zeros(16).at[i].add(1.0),
        "scatter of scalars": lambda x, i, s: x.at[i].add(s),
        "FFT 4096x4096": jnp.fft.fft2,
        "solve of systems of 16": jnp.linalg.solve,
        "Cholesky, float64": jnp.linalg.cholesky,
        **dict.fromkeys(("matrix times vector", "product", "product, odd sizes", "product of 64 x long k x 64",
                         "batched products of 128 x 64 x 128", "product of halves", "product 4096", "product 4096, halves",
                         "product 2048, float64", "product of 16 rows"), jnp.matmul),
    }
