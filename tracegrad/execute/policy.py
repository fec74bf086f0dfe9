"""The two ways of untraced work: with numpy at once, or through kernels that a driver builds first. Start at `Structure`.

A driver takes a tenth of a second and more to build a program; numpy has done small work long before that. So pending work of a new
structure is done by the ops' numpy rules, one operation after the other (`run`). If the same structure comes again and again, a thread
compiles it, and from a fixed use on the kernels are taken. Large work is compiled at once.

Which way is taken depends on the structure (operations, shapes, dtypes, device) and on how often it and its calls came in this process,
never on a clock: the same program run again, in a new process, takes the same ways, and computes the same bits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracegrad.config import config
from tracegrad.errors import LinAlgError
from tracegrad.execute import plan_cache
from tracegrad.graph.canonical import Numbers
from tracegrad.graph.ir import Node
from tracegrad.graph.operators import public
from tracegrad.graph.primitive import in_registry, numpy_time
from tracegrad.numpy_backend.numpy_program import Routine, out_of_memory
from tracegrad.runtime.buffer import Held, hold
from tracegrad.runtime.faults import Run, mark
from tracegrad.runtime.programs.program import counts as kernels
from tracegrad.support import cache
from tracegrad.support.blas import quiet
from tracegrad.support.cache import Cache
from tracegrad.support.dtypes import bfloat16, is_half

# Estimates in nanoseconds, measured with numpy 2.4 and PoCL 3 on one core of a server (AMD EPYC). They need not be exact: where both ways
# take about as long, either is right.
NODE = 2_500.0                  # numpy's and the interpreter's for one operation on few elements (measured: 2 to 3.5 us)
HALF = 8.0                      # how much longer numpy takes for floats of 16 bits, which are converted
BUILD = 60e6                    # to compile a program and run it once: for each,
BUILD_NODE = 4e6                # and for each operation (1: 0.1 s; 90, an MLP's step: 0.2 to 0.5; 850, a transformer's: 3 to 4)

# Where an operation computes for SMALL nanoseconds at the average, kernels save little: to start one takes as long as numpy does for ten
# such operations, and while others of a step's structures are numpy's, arrays are handed to and fro (a step of an LSTM: 2.2 ms by numpy,
# 5 half compiled, 2.3 compiled; of a ViT: 3.3, 4.9, 3.5; a small DCGAN's would be faster: 4.9 and 2.4 to 4). Loops of so many TURNS are
# an exception: each is one kernel.
NEVER = 1 << 62
SMALL = 12_000.0
TURNS = 64

# Work whose structure came so often that numpy took as long as a build takes is compiled: then no more is lost than about the time of the
# better way, however often it will come. The thread starts a quarter of the way there: it shares the cores, and Python's lock, with the
# work that goes on, so it takes longer than a build does by itself.
KNOWN = 200_000                 # operations in all the structures that are remembered (0.3 KB each)


class Structure:
    """What is known of one structure of pending work.

    patience: how many of its uses are numpy's; 0 where all are compiled. reason: why so, in words. uses: so far. numbers: which of its
    constants change. size: how many operations. loops: whether some are.
    """

    __slots__ = ("loops", "numbers", "patience", "reason", "routine", "size", "uses")

    def __init__(self, order: Sequence[Node], device: Any) -> None:
        self.size = len(order)
        self.uses = 0
        self.numbers = Numbers()
        self.routine: Routine | None = None
        self.patience, self.reason = _patience(order, device)
        self.loops = any(n.fn.family == "loop" for n in order)

    def note(self, values: tuple[Any, ...], constants: Sequence[Node]) -> None:
        """Count a use, and see which constants change. values: their bits, `constants` their nodes."""
        self.uses += 1
        self.numbers.note(values, constants)

    @property
    def numpy_next(self) -> bool:
        """Whether the next use is numpy's, and no occasion for anything else."""
        return 1 <= self.uses < self.patience and self.uses + 1 != self.compile_at

    @property
    def compile_at(self) -> int:
        """The use after which the thread starts to compile."""
        return (self.patience + 3) // 4


