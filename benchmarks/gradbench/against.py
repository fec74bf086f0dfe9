"""Evals of a copy of GradBench, on tracegrad and beside other tools: right or wrong as the suite says, and how long a run takes.

    python -m benchmarks.gradbench.against SUITE [EVAL ...] [--tools tracegrad jax pytorch manual] [--quick] [--rounds 3] [-- arguments]

SUITE: a checkout of GradBench (`make bench-gradbench` fetches one). Tools: tracegrad, jax and pytorch (the suite's own, run by PEER_PYTHON)
and manual (the suite's hand-written C++, built by `make -C SUITE/tools/manual`, which is also what results are compared with). Each
has one core, the same one; evals have the others. JAX's runs end when the values are there: its tool would stop the clock before.

Each tool is a process with an eval of its own. They take turns at every size and function, so that what else the machine does hits all
alike, and the fastest run counts: it makes runs slower, never faster. Tables say how long runs of tracegrad take, over those of others.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLOCK = Path(__file__).resolve().parent / "cpu_clock"
EVALS = ("hello", "lse", "llsq", "kmeans", "ode", "det", "gmm", "lstm", "ba", "ht", "saddle", "particle")
# The arguments of --quick: small ones of the suite's sizes, and large ones that all tools do within a minute. A first run compiles, and may
# take the fifth of a second that a size has: there are so many runs at least.
QUICK = {"lse": "-n 2500 40000 160000 --min-runs 100", "llsq": "-n 16 256 1024 16392 --min-runs 50",
         "kmeans": "-k 10 100 1000 -n 1000 10000 -d 8 --min-runs 10", "ode": "-n 1000 100000 -s 1 10 --min-runs 50",
         "det": "-l 5 7 9 10 --min-runs 20", "gmm": "-d 2 10 64 -k 5 50 --min-runs 10", "lstm": "-l 2 6 -c 1024 --min-runs 3",
         "ba": "--max 3 --min-runs 5", "ht": "--max 5 --min-runs 5", "saddle": "--min-runs 50", "particle": "--min-runs 50"}
PRIMALS = ("objective", "primal", "cost", "square")
PYTHONS = ("jax", "pytorch")
# JAX computes when it is called, and a run ends when its values are there: without the latter the clock of small sizes stops before them.
AT_ONCE = """import gradbench.wrap, jax, pathlib, runpy, sys
jax.config.update("jax_cpu_enable_async_dispatch", False)
def waiting(decorated):
    return lambda **how: lambda fn: decorated(**how)(lambda x: jax.block_until_ready(fn(x)))
for name in ("function", "multiple_runs"):
    setattr(gradbench.wrap, name, waiting(getattr(gradbench.wrap, name)))
