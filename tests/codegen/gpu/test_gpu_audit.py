"""Whether plans for GPUs are what a GPU is built for: one program of each class, audited (tests/helpers/plan_audit.py). Start at
`CLASSES`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
import tracegrad.nn.functional as F
from tests.helpers.plan_audit import GPU, TARGETS, Finding, audit, spilled
from tracegrad.codegen.compiler import compile_graph
from tracegrad.graph.ir import Aval, Graph
from tracegrad.graph.primitive import placeholder
from tracegrad.ops.primitives.reduction import total
from tracegrad.support.plan import Target

RNG = np.random.default_rng(0)


def f4(*shape: int) -> Any:
    """An array whose values do not matter: its pages are touched only where the sample looks."""
    return np.zeros(shape, np.float32)


def ints(top: int, *shape: int) -> Any:
    return RNG.integers(0, top, shape)


def gradients(fn: Callable[..., Any], *which: int) -> Callable[..., Any]:
    return tg.grad(lambda *x: fn(*x).square().sum(), argnums=which)


def adam(*tensors: Any) -> Any:
    """An update of many small parameters, each its own tensor."""
    out = []
    for p, g in zip(tensors[::2], tensors[1::2], strict=True):
        p.sub_(g / (g.abs() + 1e-8), alpha=0.1)
        out.append(p)
    return tuple(out)


CLASSES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "elementwise": (lambda x, y: tg.tanh(x * y + 1), [f4(1 << 21), f4(1 << 21)]),
    "elementwise, broadcast": (lambda x, b: x + b, [f4(4096, 1000), f4(1000)]),
    "transposed read": (lambda x, y: x.t() + y, [f4(1024, 2048), f4(2048, 1024)]),
    "gather of rows": (lambda x, i: x[i], [f4(50000, 64), ints(50000, 20000)]),
    "gather of rows of halves": (lambda x, i: F.embedding(i, x), [np.zeros((50000, 64), np.float16), ints(50000, 40000)]),
    "permuted": (lambda x: x.transpose(1, 2) + 1, [f4(8, 512, 8, 64)]),
    "halves": (lambda x: x.half() * 2, [f4(1 << 20)]),
    "short rows": (lambda x: x.softmax(-1), [f4(100_000, 10)]),
    "rows of 64": (lambda x: x.sum(-1), [f4(50_000, 64)]),
    "rows": (lambda x: x.softmax(-1), [f4(4096, 1000)]),
    "row norms": (lambda x, w: F.layer_norm(x, (768,), w, w), [f4(8192, 768), f4(768)]),
    "long rows": (lambda x: x.log_softmax(-1), [f4(64, 50_000)]),
    "whole sum": (lambda x: (x * x).sum(), [f4(1 << 22)]),
    "sum of columns": (lambda x: x.sum(0), [f4(1 << 17, 64)]),
    "sum of few columns": (lambda x: x.sum(0), [f4(1 << 17, 5)]),
    "sum of many columns": (lambda x: x.sum(0), [f4(512, 4096)]),
    "two small softmaxes": (lambda x, y: (x.softmax(-1), y.softmax(-1)), [f4(32, 100), f4(48, 100)]),
    "matrix times vector": (lambda a, x: a @ x, [f4(2048, 2048), f4(2048)]),
    "vector times matrix": (lambda a, x: x @ a, [f4(2048, 2048), f4(2048)]),
    "product": (lambda a, b: a @ b, [f4(1024, 1024), f4(1024, 1024)]),
    "product, transposed": (lambda a, b: a @ b.t(), [f4(1024, 1024), f4(1024, 1024)]),
    "product, odd sizes": (lambda a, b: a @ b, [f4(1000, 700), f4(700, 1003)]),
    "product, split k": (lambda a, b: a @ b, [f4(64, 16384), f4(16384, 64)]),
    "linear layer": (lambda x, w, b: F.relu(F.linear(x, w, b)), [f4(512, 784), f4(256, 784), f4(256)]),
    "batched products": (lambda a, b: a @ b, [f4(64, 128, 64), f4(64, 64, 128)]),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), [f4(16, 64, 28, 28), f4(64, 64, 3, 3)]),
    "convolution, first layer": (lambda x, w: F.conv2d(x, w, stride=2, padding=3), [f4(8, 3, 64, 64), f4(64, 3, 7, 7)]),
    "convolution, gradients": (gradients(lambda x, w: F.conv2d(x, w, padding=1), 0, 1), [f4(16, 32, 28, 28), f4(64, 32, 3, 3)]),
    "convolution, strided, gradient": (gradients(lambda x, w: F.conv2d(x, w, stride=2, padding=1), 0),
                                       [f4(16, 32, 28, 28), f4(64, 32, 3, 3)]),
    "convolution, 7x7, gradients": (gradients(lambda x, w: F.conv2d(x, w, stride=2, padding=3), 0, 1), [f4(8, 3, 64, 64), f4(64, 3, 7, 7)]),
    "convolution, depthwise, gradients": (gradients(lambda x, w: F.conv2d(x, w, padding=1, groups=64), 0, 1),
                                          [f4(8, 64, 28, 28), f4(64, 1, 3, 3)]),
    "convolution, transposed": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [f4(16, 64, 14, 14), f4(64, 32, 2, 2)]),
    "product of halves": (lambda a, b: a @ b, [np.zeros((1024, 1024), np.float16), np.zeros((1024, 1024), np.float16)]),
    "product, computed operands": (lambda a, b: (a * 2) @ b.exp(), [f4(1024, 1024), f4(1024, 1024)]),
    "max pooling, gradient": (gradients(lambda x: F.max_pool2d(x, 3, 2, 1), 0), [f4(8, 64, 56, 56)]),
    "cumsum": (lambda x: x.cumsum(0), [f4(1 << 21)]),
    "cumsum of rows": (lambda x: x.cumsum(-1), [f4(2000, 1000)]),
    "cumsum of columns": (lambda x: x.cumsum(0), [f4(4096, 256)]),
    "argmax": (lambda x: x.argmax(), [f4(1 << 21)]),
    "argmax of rows": (lambda x: x.argmax(-1), [f4(4096, 1000)]),
    "argmax of columns": (lambda x: x.argmax(0), [f4(4096, 256)]),
    "sort": (lambda x: x.sort()[1], [f4(1 << 18)]),
    "sort of rows": (lambda x: x.sort(-1)[1], [f4(1000, 1000)]),
    "topk": (lambda x: x.topk(8)[1], [f4(64, 50_000)]),
    "scatter": (gradients(lambda t, i: F.embedding(i, t), 0), [f4(50_000, 64), ints(50_000, 20_000)]),
    "scatter to few rows": (lambda x, i, s: x.index_add(0, i, s), [f4(20, 64), ints(20, 200_000), f4(200_000, 64)]),
    "scatter of scalars": (lambda x, i, s: x.index_add(0, i, s), [f4(50_000), ints(50_000, 100_000), f4(100_000)]),
    "attention": (F.scaled_dot_product_attention, [f4(2, 8, 256, 64), f4(2, 8, 256, 64), f4(2, 8, 256, 64)]),
    "attention, gradients": (gradients(lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), 0, 1, 2),
                             [f4(2, 8, 256, 64), f4(2, 8, 256, 64), f4(2, 8, 256, 64)]),
    "written attention, masked, gradients": (gradients(
        lambda q, k, v, m, n: tg.softmax((q @ k.mT * 0.125 + n).masked_fill(m, -tg.inf), -1) @ v, 0, 1, 2),
        [f4(2, 8, 256, 64), f4(2, 8, 256, 64), f4(2, 8, 256, 64), np.zeros((2, 1, 1, 256), bool), f4(8, 256, 256)]),
    "attention to many keys": (F.scaled_dot_product_attention, [f4(4, 8, 1, 64), f4(4, 8, 8192, 64), f4(4, 8, 8192, 64)]),
    "attention, grouped queries": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                                   [f4(2, 8, 256, 64), f4(2, 2, 256, 64), f4(2, 2, 256, 64)]),
    "many small updates": (adam, [f4(64 + 17 * k) for k in range(20) for _ in range(2)]),
}
LAUNCHES = {         # at most
    "attention": 2, "attention, gradients": 6, "written attention, masked, gradients": 7, "many small updates": 2, "cumsum": 3,
    "attention to many keys": 2, "attention, grouped queries": 2, "convolution, transposed": 1, "max pooling, gradient": 2,
}


QUICK = {name: list(TARGETS)[1:][k % (len(TARGETS) - 1)] for k, name in enumerate(CLASSES)}


@pytest.mark.long
@pytest.mark.parametrize("name", CLASSES)
def test_a_plan_for_gpus(name: str) -> None:
    """No launch has a problem, on a middling GPU and on another one."""
    for target in ("middling", QUICK[name]):
        found, said = looked_at(name, TARGETS[target])
        assert not said, "\n".join([target, *said, *map(str, found)])


@pytest.mark.slow
@pytest.mark.parametrize("target", list(TARGETS)[1:])
@pytest.mark.parametrize("name", CLASSES)
def test_a_plan_for_each_gpu(name: str, target: str) -> None:
    found, said = looked_at(name, TARGETS[target])
    assert not said, "\n".join([*said, *map(str, found)])


def looked_at(name: str, target: Target) -> tuple[list[Finding], list[str]]:
    """The launches of a class, and what is wrong with them."""
    fn, arrays = CLASSES[name]
    found = audit(fn, arrays, target)
    said = [f"{f.entry}: {p}" for f in found for p in f.problems(target)]
    if len(found) > LAUNCHES.get(name, len(found)):
        said.append(f"{len(found)} launches, {LAUNCHES[name]} wanted")
    return found, said


def main() -> None:
    """The table of all classes, for the targets that are named (`python -m tests.codegen.gpu.test_gpu_audit Intel ARM`), or all."""
    for target in sys.argv[1:] or TARGETS:
        for name in CLASSES:
            found, said = looked_at(name, TARGETS[target])
            print(f"{target}: {name}: {'; '.join(said) or 'good'}", flush=True)
            for f in found if len(sys.argv) == 2 else ():
                print(f"    {f.entry} items {f.items} local {f.local} work {f.work} trips {f.trips} sectors {f.sectors:.2f} "
                      f"conflicts {f.conflicts:.2f} registers {f.registers} local bytes {f.local_bytes}")


def test_what_would_be_spilled_is_found() -> None:
    loop = "for (int k = 0; k < n; k++) {{\n    c[{}] += tile[k];\n  }}"
    for use, above, found in (("k", "", "c[k]"), ("k", "#pragma unroll\n  ", ""), ("3", "", "")):
        assert spilled(f"  float c[4], d;\n  __local float tile[9];\n  {above}{loop.format(use)}") == found


if __name__ == "__main__":
    main()


def test_sums_of_long_columns_that_are_none() -> None:
    x = placeholder(Aval((100, 0), np.dtype("float32")), "x")
    compile_graph(Graph.capture([x], [total(x, (0,))]), GPU)