def _patience(order: Sequence[Node], device: Any) -> tuple[int, str]:
    if not config.eager or device.kind == "numpy":
        return 0, "config.eager is off" if not config.eager else "the device is the interpreter"
    if not device.in_host_memory:
        return 0, "the device has memory of its own"
    try:
        seen = _estimate(order, device)
    except _AtOnce as reason:
        return 0, str(reason)
    times = int((BUILD + BUILD_NODE * seen.built) / (seen.time or 1.0))
    if times and seen.turns < TURNS and seen.time < (NODE + SMALL) * seen.calls:
        return NEVER, ""
    return times, "" if times else f"large: numpy would take about {1e-6 * seen.time:.0f} ms"


class _AtOnce(Exception):
    """Why work is compiled whatever it costs."""


class _Estimate(NamedTuple):
    """Nanoseconds that numpy takes, how many operations a driver builds (of a loop those of one turn), how many numpy makes, and the turns

    of the longest loop.
    """

    time: float
    built: int
    calls: int
    turns: int


def _estimate(order: Iterable[Node], device: Any) -> _Estimate:
    estimate, count, calls, turns = 0.0, 0, 0, 0
    loops: set[Any] = set()
    for node in order:
        fn: Any = node.fn
        if not device.fp64 and node.dtype in (np.float64, np.complex128) and not node.aval.weak:
            raise _AtOnce("the device has no float64")
        if fn.family == "loop" and fn.ordinary and not fn.reports:
            if (fn, node.operands) not in loops:                       # all its results are computed together
                loops.add((fn, node.operands))
                inner = _estimate([n for n in fn.graph if n.fn.family != "leaf"], device)
                estimate, count = estimate + fn.length * inner.time, count + inner.built
                calls, turns = calls + fn.length * inner.calls, max(turns, fn.length * (inner.turns or 1))
            continue
        if not in_registry(fn):
            raise _AtOnce(f"{fn.name} is a kernel or function of the user's" if fn.family != "loop" else "a loop has errors to report")
        work = numpy_time(node)
        estimate += NODE + (work * HALF if is_half(node.dtype) else work)
        count, calls = count + 1, calls + 1
    return _Estimate(estimate, count, calls, turns)


# ------------------------------------------------------------------------------------------------------------- with numpy

def run(work: Any, seen: Structure) -> list[Any]:
    """Buffers with the values of a compile.Work's targets, by the numpy rules of its operations."""
    order, leaves, places, ends, device = work.order, work.leaves, work.places, work.ends, work.device
    inputs = [_array(leaf) for leaf in leaves]
    notes: list[int] = []
    with quiet():
        if not seen.loops and (seen.uses == 1 or not config.recall):
            found = _once(order, places, ends, inputs, notes)
        else:
            routine = (seen.routine if config.recall else None) or Routine(order, places, ends)
            seen.routine = routine if config.recall else None
            try:
                found = routine(inputs, [n.attrs["value"] for n in work.constants], order, notes)
            except BaseException:
                seen.routine = None
                raise
    results = [_buffer(device, value, leaves, inputs) for value in found]
    suspect = [i for i, leaf in enumerate(leaves) if not leaf.aval.weak and leaf.value.suspicions]
    if suspect or any(notes):
        _mark(order, leaves, places, ends, suspect, results, notes, device)
    return results


def prepare(work: Any, seen: Structure) -> None:
    """Make the routine that the next use takes, of a structure that is expected to come again."""
    if seen.routine is None and seen.uses < seen.patience:
        seen.routine = Routine(work.order, work.places, work.ends)


def again(seen: Structure, leaves: Sequence[Node], constants: Sequence[Node], reporting: dict[int, Node],
          device: Any) -> list[Any] | None:
    """What `run` gives, from the structure's routine and without the nodes of the work; None where there is something to report.

    leaves: their values are suspected of nothing. reporting: the operations that may report, by number.
    """
    inputs = [_array(leaf) for leaf in leaves]
    notes: list[int] = []
    assert seen.routine is not None
    try:
        with quiet():
            found = seen.routine(inputs, [n.attrs["value"] for n in constants], reporting, notes)
    except Exception:                                                  # whoever does it at length raises it, and knows the line
        return None
    return None if any(notes) else [_buffer(device, value, leaves, inputs) for value in found]


