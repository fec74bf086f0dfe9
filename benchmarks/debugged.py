"""What `tg.debug` costs: traced training steps and gradients, called, and looked at. Start at `main`.

    python -m benchmarks.debugged                        # all of them
    python -m benchmarks.debugged convnet --clock cpu

For each: a call; a look (`tg.debug(f)(...)`) that comes again, over the call; and what the first look takes, which compiles the twin. Calls
and looks take turns; times are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import tracegrad as tg
from benchmarks.frameworks import namespace
from benchmarks.traced import PROGRAMS

DEFAULT = ("convnet", "transformer", "vit", "gru")


def traced(name: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    """A call of a program: it tells which traced function was called, and with what."""
    called: list[Any] = []

    def trace(fn: Any) -> Any:
        f = tg.trace(fn)

        def call(*args: Any) -> Any:
            called[:] = f, args
            return f(*args)

        return call

    f = namespace("tracegrad")
    f.trace = trace
    run = PROGRAMS[name](f)

    def call() -> tuple[Any, tuple[Any, ...]]:
        run()
        return called[0], called[1]

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=DEFAULT, metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="the time that passes, or the processors' time")
    args = parser.parse_args()
    if unknown := {*args.names} - PROGRAMS.keys():
        parser.error(f"no program is called {', '.join(unknown)}")
    now = time.process_time if args.clock == "cpu" else time.perf_counter

    def seconds(run: Callable[..., Any], *given: Any) -> float:
        start = now()
        run(*given)
        return now() - start

    print("| program | intermediates | a call, ms | a look, of a call | the first look, ms |\n|---|---|---|---|---|")
    for name in args.names:
        call = traced(name)
        call()
        step, given = call()
        look = tg.debug(step)
        first = seconds(look, *given)
        times = [(seconds(call), seconds(look, *given)) for _ in range(args.rounds)]
        one = statistics.median(t for t, _ in times)
        ratio = statistics.median(b / a for a, b in times)
        print(f"| {name} | {len(look(*given).ranges)} | {1e3 * one:.2f} | {ratio:.2g} | {1e3 * first:.0f} |", flush=True)


if __name__ == "__main__":
    main()
