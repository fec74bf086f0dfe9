"""Every class of kernels on a GPU, beside what the device can do: `python -m benchmarks.gpu` (`make bench-gpu`). Start at `ROWS`.

It writes benchmarks/RESULTS-gpu.md: the device and its driver, its extensions, what it copies and computes at most, and for each class
the time of its kernels (events of the queue, medians), and what share of the device's limit that is: of the time that the bytes that have
to move, or the arithmetic that has to be done, take at least. Then whole training steps (`STEPS`), with what is not kernels' time, and new
arrays that come beside kernels. Where no GPU is found it says so and writes nothing; `--device cpu` tries it on another device, and with
`--as-gpu` by the kernels that a GPU would get.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tracegrad as tg
import tracegrad.nn.functional as F
from tracegrad import nn, optim
from tracegrad.errors import NoDriverError, TracegradError
from tracegrad.runtime.device import Device, devices, find
from tracegrad.runtime.limits import limits

RESULTS = Path(__file__).with_name("RESULTS-gpu.md")
FP32 = 4


@dataclass(frozen=True)
class Row:
    """A class: a function, its arguments for a size, and the least that it has to move and compute."""

    name: str
    fn: Callable[..., Any]
    arguments: Callable[[Any, int], Sequence[Any]]        # of a generator and a scale (a power of two: 0 for CPUs)
    bytes: Callable[..., float]                           # of the arguments
    flops: Callable[..., float] = lambda *_: 0.0


def floats(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape, np.float32)


def twice(*arrays: Any) -> float:
    """Each argument is read, and something like the first is written."""
    return float(sum(a.nbytes for a in arrays) + arrays[0].nbytes)


def once(*arrays: Any) -> float:
    """Each argument is read; little is written."""
    return float(sum(a.nbytes for a in arrays))


def product_bytes(a: Any, b: Any) -> float:
    return float(a.nbytes + b.nbytes + FP32 * a.size // a.shape[-1] * b.shape[-1])


def product_flops(a: Any, b: Any) -> float:
    return 2.0 * a.size * (b.shape[-1] if b.ndim > 1 else 1)


def conv_flops(x: Any, w: Any) -> float:
    return 2.0 * x.shape[0] * x.shape[2] * x.shape[3] * w.size


def conv_flops_apart(x: Any, w: Any) -> float:
    return 2.0 * x.size * w.shape[2] * w.shape[3]


def grouped(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def attention_flops(q: Any, k: Any, v: Any) -> float:
    return 4.0 * q.size * k.shape[-2]


def attended(q: Any, k: Any, v: Any) -> Any:
    return (F.scaled_dot_product_attention(q, k, v) ** 2).sum()


def updated(*tensors: Any) -> Any:
    return tuple(p - 0.1 * g / (g.abs() + 1e-8) for p, g in zip(tensors[::2], tensors[1::2], strict=True))


ROWS = [
    Row("elementwise, 3 operations", lambda x, y: tg.tanh(x * y + 1), lambda r, s: [floats(r, 1 << (18 + s))] * 2, twice),
    Row("elementwise, halves", lambda x: x * 2 + 1, lambda r, s: [floats(r, 1 << (18 + s)).astype(np.float16)], twice),
    Row("transposed read", lambda x, y: x.t() + y, lambda r, s: [floats(r, 512, 256 << s), floats(r, 256 << s, 512)], twice),
    Row("gather of rows of 64", lambda x, i: x[i], lambda r, s: [floats(r, 1 << (12 + s), 64), r.integers(0, 4096, 1 << (12 + s))],
        lambda x, i: i.nbytes + 2 * FP32 * 64 * i.size),
    Row("gather of rows of 64 halves", lambda x, i: F.embedding(i, x),
        lambda r, s: [floats(r, 1 << (12 + s), 64).astype(np.float16), r.integers(0, 4096, 1 << (12 + s))],
        lambda x, i: i.nbytes + FP32 * 64 * i.size),
    Row("permuted, rows of 64", lambda x: x.transpose(1, 2) + 1, lambda r, s: [floats(r, 4, 16 << s, 8, 64)], twice),
    Row("rows and a bias", lambda x, b: (x + b).relu(), lambda r, s: [floats(r, 256 << s, 1024), floats(r, 1024)], twice),
    Row("two small softmaxes", lambda x, y: (x.softmax(-1), y.softmax(-1)), lambda r, s: [floats(r, 32, 100), floats(r, 48, 100)], twice),
    Row("softmax of rows of 10", lambda x: x.softmax(-1), lambda r, s: [floats(r, 10_000 << s, 10)], twice),
    Row("softmax of rows of 1000", lambda x: x.softmax(-1), lambda r, s: [floats(r, 256 << s, 1000)], twice),
    Row("layer norm of rows of 768", lambda x: F.layer_norm(x, (768,)), lambda r, s: [floats(r, 256 << s, 768)], twice),
    Row("log softmax of 64 long rows", lambda x: x.log_softmax(-1), lambda r, s: [floats(r, 64, 4096 << s)], twice),
    Row("whole sum", lambda x: (x * x).sum(), lambda r, s: [floats(r, 1 << (18 + s))], once),
    Row("sum of 64 columns", lambda x: x.sum(0), lambda r, s: [floats(r, 1 << (12 + s), 64)], once),
    Row("matrix times vector", lambda a, b: a @ b, lambda r, s: [floats(r, 256 << (s // 2), 1024 << (s // 2)), floats(r, 1024 << (s // 2))],
        once, product_flops),
    Row("product", lambda a, b: a @ b, lambda r, s: [floats(r, 256 << (s // 2), 256 << (s // 2))] * 2, product_bytes, product_flops),
    Row("product, odd sizes", lambda a, b: a @ b,
        lambda r, s: [floats(r, 250 << (s // 2), 260 << (s // 2)), floats(r, 260 << (s // 2), 251)], product_bytes, product_flops),
    Row("product of 64 x long k x 64", lambda a, b: a @ b, lambda r, s: [floats(r, 64, 4096 << (s // 2)), floats(r, 4096 << (s // 2), 64)],
        product_bytes, product_flops),
    Row("batched products of 128 x 64 x 128", lambda a, b: a @ b, lambda r, s: [floats(r, 4 << s, 128, 64), floats(r, 4 << s, 64, 128)],
        product_bytes, product_flops),
    Row("convolution 3x3, 64 channels", lambda x, w: F.conv2d(x, w, padding=1),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)], twice, conv_flops),
    Row("its gradient by the image", lambda x, w: tg.grad(lambda x: F.conv2d(x, w, padding=1).sum())(x),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)], twice, conv_flops),
    Row("its gradient by the weight", lambda x, w: tg.grad(lambda w: (F.conv2d(x, w, padding=1) ** 2).sum())(w),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)], twice, lambda x, w: 2 * conv_flops(x, w)),
    Row("its gradient by the image, stride 2", lambda x, w: tg.grad(lambda x: F.conv2d(x, w, stride=2, padding=1).sum())(x),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 64, 3, 3)], twice, lambda x, w: conv_flops(x, w) / 4),
    Row("depthwise convolution 3x3", lambda x, w: F.conv2d(x, w, padding=1, groups=64),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28), floats(r, 64, 1, 3, 3)], twice, conv_flops_apart),
    Row("gradient of max pooling 3x3, stride 2", lambda x: tg.grad(lambda x: (F.max_pool2d(x, 3, 2, 1) ** 2).sum())(x),
        lambda r, s: [floats(r, 1 << (s // 2), 64, 28, 28)], lambda x: 3.0 * x.nbytes),
    Row("cumsum", lambda x: x.cumsum(0), lambda r, s: [floats(r, 1 << (16 + s))], twice),
    Row("cumsum of rows of 1000", lambda x: x.cumsum(-1), lambda r, s: [floats(r, 256 << s, 1000)], twice),
    Row("cumsum of columns", lambda x: x.cumsum(0), lambda r, s: [floats(r, 256 << s, 256)], twice),
    Row("argmax", lambda x: x.argmax(), lambda r, s: [floats(r, 1 << (18 + s))], once),
    Row("argmax of rows of 1000", lambda x: x.argmax(-1), lambda r, s: [floats(r, 256 << s, 1000)], once),
    Row("argmax of 256 columns", lambda x: x.argmax(0), lambda r, s: [floats(r, 256 << s, 256)], once),
    Row("sort", lambda x: x.sort()[1], lambda r, s: [floats(r, 1 << (12 + s))], lambda x: 3.0 * x.nbytes),
    Row("sort of rows of 1000", lambda x: x.sort(-1)[1], lambda r, s: [floats(r, 16 << s, 1000)], lambda x: 3.0 * x.nbytes),
    Row("topk of 64 long rows", lambda x: x.topk(8)[1], lambda r, s: [floats(r, 64, 4096 << (s // 2))], once),
    Row("gradient of an embedding", lambda t, i: tg.grad(lambda t: (F.embedding(i, t) ** 2).sum())(t),
        lambda r, s: [floats(r, 1 << (10 + s), 64), r.integers(0, 1 << (10 + s), 1 << (9 + s))],
        lambda t, i: t.nbytes + i.nbytes + 2 * FP32 * 64 * i.size),
    Row("scatter to 20 rows", lambda x, i, s: x.index_add(0, i, s),
        lambda r, s: [floats(r, 20, 64), r.integers(0, 20, 1 << (9 + s)), floats(r, 1 << (9 + s), 64)], once),
    Row("histogram of 16 bins", lambda i: tg.zeros(16).index_add(0, i, tg.ones(i.shape[0])),
        lambda r, s: [r.integers(0, 16, 1 << (12 + s))], once),
    Row("scatter of scalars", lambda x, i, s: x.index_add(0, i, s),
        lambda r, s: [floats(r, 1 << (12 + s)), r.integers(0, 1 << (12 + s), 1 << (13 + s)), floats(r, 1 << (13 + s))], twice),
    Row("attention", F.scaled_dot_product_attention, lambda r, s: [floats(r, 2, 8, 64 << (s // 2), 64)] * 3, twice, attention_flops),
    Row("attention, 4 heads to each of the keys'", grouped, lambda r, s: [floats(r, 2, h, 64 << (s // 2), 64) for h in (8, 2, 2)], twice,
        attention_flops),
    Row("attention of a row to many keys", F.scaled_dot_product_attention,
        lambda r, s: [floats(r, 4, 8, 1, 64), *(floats(r, 4, 8, 512 << (s // 2), 64) for _ in range(2))], twice, attention_flops),
    Row("product of halves", lambda a, b: a @ b, lambda r, s: [floats(r, 256 << (s // 2), 256 << (s // 2)).astype(np.float16)] * 2,
        product_bytes, product_flops),
    Row("gradient of attention", lambda q, k, v: tg.grad(attended, argnums=(0, 1, 2))(q, k, v),
        lambda r, s: [floats(r, 2, 8, 64 << (s // 2), 64)] * 3, lambda q, k, v: 2 * twice(q, k, v),
        lambda q, k, v: 3.5 * attention_flops(q, k, v)),
    Row("updates of 20 small parameters", updated, lambda r, s: [floats(r, 1000) for _ in range(40)], once),
]


def mlp(s: int) -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)), (32 << (s // 2), 784)


def convnet(s: int) -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 64, 10)), (8 << (s // 2), 3, 32, 32)


class Classifier(nn.Module):
    """An encoder layer on rows, and a linear layer on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x).mean(1))


