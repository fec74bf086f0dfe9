"""torch.compile(backend="tracegrad") beside inductor: `make bench-torch-backend`, `python -m benchmarks.torch_backend --help`.

Each program is torch's: a loss, its backward pass, and gradients that are new at each step. Each backend runs it in a process of its own,
with empty caches on disk. "Compile" is the first step (torch's own part of it, which both pay, included), "cpu" the processor time of the
first step, with that of compilers that it starts. Then the processes take turns, and a step is the median of theirs; ratios are the medians
of the rounds' ratios. Losses and the norms of gradients are compared with torch's eager mode in the same process. Start at `main`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.frameworks import ROOT
from benchmarks.run import Failed, Process, environment
from benchmarks.targets import Row, table
from benchmarks.worker import serve

BACKENDS = "tracegrad", "inductor"
STEP, COMPILE = 0.7, 0.5                        # of inductor's: the geometric means that are wanted
Program = tuple[Callable[..., Any], list[Any], list[Any]]        # a loss, its arguments, and what it is differentiated with respect to


# ----------------------------------------------------------------------------------------------------------------- programs


def resnet18(torch: Any) -> Program:
    """The network of He et al., for images of 64 x 64: a batch of 8."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
            self.past = nn.Identity() if stride == 1 and before == after else nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, x: Any) -> Any:
            return F.relu(self.second(self.first(x)) + self.past(x))

    widths = [64, 64, 128, 256, 512]
    blocks = [Block(a if k == 0 else b, b, 2 if k == 0 and b > 64 else 1) for a, b in pairwise(widths) for k in (0, 1)]
    model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    def loss(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x), y)

    return loss, [torch.randn(8, 3, 64, 64), torch.arange(8) % 10], list(model.parameters())


def _attention_block(torch: Any, width: int, heads: int, causal: bool) -> Any:
    """A transformer's block with layer norms first."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            n, length, _ = x.shape
            q, k, v = (y.view(n, length, heads, width // heads).transpose(1, 2) for y in self.qkv(self.first(x)).split(width, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
            return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh" if causal else "none"))

    return Block()


def vit_tiny(torch: Any) -> Program:
    """ViT-tiny: 12 blocks of width 192, patches of 16 x 16, two images of 224 x 224."""
    nn, F = torch.nn, torch.nn.functional

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 192, 16, 16)
            self.token, self.places = nn.Parameter(torch.zeros(1, 1, 192)), nn.Parameter(torch.randn(1, 197, 192) * 0.02)
            self.blocks = nn.Sequential(*[_attention_block(torch, 192, 3, False) for _ in range(12)])
            self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 10)

        def forward(self, x: Any) -> Any:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), self.patches(x).flatten(2).transpose(1, 2)], 1) + self.places
            return self.head(self.norm(self.blocks(x))[:, 0])

    model = Model()

    def loss(x: Any, y: Any) -> Any:
        return F.cross_entropy(model(x), y)

    return loss, [torch.randn(2, 3, 224, 224), torch.arange(2)], list(model.parameters())


def gpt2_block(torch: Any) -> Program:
    """A block of GPT-2 (width 768, 12 heads), two sequences of 128 tokens."""
    model = _attention_block(torch, 768, 12, True)

    def loss(x: Any) -> Any:
        return model(x).square().mean()

    return loss, [torch.randn(2, 128, 768)], list(model.parameters())


def lstm(torch: Any) -> Program:
    """An LSTM over 24 steps, batch 16, 64 features, 128 of state. (torch.compile leaves nn.LSTM itself to eager mode.)"""
    cell = torch.nn.LSTMCell(64, 128)

    def loss(xs: Any) -> Any:
        h = c = xs.new_zeros(xs.shape[1], 128)
        for x in xs:
            h, c = cell(x, (h, c))
        return h.square().mean()

    return loss, [torch.randn(24, 16, 64)], list(cell.parameters())


def black_scholes(torch: Any) -> Program:
    """The mean price of 200,000 calls, and what it changes with price, years and volatility."""
    price, strike, years, volatility = (torch.rand(200_000) + low for low in (0.5, 0.5, 0.1, 0.1))
    inputs = [x.requires_grad_() for x in (price, years, volatility)]

    def loss(price: Any, strike: Any, years: Any, volatility: Any) -> Any:
        root = volatility * years.sqrt()
        first = ((price / strike).log() + (0.05 + volatility * volatility / 2) * years) / root
        one, other = ((1 + torch.erf(x / math.sqrt(2))) / 2 for x in (first, first - root))
        return (price * one - strike * torch.exp(-0.05 * years) * other).mean()

    return loss, [price, strike, years, volatility], inputs


def stencil(torch: Any) -> Program:
    """Eight steps of the heat equation on 512 x 512 points, and the gradient with respect to where they start."""
    start = torch.randn(512, 512).requires_grad_()

    def loss(u: Any) -> Any:
        for _ in range(8):
            p = torch.nn.functional.pad(u, (1, 1, 1, 1))
            u = u + 0.1 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u)
        return u.square().mean()

    return loss, [start], [start]


PROGRAMS = {program.__name__: program for program in (resnet18, vit_tiny, gpt2_block, lstm, black_scholes, stencil)}


# ---------------------------------------------------------------------------------------------------- a process of its own


class Contender:
    """One program under one backend: what `benchmarks.worker.serve` asks for."""

    def __init__(self, name: str, backend: str, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        loss, self.args, self.inputs = PROGRAMS[name](torch)
        compiled = torch.compile(loss, backend=_own() if backend == "tracegrad" else backend)
        self.eager, self.step = partial(self._step, loss), partial(self._step, compiled)

    def _step(self, loss: Callable[..., Any]) -> Any:
        for x in self.inputs:
            x.grad = None
        value = loss(*self.args)
        value.backward()
        return value

    def first(self) -> dict[str, Any]:
        """The first step, and the largest difference from eager mode, of the loss or a gradient's norm, relative to it."""
        start, used = time.perf_counter(), sum(os.times()[:4])
        found = self._numbers(self.step)
        times = {"compile": time.perf_counter() - start, "cpu": sum(os.times()[:4]) - used}
        pairs = zip(found, self._numbers(self.eager), strict=True)
        return times | {"error": max(abs(a - b) / max(abs(b), 1e-6) for a, b in pairs)}

    def _numbers(self, step: Callable[[], Any]) -> list[float]:
        return [float(step().detach()), *(float(x.grad.norm()) for x in self.inputs)]

    def time(self, seconds: float) -> dict[str, Any]:
        """The times of steps, and of the processor, for about `seconds`, after one that wakes up the threads."""
        self.step()
        wall, cpu, end = list[float](), list[float](), time.perf_counter() + seconds
        while len(wall) < 3 or time.perf_counter() < end:
            start, used = time.perf_counter(), time.process_time()
            self.step()
            cpu.append(time.process_time() - used)
            wall.append(time.perf_counter() - start)
        return {"wall": statistics.median(wall), "cpu": statistics.median(cpu)}


