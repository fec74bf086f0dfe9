"""Builds kernels for another process. `main` does so in a process of its own; `builders.py` starts it, and says what for.

PoCL compiles one program at a time in a process, whatever threads and contexts there are, and a kernel's machine code when it is
launched first. So a kernel that can do nothing (see `packing.py`) is launched to do that, and the other process finds in PoCL's cache what
that made. Of Intel's driver, which makes all when it builds and keeps nothing, it gets the binary. This imports neither tracegrad nor what
that needs.
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

from tracegrad.runtime.drivers.pocl_cpu import name_cpu
from tracegrad.runtime.drivers.pocl_header import GUARD
from tracegrad.runtime.programs.bare_kernel import bare_kernel

LEAVES = 10.0                              # seconds without work after which the process ends
JOB, DONE, FAILED = "programs.json", "done", "failed"
Kernel = tuple[str, Sequence[int], Sequence[int], Sequence[int]]      # name, bytes of arguments (0: a pointer), global, local size
# A text, with options, and its kernels; None: the binary is wanted.
Programs = Sequence[tuple[tuple[str, Sequence[str]], Sequence[Kernel] | None]]


def built(context: cl.Context, device: cl.Device, text: str, options: Sequence[str]) -> cl.Program:
    """The driver's program of a text. Raises cl.Error."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as nowhere:
        warnings.simplefilter("ignore", cl.CompilerWarning)
        program = cl.Program(context, text)
        program.build(list(options), devices=[device], cache_dir=nowhere)          # instead of pyopencl's cache there is ours
        return program


def work(context: cl.Context, device: cl.Device, programs: Programs, own: int, folder: Path, made: cl.Program | None = None) -> None:
    """Build the program of a number, unless it is made, and launch its kernels; then those of others that nobody has begun with.

    folder: where processes that have the same programs to build note which are built, and who begins with what. Raises cl.Error.
    """
    queue = cl.CommandQueue(context, device)
    for number in sorted(range(len(programs)), key=lambda number: number != own):
        given, idle = programs[number]
        if idle is None:
            if number == own and made is None:
                binaries: Any = built(context, device, *given).get_info(cl.program_info.BINARIES)
                (folder / f"part {number}").write_bytes(binaries[0])
                (folder / f"part {number}").rename(folder / f"binary {number}")
            continue
        program = made if number == own else None
        if number != own and not (folder / f"built {number}").exists():
            continue
        for place in range(len(idle)) if number == own else reversed(range(len(idle))):
            if program is None:
                program = built(context, device, *given)
            if number == own:
                (folder / f"built {number}").touch()
            if _first_at(folder / f"{number} {place}"):
                launch(queue, program, idle[place])


def launch(queue: cl.CommandQueue, program: cl.Program, idle: Kernel) -> None:
    """Have a kernel do nothing, with null pointers and the part -1. Raises cl.Error."""
    name, sizes, global_size, local_size = idle
    kernel = bare_kernel(program, name)
    kernel.set_arg(0, np.int32(-1))
    for place, size in enumerate(sizes, 1):
        kernel.set_arg(place, bytes(size) if size else None)
    cl.enqueue_nd_range_kernel(queue, kernel, tuple(global_size), tuple(local_size)).wait()


def _first_at(path: Path) -> bool:
    """Whether this process is the first to make a file."""
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


def main(platform: str, name: str) -> None:
    """Read numbers and folders from standard input, a line each: the programs lie there as JSON. Answer each when its `work` is done.

    platform: the version of the driver. name: the device that it will be asked to build for first.
    """
    devices = {d.name: d for p in cl.get_platforms() if p.version == platform for d in p.get_devices()}
    contexts: dict[str, cl.Context] = {}

    def context(name: str) -> cl.Context:
        if name not in contexts:
            name_cpu(devices[name])
            contexts[name] = cl.Context([devices[name]])
        return contexts[name]

    with contextlib.suppress(cl.Error):                              # PoCL reads its builtins when it builds the first program
        built(context(name), devices[name], "__kernel void nothing() {}\n", ["-w", GUARD])
    while select.select([sys.stdin], [], [], LEAVES)[0]:
        line = sys.stdin.readline()
        if not line:                                                 # whoever asked is gone
            return
        number, folder = line.rstrip("\n").split(" ", 1)
        answer = FAILED
        with contextlib.suppress(cl.Error, OSError, KeyError):
            name, programs = json.loads((Path(folder) / JOB).read_text())
            work(context(name), devices[name], programs, int(number), Path(folder))
            answer = DONE
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
