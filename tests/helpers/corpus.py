"""The kernels of some 70 programs for four targets, as text: what a change of the code generator changed. `make kernels-diff REV=HEAD~1`.

`python tests/helpers/corpus.py FOLDER` writes a file for each program and target, without a driver. It imports nothing of the tests, so
that it runs with the tracegrad of another commit.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tracegrad as tg
import tracegrad.nn.functional as F
from tracegrad.codegen.compiler import compile_graph
from tracegrad.execute.compile import executable_graph
from tracegrad.support.plan import Target

TARGETS = {
    "avx2": Target(), "avx512": Target(simd_bytes=64, registers=32), "builtins": Target(plain_math=False, clang_builtins=False, cores=16),
    "gpu": Target("gpu", 16, 16, 16, 256, 32768, plain_math=False, clang_builtins=False),
}
N = (3, 40)                # the shape of x and y
ROWS = {                   # name: text, of x and y, and what is traced of it
    "chain": "tg.tanh(x * y + 1).sigmoid() - x.exp()", "integers": "(x * 30).int() // 7 % 5 + (y * 9).long()",
    "bools": "(x > y) | (x < 0)", "halves": "(x.half() * 2 + y.half()).sum(1)", "where": "tg.where(x > y, x.log1p(), y * y)",
    "power": "x ** 3 + 2 ** y + x.abs() ** y", "remainder": "x % 0.7 + x // 0.3", "broadcast": "x - y[0] * x[:, :1]",
    "transposed": "(x.t() * 2 + y.t()).contiguous()", "pad": "F.pad(x, (13, 2)) * 2", "pad and sum": "F.pad(x, (40, 0)).sum(1)",
    "roll": "tg.roll(x, 1, 1) * y + tg.roll(x, -3, 0)", "flip": "x.flip(1) + y.flip(0)", "stride": "x[:, ::2] * y[:, 1::2]",
    "cat": "tg.cat([x, y[:, 3:], x * y], 1)", "stack": "tg.stack([x, y, x], 1)", "stencil": "x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2]",
    "padded stencil": "F.pad(x, (1, 1))[:, 2:] + F.pad(x, (1, 1))[:, :-2] - 2 * x", "row sum": "(x * y).sum(1)",
    "column sum": "(x * y).sum(0)", "whole sum": "(x * y).sum()", "mean and variance": "x.var(1) + y.mean(1)",
    "several sums": "(x.sum(1), x.amax(1), (x * y).amin(1), x.sum(0), x.prod(1))", "any": "(x > 2).any(1)", "norm": "x.norm(dim=1)",
    "softmax": "tg.softmax(x, 1)", "log softmax": "tg.log_softmax(x * y, 1)", "softmax of columns": "tg.softmax(x, 0)",
    "layer norm": "F.layer_norm(x, (40,))", "rms norm": "x * tg.rsqrt((x * x).mean(1, keepdim=True) + 1e-6)",
    "logsumexp": "tg.logsumexp(x, 1)", "centred": "F.pad(x, (40, 0)) - F.pad(x, (40, 0)).amax(1, keepdim=True)",
    "cross entropy": "F.cross_entropy(x, (y[:, 0] > 0).long())", "cumsum": "x.cumsum(1) + y.cumsum(0)", "cumprod": "x.cumprod(1)",
    "argmax": "(x.argmax(1), y.argmin(0))", "sort": "tg.sort(x, 1)", "topk": "tg.topk(x, 3)", "gather": "x.gather(1, (y > 0).long())",
    "take": "x[(y[0, :5] > 0).long()]", "scatter": "x.scatter_add(1, (y > 0).long(), y)",
    "index add": "x.index_add(0, (y[0, :3] > 0).long(), y)", "embedding": "F.embedding((y > 0).long(), x)",
    "one hot": "F.one_hot((x > 0).long(), 4)", "triangle": "tg.tril(fit(x, (10, 12)))", "diagonal": "fit(x, (9, 9)).diagonal() * 2",
    "outer": "x[0, :, None] * y[1, None, :]", "matmul": "x @ y.t()", "linear": "F.relu(F.linear(x, fit(y, (7, 40)), y[0, :7]))",
    "gemv": "x @ y[0]", "batched": "fit(x, (2, 5, 12)) @ fit(y, (2, 12, 3))", "fused operand": "(x * 2).exp() @ y.t()",
    "einsum": "tg.einsum('ij,kj->ik', x, y)", "wide product": "fit(x, (65, 100)) @ fit(y, (100, 33))",
    "conv": "F.relu(F.conv2d(fit(x, (2, 3, 9, 9)), fit(y, (4, 3, 3, 3)), padding=1))",
    "strided conv": "F.conv2d(fit(x, (1, 2, 11, 13)), fit(y, (3, 2, 3, 3)), stride=2)",
    "conv1d": "F.conv1d(fit(x, (2, 3, 30)), fit(y, (4, 3, 5)))", "max pool": "F.max_pool2d(fit(x, (1, 2, 9, 9)), 2)",
    "average pool": "F.avg_pool2d(fit(x, (1, 2, 9, 9)), 3, 2)",
    "attention": "F.scaled_dot_product_attention(fit(x, (1, 2, 6, 10)), fit(y, (1, 2, 5, 10)), fit(x, (1, 2, 5, 10)))",
    "distances": "(fit(x, (33, 1, 3)) - fit(y, (17, 3))).square().sum(-1).exp()", "points": "fit(x, (33, 4)).sum(0)",
    "rows and columns": "(lambda z: (z.sum(1), z.sum(0)))(fit(x, (33, 40)).tanh())",
    "scalar": "x * c + c", "steps": "steps(x, y)", "update": "update(x, y, c)",
}
GRADIENTS = (
    "chain", "where", "pad", "roll", "stride", "cat", "stencil", "row sum", "softmax", "layer norm", "logsumexp", "cumprod", "gather",
    "matmul", "linear", "conv", "max pool", "attention", "cross entropy", "embedding", "distances",
)


def fit(x: Any, shape: tuple[int, ...]) -> Any:
    """The elements of x, in order and over again, in another shape."""
    count = int(np.prod(shape))
    return x.reshape(-1).repeat(-(-count // x.numel()))[:count].reshape(shape)


def steps(x: Any, y: Any) -> Any:
    """Some steps of a wave on a ring."""
    for _ in range(3):
        x, y = x + 0.1 * y, y + 0.1 * (tg.roll(x, 1, 1) + tg.roll(x, -1, 1) - 2 * x)
    return x, y


def update(x: Any, y: Any, c: float) -> Any:
    """A step of momentum, in place."""
    y.mul_(0.9).add_(x)
    x.sub_(y, alpha=c)
    return (x * x).sum()


def programs() -> dict[str, Any]:
    """The functions of (x, y, c)."""
    world = {"tg": tg, "F": F, "fit": fit, "steps": steps, "update": update}
    found = {name: eval(f"lambda x, y, c: {text}", world) for name, text in ROWS.items()}

    def gradient(fn: Any) -> Any:
        return lambda x, y, c: tg.grad(lambda x, y: fn(x, y, c).square().sum(), argnums=(0, 1))(x, y)

    return found | {f"gradient of {name}": gradient(found[name]) for name in GRADIENTS}


def main(folder: Path) -> None:
    tg.set_device("numpy")
    rng = np.random.default_rng(0)
    for name, fn in programs().items():
        x, y = (tg.tensor(rng.standard_normal(N).astype(np.float32)) for _ in range(2))
        traced = tg.trace(fn)
        traced(x, y, 0.5)
        program = traced._seen().program
        for kind, target in TARGETS.items():
            plan = compile_graph(executable_graph(program.graph), target)
            text = "\n".join(line.partition("  // ")[0] for line in plan.source.splitlines())       # without the Python lines
            text = re.sub(r"^#define .*\n", "", text, flags=re.MULTILINE)
            launches = "".join(f"// {step.entry} {step.global_size} {step.local_size}\n" for step in plan.launches)
            path = folder / kind / f"{name.replace(' ', '_')}.cl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(launches + text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
