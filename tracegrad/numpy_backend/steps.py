"""What a list of operations is made of when NumPy goes through it: `Step`, a rule and the places that it reads and writes; `StepList`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

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
    """Steps and the places of what they read and write (see numpy_program.NumpyProgram, which runs them).

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
