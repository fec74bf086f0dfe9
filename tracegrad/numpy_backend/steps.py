"""What a list of operations is made of when NumPy goes through it: `Step`, a rule and the places that it reads and writes; `StepList`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracegrad.graph.ir import Aval
from tracegrad.passes.liveness import last_uses


class Step(NamedTuple):
    """One call. arity: how many operands. dtype: of the result; None for those of a loop, all together. dead: places that nobody reads

    after it.
    """

    rule: Callable[..., Any]
    operands: tuple[int, ...]
    arity: int
    place: int
    dtype: Any
    reports: bool
    fn: Any = None
    attrs: Any = None
    dead: tuple[int, ...] = ()


class StepList:
    """Steps and the places of what they read and write (see numpy_program.Routine, which runs them).

    constants: the places of numbers that a call brings. fixed: places and values of what depends on nothing. targets: the places of the
    results. avals: of the operations, of which there are `size`. origin: of each, its position in the order that the caller knows.
    """

    __slots__ = ("avals", "constants", "fixed", "origin", "size", "steps", "targets")

    avals: list[Aval]
    constants: list[int]
    fixed: list[tuple[int, Any]]
    origin: Sequence[int]
    size: int
    steps: list[Step]
    targets: tuple[int, ...]


def with_last_uses(steps: Sequence[Step], kept: Iterable[int]) -> list[Step]:
    """The steps, each with the places whose last use it is. kept: those that are needed after all steps."""
    dead = last_uses([step.operands for step in steps], kept)
    return [Step._make((*step[:-1], d)) for step, d in zip(steps, dead, strict=True)]             # a fifth of _replace's time


class SideBySide:
    """The rule of a concatenation, with 0.0 for -0.0. rows: the shape of an array that holds the parts, each in a row of its own, from

    which `joined` takes them; None where they are no equals.
    """

    into = True

    def __init__(self, aval: Aval, dim: int, widths: Sequence[int]) -> None:
        self._dim, self._count, self._zero = dim, len(widths), np.zeros((), aval.dtype)
        before, width, after = aval.shape[:dim], widths[0], aval.shape[dim + 1:]
        self.rows = (len(widths), *before, width, *after) if len(set(widths)) == 1 else None
        self._cut = (*before, len(widths), width, *after)
        self._turned = (*range(1, dim + 1), 0, *range(dim + 1, len(self._cut)))

    def __call__(self, *given: Any) -> Any:
        """given: the parts, and maybe what to write to."""
        out = np.concatenate(given[:self._count], self._dim, *given[self._count:])
        return np.add(out, self._zero, out)

    def joined(self, rows: Any, out: Any) -> Any:
        """The same from an array of rows."""
        np.add(rows.transpose(self._turned), self._zero, out.reshape(self._cut))
        return out
