"""Errors put into the code generator on purpose, one at a time: does the quick fuzz find each? Start at `MUTATIONS`.

`make mutations`. Each runs in a copy of the tree. The quick fuzz is what `make test` runs (tests/codegen/kernel/test_run_kernel.py,
test_many_programs): the same programs in each run. Told is how many it took; what it does not find is a hole in
tests/random_programs/random_programs.py or tests/random_programs/wide_programs.py. It fails if an error is not found, or can no longer be
put in.
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

from tests.random_programs.fuzz import FIRST

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutation:
    """In `file`, `old` becomes `new`."""

    what: str
    file: str
    old: str
    new: str


MUTATIONS = [
    Mutation("items beyond the last element are not kept out", "codegen/lower/workgroup.py",
             "(self.sizes[0] > count)", "(self.sizes[0] < count)"),
    Mutation("the scalar rest of a row starts one late", "codegen/lower/rows/rows_cpu.py",
             "self.counted(col, begin, stop, 1, n)", "self.counted(col, begin + 1, stop, 1, n)"),
    Mutation("a pad's upper guard is lost", "codegen/kernel/elements.py", "x.hi >= high)):", "x.hi >= high and False)):"),
    Mutation("a maximum starts from 0", "tracegrad/ops/primitives/scans.py", "dtype.type(-np.inf if", "dtype.type(0 if"),
    Mutation("a donated buffer is written though it is read elsewhere", "codegen/schedule/donation.py",
             "return group.reads[into] <= allowed", "return True"),
    Mutation("a negative stride loses its sign", "codegen/kernel/elements.py",
             "stride = flat.stride_of(self.lane, width) if self.lane is not None",
             "stride = abs(flat.stride_of(self.lane, width) or 0) or None if self.lane is not None"),
    Mutation("strides of row and column are swapped", "codegen/lower/search/argreduce.py",
             "found = ev.value(x, (row * n + i) * inner + column)", "found = ev.value(x, (row * inner + column) * n + i)"),
    Mutation("a guard that is the same in all lanes is a mask of ones", "codegen/kernel/ir/expressions/vectors.py",
             'f"({self.type})(-{p.operand(self.parts[0])})"', 'f"({self.type})({p.operand(self.parts[0])})"'),
    Mutation("a guard is written of what is known only inside of a pad", "codegen/kernel/elements.py",
             "at = self.lanes_of(plain) if one is None else At(one, dtype)",
             "at = self.lanes_of(x - more) if one is None else At(x - more if one is plain else one, dtype)"),
    Mutation("a row is written in place of what all items of its group read", "codegen/schedule/donation.py",
             "if shared and not isinstance(group.kind, Flat)", "if False and not isinstance(group.kind, Flat)"),
    Mutation("a slice whose ends are tensors is a template", "tracegrad/graph/cached_calls.py",
             "end is not None and end.__class__ is not int:", "end is not None and not hasattr(end, 'ndim') and end.__class__ is not int:"),
    Mutation("a chunk of a running sum starts without those before it", "codegen/lower/search/scan.py",
             "        if pointers:", "        if pointers and False:"),
    Mutation("a vector of a running sum starts without the last element before it", "codegen/lower/sums.py",
             "Lanes(found, found.lanes - 1)", "Lanes(found, found.lanes - 2)"),
    Mutation("a part of a scatter writes the next one's first row", "codegen/lower/search/scatter.py",
             'Infix("<", w.at(to), end.value)', 'Infix("<=", w.at(to), end.value)'),
    Mutation("of equal kernels in one launch, each loses its last work-group", "codegen/planning/equal_launches.py",
             "accumulate(-(-part.size // local) for", "accumulate(max(1, part.size // local) for"),
    Mutation("a kernel that stands for others is given the first one's numbers", "codegen/planning/arguments/parameterize.py",
             "tuple(c[i] for c in arguments.values())", "tuple(c[0] for c in arguments.values())"),
    Mutation("an argument in place of several offsets is not shifted", "codegen/planning/arguments/parameterize.py",
             "c[0] - place[step][1]) if step in place", "0) if step in place"),
    Mutation("rows of a product of all rows begin one row late", "tracegrad/passes/products.py",
             "cut.attrs[\"start\"][0] * each // size", "min(cut.attrs[\"start\"][0], 1) * each // size"),
    Mutation("a sum of paddings keeps -0.0", "tracegrad/passes/paddings.py", "_plus_zero(whole) if alike", "whole if alike"),
    Mutation("a loop's iteration writes the carry that it reads", "codegen/planning/loop_binding.py",
             "place.shift % place.count", "max(0, place.shift - 1) % place.count"),
    Mutation("what changes from iteration to iteration is moved out of the loop", "codegen/planning/loop_steps.py",
             "hoisted_steps(steps, graph.inputs[n + rows:])", "hoisted_steps(steps, graph.inputs[n:])"),
    Mutation("the end of a tile is not kept out (GPU)", "codegen/lower/rows/tiles_gpu.py", "if n % SIDE:", "if n < SIDE:"),
    Mutation("a causal row of attention does not see its own key (GPU)", "codegen/tile/group_blocks.py",
             'Infix(">", w.at(key), w.at(row))', 'Infix(">=", w.at(key), w.at(row))'),
    Mutation("attention's results so far are not made smaller when a larger score comes", "codegen/tile/item_blocks.py",
             'Infix("*", found, shrink.values[p]) if shrink else found', "found"),
    Mutation("a convolution's image is a column wider than it is (GPU)", "codegen/conv/problem.py",
             'Infix("<", f.writer.at(x), size)', 'Infix("<=", f.writer.at(x), size)'),
    Mutation("the next block of a product goes where the one in use is (GPU)", "codegen/tile/gpu.py",
             "return step % 2 *", "return step * 0 *"),
    Mutation("a row of a convolution's pixels that begins early is stored from one later on", "codegen/tile/registers.py",
             "return -axis.size % axis.registers if", "return -axis.size % axis.registers + 1 if"),
    Mutation("a slice with a moving start begins one later", "tracegrad/ops/primitives/dynamic_slice.py",
             "_rows(x, d, s + iota((node.shape[d],), 0) * step[d])", "_rows(x, d, s + 1 + iota((node.shape[d],), 0) * step[d])"),
    Mutation("what is put where a slice began begins one later", "tracegrad/ops/primitives/dynamic_slice.py",
             "row = iota((n,), 0) - s\n", "row = iota((n,), 0) - s - 1\n"),
    Mutation("what is put where a slice began ends one later", "tracegrad/ops/primitives/dynamic_slice.py",
             "row.le((m - 1) * step[d])", "row.le(m * step[d])"),
    Mutation("stacked numbers, each read in one place, lose the tests of what is around them", "codegen/kernel/index/guards.py",
             "return guards if flat.vars else ()", "return guards if len(flat.vars) > 1 else ()"),
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
            path.write_text(text.replace(mutation.old, mutation.new))
        command = [sys.executable, "-m", "tests.random_programs.fuzz", "--set", "quick", "--count", str(count), "--stop"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": str(folder)}, check=False)
        return (done.stdout or done.stderr).strip().splitlines()[-1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stale() -> list[str]:
    """The errors that can no longer be put in, since the text that they change is not there, or not once."""
    out = []
    for mutation in MUTATIONS:
        times = (ROOT / mutation.file).read_text().count(mutation.old)
        if times != 1:
            out.append(f"{mutation.what}: the text to change stands {times} times in {mutation.file}")
    return out


@click.command()
@click.option("--count", default=FIRST, show_default=True, help="How many programs at most.")
@click.option("--only", default="", help="Only errors whose description holds this.")
def main(count: int, only: str) -> None:
    """Put each error in and say how many programs it took to find it."""
    if old := stale():
        raise SystemExit("\n".join(old))
    chosen = [m for m in MUTATIONS if only in m.what]
    missed = []
    for mutation in [*chosen, *[None] * (not only)]:
        said = tried(mutation, count)
        print(f"{mutation.what if mutation else 'no error'}: {said}", flush=True)
        if not said.startswith("program " if mutation else "done: "):
            missed.append(mutation.what if mutation else "no error, and one was found")
    if missed or not chosen:
        raise SystemExit(f"not found: {'; '.join(missed)}" if chosen else f"no error's description holds {only!r}")


if __name__ == "__main__":
    main()