sys.path[0] = str(pathlib.Path(sys.argv[1]).parent)
runpy.run_path(sys.argv.pop(1), run_name="__main__")"""
Key = tuple[str, str]                                          # description and function
Runs = dict[Key, tuple[float, str]]                            # microseconds, what is wrong


def command(tool: str, python: str) -> list[str]:
    """What starts a tool."""
    if tool == "tracegrad":
        return [sys.executable, "-m", "benchmarks.gradbench.tool"]
    if tool == "manual":
        return [sys.executable, "python/gradbench/gradbench/cpp.py", "manual"]
    script = f"python/gradbench/gradbench/tools/{tool}/run.py"
    return [python, "-c", AT_ONCE, script] if tool == "jax" else [python, script]


def environment(suite: Path, tool: str, clock: str) -> dict[str, str]:
    """A tool's. clock: "" or the library of the processor's clock. What runs C++ builds it for each eval; `true` does not."""
    paths = [str(CLOCK)] * bool(clock) + [str(ROOT if tool == "tracegrad" else suite / "python" / "gradbench")]
    more = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return os.environ | more | ({"CXX": "true", "LD_PRELOAD": clock} if tool == "manual" else {})


def has(suite: Path, tool: str, name: str) -> bool:
    """Whether a tool says that it runs an eval."""
    listed = suite / "tools" / tool / "evals.txt"
    return tool == "tracegrad" or name in [line.split()[0] for line in listed.read_text().splitlines() if line.strip()]


def results(suite: Path, name: str, tool: str, args: argparse.Namespace, words: list[str]) -> Iterator[tuple[Key, float, str]]:
    """An eval on a tool: messages of the one are the input of the other. Size by size and function by function: microseconds of the

    fastest run, and what is wrong. Neither process is busy between two of them.
    """
    cores = sorted(os.sched_getaffinity(0))
    pipe: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    suites = os.environ | {"PYTHONPATH": str(suite / "python" / "gradbench")}
    with subprocess.Popen([sys.executable, "-m", f"gradbench.evals.{name}.run", *words], cwd=suite, env=suites, **pipe) as asking, \
            subprocess.Popen(command(tool, args.peer_python), cwd=ROOT if tool == "tracegrad" else suite,
                             env=environment(suite, tool, args.clock), **pipe) as answering:
        os.sched_setaffinity(asking.pid, cores[1:] or cores)
        os.sched_setaffinity(answering.pid, cores[:1])
        found: tuple[Key, float, str] | None = None
        while line := asking.stdout.readline():                             # type: ignore[union-attr]
            message = json.loads(line)
            if found and message["kind"] != "analysis":
                yield found
                found = None
            if message["kind"] == "end":
                break
            if not (answer := answered(answering, line, args.limit)):
                found = ((message.get("description", ""), message.get("function", "")), 0.0, f"no answer within {args.limit} s")
                break
            said = json.loads(answer)
            if message["kind"] == "define" and not said["success"]:
                found = (("", "define"), 0.0, said.get("error") or "")
            if message["kind"] == "evaluate":
                times = [t["nanoseconds"] for t in said.get("timings") or [] if t["name"] == "evaluate"]
                found = (message.get("description", ""), message["function"]), min(times, default=0) / 1000, said.get("error") or ""
            if message["kind"] == "analysis" and not message["valid"] and found:
                found = *found[:2], message.get("error") or "invalid"
            asking.stdin.write(answer)                                      # type: ignore[union-attr]
            asking.stdin.flush()                                            # type: ignore[union-attr]
        if found:
            yield found


def answered(tool: subprocess.Popen[str], line: str, limit: float) -> str:
    """What a tool answers; "" where it ends first, or is ended after so many seconds."""
    watch = threading.Timer(limit, os.killpg, (tool.pid, signal.SIGKILL))
    watch.start()
    try:
        tool.stdin.write(line)                                              # type: ignore[union-attr]
        tool.stdin.flush()                                                  # type: ignore[union-attr]
        return tool.stdout.readline()                                       # type: ignore[union-attr]
    except BrokenPipeError:
        return ""
    finally:
        watch.cancel()


def measure(suite: Path, name: str, args: argparse.Namespace, words: list[str]) -> dict[str, Runs]:
    """By tool: the fastest run of each size and function, and the first thing that was wrong with it."""
    found: dict[str, Runs] = {tool: {} for tool in args.tools}
    for _ in range(args.rounds):
        going = {tool: results(suite, name, tool, args, words) for tool in args.tools if has(suite, tool, name)}
        while going:
            for tool in [*going]:
                run = next(going[tool], None)
                if run is None:
                    del going[tool]
                    continue
                key, time, error = run
                before = found[tool].get(key, (time, ""))
                found[tool][key] = min(time, before[0]), before[1] or error
    return found


def ratio(found: dict[str, Runs], key: Key, tools: Sequence[str]) -> float:
    """tracegrad's time over the least of the tools' that have a valid result; 0 without."""
    times = [found[tool][key][0] for tool in tools if key in found.get(tool, {}) and not found[tool][key][1]]
    time, error = found["tracegrad"][key]
    return 0.0 if error or not any(times) else time / min(filter(None, times))


def rows(name: str, found: dict[str, Runs], tools: Sequence[str]) -> list[str]:
    """Of a table: one for each size and function."""
    lines = []
    for key, (time, error) in found["tracegrad"].items():
        over = [f"{r:.2g}" if (r := ratio(found, key, [tool])) else _why(found[tool].get(key)) for tool in tools]
        lines.append(f"| {name} | {key[0]} | {key[1]} | {time:.1f}{' (invalid)' if error else ''} | {' | '.join(over)} |")
    return lines


def _why(run: tuple[float, str] | None) -> str:
    """Why there is no ratio, for a table."""
    error = "" if run is None else run[1].strip()
    return "-" if not error else error if error.startswith("no answer") else "invalid"


def spans(name: str, found: dict[str, Runs], groups: Sequence[Sequence[str]]) -> str:
    """Of a table: the least and the largest ratio to the best of each group of tools, of derivatives and of values."""
    cells = []
    for tools in groups:
        for derived in (True, False):
            of = sorted(filter(None, (ratio(found, key, tools) for key in found["tracegrad"] if (key[1] not in PRIMALS) == derived)))
            cells.append(f"{of[0]:.2g} to {of[-1]:.2g}" if of else "-")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("evals", nargs="*", default=EVALS)
    parser.add_argument("--tools", nargs="+", default=["tracegrad", *PYTHONS, "manual"])
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--quick", action="store_true", help="a few of the suite's sizes, small and large, and a fifth of a second each")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a tool that does not answer is ended (default 60)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                        help="what tools go by: time that passes, or the processor's (for busy machines)")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_intermixed_args(words[:cut])
    suite, tools = args.suite.resolve(), [tool for tool in args.tools if tool != "tracegrad"]
    args.tools, groups = ["tracegrad", *tools], [[tool for tool in tools if (tool in PYTHONS) == python] for python in (True, False)]
    print(f"| eval | size | function | tracegrad, us | {' | '.join(f'over {tool}' for tool in tools)} |")
    print("|---" * (4 + len(tools)) + "|")
    table, wrong = ["| eval | over the best Python tool: derivative | value | over C++: derivative | value |", "|---|---|---|---|---|"], 0
    with tempfile.TemporaryDirectory() as folder:
        if args.clock == "cpu":
            args.clock = f"{folder}/clock.so"
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", args.clock, str(CLOCK / "clock.c")], check=True)
        else:
            args.clock = ""
        for name in args.evals:
            more = f"{QUICK[name]} --min-seconds 0.2".split() if args.quick and name in QUICK else []
            found = measure(suite, name, args, [*more, *words[cut + 1:]])
            found["tracegrad"] = found["tracegrad"] or {("", ""): (0.0, "the eval asked for nothing")}
            wrong += sum(bool(error) for _, error in found["tracegrad"].values())
            print(*rows(name, found, tools), sep="\n", flush=True)
            table.append(spans(name, found, groups))
            for key, (_, error) in found["tracegrad"].items():
                if error:
                    print(f"{' '.join(key)}: {error.strip()}", file=sys.stderr)
    print("", *table, sep="\n")
    sys.exit(f"{wrong} of tracegrad's results are not valid" if wrong else None)


if __name__ == "__main__":
    main()
