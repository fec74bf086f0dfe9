"""Small kernels one after the other in one launch. Start at `merge`.

A kernel that one core finishes in less time than threads take to wake up gains nothing from a launch of its own. What one work-item
wrote it may read without a barrier, so several such kernels become blocks of one work-item's kernel, each a loop over what were its
work-items. The launches are put in an order that brings them together (whatever does not depend on them goes first).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import prod
from typing import Any

from tracegrad.codegen.kernel import FAULTS, Kernel
from tracegrad.codegen.lower_loops import SINGLE
from tracegrad.codegen.tuning import tuning
from tracegrad.config import config
from tracegrad.errors import TracegradError
from tracegrad.plan import HostStep

Step = Kernel | HostStep
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def merge(steps: Sequence[Step]) -> list[Step]:
    """The steps, with runs of small kernels as single kernels."""
    out: list[Step] = []
    run: list[Kernel] = []
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
    joins = [isinstance(s, Kernel) and is_serial(s) and count[s.form] <= tuning().repeats for s in steps]
    for step, joined in ordered(steps, joins):
        if isinstance(step, HostStep) or not joined:
            close()
            out.append(step)
            continue
        lines, buffers = sum(k.text.count("\n") for k in (*run, step)), {r for k in (*run, step) for r in k.refs}
        if run and (lines > tuning().merged_lines or len(buffers) > tuning().merged_buffers):
            close()
        run.append(step)
    close()
    return out


def is_serial(step: Kernel) -> bool:
    """Whether one work-item does as well as the threads that a launch would wake."""
    items = prod(step.global_size)
    small = items <= tuning().merged_items and step.flops + step.bytes < tuning().launch_work
    if "get_local_id" in step.text or "get_group_id" in step.text:                 # a work-group's, though it may be of one item
        return False
    return small and not step.foreign and step.text.removeprefix(comment(step)).startswith(f"{SINGLE}\n__kernel void {step.entry}(")


def is_little(step: Kernel) -> bool:
    return prod(step.global_size) == 1 and step.flops + step.bytes < tuning().little_work


def comment(kernel: Kernel) -> str:
    """The line above a kernel that says what it does, if it has one."""
    return kernel.text.partition("\n")[0] + "\n" if kernel.text.startswith("//") else ""


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
    refs = [(r, p) for r, p in zip(step.refs, declared, strict=True) if r is not FAULTS]       # the order of faults does not matter
    return [r for r, _ in refs], [r for r, p in refs if "*" in p and "const" not in p.partition("*")[0].split()]


def ordered(steps: Sequence[Step], joins: Sequence[bool]) -> list[tuple[Step, bool]]:
    """The steps, each after those it depends on, and whether each may be merged.

    As long as any other can go no small kernel does; then as many small ones as can.
    """
    if sum(joins) < 2 or any(isinstance(s, HostStep) for s in steps):
        return list(zip(steps, joins, strict=True))
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
            heappush(ready[joins[i]], i)
    out, kind = [], 0
    while ready[0] or ready[1]:
        if not ready[kind]:
            kind = 1 - kind
        i = heappop(ready[kind])
        out.append((steps[i], joins[i]))
        for user in users[i]:
            waits[user] -= 1
            if not waits[user]:
                heappush(ready[joins[user]], user)
    return out


def together(parts: Sequence[Kernel]) -> Kernel:
    """One kernel of several, each in a block; a buffer has one name in all of them."""
    main = max(parts, key=lambda k: len(k.text))
    bodies = [k.text.partition(") {\n")[2].removesuffix("}\n").rstrip("\n").split("\n") for k in parts]
    words = [set(_WORD.findall("\n".join(line.partition("//")[0] for line in body))) for body in bodies]
    declared = [list(zip(k.refs, parameters(k), strict=True)) for k in parts]
    own = [[(ref, _WORD.findall(text)[-1]) for ref, text in d] for d in declared]
    taken: set[str] = set()
    names: dict[Any, str] = {}
    header: list[str] = []
    for ref in dict.fromkeys(r for k in parts for r in k.refs):
        texts = [text for d in declared for r, text in d if r == ref]
        base = name = next(called for o in own for r, called in o if r == ref)
        n = 1
        while name in taken or any(name in w and (ref, name) not in o for w, o in zip(words, own, strict=True)):
            n += 1
            name = f"{base}_{n}"
        taken.add(name)
        names[ref] = name
        text = next((t for t in texts if "const" not in t.partition("*")[0].split()), texts[0])
        text = text if all("restrict" in t for t in texts) else text.replace("*restrict ", "*")
        header.append(re.sub(r"\w+$", name, text))
    item = "item"
    while any(f"{item}{d}" in w for w in words for d in range(3)):
        item += "_"
    lines = []
    for k, body, called in zip(parts, bodies, own, strict=True):
        change = {old: names[ref] for ref, old in called if old != names[ref]}
        loops = [(f"{item}{d}", n) for d, n in reversed(list(enumerate(k.global_size))) if n > 1]
        heads = [f"for (int {name} = 0; {name} < {n}; {name}++) {{" for name, n in loops] or ["{"]
        heads[0] += f"  // {k.entry}" + comment(k).replace("//", ":", 1).rstrip().replace(" :", ":")
        lines += ["  " * (1 + depth) + text for depth, text in enumerate(heads)]
        for line in body:
            code, mark, rest = line.partition("//")
            for d in range(3):
                code = code.replace(f"get_global_id({d})", f"{item}{d}" if (*k.global_size, 1, 1)[d] > 1 else "0")
            lines.append("  " * len(heads) + f"{renamed(code, change)}{mark}{rest}")
        lines += ["  " * (1 + depth) + "}" for depth in reversed(range(len(heads)))]
    text = f"{SINGLE}\n__kernel void {main.entry}(\n    " + ",\n    ".join(header) + ") {\n" + "\n".join(lines) + "\n}\n"
    notes = "; ".join(dict.fromkeys(note for k in parts for note in k.note.split("; ") if note))
    sizes = (1,) * max(len(k.global_size) for k in parts)
    return Kernel(main.entry, text, tuple(names), sizes, sizes, sum(k.flops for k in parts), sum(k.bytes for k in parts),
                  f"{len(parts)} small kernels in one launch: {notes}", frozenset().union(*(k.helpers for k in parts)),
                  fused=tuple(x for k in parts for x in k.fused))


def alike(parts: Sequence[Kernel]) -> Hashable:
    """What the form of `together(parts)` depends on: the kernels' forms, and which of their buffers are one."""
    place: dict[Any, int] = {}
    return tuple((k.form, k.global_size, k.flops, k.bytes, k.note, k.helpers, *[place.setdefault(r, len(place)) for r in k.refs])
                 for k in parts)


def merged_again(found: Kernel, parts: Sequence[Kernel]) -> Kernel:
    """together(parts), where `found` is that of parts which are `alike`."""
    made = replace(found, refs=tuple(dict.fromkeys(r for k in parts for r in k.refs)), fused=tuple(x for k in parts for x in k.fused))
    made.__dict__["form"] = found.form
    if config.check:
        other = together(parts)
        if (other.form, other.refs) != (made.form, made.refs):
            raise TracegradError(f"codegen: kernels that are alike are merged to different ones:\n{made.text}\n{other.text}")
    return made


def renamed(code: str, names: dict[str, str]) -> str:
    return _WORD.sub(lambda match: names.get(match[0], match[0]), code) if names else code
