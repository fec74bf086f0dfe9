"""A kernel as the code generator holds it before a plan exists: parameters, statements, launch. Start at `Kernel`.

What a parameter binds to (`Kernel.refs`) `passes` turns into slots: a graph Node (that node's buffer), a `Temp` (scratch private to
this lowering, such as packed GEMM panels; or `FAULTS`), a `RuntimeScalar` or a `Fault`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.index.varying import any_vary
from tracegrad.codegen.kernel.ir import render
from tracegrad.codegen.kernel.ir.expressions import types_of
from tracegrad.codegen.kernel.ir.statements import (
    Allocate,
    Atomic,
    Barrier,
    Block,
    Buffer,
    Instruct,
    Item,
    Number,
    Parameter,
    Part,
    Statement,
    statements_in,
)
from tracegrad.codegen.kernel.ir.types import size_of
from tracegrad.codegen.kernel.text.markup import (
    COLUMN,
    called,
    called_each,
    marked,
    names_in,
    number,
    plain,
    plain_each,
    uses_in,
    with_numbers,
    with_offsets,
    without_comment,
    without_numbers,
)
from tracegrad.support.dtypes import int32
from tracegrad.support.plan import Computed, Function, Plain


class Temp(Plain):
    """Scratch storage of `size` elements; two Temps are the same buffer if they are equal, so `owner` must be unique."""

    name: str
    owner: Hashable
    size: int
    dtype: np.dtype[Any]

    def buffer(self, name: str, access: str) -> Buffer:
        """It as a parameter of a kernel."""
        return Buffer(self, name, self.dtype, self.size, access)


FAULTS = Temp("faults", "faults", 0, np.dtype(np.int32))       # where kernels note indices out of range (see plan.Check)


class RuntimeScalar(Plain):
    """Run-time scalar number `index` of the plan, passed by value as `dtype`."""

    index: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Iteration:
    """The number of the iteration that a loop is in, from 0 on, passed by value."""


def bound_to(parameter: Parameter, ref: Any) -> Parameter:
    """The parameter, bound to something else."""
    if isinstance(parameter, Number):
        return Number(ref, parameter.name, parameter.dtype)
    other = Buffer(ref, parameter.name, parameter.dtype, parameter.size, parameter.access)
    other.restrict = parameter.restrict
    return other


# What a kernel that was bound to other buffers has in common with itself
_OF_BODY = ("declared", "printed", "bare", "lines", "height", "uses", "names", "form", "types", "cooperates", "arrays")
_OF_NUMBERS = ("printed", "bare", "lines", "form")           # what its numbers are in


@dataclass(eq=False)
class Kernel:
    """One OpenCL kernel. `helpers` names the library functions it calls (see mathlib).

    local_size: None if the driver may choose it; group: the work-group size that the text requires. For `explain()`: note, how it is
    written; why, the reasons for what is fused in it and for its end (see schedule/grouping.py).
    """

    entry: str
    parameters: tuple[Parameter, ...]
    body: Block
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    flops: int = 0
    bytes: int = 0
    note: str = ""
    helpers: frozenset[str] = frozenset()
    fused: tuple[Computed, ...] = ()          # see plan.Launch
    why: tuple[str, ...] = ()
    group: tuple[int, ...] | None = None
    comment: str = ""                       # what stands above the text
    launches: int = 1                       # how often a plan launches it
    slow: int = 0                           # ns of a core for what flops and bytes do not tell: branches that go by values, scalars
    wide: int = 110                         # how long the line of the parameters may become
    clang: bool = False                     # whether it may be printed with clang's builtins
    numbers: tuple[int, ...] | None = None  # in place of those that may be offsets (see markup) in the body, in order
    # For each of these: what the argument in its place is called ("": there is none), and how much more than that it is.
    offsets: tuple[tuple[str, int], ...] = ()

    @property
    def work(self) -> int:
        """How long a core of a CPU takes, in flops of float32, about, for what several cores could save of it.

        A vector holds half as many doubles. A core reads slowly what another one wrote, so half of the bytes are nobody's to save.
        It does 50 to 90 flops a ns, where nothing is slow.
        """
        wide = any(isinstance(p, Buffer) and p.dtype.char in "dD" for p in self.parameters)
        return (self.flops << wide) + self.bytes // 2 + 64 * self.slow

    @cached_property
    def refs(self) -> tuple[Any, ...]:
        """What the parameters bind to, in order: Node | Temp | RuntimeScalar | Fault."""
        return tuple(p.ref for p in self.parameters)

    @cached_property
    def printed(self) -> list[tuple[str, str]]:
        """The lines of the body, with names marked, and what is said beside each."""
        if not any_vary():
            return self._lines(False)
        texts = without_numbers(text for text, _ in self.numbered)
        return [(text, comment) for text, (_, comment) in zip(texts, self.numbered, strict=True)]

    @cached_property
    def numbered(self) -> list[tuple[str, str]]:
        """The same, with numbers marked, too."""
        return self._lines(True)

    def _lines(self, constants: bool) -> list[tuple[str, str]]:
        lines = render.lines(self.body, self.clang, constants)
        if self.numbers is not None:
            numbers = iter(self.numbers)
            lines = [(with_numbers(text, numbers), comment) for text, comment in lines]
        if self.offsets:
            arguments = map(_argument, self.offsets)
            lines = [(with_offsets(text, arguments.__next__), comment) for text, comment in lines]
        return lines

    @cached_property
    def bare(self) -> list[str]:
        """The lines without what is said beside them, names marked."""
        return [without_comment(text) for text, _ in self.printed]

    @cached_property
    def uses(self) -> frozenset[tuple[str, str]]:
        """The functions for vectors, and for what is reported, that it uses, each with the type of what it reads or writes."""
        return uses_in("\n".join([text for text, _ in self.printed]))

    @cached_property
    def types(self) -> frozenset[tuple[np.dtype[Any], int]]:
        """The dtypes of what it reads, writes and computes, with as many lanes."""
        found = {(p.dtype, 1) for p in self.parameters}
        parts: list[Part] = []
        todo = [self.body]
        while todo:
            block = todo.pop()
            parts += block.parts
            for item in block.items:
                if isinstance(item, Block):
                    todo.append(item)
                else:
                    parts += item.parts
        return frozenset(found | types_of(parts))

    @cached_property
    def lines(self) -> list[str]:
        """The text of the body."""
        texts = plain_each(text for text, _ in self.printed)
        return [f"{line}{' ' * (COLUMN - len(line))}  // {comment}" if comment else line
                for line, (_, comment) in zip(texts, self.printed, strict=True)]

    @cached_property
    def declared(self) -> list[str]:
        """The parameters."""
        return plain_each(p.declaration for p in self.parameters)

    @cached_property
    def head(self) -> str:
        """What stands above these lines."""
        above = f"launched {self.launches} times; names and lines are the first's" if self.launches > 1 else ""
        return render.head(self.entry, self.declared, (above, self.comment), self.group, self.wide)

    @cached_property
    def text(self) -> str:
        """The whole function."""
        return self.head + "".join([f"{line}\n" for line in self.lines]) + "}\n"

    @cached_property
    def height(self) -> int:
        """How many lines the text of the body has."""
        return sum([1 + text.count("\n") + comment.count("\n") for text, comment in self.printed])

    def function(self, above: tuple[tuple[int, ...], ...]) -> Function:
        """It as drivers get it, such that equal ones are the same: variables numbered in order, no comments. (Its key is still missing.)"""
        numbers: dict[str, str] = {}

        def numbered(name: str) -> str:
            return numbers.setdefault(name, f"_{len(numbers) + 1}")

        parameters = tuple([p.plain(numbered(p.name)) for p in self.parameters])
        body = "\n".join([line for line in self._called(numbered) if line])
        group = None if self.group is None else (*self.group, 1, 1)[:3]
        return Function(self.entry, "", parameters, plain(body), above, group, self.cooperates, self.arrays)

    def _called(self, name: Callable[[str], str]) -> list[str]:
        """The lines of the body, without comments, variables called name(what they are called)."""
        return called_each(self.bare, name)

    def _whole(self, name: Callable[[str], str], bare: Sequence[str] | None = None) -> str:
        """All of it but what it is called, variables called name(what they are called). bare: its lines, if not those that it has."""
        lines = [*(p.declaration for p in self.parameters), *(self.bare if bare is None else bare)]
        return f"{self.group} " + called("\n".join(lines), name)

    def launched(self, times: int) -> Kernel:
        """The same kernel, which a plan launches so often."""
        made = replace(self, launches=times)
        made.__dict__.update({name: self.__dict__[name] for name in _OF_BODY if name in self.__dict__})
        return made

    @cached_property
    def _of_body(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OF_BODY}

    def bound(self, refs: Iterable[Any], **changes: Any) -> Kernel:
        """The kernel with its parameters bound to others, in order. What was found out about its body is not found out again."""
        made = replace(self, parameters=tuple(bound_to(p, r) for p, r in zip(self.parameters, refs, strict=True)), **changes)
        made.__dict__.update(self._of_body)
        return made

    def with_offsets(self, numbers: Sequence[int]) -> Kernel:
        """The kernel with these in place of the numbers that may be offsets (see markup), in order."""
        made = replace(self, numbers=tuple(numbers))
        made.__dict__.update({name: self.__dict__[name] for name in _OF_BODY if name in self.__dict__ and name not in _OF_NUMBERS})
        made.__dict__["form"] = with_numbers(self.form, iter(numbers))
        return made

    def statements(self) -> list[Statement]:
        return statements_in(self.body)

    @cached_property
    def _by_class(self) -> dict[type[Statement], list[Any]]:
        """The statements of each kind."""
        found: dict[type[Statement], list[Any]] = {}
        for s in self.statements():
            found.setdefault(type(s), []).append(s)
        return found

    @property
    def foreign(self) -> bool:
        """Whether it is a user's text, about which nothing is known."""
        return False

    @cached_property
    def cooperates(self) -> bool:
        """Whether the items of a work-group have to do with each other."""
        of = self._by_class
        return (Barrier in of or any(s.of != "global" for s in of.get(Item, ())) or any(s.array.shared for s in of.get(Allocate, ())))

    @property
    def meets(self) -> bool:
        """Whether it has statements that all items of a work-group have to come to, or some of them together."""
        return Barrier in self._by_class or Instruct in self._by_class

    @property
    def wide_atomics(self) -> bool:
        """Whether it changes integers of 64 bits atomically, for which OpenCL has an extension."""
        return any(s.access.memory.dtype.itemsize == 8 for s in self._by_class.get(Atomic, ()))

    @cached_property
    def arrays(self) -> int:
        """Bytes of a work-item's own arrays."""
        return sum([size_of(s.array.type) * s.array.size for s in self._by_class.get(Allocate, ())])

    @cached_property
    def names(self) -> set[str]:
        """What its variables are called."""
        known = self.numbered if any_vary() and "printed" not in self.__dict__ else self.printed           # whichever is there
        return {p.name for p in self.parameters}.union(names_in("\n".join([text for text, _ in known])))

    def takes(self, name: str) -> bool:
        """Whether nothing else in it may be called so."""
        return name in self.names

    @cached_property
    def form(self) -> str:
        """The text without comments, its names numbered in order: equal forms compute the same with other arguments."""
        if any_vary():
            return without_numbers([self.numbered_form])[0]
        numbers: dict[str, str] = {}
        return self._whole(lambda name: numbers.setdefault(name, f"${len(numbers)}"))

    @cached_property
    def numbered_form(self) -> str:
        """The form with numbers marked."""
        numbers: dict[str, str] = {}
        return self._whole(lambda name: numbers.setdefault(name, f"${len(numbers)}"), [without_comment(text) for text, _ in self.numbered])

    @property
    def outline(self) -> str:
        """The form with its parameters numbered and all other names left out: two locals of blocks side by side may share a name or not."""
        numbers = {p.name: f"${k}" for k, p in enumerate(self.parameters)}
        return self._whole(lambda name: numbers.get(name, "$"))


def _argument(given: tuple[str, int]) -> str | None:
    """What stands in place of a number that is an argument now."""
    name, more = given
    return f"({marked(name)} {'-' if more < 0 else '+'} {number(str(abs(more)), int32)})" if more else marked(name) if name else None


@dataclass(eq=False)
class Foreign(Kernel):
    """A kernel that a user wrote: `source` is its text; it may do anything with its parameters."""

    source: str = ""

    @cached_property
    def text(self) -> str:
        return self.source

    @property
    def foreign(self) -> bool:
        return True


class LoweredLoop(Plain):
    """A loop before a plan exists: its steps `length` times, with the number of the iteration in `iteration`.

    held: the buffers that it has from outside, or hands from iteration to iteration; the others are an iteration's own.
    """

    steps: tuple[Any, ...]                  # Kernel | HostStep | Iterations
    length: int
    iteration: Iteration
    held: tuple[Any, ...] = ()
    name: str = "scan"

    @property
    def kernels(self) -> list[Kernel]:
        """Those of its steps, inner loops' included."""
        return [k for s in self.steps for k in ([s] if isinstance(s, Kernel) else s.kernels if isinstance(s, LoweredLoop) else [])]
