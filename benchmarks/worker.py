"""One contender on one workload, in a process of its own. Commands come as JSON lines on stdin, answers go to stdout.

    load    import the framework                              -> {}
    first   load if need be, move the inputs in, build, call once -> {"about", "first"}            seconds, of the build and the call
    check   compare with the float64 reference                -> {"error"}                         relative to the largest value
    limits  tracegrad only: what the traced function moves and computes, and what the device can do -> {"bytes", ...}, or {} untraced
    time    iterate for `seconds`, at least `least` bursts    -> {"times"}                         seconds an iteration; of the
            processor, all threads, with clock "cpu"
    quit

Between commands the process sleeps in a read, so that its threads are idle while another contender is timed.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.frameworks import FRAMEWORKS
from benchmarks.workloads import WORKLOADS


class Contender:
    framework: Any = None

    def __init__(self, framework: str, workload: str, threads: int, inputs: str) -> None:
        self.workload, self.name, self.threads = WORKLOADS[workload], framework, threads
        with np.load(inputs) as arrays:
            self.inputs = {key[3:]: arrays[key] for key in arrays if key.startswith("in_")}
            self.expected = [arrays[key] for key in sorted(arrays) if key.startswith("out")]

    def load(self) -> dict[str, Any]:
        self.framework = FRAMEWORKS[self.name](self.threads)
        return {}

    def first(self) -> dict[str, Any]:
        if self.framework is None:
            self.load()
        inputs = {name: self.framework.put(array) for name, array in self.inputs.items()}
        start = perf_counter()
        self.iterate = getattr(self.workload, self.name)(**inputs)
        self.values = self.iterate()
        self.framework.wait(self.values)
        return {"about": self.framework.about, "first": perf_counter() - start}

    def check(self) -> dict[str, Any]:
        for _ in range(self.workload.checked - 1):
            self.values = self.iterate()
        results = [self.framework.numpy(value) for value in self.values]
        del self.values
        results = self.workload.view(tuple(results))
        if self.name == "drjit":
            results = [got.reshape(want.shape) for got, want in zip(results, self.expected, strict=True)]
        errors = [_error(got, want) for got, want in zip(results, self.expected, strict=True)]
        return {"error": max(errors)}

    def limits(self) -> dict[str, Any]:
        from benchmarks.limits import demand

        return {} if self.workload.traced is None else demand(self.workload.traced)

    def time(self, seconds: float, least: int, clock: str = "wall") -> dict[str, Any]:
        gc.collect()
        now = process_time if clock == "cpu" else perf_counter
        self._burst(now)                # threads wake up, caches fill
        times: list[float] = []
        deadline = perf_counter() + seconds
        while len(times) < least or perf_counter() < deadline:
            times.append(self._burst(now))
        return {"times": times}

    def _burst(self, now: Callable[[], float]) -> float:
        iterate, wait, count, when = self.iterate, self.framework.wait, self.workload.burst, self.workload.wait
        start = now()
        if when == "each":
            for _ in range(count):
                wait(iterate())
        else:
            for _ in range(count):
                values = iterate()
            if when == "burst":
                wait(values)
        return (now() - start) / count


def _error(got: np.ndarray, want: np.ndarray) -> float:
    if got.shape != want.shape:
        raise ValueError(f"a result of shape {got.shape} where {want.shape} was expected")
    error = float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-30))
    return error if math.isfinite(error) else math.inf


def serve(make: Callable[[], Any]) -> None:
    """Answer commands on stdin by methods of what `make` makes. Whatever a framework prints goes to stderr, not between the answers."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contender = make()
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("command")
        if name == "quit":
            break
        try:
            answer = getattr(contender, name)(**command)
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=replies, flush=True)


def main(framework: str, workload: str, threads: int, inputs: str) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    serve(lambda: Contender(framework, workload, threads, inputs))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
