"""Programs whose sizes vary, each in a process of its own: `python -m benchmarks.sizes NAME FRAMEWORK`. Start at `work`."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.frameworks import namespace

BATCHES = 64, 96, 128, 33, 40, 50, 100, 91, 72, 80, 120, 57
LENGTHS = tuple(range(8, 50, 2))
TOKENS = 200


def _training(f: Any, loss: Callable[..., Any], parameters: Any, dynamic: bool | None) -> Any:
    """A training step, for any sizes where sizes can be said to vary."""
    opt = f.T.optim.SGD(parameters, lr=0.01)

    def step(*args: Any) -> Any:
        opt.zero_grad()
        found = loss(*args)
        found.backward()
        opt.step()
        return found

    return _traced(f, step, dynamic)


def _traced(f: Any, fn: Any, dynamic: bool | None) -> Any:
    return fn if f.T.__name__ == "torch" else f.trace(fn, dynamic=dynamic)


def convnet(f: Any, dynamic: bool | None = True) -> tuple[Any, Callable[[int], tuple[Any, ...]], Sequence[int]]:
    """Two convolutions with batch norm, at twelve batch sizes."""
    T, nn = f.T, f.T.nn
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 64, 10))
    step = _training(f, lambda x, y: f.F.cross_entropy(net(x), y), net.parameters(), dynamic)
    return step, lambda n: (T.randn(n, 3, 32, 32), T.arange(n) % 10), BATCHES


def lstm(f: Any, dynamic: bool | None = True) -> tuple[Any, Callable[[int], tuple[Any, ...]], Sequence[int]]:
    """Sentences of 21 lengths."""
    T, nn = f.T, f.T.nn
    net, head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 5)
    step = _training(f, lambda x, y: f.F.cross_entropy(head(net(x)[0][:, -1]), y), [*net.parameters(), *head.parameters()], dynamic)
    return step, lambda n: (T.randn(8, n, 16), T.arange(8) % 5), LENGTHS


def generation(f: Any, dynamic: bool | None = True) -> tuple[Any, Callable[[int], tuple[Any, ...]], Sequence[int]]:
    """A token after the other, with a cache of keys and values that grows."""
    T, nn = f.T, f.T.nn
    qkv, out = nn.Linear(32, 96), nn.Linear(32, 32)
    for p in (*qkv.parameters(), *out.parameters()):
        p.requires_grad_(False)
    cache = [T.zeros(1, 4, 5, 8), T.zeros(1, 4, 5, 8)]

    def split(x: Any) -> Any:
        return x.reshape(1, -1, 4, 8).transpose(1, 2)

    def token(x: Any, k: Any, v: Any) -> Any:
        q, more_k, more_v = qkv(x).chunk(3, -1)
        k, v = T.cat([k, split(more_k)], 2), T.cat([v, split(more_v)], 2)
        return x + out(f.F.scaled_dot_product_attention(split(q), k, v).transpose(1, 2).reshape(1, -1, 32)), k, v

    traced = _traced(f, token, dynamic)

    def step(x: Any) -> Any:
        y, cache[0], cache[1] = traced(x, *cache)
        return y.sum()

    step.plan, step.cache = lambda: traced.plan, cache  # type: ignore[attr-defined]
    return step, lambda n: (T.full((1, 1, 32), 0.1),), range(TOKENS)


PROGRAMS = {"convnet": convnet, "lstm": lstm, "generation": generation}


def work(name: str, framework: str) -> dict[str, Any]:
    """first: the time of the first call at each size; again: of the next one at that size (not of generation); builds: kernels that were
    not there before."""
    f = namespace(framework)
    step, data, sizes = PROGRAMS[name](f)
    first, again, builds, known = [], [], [], set[str]()
    for n in sizes:
        args = data(n)
        for times in (first,) if name == "generation" else (first, again):
            start = time.perf_counter()
            step(*args).item()
            times.append(time.perf_counter() - start)
        if framework == "tracegrad":
            plan = step.plan() if name == "generation" else step.plan
            found = {function.key for function in plan.functions}
            builds.append(len(found - known))
            known |= found
    return {"first": first, "again": again or sorted(first)[:len(first) // 2 + 1], "builds": builds}


STEADY = {"convnet": (96, 64, 100), "lstm": (24, 20, 30), "generation": (70, 90, 100)}          # two come before the one that is timed
ROUNDS, SECONDS, TAKEN = 15, 0.1, 40


def steady(name: str) -> dict[str, float]:
    """Later calls, to those of a program made for the size, which take turns; the medians. any: by kernels for any size. own: by those
    that a size gets which keeps coming (here after few calls)."""
    from tracegrad.execute import program

    f = namespace("tracegrad")
    calls: dict[str, Callable[[], float]] = {}
    for what, dynamic, program.OWN_SIZE_AFTER in (("any", True, 0), ("own", True, TAKEN), ("fixed", False, 0)):
        step, data, _ = PROGRAMS[name](f, dynamic)
        for n in STEADY[name]:
            calls[what] = _call(f, step, data(n), n)
            calls[what]()
        for _ in range(TAKEN):
            calls[what]()
    times: dict[str, list[float]] = {what: [] for what in calls}
    for number in range(ROUNDS):
        for what in list(calls)[:: 1 if number % 2 else -1]:
            taken, end = list[float](), time.perf_counter() + SECONDS
            while time.perf_counter() < end or len(taken) < 3:
                start = time.perf_counter()
                calls[what]()
                taken.append(time.perf_counter() - start)
            times[what].append(statistics.median(taken))
    return {what: statistics.median([a / b for a, b in zip(times[what], times["fixed"], strict=True)]) for what in ("any", "own")}


def _call(f: Any, step: Any, args: Sequence[Any], n: int) -> Callable[[], float]:
    """A call at this size; of generation with a cache of so many tokens, each time the same."""
    cache = getattr(step, "cache", [])
    zeros = [f.T.zeros(1, 4, n, 8) for _ in cache]

    def call() -> float:
        cache[:] = zeros
        return float(step(*args).item())

    return call


if __name__ == "__main__":
    name, framework = sys.argv[1:]
    print(json.dumps(steady(name) if framework == "steady" else work(name, framework)))
