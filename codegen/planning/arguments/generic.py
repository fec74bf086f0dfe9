"""Kernels of programs whose sizes vary: numbers that differ between sizes are arguments, so another size builds nothing. See `generic`.

Each size is lowered by itself, so every decision of the schedule is made for the size at hand. Then the text of each kernel is compared
with what was seen before: kernels that differ in numbers only have one `Template`, in which the numbers that differ are arguments. A
launch passes the numbers of its own size, so the kernel computes what its own text would, and what was proved of that (`verify_kernel`)
holds. A kernel with other statements has a template of its own; `kernel/index/varying.py` says what is done to have few of them.

The first kernel of a template has nothing to be compared with. There, numbers are arguments that are multiples of a size that varies, or
one less, and those that tell where loops over such sizes, work-items and the last tile begin and end; equal ones are one argument if they
stand behind the same sign. A
wrong guess costs a build later, or an argument that never changes. Never arguments: sizes of arrays, and numbers in directives.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tracegrad.codegen.kernel.index.varying import LEAST
from tracegrad.codegen.kernel.ir.expressions import Number
from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.kernel.text.markup import PLACE, Constant, before_places, marked, with_constants, with_constants_each
from tracegrad.config import config
from tracegrad.errors import CompilerBug
from tracegrad.support.cache import Cache
from tracegrad.support.plan import Function, Offset, Target

MOST = 96                              # arguments of a kernel for numbers: OpenCL promises 1024 bytes for all of them
templates = Cache("kernels whose sizes vary", 4096)
Built = tuple[Function, tuple[tuple[str, ...], ...]]       # a function, called "", and the texts of what stands in front of it, in groups


class Folder(Protocol):
    """Files by name, which other processes wrote or read."""

    def get(self, name: str) -> bytes | None: ...

    def put(self, name: str, contents: bytes) -> None: ...


def numbers_of(kernel: Kernel) -> tuple[str, tuple[Constant, ...]]:
    """What a kernel is but for its numbers, and these."""
    found: list[Constant] = []

    def note(number: Constant) -> str:
        found.append(number)
        return f"{PLACE}{number.dtype.char}"

    return with_constants(kernel.numbered_form, note), tuple(found)


@dataclass(eq=False)
class Generic(Kernel):
    """A kernel with arguments in place of numbers. of: the lines of the one that has numbers, these marked; instead: for each number, in
    order, the argument, None for those that stay."""

    of: tuple[tuple[str, str], ...] = ()
    instead: tuple[str | None, ...] = ()

    @cached_property
    def numbered(self) -> list[tuple[str, str]]:
        instead = iter(self.instead)
        texts = with_constants_each([text for text, _ in self.of], lambda number: next(instead))
        return [(text, comment) for text, (_, comment) in zip(texts, self.of, strict=True)]

    @cached_property
    def printed(self) -> list[tuple[str, str]]:
        return self.numbered


class Template:
    """Kernels that differ in numbers only.

    Later processes get what is known of it from the disk, so that they build the same kernels, which are on the disk, too.
    seen: the numbers of some of them, which tell the others by: a number that is the same in all stays; two that are the same as each other
    in each of them are one argument. places: for each number which argument it is, -1 for none. before: the characters before each, which
    tell a stride from an offset.
    """

    def __init__(self, form: str) -> None:
        self.before = before_places(form)
        self.seen: list[tuple[Constant, ...]] = []
        self.places: list[int] = []
        self.built: tuple[list[int], frozenset[str], Built] | None = None

    @classmethod
    def known(cls, form: str, name: str, folder: Folder | None) -> Template:
        """What an earlier process knew of it, or a new one. Whatever is wrong with a file, it is as good as none."""
        made = cls(form)
        contents = folder.get(name) if folder is not None else None
        try:
            dtypes, ends, *samples = json.loads(contents) if contents is not None else ((), ())
            seen = [tuple([Constant(float.fromhex(v) if isinstance(v, str) else int(v), np.dtype(dtype), bool(end))
                           for v, dtype, end in zip(values, dtypes, ends, strict=True)]) for values in samples]
        except (ValueError, TypeError):
            return made
        made.seen = seen
        made.arrange()
        return made

    def keep(self, name: str, folder: Folder) -> None:
        """Leave it to later processes."""
        samples = [[n.value.hex() if isinstance(n.value, float) else n.value for n in numbers] for numbers in self.seen]
        last = self.seen[-1]
        folder.put(name, json.dumps([[n.dtype.str for n in last], [n.ends for n in last], *samples]).encode())

    def function(self, kernel: Kernel, make: Callable[[Kernel], Built]) -> Built:
        """What drivers get for a kernel of `kernel`, or what was made of another one: but for its name it is the same."""
        known = self.built
        if known is None or known[:2] != (self.places, kernel.helpers):
            known = self.built = self.places, kernel.helpers, make(kernel)
        elif config.check and make(kernel) != known[2]:
            raise CompilerBug(f"generic: kernels of one template become different functions: {kernel.entry}")
        return known[2]

    @property
    def count(self) -> int:
        """How many arguments it has."""
        return max(self.places, default=-1) + 1

    def add(self, numbers: tuple[Constant, ...], varying: Collection[int]) -> bool:
        """Have it stand for a kernel with these numbers, too; whether it did not before."""
        if self.seen and self.fits(numbers):
            templates.hits += 1
            return False
        if not self.seen:
            self.seen.append(tuple([n._replace(value=n.value * 2 + 1) if n.ends or depends(n, varying) else n for n in numbers]))
        self.seen.append(numbers)
        self.arrange()
        return True

    def arrange(self) -> None:
        """Find out which numbers are arguments."""
        arguments: dict[Any, int] = {}
        guessed = len(self.seen) == 2           # from one kernel, where a stride may be equal to the length of a vector
        self.places = []
        for i, column in enumerate(zip(*self.seen, strict=True)):
            values = tuple([n.value for n in column])
            same = len(set(values)) == 1
            key = i if column[0].ends else (values, column[0].dtype, guessed and self.before[i])        # ends that are the same now
            self.places.append(-1 if same else arguments.setdefault(key, len(arguments)))               # will not be

    def fits(self, numbers: tuple[Constant, ...]) -> bool:
        """Whether it stands for a kernel with these numbers."""
        given: dict[int, Constant] = {}
        return all(n.value == own.value if place < 0 else given.setdefault(place, n).value == n.value
                   for n, own, place in zip(numbers, self.seen[-1], self.places, strict=True))

    def kernel(self, kernel: Kernel, numbers: tuple[Constant, ...]) -> tuple[Kernel, tuple[Offset, ...]]:
        """The kernel with arguments, and these arguments for one with these numbers."""
        given = {place: n for n, place in zip(numbers, self.places, strict=True) if place >= 0}
        base = "size"
        while any(kernel.takes(f"{base}{i}") for i in given):
            base += "_"
        more = [Number(None, f"{base}{i}", given[i].dtype) for i in range(self.count)]
        instead = tuple([marked(more[place].name) if place >= 0 else None for place in self.places])
        own: dict[str, Any] = {f.name: getattr(kernel, f.name) for f in fields(Kernel)}
        made = Generic(**own | {"parameters": (*kernel.parameters, *more)}, of=tuple(kernel.numbered), instead=instead)
        return made, tuple([Offset(given[i].value, given[i].dtype) for i in range(self.count)])


def file_of(target: Target, key: str) -> str:
    """What the file of a template is called."""
    return hashlib.sha256(repr((target, key)).encode()).hexdigest()


def depends(number: Constant, varying: Collection[int]) -> bool:
    """Whether a number looks as if it were made of one of these sizes: a multiple, one less than one (the last index), or a float that is

    no short fraction (of a mean).
    """
    value = number.value
    if isinstance(value, float):
        return not (value * 1024).is_integer()
    return value > 0 and any(value % n in (0, n - 1) for n in varying if n >= LEAST)


def generic(kernels: Sequence[Kernel], target: Target, varying: Collection[int], folder: Folder | None
            ) -> tuple[list[Kernel], dict[str, tuple[Offset, ...]], tuple[str, ...], dict[str, Template]]:
    """The kernels with arguments, the arguments for each of them by name, what is to be said of it, and what they are made by, by name.

    varying: the sizes that vary. folder: where templates are kept for later processes, if anywhere.
    """
    described = {kernel.entry: numbers_of(kernel) for kernel in kernels if not kernel.foreign}
    with templates.lock:
        changed: dict[str, Template] = {}
        for key, numbers in described.values():              # all of them first, so that equal ones have one text
            template = templates[target, key]
            if template is None:
                template = templates[target, key] = Template.known(key, file_of(target, key), folder)
            if template.add(numbers, varying):
                changed[file_of(target, key)] = template
        if folder is not None:
            for name, template in changed.items():
                template.keep(name, folder)
        made: list[Kernel] = []
        more: dict[str, tuple[Offset, ...]] = {}
        fixed: list[str] = []
        known: dict[str, Template] = {}
        for kernel in kernels:
            template = None if kernel.foreign else templates[target, described[kernel.entry][0]]
            if template is not None and template.count <= MOST:
                known[kernel.entry] = template
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
                        "have none that was seen to differ", *fixed), known


