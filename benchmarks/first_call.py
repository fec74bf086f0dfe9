"""How long first calls take, and what in them: `python -m benchmarks.first_call [names] [--peer-python PYTHON]`. Start at `main`.

Each of benchmarks/traced runs in fresh processes: one with every cache on disk empty ("cold"), one with those that it left ("again").
Where the time goes: "lower" is Python from the captured graph to the plan, "build" the driver's compiler, both within "first".
"cpu" is the processor time of the first call, with that of the linkers which PoCL starts: what it takes where nobody else uses the machine.
Beside it torch eager's first call and a later one, and those of the same program under jax.jit, where PEER_PYTHON has them.

Then a small function and a transformer's step in a second process, the time that lowering takes, the programs of benchmarks/loops.py with
64 and with 2,048 iterations and beside the unrolled loop, those of benchmarks/sizes.py, and the CPU drivers that are installed. Last the
table of targets.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.frameworks import ROOT, environment, namespace
from benchmarks.report import FIRST
from benchmarks.run import cpu_drivers
from benchmarks.targets import Row, table
from benchmarks.traced import PROGRAMS, in_jax

TARGETS = dict.fromkeys(("dcgan", "transformer", "vit", "wave", "shallow_water", "neural_ode", "pendulum", "gru"), 5.0)
IN_JAX = ("wave", "shallow_water", "pendulum")             # the same text runs there; for others see traced/in_jax.py
DRIVERS = ("transformer", "dcgan", "neural_ode", "pendulum")           # on each of the CPU drivers
LOWERING = {"convnet": 100.0, "transformer": 250.0, "lstm": 100.0}     # milliseconds wanted
PATIENCE = 180.0                                           # seconds of jax: XLA takes many minutes for 200 unrolled steps
LOOPS = ("pendulum", "gru")                                # of benchmarks/loops.py, with 64 and with 2,048 iterations


def small(f: Any) -> Callable[[], float]:
    """Ten operations, elementwise and along rows."""
    T = f.T

    @f.trace
    def function(x: Any, y: Any) -> Any:
        z = T.exp(T.tanh(x * y + 1.0) - y)
        return (z / z.sum(1, keepdim=True) * x).mean(0).sqrt()

    x, y = T.full((64, 33), 0.5), T.full((64, 33), 2.0)
    return lambda: float(function(x, y)[0])


OWN = {"small": small, **PROGRAMS}


def timed(owner: Any, name: str, spent: dict[str, float], key: str) -> None:
    """Add what calls of owner.name take to spent[key], and in processor time of their thread to spent[key + " cpu"]."""
    inner = getattr(owner, name)

    def outer(*args: Any, **given: Any) -> Any:
        start, used = time.perf_counter(), time.thread_time()      # (in another one the driver loads its compiler)
        try:
            return inner(*args, **given)
        finally:
            spent[key] = spent.get(key, 0.0) + time.perf_counter() - start
            spent[key + " cpu"] = spent.get(key + " cpu", 0.0) + time.thread_time() - used

    setattr(owner, name, outer)


def work(name: str, framework_name: str, seconds: float) -> dict[str, Any]:
    """In a process of its own: the times of one program."""
    f = namespace(framework_name)
    spent: dict[str, float] = {}
    plans: list[Any] = []
    if framework_name == "tracegrad" and seconds:
        import tracegrad.execute.compile  # noqa: F401
        from tracegrad.codegen import compiler
        from tracegrad.runtime import launch

        timed(compiler, "compile_graph", spent, "lower")
        timed(launch, "kernels", spent, "build")
        bind = launch.Executable.__init__

        def noted(self: Any, plan: Any, device: Any) -> None:
            plans.append(plan)
            bind(self, plan, device)

        launch.Executable.__init__ = noted  # type: ignore[method-assign]
    call = in_jax.PROGRAMS[name]() if framework_name == "jax" and name in in_jax.PROGRAMS else OWN[name](f)
    spent.clear()
    plans.clear()
    start, used = time.perf_counter(), sum(os.times()[:4])
    value = call()
    first, used = time.perf_counter() - start, sum(os.times()[:4]) - used
    within = dict(spent)
    largest = max(plans, key=lambda p: len(p.source), default=None)
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    kernels, launches = (0, 0) if largest is None else (largest.source.count("__kernel"), len(largest.launches))
    return {"value": value, "first": first, "used": used, "warm": statistics.median(times), **within, "kernels": kernels,
            "launches": launches}


def measure(python: str, name: str, framework_name: str, caches: str, seconds: float, limit: float | None = None,
            **more: str) -> dict[str, Any]:
    """What `work` finds. more: environment variables. 0 seconds: nothing is loaded that the program does not load itself.

    limit: seconds of the process. Raises subprocess.TimeoutExpired.
    """
    done = subprocess.run([python, "-m", "benchmarks.first_call", name, "--work", framework_name, "--seconds", str(seconds)], cwd=ROOT,
                          env=environment(caches, **more), capture_output=True, text=True, check=False, timeout=limit)
    if done.returncode:
        raise SystemExit(f"{name}, {framework_name}: failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def in_jax_jit(python: str, name: str, caches: str) -> dict[str, Any] | None:
    """What `work` finds of jax; None, and a line that says so, where XLA compiles an unrolled loop for longer than anybody waits."""
    try:
        return measure(python, name, "jax", caches, 0.0, PATIENCE)
    except subprocess.TimeoutExpired:
        print(f"{name}, jax: no result after {PATIENCE:.0f} s")
        return None


def has(python: str, package: str) -> bool:
    return bool(python) and subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def programs(names: list[str], peer: str, seconds: float) -> list[Row]:
    """A line for each, printed as it is known; the rows of targets."""
    heads = "".join(f"{h:>{w}}" for h, w in (("cold: first", 12), ("cpu", 8), ("lower", 8), ("build", 8), ("kernels", 9), ("launches", 9),
                                             ("again: first", 14), ("warm", 10), ("torch: first", 14), ("warm", 10), ("jax: first", 12),
                                             ("warm", 10)))
    print(f"{'':14}{heads}")
    torch, jax = has(peer, "torch"), has(peer, "jax")
    rows, ratios = [], []
    for name in names:
        with tempfile.TemporaryDirectory() as caches:
            cold = measure(sys.executable, name, "tracegrad", caches, seconds)
            again = measure(sys.executable, name, "tracegrad", caches, seconds)
            eager = measure(peer, name, "torch", caches, seconds) if torch else None
            jitted = in_jax_jit(peer, name, caches) if jax and (name in IN_JAX or name in in_jax.PROGRAMS) else None
        values = f"{cold['value']:.6g}" + ("" if eager is None else f" {eager['value']:.6g}")
        beside = "".join(f"{'':{w + 10}}" if of is None else f"{of['first']:{w - 2}.2f} s{1e3 * of['warm']:7.2f} ms"
                         for of, w in ((eager, 14), (jitted, 12)))
        spent = "".join(f"{cold.get(key, 0.0):8.2f}" for key in ("used", "lower", "build"))
        print(f"{name:14}{cold['first']:10.2f} s{spent}{cold['kernels']:9}{cold['launches']:9}{again['first']:12.2f} s"
              f"{1e3 * again['warm']:7.2f} ms{beside}   {values}", flush=True)
        if name in TARGETS:
            rows += [Row(f"{name}: first call, cold", TARGETS[name], cold["first"], "s"),
                     Row(f"{name}: first call, cold, processor time", None, cold["used"], "s")]
        if jitted is not None:
            ratios.append(cold["first"] / jitted["first"])
            rows += [Row(f"{name}: first call, cold, to jax.jit's", None, ratios[-1]),
                     Row(f"{name}: the same of processor time", None, cold["used"] / jitted["used"])]
        if name in LOWERING:
            rows.append(Row(f"{name}: lowering, processor time", LOWERING[name], 1e3 * cold.get("lower cpu", 0.0), "ms"))
    if ratios:
        rows.append(Row("first call, cold, to jax.jit's: geometric mean", 4.0, math.exp(statistics.fmean(map(math.log, ratios)))))
    return rows


def second_process() -> list[Row]:
    """First calls with what an earlier process left on disk, and the lowering of the small function."""
    rows = []
    for name, target in (("small", 30.0), ("transformer", 150.0)):
        with tempfile.TemporaryDirectory() as caches:
            if name == "small":
                lowered = measure(sys.executable, name, "tracegrad", caches, 0.1)
                rows.append(Row("small function: lowering, processor time", 20, 1e3 * lowered["lower cpu"], "ms"))
            measure(sys.executable, name, "tracegrad", caches, 0.0)
            found = [measure(sys.executable, name, "tracegrad", caches, 0.0) for _ in range(5)]
        rows += [Row(f"{name}: first call in a second process", target, 1e3 * statistics.median(f["first"] for f in found), "ms"),
                 Row(f"{name}: the same, processor time", None, 1e3 * statistics.median(f["used"] for f in found), "ms")]
    return rows


def loops(peer: str) -> list[Row]:
    """The programs of benchmarks/loops.py: first calls, cold; a scan beside the unrolled loop; long loops beside short ones.

    Later calls of scan and unrolled loop take turns in one process. First calls of long and of short loops take turns, too, and beside
    what a person waits for stand their processor time (of all cores) and what they take that a later call does not: that one grows with
    the iterations, as it has to.
    """
    from benchmarks.loops import CASES, first_call, in_process

    rows = []
    torch = has(peer, "torch")
    for name, (_, (iterations, *_)) in CASES.items():
        found = first_call(name, iterations)
        rows += [Row(f"scan, {name}, {iterations} iterations: first call, cold", 5.0, found["first"], "s"),
                 Row(f"scan, {name}, {iterations} iterations: the same, processor time", None, found["used"], "s")]
        if torch:
            eager = first_call(name, iterations, "torch", peer)
            rows += [Row(f"scan, {name}, {iterations} iterations: first call, torch", None, eager["first"], "s"),
                     Row(f"scan, {name}, {iterations} iterations: a later call, processor time, to torch's", None,
                         found["again"] / eager["again"])]
        unrolled = first_call(name, iterations, "unrolled")
        rows += [Row(f"unrolled, {name}, {iterations} iterations: first call, cold", 5.0, unrolled["first"], "s"),
                 Row(f"unrolled, {name}, {iterations} iterations: the same, processor time", None, unrolled["used"], "s")]
        with tempfile.TemporaryDirectory() as caches:
            later = in_process(sys.executable, caches, f"by_turns({name!r}, {iterations})")
        rows.append(Row(f"scan, {name}, {iterations} iterations: a later call, to the unrolled loop's", 1.0,
                        later["scan"] / later["unrolled"]))
    for name in LOOPS:
        several = [[first_call(name, iterations) for iterations in (2048, 64)] for _ in range(5)]
        for what, target, of in (("first call of 2,048 iterations to that of 64", 1.1, lambda f: f["first"]),
                                 ("the same, processor time", None, lambda f: f["used"]),
                                 ("the same, less what a later call takes", None, lambda f: f["first"] - f["call"])):
            long, short = (statistics.median(map(of, found)) for found in zip(*several, strict=True))
            rows.append(Row(f"scan, {name}: {what}", target, long / short))
    return rows


def sizes(peer: str) -> list[Row]:
    """The programs of benchmarks/sizes.py: what the third size and those after it build and take beyond a later call, and in a second
    process; torch beside. And later calls, to those of the program made for that size."""
    from benchmarks.sizes import PROGRAMS as VARYING

    def ran(python: str, name: str, framework: str, caches: str) -> dict[str, Any]:
        done = subprocess.run([python, "-m", "benchmarks.sizes", name, framework], cwd=ROOT, env=environment(caches), capture_output=True,
                              text=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    rows = []
    for name in VARYING:
        with tempfile.TemporaryDirectory() as caches:
            for process in ("", ", second process"):
                found = ran(sys.executable, name, "tracegrad", caches)
                steady = found["again"][2:] if name != "generation" else [statistics.median(found["again"])] * len(found["first"][2:])
                beyond = [1e3 * (a - b) for a, b in zip(found["first"][2:], steady, strict=True)]
                what = f"{name}, other sizes{process}"
                rows += [Row(f"{what}: a first call beyond a later one, median", 30, statistics.median(beyond), "ms"),
                         Row(f"{what}: the longest", None, max(beyond), "ms")]
                rows += [Row(f"{what}: kernels from the third size on", 0, sum(found["builds"][2:]))] * (not process)
            taken = ran(sys.executable, name, "steady", caches)
            rows += [Row(f"{name}, a later call by kernels for any size, to the program made for it", None, taken["any"]),
                     Row(f"{name}, the same once the size has kernels of its own", 1.05, taken["own"])]
            if has(peer, "torch"):
                eager = 1e3 * statistics.median(ran(peer, name, "torch", caches)["first"][2:])
                rows.append(Row(f"{name}, other sizes: a first call, torch, median", None, eager, "ms"))
    return rows


def drivers(peer: str, seconds: float) -> list[Row]:
    """Some programs on each of the CPU drivers, where several are installed, beside jax.jit."""
    rows = []
    jitted: dict[str, dict[str, Any] | None] = {}
    names = cpu_drivers()
    for name in DRIVERS if names and has(peer, "jax") else ():
        with tempfile.TemporaryDirectory() as caches:
            jitted[name] = in_jax_jit(peer, name, caches)
    for driver in names:
        target = next((most for part, most in FIRST.items() if part and part in driver), None)     # PoCL's is a mean: `programs`
        for name in DRIVERS:
            with tempfile.TemporaryDirectory() as caches:
                found = measure(sys.executable, name, "tracegrad", caches, seconds, TRACEGRAD_DEVICE=driver)
            if beside := jitted.get(name):
                rows += [Row(f"{name} on {driver}: first call, cold, to jax.jit's", target, found["first"] / beside["first"]),
                         Row(f"{name} on {driver}: the same of processor time", None, found["used"] / beside["used"])]
            rows += [Row(f"{name} on {driver}: first call, cold", None, found["first"], "s"),
                     Row(f"{name} on {driver}: the same, processor time", None, found["used"], "s"),
                     Row(f"{name} on {driver}: a call", None, 1e3 * found["warm"], "ms")]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs (default: all)")
    parser.add_argument("--peer-python", default="", help="an interpreter that has torch or jax, or both")
    parser.add_argument("--seconds", type=float, default=1.0, help="for how long to call it once it is warm")
    parser.add_argument("--only", choices=["programs", "processes", "loops", "sizes", "drivers"], nargs="+", help="parts (default: all)")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(options.names[0], options.work, options.seconds)))
        return
    parts = options.only or (["programs"] if options.names else ["programs", "processes", "loops", "sizes", "drivers"])
    rows: list[Row] = []
    if "programs" in parts:
        rows += programs(options.names or list(PROGRAMS), options.peer_python, options.seconds)
    if "processes" in parts:
        rows += second_process()
    if "loops" in parts:
        rows += loops(options.peer_python)
    if "sizes" in parts:
        rows += sizes(options.peer_python)
    if "drivers" in parts:
        rows += drivers(options.peer_python, options.seconds)
    print("\n" + table("first calls", rows))


if __name__ == "__main__":
    main()
