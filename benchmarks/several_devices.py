"""Training steps over two halves of the default device's cores, by turns: `python -m benchmarks.several_devices --rounds 30`.

Rows: an MLP whose layers lie on either half, with transfers by events (one context) and through the host's memory (as between drivers); the
same with layers that take a while, and its batch in four parts; a batch cut by `split_batch`. Each beside what one half does, or the whole
device. Wall-clock and processor time of a step, medians in ms. (Halves that other programs use as well overlap as those let them.)
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import tracegrad as tg
from tracegrad import nn

Step = Callable[[], float]


def stages(first: Any, second: Any, width: int, batch: int, parts: int = 1, traced: bool = True) -> Step:
    """A step of a model of two layers on two devices, the batch in so many parts."""
    tg.manual_seed(0)
    one, other = nn.Linear(64, width).to(first), nn.Linear(width, 64).to(second)
    optimizer = tg.optim.SGD([*one.parameters(), *other.parameters()], lr=0.01)
    x, y = tg.randn(batch, 64, device=first), tg.randn(batch, 64, device=second)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        pairs = zip(x.chunk(parts), y.chunk(parts), strict=True)
        loss = sum(nn.functional.mse_loss(other(one(x).relu().to(second)), y) for x, y in pairs) / parts
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = tg.trace(step) if traced else step
    return lambda: float(run(x, y).item())


def split(devices: list[Any], width: int, batch: int) -> Step:
    """A step of a model, its batch cut for the devices."""
    tg.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64)).to(devices[0])
    optimizer = tg.optim.SGD(model.parameters(), lr=0.01)
    x, y = tg.randn(batch, 64, device=devices[0]), tg.randn(batch, 64, device=devices[0])
    loss_fn = tg.parallel.split_batch(lambda x, y: nn.functional.mse_loss(model(x), y), devices, out_dims="mean", module=model)

    @tg.trace
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_fn(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lambda: float(step(x, y).item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    whole = tg.device()
    linked, staged = whole.split(2), whole.split(2)
    for device in staged:
        device.peers = ()                                   # each with a context of its own, as devices of two drivers have
    rows = {
        "small, one half": stages(linked[0], linked[0], 128, 64),
        "small, halves, events": stages(*linked, 128, 64),
        "small, halves, host": stages(*staged, 128, 64),
        "small, halves, events, untraced": stages(*linked, 128, 64, traced=False),
        "small, halves, host, untraced": stages(*staged, 128, 64, traced=False),
        "large, one half": stages(linked[0], linked[0], 2048, 512),
        "large, halves": stages(*linked, 2048, 512),
        "large, halves, four parts": stages(*linked, 2048, 512, 4),
        "split_batch, one half": split(linked[:1], 2048, 512),
        "split_batch, halves": split(linked, 2048, 512),
        "split_batch, whole device": split([whole], 2048, 512),
    }
    wall: dict[str, list[float]] = {name: [] for name in rows}
    cpu: dict[str, list[float]] = {name: [] for name in rows}
    for turn in range(rounds + 3):
        for name, step in rows.items():
            began, used = time.perf_counter(), time.process_time()
            for _ in range(5):
                step()
            if turn >= 3:
                wall[name].append((time.perf_counter() - began) / 5)
                cpu[name].append((time.process_time() - used) / 5)
    for name in rows:
        print(f"{name:36}{1e3 * statistics.median(wall[name]):9.3f} ms{1e3 * statistics.median(cpu[name]):9.3f} ms of a processor")


if __name__ == "__main__":
    main()
