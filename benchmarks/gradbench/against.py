"""Evals of a copy of GradBench, on tracegrad and beside other tools: right or wrong as the suite says, and how long a run takes.

    python -m benchmarks.gradbench.against SUITE [EVAL ...] [--tools tracegrad jax manual] [--small] [--rounds 3] [-- arguments of the eval]

SUITE: a checkout of GradBench (`make bench-gradbench` fetches one). Tools: tracegrad, jax and pytorch (the suite's own, run by PEER_PYTHON)
and manual (the suite's hand-written C++, built by `make -C SUITE/tools/manual`, which is also what results are compared with). Each
has one core, the same one. JAX computes when it is called: its tool would stop the clock before the values are there. The tools run an
eval by turns, and the fastest run counts: what else the machine does makes runs slower, never faster. At the end a table has the ratios
to the other tools, from the best size to the worst.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLOCK = Path(__file__).resolve().parent / "cpu_clock"
EVALS = ("hello", "lse", "llsq", "kmeans", "ode", "det", "gmm", "lstm", "ba", "ht", "saddle", "particle")
# The arguments of --small: small and middle sizes of the suite's.
SMALL = {"lse": "-n 2500 40000 640000", "llsq": "-n 16 256 1024", "kmeans": "-k 10 100 -n 1000 -d 8", "ode": "-n 1000 10000 -s 1 10",
         "det": "-l 5 6 7 8", "gmm": "-d 2 10 -k 5", "lstm": "-l 2 4 -c 1024", "ba": "--max 3", "ht": "--max 4"}
PRIMALS = ("objective", "primal", "cost", "square")
AT_ONCE = """import jax, pathlib, runpy, sys
jax.config.update("jax_cpu_enable_async_dispatch", False)
sys.path[0] = str(pathlib.Path(sys.argv[1]).parent)
runpy.run_path(sys.argv.pop(1), run_name="__main__")"""
Runs = dict[tuple[str, str], tuple[float, str]]                # by description and function: microseconds, what is wrong


def command(tool: str, python: str) -> list[str]:
    """What starts a tool."""
    if tool == "tracegrad":
        return [sys.executable, "-m", "benchmarks.gradbench.tool"]
    if tool == "manual":
        return [sys.executable, "python/gradbench/gradbench/cpp.py", "manual"]
    script = f"python/gradbench/gradbench/tools/{tool}/run.py"
    return [python, "-c", AT_ONCE, script] if tool == "jax" else [python, script]


def measure(suite: Path, name: str, tool: str, python: str, words: list[str], clock: str) -> Runs:
    """An eval on a tool: messages of the one are the input of the other."""
    there = os.environ | {"PYTHONPATH": str(suite / "python" / "gradbench")}
    tools = os.environ | {"PYTHONPATH": str(ROOT) if tool == "tracegrad" else there["PYTHONPATH"]}
    if clock == "cpu":
        tools["PYTHONPATH"] = f"{CLOCK}{os.pathsep}{tools['PYTHONPATH']}"
    pipe: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    runs: Runs = {}
    with subprocess.Popen([sys.executable, "-m", f"gradbench.evals.{name}.run", *words], cwd=suite, env=there, **pipe) as asking, \
            subprocess.Popen(command(tool, python), cwd=ROOT if tool == "tracegrad" else suite, env=tools, **pipe) as answering:
        os.sched_setaffinity(answering.pid, [min(os.sched_getaffinity(0))])
        asked: dict[int, tuple[str, str]] = {}
        while line := asking.stdout.readline():                             # type: ignore[union-attr]
            message = json.loads(line)
            answering.stdin.write(line)                                     # type: ignore[union-attr]
            answering.stdin.flush()                                         # type: ignore[union-attr]
            if message["kind"] == "end" or not (answer := answering.stdout.readline()):     # type: ignore[union-attr]
                break
            found = json.loads(answer)
            if message["kind"] == "define" and not found["success"]:
                runs["", "define"] = 0.0, found.get("error", "")
            if message["kind"] == "evaluate":
                key = asked[message["id"]] = message.get("description", ""), message["function"]
                times = [t["nanoseconds"] for t in found.get("timings") or [] if t["name"] == "evaluate"]
                runs[key] = min(times, default=0) / 1000, found.get("error") or ""
            if message["kind"] == "analysis" and not message["valid"]:
                key = asked[message["of"]]
                runs[key] = runs[key][0], message.get("error") or "invalid"
            asking.stdin.write(answer)                                      # type: ignore[union-attr]
            asking.stdin.flush()                                            # type: ignore[union-attr]
        answering.stdin.close()                                             # type: ignore[union-attr]
    return runs


def fastest(rounds: list[Runs]) -> Runs:
    """The fastest run of each key, and the first thing that was wrong with it."""
    return {key: (min(r[key][0] for r in rounds if key in r), next((r[key][1] for r in rounds if key in r and r[key][1]), ""))
            for key in {key: None for r in rounds for key in r}}


def ratios(found: dict[str, Runs], tool: str, derived: bool) -> str:
    """From the least to the largest ratio of the first tool's times to those of `tool`, of derivatives or of what is derived."""
    first = next(iter(found.values()))
    of = sorted(time / found[tool][key][0] for key, (time, error) in first.items()
                if (key[1] not in PRIMALS) == derived and not error and found[tool].get(key, (0.0, ""))[0])
    return f"{of[0]:.2g} to {of[-1]:.2g}" if of else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("evals", nargs="*", default=EVALS)
    parser.add_argument("--tools", nargs="+", default=["tracegrad", "jax", "manual"])
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--small", action="store_true", help="small and middle sizes only")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                        help="what Python's tools go by: time that passes, or the processor's (for busy machines)")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    wrong, table = 0, [f"| eval | {' | '.join(f'over {tool}: derivative | value' for tool in args.tools[1:])} |",
                       "|---|" + "---|---|" * (len(args.tools) - 1)]
    for name in args.evals:
        more = [*(SMALL.get(name, "").split() if args.small else ()), *words[cut + 1:]]
        rounds: dict[str, list[Runs]] = {tool: [] for tool in args.tools}
        for _ in range(args.rounds):
            for tool in args.tools:
                rounds[tool].append(measure(args.suite.resolve(), name, tool, args.peer_python, more, args.clock))
        found = {tool: fastest(runs) for tool, runs in rounds.items()}
        first = found[args.tools[0]]
        print(f"{name:10}" + "".join(f"{tool:>14}" for tool in args.tools) + "   microseconds, the fastest run")
        for key, (_, error) in first.items():
            wrong += bool(error)
            row = [found[tool].get(key, (0.0, "absent")) for tool in args.tools]
            print(f"  {' '.join(key):34}" + "".join(f"{time:12.1f} {'!' if bad else ' '}" for time, bad in row), flush=True)
            if error:
                print("    " + error.strip().splitlines()[-1])
        table.append(f"| {name} | {' | '.join(ratios(found, tool, derived) for tool in args.tools[1:] for derived in (True, False))} |")
    print("\n".join(["", *table]))
    sys.exit(f"{wrong} of {args.tools[0]}'s results are not valid" if wrong else None)


if __name__ == "__main__":
    main()
