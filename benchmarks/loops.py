"""Loops: simulations and recurrent networks in float64, `tg.scan` beside the unrolled Python loop. Start at `main`.

    python -m benchmarks.loops                       # all of them
    python -m benchmarks.loops gru pendulum --unrolled --iterations 64 2048
    python -m benchmarks.loops --torch /path/to/python/with/torch

For each: the time to the first result (tracing, compiling, running: in a fresh process, nothing cached), its processor time with that of
the linkers which PoCL starts (what counts where others use the machine), and the time of a call after that.
A case is written once, for tracegrad and for torch (eager), whose namespace is `T`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.frameworks import environment, namespace

T: Any = None             # the framework: tracegrad or torch
Scan = Callable[..., Any]
Case = tuple[Any, int, tuple[Any, ...]]        # a function, with respect to how many of its arguments to differentiate it, the arguments


def unrolled(f: Any, init: Any, xs: Any = None, length: int | None = None) -> Any:
    """What tg.scan computes, as a Python loop."""
    n = length if xs is None else xs.shape[0]
    carry, ys = init, []
    for i in range(n or 0):
        carry, y = f(carry, None if xs is None else xs[i])
        ys.append(y)
    return carry, None if not ys or ys[0] is None else T.stack(ys)


def _numbers(*shape: int) -> Any:
    return T.tensor(np.random.default_rng(0).standard_normal(shape), dtype=T.float64)


def wave(scan: Scan, iterations: int) -> Case:
    """A 2-D wave equation; the gradient of a misfit with respect to the initial state."""

    def laplacian(u: Any) -> Any:
        return u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4.0 * u

    def misfit(u: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            before, now = state
            return (now, 2.0 * now - before + 0.2 * laplacian(now)), None

        (_, last), _ = scan(step, (u, u), length=iterations)
        return (last * last).sum()

    return misfit, 1, (_numbers(128, 128),)


def shallow_water(scan: Scan, iterations: int) -> Case:
    """Shallow water on a periodic grid (height and two velocities, nonlinear); the gradient with respect to the initial height."""

    def dx(a: Any) -> Any:
        return (a.roll(-1, 0) - a.roll(1, 0)) * 0.5

    def dy(a: Any) -> Any:
        return (a.roll(-1, 1) - a.roll(1, 1)) * 0.5

    def misfit(h: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            h, u, v = state
            hn = h - 0.01 * (dx((1.0 + h) * u) + dy((1.0 + h) * v))
            un = u - 0.01 * (u * dx(u) + v * dy(u) + dx(hn))
            vn = v - 0.01 * (u * dx(v) + v * dy(v) + dy(hn))
            return (hn, un, vn), None

        zero = h * 0.0
        (last, u, v), _ = scan(step, (h, zero, zero), length=iterations)
        return (last * last + u * u + v * v).sum()

    return misfit, 1, (_numbers(64, 64) * 0.01,)


def neural_ode(scan: Scan, iterations: int) -> Case:
    """A neural ODE (two layers) integrated by the classic Runge-Kutta method; the gradient with respect to the weights."""

    def loss(w1: Any, w2: Any, y: Any) -> Any:
        def slope(y: Any) -> Any:
            return (y @ w1).tanh() @ w2

        def step(y: Any, _: Any) -> Any:
            k1 = slope(y)
            k2 = slope(y + 0.01 * k1)
            k3 = slope(y + 0.01 * k2)
            k4 = slope(y + 0.02 * k3)
            return y + (0.02 / 6) * (k1 + 2.0 * k2 + 2.0 * k3 + k4), None

        last, _ = scan(step, y, length=iterations)
        return (last * last).mean()

    return loss, 2, (_numbers(4, 32) * 0.5, _numbers(32, 4) * 0.5, _numbers(64, 4))


def pendulum(scan: Scan, iterations: int) -> Case:
    """Optimal control of a pendulum: the gradient of its cost with respect to the torque at every iteration."""

    def cost(torque: Any) -> Any:
        def step(state: Any, u: Any) -> Any:
            angle, speed, total = state
            speed = speed + 0.05 * (u - angle.sin() - 0.1 * speed)
            angle = angle + 0.05 * speed
            return (angle, speed, total + 0.001 * u * u), None

        zero = torque.sum() * 0.0
        (angle, speed, total), _ = scan(step, (zero, zero, zero), torque)
        return (angle - 3.14159) ** 2 + speed * speed + total

    return cost, 1, (_numbers(iterations) * 0.1,)


def gru(scan: Scan, iterations: int) -> Case:
    """A GRU, batch 16, 64 features; the gradient with respect to its weights."""

    def loss(w: Any, r: Any, x: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            a, b = x @ w, h @ r
            reset, update = (a[:, :64] + b[:, :64]).sigmoid(), (a[:, 64:128] + b[:, 64:128]).sigmoid()
            new = (a[:, 128:] + reset * b[:, 128:]).tanh()
            h = new + update * (h - new)
            return h, h

        _, ys = scan(step, T.zeros(16, 64, dtype=T.float64), x)
        return (ys * ys).mean()

    return loss, 2, (_numbers(32, 192) * 0.1, _numbers(64, 192) * 0.1, _numbers(iterations, 16, 32))


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "wave": (wave, (200,)), "shallow_water": (shallow_water, (200,)), "neural_ode": (neural_ode, (100,)), "pendulum": (pendulum, (200,)),
    "gru": (gru, (64, 2048)),                              # what is made of a loop must not depend on its length
}


def measure(name: str, iterations: int, loop: str) -> dict[str, float]:
    """Times in this process, which has compiled nothing yet: of the first call (used: processor time), and of one after that (again)."""
    global T
    T = namespace("torch" if loop == "torch" else "tracegrad").T
    (T.tensor([1.0]) + 1).sum().item()                     # the driver is found and loaded
    fn, varied, args = CASES[name][0](T.scan if loop == "scan" else unrolled, iterations)
    f: Any = None
    if loop == "torch":
        for a in args[:varied]:
            a.requires_grad_()

        def call() -> float:
            value = fn(*args)
            T.autograd.grad(value, args[:varied])
            return float(value)
    else:
        f = T.trace(T.value_and_grad(fn, tuple(range(varied))))

        def call() -> float:
            return float(f(*args)[0])

    start, used = time.perf_counter(), sum(os.times()[:4])
    value = call()
    first, used = time.perf_counter() - start, sum(os.times()[:4]) - used
    times: list[float] = []
    again = time.process_time()
    while len(times) < 5 or (sum(times) < 1 and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    again = (time.process_time() - again) / len(times)
    return {"first": first, "used": used, "call": float(np.median(times)), "again": again, "value": value,
            "launches": 0 if f is None else len(f.plan.launches)}


def by_turns(name: str, iterations: int) -> dict[str, float]:
    """Seconds of a call of the scan and of the unrolled loop, warm, which take turns in this process: what one meets the other does."""
    global T
    T = namespace("tracegrad").T
    calls: dict[str, Callable[[], float]] = {}
    times: dict[str, list[float]] = {"scan": [], "unrolled": []}
    for loop, scan in (("scan", T.scan), ("unrolled", unrolled)):
        fn, varied, args = CASES[name][0](scan, iterations)
        f = T.trace(T.value_and_grad(fn, tuple(range(varied))))
        calls[loop] = lambda f=f, args=args: float(f(*args)[0])
        calls[loop]()
    for _ in range(60):
        for loop, call in calls.items():
            start = time.perf_counter()
            for _ in range(3):
                call()
            times[loop].append((time.perf_counter() - start) / 3)
    return {loop: float(np.median(found)) for loop, found in times.items()}


def in_process(python: str, caches: str, call: str) -> dict[str, float]:
    """What a function of this module finds in a process of its own."""
    run = subprocess.run([python, "-c", f"import json; from benchmarks import loops; print(json.dumps(loops.{call}))"], capture_output=True,
                         text=True, check=False, env=environment(caches))
    if run.returncode:
        raise RuntimeError(run.stderr)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def first_call(name: str, iterations: int, loop: str = "scan", python: str = sys.executable) -> dict[str, float]:
    """What `measure` finds in a fresh process with nothing cached."""
    with tempfile.TemporaryDirectory() as caches:          # of compiled programs: a first call is cold
        return in_process(python, caches, f"measure({name!r}, {iterations}, {loop!r})")


def main() -> None:
    """Print a table: a line per case, number of iterations, and kind of loop."""
    parser = argparse.ArgumentParser(description="Loops: tg.scan beside the unrolled Python loop.")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--iterations", nargs="*", type=int, help="how many iterations (default: the case's own)")
    parser.add_argument("--unrolled", action="store_true", help="the unrolled loop, too (slow to compile)")
    parser.add_argument("--torch", default="", help="a Python interpreter that has torch, to measure that, too")
    options = parser.parse_args()
    print(f"{'case':14} {'length':>6} {'loop':9} {'first call':>10} {'cpu':>8} {'a call':>10} {'iteration':>10} launches")
    for name in options.cases:
        for iterations in options.iterations or CASES[name][1]:
            for loop in ["scan"] + ["unrolled"] * options.unrolled + ["torch"] * bool(options.torch):
                m = first_call(name, iterations, loop, options.torch if loop == "torch" else sys.executable)
                print(f"{name:14} {iterations:6} {loop:9} {m['first']:8.2f} s {m['used']:6.2f} s {1e3 * m['call']:7.2f} ms "
                      f"{1e6 * m['call'] / iterations:7.2f} us {m['launches']:.0f}   value {m['value']:.6g}", flush=True)


if __name__ == "__main__":
    main()
