"""A kernel as the code generator holds it before a plan exists: its text, and what each parameter binds to.

`Kernel.refs` lists, in parameter order, what `passes` has to turn into slots: a graph Node (that node's buffer), a
`Temp` (scratch private to this lowering, such as packed GEMM panels; or `FAULTS`), a `RuntimeScalar` or a `Fault`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

_COMMENT = re.compile(r"\s*//[^\n]*")
_VARIABLE = re.compile(r"(?<![\w.])[A-Za-z_]\w*\b(?!\s*\()")
_TYPE = re.compile(r"(u?(char|short|int|long)|float|double|half)\d*(_u)?|\w+_t|void|INFINITY|NAN|(M|CLK)_\w+")


@dataclass(frozen=True)
class Temp:
    """Scratch storage of `size` elements; two Temps are the same buffer if they are equal, so `owner` must be unique."""

    name: str
    owner: Hashable
    size: int
    dtype: np.dtype[Any]


FAULTS = Temp("faults", "faults", 0, np.dtype(np.int32))       # where kernels note indices out of range (see plan.Check)


@dataclass(frozen=True)
class RuntimeScalar:
    """Run-time scalar number `index` of the plan, passed by value as `dtype`."""

    index: int
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Turn:
    """The number of the turn that a loop is in, from 0 on, passed by value."""


@dataclass(frozen=True)
class Kernel:
    """One OpenCL kernel. `text` is the whole function; `helpers` names the library functions it calls (see mathlib)."""

    entry: str
    text: str
    refs: tuple[Any, ...]                   # Node | Temp | RuntimeScalar | Fault, in parameter order
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    flops: int = 0
    bytes: int = 0
    note: str = ""
    helpers: frozenset[str] = frozenset()
    fused: tuple[tuple[str, int, bool], ...] = ()          # see plan.Launch
    foreign: bool = False                   # a user's text, about which nothing is known

    @cached_property
    def form(self) -> str:
        """The text without comments, its variables numbered in order: equal forms compute the same with other arguments."""
        numbers: dict[str, str] = {}

        def number(match: re.Match[str]) -> str:
            return match[0] if _TYPE.fullmatch(match[0]) else numbers.setdefault(match[0], f"${len(numbers)}")

        text = " ".join(_COMMENT.sub("", self.text).replace(f" {self.entry}(", " (").split())      # long names break lines elsewhere
        return _VARIABLE.sub(number, text.replace("( ", "("))


@dataclass(frozen=True)
class Turns:
    """A loop before a plan exists: its steps `length` times, with the number of the turn in `turn`.

    held: the buffers that it has from outside, or hands from turn to turn; the others are a turn's own.
    """

    steps: tuple[Any, ...]                  # Kernel | HostStep | Turns
    length: int
    turn: Turn
    held: tuple[Any, ...] = ()
    name: str = "scan"

    @property
    def kernels(self) -> list[Kernel]:
        """Those of its steps, inner loops' included."""
        return [k for s in self.steps for k in ([s] if isinstance(s, Kernel) else s.kernels if isinstance(s, Turns) else [])]
