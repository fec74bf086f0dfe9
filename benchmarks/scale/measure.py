"""What several ranks cost on this machine: started by mpiexec, each rank runs `ranks_program`. Start at `measure`.

Times are medians; for a collective, of the slowest rank. Two ranks on one machine share its memory and its cores: this says what the
machinery costs, nothing about a network.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import tracegrad as tg
from tracegrad import distributed as dist
from tracegrad import nn
from tracegrad.codegen import compiler
from tracegrad.distributed.exchange import Exchange, reduced
from tracegrad.nn import functional as F

ROOT = Path(__file__).parents[2]
Call = Callable[[], Any]


def collectives(size: int, n: int) -> dict[str, Call]:
    """Each on n float32 of a rank; all_gather, reduce_scatter and all_to_all have n in whole."""
    x, y, piece = tg.ones(n), tg.zeros(n), tg.ones(n // size)
    rank = dist.get_rank()

    def shift() -> None:
        works = [dist.isend(x, (rank + 1) % size), dist.irecv(y, (rank - 1) % size)]
        for work in works:
            work.wait()

    return {"all_reduce": lambda: dist.all_reduce(x), "all_gather": lambda: dist.all_gather_into_tensor(y, piece),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(piece, x), "all_to_all": lambda: dist.all_to_all_single(y, x),
            "broadcast": lambda: dist.broadcast(x, 0), "isend and irecv": shift}


def slowest(call: Call, repeats: int) -> float:
    """Seconds: the median, over calls, of the slowest rank's."""
    times = []
    for _ in range(repeats + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    worst = tg.tensor(times[1:], dtype=tg.float64)
    dist.all_reduce(worst, "max")
    return float(worst.median())


def step_of(model: Any) -> Callable[..., Any]:
    """A forward and backward."""

    def step(x: Any, y: Any) -> Any:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def layers(width: int) -> tuple[Any, Any, Any]:
    """A net, and its input and labels."""
    tg.manual_seed(0)
    net = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    return net, tg.ones(64, width), tg.zeros(64, dtype=tg.int64)


def hidden(repeats: int) -> tuple[float, float, float]:
    """Seconds of a backward, of an all_reduce of 4 MiB, and of both, the all_reduce begun before the backward and awaited after it."""
    net, x, y = layers(512)
    step, flat = tg.trace(step_of(net)), tg.ones(1 << 20)

    def backward() -> None:
        step(x, y).item()

    def both() -> None:
        work: Any = dist.all_reduce(flat, async_op=True)
        backward()
        work.wait()

    backward()
    calls: dict[str, Call] = {"backward": backward, "send": lambda: dist.all_reduce(flat), "both": both}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(slowest(call, 1))
    return tuple(statistics.median(times[name]) for name in calls)  # type: ignore[return-value]


def beside(repeats: int, wire: float, traced: bool = True, batch: int = 1024) -> dict[str, float]:
    """Seconds of a step of eight layers, each with a gradient of 1 MiB: alone, with messages beside backward, and without that.

    Without it each message of a trace is awaited at once; untraced all are sent when backward has ended. wire: seconds that
    take the place of a bucket's message, in which nobody computes: a network card, which this machine does not have. (0: messages as they
    are. They need the cores that the kernels need, too.)
    """
    real_order, real_sum, real_agree = compiler.overlapped, Exchange.all_reduce, Exchange.agree

    def asleep(self: Any, array: Any, op: str) -> Any:
        if not wire or op != "avg":
            return real_sum(self, array, op)
        time.sleep(wire)
        return array

    Exchange.all_reduce = asleep  # type: ignore[method-assign]
    Exchange.agree = lambda self: None if wire and "avg" in self.shown else real_agree(self)  # type: ignore[method-assign]
    tg.config.cache = False                                       # a plan on disk has the other order
    times: dict[str, list[float]] = {}
    calls: dict[str, Call] = {}
    try:
        for name, order in (("alone", None), ("beside", real_order), ("one by one", list)):
            compiler.overlapped = order if order and traced else real_order
            tg.manual_seed(0)
            net = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.Tanh())))
            model: Any = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1.01) if order else net
            if order is list and not traced:
                model.before_backward = lambda reached: None
            step = tg.trace(step_of(model)) if traced else step_of(model)
            calls[name] = partial(lambda step, *args: step(*args).item(), step, tg.ones(batch, 512), tg.zeros(batch, dtype=tg.int64))
            for _ in range(6):                                    # from the third one on a backward is recalled
                calls[name]()
        for _ in range(repeats):
            for name, call in calls.items():
                times.setdefault(name, []).append(slowest(call, 1))
    finally:
        compiler.overlapped, Exchange.all_reduce, Exchange.agree = real_order, real_sum, real_agree  # type: ignore[method-assign]
    return {name: statistics.median(found) for name, found in times.items()}


