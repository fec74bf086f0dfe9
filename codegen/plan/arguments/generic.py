"""Kernels of programs whose sizes vary: numbers that differ between sizes are arguments, so another size builds nothing. See `generic`.

Each size is lowered by itself, so every decision of the schedule is made for the size at hand. Then the text of each kernel is compared
with what was seen before: kernels that differ in numbers only have one `Template`, in which the numbers that differ are arguments. A
launch passes the numbers of its own size, so the kernel computes what its own text would, and what was proved of that (`verify_kernel`)
holds. A kernel with other statements (where the rest of a row is done in other vectors, say) has a template of its own.

The first kernel of a template has nothing to be compared with. There, numbers are arguments that are multiples of a size that varies. A
wrong guess costs a build later, or an argument that never changes. Never arguments: sizes of arrays, and numbers in directives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from tracegrad.codegen.kernel.ir.expressions import Number
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.text.markup import marked, without_comment
from tracegrad.support.cache import Cache, memoize
from tracegrad.support.dtypes import DType, float32, float64, int32, int64, uint32, uint64
from tracegrad.support.plan import Offset, Target

# What may be a number of C: not in a name, nor in a mark. Then what is one: floats, with f, and integers, with a suffix.
_TOKEN = re.compile(r"(?<![\w.$\x01\x03])(\d[\w.]*(?:(?<=e)[+-]\d+f?)?)")
_NUMBER = re.compile(r"(\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)(f?)|(\d+)(UL|u|L)?")
_FIXED = re.compile(r"#|__attribute__|__builtin_shuffle|\basm\b|\bcase\b")      # lines in which compilers want constants
_SUFFIX: dict[str | None, DType] = {"UL": uint64, "u": uint32, "L": int64}
LEAST = 5                              # sizes below tell nothing: too much is a multiple of them
MOST = 48                              # arguments of a kernel for numbers: OpenCL promises 1024 bytes for all of them
templates = Cache("kernels whose sizes vary", 4096)


class Found(NamedTuple):
    """A number in a text: what it is, and its dtype."""

    value: int | float
    dtype: DType


@memoize(4096)
def _found(text: str) -> Found | None:
    """The number that a text is, if it is one."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    if match[1]:
        return Found(float(match[1]), float32 if match[2] else float64)
    value = int(match[3])
    return Found(value, _SUFFIX[match[4]] if match[4] else int32 if value < 1 << 31 else int64)


def _replaced(text: str, other: Callable[[Found], str | None]) -> str:
    """The text with other(number) in place of each number that may be an argument (None: it stays)."""
    if _FIXED.search(text) and "\n" in text:
        return "\n".join([_replaced(line, other) for line in text.split("\n")])
    parts = [text] if _FIXED.search(text) else _TOKEN.split(text)
    for i in range(1, len(parts), 2):
        if parts[i - 1].endswith("[") and parts[i + 1].startswith("]"):      # the size of an array, or one of its elements
            continue
        number = _found(parts[i])
        if number is not None:
            parts[i] = other(number) or parts[i]
    return "".join(parts)


def numbers_of(kernel: Kernel) -> tuple[str, tuple[Found, ...]]:
    """What a kernel is but for its numbers, and these."""
    found: list[Found] = []

    def note(number: Found) -> str:
        found.append(number)
        return f"#{number.dtype.char}"

    group = str(kernel.group)
    return group + _replaced(kernel.form[len(group):], note), tuple(found)


@dataclass(eq=False)
class Generic(Kernel):
    """A kernel with arguments in place of numbers. of: the lines of the one that has numbers; instead: for each of these, in order, the
    argument, None for those that stay."""

    of: tuple[tuple[str, str], ...] = ()
    instead: tuple[str | None, ...] = ()

    @cached_property
    def printed(self) -> list[tuple[str, str]]:
        instead = iter(self.instead)
        found = []
        for text, comment in self.of:
            code = without_comment(text)
            found.append((_replaced(code, lambda number: next(instead)) + text[len(code):], comment))
        return found


