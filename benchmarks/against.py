"""This tree beside another commit, row by row: `make bench-against REV=...`, `python -m benchmarks.against TREE --help`.

TREE is a checkout of the other commit, with this tree's `benchmarks/` in it (make puts it there), so that both have all rows. Each
row runs in a process of either tree, with the same inputs; they take turns, as in `benchmarks.run`. Reported is this tree's time over
the other's: of the first call with empty caches, of the first call of a second process, and of a call (the median, least and largest
of the rounds). The last row is lowering: Python's time to compile the corpus of tests/helpers/corpus.py, without a driver.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from benchmarks.run import ROOT, Failed, Process
from benchmarks.workloads import WORKLOADS


def compare(row: str, trees: dict[str, Path], threads: int, rounds: int, seconds: float, clock: str, folder: Path) -> str:
    """One row as text."""
    workload = WORKLOADS[row]
    data = workload.data(np.random.default_rng(0))
    inputs = folder / "inputs.npz"
    np.savez(inputs, **{f"in_{k}": v for k, v in data.items()}, **{f"out{i:02}": v for i, v in enumerate(workload.reference(**data))})
    first: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {name: [] for name in trees}
    alive: dict[str, Process] = {}
    try:
        for name, tree in trees.items():
            for _ in range(2):                               # cold, then with the caches that this left
                if name in alive:
                    alive.pop(name).quit()
                alive[name] = Process(sys.executable, "tracegrad", row, threads, inputs, folder / name, tree)
                first.setdefault(name, []).append(alive[name].tell("first")["first"])
            error = alive[name].tell("check")["error"]
            if not error <= workload.tolerance:
                return f"{row:24} {name} is wrong: off by {error:.1e}"
        for number in range(rounds):
            for name in list(trees)[:: 1 if number % 2 else -1]:
                time.sleep(0.2)
                times[name].append(statistics.median(alive[name].tell("time", seconds=seconds, least=3, clock=clock)["times"]))
    except Failed as failure:
        return f"{row:24} failed: {failure}"
    finally:
        for process in alive.values():
            process.quit()
    here, there = first["this"], first["other"]
    return line(row, here[0] / there[0], here[1] / there[1], [a / b for a, b in zip(times["this"], times["other"], strict=True)])


def line(row: str, cold: float | None, warm: float | None, ratios: list[float]) -> str:
    firsts = "".join(f"{x:8.2f}" if x is not None else "       -" for x in (cold, warm))
    return f"{row:24}{firsts}{statistics.median(ratios):8.2f}  [{min(ratios):.2f} - {max(ratios):.2f}]"


def lowering(trees: dict[str, Path], rounds: int, folder: Path) -> str:
    """The corpus, compiled in either tree by turns."""
    taken: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(rounds):
        for name in list(trees)[:: 1 if number % 2 else -1]:
            start = children()
            ran = subprocess.run([sys.executable, ROOT / "tests" / "helpers" / "corpus.py", folder / name], cwd=trees[name],
                                 env=os.environ | {"PYTHONPATH": str(trees[name])}, capture_output=True, text=True)
            if ran.returncode:
                return f"{'lowering of the corpus':24} failed in {trees[name]}: {ran.stderr.strip().splitlines()[-1]}"
            taken[name].append(children() - start)
    return line("lowering of the corpus", None, None, [a / b for a, b in zip(taken["this"], taken["other"], strict=True)])


def children() -> float:
    """Seconds of CPU that processes which have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@click.command()
@click.argument("tree", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--row", "rows", multiple=True, type=click.Choice(list(WORKLOADS)), help="Only these rows.")
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=7, show_default=True)
@click.option("--seconds", default=0.3, show_default=True, help="How long a turn lasts, at least.")
@click.option("--clock", type=click.Choice(["wall", "cpu"]), default="wall", show_default=True,
              help="What a call is measured by: the time that passes, or the processors' time, which a busy machine blurs less.")
def main(tree: Path, rows: tuple[str, ...], threads: int, rounds: int, seconds: float, clock: str) -> None:
    """Times of this tree over those of TREE."""
    trees = {"this": ROOT, "other": tree.resolve()}
    print(f"{'time here / there':24}    cold    warm  a call")
    for row in rows or WORKLOADS:
        folder = Path(tempfile.mkdtemp(prefix="tracegrad-bench-"))
        try:
            print(compare(row, trees, threads, rounds, seconds, clock, folder), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if rows:
        return                                                # lowering is a row of the whole table
    folder = Path(tempfile.mkdtemp(prefix="tracegrad-bench-"))
    try:
        print(lowering(trees, max(3, rounds // 2), folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
