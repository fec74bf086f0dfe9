"""GPT-2 small, ResNet-50 and a 3-d stencil, recorded and compiled for a GPU, not run. Start at `PROGRAMS`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tracegrad as tg
from tracegrad import nn
from tracegrad.codegen.compiler import compile_graph
from tracegrad.distributed import ProcessGroup, halo
from tracegrad.execute.compile import executable_graph
from tracegrad.nn import functional as F
from tracegrad.support.plan import HostStart, HostStep, HostWait, Target

# The H200 of benchmarks/RESULTS-gpu.md
GPU = Target(kind="gpu", simd_bytes=16, cores=132, max_work_group=1024, local_memory=48 << 10, host_memory=False, plain_math=False,
             clang_builtins=False)


@dataclass(frozen=True)
class Kernel:
    """A launch of a plan: the bytes that it moves, its arithmetic, and the bytes of each gradient that is whole after it."""

    bytes: float
    flops: float
    gradients: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """A step of one rank. parameters: bytes of those that an optimizer updates."""

    kernels: tuple[Kernel, ...]
    parameters: int = 0
    grid: Grid | None = None               # of a program with a halo


@dataclass(frozen=True)
class Grid:
    """The same step among many ranks. before: kernels up to the beginning of the messages; inside: up to the wait for them; edges: then.

    side: points along each dimension of a rank's block, of which the outermost are sent to its 26 neighbours; item: bytes of a point.
    """

    before: tuple[Kernel, ...]
    inside: tuple[Kernel, ...]
    edges: tuple[Kernel, ...]
    side: int
    item: int = 4


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.ln_1, self.ln_2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, time, width = x.shape
        q, k, v = self.attention(self.ln_1(x)).reshape(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, time, width)
        x = x + self.projection(mixed)
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2 small without dropout (Radford et al., 2019): 124 million parameters, the output layer's weight is the embedding's."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, time: int = 1024) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(time, width)
        self.layers, self.norm = nn.ModuleList([Block(width, heads) for _ in range(layers)]), nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        h = self.words(x) + self.places.weight[: x.shape[1]]
        for layer in self.layers:
            h = layer(h)
        return F.linear(self.norm(h), self.words.weight)


class Bottleneck(nn.Module):
    """A block of ResNet-50: 1x1, 3x3 (with the stride), 1x1."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = ((given, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        layers: list[Any] = []
        for a, b, kernel, step in sizes:
            layers += [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.short = nn.Sequential(*([] if given == 4 * width else [nn.Conv2d(given, 4 * width, 1, stride, bias=False),
                                                                    nn.BatchNorm2d(4 * width)]))

    def forward(self, x: Any) -> Any:
        return (self.body(x) + self.short(x)).relu()


def resnet(blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> Any:
    """ResNet-50 (He et al., 2015): 25.6 million parameters."""
    layers: list[Any] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    given = width
    for stage, count in enumerate(blocks):
        for k in range(count):
            layers.append(Bottleneck(given, width << stage, 2 if k == 0 and stage else 1))
            given = 4 * width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, classes))


def gpt2(batch: int = 8, time: int = 1024, **sizes: int) -> Recorded:
    """A step of GPT-2 small on `batch` texts a rank."""
    def loss(scores: Any, y: Any) -> Any:
        return F.cross_entropy(scores.flatten(0, 1), y.flatten())

    return training(lambda: GPT2(time=time, **sizes), (batch, time), loss, True)


def resnet50(batch: int = 64, side: int = 224, **sizes: Any) -> Recorded:
    """A step of ResNet-50 on `batch` images a rank."""
    return training(lambda: resnet(**sizes), (batch, 3, side, side), F.cross_entropy, False)


def training(make: Callable[[], Any], shape: tuple[int, ...], loss: Callable[..., Any], words: bool) -> Recorded:
    """The forward and backward of a model, with the gradients as results, last parameter first, as DistributedDataParallel sends them."""
    with tg.device("meta"):                                       # no values: the first weights are not drawn
        model = make()
    model.to_empty(device="numpy")
    parameters = list(model.parameters())[::-1]
    x = tg.zeros(*shape, dtype=tg.int64 if words else tg.float32, device="numpy")
    y = tg.zeros(*(shape if words else shape[:1]), dtype=tg.int64, device="numpy")
    plan = planned(lambda x, y: tg.autograd.grad(loss(model(x), y), parameters), x, y)
    steps = plan.each()
    last = {slot: i for i, (step, _) in enumerate(steps) for slot in step.args if isinstance(slot, int)}
    ready: dict[int, list[int]] = {}
    for p, slot in zip(parameters, plan.outputs, strict=False):   # (after them: buffers that the forward updates)
        ready.setdefault(last[slot], []).append(p.numel() * p.element_size())
    kernels = [Kernel(step.bytes * times, step.flops * times, tuple(ready.get(i, ()))) for i, (step, times) in enumerate(steps)]
    return Recorded(tuple(kernels), sum(p.numel() * p.element_size() for p in parameters))


def stencil(side: int = 1024) -> Recorded:
    """A step of the wave equation with seven points, float32, on side³ points a rank: of one rank, and of the middle one of 27."""
    def step(mesh: tuple[int, ...], group: ProcessGroup, before: Any, now: Any) -> Any:
        u = halo(now, 1, mesh, True, group)
        around = (u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2])
        return 2.0 * now - before + 0.1 * (around - 6.0 * now)

    before, now = (tg.empty(side, side, side, dtype=tg.float32, device="numpy") for _ in range(2))
    alone = planned(partial(step, (1, 1, 1), ProcessGroup(None, (0,), 0, "alone")), before, now)
    many = planned(partial(step, (3, 3, 3), ProcessGroup(None, range(27), 13, "27 ranks")), before, now, messages=True)
    parts: list[list[Kernel]] = [[]]
    for single, times in many.each():
        if isinstance(single, (HostStart, HostWait)):
            parts.append([])
        else:
            parts[-1].append(Kernel(single.bytes * times, single.flops * times))
    first, inside, edges = map(tuple, parts)                      # (one exchange, so three parts)
    return Recorded(tuple(Kernel(s.bytes * times, s.flops * times) for s, times in alone.each()), 0, Grid(first, inside, edges, side))


def planned(function: Callable[..., Any], *args: Any, messages: bool = False) -> Any:
    """The plan of a call for `GPU`. Nothing is run: there need be no GPU, and tensors need no values. messages: those may be in it."""
    traced: Any = tg.trace(function)
    replay, _ = traced._found(args, {})
    plan = compile_graph(executable_graph(replay.program.graph), GPU)
    allowed = (HostStart, HostWait) if messages else ()
    hosts = [step.name for step, _ in plan.each() if isinstance(step, HostStep) and not isinstance(step, allowed)]
    if hosts:
        raise ValueError(f"steps on the host have no cost in this model: {hosts}")
    return plan


PROGRAMS: dict[str, Callable[[], Recorded]] = {
    "gpt2": functools.cache(gpt2), "resnet50": functools.cache(resnet50), "stencil": functools.cache(stencil)}