def _once(order: Sequence[Node], places: Sequence[Sequence[int]], ends: Sequence[int], inputs: Sequence[Any],
          notes: list[int]) -> list[Any]:
    """The values at `ends`, of a structure that is new: most are never seen again."""
    values: list[Any] = [None] * len(order)
    values += reversed(inputs)
    last: dict[int, int] = {}
    for i, operands in enumerate(places):
        for o in operands:
            last[o] = i
    for t in ends:
        last[t] = -1
    bfloat = any(node.aval.dtype is bfloat16 for node in order) or any(array.dtype is bfloat16 for array in inputs)
    node = None
    try:
        for i, (node, operands) in enumerate(zip(order, places, strict=True)):
            fn: Any = node.fn
            given = [values[o] for o in operands]
            dtype = node.aval.dtype
            made = fn.computed(given, node.attrs, dtype) if bfloat else fn.numpy(*given, **node.attrs)
            values[i] = made if type(made) is np.ndarray and made.dtype is dtype else np.asarray(made, dtype)
            if fn.reports:
                notes += fn.excess(values[operands[0]], node)
            for o in operands:
                if last[o] == i:
                    values[o] = None
    except LinAlgError as error:
        if node is not None:
            node.loc.tell(error)
        raise
    except MemoryError:
        raise out_of_memory(node) from None
    return [values[t] for t in ends]


def _array(leaf: Node) -> np.ndarray[Any, Any]:
    aval, value = leaf.aval, leaf.value
    if type(value) is Held:                                             # in few steps
        array = value.array
        if array is not None and array.shape == aval.shape and array.dtype is aval.dtype:
            return array
    return np.asarray(leaf.value, aval.dtype) if aval.weak else leaf.value.contents(aval.shape, aval.dtype)     # weak: a Python number


def _buffer(device: Any, array: np.ndarray[Any, Any], leaves: Sequence[Node], inputs: Sequence[np.ndarray[Any, Any]]) -> Any:
    """A Buffer for a result. It may share memory with other Buffers that hold arrays, since nobody writes those; no more than it needs."""
    if array.flags.c_contiguous:
        owner: Any = array if array.base is None else array.base
        if isinstance(owner, np.ndarray) and owner.base is None and owner.nbytes == array.nbytes:
            return hold(device, array)
        for leaf, given in zip(leaves, inputs, strict=True):           # the whole of a leaf in device memory: its Buffer
            whole = given.nbytes == array.nbytes and given.flags.c_contiguous and array.size
            if whole and _address(given) == _address(array) and not leaf.value.may_change:
                return leaf.value
    return hold(device, np.array(array, order="C"))


def _address(array: np.ndarray[Any, Any]) -> Any:
    return array.__array_interface__["data"][0]


def _mark(order: Sequence[Node], leaves: Sequence[Node], places: Sequence[Sequence[int]], targets: Sequence[int], suspect: Sequence[int],
          results: Sequence[Any], notes: list[int], device: Any) -> None:
    """Make the results suspect for the indices out of range that were found, and for what the `suspect` leaves are suspected of."""
    reporting = [i for i, node in enumerate(order) if node.fn.reports]
    size = len(order)
    reads = [0] * size + [1 << suspect.index(i) if i in suspect else 0 for i in reversed(range(len(leaves)))]    # masks over `suspect`,
    checked = [0] * len(reads)                                                                                   # and over `reporting`
    for i, operands in enumerate(places):
        read, check = 0, 1 << reporting.index(i) if i in reporting else 0
        for o in operands:
            read, check = read | reads[o], check | checked[o]
        reads[i], checked[i] = read, check
    found = None
    if any(notes):
        rules: list[Any] = [order[i].fn for i in reporting]
        checks = tuple(rule.check(order[i]) for rule, i in zip(rules, reporting, strict=True))
        found = Run(checks, [order[i].loc for i in reporting], found=np.array(notes))
        device.record.hear(found)
    mark(results, [leaves[i].value for i in suspect], [reads[t] for t in targets], found, [checked[t] for t in targets])


# -------------------------------------------------------------------------------------------------- what came, and how often

structures = Cache("structures", KNOWN, lambda key, found: found.size, lambda found: max(0, found.uses - 1))


def known(key: Any, order: Sequence[Node], device: Any) -> Structure:
    """The record of the structure `key`; a new one if it was never seen (or long ago)."""
    found: Structure | None = structures[key]
    if found is None:
        found = structures[key] = Structure(order, device)
    return found


# ------------------------------------------------------------------------------------------------------------ the thread