class Template:
    """Kernels that differ in numbers only.

    seen: the numbers of some of them, which tell the others by: a number that is the same in all stays; two that are the same as each other
    in each of them are one argument. places: for each number which argument it is, -1 for none.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[Found, ...]] = []
        self.places: list[int] = []

    @property
    def count(self) -> int:
        """How many arguments it has."""
        return max(self.places, default=-1) + 1

    def add(self, numbers: tuple[Found, ...], varying: Collection[int]) -> None:
        """Have it stand for a kernel with these numbers, too."""
        if self.seen and self.fits(numbers):
            templates.hits += 1
            return
        if not self.seen:
            self.seen.append(tuple([n._replace(value=n.value * 2 + 1) if depends(n, varying) else n for n in numbers]))
        self.seen.append(numbers)
        arguments: dict[Any, int] = {}
        self.places = []
        for column in zip(*self.seen, strict=True):
            values = tuple([n.value for n in column])
            same = len(set(values)) == 1
            self.places.append(-1 if same else arguments.setdefault((values, column[0].dtype), len(arguments)))

    def fits(self, numbers: tuple[Found, ...]) -> bool:
        """Whether it stands for a kernel with these numbers."""
        given: dict[int, Found] = {}
        return all(n == own if place < 0 else given.setdefault(place, n) == n
                   for n, own, place in zip(numbers, self.seen[-1], self.places, strict=True))

    def kernel(self, kernel: Kernel, numbers: tuple[Found, ...]) -> tuple[Kernel, tuple[Offset, ...]]:
        """The kernel with arguments, and these arguments for one with these numbers."""
        given = {place: n for n, place in zip(numbers, self.places, strict=True) if place >= 0}
        base = "size"
        while any(kernel.takes(f"{base}{i}") for i in given):
            base += "_"
        more = [Number(None, f"{base}{i}", given[i].dtype) for i in range(self.count)]
        instead = tuple([marked(more[place].name) if place >= 0 else None for place in self.places])
        own: dict[str, Any] = {f.name: getattr(kernel, f.name) for f in fields(Kernel)}
        made = Generic(**own | {"parameters": (*kernel.parameters, *more)}, of=tuple(kernel.printed), instead=instead)
        return made, tuple([Offset(given[i].value, given[i].dtype) for i in range(self.count)])


def depends(number: Found, varying: Collection[int]) -> bool:
    """Whether a number looks as if it were made of one of these sizes: a multiple, or one over a multiple (a mean)."""
    value = number.value
    if isinstance(value, float):
        if not 0 < value < 0.5 or round(1 / value) > 1 << 31:
            return False
        over = round(1 / value)
        return number.dtype.type(1 / over) == number.dtype.type(value) and any(over % n == 0 for n in varying if n >= LEAST)
    return value > 0 and any(value % n == 0 for n in varying if n >= LEAST)


def generic(kernels: Sequence[Kernel], target: Target, varying: Collection[int]
            ) -> tuple[list[Kernel], dict[str, tuple[Offset, ...]], tuple[str, ...]]:
    """The kernels with arguments, the arguments for each of them by name, and what is to be said of it. varying: the sizes that vary."""
    described = {kernel.entry: numbers_of(kernel) for kernel in kernels if not kernel.foreign}
    with templates.lock:
        for key, numbers in described.values():              # all of them first, so that equal ones have one text
            template = templates[target, key]
            if template is None:
                template = templates[target, key] = Template()
            template.add(numbers, varying)
        made: list[Kernel] = []
        more: dict[str, tuple[Offset, ...]] = {}
        fixed: list[str] = []
        for kernel in kernels:
            template = None if kernel.foreign else templates[target, described[kernel.entry][0]]
            if template is None or not 0 < template.count <= MOST:
                if template is None or template.count:
                    why = "it is the user's text" if template is None else f"it would take {template.count} arguments"
                    fixed.append(f"{kernel.entry} is made for this size: {why}")
                made.append(kernel)
                continue
            one, more[kernel.entry] = template.kernel(kernel, described[kernel.entry][1])
            made.append(one)
    count = sum(map(len, more.values()))
    return made, more, (f"sizes vary: {len(more)} of {len(kernels)} kernels take numbers as arguments, {count} in all; the others "
                        "have none that was seen to differ", *fixed)


