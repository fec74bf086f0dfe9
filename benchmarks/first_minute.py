"""How tracegrad feels in the first minute, beside torch: `make bench-first-minute`, `python -m benchmarks.first_minute --help`.

First LINES, typed one after the other as in an interactive session: the time of each until its result is there; nothing is traced. In fresh
processes, with every cache on disk empty (cold) and with those that a first process left (warm), with the driver that pip installs and,
apart, with those of the system too. Then the training programs of benchmarks/programs: as whole processes, and in the steady state, by
turns with torch. Last, what was asked for, and whether it is met.

Lines are written once: `T` is the framework, `F` its nn.functional, `grad` its functional gradient.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.frameworks import ROOT, environment, namespace
from benchmarks.programs import NAMES
from benchmarks.programs.timing import show
from benchmarks.targets import Row, table

LINES = """
x = T.randn(64, 32); print(x)
print(x * 2)
y = T.linspace(0.0, 1.0, 100); print(y)
print(T.arange(12).reshape(3, 4))
z = T.rand(32, 16); print(z.mean())
print((x @ z).shape, (x @ z)[0])
print(x.sum(0))
print(x.mean(1)[:5])
print(x.var().item())
print(x.max(), x.argmax().item())
print(T.softmax(x, 1).sum(1)[:3])
print(T.exp(-y ** 2)[::10])
print((x > 0).sum())
print(x[3, 4:9])
print(x[T.tensor([1, 5, 2])].shape)
print(x.sort(1)[0][0])
print(x.topk(3, 1)[0][:2])
print(T.cumsum(y, 0)[-1])
print(T.where(x > 0, x, 0.1 * x)[0])
print(T.cat([x, x], 0).shape)
print(T.stack([y, y]).T[:2])
w = T.randn(32, 10, requires_grad=True); loss = (x @ w).tanh().sum(); print(loss)
loss.backward(); print(w.grad[0])
print(grad(lambda a: (a ** 3).sum())(y)[:4])
print(grad(lambda a: grad(lambda b: (b ** 3).sum())(a).sum())(y)[:4])
print(F.relu(x)[0])
print(F.gelu(x)[0])
print(F.layer_norm(x, (32,)).std())
k = T.randn(4, 3, 3, 3); i = T.randn(2, 3, 16, 16); print(F.conv2d(i, k, padding=1).shape)
print(F.conv2d(i, k, padding=1).mean())
print(F.max_pool2d(i, 2).sum())
print(F.cross_entropy(x @ w, T.arange(64) % 10))
i.add_(1.0); print(i.mean())
x[0] = 0.0; print(x[0].sum())
print(T.einsum('ij,jk->ik', x, z)[0, :3])
print(T.outer(y[:3], y[:4]))
m = T.nn.Linear(32, 8); print(m(x)[0])
F.mse_loss(m(x), T.zeros(64, 8)).backward(); print(m.weight.grad.abs().max())
print(T.linspace(-1.0, 1.0, 5).double().sigmoid())
print((x.T @ x).diagonal().sum())
""".strip().splitlines()


def work(name: str) -> None:
    """In a process of its own: type the lines, and print the seconds of each as JSON."""
    f = namespace(name)
    f.T.manual_seed(0)
    names, times = dict(vars(f)), []
    for line in LINES:
        with contextlib.redirect_stdout(io.StringIO()):
            start = time.perf_counter()
            exec(line, names)
            times.append(time.perf_counter() - start)
    print(json.dumps(times))


def measure(python: str, name: str, caches: str, **more: str) -> tuple[float, list[float]]:
    """Seconds of the whole process, and of each line."""
    start = time.perf_counter()
    done = subprocess.run([python, "-m", "benchmarks.first_minute", "--work", name], cwd=ROOT, env=environment(caches, **more),
                          capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{name}: the lines failed: {done.stderr.strip().splitlines()[-1]}")
    return seconds, json.loads(done.stdout)


def imported(python: str, name: str) -> float:
    """Processor seconds of `import name`: the least of some processes, less an empty one's."""
    def least(code: str) -> float:
        times = "import os; t = os.times(); print(t.user + t.system)"
        runs = [subprocess.run([python, "-c", f"{code}\n{times}"], cwd=ROOT, env=environment(tempfile.gettempdir()), capture_output=True,
                               text=True, check=True) for _ in range(5)]
        return min(float(run.stdout) for run in runs)

    return least(f"import {name}") - least("pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default="", help="an interpreter that has torch; without it, its columns are empty")
    parser.add_argument("--slowest", type=int, default=5, help="how many of the slowest lines to show")
    parser.add_argument("--programs", nargs="*", default=list(NAMES), choices=NAMES, help="of benchmarks/programs (default: all)")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    contenders = {"tracegrad": sys.executable, **({"torch": options.peer_python} if options.peer_python else {})}
    found: dict[tuple[str, str], str] = {}
    rows = [Row(f"import {name}, processor time", 0.35 if name == "tracegrad" else None, imported(python, name), "s")
            for name, python in contenders.items()]
    slow: list[str] = []
    for name, python in contenders.items():
        with tempfile.TemporaryDirectory() as caches, tempfile.TemporaryDirectory() as none:
            alone = {"OCL_ICD_VENDORS": none}       # what `pip install` brings; the loader opens each driver that the system names, too
            for state, more in (("cold", alone), ("warm", alone), *([("warm, every driver", {})] if name == "tracegrad" else [])):
                seconds, times = measure(python, name, caches, **more)
                found[f"{len(LINES)} lines, {state}: median", name] = f"{1e3 * statistics.median(times):.2f} ms"
                found[f"{len(LINES)} lines, {state}: longest", name] = f"{1e3 * max(times):.1f} ms"
                found[f"{len(LINES)} lines, {state}: process", name] = f"{seconds:.2f} s"
                if (name, state) == ("tracegrad", "cold"):
                    rows += [Row(f"{len(LINES)} lines, cold: median", 5.0, 1e3 * statistics.median(times), "ms"),
                             Row(f"{len(LINES)} lines, cold: longest", 30.0, 1e3 * max(times), "ms")]
                    slow = [f"{1e3 * t:7.1f} ms  {line}" for t, line in sorted(zip(times, LINES, strict=True), reverse=True)]
    print(f"{'':32}{'tracegrad':>12}{'torch':>12}")
    for row in dict.fromkeys(row for row, _ in found):
        print(f"{row:32}{found.get((row, 'tracegrad'), ''):>12}{found.get((row, 'torch'), ''):>12}")
    print("\nslowest lines, cold:\n" + "\n".join(slow[: options.slowest]) + "\n")
    for program, seen in show(options.programs, contenders).items():
        mine, other = seen["tracegrad"], seen.get("torch")
        if other:
            rows += [Row(f"{program}: whole process, cold, to torch's", 3.0, mine["cold"] / other["cold"]),
                     Row(f"{program}: a step, to torch's", 1.5, mine["wall"] / other["wall"]),
                     Row(f"{program}: a step, processor time, to torch's", None, mine["cpu"] / other["cpu"])]
    print("\n" + table("the first minute", rows))


if __name__ == "__main__":
    main()
