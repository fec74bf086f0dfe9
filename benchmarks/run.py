"""Runs the benchmark: every workload, every contender, one table. `python -m benchmarks.run --help`.

How it measures, and why:

- Each contender of each workload is a process of its own, with the same inputs, the same cores and the same thread count. BLAS and
  OpenMP threads spin for a while after a call; in one process they would take the cores from whoever is timed next.
- First call: once with every cache on disk empty (cold), once in a second fresh process with the caches that the first left (warm). With
  `--once` there is no second process, which halves what the whole table takes.
- The results of the first iterations are compared with a float64 NumPy reference. A contender that fails is not timed.
- Then all contenders of the workload take turns for several rounds, in changing order, with a pause before each turn, so that
  a slow spell of the machine hits all of them. Reported is the median over all rounds, with quartiles; the ratio to the best peer is
  the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import frameworks, report
from benchmarks.limits import share
from benchmarks.workloads import WORKLOADS, Workload

ROOT = frameworks.ROOT
CONTENDERS = tuple(frameworks.FRAMEWORKS)
EXTRA = ("pytensor", "drjit", "tinygrad")                               # peers that a whole table may lack
ON = " on "                                                 # "tracegrad on PoCL 3.0": with that driver, where several are installed


class Failed(Exception):
    """A contender that could not do what it was told."""


@dataclass
class Result:
    """What one contender did on one workload; times in seconds."""

    about: str = ""
    cold: float = 0.0
    warm: float = 0.0
    error: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)
    demand: dict[str, Any] = field(default_factory=dict)     # see limits.demand
    failed: str = ""

    @property
    def share(self) -> tuple[float, str] | None:
        """Of the machine's measured limit that the median time is nearest to, and which that is."""
        return share(self.demand, statistics.median(self.times)) if self.times else None

    @property
    def times(self) -> list[float]:
        return sorted(t for r in self.rounds for t in r)