def overhead(rounds: int, traced: bool) -> float:
    """One rank's step in DistributedDataParallel over the same step without it, less one: of processor time, by turns."""
    (net, x, y), (other, *_) = layers(256), layers(256)
    steps: list[Any] = [step_of(net), step_of(nn.parallel.DistributedDataParallel(other))]
    if traced:
        steps = [tg.trace(step) for step in steps]
    for _ in range(60):                                           # what comes often is compiled first
        for step in steps:
            step(x, y).item()
    ratios = []
    for turn in range(rounds):
        times = [0.0, 0.0]
        for k in (0, 1, 1, 0) if turn % 2 else (1, 0, 0, 1):
            start = time.process_time()
            for _ in range(10):
                steps[k](x, y).item()
            times[k] += time.process_time() - start
        ratios.append(times[1] / times[0])
    return statistics.median(ratios) - 1


def added(n: int, repeats: int) -> float:
    """Bytes of another rank's float32 that a rank adds up in a second."""
    parts = [np.ones(n, np.float32) for _ in range(8)]
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        reduced(parts, "sum")
        times.append(time.perf_counter() - start)
    return (len(parts) - 1) * parts[0].nbytes / statistics.median(times)


def ranks_program(repeats: int, largest: int) -> None:
    """What each rank runs; rank 0 prints."""
    dist.init_process_group(timeout=120)
    size, first = dist.get_world_size(), dist.get_rank() == 0
    if size > 1:
        sizes = [1 << k for k in range(6, largest + 1, 4)]
        if first:
            print(f"{size} ranks, microseconds (and GB/s of a rank's tensor)\n{'bytes':16}" + "".join(f"{n:>18,}" for n in sizes))
        names = list(collectives(size, size))
        for name in names:
            cells = []
            for nbytes in sizes:
                seconds = slowest(collectives(size, nbytes // 4)[name], repeats)
                cells.append(f"{1e6 * seconds:10.0f} ({nbytes / seconds / 1e9:5.2f})")
            if first:
                print(f"{name:16}" + "".join(f"{c:>18}" for c in cells), flush=True)
        for traced, wire in ((True, 0.0), (True, 0.01), (True, 0.03), (False, 0.0), (False, 0.01)):   # (1 MiB takes 8 ms over 1 Gbit/s)
            found = beside(repeats, wire, traced)
            if first:
                alone, both, waiting = (1e3 * found[name] for name in ("alone", "beside", "one by one"))
                share = (waiting - both) / (waiting - alone)
                what = f"8 messages of {1e3 * wire:.0f} ms that need no core" if wire else "8 messages of 1 MiB"
                step, other = ("a traced", "each awaited at once") if traced else ("an untraced", "all sent after it")
                print(f"{step} step of DistributedDataParallel with {what}: {alone:.1f} ms without them, {both:.1f} with them beside "
                      f"backward, {waiting:.1f} with {other}: {share:.0%} hides", flush=True)
        backward, send, both = hidden(repeats)
        if first:
            share = (backward + send - both) / min(backward, send)
            print(f"backward {1e3 * backward:.2f} ms, all_reduce of 4 MiB {1e3 * send:.2f} ms, both at once {1e3 * both:.2f} ms: "
                  f"{share:.0%} of the shorter one hides behind the other")
    else:
        for traced in (False, True):
            share = overhead(8 * repeats, traced)
            print(f"one rank, {'traced' if traced else 'untraced'}: DistributedDataParallel adds {share:+.1%} of a step's processor time "
                  "(wanted: 2% at most)")
        print(f"a rank adds up {added(1 << 20, repeats) / 1e9:.1f} GB/s of float32")
    dist.destroy_process_group()


@click.command()
@click.option("--ranks", default=2, type=click.IntRange(2), show_default=True)
@click.option("--repeats", default=15, type=click.IntRange(1), show_default=True)
@click.option("--largest", default=22, type=click.IntRange(6), show_default=True, help="The largest message has 2 to this power bytes.")
def measure(ranks: int, repeats: int, largest: int) -> None:
    """Collectives by size, what hides behind a backward, and what one rank's machinery costs."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpiexec is None:
        raise click.ClickException("there is no mpiexec: pip install 'tracegrad[mpi]', or load the cluster's MPI")
    text = f"from benchmarks.scale.measure import ranks_program; ranks_program({repeats}, {largest})"
    for start in ([], [mpiexec, "-n", str(ranks)]):
        subprocess.run([*start, sys.executable, "-c", text], cwd=ROOT, check=True, timeout=600)
