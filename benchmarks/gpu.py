"""Every class of kernels on a GPU, beside what the device can do and beside torch and JAX: `python -m benchmarks.gpu` (`make bench-gpu`).

Start at `measured`. What is measured stands in `benchmarks/gpu_rows.py`. It writes benchmarks/RESULTS-gpu.md: the device and its driver,
its extensions, what it copies and computes at most, and for each class
- the time of its kernels (events of the queue, medians), and what share of the device's limit that is: of the time that the bytes that have
  to move, or the arithmetic that has to be done, take at least;
- where torch or JAX see the same GPU: the time of a call in tracegrad, torch (eager) and JAX (jit), by turns in the same run, of calls in a
  row with one wait at the end; tracegrad's over the best of the others; and whether the results agree.
Then whole training steps, with what is not kernels' time, and new arrays that come beside kernels. Where no GPU is found it says so and
writes nothing; `--device cpu` tries it on another device, and with `--as-gpu` by the kernels that a GPU would get.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tracegrad as tg
from benchmarks.frameworks import namespace
from benchmarks.gpu_rows import ROWS, STEPS, Row, floats
from tracegrad import optim
from tracegrad.errors import NoDriverError, TracegradError
from tracegrad.runtime.device import Device, devices, find
from tracegrad.runtime.limits import limits

RESULTS = Path(__file__).with_name("RESULTS-gpu.md")
BURST = 0.02            # seconds of calls in a row
ROUNDS = 5
AGREE = 1e-3            # results differ by no more of the largest, or the table says so


@dataclass
class Peer:
    """Another framework on the same device. compiled: what is called for a row (None: it has none); put, wait: as the framework does it."""

    name: str
    compiled: Callable[[Row], Callable[..., Any] | None]
    put: Callable[[Any], Any]
    wait: Callable[[Any], None]
    host: Callable[[Any], np.ndarray[Any, Any]]


def torch_peer(kind: str) -> Peer:
    import torch

    torch.backends.cudnn.allow_tf32 = False                  # float32 is float32 in convolutions, too, as it is in the others
    n = namespace("torch")

    def compiled(row: Row) -> Callable[..., Any]:
        return lambda *args: row.fn(n, *args)

    def wait(_: Any) -> None:
        if kind == "cuda":
            torch.cuda.synchronize()

    def put(array: Any) -> Any:
        return torch.from_numpy(np.array(array)).to(kind)

    return Peer(f"torch {torch.__version__}", compiled, put, wait, lambda t: t.detach().cpu().numpy())


def jax_peer() -> Peer:
    import jax

    from benchmarks.gpu_in_jax import rows

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")            # float32 is float32, as it is in the others
    known = {name: jax.jit(fn) for name, fn in rows().items()}
    return Peer(f"JAX {jax.__version__}", lambda row: known.get(row.name), jax.numpy.asarray, jax.block_until_ready, np.asarray)


def peers(device: Device) -> list[Peer]:
    """The frameworks that are installed and see the device; on a CPU (a dry run) those that are installed."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")         # the memory is shared with the others here
    found = []
    try:
        import torch

        if device.cl_device.type & 4 and torch.cuda.is_available():
            found += [torch_peer("cuda")] if torch.cuda.get_device_name(0) == device.name else []
        elif not device.cl_device.type & 4:
            found.append(torch_peer("cpu"))
    except ImportError:
        pass
    try:
        import jax

        platform_ = jax.devices()[0].platform
        if platform_ == ("gpu" if device.cl_device.type & 4 else "cpu"):
            found.append(jax_peer())
    except ImportError:
        pass
    return found


def training(n: Any, adam: Any, name: str, scale: int, traced: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[int, ...], Any]:
    """A training step of framework `n` (its `nn` and `F`), its input's shape, and the model."""
    model, shape = STEPS[name](n.T.nn, scale)
    optimizer = adam(model.parameters(), lr=1e-3)

    @traced
    def step(x: Any, y: Any) -> Any:
        loss = n.F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, shape, model


