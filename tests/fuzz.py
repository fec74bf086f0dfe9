"""Many random programs, counted: `python -m tests.fuzz --count 100000` (or `make fuzz COUNT=... SEED=...`).

Each program is planned for a random device with random thresholds, its kernels are run without a driver (`tests/kernels.py`) and
compared with the interpreter: as it is, or its gradient, its derivative in a direction, or its second derivative, by turns. Batches
have a seed each, which is printed with what failed in it: `--seed N --count 250` runs that batch again.
"""

from __future__ import annotations

import time
import traceback
from typing import Any

import click
from hypothesis import HealthCheck, Phase, given, seed, settings

import tracegrad as tg
from tests.kernels import DEVICES, TUNINGS, Checked
from tests.random_programs import FLOATS, Program, programs
from tests.test_fuzz import backward, called, floats, forward, functional, second
from tracegrad.codegen.tuning import Tuning
from tracegrad.plan import Target

BATCH = 250


def value(program: Program) -> None:
    called(program, tg.trace(program.function()), 0, "numpy")


def gradient(program: Program) -> None:
    functional(program, 0, "numpy", tg.trace)


def direction(program: Program) -> None:
    forward(program, backward(program, 1, "numpy"))


TURNS = (value, value, gradient, value, direction, value, gradient, second)


def batch(number: int, count: int, totals: dict[str, int]) -> str:
    """Run `count` programs of seed `number`; what failed, "" if nothing did."""

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate,),
              report_multiple_bugs=False)
    @given(programs(), DEVICES, TUNINGS)
    def run(program: Program, target: Target, tuning: Tuning) -> None:
        way: Any = TURNS[(sum(totals.values()) - totals["plans"]) % len(TURNS)]
        if way is not value and (program.in_place_on_inputs or not floats(program)):
            way = value
        with Checked({"drawn": target}, tuning=tuning) as checked:
            try:
                way(program)
            except BaseException as error:
                error.add_note(f"{way.__name__} of {program!r} with {FLOATS}")
                raise
        totals[way.__name__] = totals.get(way.__name__, 0) + 1
        totals["plans"] += checked.count

    try:
        run()
    except Exception:
        return traceback.format_exc()
    return ""


@click.command()
@click.option("--count", default=1000, show_default=True, help="How many programs.")
@click.option("--seed", "first", default=0, show_default=True, help="The seed of the first batch.")
def main(count: int, first: int) -> None:
    """Run COUNT random programs and say what failed."""
    tg.set_device("numpy")
    totals = {"plans": 0}
    start, failed = time.time(), 0
    for number in range(first, first + -(-count // BATCH)):
        found = batch(number, min(BATCH, count - (number - first) * BATCH), totals)
        if found:
            failed += 1
            print(f"seed {number}:\n{found}", flush=True)
        done = sum(n for way, n in totals.items() if way != "plans")
        if found or (number - first) % 10 == 9:
            print(f"{done} programs {totals} in {time.time() - start:.0f} s, to seed {number}; batches that failed: {failed}", flush=True)
    print(f"done: {totals} in {time.time() - start:.0f} s; batches that failed: {failed}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
