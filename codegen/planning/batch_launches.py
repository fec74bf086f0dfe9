"""Small kernels one after the other in one launch. Start at `batched`.

A kernel that one core finishes in less time than threads take to wake up gains nothing from a launch of its own. What one work-item
wrote it may read without a barrier, so several such kernels become blocks of one work-item's kernel, each a loop over what were its
work-items. The launches are put in an order that brings them together (whatever does not depend on them goes first).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise
from math import prod
from typing import Any

from tracegrad.codegen.kernel.index.index import Var
from tracegrad.codegen.kernel.ir.expressions import whole
from tracegrad.codegen.kernel.ir.kernel import FAULTS, Kernel, LoweredLoop
from tracegrad.codegen.kernel.ir.statements import Block, Buffer, Declare, Item, Loop, Number, Parameter, bound
from tracegrad.codegen.kernel.text.markup import offsets_in, with_offsets
from tracegrad.codegen.planning.arguments.parameterize import MOST
from tracegrad.config import config
from tracegrad.errors import CompilerBug
from tracegrad.support.plan import HostStep
from tracegrad.support.tuning import tuning

Step = Kernel | HostStep | LoweredLoop


class NotAlone(Exception):
    """Something is not for one work-item: it is too much work, or calls the host."""


def batched(steps: Sequence[Step]) -> list[Step]:
    """The steps, with runs of small kernels as single kernels."""
    out: list[Step] = []
    run: list[Kernel] = []
    length, buffers = 0, set[Any]()                    # of the run: lines, and what its kernels read and write
    known: dict[Hashable, Kernel] = {}                 # merged before: the steps of an unrolled program have equal runs

    def close() -> None:
        if len(run) > 1:
            key = alike(run)
            found = known.get(key)
            if found is None:
                found = known[key] = together(run)
                out.append(found)
            else:
                out.append(merged_again(found, run))
        else:
            out.extend(run)
        run.clear()

    count = Counter(s.form for s in steps if isinstance(s, Kernel) and is_serial(s) and not is_little(s))
    often = any(n > tuning().repeats for n in count.values())                # if not, nobody asks for the forms of those that are little
    joins = [isinstance(s, Kernel) and is_serial(s) and not (often and count[s.form] > tuning().repeats) for s in steps]
    rows = regular([s for s, joined in zip(steps, joins, strict=True) if joined and isinstance(s, Kernel)])
    row: Hashable = None
    for step, joined in ordered(steps, joins, {name: row for name, (row, _) in rows.items()}):
        if not isinstance(step, Kernel) or not joined:
            close()
            out.append(step)
            continue
        before, (row, most) = row, rows.get(step.entry, (None, 0))
        own = step.head.count("\n") + step.height + 1
        long = length + own > tuning().merged_lines or len(buffers.union(step.refs)) > tuning().merged_buffers
        if run and (row != before or 0 < most <= len(run) or long):
            close()
        if not run:
            length, buffers = 0, set()
        run.append(step)
        length += own
        buffers.update(step.refs)
    close()
    return out


def regular(kernels: Sequence[Kernel]) -> dict[str, tuple[Hashable, int]]:
    """Of kernels that many are like but for offsets: by name, what they have in common, and how many of them make one kernel.

    (The products of an unrolled loop pack row after row of one buffer.) Were they merged with whatever comes next, each merged kernel would
    be another one; runs of so many are alike in turn, and share one function (`parameterize`).
    """
    alike: dict[Hashable, list[Kernel]] = {}
    without = cache(lambda form: with_offsets(form, lambda: "#"))
    count = Counter((k.global_size, len(k.parameters)) for k in kernels)
    for kernel in kernels:
        if count[kernel.global_size, len(kernel.parameters)] <= MOST:        # so few are as good as none, whatever they look like
            continue
        alike.setdefault((without(kernel.form), kernel.global_size), []).append(kernel)
    found: dict[str, tuple[Hashable, int]] = {}
    for form, several in alike.items():
        columns = list(zip(*([offset.value for offset in offsets_in(k.form)] for k in several), strict=True)) if len(several) > MOST else []
        differ = len({c for c in columns if len(set(c)) > 1})
        if differ and MOST // differ > 1 and len(several) > tuning().repeats * (MOST // differ):
            found.update((k.entry, (form, MOST // differ)) for k in several)
    return found


def is_serial(step: Kernel) -> bool:
    """Whether one work-item does as well as the threads that a launch would wake."""
    return can_be_serial(step) and step.flops + step.bytes < tuning().launch_work


def can_be_serial(step: Kernel) -> bool:
    """Whether its work-items are few, and what one of them can do one after the other."""
    alone = step.group is not None and prod(step.group) == 1 and not step.cooperates       # a work-group's may be of one item, too
    return alone and prod(step.global_size) <= tuning().merged_items and not step.foreign


def is_little(step: Kernel) -> bool:
    return prod(step.global_size) == 1 and step.flops + step.bytes < tuning().little_work


def effects(step: Step) -> tuple[list[Any], list[Any]]:
    """The buffers that a step reads, and those that it (also) writes. (The order of faults does not matter.)"""
    if isinstance(step, HostStep):
        return list(step.inputs), list(step.outputs)
    if isinstance(step, LoweredLoop):
        inner = [effects(s) for s in step.steps]
        return [r for reads, _ in inner for r in reads], [r for _, writes in inner for r in writes]
    found = [p for p in step.parameters if p.ref is not FAULTS]
    return [p.ref for p in found], [p.ref for p in found if isinstance(p, Buffer) and p.access != "const"]


def ordered(steps: Sequence[Step], joins: Sequence[bool], rows: Mapping[str, Hashable]) -> list[tuple[Step, bool]]:
    """The steps, each after those it depends on, and whether each may be merged.

    As long as any other can go no small kernel does; then as many small ones as can: those that `rows` has one name for end to end.
    """
    if sum(joins) < 2 or any(isinstance(s, HostStep) for s in steps):
        return list(zip(steps, joins, strict=True))
    waits, users = dependencies(steps)
    row_of = [rows.get(s.entry) if joined and isinstance(s, Kernel) else None for s, joined in zip(steps, joins, strict=True)]
    ready: tuple[dict[Hashable, list[int]], dict[Hashable, list[int]]] = ({}, {})

    def put(i: int) -> None:
        heappush(ready[joins[i]].setdefault(row_of[i], []), i)

    for i, n in enumerate(waits):
        if not n:
            put(i)
    out, kind, row = [], 0, None
    while ready[0] or ready[1]:
        if not ready[kind]:
            kind = 1 - kind
        if row not in ready[kind]:
            row = min(ready[kind], key=lambda row: ready[kind][row][0])
        i = heappop(ready[kind][row])
        if not ready[kind][row]:
            del ready[kind][row]
        out.append((steps[i], joins[i]))
        for user in users[i]:
            waits[user] -= 1
            if not waits[user]:
                put(user)
    return out


def dependencies(steps: Sequence[Step]) -> tuple[list[int], list[list[int]]]:
    """For each step, how many it waits for, and which ones wait for it."""
    users: list[list[int]] = [[] for _ in steps]
    waits = [0] * len(steps)
    writer: dict[Any, int] = {}
    readers: dict[Any, list[int]] = {}
    for i, step in enumerate(steps):
        reads, writes = effects(step)
        before = {writer[r] for r in reads if r in writer}
        for r in writes:
            before.update(readers.get(r, ()))
        for r in reads:
            readers.setdefault(r, []).append(i)
        for r in writes:
            writer[r], readers[r] = i, [i]
        before.discard(i)
        waits[i] = len(before)
        for b in before:
            users[b].append(i)
    return waits, users


def together(parts: Sequence[Kernel]) -> Kernel:
    """One kernel of several, each in a block; a buffer has one name in all of them."""
    main = max(parts, key=lambda k: len(k.text))
    own = [{(p.ref, p.name) for p in k.parameters} for k in parts]
    called: dict[Any, str] = {}
    merged: list[Parameter] = []
    for ref in dict.fromkeys(r for k in parts for r in k.refs):
        given = [p for k in parts for p in k.parameters if p.ref == ref]
        base = name = given[0].name
        n = 1
        while name in called.values() or any(k.takes(name) and (ref, name) not in o for k, o in zip(parts, own, strict=True)):
            n += 1
            name = f"{base}_{n}"
        called[ref] = name
        merged.append(united(given, name))
    stem = "item"
    while any(f"{stem}{axis}" in called.values() or k.takes(f"{stem}{axis}") for axis in range(3) for k in parts):
        stem += "_"
    body = Block("")
    for k in parts:
        block = as_block(k, stem)
        block.comment = f"{k.entry}: {k.comment}" if k.comment else k.entry
        block.renamed = {p.name: called[p.ref] for p in k.parameters if p.name != called[p.ref]}
        block.numbers = k.numbers
        body.items.append(block)
    notes = "; ".join(dict.fromkeys(k.note for k in parts if k.note))
    sizes = (1,) * max(len(k.global_size) for k in parts)
    return Kernel(main.entry, tuple(merged), body, sizes, sizes, sum(k.flops for k in parts), sum(k.bytes for k in parts),
                  f"{len(parts)} small kernels in one launch{': ' * bool(notes)}{notes}", frozenset().union(*(k.helpers for k in parts)),
                  **_of_all(parts), group=sizes, wide=0, clang=main.clang)


def _of_all(parts: Sequence[Kernel]) -> dict[str, Any]:
    """What a merged kernel computes, what of it is slow, and why."""
    return {"slow": sum(k.slow for k in parts), "fused": tuple(x for k in parts for x in k.fused),
            "why": tuple(dict.fromkeys(x for k in parts for x in k.why))}


def alike(parts: Sequence[Kernel]) -> Hashable:
    """What the form of `together(parts)` depends on: the kernels' forms, and which of their buffers are one."""
    place: dict[Any, int] = {}
    return tuple((k.form, k.global_size, k.flops, k.bytes, k.slow, k.note, k.helpers,
                  *[place.setdefault(r, len(place)) for r in k.refs]) for k in parts)