class Process:
    """A worker and the pipe to it."""

    limit: float | None = None             # seconds that an answer may take: then the process is ended

    def __init__(self, python: str, contender: str, workload: str, threads: int, inputs: Path, caches: Path, tree: Path = ROOT) -> None:
        framework, _, driver = contender.partition(ON)
        chosen = {"TRACEGRAD_DEVICE": driver} if driver else {}
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", framework, workload, str(threads), str(inputs)],
            cwd=tree, env=environment(threads, caches) | {"PYTHONPATH": str(tree)} | chosen, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )

    def tell(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.ask(command, **arguments)
        return self.answer()

    def ask(self, command: str, **arguments: Any) -> None:
        """Send a command; `answer` waits for what comes of it, so that several processes may be at it meanwhile."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"command": command, **arguments}), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        late = None if self.limit is None else threading.Timer(self.limit, self.process.kill)
        try:
            if late is not None:
                late.start()
            line = self.process.stdout.readline()
        finally:
            if late is not None:
                late.cancel()
        if not line and late is not None and self.process.wait() == -signal.SIGKILL:
            raise Failed(f"no answer within {self.limit:.0f} s, or killed for its memory")
        if not line:
            lines = self.process.communicate()[1].strip().splitlines()
            raise Failed(f"the process ended with status {self.process.returncode}: {lines[-1] if lines else 'no message'}")
        answer = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer

    def quit(self) -> None:
        if self.process.poll() is None:
            try:
                self.process.communicate('{"command": "quit"}\n', timeout=30)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                self.process.kill()
                self.process.wait()


def environment(threads: int, caches: Path) -> dict[str, str]:
    """The same number of threads for everyone, and every cache on disk under `caches`."""
    n = str(threads)
    return frameworks.environment(caches) | {
        "OMP_NUM_THREADS": n, "OPENBLAS_NUM_THREADS": n, "MKL_NUM_THREADS": n,
        "POCL_MAX_PTHREAD_COUNT": n, "POCL_CPU_MAX_CU_COUNT": n,                # PoCL to 3, PoCL from 4
        "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "PYTENSOR_FLAGS": f"compiledir={caches / 'pytensor'},floatX=float32",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", "JAX_PLATFORMS": "cpu",
    }


def measure(workload: Workload, contenders: dict[str, str], settings: argparse.Namespace, folder: Path) -> dict[str, Result]:
    """One row. `contenders` maps a name to the interpreter that has it."""
    inputs = folder / "inputs.npz"
    data = workload.data(np.random.default_rng(0))
    outputs = workload.reference(**data)
    np.savez(inputs, **{f"in_{k}": v for k, v in data.items()}, **{f"out{i:02}": v for i, v in enumerate(outputs)})
    del data, outputs

    results = {name: Result() for name in contenders if getattr(workload, name.partition(ON)[0]) is not None}
    alive: dict[str, Process] = {}
    try:
        for first in ("cold",) if settings.once else ("cold", "warm"):
            for name, result in results.items():
                if not result.failed:
                    alive[name] = Process(contenders[name], name, workload.name, settings.threads, inputs, folder / f"caches-{name}")
                    alive[name].ask("load")                  # all of them at once: nothing is timed yet
            for name, process in list(alive.items()):
                try:
                    process.answer()
                except Failed as failure:
                    results[name].failed = str(failure)
                    alive.pop(name).quit()
            for name, process in list(alive.items()):
                result = results[name]
                try:
                    answer = process.tell("first")
                    result.about = answer["about"]
                    setattr(result, first, answer["first"])
                    if first == "warm" or settings.once:
                        result.error = process.tell("check")["error"]
                        if not result.error <= workload.tolerance:
                            raise Failed(f"wrong: off by {result.error:.1e} of the largest value, {workload.tolerance:.0e} allowed")
                    else:
                        alive.pop(name).quit()
                except Failed as failure:
                    result.failed = str(failure)
                    alive.pop(name).quit()
        if "tracegrad" in alive:
            try:
                results["tracegrad"].demand = alive["tracegrad"].tell("limits")
            except Failed as failure:
                results["tracegrad"].failed = str(failure)
                alive.pop("tracegrad").quit()
        for number in range(settings.rounds):
            order = list(alive)[number % max(len(alive), 1):] + list(alive)[: number % max(len(alive), 1)]
            for name in order:
                time.sleep(settings.pause)
                try:
                    answer = alive[name].tell("time", seconds=settings.seconds, least=3, clock=settings.clock)
                    results[name].rounds.append(answer["times"])
                except Failed as failure:
                    results[name].failed = str(failure)
                    alive.pop(name).quit()
    finally:
        for process in alive.values():
            process.quit()
    return results


def best_peer(results: dict[str, Result]) -> str | None:
    peers = {name: statistics.median(r.times) for name, r in results.items() if not name.startswith("tracegrad") and not r.failed}
    return min(peers, key=peers.__getitem__) if peers else None


def ratio(results: dict[str, Result]) -> tuple[float, float, float] | None:
    """tracegrad's time over the best peer's: median, least and largest of the rounds."""
    peer, mine = best_peer(results), results.get("tracegrad")
    if peer is None or mine is None or mine.failed:
        return None
    ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(mine.rounds, results[peer].rounds, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def available(settings: argparse.Namespace) -> dict[str, str]:
    """The contenders that can be imported, each with its interpreter."""
    found = {}
    for name in settings.contenders:
        python = sys.executable if name == "tracegrad" else settings.peer_python
        tried = subprocess.run([python, "-c", f"import {frameworks.PACKAGES.get(name, name)}"], cwd=ROOT, capture_output=True, check=False)
        if name == "tracegrad" or tried.returncode == 0:
            found[name] = python
            if name == "tracegrad":
                found |= {f"{name}{ON}{driver}": python for driver in cpu_drivers()}
        else:
            extra = "peers" if name in EXTRA else "bench"
            print(f"{name}: cannot be imported, left out (the extra `{extra}` installs it, or give --peer-python)")
    return found


def cpu_drivers() -> list[str]:
    """The CPU drivers of which tracegrad chooses its default, if there are several."""
    asked = "from tracegrad.runtime.device import contenders, devices; print(*(d.driver for d in contenders(devices())), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=False)
    drivers = done.stdout.split("\n")[:-1]
    return drivers if len(drivers) > 1 else []


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run",
                                     description="tracegrad beside torch eager, torch.compile, jax.jit, PyTensor, Dr.Jit and tinygrad")
    parser.add_argument("--rows", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS), metavar="ROW", help=", ".join(WORKLOADS))
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has torch and jax")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.4, help="how long a turn lasts, at least")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="the time that passes, or the processors' time")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds before a turn")
    parser.add_argument("--once", action="store_true", help="no second process a contender: first calls are measured cold only")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a contender may take for an answer")
    parser.add_argument("--quick", action="store_true", help="2 short rounds: does it run, not how fast")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md even if only some rows or contenders ran")
    settings = parser.parse_args()
    if settings.quick:
        settings.rounds, settings.seconds, settings.pause, settings.once = 2, 0.05, 0.05, True
    return settings


def main() -> int:
    settings = parse()
    Process.limit = settings.limit
    contenders = available(settings)
    machine = report.describe_machine(settings)
    table: dict[str, dict[str, Result]] = {}
    for name in settings.rows:
        folder = Path(tempfile.mkdtemp(prefix="tracegrad-bench-"))
        try:
            table[name] = measure(WORKLOADS[name], contenders, settings, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        report.print_row(WORKLOADS[name], table[name], ratio(table[name]))
    ratios = {name: ratio(row) for name, row in table.items()}
    print(report.summary(table, ratios))
    print(report.first_calls(table))
    whole = set(settings.rows) == set(WORKLOADS) and set(contenders) >= set(CONTENDERS) - set(EXTRA) and not settings.quick
    if whole or settings.write:
        report.write(table, ratios, machine)
    return any(result.failed for row in table.values() for result in row.values())


if __name__ == "__main__":
    sys.exit(main())
