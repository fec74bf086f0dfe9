"""Errors put into the code generator on purpose, one at a time: does the quick fuzz find each? Start at `MUTATIONS`.

`make mutations`. Each runs in a copy of the tree. The quick fuzz is what `make test` runs (tests/test_run_kernel.py,
test_many_programs): the same programs in each run. Told is how many it took; what it does not find is a hole in
tests/random_programs.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutation:
    """In `file`, `old` becomes `new`."""

    what: str
    file: str
    old: str
    new: str


MUTATIONS = [
    Mutation("items beyond the last element are not kept out", "codegen/lower/rows_gpu.py", "if items == size:", "if items >= size:"),
    Mutation("the scalar rest of a row starts one late", "codegen/lower/rows_cpu.py",
             "n - tail if vectors else 0", "n - tail + 1 if vectors else 0"),
    Mutation("a pad's upper guard is lost", "codegen/kernel/elements.py", "if x.hi >= high:", "if x.hi >= high and False:"),
    Mutation("a maximum starts from 0", "tracegrad/ops/reduction.py", "dtype.type(-np.inf if", "dtype.type(0 if"),
    Mutation("a donated buffer is written though it is read elsewhere", "codegen/schedule/donation.py",
             "return group.reads[into] <= allowed", "return True"),
    Mutation("a negative stride loses its sign", "codegen/kernel/elements.py",
             "stride = flat.stride(self.lane) if self.lane is not None",
             "stride = abs(flat.stride(self.lane) or 0) or None if self.lane is not None"),
    Mutation("strides of row and column are swapped", "codegen/lower/argreduce.py",
             "return ev.value(x, (row * n + i) * inner + column)", "return ev.value(x, (row * inner + column) * n + i)"),
]


def tried(mutation: Mutation | None, count: int) -> str:
    """What the quick fuzz says of a tree with the error in it."""
    folder = Path(tempfile.mkdtemp(prefix="tracegrad-mutation-"))
    try:
        for name in ("tracegrad", "codegen", "runtime", "tests"):
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        if mutation is not None:
            path = folder / mutation.file
            text = path.read_text()
            if (times := text.count(mutation.old)) != 1:
                return f"the text to change stands there {times} times"
            path.write_text(text.replace(mutation.old, mutation.new))
        command = [sys.executable, "-m", "tests.fuzz", "--count", str(count), "--stop"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": str(folder)}, check=False)
        return (done.stdout or done.stderr).strip().splitlines()[-1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@click.command()
@click.option("--count", default=500, show_default=True, help="How many programs at most.")
@click.option("--only", default="", help="Only errors whose description holds this.")
def main(count: int, only: str) -> None:
    """Put each error in and say how many programs it took to find it."""
    print(f"no error: {tried(None, count)}", flush=True)
    for mutation in [m for m in MUTATIONS if only in m.what]:
        print(f"{mutation.what}: {tried(mutation, count)}", flush=True)


if __name__ == "__main__":
    main()
