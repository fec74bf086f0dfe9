"""How long the first call of a traced program takes, and what in it: `python -m benchmarks.first_call [names] [--peer-python PYTHON]`.

Each of benchmarks/traced runs in fresh processes: one with every cache on disk empty ("cold"), one with those that it left ("again").
Where the time goes: "lower" is Python from the captured graph to the plan, "build" the driver's compiler, both within "first".
"cpu" is the processor time of the first call, with that of the linkers which PoCL starts: what it takes where nobody else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.frameworks import ROOT, environment, namespace
from benchmarks.traced import PROGRAMS


def timed(owner: Any, name: str, spent: dict[str, float], key: str) -> None:
    """Add what calls of owner.name take to spent[key]."""
    inner = getattr(owner, name)

    def outer(*args: Any, **given: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(*args, **given)
        finally:
            spent[key] = spent.get(key, 0.0) + time.perf_counter() - start

    setattr(owner, name, outer)


def work(name: str, framework_name: str, seconds: float) -> dict[str, Any]:
    """In a process of its own: the times of one program."""
    f = namespace(framework_name)
    spent: dict[str, float] = {}
    plans: list[Any] = []
    if framework_name == "tracegrad":
        import tracegrad.compile  # noqa: F401
        from tracegrad.codegen import passes
        from tracegrad.runtime import launch

        timed(passes, "compile_graph", spent, "lower")
        timed(launch, "kernels", spent, "build")
        bind = launch.Executable.__init__

        def noted(self: Any, plan: Any, device: Any) -> None:
            plans.append(plan)
            bind(self, plan, device)

        launch.Executable.__init__ = noted  # type: ignore[method-assign]
    call = PROGRAMS[name](f)
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


def measure(python: str, name: str, framework_name: str, caches: str, seconds: float) -> dict[str, Any]:
    done = subprocess.run([python, "-m", "benchmarks.first_call", name, "--work", framework_name, "--seconds", str(seconds)], cwd=ROOT,
                          env=environment(caches), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, {framework_name}: failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs (default: all)")
    parser.add_argument("--peer-python", default="", help="an interpreter that has torch")
    parser.add_argument("--seconds", type=float, default=1.0, help="for how long to call it once it is warm")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(options.names[0], options.work, options.seconds)))
        return
    heads = "".join(f"{h:>{w}}" for h, w in (("cold: first", 12), ("cpu", 8), ("lower", 8), ("build", 8), ("kernels", 9), ("launches", 9),
                                             ("again: first", 14), ("warm", 10), ("torch", 10)))
    print(f"{'':14}{heads}")
    for name in options.names or PROGRAMS:
        with tempfile.TemporaryDirectory() as caches:
            cold = measure(sys.executable, name, "tracegrad", caches, options.seconds)
            again = measure(sys.executable, name, "tracegrad", caches, options.seconds)
            peer = measure(options.peer_python, name, "torch", caches, options.seconds) if options.peer_python else None
        values = f"{cold['value']:.6g}" + ("" if peer is None else f" {peer['value']:.6g}")
        beside = "" if peer is None else f"{1e3 * peer['warm']:7.2f} ms"
        spent = "".join(f"{cold.get(key, 0.0):8.2f}" for key in ("used", "lower", "build"))
        print(f"{name:14}{cold['first']:10.2f} s{spent}{cold['kernels']:9}{cold['launches']:9}{again['first']:12.2f} s"
              f"{1e3 * again['warm']:7.2f} ms{beside:>10}   {values}", flush=True)


if __name__ == "__main__":
    main()