STEPS: dict[str, Callable[[int], tuple[nn.Module, Any]]] = {
    "MLP, Adam": mlp, "convnet, Adam": convnet, "transformer, Adam": lambda s: (Classifier(), (4 << (s // 2), 64, 128)),
}


def stepped(name: str, scale: int, runs: int) -> list[str]:
    """A line of the table of steps: name, launches, wall time of one of many calls in a row, kernels' time, the rest."""
    model, shape = STEPS[name](scale)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)

    @tg.trace
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    rng = np.random.default_rng(0)
    x, y = tg.tensor(floats(rng, *shape)), tg.tensor(rng.integers(0, 10, shape[0]))
    for _ in range(3):
        step(x, y).item()
    walls = []
    for _ in range(5):
        start = time.perf_counter()
        losses = [step(x, y) for _ in range(runs)]
        losses[-1].item()
        walls.append((time.perf_counter() - start) / runs)
    profile = step.profile(runs=runs)
    kernels = sum(k.seconds for k in profile)
    wall = median(walls)
    return [name, str(sum(k.launches for k in profile)), f"{1e3 * wall:.3f}", f"{1e3 * kernels:.3f}", f"{1e3 * (wall - kernels):.3f}"]


def arriving(scale: int, runs: int) -> str:
    """New arrays and kernels, one after the other and together."""
    rng = np.random.default_rng(0)
    array, weight = floats(rng, 256 << (scale // 2), 1024), tg.tensor(floats(rng, 1024, 1024))
    step = tg.trace(lambda x, w: ((x @ w).tanh() @ w).sum())

    def timed(new: bool, work: bool) -> float:
        x, loss = tg.tensor(array), tg.zeros(())
        for turn in range(runs + 3):                         # the first compile, and make the memory that the others use again
            if turn == 3:
                loss.item()
                tg.synchronize()
                start = time.perf_counter()
            x = tg.tensor(array) if new else x
            loss = step(x, weight) if work else loss
        loss.item()
        tg.synchronize()
        return (time.perf_counter() - start) / runs

    alone, kernels, both = (median(timed(*which) for _ in range(3)) for which in ((True, False), (False, True), (True, True)))
    return (f"A new array of {array.nbytes >> 20} MiB a turn: {1e3 * alone:.2f} ms; kernels on it: {1e3 * kernels:.2f} ms; both: "
            f"{1e3 * both:.2f} ms (beside each other they could take {1e3 * max(alone, kernels):.2f}).")


def measured(row: Row, device: Device, scale: int, runs: int) -> list[str]:
    """A line of the table: name, launches, time, limit's time, share."""
    arguments = row.arguments(np.random.default_rng(0), scale)
    f, tensors = tg.trace(row.fn), [tg.tensor(a) for a in arguments]
    f(*tensors)
    profile = f.profile(runs=runs)
    seconds, most = sum(k.seconds for k in profile), limits(device)
    least = {"memory": row.bytes(*arguments) / most.bandwidth, "arithmetic": row.flops(*arguments) / most.float32}
    bound = max(least, key=lambda k: least[k])
    return [row.name, str(sum(k.launches for k in profile)), f"{1e3 * seconds:.3f}", f"{1e3 * least[bound]:.3f}", bound,
            f"{least[bound] / seconds:.0%}"]


def report(device: Device, scale: int, runs: int) -> str:
    """The whole page."""
    found, most, target = device.cl_device, limits(device), device.target
    lines = [
        "# On a GPU", "", "Made by `make bench-gpu`. A row's limit is the time in which the device could move the bytes that the class has "
        "to move, or do its arithmetic, at the rates measured below; its share is that over the time of its kernels.", "",
        f"- device: {device.name} ({device.driver}, {found.platform.version}, driver {found.driver_version})",
        f"- host: {platform.machine()}, Python {platform.python_version()}",
        f"- {target.cores} cores, {target.lanes} work-items in step, groups of {target.max_work_group}, {target.local_memory >> 10} KiB of "
        f"local memory, float64: {'yes' if target.fp64 else 'no'}",
        f"- copies {1e-9 * most.bandwidth:.0f} GB/s, computes {1e-9 * most.float32:.0f} Gflop/s in float32",
        f"- extensions: {' '.join(sorted(found.extensions.split()))}", "",
        "| class | launches | ms | limit, ms | of | share |", "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        try:
            cells = measured(row, device, scale, runs)
        except TracegradError as error:                   # a class that fails must not hide the others
            cells = [row.name, "", "", "", "", f"failed: {str(error).splitlines()[0]}"]
        print("  ".join(cells), flush=True)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Training steps: a call's time where many follow one another, and what of it is not the kernels'.", "",
              "| step | launches | ms | kernels, ms | rest, ms |", "|---|---|---|---|---|"]
    for name in STEPS:
        try:
            cells = stepped(name, scale, runs)
        except TracegradError as error:
            cells = [name, "", "", "", f"failed: {str(error).splitlines()[0]}"]
        print("  ".join(cells), flush=True)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", arriving(scale, runs)]
    print(lines[-1])
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="gpu", help="which device to measure: an index, a kind or part of a name")
    parser.add_argument("--scale", type=int, help="sizes are 2 to the power of this (default: 6 on GPUs, 0 elsewhere)")
    parser.add_argument("--runs", type=int, default=10, help="runs of which the median counts")
    parser.add_argument("--output", type=Path, help=f"the page to write (default: {RESULTS.name} for GPUs, none elsewhere)")
    parser.add_argument("--as-gpu", action="store_true", help="plan for a CPU as for a GPU of 4 cores: tries the kernels, not their speed")
    given = parser.parse_args()
    try:
        device = find(given.device)
    except NoDriverError as error:
        present = ", ".join(f"{d.name} ({d.kind})" for d in devices()) or "none"
        print(f"no GPU found; devices present: {present}.\n{error}\n`--device cpu` measures another device.")
        sys.exit(1)
    if given.as_gpu and device.target.kind == "cpu":
        own, device = device, Device(device.cl_device)
        device.target = replace(own.target, kind="gpu", cores=4, local_memory=32768, plain_math=False, clang_builtins=False,
                                max_work_group=min(256, own.target.max_work_group))
    tg.set_device(device)
    scale = given.scale if given.scale is not None else 6 if device.kind == "gpu" else 0
    text = report(device, scale, given.runs)
    output = given.output or (RESULTS if device.kind == "gpu" else None)
    if output is None:
        print(text)
    else:
        output.write_text(text)
        print(f"written: {output}")


if __name__ == "__main__":
    main()