def stepped(name: str, scale: int, runs: int, others: Sequence[Peer]) -> list[str]:
    """A line of the table of steps: name, launches, wall time of one of many calls in a row, kernels' time, the rest, torch's."""
    step, shape, _ = training(namespace("tracegrad"), optim.Adam, name, scale, tg.trace)
    rng = np.random.default_rng(0)
    data = floats(rng, *shape), rng.integers(0, 10, shape[0])
    tensors = [tg.tensor(a) for a in data]
    for _ in range(3):
        step(*tensors).item()
    calls: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [(partial(step, *tensors), lambda loss: loss.item())]
    for peer in others:
        if peer.name.startswith("torch"):
            import torch

            theirs, _, model = training(namespace("torch"), torch.optim.Adam, name, scale, lambda fn: fn)
            put = [peer.put(a) for a in data]
            model.to(put[0].device)
            calls.append((partial(theirs, *put), lambda loss: loss.item()))
    walls = by_turns(calls)
    profile = step.profile(runs=runs)
    kernels = sum(k.seconds for k in profile)
    cells = [name, str(sum(k.launches for k in profile)), f"{1e3 * walls[0]:.3f}", f"{1e3 * kernels:.3f}",
             f"{1e3 * (walls[0] - kernels):.3f}"]
    return cells + ([f"{1e3 * walls[1]:.3f}", f"{walls[0] / walls[1]:.2f}"] if len(walls) > 1 else ["–", "–"])


