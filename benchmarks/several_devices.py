"""Training steps over two halves of the default device's cores, by turns: `python -m benchmarks.several_devices --rounds 30`.

Rows: an MLP whose layers lie on either half, with transfers by events (one context) and through the host's memory (as between drivers); the
same with layers that take a while, and its batch in four parts; a batch cut by `split_batch`. Each beside what one half does, or the whole
device. 16 MiB there and back between devices as if they had memory of their own: in pieces through pinned memory, and each as a whole.
Wall-clock and processor time of a step, medians in ms; and for how much of the time in which the less busy half ran kernels the other one
did, too, by the devices' clocks (`timeline`). (Halves that other programs use as well overlap as those let them.)
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tracegrad as tg
from tracegrad import nn
from tracegrad.runtime import buffer

Step = tuple[Callable[[], float], Any]                      # what is measured, and the traced function that it calls


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
    return (lambda: float(run(x, y).item())), run


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

    return (lambda: float(step(x, y).item())), step


def there_and_back(first: Any, second: Any, pieces: bool) -> Step:
    """16 MiB are sent from one device to another, and come back."""
    x = tg.ones(1 << 22, device=first)
    send = tg.trace(lambda x: ((x * 2).to(second) + 1).to(first)[0])

    def step() -> float:
        with patch.object(buffer, "leaving", buffer.leaving if pieces else lambda value: None):
            return float(send(x).item())

    return step, send


def at_once(traced: Any, runs: int = 9) -> float:
    """For how much of the time of the less busy device's kernels one of the other device ran, too; the median over calls."""
    with tempfile.TemporaryDirectory() as folder:
        traced.timeline(Path(folder) / "trace.json", runs=runs)
        events = json.loads((Path(folder) / "trace.json").read_text())["traceEvents"]
    found = []
    for call in (e for e in events if e.get("cat") == "call"):
        spans = [(e["ts"], e["ts"] + e["dur"], e["pid"]) for e in events if e.get("cat") == "kernel"
                 and call["ts"] <= e["ts"] <= call["ts"] + call["dur"]]
        busy = {device: sum(end - start for start, end, d in spans if d == device) for _, _, device in spans}
        one = next(iter(busy))
        both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in spans if a[2] == one for b in spans if b[2] != one)
        found.append(both / min(busy.values()) if len(busy) > 1 else 0.0)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    whole = tg.device()
    linked, staged, own = whole.split(2), whole.split(2), whole.split(2)
    for device in (*staged, *own):
        device.peers = ()                                   # each with a context of its own, as devices of two drivers have
    for device in own:
        device.host_alignment = 0                           # and with memory that is not the host's
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
        "16 MiB there and back, in pieces": there_and_back(*own, pieces=True),
        "16 MiB there and back, as a whole": there_and_back(*own, pieces=False),
    }
    wall: dict[str, list[float]] = {name: [] for name in rows}
    cpu: dict[str, list[float]] = {name: [] for name in rows}
    for turn in range(rounds + 3):
        for name, (step, _) in rows.items():
            began, used = time.perf_counter(), time.process_time()
            for _ in range(5):
                step()
            if turn >= 3:
                wall[name].append((time.perf_counter() - began) / 5)
                cpu[name].append((time.process_time() - used) / 5)
    for name, (_, traced) in rows.items():
        halves = "halves" in name and "untraced" not in name
        beside = f"   both halves at once: {at_once(traced):.0%}" if halves else ""
        print(f"{name:36}{1e3 * statistics.median(wall[name]):9.3f} ms{1e3 * statistics.median(cpu[name]):9.3f} ms of a processor{beside}")


if __name__ == "__main__":
    main()
