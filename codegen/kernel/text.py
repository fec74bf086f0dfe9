"""Kernels that are written as text, line by line. Start at `Text`.

Their parameters are objects as everywhere; what is between the braces is one `Raw` a line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tracegrad.codegen.kernel.ir import Kernel
from tracegrad.codegen.kernel.markup import marked_in
from tracegrad.codegen.kernel.statements import Block, Parameter, Raw
from tracegrad.codegen.kernel.types import size_of
from tracegrad.codegen.kernel.vectors import Term


class Text:
    """Collects the lines of a kernel; an emitted line that ends with `{` indents what follows, one that starts with `}` undoes it.

    reserved: what the lines may call their variables; vectors: the dtypes and lanes of those that are; group: the work-group size that the
    kernel requires; cooperates: whether the items of a group have to do with each other.
    """

    def __init__(
        self, entry: str, comment: str, parameters: Sequence[Parameter], reserved: Callable[[str], bool],
        vectors: Collection[tuple[np.dtype[Any], int]] = (), group: tuple[int, ...] | None = (1, 1, 1), cooperates: bool = False
    ) -> None:
        self.entry, self.comment, self.parameters, self.reserved = entry, comment, tuple(parameters), reserved
        self.vectors, self.group, self.cooperates = frozenset(vectors), group, cooperates
        self.lines: list[str] = []
        self.allocates = 0                                   # bytes of the arrays
        self.opened: list[int] = []                          # the lines that open the blocks we are in
        self.whole: tuple[int, int] | None = None            # a block that is all of the block around it, so far

    def __call__(self, line: str) -> None:
        whole, self.whole = self.whole, None
        depth = len(self.opened) - line.startswith("}")
        if line.startswith("}"):
            start = self.opened.pop()
            if whole:                                        # of two braces at once one will do
                self.lines[whole[0]:whole[1] + 1] = [inner[2:] for inner in self.lines[whole[0] + 1:whole[1]]]
            if line == "}" and self.lines[start].strip() == "{" and start and self.lines[start - 1].endswith("{"):
                self.whole = start, len(self.lines)
        if line.endswith("{"):
            self.opened.append(len(self.lines))
        self.lines.append("  " * depth + line)

    def array(self, type_: str, name: str, size: int, start: str = "") -> None:
        """Emits the declaration of a work-item's array. start: what it begins as."""
        self.allocates += size_of(type_) * size
        self(f"{type_} {name}[{size}]{start and f' = {start}'};")

    @contextmanager
    def counting(self, name: str, n: Term, first: int = 0, step: int = 1, type_: str = "int") -> Iterator[Term]:
        """A loop in which `name` counts from `first` to `n`; yields what to call it. Of one turn it is none, and the variable a number."""
        if isinstance(n, int) and first < n <= first + step:
            yield first
            return
        self(f"for ({type_} {name} = {first}; {name} < {n}; {f'{name} += {step}' if step > 1 else f'{name}++'}) {{")
        yield name
        self("}")

    def kernel(
        self, global_size: tuple[int, ...], local_size: tuple[int, ...] | None, flops: int = 0, bytes: int = 0, note: str = ""
    ) -> Kernel:
        """The kernel, once all lines are there."""
        body = Block("")
        names = {p.name for p in self.parameters}
        lines = [marked_in(line, names) if any(name in line for name in names) else line for line in self.lines]
        body.items += [Raw(line, cooperates=self.cooperates, allocates=0 if i else self.allocates) for i, line in enumerate(lines)]
        return Kernel(self.entry, self.parameters, body, global_size, local_size, flops, bytes, note, group=self.group,
                      comment=self.comment, wide=1 << 30, reserved=self.reserved, held=self.vectors)