class Job:
    """A call that a thread makes. `result` waits for it: what it returned, or None if it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._done = threading.Event()
        self._value: Any = None

    def run(self) -> None:
        with contextlib.suppress(Exception):           # whoever needs the result makes the call himself, where the user can be told
            self._value = self._call()
        del self._call
        self._done.set()

    def result(self) -> Any:
        if _worker.forget(self):
            self.run()                                 # it has not begun: no need to wait for those before it
        self._done.wait()
        return self._value


class Worker:
    """One thread that makes Jobs, one after the other. It ends when there is nothing to do, and with the process."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> Job:
        with self._lock:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tracegrad-compile", daemon=True)
                self._thread.start()
        return job

    def forget(self, job: Job) -> bool:
        """Take a job that has not begun back."""
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)
                return True
            return False

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.popleft()
            job.run()

    def stop(self) -> None:
        """Drop what has not begun and wait for the rest: a driver's compiler must not run while the process is taken down."""
        with self._lock:
            self._jobs.clear()
            thread = self._thread
        if thread is not None:
            thread.join()


_worker = Worker()


def in_background(call: Callable[[], Any]) -> Job:
    """A Job for `call`, on its way."""
    return _worker.submit(Job(call))


def _after_fork() -> None:
    global _worker
    _worker = Worker()                                # its thread did not come along


@atexit.register
def _stop() -> None:
    _worker.stop()                                     # of this process: see _after_fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --------------------------------------------------------------------------------------------------------------- report


def _counted(counts: dict[str, int]) -> list[str]:
    """What is known of a cache, in words."""
    size = f"size {counts['size']}" + (f" of {counts['budget']}" if "budget" in counts else "")
    return [size, *(f"{counts[what]} {what}" for what in ("hits", "misses") if what in counts)]


class Report(dict[str, Any]):
    """What `tg.report()` gives: a dict that prints as a table."""

    def __str__(self) -> str:
        lines = [f"{self['at_once']:7} small operations were done with numpy when they were called",
                 f"{self['interpreted']:7} times pending work was done with numpy",
                 f"{self['compiled']:7} times by kernels, of {self['programs']} programs built while the user waited, "
                 f"{self['background']} by a thread"]
        lines += [f"{count:11} {reason}" for reason, count in self["reasons"].items()]
        lines += [f"{self['lowered']:7} programs were lowered to kernels, {self['read']} plans of earlier processes read from the disk",
                  f"{self['built']:7} kernels were built, {self['loaded']} of earlier processes read from the disk, "
                  f"{self['shared']} shared with earlier programs"]
        lines += [f"{n['entries']:7} in the cache of {name} ({', '.join(_counted(n))})" for name, n in self["caches"].items()]
        return "\n".join(lines)

    __repr__ = __str__


AT_ONCE = [0]                                          # how many operations numpy did when they were called (see eager_executor.py)
counts: Counter[str] = Counter()
_reasons: Counter[str] = Counter()


def count(what: str, reason: str = "") -> None:
    """Note for `report` how a piece of pending work was computed (interpreted, compiled), or that a program was made."""
    counts[what] += 1
    if reason:
        _reasons[reason] += 1


@public(method=False)
def report() -> Report:
    """How untraced work was done so far in this process: a dict that prints as a table.

    at_once: how many small operations numpy did when they were called. interpreted: how many times pending work was done by numpy,
    operation by operation. compiled: how many times by kernels. programs: how many programs were compiled for that while the user waited,
    background: by a thread. reasons: why it was kernels, with counts. lowered: of all programs, traced ones included, those that this
    process made kernels for, read: those whose plan was on the disk. built: kernels that the driver built, loaded: that it had from the
    disk, shared: that an earlier program of this process has, too. caches: for each cache of the process that was asked, its entries, their
    size and the most that it may hold, and how many look-ups found something (hits, where that is counted) and how many nothing (misses).
    `config.eager = False` (TRACEGRAD_EAGER=0) makes it kernels always. Otherwise traced functions are not counted: they always run kernels.

    >>> print(tg.report())
    """
    made = {"at_once": AT_ONCE[0], **{what: counts[what] for what in ("interpreted", "compiled", "programs", "background")}}
    return Report(made, reasons=dict(_reasons), lowered=plan_cache.counts["lowered"], read=plan_cache.counts["read"],
                  built=kernels["built"], loaded=kernels["read"], shared=kernels["known"], caches=cache.statistics())
