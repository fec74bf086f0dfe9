"""Small kernels one after the other in one launch. Start at `merge`.

A kernel of one work-item gains nothing from a launch of its own: what one work-item wrote it may read without a barrier, so several
such kernels become blocks of one. The launches are put in an order that brings them together (whatever does not depend on them
goes first).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import heappop, heappush
from math import prod
from typing import Any

from tracegrad.codegen.kernel import Kernel
from tracegrad.codegen.lower_loops import SINGLE
from tracegrad.plan import HostStep

Step = Kernel | HostStep
WORK = 3 << 14             # flops + bytes of a kernel whose launch costs about as much as it does
LINES = 200                # of a merged kernel at most, and
PARAMETERS = 24            # its buffers
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def merge(steps: Sequence[Step]) -> list[Step]:
    """The steps, with runs of one-work-item kernels as single kernels."""
    out: list[Step] = []
    run: list[Kernel] = []

    def close() -> None:
        if run:
            out.append(run[0] if len(run) == 1 else together(run))
            run.clear()

    for step in ordered(steps):
        if isinstance(step, HostStep) or not is_single(step):
            close()
            out.append(step)
            continue
        if run and (sum(k.text.count("\n") for k in (*run, step)) > LINES or len({r for k in (*run, step) for r in k.refs}) > PARAMETERS):
            close()
        run.append(step)
    close()
    return out


def is_single(step: Kernel) -> bool:
    """Whether a kernel is one short work-item's."""
    return prod(step.global_size) == 1 and step.flops + step.bytes < WORK and step.text.startswith(f"{SINGLE}\n__kernel void {step.entry}(")


def parameters(kernel: Kernel) -> list[str]:
    """The declarations of its parameters."""
    head = kernel.text.partition(f" {kernel.entry}(")[2].partition(") {\n")[0]
    return [" ".join(p.split()) for p in head.split(",")] if head else []


def effects(step: Step) -> tuple[list[Any], list[Any]]:
    """The buffers that a step reads, and those that it (also) writes."""
    if isinstance(step, HostStep):
        return list(step.inputs), list(step.outputs)
    declared = parameters(step)
    if len(declared) != len(step.refs):            # a user's kernel: it might do anything
        return list(step.refs), list(step.refs)
    return list(step.refs), [r for r, p in zip(step.refs, declared, strict=True) if "*" in p and "const" not in p.partition("*")[0].split()]


def ordered(steps: Sequence[Step]) -> list[Step]:
    """The steps, each after those it depends on: as long as any other can go, no one-work-item kernel, and then as many as can."""
    single = [isinstance(s, Kernel) and is_single(s) for s in steps]
    if sum(single) < 2 or any(isinstance(s, HostStep) for s in steps):
        return list(steps)
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
    ready: tuple[list[int], list[int]] = ([], [])
    for i, n in enumerate(waits):
        if not n:
            heappush(ready[single[i]], i)
    out, kind = [], 0
    while ready[0] or ready[1]:
        if not ready[kind]:
            kind = 1 - kind
        i = heappop(ready[kind])
        out.append(steps[i])
        for user in users[i]:
            waits[user] -= 1
            if not waits[user]:
                heappush(ready[single[user]], user)
    return out


def together(parts: Sequence[Kernel]) -> Kernel:
    """One kernel of several, each in a block; a buffer has one name in all of them."""
    main = max(parts, key=lambda k: len(k.text))
    bodies = [k.text.partition(") {\n")[2].removesuffix("}\n").rstrip("\n").split("\n") for k in parts]
    words = [set(_WORD.findall("\n".join(line.partition("//")[0] for line in body))) for body in bodies]
    declared = [dict(zip(k.refs, parameters(k), strict=True)) for k in parts]
    own = [{ref: _WORD.findall(text)[-1] for ref, text in d.items()} for d in declared]
    taken: set[str] = set()
    names: dict[Any, str] = {}
    header: list[str] = []
    for ref in dict.fromkeys(r for k in parts for r in k.refs):
        texts = [d[ref] for d in declared if ref in d]
        base = name = next(o[ref] for o in own if ref in o)
        n = 1
        while name in taken or any(name in w and o.get(ref) != name for w, o in zip(words, own, strict=True)):
            n += 1
            name = f"{base}_{n}"
        taken.add(name)
        names[ref] = name
        text = next((t for t in texts if "const" not in t.partition("*")[0].split()), texts[0])
        text = text if all("restrict" in t for t in texts) else text.replace("*restrict ", "*")
        header.append(re.sub(r"\w+$", name, text))
    lines = []
    for k, body, called in zip(parts, bodies, own, strict=True):
        change = {old: names[ref] for ref, old in called.items() if old != names[ref]}
        lines.append(f"  {{  // {k.entry}")
        for line in body:
            code, comment, rest = line.partition("//")
            lines.append(f"  {renamed(code, change)}{comment}{rest}")
        lines.append("  }")
    text = f"{SINGLE}\n__kernel void {main.entry}(\n    " + ",\n    ".join(header) + ") {\n" + "\n".join(lines) + "\n}\n"
    notes = "; ".join(dict.fromkeys(note for k in parts for note in k.note.split("; ") if note))
    sizes = (1,) * max(len(k.global_size) for k in parts)
    return Kernel(main.entry, text, tuple(names), sizes, sizes, sum(k.flops for k in parts), sum(k.bytes for k in parts),
                  f"{len(parts)} small kernels in one launch: {notes}", frozenset().union(*(k.helpers for k in parts)))


def renamed(code: str, names: dict[str, str]) -> str:
    return _WORD.sub(lambda match: names.get(match[0], match[0]), code) if names else code