def merged_again(found: Kernel, parts: Sequence[Kernel]) -> Kernel:
    """together(parts), where `found` is that of parts which are `alike`."""
    refs = dict.fromkeys(r for k in parts for r in k.refs)
    made = found.bound(refs, entry=parts[-1].entry, **_of_all(parts))        # a loop may make another text of it than of `found`
    if config.check:
        other = together(parts)
        if (other.outline, other.refs) != (made.outline, made.refs):
            raise CompilerBug(f"batch_launches: kernels that are alike are merged to different ones:\n{made.text}\n{other.text}")
    return made


def united(given: Sequence[Parameter], name: str) -> Parameter:
    """The parameter that several kernels' are: written if one writes it, and `restrict` if it is to all and nobody writes it.

    What one kernel writes and another reads is an ordinary pointer of the kernel that they become. clang's inliner (LLVM 14, in PoCL 3)
    takes a load or store of a vector of addresses, as loops with computed indices become where a CPU has AVX-512, for one that touches
    nothing that is `restrict`: what was scattered was not seen by the loads after it.
    """
    first = given[0]
    if isinstance(first, Number):
        return Number(first.ref, name, first.dtype)
    access = max((p.access for p in given if isinstance(p, Buffer)), key=("const", "out", "inout").index)
    buffer = Buffer(first.ref, name, first.dtype, first.size, access)
    buffer.restrict = all(p.restrict for p in given if isinstance(p, Buffer)) and (access == "const" or len(given) == 1)
    return buffer


def as_block(kernel: Kernel, stem: str) -> Block:
    """What a kernel does, as a loop over what were its work-items. stem: what their numbers are called if the kernel gives them no name."""
    sizes = {axis: n for axis, n in enumerate(kernel.global_size) if n > 1}
    items = {s.axis: s for s in kernel.body.items if isinstance(s, Item)}
    loops: list[Block] = []
    vars: dict[int, Var] = {}
    for axis, n in sorted(sizes.items(), reverse=True):
        vars[axis], type_ = (items[axis].var, items[axis].type) if axis in items else (Var(f"{stem}{axis}", n), "int")
        loops.append(Loop(vars[axis], type_, bound(0), bound(n)))
    loops = loops or [Block("{")]
    for outer, inner in pairwise(loops):
        outer.items.append(inner)
    for s in kernel.body.items:
        if isinstance(s, Item):
            if s.axis not in sizes:                          # there was but one
                loops[-1].items.append(Declare(s.var, f"const {s.type}", whole(0), bound=bound(0)))
        else:
            loops[-1].items.append(s)
    return loops[0]