def _own() -> Any:
    from tracegrad.torch_backend import backend

    return backend


class Worker(Process):
    def __init__(self, python: str, name: str, backend: str, threads: int, caches: Path) -> None:
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.torch_backend", name, "--work", backend, "--threads", str(threads)], cwd=ROOT,
            env=environment(threads, caches), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# ---------------------------------------------------------------------------------------------------------------- the table


def measure(name: str, python: str, threads: int, rounds: int, seconds: float) -> dict[str, float]:
    """The ratios of a program, tracegrad to inductor, and a line printed."""
    with tempfile.TemporaryDirectory() as folder:
        workers: dict[str, Worker] = {}
        first: dict[str, Any] = {}
        times: dict[str, list[dict[str, float]]] = {backend: [] for backend in BACKENDS}
        try:
            for backend in BACKENDS:
                workers[backend] = Worker(python, name, backend, threads, Path(folder) / backend)
                first[backend] = workers[backend].tell("first")
                if first[backend]["error"] > 1e-3:
                    raise Failed(f"{backend}: off by {first[backend]['error']:.1e} of eager mode")
            for number in range(rounds):
                for backend in BACKENDS[:: 1 if number % 2 else -1]:
                    time.sleep(0.2)
                    times[backend].append(workers[backend].tell("time", seconds=seconds))
        finally:
            for worker in workers.values():
                worker.quit()
    own, peer = BACKENDS
    found = {key: first[own][key] / first[peer][key] for key in ("compile", "cpu")}
    found |= {"step": statistics.median(a["wall"] / b["wall"] for a, b in zip(times[own], times[peer], strict=True)),
              "step cpu": statistics.median(a["cpu"] / b["cpu"] for a, b in zip(times[own], times[peer], strict=True))}
    shown = "".join(f"{first[b]['compile']:9.2f} s{first[b]['cpu']:8.2f} s{1e3 * statistics.median(t['wall'] for t in times[b]):10.2f} ms"
                    for b in BACKENDS)
    print(f"{name:14}{shown}{found['step']:9.2f}{found['compile']:9.2f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *PROGRAMS], metavar="NAME", help=f"programs: {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has torch, and tracegrad's requirements")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="for how long a backend steps at its turn, at least")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        serve(lambda: Contender(options.names[0], options.work, options.threads))
        return
    print(f"{'':14}{'first step':>11}{'cpu':>10}{'step':>13}"
          f"{'inductor:':>11}{'cpu':>10}{'step':>13}{'step':>9}{'first':>9}")
    found = {name: measure(name, options.peer_python, options.threads, options.rounds, options.seconds)
             for name in options.names or PROGRAMS}
    rows = []
    for what, words, target in (("step", "a step", STEP), ("compile", "the first step", COMPILE),
                                ("step cpu", "a step, processor time", None), ("cpu", "the first step, processor time", None)):
        rows += [Row(f"{name}: {words}, to inductor's", None, ratios[what]) for name, ratios in found.items()]
        mean = statistics.geometric_mean(ratios[what] for ratios in found.values())
        rows.append(Row(f"{words}, to inductor's: geometric mean", target, mean))
    print("\n" + table("torch.compile", rows))


if __name__ == "__main__":
    main()
