"""How the programs are timed beside torch: `python -m benchmarks.programs --peer-python PYTHON`, `python -m benchmarks.programs lstm`.

cold: a whole process, from the start of Python to the end of some steps, with every cache on disk empty; warm: the same with the caches
that it left. steady: milliseconds a step in
the wall's and the CPU's time, after a warm-up; tracegrad and torch take turns, a few steps each, and medians are compared.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.frameworks import ROOT, environment, namespace
from benchmarks.programs import NAMES

COLD = 20            # steps of a cold process


def work(program: str, name: str, threads: int) -> None:
    """A process of its own: for each number read, make so many steps, and print [wall seconds, CPU seconds, last result]."""
    step = importlib.import_module(f"benchmarks.programs.{program}").make(namespace(name, threads))
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            result = step()
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, result]), flush=True)


class Worker:
    """A process that makes steps when asked to."""

    def __init__(self, python: str, program: str, name: str, threads: int, caches: str) -> None:
        self.process = subprocess.Popen([python, "-m", "benchmarks.programs", program, "--work", name, "--threads", str(threads)],
                                        cwd=ROOT, env=environment(caches), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(self, count: int) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a worker failed; see above")
        answer: list[float] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.communicate()


def measure(program: str, pythons: dict[str, str], warm: int, turns: int, threads: int, about: float) -> dict[str, dict[str, float]]:
    """For each framework: seconds of a cold process and of a warm one, and milliseconds a step (wall, cpu) in the steady state."""
    found: dict[str, dict[str, float]] = {name: {} for name in pythons}
    for name, python in pythons.items():
        with tempfile.TemporaryDirectory() as caches:
            for state in ("cold", "warm"):
                start = time.perf_counter()
                worker = Worker(python, program, name, threads, caches)
                worker.steps(COLD)
                worker.close()
                found[name][state] = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as caches:
        workers = {name: Worker(python, program, name, threads, caches) for name, python in pythons.items()}
        each, times = {}, {name: ([], []) for name in pythons}
        for name, worker in workers.items():
            worker.steps(warm)
            each[name] = max(1, int(about / (worker.steps(5)[0] / 5)))
        for _ in range(turns):
            for name, worker in workers.items():
                wall, cpu, found[name]["result"] = worker.steps(each[name])
                times[name][0].append(1e3 * wall / each[name])
                times[name][1].append(1e3 * cpu / each[name])
        for name, worker in workers.items():
            found[name]["wall"], found[name]["cpu"] = (statistics.median(t) for t in times[name])
            worker.close()
    return found


def table(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """What was measured, a row a program; the ratio is that of the wall's time in the steady state."""
    lines = [f"{'':14}{'cold process':^20}{'warm process':^20}{'ms a step: wall':^22}{'CPU':^20}{'ratio':>7}",
             f"{'':14}" + f"{'tracegrad':>10}{'torch':>10}" * 2 + f"{'tracegrad':>12}{'torch':>10}{'tracegrad':>10}{'torch':>10}"]
    for program, found in rows.items():
        mine, other = found["tracegrad"], found.get("torch", {})
        cells = [f"{of[state]:.2f} s" if of else "" for state in ("cold", "warm") for of in (mine, other)]
        cells += [f"{of[what]:.2f}" if of else "" for what in ("wall", "cpu") for of in (mine, other)]
        ratio = f"{mine['wall'] / other['wall']:.2f}" if other else ""
        widths = (10, 10, 10, 10, 12, 10, 10, 10)
        lines.append(f"{program:14}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True)) + f"{ratio:>7}")
    return "\n".join(lines)


def show(programs: Sequence[str], pythons: dict[str, str], warm: int = 100, turns: int = 15, threads: int = 1,
         seconds: float = 0.1) -> dict[str, dict[str, dict[str, float]]]:
    """Measure, print a row for each program, and return what `measure` found of each."""
    found = {}
    for i, program in enumerate(programs):
        found[program] = measure(program, pythons, warm, turns, threads, seconds)
        lines = table({program: found[program]}).splitlines()
        print("\n".join(lines if i == 0 else lines[-1:]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help=f"of {', '.join(NAMES)}; all if none is named")
    parser.add_argument("--peer-python", default="", help="an interpreter that has torch; this one, if it has it")
    parser.add_argument("--warm", type=int, default=100, help="steps before the steady state is measured")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each turn")
    parser.add_argument("--threads", type=int, default=1, help="torch's")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.programs) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.work:
        work(options.programs[0], options.work, options.threads)
        return
    pythons = {"tracegrad": sys.executable}
    peer = options.peer_python or (sys.executable if importlib.util.find_spec("torch") else "")
    if peer:
        pythons["torch"] = peer
    show(options.programs or NAMES, pythons, options.warm, options.turns, options.threads, options.seconds)
