"""Kernels that differ in some numbers only are one, with these as parameters. Start at `share`.

The numbers are those that are added to an index, or say how much a work-item does.
Steps of an unrolled recurrence read row after row of one buffer, so their kernels are alike but for offsets, and those of a kernel differ
by the same. Updates of parameters are alike but for how many elements there are, and where each work-item's begin and end (variables in
any case). An argument costs nothing there. Other numbers (strides, divisors, bounds of inner loops) stay as they are, where compilers
make use of them. Each kernel's own numbers are passed, so it computes what its own text would. Which numbers these are is marked when a
kernel is printed (`kernel/text/markup.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tracegrad.codegen.kernel.ir.expressions import Number
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.text.markup import Offset, offsets_in, with_offsets
from tracegrad.support.dtypes import int32
from tracegrad.support.tuning import tuning

MOST = 8                                                  # arguments more, at most


def share(kernels: Sequence[Kernel]) -> tuple[list[Kernel], dict[str, tuple[str, tuple[int, ...]]]]:
    """Fewer kernels, and for those that were replaced: the entry to launch in their place, and its last arguments (ints).

    kernels: no two of the same form.
    """
    def lines(kernel: Kernel) -> tuple[int, int]:
        return len(kernel.parameters), kernel.form.count("\n")

    alike: dict[str, list[tuple[Kernel, list[Offset]]]] = {}
    own = [kernel for kernel in kernels if not kernel.foreign]
    count = Counter(map(lines, own))
    for kernel in own:
        if count[lines(kernel)] > 1:                         # else it differs from all others in more than offsets
            alike.setdefault(with_offsets(kernel.form, lambda: "#"), []).append((kernel, offsets_in(kernel.form)))
    instead: dict[str, tuple[str, tuple[int, ...]]] = {}
    shared: dict[str, Kernel] = {}
    for found in alike.values():
        if len(found) == 1:
            continue
        columns = list(zip(*([offset.value for offset in offsets] for _, offsets in found), strict=True))
        first, offsets = found[0]
        extents = {c for c, offset in zip(columns, offsets, strict=True) if offset.ends}
        # Numbers that are the same distance apart in all of them are one argument: steps read one row, the next, ...
        steps = [tuple(n - c[0] for n in c) if c not in extents and any(n != c[0] for n in c) else c for c in columns]
        arguments: dict[tuple[int, ...], tuple[int, ...]] = {}
        for step, c in zip(steps, columns, strict=True):
            if len(set(c)) > 1:
                arguments.setdefault(step, c)
        few = len(found) <= tuning().repeats and len(first.printed) < tuning().shared_lines
        if few and not extents.issuperset(arguments.values()):
            continue
        if len(arguments) > MOST or any(n >> 31 for c in columns for n in c):
            continue
        place = {step: (i, c[0]) for i, (step, c) in enumerate(arguments.items())}
        given = [(place[step][0], c[0] - place[step][1]) if step in place else (-1, 0) for step, c in zip(steps, columns, strict=True)]
        shared[first.entry] = with_arguments(first, given, len(arguments))
        for i, (kernel, _) in enumerate(found):
            instead[kernel.entry] = first.entry, tuple(c[i] for c in arguments.values())
    return [shared.get(k.entry, k) for k in kernels if k.entry not in instead or k.entry in shared], instead


def with_arguments(kernel: Kernel, given: Sequence[tuple[int, int]], count: int) -> Kernel:
    """The kernel with an argument in place of each of its offsets: given[i] is its number (-1: the offset stays), and what is added."""
    base = "offset"
    while any(kernel.takes(f"{base}{i or ''}") for i in range(count)):
        base += "_"
    numbers = [Number(None, f"{base}{i or ''}", int32) for i in range(count)]
    names = tuple((numbers[i].name, more) if i >= 0 else ("", 0) for i, more in given)
    return replace(kernel, parameters=(*kernel.parameters, *numbers), offsets=names)