def by_turns(calls: Sequence[tuple[Callable[[], Any], Callable[[Any], None]]]) -> list[float]:
    """The seconds of a call of each, in a row with one wait at the end: medians of bursts that take turns."""
    counts, times = [], [[] for _ in calls]
    for call, wait in calls:
        wait(call())
        start = time.perf_counter()
        wait(call())
        counts.append(max(1, min(1000, int(BURST / (time.perf_counter() - start)))))
    for _ in range(ROUNDS):
        for taken, count, (call, wait) in zip(times, counts, calls, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                value = call()
            wait(value)
            taken.append((time.perf_counter() - start) / count)
    return [median(taken) for taken in times]


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


def measured(row: Row, device: Device, scale: int, runs: int, others: Sequence[Peer]) -> list[str]:
    """A line of the table: name, launches, kernels' time, limit's time, share; a call's time, those of the others, the ratio, agreement."""
    arguments = row.arguments(np.random.default_rng(0), scale)
    n = namespace("tracegrad")
    f, tensors = tg.trace(lambda *args: row.fn(n, *args)), [tg.tensor(a) for a in arguments]
    ours = f(*tensors)
    profile = f.profile(runs=runs)
    seconds, most = sum(k.seconds for k in profile), limits(device)
    least = {"memory": row.bytes(*arguments) / most.bandwidth,
             "arithmetic": row.flops(*arguments) / most.flops(arguments[0].itemsize)}
    bound = max(least, key=lambda k: least[k])
    cells = [row.name, str(sum(k.launches for k in profile)), f"{1e3 * seconds:.3f}", f"{1e3 * least[bound]:.3f}", bound,
             f"{least[bound] / seconds:.0%}"]
    calls: list[tuple[Callable[[], Any], Callable[[Any], None]]] = [(partial(f, *tensors), lambda _: device.finish())]
    agreed, have = [], []
    for peer in others:
        call = peer.compiled(row)
        have.append(call is not None)
        if call is not None:
            put = [peer.put(a) for a in arguments]
            agreed.append(difference(ours, call(*put), peer))
            calls.append((partial(call, *put), peer.wait))
    own, *walls = by_turns(calls)
    rest = iter(walls)
    cells += [f"{1e3 * own:.3f}", *(f"{1e3 * next(rest):.3f}" if there else "–" for there in have)]
    return cells + ([f"{own / min(walls):.2f}", "yes" if max(agreed) < AGREE else f"no: {max(agreed):.0e}"] if walls else ["–", "–"])


def difference(ours: Any, theirs: Any, peer: Peer) -> float:
    """The largest difference of results, over the largest of theirs; what cannot be compared differs."""
    def flat(value: Any) -> list[Any]:
        return [leaf for part in value for leaf in flat(part)] if isinstance(value, (tuple, list)) else [value]

    worst = 0.0
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        x, y = np.asarray(a.numpy()), np.asarray(peer.host(b))
        kind = np.result_type(x, y, np.float64)
        x, y = x.astype(kind), y.astype(kind)
        finite = np.abs(y[np.isfinite(y)])
        scale = max(float(finite.max()) if finite.size else 0.0, 1e-30)
        worst = max(worst, float(np.abs(x - y).max()) / scale if np.isfinite(x - y).all() else np.inf)
    return worst


def report(device: Device, scale: int, runs: int, chosen: str, others: Sequence[Peer], write: Callable[[str], object]) -> str:
    """The whole page; it is written after each row, so that a run which is cut off leaves what it measured."""
    found, most, target = device.cl_device, limits(device), device.target
    names = "".join(f" {p.name.split()[0]}, ms |" for p in others)
    lines = [
        "# On a GPU", "", "Made by `make bench-gpu`. A row's limit is the time in which the device could move the bytes that the class has "
        "to move, or do its arithmetic, at the rates measured below; its share is that over the time of its kernels. A call is one of many "
        "in a row with one wait at the end; the ratio is tracegrad's over the best of the others', by turns in the same run. Results agree "
        f"within {AGREE:g} of the largest.", "",
        f"- device: {device.name} ({device.driver}, {found.platform.version}, driver {found.driver_version})",
        f"- host: {platform.machine()}, Python {platform.python_version()}",
        f"- {target.cores} cores, {target.lanes} work-items in step, groups of {target.max_work_group}, {target.local_memory >> 10} KiB of "
        f"local memory, float64: {'yes' if target.fp64 else 'no'}",
        f"- copies {1e-9 * most.bandwidth:.0f} GB/s, computes {1e-9 * most.float32:.0f} Gflop/s in float32, "
        f"{1e-9 * most.float64:.0f} in float64",
        f"- extensions: {' '.join(sorted(found.extensions.split()))}",
        f"- beside it: {', '.join(p.name for p in others) or 'no other framework sees the device'}", "",
        f"| class | launches | kernels, ms | limit, ms | of | share | call, ms |{names} ratio | agree |", "|---" * (9 + len(others)) + "|",
    ]
    for row in ROWS:
        if not re.search(chosen, row.name):
            continue
        try:
            cells = measured(row, device, scale, runs, others)
        except TracegradError as error:                   # a class that fails must not hide the others
            cells = [row.name, *[""] * 6, *[""] * len(others), "", f"failed: {str(error).splitlines()[0]}"]
        print("  ".join(cells), flush=True)
        lines.append(f"| {' | '.join(cells)} |")
        write("\n".join(lines) + "\n")
    lines += ["", "Training steps: a call's time where many follow one another, what of it is not the kernels', and torch's (eager).", "",
              "| step | launches | ms | kernels, ms | rest, ms | torch, ms | ratio |", "|---" * 7 + "|"]
    for name in STEPS:
        if not re.search(chosen, name):
            continue
        try:
            cells = stepped(name, scale, runs, others)
        except TracegradError as error:
            cells = [name, "", "", "", "", "", f"failed: {str(error).splitlines()[0]}"]
        print("  ".join(cells), flush=True)
        lines.append(f"| {' | '.join(cells)} |")
        write("\n".join(lines) + "\n")
    lines += ["", arriving(scale, runs)]
    print(lines[-1])
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="gpu", help="which device to measure: an index, a kind or part of a name")
    parser.add_argument("--scale", type=int, help="sizes are 2 to the power of this (default: 6 on GPUs, 0 elsewhere)")
    parser.add_argument("--runs", type=int, default=10, help="runs of which the median counts")
    parser.add_argument("--output", type=Path, help=f"the page to write (default: {RESULTS.name} for GPUs, none elsewhere)")
    parser.add_argument("--rows", default="", help="a regular expression: only rows and steps whose names it finds")
    parser.add_argument("--alone", action="store_true", help="without torch and JAX")
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
    output = given.output or (RESULTS if device.kind == "gpu" else None)
    write = output.write_text if output else lambda _: None
    text = report(device, scale, given.runs, given.rows, [] if given.alone else peers(device), write)
    write(text)
    print(f"written: {output}" if output else text)


if __name__ == "__main__":
    main()
