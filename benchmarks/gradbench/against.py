"""Evals of a copy of GradBench, on tracegrad and beside other tools: right or wrong as the suite says, and how long a run takes.

    python -m benchmarks.gradbench.against SUITE [EVAL ...] [--tools tracegrad jax manual] [--peer-python PYTHON] [-- arguments of the eval]

SUITE: a checkout of GradBench (`make bench-gradbench` fetches one). Tools: tracegrad, jax and pytorch (the suite's own, with PYTHON) and
manual (the suite's hand-written C++, built by `make -C SUITE/tools/manual`, which is also what results are compared with).
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
EVALS = ("hello", "lse", "llsq", "kmeans", "ode", "det", "gmm", "lstm", "ba", "ht", "saddle", "particle")
Runs = dict[tuple[str, str], tuple[float, str]]                # by description and function: microseconds, what is wrong


def command(tool: str, suite: Path, python: str) -> list[str]:
    """What starts a tool."""
    if tool == "tracegrad":
        return [sys.executable, "-m", "benchmarks.gradbench.tool"]
    if tool == "manual":
        return [sys.executable, "python/gradbench/gradbench/cpp.py", "manual"]
    return [python, f"python/gradbench/gradbench/tools/{tool}/run.py"]


def measure(suite: Path, name: str, start: list[str], own: bool, words: list[str]) -> Runs:
    """An eval on a tool: messages of the one are the input of the other."""
    there = os.environ | {"PYTHONPATH": str(suite / "python" / "gradbench")}
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    pipe: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    runs: Runs = {}
    with subprocess.Popen([sys.executable, "-m", f"gradbench.evals.{name}.run", *words], cwd=suite, env=there, **pipe) as asking, \
            subprocess.Popen(start, cwd=ROOT if own else suite, env=here if own else there, **pipe) as tool:
        asked: dict[int, tuple[str, str]] = {}
        while line := asking.stdout.readline():                             # type: ignore[union-attr]
            message = json.loads(line)
            tool.stdin.write(line)                                          # type: ignore[union-attr]
            tool.stdin.flush()                                              # type: ignore[union-attr]
            if message["kind"] == "end" or not (answer := tool.stdout.readline()):      # type: ignore[union-attr]
                break
            found = json.loads(answer)
            if message["kind"] == "define" and not found["success"]:
                runs["", "define"] = 0.0, found.get("error", "")
            if message["kind"] == "evaluate":
                key = asked[message["id"]] = message.get("description", ""), message["function"]
                times = sorted(t["nanoseconds"] for t in found.get("timings") or [] if t["name"] == "evaluate")
                runs[key] = (times[len(times) // 2] / 1000 if times else 0.0), found.get("error") or ""
            if message["kind"] == "analysis" and not message["valid"]:
                key = asked[message["of"]]
                runs[key] = runs[key][0], message.get("error") or "invalid"
            asking.stdin.write(answer)                                      # type: ignore[union-attr]
            asking.stdin.flush()                                            # type: ignore[union-attr]
        tool.stdin.close()                                                  # type: ignore[union-attr]
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("evals", nargs="*", default=EVALS)
    parser.add_argument("--tools", nargs="+", default=["tracegrad", "jax", "manual"])
    parser.add_argument("--peer-python", default=sys.executable)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    suite = args.suite.resolve()
    wrong = 0
    for name in args.evals:
        found = {tool: measure(suite, name, command(tool, suite, args.peer_python), tool == "tracegrad", words[cut + 1:])
                 for tool in args.tools}
        first = found[args.tools[0]]
        print(f"{name:10}" + "".join(f"{tool:>14}" for tool in args.tools) + "   microseconds, median")
        for key, (_, error) in first.items():
            wrong += bool(error)
            row = [found[tool].get(key, (0.0, "absent")) for tool in args.tools]
            print(f"  {' '.join(key):34}" + "".join(f"{time:12.1f} {'!' if bad else ' '}" for time, bad in row), flush=True)
            if error:
                print("    " + error.strip().splitlines()[-1])
    sys.exit(f"{wrong} of {args.tools[0]}'s results are not valid" if wrong else None)


if __name__ == "__main__":
    main()
