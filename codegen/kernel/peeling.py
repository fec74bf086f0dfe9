"""Loop peeling: the ranges that a loop is cut into so that its inside needs no test. Start at `peeled`."""

from __future__ import annotations

from collections.abc import Iterable

from tracegrad.codegen.kernel.guards import Guard
from tracegrad.codegen.kernel.index import Var


def peeled(guards: Iterable[Guard], col: Var, n: int, step: int) -> list[tuple[int, int]]:
    """The ranges of columns 0..n-1 that vectors of `step` do: all of them, or the left edge, the inside, where no guard needs to be
    checked, and the right edge.

    A stencil's neighbours (pad, then slices) are guarded, and a guarded load is made lane by lane.
    """
    whole = n - n % step
    left = right = 0
    for kind, x, *rest in guards:
        if kind == "range" and x.stride(col) == 1:
            around = x - col.index                           # low <= col + around < high is certain from here on, and up to there
            before, after = rest[0] - around.lo, n - (rest[1] - around.hi)
            if max(before, after) <= n // 4:
                left, right = max(left, before), max(right, after)
    start, stop = -(-left // step) * step, min((n - right) // step * step, whole)
    if not (left or right) or stop - start < n // 2:
        return [(0, whole)]
    return [(a, b) for a, b in ((0, start), (start, stop), (stop, whole)) if a < b]


def scattered(guards: Iterable[Guard], col: Var, n: int) -> bool:
    """Whether the columns 0..n-1 come from so many places that a test for each is longer than all columns one by one."""
    cuts: set[int] = set()
    for kind, x, *rest in guards:
        if kind == "range" and x.stride(col) == 1:
            around = x - col.index                           # low <= col + around < high
            if not around.vars:
                cuts.update(c for c in (rest[0] - around.lo, rest[1] - around.lo) if 0 < c < n)
    return 2 * (len(cuts) + 1) > n and len(cuts) > 1
