"""Which backend runs a Program of untraced work, NumPy or kernels; the counts that `tg.report()` shows. Start at `Usage`.

A driver takes a tenth of a second and more to build a program; NumPy has done small work long before that. So a new Program is run by
NumPy. One that is run again and again is compiled by a thread, and from a fixed use on its kernels are used. Large work is compiled when
it first comes.

The choice depends on the Program (operations, shapes, dtypes, device) and on how often it and its calls came in this process, never on a
clock: the same program run again, in a new process, makes the same choices, and computes the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tracegrad.config import config
from tracegrad.graph.canonical import Numbers
from tracegrad.graph.ir import Node
from tracegrad.graph.primitive import numpy_time
from tracegrad.support.dtypes import is_half

# Estimates in nanoseconds, measured with numpy 2.4 and PoCL 3 on one core of a server (AMD EPYC). They need not be exact: where both
# backends take about as long, either is right.
NODE = 2_500.0                  # numpy's and the interpreter's for one operation on few elements (measured: 2 to 3.5 us)
HALF = 8.0                      # how much longer numpy takes for floats of 16 bits, which are converted
BUILD = 60e6                    # to compile a program and run it once: for each,
BUILD_NODE = 4e6                # and for each operation (1: 0.1 s; 90, an MLP's step: 0.2 to 0.5; 850, a transformer's: 3 to 4)

# Where an operation computes for SMALL nanoseconds at the average, kernels save little: to start one takes as long as numpy does for ten
# such operations, and while others of a step's structures are numpy's, arrays are handed to and fro (a step of an LSTM: 2.2 ms by numpy,
# 5 half compiled, 2.3 compiled; of a ViT: 3.3, 4.9, 3.5; a small DCGAN's would be faster: 4.9 and 2.4 to 4). Loops of so many ITERATIONS
# are an exception: each is one kernel.
NEVER = 1 << 62
SMALL = 12_000.0
ITERATIONS = 64

# Work whose structure came so often that numpy took as long as a build takes is compiled: then no more is lost than about the time of the
# better backend, however often it will come. The thread starts a quarter of the way there: it shares the cores, and Python's lock, with the
# work that goes on, so it takes longer than a build does by itself.


class Usage:
    """How often a Program was run, and which backend is next.

    tier_up: how many of its uses are NumPy's; 0 where all are compiled. reason: why so, in words. uses: so far. numbers: which of its
    numbers change. loops: whether there are loops.
    """

    __slots__ = ("loops", "numbers", "reason", "tier_up", "uses")

    def __init__(self, order: Sequence[Node], device: Any) -> None:
        self.uses = 0
        self.numbers = Numbers()
        self.tier_up, self.reason = _tier_up(order, device)
        self.loops = any(n.fn.family == "loop" for n in order)

    def note(self, bits: tuple[bytes, ...], nodes: Sequence[Node]) -> None:
        """Count a use, and see which numbers change: these nodes, whose bits are given, have come."""
        self.uses += 1
        self.numbers.note(bits, nodes)

    @property
    def compile_at(self) -> int:
        """The use after which the thread starts to compile."""
        return (self.tier_up + 3) // 4


def _tier_up(order: Sequence[Node], device: Any) -> tuple[int, str]:
    if not config.eager or device.kind == "numpy":
        return 0, "config.eager is off" if not config.eager else "the device is the interpreter"
    if not device.in_host_memory:
        return 0, "the device has memory of its own"
    try:
        time, built, calls, iterations = _estimate(order, device)
    except _CompileNow as reason:
        return 0, str(reason)
    times = int((BUILD + BUILD_NODE * built) / (time or 1.0))
    if times and iterations < ITERATIONS and time < (NODE + SMALL) * calls:
        return NEVER, ""
    return times, "" if times else f"large: numpy would take about {1e-6 * time:.0f} ms"


class _CompileNow(Exception):
    """Why work is compiled whatever it costs."""


def _estimate(order: Iterable[Node], device: Any) -> tuple[float, int, int, int]:
    """What a Program takes: NumPy's nanoseconds, the operations that a driver builds (of a loop those of one iteration), NumPy's calls,

    and the iterations of the longest loop.
    """
    time, built, calls, iterations = 0.0, 0, 0, 0
    loops: set[Any] = set()
    for node in order:
        fn: Any = node.fn
        if not device.fp64 and node.dtype in (np.float64, np.complex128) and not node.aval.weak:
            raise _CompileNow("the device has no float64")
        if fn.family == "loop" and fn.structural and not fn.reports:
            if (fn, node.operands) not in loops:                       # all its results are computed together
                loops.add((fn, node.operands))
                inner = _estimate([n for n in fn.graph if n.fn.family != "leaf"], device)
                time, built, calls = time + fn.length * inner[0], built + inner[1], calls + fn.length * inner[2]
                iterations = max(iterations, fn.length * (inner[3] or 1))
            continue
        if not fn.registered:
            raise _CompileNow(f"{fn.name} is a kernel or function of the user's" if fn.family != "loop" else "a loop has errors to report")
        work = numpy_time(node)
        time += NODE + (work * HALF if is_half(node.dtype) else work)
        built, calls = built + 1, calls + 1
    return time, built, calls, iterations


eager_calls = [0]                                          # how many operations numpy did when they were called (see eager_executor.py)
counts: Counter[str] = Counter()
reasons: Counter[str] = Counter()


def count(what: str, reason: str = "") -> None:
    """Note for `tg.report` how a piece of pending work was computed (interpreted, compiled), or that a program was made."""
    counts[what] += 1
    if reason:
        reasons[reason] += 1
