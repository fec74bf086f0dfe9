"""Processes that compile a part of a large plan's kernels while this one compiles the others. Start at `Builders`.

PoCL compiles one kernel at a time in a process, and keeps what it made in a folder where other processes find it. So each of some processes
(`build_worker.py`) builds a program of its own and has its kernels made, then those of others that nobody has begun with; after that this
process builds all of the programs in no time. Intel's driver builds one program at a time, too; there this process is given binaries.
Which kernels are in which program changes nothing of what they compute. Whatever goes wrong with a process, this one compiles what it was
asked for.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyopencl as cl

from tracegrad.config import config
from tracegrad.runtime.programs.build_worker import DONE, JOB, Programs, work
from tracegrad.runtime.programs.packing import can_be_part, packs
from tracegrad.support.plan import Function

MOST = 4                                   # processes, this one included: more have less to do than it takes to start them
OPERATIONS = 100                           # different ones of a program from which on they start, and load the driver, before it is lowered
LENGTH = 30_000                            # characters of kernels for each process, at least
START = 20_000                             # and what this one compiles while another starts
PACK = 15_000                              # characters of the kernels that are one, at most: so that all have as much to do
LATENESS = 10.0                            # seconds that another may take longer than twice what this one took
_RUN = ("import sys, types; sys.path += sys.argv[4:]; package = types.ModuleType('tracegrad'); package.__path__ = [sys.argv[1]]; "
        "sys.modules['tracegrad'] = package; from tracegrad.runtime.programs import build_worker; "
        "build_worker.main(sys.argv[2], sys.argv[3])")


class Builder:
    """Another process that builds, for the devices of a driver. behind: what this process compiles meanwhile, until it is ready."""

    def __init__(self, device: cl.Device, behind: int) -> None:
        package = Path(__file__).absolute().parents[2]
        libraries = {str(Path(module.__file__).absolute().parents[1]) for module in (cl, np) if module.__file__}
        self.platform = device.platform.version
        self.behind = behind
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _RUN, str(package), device.platform.version, device.name, *sorted(libraries)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, number: int, folder: str) -> None:
        """Have it build a program of those that a folder tells of (see `build_worker.work`), without waiting for it."""
        assert self._process.stdin is not None
        self.behind = 0
        with contextlib.suppress(OSError):                 # it is gone: `wait` sees that
            self._process.stdin.write(f"{number} {folder}\n".encode())
            self._process.stdin.flush()

    def wait(self, seconds: float) -> bool:
        """Whether it did what it was asked for, within some seconds; else it is of no more use."""
        stdout = self._process.stdout
        assert stdout is not None
        answer = b""
        end = time.monotonic() + seconds
        with contextlib.suppress(OSError, ValueError):     # another thread saw that it is gone
            while not answer.endswith(b"\n") and select.select([stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                more = os.read(stdout.fileno(), 64)
                answer += more
                if not more:
                    break
        if answer.endswith(b"\n"):
            return answer.decode().strip() == DONE
        self.stop()
        return False

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Have nothing to do with it any more."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        self._process.returncode = self._process.returncode or 0


class Builders:
    """The other processes of this one. They end when nobody asks them for a while."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._all: list[Builder] = []
        self._lock = threading.Lock()

    def begin(self, device: cl.Device, most: int = MOST, behind: int = 0) -> list[Builder]:
        """Those that can be asked to build for a device, of `most` processes with this one; started if they are not there."""
        with self._lock:
            if self._pid != os.getpid():                   # they are those of the process that this one was forked from
                for builder in self._all:
                    builder.forget()
                self._pid, self._all = os.getpid(), []
            for builder in [builder for builder in self._all if not builder.alive]:
                builder.stop()
                self._all.remove(builder)
            found = [builder for builder in self._all if builder.platform == device.platform.version]
            with contextlib.suppress(OSError):             # no more processes
                while len(found) < min(most, allowed()) - 1:
                    found.append(Builder(device, behind))
                    self._all.append(found[-1])
            return found[:max(0, most - 1)]

    def stop(self) -> None:
        """End those that there are."""
        with self._lock:
            if self._pid == os.getpid():
                for builder in self._all:
                    builder.stop()
            self._all = []


def allowed() -> int:
    """How many processes may compile, this one included."""
    usable = os.name == "posix" and "python" in Path(sys.executable or "").name.lower() and not getattr(sys, "frozen", False)
    if not usable or os.environ.get("POCL_KERNEL_CACHE") == "0":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return config.builders or min(cores, MOST)


def shares(functions: Sequence[Function], others: Sequence[Builder]) -> list[list[list[Function]]]:
    """Which kernels this process builds (first), and each of the others that is needed: packs of those that are one.

    Those that are no parts, and so are not made without being run, are this process's.
    """
    found: list[list[list[Function]]] = [[] for _ in range(len(others) + 1)]
    load = [0, *(builder.behind for builder in others)]
    for pack in sorted(packs(functions, PACK), key=lambda pack: (can_be_part(pack[0]), -amount(pack))):
        least = min(range(len(load)), key=load.__getitem__) if can_be_part(pack[0]) else 0
        found[least].append(pack)
        load[least] += amount(pack)
    return [share for share in found if share]


def side_by_side(context: cl.Context, device: cl.Device, programs: Programs, others: Sequence[Builder],
                 first: Callable[[], cl.Program], done: Callable[[int], None]) -> list[bytes | None]:
    """Have programs in the driver's cache, with their kernels. `first` builds this process's, each of `others` one of the rest.

    What another could not do is missing there. done: told the number of each program that is there. Returns the binaries of the rest,
    where those are wanted. Raises what `first` raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / JOB).write_text(json.dumps((device.name, programs)))
        start = time.monotonic()
        try:
            for number, builder in enumerate(others, 1):
                builder.ask(number, folder)
            made = first()
            with contextlib.suppress(cl.Error, OSError):       # who runs the kernels is told
                work(context, device, programs, 0, Path(folder), made)
            done(0)
            end = LATENESS + 3 * time.monotonic() - 2 * start
            for number, builder in enumerate(others, 1):
                builder.wait(end - time.monotonic())
                done(number)
            paths = [Path(folder) / f"binary {number}" for number in range(1, len(programs))]
            return [path.read_bytes() if path.exists() else None for path in paths]
        except BaseException:
            for builder in others:                             # what they say later is no answer to the next question
                builder.stop()
            raise


def amount(functions: Sequence[Function]) -> int:
    """How much there is to compile, in characters."""
    return sum(len(f.body) for f in functions)


builders = Builders()
atexit.register(builders.stop)
