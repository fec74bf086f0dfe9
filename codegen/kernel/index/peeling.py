"""Where loops are cut: so that their inside needs no test (`peeled`), and so that indices in it need no division (`breakpoints`)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tracegrad.codegen.kernel.index.guards import Guard
from tracegrad.codegen.kernel.index.index import Index, Var


def peeled(guards: Iterable[Guard], col: Var, n: int, step: int, most: int) -> list[tuple[int, int]]:
    """The ranges of columns 0..n-1 that vectors of `step` do, `most` at most: cut where a guard changes, so that inside it is certain.

    A stencil's neighbours (pad, then slices) are guarded at the edges, and what is put side by side (gates, heads) has guards in between.
    A guarded load is made lane by lane.
    """
    whole = n - n % step
    cuts = {0, whole}
    for kind, x, *rest in guards:
        if kind == "range" and x.stride(col) == 1:
            around = x - col.index                           # low <= col + around < high
            for limit in rest:
                start, stop = limit - around.hi, limit - around.lo       # one way before `start`, the other way from `stop` on
                if stop > 0 and start < n and stop - start <= n // 4:
                    start, stop = max(0, start) // step * step, min(-(-stop // step) * step, whole)
                    cuts |= {start, stop}
    bounds = sorted(c for c in cuts if c <= whole)
    if len(bounds) - 1 > most:
        return [(0, whole)]
    return list(pairwise(bounds))


def scattered(guards: Iterable[Guard], col: Var, n: int) -> bool:
    """Whether the columns 0..n-1 come from so many places that a test for each is longer than all columns one by one."""
    cuts: set[int] = set()
    for kind, x, *rest in guards:
        if kind == "range" and x.stride(col) == 1:
            around = x - col.index                           # low <= col + around < high
            if not around.vars:
                cuts.update(c for c in (rest[0] - around.lo, rest[1] - around.lo) if 0 < c < n)
    return 2 * (len(cuts) + 1) > n and len(cuts) > 1


def breakpoints(flats: Iterable[Index], var: Var) -> list[int]:
    """The inner sizes at which loops over `var` must be split so that `flats` need no division.

    Ascending; each divides the next.
    """
    found: set[int] = set()
    for flat in flats:
        for atom in flat.atoms():
            if atom.base is None or atom.kind == "bounded" or var not in atom.vars:
                continue
            scale = 1
            base = atom.base
            while len(base.terms) == 1 and base.terms[0][0].kind == "div" and base.terms[0][0].base is not None:
                scale *= base.terms[0][0].divisor
                base = base.terms[0][0].base
            found.add(atom.divisor * scale)
    chain: list[int] = []
    for k in sorted(found):
        if 1 < k < var.hi + 1 and (var.hi + 1) % k == 0 and (not chain or k % chain[-1] == 0):
            chain.append(k)
    return chain
