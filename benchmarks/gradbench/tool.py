"""The tool: messages of GradBench's protocol come line by line, and a line answers each.

    python -m benchmarks.gradbench.tool [--multithreaded] [--device NAME]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

EVALS = "benchmarks.gradbench.evals"


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """What the tool says to a message."""
    if message["kind"] == "start":
        return {"tool": "tracegrad"}
    if message["kind"] not in ("define", "evaluate"):
        return {}
    try:
        module = importlib.import_module(f"{EVALS}.{message['module']}")
        if message["kind"] == "define":
            return {"success": True}
        output, times = getattr(module, message["function"])(message["input"])
        return {"success": True, "output": output, "timings": [{"name": "evaluate", "nanoseconds": t} for t in times]}
    except Exception as error:
        return {"success": False, "error": "".join(traceback.format_exception(error))}


def answers(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        message = json.loads(line)
        yield json.dumps({"id": message["id"]} | answer(message))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--multithreaded", action="store_true", help="use all cores (default: one)")
    parser.add_argument("--device")
    args = parser.parse_args()
    if not args.multithreaded:                         # before a driver counts the cores
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    if args.device:
        os.environ["TRACEGRAD_DEVICE"] = args.device
    for line in answers(sys.stdin):
        print(line, flush=True)


if __name__ == "__main__":
    main()
