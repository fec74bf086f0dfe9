"""Kernels that differ only in numbers that are added to an index, or in how much a work-item does, are one function. Start at `share`.

Steps of an unrolled recurrence read row after row of one buffer, so their kernels are alike but for offsets; updates of parameters are
alike but for how many elements there are, and where each work-item's begin and end (variables in any case). An argument costs nothing
there. Other numbers (strides, divisors, bounds of inner loops) stay in the text, where compilers make use of them. Each kernel's own
numbers are passed, so it computes what its own text would.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.tuning import tuning

_COMMENT = re.compile(r"//[^\n]*")
_NUMBER = re.compile(r"(?<![\w.$])\d[\w.]*(?:(?<=[eE])[-+]\d+\w*)?")
_ARRAY = re.compile(r"\w+ \*?\$?\w+\[[^]]*\](?: =|;)")        # a declaration: its size is no expression
# Where the elements of a work-item begin, and where they end.
_EXTENT = re.compile(r"const int [$\w]+ = [$\w]+ \* (\d+);|const int [$\w]+ = ([$\w]+) \+ \d+ < (\d+) \? \2 \+ \d+ : (\d+);")
_MOST = 8                                                  # arguments more, at most


@dataclass(frozen=True)
class Shared(Kernel):
    """A kernel with offsets as its last arguments: `source` is its text."""

    source: str = ""

    @cached_property
    def text(self) -> str:
        above = f"// launched {self.launches} times; names and lines are the first's\n" if self.launches > 1 else ""
        return above + self.source


def vars_of(kernel: Kernel) -> dict[str, Any]:
    return {f.name: getattr(kernel, f.name) for f in fields(Kernel)}


def share(kernels: Sequence[Kernel]) -> tuple[list[Kernel], dict[str, tuple[str, tuple[int, ...]]]]:
    """Fewer kernels, and for those that were replaced: the entry to launch in their place, and its last arguments (ints).

    kernels: no two of the same form.
    """
    alike: dict[str, list[tuple[Kernel, list[str]]]] = {}
    for kernel in kernels:
        if not kernel.foreign:
            skeleton, numbers = split(kernel.form)
            alike.setdefault(skeleton, []).append((kernel, numbers))
    instead: dict[str, tuple[str, tuple[int, ...]]] = {}
    texts: dict[str, str] = {}
    for found in alike.values():
        if len(found) == 1:
            continue
        columns = list(zip(*(numbers for _, numbers in found), strict=True))
        arguments = list(dict.fromkeys(c for c in columns if len(set(c)) > 1))
        first = found[0][0]
        form = first.form
        extents = {c for c, match in zip(columns, offsets(form), strict=True) if _is_extent(form, match)}
        if len(found) <= tuning().repeats and not extents.issuperset(arguments):
            continue
        if len(arguments) > _MOST or any(int(n) >> 31 for c in arguments for n in c):
            continue
        text = with_arguments(first, found[0][1], [arguments.index(c) if c in arguments else -1 for c in columns], len(arguments))
        if text is None:
            continue
        texts[first.entry] = text
        for i, (kernel, _) in enumerate(found):
            instead[kernel.entry] = first.entry, tuple(int(c[i]) for c in arguments)
    kept = [k for k in kernels if k.entry not in instead or k.entry in texts]
    return [Shared(**vars_of(k), source=texts[k.entry]) if k.entry in texts else k for k in kept], instead


def split(text: str) -> tuple[str, list[str]]:
    """The text with a mark in place of each offset, and the offsets."""
    out, numbers, end = [], [], 0
    for match in offsets(text):
        out.append(text[end:match.start()])
        numbers.append(match[0])
        end = match.end()
    return "#".join([*out, text[end:]]), numbers


def offsets(text: str) -> list[re.Match[str]]:
    """The whole numbers that are added or subtracted, or say where a work-item's elements begin and end."""
    arrays = [m.span() for m in _ARRAY.finditer(text)]
    extents = {m.span(g) for m in _EXTENT.finditer(text) for g in (1, 3, 4)}
    found = []
    for match in _NUMBER.finditer(text):
        before = text[max(0, match.start() - 3):match.start()].rstrip()
        added = match[0].isdigit() and before[-1:] in ("+", "-") and before[-2:] not in ("++", "--")
        if match.span() in extents or (added and not any(a <= match.start() < b for a, b in arrays)):
            found.append(match)
    return found


def _is_extent(text: str, number: re.Match[str]) -> bool:
    """Whether a number that `offsets` found stands in a line that says where a work-item's elements begin or end."""
    start, end = text.rfind("\n", 0, number.start()) + 1, text.find("\n", number.end())
    return _EXTENT.fullmatch(text[start:end].strip()) is not None


def with_arguments(kernel: Kernel, numbers: Sequence[str], argument: Sequence[int], count: int) -> str | None:
    """The kernel's text, argument number argument[i] in place of its offset number i (-1: it stays); None if these are not its offsets."""
    text = kernel.text
    code = _COMMENT.sub(lambda match: " " * len(match[0]), text)          # as long, so that places are the same
    found = offsets(code)
    head, begin, _ = text.partition(") {\n")
    if [match[0] for match in found] != list(numbers) or not begin:
        return None
    base = "offset"
    while re.search(rf"\b{base}\d*\b", code):
        base += "_"
    names = [f"{base}{i or ''}" for i in range(count)]
    parts, end = [], len(head) + len(begin)
    start = end
    for match, number in zip(found, argument, strict=True):
        if number < 0:
            continue
        if match.start() < start:
            return None
        parts += [text[end:match.start()], names[number]]
        end = match.end()
    between = ",\n    " if "(\n" in head else ", "
    more = "".join(f"{between}const int {name}" for name in names)
    return f"{head}{more}{begin}{''.join(parts)}{text[end:]}"
